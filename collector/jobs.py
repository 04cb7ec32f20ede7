# SPDX-License-Identifier: Apache-2.0
"""Training jobs over all hosts: what their ranks' last iterations were like."""

import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from netmon.dl.account import Tally
from netmon.dl.iterations import Iteration
from netmon.dl.theory import ring_bytes
from netmon.views import JobView, RankView

RECENT = 500  # iterations
_MOST_JOBS = 32


@dataclass
class _Rank:
    host: str
    ended: deque[Iteration] = field(default_factory=lambda: deque(maxlen=RECENT))
    accounted: tuple[Iteration, Tally] | None = None


class Jobs:
    """The jobs that had iterations lately."""

    def __init__(self, parameters: int) -> None:
        """Begin without jobs; parameters: the model's size where a job does not tell, 0 where nobody does."""
        self._parameters = parameters
        self._jobs: dict[str, dict[int, _Rank]] = {}

    def ended(self, host: str, iteration: Iteration) -> None:
        """An iteration has ended; its account follows."""
        ranks = self._jobs.pop(iteration.job, {})
        self._jobs[iteration.job] = ranks  # the job with the newest iteration is last
        if len(self._jobs) > _MOST_JOBS:
            del self._jobs[next(iter(self._jobs))]
        ranks.setdefault(iteration.rank, _Rank(host)).ended.append(iteration)
        ranks[iteration.rank].host = host

    def accounted(self, iteration: Iteration, tally: Tally) -> None:
        """The bytes of an iteration that has ended."""
        rank = self._jobs.get(iteration.job, {}).get(iteration.rank)
        if rank:
            rank.accounted = iteration, tally

    def views(self) -> tuple[JobView, ...]:
        """One view per job, by name."""
        return tuple(self._view(job, ranks) for job, ranks in sorted(self._jobs.items()))

    def _view(self, job: str, ranks: dict[int, _Rank]) -> JobView:
        recent = [iteration for rank in ranks.values() for iteration in rank.ended]
        durations = np.array([iteration.end_ns - iteration.start_ns for iteration in recent], np.int64)
        numbers, of_iteration = np.unique([iteration.number for iteration in recent], return_inverse=True)
        slowest = np.zeros(len(numbers), np.int64)
        np.maximum.at(slowest, of_iteration, durations)
        latest = max(recent, key=lambda iteration: iteration.number)
        size = max(len(ranks), *(iteration.size for iteration in recent))
        parameters = latest.parameters or self._parameters
        accounted = [rank.accounted[1].dl_tx_bytes for rank in ranks.values() if rank.accounted]
        return JobView(
            job=job,
            size=size,
            iteration=latest.number,
            last_ns=int(slowest[-1]),
            median_ns=int(np.median(durations)),
            p99_ns=int(np.percentile(durations, 99)),
            source=latest.source,
            error_ns=latest.error_ns,
            relative=latest.relative,
            parameters=parameters,
            measured_bytes=float(np.median(accounted)) if accounted else math.nan,
            theory_bytes=ring_bytes(size, parameters),
            durations_ns=slowest[-RECENT:],
            ranks=tuple(_rank_view(number, rank) for number, rank in sorted(ranks.items()) if rank.accounted),
        )


def _rank_view(number: int, rank: _Rank) -> RankView:
    assert rank.accounted
    iteration, tally = rank.accounted
    known = iteration.comm_start_ns and iteration.comm_end_ns
    return RankView(
        rank=number,
        host=rank.host,
        iteration=iteration.number,
        duration_ns=iteration.end_ns - iteration.start_ns,
        communication_ns=max(0, iteration.comm_end_ns - iteration.comm_start_ns) if known else 0,
        node_shared=tally.node_shared,
        dl_tx_bytes=tally.dl_tx_bytes,
        cross_tx_bytes=tally.cross_tx_bytes,
        cross_rx_bytes=tally.cross_rx_bytes,
    )
