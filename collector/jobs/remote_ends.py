# SPDX-License-Identifier: Apache-2.0
"""Who is at the other end of a flow: the rank that owns the same 5-tuple in the opposite direction."""

from collections import Counter
from collections.abc import Container
from dataclasses import replace

from netmon.records import Direction, Flow

_Key = tuple[int, str, str, int, int, int]

BY_PEER = "peer"
"""Owner.source of a flow that belongs to a job by its other end."""

_UNDECIDED_NS = 2_000_000_000  # the two ends are described about as far apart as their hosts' batches


class Peers:
    """The flows of all hosts' ranks by 5-tuple and direction."""

    def __init__(self) -> None:
        """Begin without flows."""
        self.addresses: Counter[str] = Counter()  # of the ranks, as their flows show them
        self._owners: dict[_Key, tuple[str, int]] = {}  # job and rank

    def add(self, flow: Flow) -> None:
        """Take in a flow, if a rank owns it; if one did and another process does now, it is forgotten."""
        if flow.owner.job and flow.owner.source != BY_PEER:
            key = _key(flow, flow.direction)
            self.addresses[_local(flow)] += key not in self._owners
            self._owners[key] = flow.owner.job, flow.owner.rank
        elif flow.owner.pid and not flow.owner.job:
            self.forget(flow)

    def rank(self, flow: Flow) -> int:
        """Rank of the peer; −1 where it is not known."""
        return self.owner(flow)[1] if flow.owner.job else -1

    def owner(self, flow: Flow) -> tuple[str, int]:
        """Job and rank of the peer; an empty job where no rank is known there."""
        return self._owners.get(_key(flow, Direction(1 - flow.direction)), ("", -1))

    def forget(self, flow: Flow) -> None:
        """Drop a flow whose session is over."""
        if self._owners.pop(_key(flow, flow.direction), None):
            address = _local(flow)
            self.addresses[address] -= 1
            if not self.addresses[address]:
                del self.addresses[address]


class Served:
    """Flows of one host's processes that are no ranks, until it is known whether a rank is at the other end.

    Such a process beside ranks of the same job works for it: above all the launcher, with its rendezvous.
    """

    def __init__(self, peers: Peers) -> None:
        """peers: of all hosts."""
        self._peers = peers
        self._undecided: dict[str, dict[int, tuple[int, Flow]]] = {}  # by remote address and flow: since when

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._undecided)

    def add(self, flow: Flow, now_ns: int) -> None:
        """Take in a flow as it is described, if its owner is known and no rank."""
        if flow.owner.pid and not flow.owner.job:
            self._undecided.setdefault(_remote(flow), {})[flow.flow_id] = (now_ns, flow)
        elif flow.owner.job:
            self._undecided.get(_remote(flow), {}).pop(flow.flow_id, None)

    def take(self, jobs: Container[str], now_ns: int) -> list[Flow]:
        """The flows whose other end turned out to be a rank's of one of these jobs, as the job's."""
        found = []
        for address in [address for address in self._undecided if address in self._peers.addresses]:
            flows = self._undecided[address]
            for flow_id, (_, flow) in list(flows.items()):
                job, _ = self._peers.owner(flow)
                if job and job in jobs:
                    del flows[flow_id]
                    found.append(replace(flow, owner=replace(flow.owner, job=job, source=BY_PEER)))
        self._give_up(now_ns - _UNDECIDED_NS)
        return found

    def _give_up(self, before_ns: int) -> None:
        for address, flows in list(self._undecided.items()):
            while flows:
                flow_id, (since_ns, _) = next(iter(flows.items()))
                if since_ns >= before_ns:
                    break
                del flows[flow_id]
            if not flows:
                del self._undecided[address]


def _key(flow: Flow, direction: Direction) -> _Key:
    return (direction, flow.src, flow.dst, flow.src_port, flow.dst_port, flow.protocol)


def _local(flow: Flow) -> str:
    return flow.src if flow.direction == Direction.TX else flow.dst


def _remote(flow: Flow) -> str:
    return flow.dst if flow.direction == Direction.TX else flow.src
