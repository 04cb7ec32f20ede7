# SPDX-License-Identifier: Apache-2.0
"""What each flow is to the jobs that were found."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from netmon.dl.inference.bursts import Edge
from netmon.dl.inference.job import Job
from netmon.dl.inference.types import CONTROL, GRADIENT, FlowVerdict, LinkFlow
from netmon.records import Direction, Table

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
        basis = job.found.members, *job.flows
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
        gradient = {ends_of(self._flows[flow]) for flow in job.flows if flow in self._flows}
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
