# SPDX-License-Identifier: Apache-2.0
"""Training jobs over all hosts: what their ranks' last iterations were like."""

import math
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from collector.host.iteration_rows import Accounted, IterationRows, Ring, goes_on
from collector.host.rank import Rank
from netmon.dl.classify import ring_bytes
from netmon.dl.grouped import numbered
from netmon.dl.iterations import Iteration, between
from netmon.dl.step_alignment import combined
from netmon.dl.verdict import NOTABLE
from netmon.dl.verdict.baseline import MOST, Durations, baseline_by, baseline_rows
from netmon.dl.verdict.incidents import LATELY_NS, Incidents
from netmon.records import Source, Table
from netmon.views import (
    NOT_UNDERSTOOD,
    RECENT_INCIDENTS,
    RECENT_ITERATIONS,
    STEP,
    Cause,
    Hang,
    Incident,
    JobView,
    RankPair,
    RankView,
    SourceScore,
    Verdict,
    distinct_names,
)

# --- What is counted of jobs since the collector's start, for Prometheus: a few additions for each iteration.

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
"""Labels of the time that a job has lost, in addition to the job."""

Hosts = Callable[[], Collection[str]]
"""() → where a job's ranks are."""


@dataclass
class Exemplar:
    """A slow iteration, and why."""

    iteration: str
    cause: str
    seconds: float
    time_ns: int  # UTC


@dataclass
class JobCounts:
    """Of one job, or of all others. Iterations are those of ranks."""

    iterations: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))  # by BOUNDS_S
    seconds: float = 0.0
    exposed_s: float = 0.0  # of the iterations that report it
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


# --- Training jobs over all hosts: what their ranks' last iterations were like.

# --- The recent iterations of one job's ranks, in tables of bounded length.

_ENDED = np.dtype([("number", "<i8"), ("rank", "<i8"), ("duration_ns", "<i8")])
_MOMENTS = ("start_ns", "comm_start_ns", "wait_start_ns", "comm_end_ns", "end_ns")
_STEP = np.dtype([*((name, _ENDED[name].str) for name in _ENDED.names or ()), *((name, "<i8") for name in _MOMENTS)])
_ACCOUNTED = np.dtype([*((name, _ENDED[name].str) for name in _ENDED.names or ()), ("shared", "?")])
_MOST = 16_384  # rows: of a job with many ranks fewer iterations are kept


class JobHistory:
    """What a job's ranks have done lately."""

    def __init__(self) -> None:
        self._ended, self._accounted = Ring(_STEP, RECENT_ITERATIONS, _MOST), Ring(_ACCOUNTED, MOST, _MOST)

    def end(self, rows: IterationRows, ranks: int) -> None:
        self._ended.add(rows.table(_STEP), ranks)

    def account(self, accounted: Accounted, ranks: int) -> None:
        """The rows of iterations have settled."""
        table = accounted.rows.table(_ACCOUNTED, _ENDED.names or ())
        table["shared"] = accounted.tallies["node_shared"]
        self._accounted.add(table, ranks)

    def drop(self, rank: int) -> None:
        """A rank has begun anew: what it was is no measure of what it is."""
        self._ended.drop(rank)
        self._accounted.drop(rank)

    def changed(self, number: int) -> None:
        """The job has changed its pace with this iteration: those before it are no measure any more."""
        rows = self._accounted.rows
        rows["rank"][rows["number"] < number] = -1

    def durations(self, size: int) -> npt.NDArray[np.int64]:
        """Of the slowest of the ranks below `size`, of each of the recent iterations, oldest first."""
        rows = self._ended.rows
        members = (rows["rank"] >= 0) & (rows["rank"] < size)
        numbers, of_row = numbered(rows["number"][members])
        slowest = np.zeros(len(numbers), np.int64)
        np.maximum.at(slowest, of_row, rows["duration_ns"][members])
        return slowest[-RECENT_ITERATIONS:]

    def steps(self, since_ns: int, offsets_ns: Mapping[int, int]) -> Table:
        """Iterations, dtype netmon.views.STEP, that have ended since then (UTC).

        offsets_ns: UTC − mono of each rank's host; those of other ranks are left out.
        """
        ranks = np.array(sorted(offsets_ns), np.int64)
        offset = np.array([offsets_ns[rank] for rank in ranks.tolist()], np.int64)
        rows = self._ended.rows
        rows = rows.compress(np.isin(rows["rank"], ranks))
        utc = offset[np.searchsorted(ranks, rows["rank"])]
        late = rows["end_ns"] + utc >= since_ns
        rows, utc = rows.compress(late), utc[late]
        steps = np.zeros(len(rows), STEP)
        steps["rank"], steps["number"] = rows["rank"], rows["number"]
        for name in _MOMENTS:
            known = (rows[name] > 0) | (name in ("start_ns", "end_ns"))
            steps[name] = np.where(known, rows[name] + utc, 0)
        return steps

    def baseline_ns(self, ranks: Collection[int], number: int) -> int:
        """Baseline of an iteration, ns, by the settled rows; 0: not known. An iteration is whole if all of these ranks
        have it."""
        rows = self._accounted.rows
        rows = rows.compress(np.isin(rows["rank"], list(ranks)))
        numbers, of_row = numbered(rows["number"])
        slowest, shared = np.zeros(len(numbers) + 1), np.zeros(len(numbers) + 1, np.bool_)  # and what is not there yet
        np.maximum.at(slowest, of_row, rows["duration_ns"].astype(np.float64))
        shared[of_row[rows["shared"]]] = True
        whole = np.bincount(of_row, minlength=len(slowest)) == len(ranks)
        of = Durations(slowest, whole, shared, np.zeros(len(slowest), np.int64))
        return baseline_by(of, baseline_rows(of, int(np.searchsorted(numbers, number))))


