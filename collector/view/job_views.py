# SPDX-License-Identifier: Apache-2.0
"""Training jobs over all hosts: what their ranks' last iterations were like."""

import math
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import numpy as np

from netmon.dl.account import Tally
from netmon.dl.explain import NOTABLE, RankSteps, slowest
from netmon.dl.iterations import Iteration
from netmon.dl.scoring import combined
from netmon.dl.theory import ring_bytes
from netmon.views import JobView, RankView, SlowIteration, SourceScore

RECENT = 500  # iterations
_MOST_JOBS = 32
_EXPLAINED = 200  # iterations among which the slowest is looked for
_FEWEST = 5  # iterations of each rank from which on there is a usual
_BEHIND = 10  # iterations that the others have finished since a rank's last one


@dataclass
class _Rank:
    host: str
    ended: deque[Iteration] = field(default_factory=lambda: deque(maxlen=RECENT))
    accounted: deque[tuple[Iteration, Tally]] = field(default_factory=lambda: deque(maxlen=_EXPLAINED))


@dataclass
class _Job:
    ranks: dict[int, _Rank] = field(default_factory=dict)
    size: int = 0  # as the rank says that was heard last: an elastic job changes it; 0: unknown
    pattern: str = ""  # as the traffic shows it
    scores: tuple[SourceScore, ...] = ()  # the last ones, when the ranks are gone
    slowest: SlowIteration | None = None  # None: not known since the last iteration

    def members(self) -> dict[int, _Rank]:
        """The ranks that it has now."""
        return {number: rank for number, rank in self.ranks.items() if not self.size or number < self.size}


class Jobs:
    """The jobs that had iterations lately."""

    def __init__(self, parameters: int) -> None:
        """Begin without jobs; parameters: the model's size where a job does not tell, 0 where nobody does."""
        self._parameters = parameters
        self._jobs: dict[str, _Job] = {}

    def ended(self, host: str, iteration: Iteration) -> None:
        """An iteration has ended; its account follows."""
        job = self._jobs.pop(iteration.job, _Job())
        self._jobs[iteration.job] = job  # the job with the newest iteration is last
        if len(self._jobs) > _MOST_JOBS:
            del self._jobs[next(iter(self._jobs))]
        job.size = iteration.size or job.size
        rank = job.ranks.get(iteration.rank)
        if rank is None or (rank.ended and iteration.number <= rank.ended[-1].number):
            rank = job.ranks[iteration.rank] = _Rank(host)  # or a new process, which counts anew
        rank.ended.append(iteration)
        rank.host = host

    def accounted(self, iteration: Iteration, tally: Tally) -> None:
        """The bytes of an iteration that has ended."""
        job = self._jobs.get(iteration.job, _Job())
        if iteration.rank in job.ranks:
            job.ranks[iteration.rank].accounted.append((iteration, tally))
            job.slowest = None

    def stands_out(self, iteration: Iteration) -> bool:
        """Whether it took notably longer than its job's iterations usually do (NOTABLE × their median)."""
        job = self._jobs.get(iteration.job, _Job())
        last = [i.end_ns - i.start_ns for rank in job.members().values() for i, _ in rank.accounted]
        if len(last) < _FEWEST * max(1, len(job.ranks)):
            return False
        return iteration.end_ns - iteration.start_ns >= NOTABLE * float(np.median(last))

    def hosts(self, job: str) -> tuple[str, ...]:
        """Where its ranks are."""
        return tuple(sorted({rank.host for rank in self._jobs.get(job, _Job()).members().values()}))

    def known(self, job: str) -> bool:
        """Whether the job has had an iteration."""
        return job in self._jobs

    def pattern(self, job: str, pattern: str) -> None:
        """How the ranks of a job communicate."""
        if job in self._jobs:
            self._jobs[job].pattern = pattern

    def warnings(self) -> list[str]:
        """One line per rank that has stopped while the others went on."""
        lines = []
        for name, job in sorted(self._jobs.items()):
            last = {number: rank.ended[-1].number for number, rank in job.members().items()}
            for number, rank in sorted(job.members().items()):
                if max(last.values()) - last[number] >= _BEHIND:
                    lines.append(f"rank {number} of job {name!r} on {rank.host}: no iteration since {last[number]}")
        return lines

    def views(
        self, scores: Iterable[tuple[str, SourceScore]] = (), stepping: Collection[str] = ()
    ) -> tuple[JobView, ...]:
        """One view per job, by name.

        scores: (job, score of one rank's source); stepping: the jobs that have ranks, so that no score means none.
        """
        scores = list(scores)
        for name, job in self._jobs.items():
            told = combined(score for of, score in scores if of == name)
            job.scores = told if name in stepping else told or job.scores
        return tuple(self._view(name, job) for name, job in sorted(self._jobs.items()))

    def _view(self, name: str, job: _Job) -> JobView:
        ranks = job.members()
        recent = [iteration for rank in ranks.values() for iteration in rank.ended]
        durations = np.array([iteration.end_ns - iteration.start_ns for iteration in recent], np.int64)
        numbers, of_iteration = np.unique([iteration.number for iteration in recent], return_inverse=True)
        slowest_ns = np.zeros(len(numbers), np.int64)
        np.maximum.at(slowest_ns, of_iteration, durations)
        latest = max(recent, key=lambda iteration: iteration.number)
        size = max(len(ranks), job.size)
        parameters = latest.parameters or self._parameters
        sent = [rank.accounted[-1][1].dl_tx_bytes for rank in ranks.values() if rank.accounted]
        if job.slowest is None:
            job.slowest = slowest(_steps(ranks))
        return JobView(
            job=name,
            size=size,
            iteration=latest.number,
            last_ns=int(slowest_ns[-1]),
            median_ns=int(np.median(durations)),
            p99_ns=int(np.percentile(durations, 99)),
            source=latest.source,
            error_ns=latest.error_ns,
            relative=latest.relative,
            parameters=parameters,
            measured_bytes=float(np.median(sent)) if sent else math.nan,
            theory_bytes=ring_bytes(size, parameters),
            durations_ns=slowest_ns[-RECENT:],
            ranks=tuple(_rank_view(number, rank) for number, rank in sorted(ranks.items()) if rank.accounted),
            pattern=job.pattern,
            scores=job.scores,
            slowest=job.slowest,
        )


