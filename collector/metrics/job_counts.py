# SPDX-License-Identifier: Apache-2.0
"""What is counted of jobs since the collector's start, for Prometheus: a few additions for each iteration."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from collector.host.iteration_rows import IterationRows
from netmon.views import Verdict

BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0)
"""Upper bounds of an iteration's histogram; what is longer has a class of its own."""
MOST_JOBS = 100
OTHER = "other"
"""All jobs beyond the first so many since the start."""


@dataclass
class Exemplar:
    """An iteration that stood out, and why."""

    iteration: str
    cause: str
    seconds: float
    time_ns: int  # UTC


@dataclass
class JobCounts:
    """Of one job, or of all others. Iterations are those of ranks."""

    iterations: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))  # by BOUNDS_S
    seconds: float = 0.0
    exposed_s: float = 0.0  # of the iterations that tell it
    exposed_of: int = 0
    verdicts: dict[str, int] = field(default_factory=dict)  # by cause
    slow: dict[int, Exemplar] = field(default_factory=dict)  # the last one of each class of the histogram


class Counts:
    """By job; MOST_JOBS of them, and the others together."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._jobs: dict[str, JobCounts] = {}
        self.heard: Callable[[Verdict], None] = lambda verdict: None
        """Told of each verdict, too."""

    def of(self, job: str) -> JobCounts:
        """Whose numbers an iteration of this job adds to."""
        found = self._jobs.get(job)
        if found is None:
            name = job if job != OTHER and len(self._jobs) < MOST_JOBS else OTHER
            found = self._jobs.setdefault(name, JobCounts())
        return found

    def ended(self, name: str, rows: IterationRows) -> None:
        """Iterations of ranks of one job."""
        job, seconds = self.of(name), rows.duration_ns / 1e9
        counts = np.bincount(np.searchsorted(BOUNDS_S, seconds), minlength=len(BOUNDS_S) + 1)
        job.iterations = [known + more for known, more in zip(job.iterations, counts.tolist(), strict=True)]
        job.seconds += float(seconds.sum())

    def accounted(self, name: str, rows: IterationRows) -> None:
        """The same, with all that is known of them."""
        exposed = rows.exposed_ns
        known = exposed[exposed >= 0]
        if len(known):
            job = self.of(name)
            job.exposed_s += float(known.sum()) / 1e9
            job.exposed_of += len(known)

    def judged(self, verdict: Verdict) -> None:
        """An iteration stood out."""
        self.heard(verdict)
        job, cause, seconds = self.of(verdict.job), verdict.cause.name.lower(), verdict.duration_ns / 1e9
        job.verdicts[cause] = job.verdicts.get(cause, 0) + 1
        number = f"~{verdict.iteration}" if verdict.relative else str(verdict.iteration)
        job.slow[bisect_left(BOUNDS_S, seconds)] = Exemplar(number, cause, seconds, verdict.end_ns)

    def copy(self) -> dict[str, JobCounts]:
        """By job, as it is now."""
        return {
            name: JobCounts(
                [*job.iterations], job.seconds, job.exposed_s, job.exposed_of, {**job.verdicts}, {**job.slow}
            )
            for name, job in self._jobs.items()
        }
