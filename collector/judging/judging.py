# SPDX-License-Identifier: Apache-2.0
"""Which iterations stand out, as their rows settle, and the verdicts on them, each published once."""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from collector.host.iteration_rows import Accounted, IterationRows
from collector.host.session import Session
from collector.host.stage import Settled
from collector.host.tables import Lately, Tables
from collector.judging.job_steps import STEP, JobSteps, steps_in_utc
from collector.view.job_views import Jobs
from netmon.dl.classify import Traffic
from netmon.dl.timemap import TimeMap, TimeMaps
from netmon.dl.transfers import COLUMNS, partners, process_numbers
from netmon.dl.verdict import (
    Link,
    LinkTotals,
    Whose,
    host_part,
    in_cells,
    judge_input,
    matrix,
    most_relevant,
    sentence,
    times_of,
    verdict_on,
    wanted_times,
    worth_reporting,
)
from netmon.dl.verdict.by_transfers import SENT, PostedRow, Transfers, with_posted
from netmon.dl.verdict.connections import COLUMNS as SAID_COLUMNS
from netmon.dl.verdict.connections import SAID, no_tcp_rows
from netmon.dl.verdict.evidence import Numbers, Steps, with_waits
from netmon.dl.verdict.host_part import COUNTED, nobody_counts
from netmon.dl.verdict.other_ends import NAMED, job_flow, own_transfers, with_ends
from netmon.evidence import GROUP_COLUMNS, SAME_STEP_NS, UNKNOWN
from netmon.rate_limiter import TimeLimiter
from netmon.records import Columns, Direction, Table, joined
from netmon.views import Cause, Verdict

# --- Recent reports of NCCL's proxies and RDMA devices' providers, as verdicts use them.

_POSTED = ("session", "job", "rank", "process", "container", "rdma_device", "verb", "bytes", "start_ns", "end_ns")


class RecentTransfers(NamedTuple):
    """Rows of all jobs, times in the clocks of their hosts. Immutable; `in_utc` converts one job's rows."""

    rows: Lately = Lately()  # of `transfers`
    posted: Lately = Lately()  # of `rdma`
    host: Lately = Lately()
    jobs: Sequence[str] = ()  # by their numbers

    def in_utc(
        self, job: str, size: int, maps: TimeMaps, there: npt.NDArray[np.int64], hosts: Mapping[int, str], error_ns: int
    ) -> Transfers | None:
        """What a job's ranks have sent; None: nothing is known of it.

        there: the sessions of the maps; size: of the job; hosts: by session; error_ns: of the clocks.
        """
        numbers = [number for number, name in enumerate(self.jobs) if name == job]
        rows = self.rows.all(("session", "pid", "queued_ns", *COLUMNS), ("job", numbers[0])) if numbers else None
        if rows is not None:
            rows = rows.take(np.flatnonzero(np.isin(rows["session"], there) & (rows["rank"] >= 0)))
        if rows is None or not len(rows):
            return None
        of = np.searchsorted(there, rows["session"])
        known = {name: rows[name].astype(np.int64) for name in ("queued_ns", *COLUMNS)}
        for name in ("start_ns", "end_ns"):
            known[name] = maps.utcs(of, known[name])
        known["queued_ns"] = np.where(known["queued_ns"] >= 0, maps.utcs(of, known["queued_ns"]), UNKNOWN)
        known["process"] = process_numbers(rows["session"], rows["pid"])
        known["job"] = np.zeros(len(rows), np.int64)
        known["peer_rank"] = partners(known, {0: size}).rank
        sent = np.empty(len(rows), SENT)
        for name in SENT.names or ():
            sent[name] = known["peer_rank" if name == "peer" else name]
        return with_posted(Transfers(sent, clock_error_ns=error_ns), self._posted(maps, there, hosts), job)

    def counted_in_utc(
        self, maps: TimeMaps, there: npt.NDArray[np.int64], hosts: Mapping[int, str], host: str
    ) -> Table:
        """The counters of a host's NICs, dtype COUNTED."""
        names = COUNTED.names or ()
        rows = self.host.all(("session", *names), ("rank", UNKNOWN))
        sessions = [session for session in there.tolist() if hosts.get(session) == host]
        if rows is None:
            return nobody_counts(host)
        rows = rows.take(np.flatnonzero(np.isin(rows["session"], sessions)))
        of, found = np.searchsorted(there, rows["session"]), np.empty(len(rows), COUNTED)
        for name in names:
            found[name] = maps.utcs(of, rows[name].astype(np.int64)) if name in ("start_ns", "end_ns") else rows[name]
        return found

    def _posted(self, maps: TimeMaps, there: npt.NDArray[np.int64], hosts: Mapping[int, str]) -> list[PostedRow]:
        """Posted rows of all processes on the job's hosts."""
        rows = self.posted.all(_POSTED)
        if rows is None:
            return []
        rows = rows.take(np.flatnonzero(np.isin(rows["session"], there)))
        of = np.searchsorted(there, rows["session"])
        times = [maps.utcs(of, rows[name].astype(np.int64)).tolist() for name in ("start_ns", "end_ns")]
        each = zip(*(rows[name].tolist() for name in _POSTED[:-2]), *times, strict=True)
        return [
            PostedRow(
                *(hosts.get(session, ""), device, verb, self.jobs[job] if job >= 0 else "", rank),
                *(f"{process} ({container})" if container else process, start_ns, end_ns, bytes_),
            )
            for session, job, rank, process, container, device, verb, bytes_, start_ns, end_ns in each
        ]