_Numbers = npt.NDArray[np.int64]

_MOST_JOBS = 4_096
_KEPT_S = 3_600.0  # a job without an iteration
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
    unclear: bool = False  # its steps are not understood
    hang: Hang | None = None  # that goes on


@dataclass
class _Rank:
    host: str
    number: int  # of its last iteration
    ended: tuple[IterationRows, int]  # which that is
    of: tuple[Accounted, int] | None = None  # the last one with an account

    @property
    def last(self) -> Iteration:
        rows, row = self.ended
        return rows.iteration(row)

    @property
    def source(self) -> Source:
        rows, row = self.ended
        return Source(int(rows.source[row]))

    @property
    def shared(self) -> bool:
        """Whether its node was DL-shared in that one."""
        return bool(self.of and self.of[0].tallies["node_shared"][self.of[1]])


@dataclass
class _Job:
    ranks: dict[int, _Rank] = field(default_factory=dict)
    history: JobHistory = field(default_factory=JobHistory)
    size: int = 0  # as the rank says that reported last: an elastic job changes it; 0: unknown
    pattern: str = ""  # as the traffic shows it
    called: tuple[int, str] = (_ANY_RANK, "")  # what people call it, as that rank says; ranks may disagree
    name: str = ""  # the same, unlike any other job's here
    scores: tuple[SourceScore, ...] = ()  # the last ones, when the ranks are gone
    verdicts: deque[Verdict] = field(default_factory=lambda: deque(maxlen=_VERDICTS))  # newest first
    incidents: Incidents = field(default_factory=Incidents)
    sharing: tuple[str, ...] = ()
    pairs: tuple[RankPair, ...] = ()
    baseline_ns: int = 0  # as of iteration baseline_at; 0: not known
    baseline_at: int = -1
    last_step_s: float = 0.0
    unclear: bool = False  # its steps are not understood
    hangs: tuple[Hang, ...] = ()  # the last ones, newest first
    view: JobView | None = None  # None: something has changed since it was made
    facts: JobFacts | None = None  # the same

    @property
    def end(self) -> int:
        """The ranks below it are the job's; all of them where none is below the size that they report."""
        return self.size if any(number < self.size for number in self.ranks) else _ANY_RANK

    def members(self) -> dict[int, _Rank]:
        end = self.end
        return {number: rank for number, rank in self.ranks.items() if number < end}

    def incidents_until(self, latest: Iteration) -> tuple[Incident, ...]:
        """Newest first. latest: the job's last step."""
        found = self.incidents.found(latest.end_ns, latest.number, time.time_ns())
        return tuple(found[: -RECENT_INCIDENTS - 1 : -1])

    @staticmethod
    def behind(members: dict[int, _Rank]) -> list[tuple[int, _Rank]]:
        """Those that have stopped while the others went on."""
        newest = max((rank.number for rank in members.values()), default=0)
        return [(number, rank) for number, rank in sorted(members.items()) if newest - rank.number >= _BEHIND]


