# SPDX-License-Identifier: Apache-2.0
"""What the other ends of flows show: which are a rank's own transfers, and between whom a culprit's bytes went."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from netmon.records import Direction, Flow
from netmon.views import Cause, Verdict

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
        """The address of this end."""
        return self.dst if self.direction == Direction.RX else self.src

    @property
    def remote(self) -> tuple[str, int]:
        """The address and port of the other end."""
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
    """Names of a flow that is a rank's own transfer."""

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


# --- Between whom a culprit's bytes went: by its flow with most bytes meanwhile.

NAMED = (Cause.CROSS, Cause.OTHER_JOB)
"""Causes of which the culprit has flows."""


def with_ends(
    verdict: Verdict, payload_bytes: npt.NDArray[np.number], described: Callable[[int], tuple[str, str]]
) -> Verdict:
    """payload_bytes: of each of the culprit's flows on the verdict's link, while the iteration lasted. Without flows,
    or without payload, the verdict is returned as it is. described: the user of a flow's process, and the host (or
    address) of its other end.
    """
    if not len(payload_bytes) or payload_bytes.max() <= 0:
        return verdict
    user, far = described(int(payload_bytes.argmax()))
    sender, receiver = (verdict.host, far) if verdict.direction == Direction.TX else (far, verdict.host)
    return replace(verdict, culprit_user=user, sender=sender, receiver=receiver)
