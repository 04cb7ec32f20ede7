# SPDX-License-Identifier: Apache-2.0
"""The inference as it runs: rows in, findings out."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from heapq import heapify, heappop, heappush
from itertools import chain, count, pairwise

import numpy as np
import numpy.typing as npt

from netmon.dl.grouped import joined as joined_rows
from netmon.dl.inference.beginnings import from_the_beginning, pauses_often, starts
from netmon.dl.inference.bursts import Bursts, Edge, add_buckets, are_gradients, summed
from netmon.dl.inference.grouping import EXPERT, UNKNOWN, Group, addresses, are_split, groups, joined
from netmon.dl.inference.job import Job, Words
from netmon.dl.inference.repetition import INTERVALS, Candidate, Repetition, repetition
from netmon.dl.inference.topology import numerically, strongly_connected
from netmon.dl.inference.types import (
    CONTROL,
    GRADIENT,
    TRAFFIC,
    Findings,
    FlowVerdict,
    InferredIteration,
    InferredJob,
    LinkFlow,
    TrafficGroup,
)
from netmon.dl.inference.uneven import UnevenJob, UnevenSteps, companions, uneven_steps
from netmon.records import Direction, Table, empty

_CONTROL_SHARE = 0.02  # of the bytes per iteration that one of the job's flows carries, at most, of all of them one way
_CONTROL_PERIODS = 5  # iterations over which a flow between members has to go on
_START_ITERATIONS = 3  # of one of the job's flows: what all that began with them may carry, seen at both its ends;
# parameters are sent once

Ends = tuple[str, str, int, int, int]


def ends_of(flow: LinkFlow) -> Ends:
    """The 5-tuple."""
    return flow.src, flow.dst, flow.src_port, flow.dst_port, flow.protocol


class Verdicts:
    """Gradient flows are those that repeat themselves with the job.

    Control flows are the other directions of their connections, and flows between two members that carry little
    alongside the gradients and either began with them (rendezvous, parameters sent once at the start) or go on for some
    iterations (negotiation, heartbeats). What is short is anybody's, and so is everything where more flows that way.
    """

    def __init__(self, flows: Mapping[int, LinkFlow]) -> None:
        """flows: the caller's, which changes."""
        self._flows = flows
        self._between: dict[Edge, set[int]] = {}
        self._toward: dict[str, set[str]] = {}  # by sender, to whom a flow is there
        self._first_ns: dict[int, int] = {}
        self._last_ns: dict[int, int] = {}
        self._volume: dict[int, float] = {}  # bytes
        self._news: dict[int, float] = {}  # bytes since the last verdicts
        self._known: dict[str, _Known] = {}  # by job
        self._reported: dict[int, FlowVerdict] = {}
        self._fresh: set[int] = set()  # described since the last verdicts
        self._now_ns = 0

    def described(self, flow: int) -> None:
        what = self._flows[flow]
        self._between.setdefault((what.src, what.dst), set()).add(flow)
        self._toward.setdefault(what.src, set()).add(what.dst)
        self._fresh.add(flow)

    def forget(self, flow: int) -> None:
        """A flow is gone; to be said while it is still described."""
        what = self._flows.get(flow)
        if what:
            between = self._between.get((what.src, what.dst), set())
            between.discard(flow)
            if not between:
                self._between.pop((what.src, what.dst), None)
                toward = self._toward.get(what.src, set())
                toward.discard(what.dst)
                if not toward:
                    self._toward.pop(what.src, None)
        for known in (self._first_ns, self._last_ns, self._volume, self._reported):
            known.pop(flow, None)
        self._news.pop(flow, None)
        self._fresh.discard(flow)
        for basis in self._known.values():
            basis.within.discard(flow)

    def since(self, flow: int) -> int:
        """Until when rows had come when its first one had; 0: none has."""
        return self._first_ns.get(flow, 0)

    def count(self, rows: Table, until_ns: int) -> None:
        self._news = news = dict(zip(*_sums(rows), strict=True))
        self._first_ns |= dict.fromkeys(news.keys() - self._first_ns.keys(), until_ns)
        self._last_ns |= dict.fromkeys(news, until_ns)
        before = self._volume.get
        self._volume |= {flow: before(flow, 0.0) + volume for flow, volume in news.items()}
        self._now_ns = until_ns

    def new(self, jobs: Sequence[Job]) -> dict[int, FlowVerdict]:
        """Verdicts that were not given before."""
        given: dict[int, FlowVerdict] = {}
        names = {job.name for job in jobs}
        self._known = {job: known for job, known in self._known.items() if job in names}
        self._meet_fresh()
        for job in [job for job in jobs if job.flows]:
            given |= self._of(job)
        changed = {flow: verdict for flow, verdict in given.items() if self._reported.get(flow) != verdict}
        self._reported |= changed
        return changed

    def _meet_fresh(self) -> None:
        """Flows that have come since: those between two members of a job are its from now on."""
        if not self._fresh:
            return
        of_address: dict[str, list[_Known]] = {}
        for known in self._known.values():
            for member in known.members:
                of_address.setdefault(member, []).append(known)
        for flow in self._fresh:
            what = self._flows.get(flow)
            if what and what.src != what.dst:
                for known in of_address.get(what.src, ()):
                    if what.dst in known.members:
                        known.within.add(flow)
        self._fresh.clear()

    def _of(self, job: Job) -> dict[int, FlowVerdict]:
        """Of the flows between its members that have gone on; of all when the job has changed."""
        basis = job.found.members, *job.all_flows
        known = self._known.get(job.name)
        changed = known is None or known.basis != basis
        if known is None or changed:
            known = self._known[job.name] = self._basis(job, basis)
        members, verdicts = known.members, {}
        for pair, flows in self._by_pair(known.within if changed else known.within & self._news.keys()):
            others = []
            for flow in flows:
                ends = ends_of(self._flows[flow])
                if ends in known.gradient or ends in known.reverse:
                    traffic = GRADIENT if ends in known.gradient else CONTROL
                    verdicts[flow] = self._verdict(job, members, flow, traffic)
                    known.within.discard(flow)
                elif flow in self._first_ns:
                    others.append(flow)
            if not others:
                continue
            baseline = _Baseline(job.period_ns, job.volume / len(job.flows), known.begun_ns)
            before = [flow for flow in others if flow in self._reported and self._reported[flow].job == job.name]
            control = {*before, *(self._at_start(others, baseline) if changed else ())}
            rest = [flow for flow in others if flow not in control]
            if self._is_quiet(known, pair, rest, baseline, changed):
                control.update(flow for flow in others if self._goes_on(flow, baseline))
            verdicts |= {flow: self._verdict(job, members, flow, CONTROL) for flow in control}
        return verdicts

    def _basis(self, job: Job, basis: tuple[object, ...]) -> "_Known":
        gradient = {ends_of(self._flows[flow]) for flow in job.all_flows if flow in self._flows}
        reverse = {(dst, src, dst_port, src_port, protocol) for src, dst, src_port, dst_port, protocol in gradient}
        begun = [self._first_ns[flow] for flow in job.flows if flow in self._first_ns]
        members = {member: index for index, member in enumerate(job.found.members)}
        return _Known(basis, members, gradient, reverse, np.array(begun or [self._now_ns]), self._within(members))

    def _within(self, members: Collection[str]) -> set[int]:
        """The flows between two members; as many steps as there are pairs that talk."""
        found: set[int] = set()
        for sender in members:
            for receiver in self._toward.get(sender, ()):
                if receiver in members and receiver != sender:
                    found |= self._between[sender, receiver]
        return found

    def _by_pair(self, flows: Iterable[int]) -> Iterable[tuple[Edge, list[int]]]:
        pairs: dict[Edge, list[int]] = {}
        for flow in flows:
            what = self._flows[flow]
            pairs.setdefault((what.src, what.dst), []).append(flow)
        return pairs.items()

    def _verdict(self, job: Job, members: Mapping[str, int], flow: int, traffic: str) -> FlowVerdict:
        what = self._flows[flow]
        local = what.src if what.direction == Direction.TX else what.dst
        return FlowVerdict(job.name, members[local], traffic)

    def _is_quiet(self, known: "_Known", way: Edge, others: Sequence[int], baseline: "_Baseline", anew: bool) -> bool:
        """Whether little goes from one member of a job to another in these flows and those counted before."""
        volumes = self._volume if anew else self._news
        before = 0.0 if anew else known.others.get(way, 0.0)
        known.others[way] = total = before + sum(volumes[flow] for flow in others)
        iterations = (self._now_ns - baseline.begun_ns.min()) / baseline.period_ns
        return bool(total <= _CONTROL_SHARE * baseline.volume * iterations)

    def _at_start(self, others: Sequence[int], baseline: "_Baseline") -> list[int]:
        """Those that began with the job, if they are not too much all together."""
        near = ((flow, np.abs(baseline.begun_ns - self._first_ns[flow]).min()) for flow in others)
        early = [flow for flow, difference_ns in near if difference_ns <= baseline.period_ns]
        return early if sum(self._volume[flow] for flow in early) <= _START_ITERATIONS * baseline.volume else []

    def _goes_on(self, flow: int, baseline: "_Baseline") -> bool:
        return self._last_ns[flow] - self._first_ns[flow] >= _CONTROL_PERIODS * baseline.period_ns