def _rank_view(number: int, rank: _Rank) -> RankView:
    iteration, tally = rank.accounted[-1]
    return RankView(
        rank=number,
        host=rank.host,
        iteration=iteration.number,
        duration_ns=iteration.end_ns - iteration.start_ns,
        communication_ns=max(0, iteration.communication_ns),
        node_shared=tally.node_shared,
        dl_tx_bytes=tally.dl_tx_bytes,
        cross_tx_bytes=tally.cross_tx_bytes,
        cross_rx_bytes=tally.cross_rx_bytes,
        exposed_ns=iteration.exposed_ns,
    )


def _steps(ranks: dict[int, _Rank]) -> RankSteps:
    rows = [(number, rank.host, *one) for number, rank in ranks.items() for one in rank.accounted]
    iterations, tallies = [row[2] for row in rows], [row[3] for row in rows]
    waited = [i.exposed_ns if i.exposed_ns >= 0 else i.communication_ns for i in iterations]
    return RankSteps(
        number=np.array([iteration.number for iteration in iterations], np.int64),
        rank=np.array([row[0] for row in rows], np.int64),
        duration_ns=np.array([iteration.end_ns - iteration.start_ns for iteration in iterations], np.int64),
        waited_ns=np.array(waited, np.int64),
        shared=np.array([tally.node_shared for tally in tallies], np.bool_),
        cause=[tally.cross_top for tally in tallies],
        cause_tx_bytes=np.array([tally.cross_top_tx_bytes for tally in tallies], np.int64),
        cause_rx_bytes=np.array([tally.cross_top_rx_bytes for tally in tallies], np.int64),
        host=[row[1] for row in rows],
    )
