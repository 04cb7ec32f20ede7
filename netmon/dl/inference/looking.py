# SPDX-License-Identifier: Apache-2.0
"""Which flows of no job are to be looked at now: those of which there is something new, the weightiest first."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush

from netmon.dl.inference.bursts import Bursts
from netmon.dl.inference.pattern import Edge, strongly_connected
from netmon.dl.inference.repetition import INTERVALS, Repetition, repetition
from netmon.dl.inference.types import LinkFlow
from netmon.dl.inference.verdicts import Ends, ends_of
from netmon.records import Direction

_RETRY_SHARE, _RETRY_NS = 8, 1_000_000_000
"""A flow that does not repeat itself is looked at again after an eighth of its age, at most a second."""
_STALE_NS, _STALE_AGES = 10_000_000_000, 3
"""A flow that has been silent for so long, or for thrice the time that it was not, is not looked at till it goes on."""
_WEIGHTY = 1_000_000  # bytes since the last look: what trains sends as much
_MOST_WEIGHTY, _MOST_LIGHT = 1024, 24  # looks in one turn


@dataclass(frozen=True)
class Look:
    """The last time that a flow was looked at, and what was seen."""

    time_ns: int
    total: int  # its bytes then
    silent_ns: int
    found: Repetition | None


class Looking:
    """The flows that have paused and gone on lately and belong to no job, each 5-tuple once.

    A flow without news costs nothing, and a turn has an end: where more than some flows are due, the others wait.
    """

    def __init__(self, flows: Mapping[int, LinkFlow], bursts: Mapping[int, Bursts], resolution_ns: int) -> None:
        """flows, bursts: the caller's, which change."""
        self._flows, self._bursts, self._resolution_ns = flows, bursts, resolution_ns
        self.looks: dict[int, Look] = {}
        self._lively: set[int] = set()
        self._of_ends: dict[Ends, list[int]] = {}  # lively flows by 5-tuple; the first one stands for it
        self._edges: Counter[Edge] = Counter()  # of those
        self._groups: dict[str, int] | None = {}  # strongly connected addresses; None: out of date
        self._taken: set[Ends] = set()
        self._due: list[tuple[int, int]] = []  # a heap of (when, flow); a flow may be in it more than once
        self._waiting: set[int] = set()  # due, but there was no time
        self._apart: set[int] = set()  # due, but their hosts cannot reach each other

    def went_on(self, flows: Iterable[int], until_ns: int) -> None:
        """These flows have new bytes."""
        for flow in flows:
            if len(self._bursts[flow]) < INTERVALS:
                continue
            if flow not in self._lively:
                self._add(flow)
            last = self.looks.get(flow)
            if flow in self._lively:
                heappush(self._due, (last.time_ns + self._wait_ns(flow, until_ns) if last else until_ns, flow))

    def take(self, ends: Iterable[Ends], until_ns: int) -> None:
        """The 5-tuples of all jobs are these now: they are looked at no more, others again."""
        taken = set(ends)
        if taken == self._taken:
            return
        freed = self._taken - taken
        self._taken = taken
        for flow in [flow for flow in self._lively if ends_of(self._flows[flow]) in taken]:
            self._remove(flow)
        if freed:
            for flow, bursts in self._bursts.items():
                if len(bursts) >= INTERVALS and ends_of(self._flows[flow]) in freed and not self._stale(flow, until_ns):
                    self._add(flow)
                    heappush(self._due, (until_ns, flow))

    def forget(self, flow: int) -> None:
        """The flow is over; to be said while it is still described."""
        self.looks.pop(flow, None)
        if flow in self._lively:
            self._remove(flow)

    def look(self, until_ns: int) -> list[int]:
        """Look at those that are due; the flows that repeat themselves since."""
        while self._due and self._due[0][0] <= until_ns:
            self._waiting.add(heappop(self._due)[1])
        due = []
        groups = self._connected()
        for flow in list(self._waiting):
            if flow not in self._lively or self._stale(flow, until_ns):
                self._waiting.discard(flow)
                if flow in self._lively:
                    self._remove(flow)
            elif not self._has_news(flow, until_ns):
                self._waiting.discard(flow)
            elif self._is_mutual(flow, groups):
                last = self.looks.get(flow)
                due.append((self._bursts[flow].total - (last.total if last else 0), flow))
            else:
                self._waiting.discard(flow)
                self._apart.add(flow)
        due.sort(reverse=True)
        heavy = sum(news >= _WEIGHTY for news, _ in due)
        turn = [flow for _, flow in due[: min(heavy, _MOST_WEIGHTY) + _MOST_LIGHT]]
        return [flow for flow in turn if self._look_at(flow, until_ns)]

    def around(self, found: Iterable[int], until_ns: int) -> list[list[int]]:
        """With each of these flows, those that were looked at and are between hosts that reach each other with its."""
        for flow in [flow for flow in self._lively if self._stale(flow, until_ns)]:
            self._remove(flow)
        groups = self._connected()
        wanted: dict[int, list[int]] = {
            groups[self._flows[flow].src]: [] for flow in found if self._flows[flow].src in groups
        }
        for own in self._of_ends.values():
            if own[0] in self.looks and self._is_mutual(own[0], groups):
                group = groups[self._flows[own[0]].src]
                if group in wanted:
                    wanted[group].append(own[0])
        return list(wanted.values())

    def _look_at(self, flow: int, until_ns: int) -> bool:
        self._waiting.discard(flow)
        bursts = self._bursts[flow]
        silent_ns = until_ns - bursts.last_ns
        found = repetition(bursts.rows, until_ns)
        self.looks[flow] = Look(until_ns, bursts.total, silent_ns, found)
        heappush(self._due, (bursts.last_ns + 2 * max(silent_ns, self._resolution_ns), flow))
        return found is not None

    def _has_news(self, flow: int, until_ns: int) -> bool:
        """Whether something has changed since the last look."""
        bursts, last = self._bursts[flow], self.looks.get(flow)
        if last is None:
            return True
        went_on = bursts.total != last.total and until_ns - last.time_ns >= self._wait_ns(flow, until_ns)
        return went_on or until_ns - bursts.last_ns >= 2 * max(last.silent_ns, self._resolution_ns)

    def _wait_ns(self, flow: int, until_ns: int) -> int:
        return min(_RETRY_NS, (until_ns - self._bursts[flow].first_ns) // _RETRY_SHARE)

    def _stale(self, flow: int, until_ns: int) -> bool:
        bursts = self._bursts[flow]
        return until_ns - bursts.last_ns > min(_STALE_NS, _STALE_AGES * (bursts.last_ns - bursts.first_ns))

    def _add(self, flow: int) -> None:
        what = self._flows[flow]
        ends = ends_of(what)
        if ends in self._taken or flow in self._lively:
            return
        self._lively.add(flow)
        own = self._of_ends.setdefault(ends, [])
        if not own:
            self._count((what.src, what.dst), 1)
        # What arrives stands for it, where that is watched.
        own.insert(0 if what.direction == Direction.RX else len(own), flow)

    def _remove(self, flow: int) -> None:
        what = self._flows[flow]
        ends = ends_of(what)
        for due in (self._lively, self._waiting, self._apart):
            due.discard(flow)
        own = self._of_ends[ends]
        own.remove(flow)
        if not own:
            del self._of_ends[ends]
            self._count((what.src, what.dst), -1)

    def _count(self, edge: Edge, by: int) -> None:
        self._edges[edge] += by
        if self._edges[edge] == 0:
            del self._edges[edge]
            self._groups = None
        elif self._edges[edge] == by:
            self._groups = None

    def _connected(self) -> dict[str, int]:
        if self._groups is None:
            groups = strongly_connected(self._edges.keys())
            self._groups = {address: number for number, group in enumerate(groups) for address in group}
            self._waiting |= self._apart
            self._apart.clear()
        return self._groups

    def _is_mutual(self, flow: int, groups: Mapping[str, int]) -> bool:
        """Whether it stands for its 5-tuple, between hosts that can reach each other."""
        what = self._flows[flow]
        group = groups.get(what.src)
        stands = self._of_ends.get(ends_of(what), (-1,))[0] == flow
        return stands and group is not None and group == groups.get(what.dst)