class Jobs:
    """The jobs that had iterations lately."""

    def __init__(self, parameters: int) -> None:
        """Begin without jobs; parameters: the model's size where a job does not report, 0 where nobody does."""
        self._parameters = parameters
        self._jobs: dict[str, _Job] = {}
        self.counts = Counts()  # since the start, for /metrics
        self._said: dict[str, None] = {}  # jobs that were not understood
        self._mistaken: dict[str, None] = {}  # names of jobs that never were, newest last
        self._renamed = False  # a job has come, or is called something else
        self.forgotten = 0  # jobs that were let go although they may still train

    def add_ended(self, hosts: Mapping[int, str], rows: IterationRows) -> None:
        """Iterations have ended; their accounts follow. hosts: by index of their sessions."""
        for name, own in rows.by_job():
            part = rows.take(own)
            number = part.each_of("rank")
            if goes_on(part, number, self._numbers(name)):
                self._have_ended(name, hosts, part, number)
                continue
            for row in range(len(part)):  # a rank that is new, or counts anew
                one = part.take(np.array([row]))
                self._have_ended(name, hosts, one, number[row : row + 1])

    def are_unclear(self, now: Mapping[str, Rank]) -> list[str]:
        """The jobs whose steps are not understood now, with a rank of each; returns a line on each that is new."""
        for name in [name for name, job in self._jobs.items() if job.unclear and name not in now and not job.hangs]:
            del self._jobs[name]
            self._renamed = True
        lines = []
        for name, rank in now.items():
            if name not in self._jobs or not self._jobs[name].unclear:
                job = self._jobs[name] = _Job(
                    size=rank.state.size, called=(rank.number, rank.state.job_name), name=name
                )
                job.unclear = self._renamed = True
                if name not in self._said:
                    lines.append(f"job {job.called[1] or name}: {NOT_UNDERSTOOD}")
                    self._said[name] = None
            self._jobs[name].last_step_s = time.monotonic()
        return lines

    def _numbers(self, name: str) -> dict[int, int]:
        job = self._jobs.get(name)
        return {number: rank.number for number, rank in job.ranks.items()} if job else {}

    def forget(self, mistaken: Iterable[str]) -> None:
        """Names of jobs that never were."""
        for name in mistaken:
            self._mistaken[name] = None
            self._renamed |= self._jobs.pop(name, None) is not None
        for name in [*self._mistaken][:-_MOST_JOBS]:
            del self._mistaken[name]

    def _have_ended(self, name: str, hosts: Mapping[int, str], rows: IterationRows, number: _Numbers) -> None:
        """Of one job; number: rank of each iteration. One that begins a rank, or begins it anew, comes alone."""
        if name in self._mistaken:  # the last one that it has received
            return
        job = self._jobs.pop(name, None) or _Job()
        self._jobs[name] = job  # the job with the newest iteration is last
        job.last_step_s, job.view, job.facts, job.unclear = time.monotonic(), None, None, False
        self._forget_old(job.last_step_s)
        job.size = rows.about[int(rows.whose[-1])].size or job.size
        self._learn_name(job, rows.about[int(rows.whose[number.argmin()])])
        for one, row in dict(zip(number.tolist(), range(len(rows)), strict=True)).items():
            rank, host, last = job.ranks.get(one), hosts[int(rows.session[row])], int(rows.number[row])
            if rank is None or last <= rank.number:
                if rank:
                    job.history.drop(one)
                job.baseline_at = -1  # of it, too, some have to be known
                job.ranks[one] = _Rank(host, last, (rows, row))  # or a new process, which counts anew
            else:
                rank.host, rank.number, rank.ended = host, last, (rows, row)
        job.history.end(rows, len(job.ranks))
        self.counts.ended(name, rows, lambda: {hosts[session_index] for session_index in rows.session.tolist()})

    def add_accounts(self, accounted: Accounted) -> None:
        for name, own in accounted.rows.by_job():
            part = accounted.take(own)
            self.counts.accounted(name, part.rows)
            dl_bytes = int(part.tallies["dl_tx_bytes"].sum() + part.tallies["dl_rx_bytes"].sum())
            self.counts.add_bytes(name, partial(self.hosts, name), dl_bytes)
            job, number = self._jobs.get(name), part.rows.each_of("rank").tolist()
            if job is None:
                continue
            known = [row for row, one in enumerate(number) if one in job.ranks]
            for row in known:
                job.ranks[number[row]].of = part, row
            if known:
                job.history.account(part.take(np.array(known)), len(job.ranks))
                job.view = job.facts = None

    def standing_out(self, rows: IterationRows) -> npt.NDArray[np.intp]:
        """Those that took notably longer than their job's iterations usually do, by what has settled: the verdict knows
        more. Ranks that have stopped do not count."""
        found = [np.empty(0, np.intp)]
        for name, own in rows.by_job():
            job, number = self._jobs.get(name), rows.number[own]
            if job is None:
                continue
            if number.max() > job.baseline_at or number.min() < job.baseline_at - MOST:  # once for all its ranks
                members = job.members()
                going = members.keys() - dict(job.behind(members)).keys()
                job.baseline_at = int(number.max())
                job.baseline_ns = job.history.baseline_ns(going, job.baseline_at)
            if job.baseline_ns:
                found.append(own[rows.duration_ns[own] >= NOTABLE * job.baseline_ns])
        return np.concatenate(found)

    def _learn_name(self, job: _Job, iteration: Iteration) -> None:
        """The lowest rank's word counts, so that it does not change with who reported last."""
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
            over = self._jobs[first].last_step_s < now_s - _KEPT_S
            if not over and len(self._jobs) <= _MOST_JOBS:
                return
            self.forgotten += not over
            self._renamed = True
            del self._jobs[first]

    def judged(self, verdict: Verdict) -> None:
        self.counts.judged(verdict)
        job = self._jobs.get(verdict.job)
        if job:
            job.verdicts.appendleft(verdict)
            job.incidents.add(verdict)
            job.view = None
            if verdict.cause == Cause.CHANGE:
                job.history.changed(verdict.iteration)
                job.baseline_at = -1

    def hung(self, name: str, hangs: tuple[Hang, ...]) -> None:
        """The latest hangs of a job, newest first. One that has had no step is shown because of that."""
        job = self._jobs.get(name)
        if job is None:
            job = self._jobs[name] = _Job(name=name, unclear=True, last_step_s=time.monotonic())
            self._renamed = True
        job.hangs, job.view, job.facts = hangs, None, None

    def sharing(self, lines: Mapping[str, tuple[str, ...]]) -> None:
        """What is to be said of jobs that share links; of the others nothing."""
        for name, job in self._jobs.items():
            if job.sharing != (now := lines.get(name, ())):
                job.sharing, job.view = now, None

    def rank_pairs(self, pairs: Mapping[str, tuple[RankPair, ...]] | None) -> None:
        """What ranks have sent each other by NCCL lately, by job; None: as before."""
        if pairs is None:
            return
        for name, job in self._jobs.items():
            if job.pairs != (now := pairs.get(name, ())):
                job.pairs, job.view = now, None

    def sizes(self) -> dict[str, int]:
        """How many ranks the jobs have, as these say; 0: not known."""
        return {name: job.size for name, job in self._jobs.items()}

    def hosts(self, job: str) -> tuple[str, ...]:
        return tuple(sorted({rank.host for rank in self._jobs.get(job, _Job()).members().values()}))

    def names(self) -> dict[str, str]:
        """What each job that has had an iteration is called."""
        self._name()
        return {name: job.name for name, job in self._jobs.items()}

    def marked(self) -> frozenset[str]:
        """The jobs all of whose ranks report their iterations themselves: those need no inference."""
        return frozenset(
            name
            for name, job in self._jobs.items()
            if all(rank.source != Source.INFERRED for rank in job.members().values())
        )

    def pattern(self, job: str, pattern: str) -> None:
        if job in self._jobs:
            self._jobs[job].pattern, self._jobs[job].view = pattern, None

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
            shared=sum(rank.shared for rank in members.values()),
            stopped=tuple(
                f"rank {number} of job {job.name!r} on {rank.host}: no iteration since {rank.number}"
                for number, rank in job.behind(members)
            ),
            name=job.name,
            unclear=job.unclear,
            hang=next((one for one in job.hangs if one.reported_ns and not one.until_ns), None),
        )
        return job.facts

    def take_scores(self, scores: Iterable[tuple[str, SourceScore]], stepping: Collection[str]) -> None:
        """Take in how the sources of iterations do now.

        scores: (job, score of one rank's source); stepping: the jobs that have ranks, so that no score means none.
        """
        by_job: dict[str, list[SourceScore]] = {}
        for name, score in scores:
            by_job.setdefault(name, []).append(score)
        for name, job in self._jobs.items():
            now = combined(by_job.get(name, ()))
            now = now if name in stepping else now or job.scores
            if now != job.scores:
                job.scores, job.view = now, None

    def views(self, names: Iterable[str] | None = None) -> tuple[JobView, ...]:
        """One view for each of these jobs that is known, in their order; of all by name where none is named."""
        self._name()
        wanted = sorted(self._jobs) if names is None else [name for name in names if name in self._jobs]
        rested_s = time.monotonic() - LATELY_NS / 1e9
        for name in wanted:
            job = self._jobs[name]
            if job.view and job.last_step_s < rested_s and any(one.ongoing for one in job.view.incidents):
                job.view = None  # a job that has ended in a slow step: nothing goes on any more
            job.view = job.view or self._view(name, job)
        return tuple(view for name in wanted if (view := self._jobs[name].view))

    def steps(self, name: str, since_ns: int, offsets_ns: Mapping[str, int]) -> Table:
        """As JobHistory.steps; offsets_ns: of each host."""
        job = self._jobs[name]
        of_rank = {number: offsets_ns[rank.host] for number, rank in job.members().items() if rank.host in offsets_ns}
        return job.history.steps(since_ns, of_rank)

    def _view(self, name: str, job: _Job) -> JobView:
        if job.unclear:
            return _not_understood(name, job)
        ranks = job.members()
        durations = job.history.durations(job.end)
        if not len(durations):  # those below the size have stopped long ago
            durations = job.history.durations(_ANY_RANK)
        latest = max(ranks.values(), key=lambda rank: rank.number).last
        size = max(len(ranks), job.size)
        parameters = latest.parameters or self._parameters
        rank_views = tuple(_rank_view(number, rank.host, *rank.of) for number, rank in sorted(ranks.items()) if rank.of)
        sent = [one.dl_tx_bytes for one in rank_views]
        median_ns, p99_ns = _median_and_p99(durations)
        return JobView(
            job=name,
            size=size,
            iteration=latest.number,
            last_ns=int(durations[-1]),
            median_ns=median_ns,
            p99_ns=p99_ns,
            source=latest.source,
            error_ns=latest.error_ns,
            relative=latest.relative,
            parameters=parameters,
            measured_bytes=float(median(sent)) if sent else math.nan,
            theory_bytes=ring_bytes(size, parameters, latest.gradient_bytes),
            durations_ns=durations,
            ranks=rank_views,
            pattern=job.pattern,
            scores=job.scores,
            verdicts=tuple(job.verdicts),
            incidents=job.incidents_until(latest),
            sharing=job.sharing,
            name=job.name,
            parameters_basis=latest.parameters_basis or ("option" if parameters else ""),
            baseline_ns=job.baseline_ns,
            hangs=job.hangs,
            pairs=job.pairs,
        )