def recent_transfers(tables: Tables) -> RecentTransfers:
    rows, posted, host = (tables.evidence.lately[name].copy() for name in ("transfers", "rdma", "host"))
    return RecentTransfers(rows, posted, host, tuple(tables.flows.jobs))


# --- Which iterations stand out, as their rows settle, and the verdicts on them, each published once.

_Numbers = npt.NDArray[np.int64]

# --- The rows of the last seconds, of all hosts, as the host stage received them, with the columns of verdicts.

KEPT_S = 20.0
MOST_ROWS = 1_500_000
"""About 50 MB. Of many hosts, or very busy ones, less than KEPT_S is kept."""

_AHEAD_NS = 2_000_000_000

RECENT = np.dtype(
    [("session", "<i4"), ("flow", "<i4"), ("start_ns", "<i8")]
    + [(name, "<u4") for name in ("bucket_ns", "wire_bytes", "payload_bytes")]
)
"""As in ARRIVED."""


Wanted = Callable[[npt.NDArray[np.int32], _Numbers, npt.NDArray[np.uint32]], npt.NDArray[np.bool_]]


def _all(session: npt.NDArray[np.int32], *_: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
    return np.ones(len(session), np.bool_)


class Part(NamedTuple):
    """The rows of one tick. Immutable."""

    arrived_ns: int  # UTC, by the collector's clock
    rows: Columns  # of RECENT


class RecentRows:
    """Rows of RECENT, oldest first. Their class may still change; it is not used here."""

    def __init__(self) -> None:
        self._parts: deque[tuple[float, Part]] = deque()
        self._count = 0

    def add(self, settled: Settled) -> None:
        now, utc_ns = time.monotonic(), time.time_ns()
        for rows in settled.arrived:
            if len(rows):
                own = Columns({name: rows[name].astype(RECENT[name]) for name in RECENT.names or ()})
                self._parts.append((now, Part(utc_ns, own)))
                self._count += len(rows)
        while self._parts and (self._count > MOST_ROWS or self._parts[0][0] < now - KEPT_S):
            self._count -= len(self._parts.popleft()[1].rows)

    def parts(self) -> list[Part]:
        return [part for _, part in self._parts]


def of_sessions(parts: Sequence[Part], session_indices: list[int], since_ns: int = 0, wanted: Wanted = _all) -> Columns:
    """The rows of some sessions, without most of those from before `since_ns` (UTC); may run on a thread.

    A row arrives after its start, except for clock errors, which are below _AHEAD_NS. wanted: which of some
    rows are to be returned, by their sessions, starts (mono) and widths.
    """
    theirs = np.zeros(max(session_indices, default=0) + 2, np.bool_)
    theirs[session_indices] = True
    chosen = []
    for rows in (part.rows for part in parts if part.arrived_ns >= since_ns - _AHEAD_NS):
        own = np.flatnonzero(theirs[np.minimum(rows["session"], len(theirs) - 1)])
        if len(own):
            chosen.append((rows, own))
    if not chosen:
        return Columns.zeros(0, RECENT)
    columns = (
        np.concatenate([rows[name][own] for rows, own in chosen]) for name in ("session", "start_ns", "bucket_ns")
    )
    good = np.split(wanted(*columns), np.cumsum([len(own) for _, own in chosen])[:-1])
    return joined(rows.take(own[kept]) for (rows, own), kept in zip(chosen, good, strict=True))


_log = logging.getLogger(__name__)
_T = TypeVar("_T")

# --- One iteration that stands out, with all rows about it: collected at once, judged when there is CPU time.

_MOST_RANKS = 32  # of a verdict that viewers see one by one
_MOMENTS = ("start_ns", "end_ns", "comm_start_ns", "comm_end_ns")


class JobEvidence(NamedTuple):
    """Rows with `start_ns` and `end_ns` in the clocks of their hosts."""

    rows: Table
    session: _Numbers  # of each row: of its session


_CALLS = np.dtype([(name, "<i8") for name in GROUP_COLUMNS])


@dataclass(frozen=True)
class Case:
    """One iteration with the rows about it. Immutable, so a thread can judge it."""

    job: str
    number: int
    size: int
    relative: bool
    steps: Table  # dtype STEP
    received: Mapping[int, int]  # bytes of the rank that received most, by number
    hosts: Mapping[int, str]  # names by index of session
    clocks: Mapping[int, TimeMap]  # by index of session; those of sessions that are there
    clock_error_ns: int
    links: Mapping[int, Link]  # by number, of those sessions
    parts: Sequence[Part]
    whose: Sequence[Whose]  # distinct
    waited: JobEvidence  # of WAITED
    said: JobEvidence  # of SAID
    calls: JobEvidence  # what ranks called in steps, of _CALLS
    link_of_flow: _Numbers  # by flow: number of its link
    of_flow: _Numbers  # by flow: index into whose, −1: of another session
    transfers: RecentTransfers

    def judged(self) -> tuple[Verdict, Callable[[], str]] | None:
        """The verdict, and a function that says in which group ranks waited, which takes as long again; None where the
        verdict is not worth reporting, or the rows it needs are gone.

        Blocks for some milliseconds; may run on a thread.
        """
        there = np.array(sorted(self.clocks), np.int64)
        rows = self.steps[np.isin(self.steps["session"], there)]
        if self.number not in rows["number"]:
            return None
        maps = TimeMaps([self.clocks[session_index] for session_index in there.tolist()])
        of = np.searchsorted(there, rows["session"])
        utc = np.stack([maps.utcs(of, np.ascontiguousarray(rows[name])) for name in _MOMENTS])
        hosts = [self.hosts[session_index] for session_index in rows["session"].tolist()]
        steps = steps_in_utc(rows, utc, hosts, self.size, self.received)
        calls = _in_utc(self.calls, maps, there)
        steps = with_waits(steps, calls) if calls is not None else steps
        table = matrix(steps)
        times = wanted_times(table, [self.number])
        link_totals = self._link_totals(maps, there, times)
        sent = partial(self.transfers.in_utc, self.job, self.size, maps, there, self.hosts, self.clock_error_ns)
        counted = partial(self.transfers.counted_in_utc, maps, there, self.hosts)
        one = judge_input(self.job, table, link_totals, self.number, sent, counted)
        verdict = verdict_on(one, steps)
        if not worth_reporting(one, verdict):
            return None
        ranks = times_of(one, steps, verdict) if verdict.excess_ns > 0 else ()
        verdict = replace(verdict, relative=self.relative, ranks=most_relevant(ranks, _MOST_RANKS))
        return verdict, partial(self._group_waits, verdict, steps, calls)

    def _group_waits(self, verdict: Verdict, steps: Steps, calls: Table | None) -> str:
        if calls is None:
            return ""
        from netmon.dl.groups import calls_of, group_waits  # imports pandas: only needed where calls are reported

        ends = {"rank": steps.rank, "end_ns": steps.end_ns, "iteration": steps.number}
        return group_waits(calls_of(calls), ends, verdict, 2 * self.clock_error_ns)

    def _link_totals(self, maps: TimeMaps, there: _Numbers, times: list[tuple[int, int]]) -> LinkTotals:
        begins, ends = disjoint(times)

        def inside(session: npt.NDArray[np.int32], start: Numbers, width: npt.NDArray[np.uint32]) -> Any:
            """Whether each row overlaps one of the times; most do not."""
            begin = maps.utcs(np.searchsorted(there, session), start)
            return begins[np.searchsorted(ends, begin, "right")] < begin + width

        rows = of_sessions(self.parts, there.tolist(), int(begins[0]) - self.clock_error_ns, inside)
        rows = rows[rows["flow"] < len(self.of_flow)]
        numbers = np.array(sorted(self.links), np.int64)
        rows = rows[np.isin(self.link_of_flow[rows["flow"]], numbers)]
        flow, width = rows["flow"], rows["bucket_ns"].astype(np.int64)
        start = maps.utcs(np.searchsorted(there, rows["session"]), rows["start_ns"])
        cells = in_cells(
            *(np.searchsorted(numbers, self.link_of_flow[flow]), self.of_flow[flow], start, width),
            *(rows[name].astype(np.int64) for name in ("wire_bytes", "payload_bytes")),
        )
        links = [self.links[number] for number in numbers.tolist()]
        waited, said = (_in_utc(evidence, maps, there) for evidence in (self.waited, self.said))
        widest = int(width.max(initial=0))
        return LinkTotals(links, self.whose, cells[cells["of"] >= 0], self.clock_error_ns, waited, said, widest)


def disjoint(times: Sequence[tuple[int, int]]) -> tuple[Numbers, Numbers]:
    """Beginnings and ends of the times, ascending, overlapping ones merged; the last beginning is never reached."""
    found: list[list[int]] = []
    for since, until in sorted(times):
        if found and since <= found[-1][1]:
            found[-1][1] = max(found[-1][1], until)
        else:
            found.append([since, until])
    never = np.iinfo(np.int64).max
    return np.array([*(since for since, _ in found), never]), np.array([until for _, until in found], np.int64)


def _in_utc(evidence: JobEvidence, maps: TimeMaps, there: _Numbers) -> Table | None:
    """The rows of the sessions that are there; None where there are none."""
    own = np.flatnonzero(np.isin(evidence.session, there))
    rows, of = evidence.rows[own], np.searchsorted(there, evidence.session[own])
    for name in ("start_ns", "end_ns"):
        rows[name] = maps.utcs(of, np.ascontiguousarray(rows[name]))
    return rows if len(rows) else None


_MOST_JOBS = 4_096
_KEPT_S = 3_600.0  # a job without an iteration
_MOST_WAITING = 64  # iterations to judge by recent rows: the newest; the others by the dataset
_LONGEST_S = 30.0  # an iteration is judged by recent rows so long; later by the dataset
_MOST_LATE = 1_024  # iterations to judge by the dataset
_ABOUT_NS = 20_000_000_000  # an iteration ended at most so long before it was due
_STORED_S = 10.0  # after it was due, the dataset has all rows of an iteration
_CPU_SHARE = 0.3  # of a core, for verdicts
_WAIT_S = 0.8  # after an iteration's last mark: all hosts have sent rows, new flows' owners and TCP's counters by then
_CHANGE_S = 6.0  # at most, until it is known whether the job changed its pace with an iteration
_COMPLETE_S = 1.6  # at most, after it was due, until hosts have reported all of an iteration: they report once a second
_SURE = 0.6  # confidence of a verdict that waits only for ranks' calls, and not as long
_SURE_S = 1.0
_NOT_SURE = (Cause.UNKNOWN, Cause.LOSS)  # a stopped rank may have caused a silence after lost packets
_FINISH_S = 2.0
_MOST_CALLS = 200_000  # rows of calls of a job's ranks: the newest
_SAID = ("start_ns", "end_ns", *SAID_COLUMNS.values())
_SAVED_NS = 1_000_000_000  # of unused CPU time


class _Due(NamedTuple):
    """An iteration to judge, and the recent rows at the time it was due."""

    since_s: float
    job: str
    number: int
    parts: list[Part]
    first_s: float  # when it was due for the first time
    tables: tuple[str, ...] = ()  # that may have more of its rows later
    until_s: float = 0.0  # how long it waits for them


class _Late(NamedTuple):
    """An iteration to judge by the dataset."""

    since_s: float
    job: str
    number: int
    due_ns: int  # UTC


_EVIDENCE = ("host", "transfers", "collectives")
"""Tables whose rows arrive some time after an iteration has ended."""

FromDataset = Callable[[str, int, int], Sequence[Verdict]]
"""Verdicts on a job's iterations that stand out and overlap a time (UTC; since, until), by the dataset; blocks."""


class Judging:
    """Verdicts of one worker. Runs on its event loop and judges on a thread."""

    def __init__(
        self,
        tables: Tables,
        sessions: Mapping[int, Session],
        viewed: Jobs,
        store: Callable[[Verdict], None],
        from_dataset: FromDataset,
    ) -> None:
        """tables: of all sessions. sessions: by index. viewed, store: receive each verdict, on the loop."""
        self._tables, self._sessions, self._wanted = tables, sessions, tables.settings.verdicts == "all"
        self._viewed, self._store, self._from_dataset = viewed, store, from_dataset
        self._rows = RecentRows()
        self._jobs: dict[str, JobSteps] = {}
        self._coming: deque[tuple[float, str, int]] = deque()  # when its rows are there, job, number
        self._may_change: list[tuple[float, str, int]] = []  # the same, of those that may be a change
        self._due: deque[_Due] = deque()
        self._again: list[_Due] = []  # judged once, but waiting for more rows
        self._late: deque[_Late] = deque(maxlen=_MOST_LATE)
        self._working: asyncio.Task[None] | None = None
        self._cpu_time = TimeLimiter(_CPU_SHARE, _SAVED_NS)

    def add_ended(self, rows: IterationRows) -> None:
        """Add ended iterations."""
        if not self._wanted:
            return
        now = time.monotonic()
        for name, own in rows.by_job():
            job, part = self._jobs.pop(name, None) or JobSteps(), rows.take(own)
            self._jobs[name] = job  # the job with the newest iteration is last
            job.last_step_s = now
            hosts = {
                session_index: self._sessions[session_index].hello.host for session_index in set(part.session.tolist())
            }
            self._coming.extend((now + _WAIT_S, name, number) for number in job.add(hosts, part))

    def add_accounts(self, accounted: Accounted) -> None:
        """Add the settled rows of iterations."""
        shared = accounted.rows.take(np.flatnonzero(accounted.tallies["node_shared"]))
        for name, own in shared.by_job():
            if name in self._jobs:
                self._jobs[name].were_shared(shared.take(own))
        received = accounted.tallies["dl_rx_bytes"] - accounted.tallies["dl_control_rx_bytes"]
        for name, own in accounted.rows.by_job():
            if name in self._jobs:
                self._jobs[name].were_accounted(accounted.rows.take(own), received[own])

    def tick(self, settled: Settled) -> None:
        """Add the final rows of a tick, and judge due iterations unless one is being judged."""
        if not self._wanted:
            return
        self._rows.add(settled)
        self._forget_old()
        now = time.monotonic()
        self._are_due(now)
        if (self._due or self._late_ones_are_stored(now)) and self._cpu_time.allows():
            self._begin()

    def _are_due(self, now: float) -> None:
        while self._coming and self._coming[0][0] <= now:
            self._may_change.append(self._coming.popleft())
        waiting, self._may_change, parts = self._may_change, [], self._rows.parts()
        for one in waiting:
            since_s, name, number = one
            job = self._jobs.get(name)
            if job and job.may_change(number) and now < since_s + _CHANGE_S:
                self._may_change.append(one)
            else:
                self._due.append(_Due(now, name, number, parts, now))
        again, self._again = self._again, []
        for due in again:
            if now < due.until_s and self._postpone(due):
                self._again.append(due)
            else:
                self._due.append(due._replace(since_s=now, parts=parts))
        while self._due and (len(self._due) > _MOST_WAITING or self._due[0].since_s < now - _LONGEST_S):
            old = self._due.popleft()
            due_ns = time.time_ns() - int((now - old.since_s) * 1e9)
            self._late.append(_Late(old.since_s, old.job, old.number, due_ns))

    def _late_ones_are_stored(self, now: float) -> bool:
        return bool(self._late) and self._late[0].since_s < now - _STORED_S

    def forget(self, session_index: int) -> None:
        for job in self._jobs.values():
            job.host_of.pop(session_index, None)

    def _begin(self) -> None:
        if self._working is None or self._working.done():
            with contextlib.suppress(RuntimeError):  # the caller has no event loop
                loop = asyncio.get_running_loop()
                self._working = loop.create_task(self._judge())

    @property
    def jobs_with_steps(self) -> int:
        return len(self._jobs)

    async def finish(self) -> None:
        """Judge what is due, as far as time allows, because the collector stops."""
        until = time.monotonic() + _FINISH_S
        self._are_due(time.monotonic() + _WAIT_S + _CHANGE_S)
        while (self._due or (self._working and not self._working.done())) and time.monotonic() < until:
            self._begin()
            assert self._working
            await asyncio.wait((self._working,), timeout=_FINISH_S)

    async def _judge(self) -> None:
        while self._due:
            due = self._due.pop()  # the newest first: viewers want that one
            job, number, parts = due.job, due.number, due.parts
            try:
                case = self._case(job, number, parts)
                if case is None:
                    continue
                judged, took_ns = await asyncio.to_thread(_timed, case.judged)
                self._cpu_time.spend(took_ns)
                if later := self._later(due, judged[0] if judged else None):
                    self._again.append(later)
                elif judged:
                    verdict, group_waits = judged
                    waits, took_ns = await asyncio.to_thread(_timed, group_waits)
                    self._cpu_time.spend(took_ns)
                    self._publish(job, number, self._with_ends(replace(verdict, group_waits=waits), parts))
            except Exception:  # rows are stored without verdicts, too
                _log.exception(f"cannot judge iteration {number} of job {job}")
            if not self._cpu_time.allows():
                return
        if self._late_ones_are_stored(time.monotonic()):  # only one: newer ones have priority
            late = self._late.popleft()
            try:
                span = late.due_ns - _ABOUT_NS, late.due_ns
                found, took_ns = await asyncio.to_thread(_timed, partial(self._from_dataset, late.job, *span))
                self._cpu_time.spend(took_ns)
                self._publish(late.job, late.number, next((v for v in found if v.iteration == late.number), None))
            except Exception:
                _log.exception(f"cannot judge iteration {late.number} of job {late.job} by the dataset")

    def _later(self, due: _Due, verdict: Verdict | None) -> _Due | None:
        """The same, where the verdict should wait for rows that hosts have not sent yet; else None."""
        sure = verdict is not None and verdict.cause not in _NOT_SURE and verdict.confidence >= _SURE
        tables, most_s = (_EVIDENCE[2:], _SURE_S) if sure else (_EVIDENCE, _COMPLETE_S)
        due = due._replace(tables=tables, until_s=due.first_s + most_s)
        return due if time.monotonic() < due.until_s and self._postpone(due) else None

    def _postpone(self, due: _Due) -> bool:
        """Whether a host has not yet sent all bytes of an iteration, or, if it has rows of the job's ranks in the due
        tables, all rows of the iteration there."""
        job = self._jobs.get(due.job)
        steps = job.of(due.number) if job else np.zeros(0, STEP)
        for session_index, end_ns in zip(steps["session"].tolist(), steps["end_ns"].tolist(), strict=True):
            session = self._sessions.get(session_index)
            if session and session.window.horizon_ns < end_ns:
                return True
        for table in due.tables if len(steps) else ():
            rows = self._of_job(table, due.job, ("rank", "end_ns"))
            if rows is None:
                continue
            at = np.minimum(np.searchsorted(steps["rank"], rows["rank"]), len(steps) - 1)
            own, known_ns = steps["rank"][at] == rows["rank"], np.zeros(len(steps), np.int64)
            np.maximum.at(known_ns, at[own], rows["end_ns"][own])
            if ((known_ns > 0) & (known_ns < steps["end_ns"] - SAME_STEP_NS)).any():
                return True
        return False

    def _publish(self, job: str, number: int, verdict: Verdict | None) -> None:
        if verdict is not None and job in self._jobs and self._jobs[job].mark_published(number):
            verdict = replace(verdict, reported_ns=time.time_ns())
            self._viewed.judged(verdict)
            self._store(verdict)
            if verdict.cause == Cause.CHANGE:
                _log.info(sentence(verdict))

    def _with_ends(self, verdict: Verdict, parts: Sequence[Part]) -> Verdict:
        """The verdict with the user of the culprit's process, and the ends of its bytes."""
        flows, state = self._tables.flows, self._tables.flows.state
        if verdict.cause not in NAMED:
            return verdict
        named = [number for number, one in enumerate(flows.traffic_owners) if one.name == verdict.culprit]
        there = sorted(index for index, session in self._sessions.items() if session.hello.host == verdict.host)
        links = [
            number
            for index in there
            for number, link in _links(self._sessions[index])
            if (link.interface, link.direction) == (verdict.interface, verdict.direction)
        ]
        own = np.flatnonzero(np.isin(self._links_of_flows(), links) & (state["session"] >= 0))
        own = own[np.isin(state["traffic_owner"][own], named)]
        known = [(int(at), flow) for at in own if (flow := flows.flows[int(at)]) and not flow.members]
        if not known:
            return verdict
        maps = TimeMaps([self._sessions[index].window.alignment.map for index in there])

        def meanwhile(session: npt.NDArray[np.int32], start: _Numbers, width: npt.NDArray[np.uint32]) -> Any:
            begin = maps.utcs(np.searchsorted(there, session), start)
            return (begin < verdict.end_ns) & (begin + width > verdict.start_ns)

        rows = of_sessions(parts, there, verdict.start_ns, meanwhile)
        sent_bytes = np.bincount(rows["flow"], rows["payload_bytes"], len(state))[[at for at, _ in known]]

        def described(index: int) -> tuple[str, str]:
            flow = known[index][1]
            address = flow.dst if verdict.direction == Direction.TX else flow.src
            return flow.owner.user, flows.host_at.get(address) or address

        return with_ends(verdict, sent_bytes, described)

    def _case(self, name: str, number: int, parts: list[Part]) -> Case | None:
        job = self._jobs.get(name)
        if job is None:
            return None
        sessions = {
            session_index: self._sessions[session_index]
            for session_index in job.host_of
            if session_index in self._sessions
        }
        whose, of_flow = self._whose(name, job.size, list(sessions))
        return Case(
            *(name, number, job.size, job.relative, job.rows(), job.received, dict(job.host_of)),
            clocks={session_index: session.window.alignment.map for session_index, session in sessions.items()},
            clock_error_ns=max((s.window.alignment.error_ns for s in sessions.values()), default=0),
            links={number: link for session in sessions.values() for number, link in _links(session)},
            parts=parts,
            whose=whose,
            waited=self._waited(name),
            said=self._said(name, list(sessions), whose, of_flow),
            calls=self._calls(name),
            link_of_flow=self._links_of_flows(),
            of_flow=of_flow,
            transfers=recent_transfers(self._tables),
        )

    def _links_of_flows(self) -> _Numbers:
        state, sessions = self._tables.flows.state, self._tables.sessions.table
        found: _Numbers = sessions["first_link"][np.maximum(state["session"], 0)] + state["link"]
        return found

    def _waited(self, job: str) -> JobEvidence:
        """What kept the job's ranks from running, as the hosts reported lately."""
        rows = self._of_job("host", job, host_part.COLUMNS)
        if rows is None:
            return JobEvidence(host_part.nothing_waited(), np.empty(0, np.int64))
        waited = host_part.waited_rows({name: rows[name] for name in host_part.COLUMNS}, len(rows))
        return JobEvidence(waited, rows["session"].astype(np.int64))

    def _of_job(self, table: str, job: str, names: Sequence[str]) -> Columns | None:
        """`session` and these columns of a job's rows of evidence that came lately; None: there are none."""
        return self._tables.evidence.lately[table].all(("session", *names), ("job", self._tables.flows.job(job)))

    def _calls(self, job: str) -> JobEvidence:
        """What the job's ranks called in their last steps, as far as their agents report it."""
        rows = self._of_job("collectives", job, GROUP_COLUMNS)
        if rows is None:
            return JobEvidence(np.zeros(0, _CALLS), np.empty(0, np.int64))
        rows = rows[-_MOST_CALLS:]
        calls = np.empty(len(rows), _CALLS)
        for name in GROUP_COLUMNS:
            calls[name] = rows[name]
        return JobEvidence(calls, rows["session"].astype(np.int64))

    def _said(self, job: str, session_indices: Sequence[int], whose: Sequence[Whose], of_flow: _Numbers) -> JobEvidence:
        """What TCP said lately of the job's connections, on some sessions. of_flow: index into whose, by flow."""
        rows = self._tables.evidence.lately["transport"].all(("session", "flow_id", *_SAID))
        if rows is None:
            return JobEvidence(no_tcp_rows(), np.empty(0, np.int64))
        rows = rows.take(np.flatnonzero(np.isin(rows["session"], session_indices)))
        flow = self._tables.flows.keys.find(rows["session"], rows["flow_id"])
        of = np.where(flow >= 0, of_flow[flow], -1)
        ours = np.array([*(one.job == job for one in whose), False], np.bool_)  # the last: nobody's
        own = np.flatnonzero(ours[of])
        said = np.empty(len(own), SAID)
        said["of"] = of[own]
        for name, column in {"start_ns": "start_ns", "end_ns": "end_ns", **SAID_COLUMNS}.items():
            said[name] = rows[column][own]
        return JobEvidence(said, rows["session"][own].astype(np.int64))

    def _whose(self, job: str, size: int, session_indices: Sequence[int]) -> tuple[list[Whose], _Numbers]:
        """Owners of the flows of some sessions; of the job's flows, also their peers. size: of the job; 0: unknown."""
        flows, state = self._tables.flows, self._tables.flows.state
        own = np.flatnonzero(np.isin(state["session"], session_indices))
        found = np.full(len(state), -1, np.int64)
        control = state["traffic"][own] == Traffic.CONTROL
        traffic_owners, of_owner = np.unique(state["traffic_owner"][own], return_inverse=True)
        owners = [flows.traffic_owners[traffic_owner] for traffic_owner in traffic_owners.tolist()]
        whose = [Whose(who.job, who.rank, -1, False, "" if who.job else who.name) for who in owners]
        found[own] = of_owner
        numbers: dict[Whose, int] = {}
        ours = np.array([who.job == job for who in owners], np.bool_)[of_owner] if len(owners) else control
        of_job = [at for at in np.flatnonzero(ours).tolist() if flows.flows[own[at]] is not None]
        described = [flow for at in of_job if (flow := flows.flows[own[at]])]
        peers = flows.ends.ranks(own[of_job].tolist(), described)
        transfers = own_transfers([*map(job_flow, described, peers)], size)
        for at, peer, transfer in zip(of_job, peers, transfers, strict=True):
            who = owners[of_owner[at]]
            named = (transfer.name, transfer.far) if transfer else ("", "")
            one = Whose(who.job, who.rank, peer, bool(control[at]), *named)
            found[own[at]] = numbers.setdefault(one, len(whose) + len(numbers))
        return [*whose, *numbers], found

    def _forget_old(self) -> None:
        before = time.monotonic() - _KEPT_S
        while self._jobs:
            first = next(iter(self._jobs))
            if len(self._jobs) <= _MOST_JOBS and self._jobs[first].last_step_s >= before:
                return
            del self._jobs[first]


def _timed(judged: Callable[[], _T]) -> tuple[_T, int]:
    """The result, and the CPU time that it took (ns)."""
    began = time.thread_time_ns()
    return judged(), time.thread_time_ns() - began


def _links(session: Session) -> list[tuple[int, Link]]:
    window, host = session.window, session.hello.host
    links = window.links
    return [
        (window.first_link + n, Link(host, links.interface(n).name, links.direction(n), int(links.capacity_bps[n])))
        for n in range(len(links))
    ]
