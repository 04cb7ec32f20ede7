# SPDX-License-Identifier: Apache-2.0
"""What ranks transfer alongside their gradients: a checkpoint to a file server, training data from an object store.

Such a flow belongs to a rank's process, and its other end to none. That nobody has told who is at the other end is not
enough: that host's agent may be late or missing. So every rank of the job has to be seen at the other end of somebody's
flow, and the remote address has to be no rank's host; or its agent has reported that its process is no rank.
"""

from collections.abc import Sequence
from typing import NamedTuple

from netmon.records import Direction, Flow

_Key = tuple[Direction, str, str, int, int, int]


class JobFlow(NamedTuple):
    """A flow of a job, as its host describes it."""

    rank: int  # −1: a process alongside ranks of the job that is none
    peer: int  # rank at the other end; −1: unknown
    process: str  # its program, with its container; empty: unknown
    direction: Direction
    src: str
    dst: str
    src_port: int
    dst_port: int
    protocol: int
    members: int = 0  # of an aggregate

    @property
    def local(self) -> str:
        """The address here."""
        return self.dst if self.direction == Direction.RX else self.src

    @property
    def remote(self) -> tuple[str, int]:
        """The address and port there."""
        return (self.src, self.src_port) if self.direction == Direction.RX else (self.dst, self.dst_port)

    @property
    def key(self) -> _Key:
        """No two flows of one network have the same."""
        return self.direction, self.src, self.dst, self.src_port, self.dst_port, self.protocol


def job_flow(flow: Flow, peer: int) -> JobFlow:
    """A flow that belongs to a job; peer: rank at the other end, −1: unknown."""
    owner = flow.owner
    process = f"{owner.process} ({owner.container})" if owner.container else owner.process
    ends = (flow.src, flow.dst, flow.src_port, flow.dst_port, flow.protocol)
    return JobFlow(owner.rank, peer, process, flow.direction, *ends, flow.members)


class OwnTransfer(NamedTuple):
    """What a flow is called that is one."""

    name: str  # `python3 (rank 0) to`
    far: str  # address and port at the other end


def own_transfers(flows: Sequence[JobFlow], size: int) -> list[OwnTransfer | None]:
    """Which flows of one job are known to be its ranks' own transfers. size: ranks of the job; 0: unknown."""
    by_key = {flow.key: flow for flow in flows if not flow.members}
    ends = [by_key.get(_opposite(flow.key)) for flow in flows]
    peers = [flow.peer if flow.peer >= 0 or end is None else end.rank for flow, end in zip(flows, ends, strict=True)]
    met = {peer for flow, peer in zip(flows, peers, strict=True) if flow.rank >= 0 and peer != flow.rank}
    if size < 2 or not met >= set(range(size)):
        return [None] * len(flows)
    hosts = {flow.local for flow in flows if flow.rank >= 0}

    def of(flow: JobFlow, end: JobFlow | None, peer: int) -> OwnTransfer | None:
        if flow.members:
            return None
        if flow.rank < 0:
            return _called(end) if end is not None and end.rank >= 0 else None
        foreign = end.rank < 0 and bool(end.process) if end is not None else flow.remote[0] not in hosts
        return _called(flow) if peer < 0 and foreign else None

    return [of(*one) for one in zip(flows, ends, peers, strict=True)]


def _called(flow: JobFlow) -> OwnTransfer:
    """By the rank's end."""
    way = "to" if flow.direction == Direction.TX else "from"
    address, port = flow.remote
    shown = f"[{address}]" if ":" in address else address
    return OwnTransfer(f"{flow.process or 'a process'} (rank {flow.rank}) {way}", f"{shown}:{port}")


def _opposite(key: _Key) -> _Key:
    return (Direction(1 - key[0]), *key[1:])
