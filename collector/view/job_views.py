# SPDX-License-Identifier: Apache-2.0
"""Training jobs over all hosts: what their ranks' last iterations were like."""

import math
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from collector.metrics.job_counts import Counts
from collector.view.job_history import JobHistory
from netmon.dl.account import Tally
from netmon.dl.iterations import Iteration
from netmon.dl.scoring import combined
from netmon.dl.theory import ring_bytes
from netmon.dl.verdict import NOTABLE
from netmon.job_names import distinct_names
from netmon.records import Source, Table
from netmon.views import JobView, RankView, SourceScore, Verdict

RECENT = 500  # iterations
_MOST_JOBS = 4_096
_KEPT_S = 3_600.0  # a job without an iteration
_USUAL = 200  # iterations that make what is usual
_FEWEST = 5  # iterations of each rank from which on there is a usual
_BEHIND = 10  # iterations that the others have finished since a rank's last one
_VERDICTS = 5  # the newest
_ANY_RANK = 1 << 62


class JobFacts(NamedTuple):
    """What a job's place among the others depends on."""

    job: str
    hosts: frozenset[str]
    ranks: int
    shared: int  # ranks whose node was DL-shared in their last iteration
    stopped: tuple[str, ...]  # a line about each rank that has stopped while the others went on
    name: str  # what people call it


@dataclass
class _Rank:
    host: str
    last: Iteration
    accounted: tuple[Iteration, Tally] | None = None  # the last one


@dataclass
class _Job:
    ranks: dict[int, _Rank] = field(default_factory=dict)
    history: JobHistory = field(default_factory=lambda: JobHistory(RECENT, _USUAL))
    size: int = 0  # as the rank says that was heard last: an elastic job changes it; 0: unknown
    pattern: str = ""  # as the traffic shows it
    called: tuple[int, str] = (_ANY_RANK, "")  # what people call it, as that rank says; ranks may disagree
    name: str = ""  # the same, unlike any other job's here
    scores: tuple[SourceScore, ...] = ()  # the last ones, when the ranks are gone
    verdicts: deque[Verdict] = field(default_factory=lambda: deque(maxlen=_VERDICTS))  # newest first
    sharing: tuple[str, ...] = ()
    usual_ns: float = math.nan  # as of iteration usual_of
    usual_of: int = -1
    heard_s: float = 0.0
    view: JobView | None = None  # None: something has changed since it was made
    facts: JobFacts | None = None  # the same

    def members(self) -> dict[int, _Rank]:
        """The ranks that it has now."""
        return {number: rank for number, rank in self.ranks.items() if not self.size or number < self.size}

    @staticmethod
    def behind(members: dict[int, _Rank]) -> list[tuple[int, _Rank]]:
        """Those that have stopped while the others went on."""
        newest = max((rank.last.number for rank in members.values()), default=0)
        return [(number, rank) for number, rank in sorted(members.items()) if newest - rank.last.number >= _BEHIND]


