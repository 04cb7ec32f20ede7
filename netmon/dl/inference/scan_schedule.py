# SPDX-License-Identifier: Apache-2.0
"""Which flows of no job are to be looked at now: those of which there is something new, the weightiest first."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from netmon.dl.inference.bursts import Bursts
from netmon.dl.inference.pattern import Edge, strongly_connected
from netmon.dl.inference.repetition import INTERVALS, Repetition, repetition
from netmon.dl.inference.types import LinkFlow
from netmon.dl.inference.verdicts import Ends, ends_of
from netmon.records import Direction

_RETRY_SHARE, _RETRY_NS = 8, 1_000_000_000
"""A flow that does not repeat itself is looked at again after an eighth of its age, at most a second."""
_SPARED_NS = 30_000_000_000  # the same of a flow that is spared
_STALE_NS, _STALE_AGES = 10_000_000_000, 3
"""A flow that has been silent for so long, or for thrice the time that it was not, is not looked at till it goes on."""
_WEIGHTY = 1_000_000  # bytes since the last look: what trains sends as much
_MOST_WEIGHTY, _MOST_LIGHT = 256, 24  # looks in one turn
_MOST_TIMES = 4  # that a flow waits, on average
_REGROUP_NS = 100_000  # for each pair of addresses: so long their groups are taken to stay as they are


@dataclass(frozen=True)
class Look:
    """The last time that a flow was looked at, and what was seen."""

    time_ns: int
    total: int  # its bytes then
    silent_ns: int
    found: Repetition | None


class ScanSchedule:
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
        self._groups: dict[str, int] = {}  # strongly connected addresses
        self._grouped_ns = 0  # when they were found
        self._changed = False  # the edges, since
        self._taken: set[Ends] = set()
        self._of_jobs: set[int] = set()  # flows with those ends that have gone on since
        self._due: list[tuple[int, int]] = []  # a heap of (when, flow)
        self._next: dict[int, int] = {}  # of each flow in it, its earliest time there
        self._waiting: list[tuple[int, int]] = []  # a heap of (−bytes, flow): due, but there was no time
        self._unreachable: set[int] = set()  # due, but their hosts cannot reach each other
        self._spared: frozenset[int] = frozenset()

    def spare(self, flows: frozenset[int]) -> None:
        """What these flows are is known: they are looked at less often, all others as before."""
        self._spared = flows

    def went_on(self, flows: Iterable[int], until_ns: int) -> None:
        """These flows have new bytes."""
        for flow in flows:
            if flow in self._unreachable or flow in self._of_jobs or self._bursts[flow].count < INTERVALS:
                continue
            if flow not in self._lively:
                self._add(flow)
            last = self.looks.get(flow)
            if flow in self._lively:
                self._put_off(flow, last.time_ns + self._wait_ns(flow, until_ns) if last else until_ns)

    def take(self, ends: Iterable[Ends], until_ns: int) -> None:
        """The 5-tuples of all jobs are these now: they are looked at no more, others again."""
        taken = set(ends)
        if taken == self._taken:
            return
        freed = self._taken - taken
        self._taken = taken
        self._of_jobs.clear()
        for flow in [flow for flow in self._lively if ends_of(self._flows[flow]) in taken]:
            self._remove(flow)
        if freed:
            for flow, bursts in self._bursts.items():
                if len(bursts) >= INTERVALS and ends_of(self._flows[flow]) in freed and not self._stale(flow, until_ns):
                    self._add(flow)
                    self._put_off(flow, until_ns)

    def forget(self, flow: int) -> None:
        """The flow is over; to be said while it is still described."""
        self.looks.pop(flow, None)
        self._next.pop(flow, None)
        self._of_jobs.discard(flow)
        if flow in self._lively:
            self._remove(flow)

    def scan(self, until_ns: int) -> list[int]:
        """Look at those that are due; the flows that repeat themselves since."""
        groups = self._connected(until_ns)
        while self._due and self._due[0][0] <= until_ns:
            time_ns, flow = heappop(self._due)
            if self._next.get(flow) == time_ns:
                del self._next[flow]
                if self._is_due(flow, until_ns):
                    if self._is_mutual(flow, groups):
                        heappush(self._waiting, (-self._news(flow), flow))
                    elif self._stands(flow):
                        self._unreachable.add(flow)
                elif flow in self._lively:
                    self._put_off(flow, max(self._when(flow, until_ns), until_ns + 1))
        return [flow for flow in self._turn(until_ns, groups) if self._look_at(flow, until_ns)]

    def _turn(self, until_ns: int, groups: Mapping[str, int]) -> Iterator[int]:
        heavy, light, seen = _MOST_WEIGHTY, _MOST_LIGHT, set()
        while self._waiting and heavy and light:
            news, flow = heappop(self._waiting)
            if flow in seen or not (self._is_due(flow, until_ns) and self._is_mutual(flow, groups)):
                continue
            seen.add(flow)
            if -news >= _WEIGHTY:
                heavy -= 1
            else:
                light -= 1
            yield flow
        if len(self._waiting) > _MOST_TIMES * len(self._lively) + _MOST_WEIGHTY:
            flows = {flow for _, flow in self._waiting}
            self._waiting = [(-self._news(flow), flow) for flow in flows if self._is_due(flow, until_ns)]
            heapify(self._waiting)

    def _is_due(self, flow: int, until_ns: int) -> bool:
        """Whether it is still to be looked at; one that has fallen silent for long is not, till it goes on."""
        if flow not in self._lively:
            return False
        if self._stale(flow, until_ns):
            self._remove(flow)
            return False
        return self._has_news(flow, until_ns)

    def _news(self, flow: int) -> int:
        last = self.looks.get(flow)
        return self._bursts[flow].total - (last.total if last else 0)

    def around(self, found: Iterable[int], until_ns: int) -> list[list[int]]:
        """With each of these flows, those that were looked at and are between hosts that reach each other with its."""
        for flow in [flow for flow in self._lively if self._stale(flow, until_ns)]:
            self._remove(flow)
        groups = self._connected(until_ns)
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
        bursts = self._bursts[flow]
        silent_ns = until_ns - bursts.last_ns
        found = repetition(bursts.rows, until_ns)
        self.looks[flow] = Look(until_ns, bursts.total, silent_ns, found)
        if flow not in self._spared:
            self._put_off(flow, bursts.last_ns + 2 * max(silent_ns, self._resolution_ns))
        return found is not None

    def _when(self, flow: int, until_ns: int) -> int:
        """When there is news of it again, as far as is known."""
        bursts, last = self._bursts[flow], self.looks[flow]
        if flow in self._spared:
            return last.time_ns + self._wait_ns(flow, until_ns)
        silent_ns = bursts.last_ns + 2 * max(last.silent_ns, self._resolution_ns)
        if bursts.total == last.total:
            return silent_ns
        return min(silent_ns, last.time_ns + self._wait_ns(flow, until_ns))

    def _put_off(self, flow: int, time_ns: int) -> None:
        """It is due then, if not before."""
        if time_ns < self._next.get(flow, time_ns + 1):
            self._next[flow] = time_ns
            heappush(self._due, (time_ns, flow))

    def _has_news(self, flow: int, until_ns: int) -> bool:
        """Whether something has changed since the last look."""
        bursts, last = self._bursts[flow], self.looks.get(flow)
        if last is None:
            return True
        went_on = bursts.total != last.total and until_ns - last.time_ns >= self._wait_ns(flow, until_ns)
        if flow in self._spared:
            return went_on
        return went_on or until_ns - bursts.last_ns >= 2 * max(last.silent_ns, self._resolution_ns)

    def _wait_ns(self, flow: int, until_ns: int) -> int:
        most_ns = _SPARED_NS if flow in self._spared else _RETRY_NS
        return min(most_ns, (until_ns - self._bursts[flow].first_ns) // _RETRY_SHARE)

    def _stale(self, flow: int, until_ns: int) -> bool:
        bursts = self._bursts[flow]
        return until_ns - bursts.last_ns > min(_STALE_NS, _STALE_AGES * (bursts.last_ns - bursts.first_ns))

    def _add(self, flow: int) -> None:
        what = self._flows[flow]
        ends = ends_of(what)
        if ends in self._taken:
            self._of_jobs.add(flow)
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
        self._lively.discard(flow)
        self._unreachable.discard(flow)
        own = self._of_ends[ends]
        own.remove(flow)
        if not own:
            del self._of_ends[ends]
            self._count((what.src, what.dst), -1)
        else:
            self._put_off(own[0], 0)  # it may stand for it now

    def _count(self, edge: Edge, by: int) -> None:
        self._edges[edge] += by
        if self._edges[edge] == 0:
            del self._edges[edge]
            self._changed = True
        elif self._edges[edge] == by:
            self._changed = True

    def _connected(self, until_ns: int) -> dict[str, int]:
        """Of each address, the number of its group; of very many flows, as it was a moment ago."""
        if self._changed and until_ns - self._grouped_ns >= _REGROUP_NS * len(self._edges):
            self._changed = False
            groups = strongly_connected(self._edges.keys())
            self._groups = {address: number for number, group in enumerate(groups) for address in group}
            self._grouped_ns = until_ns
            for flow in [*self._unreachable]:
                if self._stale(flow, until_ns):
                    self._remove(flow)
                elif self._is_mutual(flow, self._groups):
                    self._unreachable.discard(flow)
                    self._put_off(flow, until_ns)
        return self._groups

    def _is_mutual(self, flow: int, groups: Mapping[str, int]) -> bool:
        """Whether it stands for its 5-tuple, between hosts that can reach each other."""
        what = self._flows[flow]
        group = groups.get(what.src)
        return group is not None and group == groups.get(what.dst) and self._stands(flow)

    def _stands(self, flow: int) -> bool:
        return self._of_ends[ends_of(self._flows[flow])][0] == flow