@dataclass
class _Known:
    """What the last verdicts on a job's flows were based on."""

    basis: tuple[object, ...]
    members: dict[str, int]
    gradient: set[Ends]
    reverse: set[Ends]
    begun_ns: npt.NDArray[np.int64]  # when each of its flows did
    within: set[int]  # flows between two members, but for those with one of those ends that have their verdict
    others: dict[Edge, float] = field(default_factory=dict)  # bytes between two members alongside its own flows'


@dataclass(frozen=True)
class _Baseline:
    """What a job's flows do."""

    period_ns: float
    volume: float  # bytes of one of them per iteration
    begun_ns: npt.NDArray[np.int64]  # when each of them did


def _sums(rows: Table) -> tuple[list[int], list[float]]:
    flows, index = np.unique(rows["flow"], return_inverse=True)
    return flows.tolist(), np.bincount(index, weights=rows["payload_bytes"], minlength=len(flows)).tolist()


# --- Which flows of no job are to be looked at now: those of which there is something new, the weightiest first.

_RETRY_SHARE, _RETRY_NS = 8, 1_000_000_000
"""A flow that does not repeat itself is looked at again after an eighth of its age, at most a second."""
_SPARED_NS = 30_000_000_000  # of a flow that is spared: after as long as it is old, at most so long
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
        return [flows for flows in wanted.values() if flows]

    def _look_at(self, flow: int, until_ns: int) -> bool:
        bursts = self._bursts[flow]
        silent_ns = until_ns - bursts.last_ns
        found = repetition(bursts.rows, until_ns)
        self.looks[flow] = Look(until_ns, bursts.total, silent_ns, found)
        if not bursts.spared:
            self._put_off(flow, bursts.last_ns + 2 * max(silent_ns, self._resolution_ns))
        return found is not None

    def _when(self, flow: int, until_ns: int) -> int:
        """When there is news of it again, as far as is known."""
        bursts, last = self._bursts[flow], self.looks[flow]
        if bursts.spared:
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
        if bursts.spared:
            return went_on
        return went_on or until_ns - bursts.last_ns >= 2 * max(last.silent_ns, self._resolution_ns)

    def _wait_ns(self, flow: int, until_ns: int) -> int:
        bursts, last = self._bursts[flow], self.looks.get(flow)
        if bursts.spared and last:
            return min(_SPARED_NS, last.time_ns - bursts.first_ns)  # by its age then: its age now would never be over
        return min(_RETRY_NS, (until_ns - bursts.first_ns) // _RETRY_SHARE)

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

    def repeats(self, flow: int) -> bool:
        """Whether it did, or what stands for its 5-tuple, when that was last looked at, more often than by chance."""
        look = self.looks.get(self._of_ends.get(ends_of(self._flows[flow]), [flow])[0])
        return look is not None and look.found is not None and len(look.found.onsets_ns) > 2 * INTERVALS

    def exchange(self, one: str, other: str, until_ns: int) -> bool:
        """Whether each of these addresses reaches others, and is reached by them, along flows of no job."""
        groups = self._connected(until_ns)
        return one in groups and other in groups

    def _is_mutual(self, flow: int, groups: Mapping[str, int]) -> bool:
        """Whether it stands for its 5-tuple, between hosts that can reach each other."""
        what = self._flows[flow]
        group = groups.get(what.src)
        return group is not None and group == groups.get(what.dst) and self._stands(flow)

    def _stands(self, flow: int) -> bool:
        return self._of_ends[ends_of(self._flows[flow])][0] == flow


# --- The inference itself.

_FINEST_NS = 100_000
"""With finer buckets every super-packet would be a burst of its own."""
_FRESH_NS = 1_000_000_000
"""A flow that begins so long after its host is watched had been silent, or not been there."""
_NEVER = 1 << 62
_ALONE, _ALONE_IN_DOUBT = 16, 64  # repetitions after which flows make a job though their hosts exchange much else: what
# may be another job, or repeats itself in none of so many bursts; and whatever it is, for it may be of the same steps
_MANY_BURSTS = 64
_MUCH = 0.03  # of what its least flow carries
_PATIENCE = 12  # repetitions after which the beginning of a step is taken to be where the longest pause is
_FORGOTTEN_NS = 60_000_000_000
_MANY, _SEARCH_NS = 64, 5_000_000
"""Where so many flows repeat themselves and make no job, they are searched again only after so long for each."""


class Inference:
    """Finds jobs and their iterations in the traffic of all hosts.

    Not thread-safe. Memory: the bursts of every flow that carries data, at most 2,048 each, and
    the last 8,192 moments in which one host sent another less than that.
    """

    def __init__(self, resolution_ns: int = 1_000_000) -> None:
        """resolution_ns: rows are summed to it, or to the least multiple of it from 100 µs on; boundaries are not
        known better.
        """
        self._resolution_ns = resolution_ns * -(-_FINEST_NS // resolution_ns)
        self._flows: dict[int, LinkFlow] = {}
        self._hosts: dict[str, str] = {}  # by address
        self._watched: dict[str, int] = {}  # by host, since when
        self._at: Counter[str] = Counter()  # flows by the address of the end at which they are seen
        self._bursts: dict[int, Bursts] = {}
        self._spared: frozenset[int] = frozenset()  # also flows that have no bursts yet
        self._words = Words(self._resolution_ns)
        self._looking = ScanSchedule(self._flows, self._bursts, self._resolution_ns)
        self._taken: list[tuple[dict[int, Edge], int]] = []  # the jobs' flows, and how many there were
        self._uneven_ns = 0  # when jobs of uneven steps are to be looked for next
        self._in_vain: dict[int, int] = {}  # by the least flow of connected ones, when to do so there
        self._searched: dict[str, int] = {}  # by address, when to search again where many flows made no job
        self._reported_until: dict[int, int] = {}  # of flows whose job was a mistake
        self._pending: list[Table] = []
        self._until_ns = 0
        self._jobs: list[Job] = []
        self._reported: dict[str, InferredJob] = {}
        self._last: list[InferredIteration] = []  # of jobs that ended since the last advance()
        self._verdicts = Verdicts(self._flows)

    def describe(self, flow: int, what: LinkFlow) -> None:
        """Say what a flow is, before its rows are added."""
        self._flows[flow] = what
        self._hosts.setdefault(_local(what), what.host)
        self._at[_local(what)] += 1
        self._verdicts.described(flow)

    def watch(self, hosts: Iterable[str], time_ns: int) -> None:
        """All that these hosts send is known from this time on, and was not before."""
        self._watched.update(dict.fromkeys(hosts, time_ns))

    def spare(self, flows: Iterable[int]) -> None:
        """These flows, and no others, are of jobs whose iterations are reported better: little is spent on finding
        them."""
        self._spared = frozenset(flows)
        for flow, bursts in self._bursts.items():
            bursts.spared = flow in self._spared

    def forget(self, flows: Iterable[int]) -> None:
        """These flows are over, and their numbers may be given to others. Say so after the advance() over their end.

        A job most of whose flows are over has ended.
        """
        over = set(flows)
        for job in self._jobs:
            if not job.found.ended and 2 * len(over.intersection(job.flows)) >= len(job.flows):
                self._last += job.end(self._bursts)
            job.forget(over)
        for flow in over:
            self._verdicts.forget(flow)
            if flow in self._flows:
                self._looking.forget(flow)
                address = _local(self._flows[flow])
                self._at[address] -= 1
                if not self._at[address]:
                    del self._at[address], self._hosts[address]
            for known in (self._flows, self._bursts, self._reported_until):
                known.pop(flow, None)
        self._words.forget(self._until_ns - _FORGOTTEN_NS)

    def add(self, rows: Table) -> None:
        """Take rows, dtype TRAFFIC; they are copied and looked at by the next advance() beyond their time."""
        if len(rows):
            self._pending.append(rows.astype(TRAFFIC))

    def advance(self, until_ns: int) -> Findings:
        """What is new, given that all rows before until_ns have been added.

        What is late counts as at the until_ns of the time before, unless its flow is of no job and has not gone on
        since: hosts that come to a worker one after the other report the same past.
        """
        until_ns = until_ns // self._resolution_ns * self._resolution_ns
        if until_ns <= self._until_ns:
            return Findings()
        rows = self._take(until_ns)
        self._keep(rows, until_ns)
        self._verdicts.count(rows, until_ns)
        iterations, self._last = self._last + self._follow(until_ns), []
        iterations += self._review(until_ns)
        self._report_taken(until_ns)
        for free in self._repeating(until_ns):
            iterations += self._find_jobs(free, until_ns)
        iterations += self._find_uneven(until_ns)
        jobs = tuple(job for each in self._jobs if self._reported.get(each.name) != (job := each.describe()))
        self._reported |= {job.name: job for job in jobs}
        self._jobs = [job for job in self._jobs if not self._is_over(job)]
        names = {job.name for job in self._jobs}
        self._reported = {name: job for name, job in self._reported.items() if name in names}
        self._in_vain = {flow: time_ns for flow, time_ns in self._in_vain.items() if time_ns > until_ns}
        self._searched = {address: time_ns for address, time_ns in self._searched.items() if time_ns > until_ns}
        self._until_ns = until_ns
        return Findings(jobs, tuple(iterations), self._verdicts.new(self._jobs))

    def _take(self, until_ns: int) -> Table:
        rows = joined_rows([empty(TRAFFIC), *self._pending])
        due = rows["time_ns"] < until_ns
        self._pending = [rows.compress(~due)]
        rows = rows.compress(due)
        late = np.flatnonzero(rows["time_ns"] < self._until_ns)
        if len(late):
            since = self._since(rows["flow"][late])
            rows["time_ns"][late] = np.where(rows["time_ns"][late] < since, self._until_ns, rows["time_ns"][late])
        return rows

    def _since(self, flow: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """From when on rows of each of these flows are taken as they are."""
        of_jobs = {number for job in self._jobs for number in job.all_flows}
        distinct, index = np.unique(flow, return_inverse=True)
        since = [self._until_ns if number in of_jobs else self._last_ns(number) for number in distinct.tolist()]
        return np.array(since, np.int64)[index]

    def _last_ns(self, flow: int) -> int:
        """When the last traffic of a flow was over; 0: there was none."""
        bursts = self._bursts.get(flow)
        return bursts.last_ns if bursts else 0

    def _keep(self, rows: Table, until_ns: int) -> None:
        flow, time_ns, volume = summed(rows, self._resolution_ns)
        distinct, index = np.unique(flow, return_inverse=True)
        known = np.fromiter(map(self._flows.__contains__, distinct.tolist()), np.bool_, len(distinct))
        if not known.all():
            flow, time_ns, volume = (column[known[index]] for column in (flow, time_ns, volume))
        full = are_gradients(volume, self._resolution_ns)
        self._keep_words(flow[~full], time_ns[~full])
        flow, time_ns, volume = flow[full], time_ns[full], volume[full]
        numbers, first = np.unique(flow, return_index=True)
        if not len(numbers):
            return
        grown = [self._bursts.get(number) or self._begun(number) for number in numbers.tolist()]
        add_buckets(grown, first, time_ns, volume, self._resolution_ns)
        self._looking.went_on(numbers.tolist(), until_ns)

    def _begun(self, flow: int) -> Bursts:
        bursts = self._bursts[flow] = Bursts(self._resolution_ns)
        bursts.spared = flow in self._spared
        return bursts

    def _keep_words(self, flow: npt.NDArray[np.int64], time_ns: npt.NDArray[np.int64]) -> None:
        """A word counts when it is said: what only its receiver shows may have been on its way for long."""
        said: dict[Edge, list[npt.NDArray[np.int64]]] = {}
        for number, rows_of in _of_each(flow):
            what = self._flows.get(number)
            if what and what.direction == Direction.TX:
                said.setdefault((what.src, what.dst), []).append(time_ns[rows_of])
        self._words.add((pair, np.concatenate(times)) for pair, times in said.items())

    def _follow(self, until_ns: int) -> list[InferredIteration]:
        iterations: list[InferredIteration] = []
        for job in self._jobs:
            iterations += job.follow(self._bursts, until_ns)
            job.find_groups(self._bursts)
        return iterations

    def _review(self, until_ns: int) -> list[InferredIteration]:
        """A job that turns out to be more than one has been a mistake: it ends, and its flows are looked at anew."""
        iterations: list[InferredIteration] = []
        for job in self._jobs:
            ended = None if job.found.ended else job.review(self._bursts, until_ns)
            if ended is None:
                continue
            iterations += ended
            flows = [self._candidate(flow) for flow in job.flows if flow in self._bursts]
            if job.given_up or are_split(flows, until_ns, self._resolution_ns):
                job.give_up()
                self._reported_until |= dict.fromkeys(job.flows, job.last_ns)
        return iterations

    def _repeating(self, until_ns: int) -> list[list[Candidate]]:
        """Flows of no job between hosts that both send and receive, where one of them shows a new repetition."""
        found = self._looking.scan(until_ns)
        if not found:
            return []
        groups = [[self._candidate(flow) for flow in group] for group in self._looking.around(found, until_ns)]
        return [group for group in groups if self._searched.get(min(addresses(group)), 0) <= until_ns]

    def _report_taken(self, until_ns: int) -> None:
        """Which flows are of jobs, where that has changed."""
        taken = [(job.flows, len(job.flows) + len(job.companions)) for job in self._jobs]
        same = len(taken) == len(self._taken) and all(
            flows is before and count == number
            for (flows, count), (before, number) in zip(taken, self._taken, strict=True)
        )
        if not same:
            self._taken = taken
            flows = (flow for job in self._jobs for flow in job.all_flows if flow in self._flows)
            ends = (ends_of(self._flows[flow]) for flow in flows)
            self._looking.take(ends, until_ns)

    def _candidate(self, flow: int) -> Candidate:
        what = self._flows[flow]
        fresh = self._verdicts.since(flow) - self._watched.get(what.host, _NEVER) >= _FRESH_NS
        return Candidate(flow, (what.src, what.dst), self._bursts[flow], self._looking.looks[flow].found, fresh)

    def _find_jobs(self, candidates: Sequence[Candidate], until_ns: int) -> list[InferredIteration]:
        iterations: list[InferredIteration] = []
        found = groups(candidates, until_ns, self._resolution_ns)
        repeating = sum(c.repetition is not None for c in candidates)
        if not found and repeating > _MANY:
            self._searched[min(addresses(candidates))] = until_ns + repeating * _SEARCH_NS
        grouped = {ends_of(self._flows[flow]) for group in found for flow in group.flows}
        for group in found:
            if self._has_others(group, grouped, until_ns):
                continue
            grown = self._grown(group, candidates, until_ns)
            if grown is not None:
                iterations += grown
                continue
            after_ns = max(self._reported_until.get(flow, -1) for flow in group.flows)
            job = Job(self._name(group.flows), group.flows, self._hosts, self._words, self._resolution_ns, after_ns)
            self._jobs.append(job)
            own = [c for c in candidates if c.flow in group.flows]
            begun = group.starts
            job.one_phase = not begun and not pauses_often(own, group.repetition, self._resolution_ns)
            if not begun and not job.one_phase:
                begun = starts(own)
                if not begun and len(group.repetition.onsets_ns) <= _PATIENCE:
                    self._jobs.remove(job)
                    continue
            shifted = None if begun else from_the_beginning(own, group.repetition, self._resolution_ns)
            job.one_phase, job.pauses_within = job.one_phase and shifted is None, shifted is not None
            iterations += job.begin(shifted or group.repetition, self._bursts, begun)
            iterations += job.follow(self._bursts, until_ns)
        return iterations

    def _find_uneven(self, until_ns: int) -> list[InferredIteration]:
        """Jobs, and more of jobs, that carry other bytes in each step; looked for once a second, and seldom in vain."""
        if until_ns < self._uneven_ns:
            return []
        self._uneven_ns = until_ns + _RETRY_NS
        self._report_taken(until_ns)
        iterations: list[InferredIteration] = []
        for flows in self._looking.around(self._looking.looks, until_ns):
            first = min(flows)
            if self._in_vain.get(first, 0) > until_ns:
                continue
            candidates = [self._candidate(flow) for flow in flows]
            age_ns = until_ns - min(c.bursts.first_ns for c in candidates)
            self._in_vain[first] = until_ns + min(_SPARED_NS, age_ns // _RETRY_SHARE)
            if not self._join(candidates) and (found := uneven_steps(candidates, until_ns)):
                iterations += self._begin_uneven(found, until_ns)
        return iterations

    def _join(self, candidates: Sequence[Candidate]) -> bool:
        """Whether some of them are more of jobs that are there."""
        joined_some, known = False, addresses(candidates)
        for job in self._jobs:
            members = known.intersection(job.found.members)
            if job.found.ended or len(members) < 2:
                continue
            own, begun_ns = [c for c in candidates if members.issuperset(c.edge)], job.begun_ns
            for flows in companions(own, begun_ns, self._resolution_ns):
                group = sorted(addresses(flows), key=numerically)
                volume = sum(c.bursts.since(int(begun_ns[0])) for c in flows) / (len(begun_ns) * len(group))
                kind = EXPERT if len(group) > 2 else UNKNOWN
                job.join({c.flow: c.edge for c in flows}, TrafficGroup(kind, tuple(group), int(volume)))
                joined_some = True
        return joined_some

    def _begin_uneven(self, found: UnevenSteps, until_ns: int) -> list[InferredIteration]:
        if self._has_others(Group(found.flows, found.repetition), (), until_ns):
            return []
        after_ns = max(self._reported_until.get(flow, -1) for flow in found.flows)
        job = UnevenJob(self._name(found.flows), found, self._hosts, self._words, self._resolution_ns, after_ns)
        self._jobs.append(job)
        return job.begin(found.repetition, self._bursts, found.starts) + job.follow(self._bursts, until_ns)

    def _has_others(self, group: Group, grouped: Collection[Ends], until_ns: int) -> bool:
        """Whether its members exchange much in other flows of no job with whoever reaches others and is reached, as one
        stage of a pipeline sends another one what is little alongside what its own ranks exchange.

        grouped: of flows that may be jobs, too, for which it waits less long.
        """
        times = len(group.repetition.onsets_ns)
        if times > _ALONE_IN_DOUBT:
            return False
        begun_ns = int(group.repetition.onsets_ns[0])
        members = {address for edge in group.flows.values() for address in edge}
        own = {ends_of(self._flows[flow]) for flow in group.flows}
        own |= {ends_of(self._flows[flow]) for job in self._jobs for flow in job.all_flows if flow in self._flows}
        sure = times > _ALONE and not group.starts
        least = min(self._bursts[flow].since(begun_ns) for flow in group.flows)
        for flow, bursts in self._bursts.items():
            what = self._flows[flow]
            if members.isdisjoint((what.src, what.dst)) or ends_of(what) in own or bursts.last_ns < begun_ns:
                continue
            if sure and (
                ends_of(what) in grouped or (bursts.count >= _MANY_BURSTS and not self._looking.repeats(flow))
            ):
                continue
            if self._looking.exchange(what.src, what.dst, until_ns) and bursts.since(begun_ns) > _MUCH * least:
                return True
        return False

    def _name(self, edges: Mapping[int, Edge]) -> str:
        """By its members and its first connection, so that whoever finds the job calls it the same."""
        flows = [self._flows[flow] for flow in edges]
        members = sorted({address for edge in edges.values() for address in edge})
        first = min((flow.src, flow.dst, flow.src_port, flow.dst_port) for flow in flows)
        stem = f"traffic-{blake2b(repr((members, first)).encode(), digest_size=3).hexdigest()}"
        taken = {job.name for job in self._jobs}
        return next(name for name in chain([stem], (f"{stem}.{n}" for n in count(2))) if name not in taken)

    def _grown(self, group: Group, free: Sequence[Candidate], until_ns: int) -> list[InferredIteration] | None:
        """Where the group is more of a job that is there: that job's iterations."""
        new = [c for c in free if c.flow in group.flows]
        members = {address for c in new for address in c.edge}
        for job in self._jobs:
            if job.found.ended or not members.intersection(job.found.members):
                continue
            old = [self._candidate(flow) for flow in job.flows if flow in self._bursts]
            whole = joined(new, old, until_ns, self._resolution_ns)
            if whole:
                job.take(whole.flows, self._hosts)
                return job.begin(whole.repetition, self._bursts) + job.follow(self._bursts, until_ns)
        return None

    def _is_over(self, job: Job) -> bool:
        return job.found.ended and (job.given_up or not any(flow in self._bursts for flow in job.flows))


def _local(flow: LinkFlow) -> str:
    return flow.src if flow.direction == Direction.TX else flow.dst


def _of_each(flow: npt.NDArray[np.int64]) -> Iterator[tuple[int, slice]]:
    """Each flow and where its rows are; flow: ascending."""
    cuts = [*np.flatnonzero(np.diff(flow, prepend=-1)).tolist(), len(flow)]
    for start, end in pairwise(cuts):
        yield int(flow[start]), slice(start, end)