class Jobs:
    """The jobs that had iterations lately."""

    def __init__(self, parameters: int) -> None:
        """Begin without jobs; parameters: the model's size where a job does not tell, 0 where nobody does."""
        self._parameters = parameters
        self._jobs: dict[str, _Job] = {}
        self.counts = Counts()  # since the start, for /metrics
        self._renamed = False  # a job has come, or is called something else
        self.forgotten = 0  # jobs that were let go although they may still train

    def have_ended(self, host: str, iterations: Iterable[Iteration]) -> None:
        """Iterations have ended; their accounts follow."""
        for iteration in iterations:
            self.ended(host, iteration)

    def ended(self, host: str, iteration: Iteration) -> None:
        """An iteration has ended; its account follows."""
        job = self._jobs.pop(iteration.job, None) or _Job()
        self._jobs[iteration.job] = job  # the job with the newest iteration is last
        job.heard_s, job.view, job.facts = time.monotonic(), None, None
        self._forget_old(job.heard_s)
        job.size = iteration.size or job.size
        self._hear_name(job, iteration)
        rank = job.ranks.get(iteration.rank)
        if rank is None or iteration.number <= rank.last.number:
            if rank:
                job.history.drop(iteration.rank)
            job.ranks[iteration.rank] = _Rank(host, iteration)  # or a new process, which counts anew
        else:
            rank.host, rank.last = host, iteration
        job.history.end(iteration, len(job.ranks))
        self.counts.ended(iteration)

    def _hear_name(self, job: _Job, iteration: Iteration) -> None:
        """The lowest rank's word counts, so that it does not change with who was heard last."""
        called = iteration.rank, iteration.job_name
        if not job.name or (called[0] <= job.called[0] and called != job.called):
            self._renamed |= not job.name or called[1] != job.called[1]
            job.called, job.name = called, job.name or iteration.job

    def _name(self) -> None:
        if not self._renamed:
            return
        self._renamed = False
        for name, shown in distinct_names({name: job.called[1] for name, job in self._jobs.items()}).items():
            job = self._jobs[name]
            if job.name != shown:
                job.name, job.view, job.facts = shown, None, None

    def _forget_old(self, now_s: float) -> None:
        while (first := next(iter(self._jobs), None)) is not None:
            over = self._jobs[first].heard_s < now_s - _KEPT_S
            if not over and len(self._jobs) <= _MOST_JOBS:
                return
            self.forgotten += not over
            self._renamed = True
            del self._jobs[first]

    def accounted(self, iteration: Iteration, tally: Tally) -> None:
        """The bytes of an iteration that has ended."""
        self.counts.accounted(iteration)
        job = self._jobs.get(iteration.job)
        rank = job.ranks.get(iteration.rank) if job else None
        if job and rank:
            rank.accounted = iteration, tally
            job.history.account(iteration, len(job.ranks))
            job.view = job.facts = None

    def judged(self, verdict: Verdict) -> None:
        """Why an iteration that stands out took so long."""
        self.counts.judged(verdict)
        job = self._jobs.get(verdict.job)
        if job:
            job.verdicts.appendleft(verdict)
            job.view = None

    def sharing(self, lines: Mapping[str, tuple[str, ...]]) -> None:
        """What is to be said of jobs that share links; of the others nothing."""
        for name, job in self._jobs.items():
            if job.sharing != (now := lines.get(name, ())):
                job.sharing, job.view = now, None

    def stands_out(self, iteration: Iteration) -> bool:
        """Whether it took notably longer than its job's iterations usually do (NOTABLE × their median)."""
        job = self._jobs.get(iteration.job)
        if job is None:
            return False
        if iteration.number > job.usual_of or iteration.number < job.usual_of - _USUAL:  # once for all its ranks
            fewest = _FEWEST * max(1, len(job.ranks))
            job.usual_of, job.usual_ns = iteration.number, job.history.usual_ns(job.size or _ANY_RANK, fewest)
        return iteration.end_ns - iteration.start_ns >= NOTABLE * job.usual_ns

    def hosts(self, job: str) -> tuple[str, ...]:
        """Where its ranks are."""
        return tuple(sorted({rank.host for rank in self._jobs.get(job, _Job()).members().values()}))

    def names(self) -> dict[str, str]:
        """What each job that has had an iteration is called."""
        self._name()
        return {name: job.name for name, job in self._jobs.items()}

    def marked(self) -> frozenset[str]:
        """The jobs all of whose ranks tell their iterations themselves: those need no inference."""
        return frozenset(
            name
            for name, job in self._jobs.items()
            if all(rank.last.source != Source.INFERRED for rank in job.members().values())
        )

    def pattern(self, job: str, pattern: str) -> None:
        """How the ranks of a job communicate."""
        if job in self._jobs:
            self._jobs[job].pattern, self._jobs[job].view = pattern, None

    def warnings(self) -> list[str]:
        """One line per rank that has stopped while the others went on."""
        return [line for facts in self.facts() for line in facts.stopped]

    def facts(self) -> list[JobFacts]:
        """Of every job, by name."""
        self._name()
        return [job.facts or self._facts(name, job) for name, job in sorted(self._jobs.items())]

    @staticmethod
    def _facts(name: str, job: _Job) -> JobFacts:
        members = job.members()
        job.facts = JobFacts(
            job=name,
            hosts=frozenset(rank.host for rank in members.values()),
            ranks=max(len(members), job.size),
            shared=sum(bool(rank.accounted and rank.accounted[1].node_shared) for rank in members.values()),
            stopped=tuple(
                f"rank {number} of job {job.name!r} on {rank.host}: no iteration since {rank.last.number}"
                for number, rank in job.behind(members)
            ),
            name=job.name,
        )
        return job.facts

    def take_scores(self, scores: Iterable[tuple[str, SourceScore]], stepping: Collection[str]) -> None:
        """Take in how the sources of iterations do now.

        scores: (job, score of one rank's source); stepping: the jobs that have ranks, so that no score means none.
        """
        told: dict[str, list[SourceScore]] = {}
        for name, score in scores:
            told.setdefault(name, []).append(score)
        for name, job in self._jobs.items():
            now = combined(told.get(name, ()))
            now = now if name in stepping else now or job.scores
            if now != job.scores:
                job.scores, job.view = now, None

    def views(self, names: Iterable[str] | None = None) -> tuple[JobView, ...]:
        """One view for each of these jobs that is known, in their order; of all by name where none is named."""
        self._name()
        wanted = sorted(self._jobs) if names is None else [name for name in names if name in self._jobs]
        return tuple(self._kept_view(name, self._jobs[name]) for name in wanted)

    def steps(self, name: str, since_ns: int, offsets_ns: Mapping[str, int]) -> Table:
        """As JobHistory.steps; offsets_ns: of each host."""
        job = self._jobs[name]
        of_rank = {number: offsets_ns[rank.host] for number, rank in job.members().items() if rank.host in offsets_ns}
        return job.history.steps(since_ns, of_rank)

    def _kept_view(self, name: str, job: _Job) -> JobView:
        if job.view is None:
            job.view = self._view(name, job)
        return job.view

    def _view(self, name: str, job: _Job) -> JobView:
        ranks = job.members()
        durations, _, slowest_ns = job.history.durations(job.size or _ANY_RANK)
        latest = max((rank.last for rank in ranks.values()), key=lambda iteration: iteration.number)
        size = max(len(ranks), job.size)
        parameters = latest.parameters or self._parameters
        accounted = {number: rank.accounted for number, rank in sorted(ranks.items()) if rank.accounted}
        sent = [tally.dl_tx_bytes for _, tally in accounted.values()]
        median_ns, p99_ns = _median_and_p99(durations)
        return JobView(
            job=name,
            size=size,
            iteration=latest.number,
            last_ns=int(slowest_ns[-1]),
            median_ns=median_ns,
            p99_ns=p99_ns,
            source=latest.source,
            error_ns=latest.error_ns,
            relative=latest.relative,
            parameters=parameters,
            measured_bytes=float(median(sent)) if sent else math.nan,
            theory_bytes=ring_bytes(size, parameters, latest.gradient_bytes),
            durations_ns=slowest_ns[-RECENT:],
            ranks=tuple(_rank_view(number, ranks[number].host, *last) for number, last in accounted.items()),
            pattern=job.pattern,
            scores=job.scores,
            verdicts=tuple(job.verdicts),
            sharing=job.sharing,
            name=job.name,
            parameters_basis=latest.parameters_basis or ("option" if parameters else ""),
        )


def _median_and_p99(durations: npt.NDArray[np.int64]) -> tuple[int, int]:
    """In ns, as np.quantile interpolates them, in a tenth of its time."""
    ordered = np.sort(durations)
    places = np.array((0.5, 0.99)) * (len(ordered) - 1)
    below = places.astype(np.int64)
    low, high = ordered[below], ordered[np.minimum(below + 1, len(ordered) - 1)]
    median, p99 = (low + (high - low) * (places - below)).tolist()
    return int(median), int(p99)


def _rank_view(number: int, host: str, iteration: Iteration, tally: Tally) -> RankView:
    return RankView(
        rank=number,
        host=host,
        iteration=iteration.number,
        duration_ns=iteration.end_ns - iteration.start_ns,
        communication_ns=max(0, iteration.communication_ns),
        node_shared=tally.node_shared,
        dl_tx_bytes=tally.dl_tx_bytes,
        cross_tx_bytes=tally.cross_tx_bytes,
        cross_rx_bytes=tally.cross_rx_bytes,
        exposed_ns=iteration.exposed_ns,
    )
