# SPDX-License-Identifier: Apache-2.0
"""What is counted of jobs since the collector's start, for Prometheus: a few additions for each iteration."""

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

import numpy as np

from collector.host.iteration_rows import IterationRows
from netmon.views import Cause, Verdict

BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0)
"""Upper bounds of an iteration's histogram; what is longer has a class of its own."""
MOST_JOBS = 100
MOST_OF_HOST = 16
"""Jobs with series of their own that one host may have brought."""
MOST_CULPRITS = 8
"""Of a job, with series of their own; what the others cost is one for each cause."""
OTHER = "other"
"""All jobs without series of their own, and what those counted that have lost theirs."""
_QUIET_S = 3600.0  # a job that has not trained for so long loses its series to any other
_MOST_WAITING = 4_096  # jobs without series whose bytes are known

LOST = ("cause", "culprit", "culprit_user", "sender", "receiver")
"""Labels of the time that a job has lost, beside the job."""

Hosts = Callable[[], Collection[str]]
"""() → where a job's ranks are."""


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
    lost_s: dict[tuple[str, ...], float] = field(default_factory=dict)  # by the labels of LOST
    slow: dict[int, Exemplar] = field(default_factory=dict)  # the last one of each class of the histogram
    host: str = ""  # that brought the job
    bytes: int = 0  # DL payload that the job's accounts report
    last_step_s: float = 0.0

    def add(self, more: "JobCounts") -> None:
        """Take over what another job has counted."""
        self.iterations = [own + other for own, other in zip(self.iterations, more.iterations, strict=True)]
        self.seconds += more.seconds
        self.exposed_s += more.exposed_s
        self.exposed_of += more.exposed_of
        self.verdicts = dict(Counter(self.verdicts) + Counter(more.verdicts))
        for whose, seconds in more.lost_s.items():
            self.add_lost(whose, seconds)

    def add_lost(self, whose: tuple[str, ...], seconds: float) -> None:
        """whose: by the labels of LOST."""
        if whose not in self.lost_s and whose[1] and sum(1 for cause, *who in self.lost_s if any(who)) >= MOST_CULPRITS:
            whose = (whose[0], OTHER, *("" for _ in whose[2:]))
        self.lost_s[whose] = self.lost_s.get(whose, 0.0) + seconds


class Counts:
    """By job; the MOST_JOBS that carry the most bytes, at most MOST_OF_HOST of a host, and the others together."""

    def __init__(self) -> None:
        self._jobs: dict[str, JobCounts] = {}  # with series of their own
        self._others = JobCounts()
        self._of_host = Counter[str]()  # of these jobs
        self._waiting = Counter[str]()  # bytes of other jobs
        self.on_verdict: Callable[[Verdict], None] = lambda verdict: None
        """Called with each verdict."""

    def of(self, job: str, hosts: Hosts = tuple) -> JobCounts:
        """Whose numbers an iteration of this job adds to."""
        found = self._jobs.get(job)
        if found is None and job != OTHER and len(self._jobs) < MOST_JOBS:
            host = self._bringer(hosts)
            if self._of_host[host] < MOST_OF_HOST:
                found = self._begin(job, host)
        return self._others if found is None else found

    def add_bytes(self, job: str, hosts: Hosts, amount: int) -> None:
        """So many bytes more: a job that has more than one with series of its own takes its place."""
        found, now_s = self._jobs.get(job), time.monotonic()
        if found is not None:
            found.bytes, found.last_step_s = found.bytes + amount, now_s
            return
        before = self._waiting[job]
        self._waiting[job] += amount
        if before.bit_length() != self._waiting[job].bit_length() and job != OTHER:  # now and then
            self._compare(job, self._bringer(hosts), now_s)
        if len(self._waiting) > _MOST_WAITING:
            self._waiting = Counter(dict(self._waiting.most_common(_MOST_WAITING // 2)))

    def _bringer(self, hosts: Hosts) -> str:
        """The host with the fewest jobs: none is kept out because another one says that it trains it, too."""
        return min(hosts(), key=lambda host: self._of_host[host], default="")

    def _begin(self, job: str, host: str) -> JobCounts:
        self._of_host[host] += 1
        own = JobCounts(host=host, bytes=self._waiting.pop(job, 0), last_step_s=time.monotonic())
        self._jobs[job] = own
        return own

    def _compare(self, job: str, host: str, now_s: float) -> None:
        of_host = self._of_host[host] >= MOST_OF_HOST
        if of_host or len(self._jobs) >= MOST_JOBS:
            rivals = {name: own for name, own in self._jobs.items() if not of_host or own.host == host}
            trains = {name: own.last_step_s > now_s - _QUIET_S for name, own in rivals.items()}
            least = min(rivals, key=lambda name: (trains[name], rivals[name].bytes))
            if trains[least] and rivals[least].bytes >= self._waiting[job]:
                return
            self._others.add(self._jobs.pop(least))
            self._of_host[rivals[least].host] -= 1
            self._waiting[least] = rivals[least].bytes
        self._begin(job, host)

    def ended(self, name: str, rows: IterationRows, hosts: Hosts = tuple) -> None:
        job, seconds = self.of(name, hosts), rows.duration_ns / 1e9
        counts = np.bincount(np.searchsorted(BOUNDS_S, seconds), minlength=len(BOUNDS_S) + 1)
        job.iterations = [known + more for known, more in zip(job.iterations, counts.tolist(), strict=True)]
        job.seconds += float(seconds.sum())

    def accounted(self, name: str, rows: IterationRows) -> None:
        """The same, with all that is known of them."""
        exposed = rows.exposed_ns
        known = exposed[exposed >= 0]
        if len(known):
            job = self._jobs.get(name, self._others)
            job.exposed_s += float(known.sum()) / 1e9
            job.exposed_of += len(known)

    def judged(self, verdict: Verdict) -> None:
        self.on_verdict(verdict)
        job = self._jobs.get(verdict.job, self._others)
        cause, seconds = verdict.cause.name.lower(), verdict.duration_ns / 1e9
        job.verdicts[cause] = job.verdicts.get(cause, 0) + 1
        if verdict.excess_ns > 0 and verdict.cause != Cause.CHANGE:
            whose = (verdict.culprit, verdict.culprit_user, verdict.sender, verdict.receiver)
            job.add_lost((cause, *whose), verdict.excess_ns / 1e9)
        number = f"~{verdict.iteration}" if verdict.relative else str(verdict.iteration)
        job.slow[bisect_left(BOUNDS_S, seconds)] = Exemplar(number, cause, seconds, verdict.end_ns)

    def copy(self) -> dict[str, JobCounts]:
        jobs = self._jobs | ({OTHER: self._others} if any(self._others.iterations) else {})
        return {
            name: replace(
                job, iterations=[*job.iterations], verdicts={**job.verdicts}, slow={**job.slow}, lost_s={**job.lost_s}
            )
            for name, job in jobs.items()
        }