def _not_understood(name: str, job: _Job) -> JobView:
    """Nothing is said of steps."""
    return JobView(
        *(name, job.size, -1, 0, 0, 0, Source.UPROBE, 0, True, 0, math.nan, math.nan),
        durations_ns=np.empty(0, np.int64),
        ranks=(),
        pattern=job.pattern,
        name=job.name,
        not_understood=True,
        hangs=job.hangs,
        pairs=job.pairs,
    )


def _median_and_p99(durations: npt.NDArray[np.int64]) -> tuple[int, int]:
    """In ns, as np.quantile interpolates them, in a tenth of its time."""
    ordered = np.sort(durations)
    at = np.array((0.5, 0.99)) * (len(ordered) - 1)
    below = at.astype(np.int64)
    low, high = ordered[below], ordered[np.minimum(below + 1, len(ordered) - 1)]
    median, p99 = (low + (high - low) * (at - below)).tolist()
    return int(median), int(p99)


def _rank_view(number: int, host: str, accounted: Accounted, row: int) -> RankView:
    """Of the last iteration of a rank that has an account: that row."""
    rows, bytes_of = accounted.rows, accounted.tallies
    comm_end_ns = int(rows.comm_end_ns[row])
    return RankView(
        rank=number,
        host=host,
        iteration=int(rows.number[row]),
        duration_ns=int(rows.end_ns[row] - rows.start_ns[row]),
        communication_ns=max(0, between(int(rows.comm_start_ns[row]), comm_end_ns)),
        node_shared=bool(bytes_of["node_shared"][row]),
        dl_tx_bytes=int(bytes_of["dl_tx_bytes"][row]),
        cross_tx_bytes=int(bytes_of["cross_tx_bytes"][row]),
        cross_rx_bytes=int(bytes_of["cross_rx_bytes"][row]),
        exposed_ns=between(int(rows.wait_start_ns[row]), comm_end_ns),
    )
