# SPDX-License-Identifier: Apache-2.0
"""Which jobs stand still now, by the agents' reports of quiet ranks."""

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from collector.host.session import Session
from collector.host.tables import Tables
from netmon.dl.hangs import Known, RankNow, ended, is_inactive, judge, line
from netmon.dl.rank_activity import WAITED, Work
from netmon.evidence import UNKNOWN, ProcessState, WaitsFor
from netmon.records import Columns, Direction, Table, empty
from netmon.units import format_moment
from netmon.views import RECENT_HANGS, Hang, Hung

_log = logging.getLogger(__name__)

_EVERY_NS = 400_000_000  # between two checks of the jobs with waiting ranks
_ROWS_NS = 8_000_000_000  # between two rows of a rank, at most
_SILENT_S = 5.0  # after its last batch, while others send, a host is silent
_COLLECTIVE_NS = 2_500_000_000  # of a wait, in which its ranks may still transfer for the same call
_FLOWING_NS = 5_000_000_000  # a job transfers if it sent something in this time
_MOST_JOBS, _MOST_RANKS, _MOST_WORKS = 1_024, 1 << 14, 64
_REPEATED = 3  # pauses of a rank that are as long: then that pause is expected to recur
_STOPPED_NS = 1_500_000_000  # from the first report that has a rank stopped to another one: then it counts
_CUT_NS = 2_000_000_000  # after the beginning of a wait: a retransmission shows that data did not arrive
_CUT_AGE_NS = 8_000_000_000  # the kernel doubles the time between retransmissions
_FORGOTTEN_NS = 3_600_000_000_000  # a job without a report for so long
_SAME_NS = 1_000_000  # between two times of one call: what is known of a clock changes
_LATE_NS = 3_000_000_000  # after a rank has left, its last report may arrive
_PROGRESS_CPU, _PROGRESS_IO_BPS = 0.1, 65_536  # of a core; bytes per second: less is no progress
_MOST_IDLE_CPU, _ABOVE_IDLE = 0.4, 1.5  # Horovod's ranks compute while they wait: as much is no progress
_NO_WAIT = (Hung.CUT_OFF, Hung.NOT_ENDING)
_SAYS_MORE = (Hung.CUT_OFF, Hung.GONE, Hung.HOST_SILENT)  # than that a rank is cut off
_CHANGING = ("what", "why", "waiting", "missing")  # of a hang that has not ended
_WORK = ("group", "group_rank", "group_size", "operation", "sequence", "position", "peer", "bytes")
_OF_CONNECTION = ("session", "flow_id", "end_ns", "sent_bytes", "retransmitted_bytes", "timeouts")
_OF_ROW = ("session", "job", "rank", "pid", "start_ns", "end_ns")


_SENT = np.dtype([(name, "<i8") for name in ("flow", "until_ns", "payload_bytes")])
"""Payload of a rank's flow until a time (mono, of its host). flow: its index, ascending."""


@dataclass
class _Job:
    ranks: dict[int, RankNow] = field(default_factory=dict)
    pids: dict[int, int] = field(default_factory=dict)
    sessions: dict[int, int] = field(default_factory=dict)
    reported_ns: int = 0
    longest_ns: int = 0  # that a rank has waited, before it resumed
    sent: Table = field(default_factory=lambda: empty(_SENT))
    sent_bps: dict[int, float] = field(default_factory=dict)  # by rank: of its flows that carry something, the mean
    idle_cpu: dict[int, float] = field(default_factory=dict)  # by waiting rank: share of a core
    left_ns: dict[int, int] = field(default_factory=dict)  # by rank that is not there any more
    flowed_ns: dict[int, int] = field(default_factory=dict)  # by rank: when it last sent more than those that wait do
    any_flow_ns: int = 0  # when any rank sent something
    hang: Hang | None = None
    wait: Hang | None = None  # that may become one
    sure_ns: int = 0  # when it last hung for a reason that no wait ends: waits of that time do not count
    pauses: dict[int, list[int]] = field(default_factory=dict)  # by rank: the longest between two calls, none a wait
    recent: deque[Hang] = field(default_factory=lambda: deque(maxlen=RECENT_HANGS))  # newest first; ended

    def add_wait(self, before: RankNow, end_ns: int) -> None:
        """Count the wait, or the pause, of a rank that was quiet until end_ns. before: the rank as it was then."""
        if before.since_ns < self.sure_ns:
            return
        waited = [work.begun_ns for work in before.works if work.state == WAITED]
        if waited:
            self.longest_ns = max(self.longest_ns, end_ns - min(waited))
        else:
            pauses = [*self.pauses.get(before.rank, ()), end_ns - before.since_ns]
            self.pauses[before.rank] = sorted(pauses)[-_REPEATED:]

    def least_cpu(self, rank: int, in_disk_io: bool) -> float:
        """Of a core, above which this rank makes progress: more than the others that wait.

        While its first thread waits for a disk, its other ones may look for work as theirs do, however much that takes.
        """
        others = _ABOVE_IDLE * max((share for number, share in self.idle_cpu.items() if number != rank), default=0.0)
        return max(_MOST_IDLE_CPU, others) if in_disk_io else max(_PROGRESS_CPU, min(_MOST_IDLE_CPU, others))

    @property
    def pause_ns(self) -> int:
        """Longest time between two calls of a rank that occurred at least _REPEATED times."""
        return max((own[0] for own in self.pauses.values() if len(own) == _REPEATED), default=0)

    @property
    def waits(self) -> bool:
        return bool(_waiting(self.ranks)) or any(one.state is ProcessState.GONE for one in self.ranks.values())


class Hangs:
    """The hangs of all jobs of one collector. Runs on its event loop."""

    def __init__(
        self,
        tables: Tables,
        sessions: Mapping[int, Session],
        show: Callable[[str, tuple[Hang, ...]], None],
        store: Callable[[Hang], None],
        silent_s: Callable[[float], float],
    ) -> None:
        """show: called with a job's hangs, newest first, and a wait that may become one, whenever they change; store:
        called with a hang when it is reported and when it ends; silent_s: see Intake."""
        self._tables, self._sessions, self._show, self._store = tables, sessions, show, store
        self._silent_s = silent_s
        self._jobs: dict[str, _Job] = {}
        self._over: dict[str, tuple[int, dict[int, int]]] = {}  # since when all ranks have left; their processes
        self._checked_ns = 0

    def tick(self, newest: Collection[Session]) -> None:
        """Process the reports that have arrived. newest: the current session of each host."""
        now_ns = time.time_ns()
        for rows in self._tables.evidence.take_waits():
            self._take(rows, now_ns)
        waiting = [name for name, job in self._jobs.items() if job.waits or job.hang or job.wait]
        if not waiting or now_ns - self._checked_ns < _EVERY_NS:
            return
        self._checked_ns = now_ns
        present, received = self._present(newest)
        for name in waiting:
            try:
                self._check(name, self._jobs[name], present, received, now_ns)
            except Exception:  # rows, verdicts and other jobs do not need it
                _log.exception(f"cannot judge what job {name} waits for")
                del self._jobs[name]
                self._show(name, ())

    def _take(self, rows: Columns, now_ns: int) -> None:
        names, sessions = self._tables.flows.jobs, self._tables.sessions
        session = rows["session"].astype(np.int64)
        own = {name: rows[name].tolist() for name in rows.names}
        own["job"] = [names[job] for job in own["job"]]
        utc_ns = sessions.utc(session, rows["end_ns"]) - rows["end_ns"]
        groups: dict[tuple[int, ...], list[int]] = {}
        for row, key in enumerate(zip(*(own[name] for name in _OF_ROW), strict=True)):
            groups.setdefault(key, []).append(row)
        for some in groups.values():
            first = some[0]
            if own["session"][first] in self._sessions:
                self._take_rank(own, some, int(utc_ns[first]), now_ns)

    def _take_rank(self, own: Mapping[str, list[Any]], rows: list[int], offset_ns: int, now_ns: int) -> None:
        """Process the rows of one rank at one time. own: columns; offset_ns: from mono to UTC."""
        at = rows[0]
        name, number, size = own["job"][at], own["rank"][at], own["size"][at]
        since_ns, end_ns = own["start_ns"][at] + offset_ns, own["end_ns"][at] + offset_ns
        job, pid = self._jobs.get(name), own["pid"][at]
        if job is None:
            over_ns, pids = self._over.get(name, (0, {}))
            if end_ns <= over_ns or pids.get(number) == pid:
                return  # a late report
            self._forget_old(now_ns)
            job = self._jobs[name] = _Job()
        before = job.ranks.get(number)
        if before is None and len(job.ranks) >= _MOST_RANKS:
            return
        job.reported_ns = now_ns
        quiet = bool(own["quiet"][at])
        works = [_work(own, row, end_ns) for row in rows[:_MOST_WORKS] if own["group"][row] != UNKNOWN]
        if before and job.pids.get(number) != pid:
            before = None
        if before and not quiet and not before.quiet:  # it has called something in a new group
            groups = {work.group for work in works}
            works += [work for work in before.works if work.group not in groups]
        if before and before.quiet and not quiet:
            job.add_wait(before, end_ns)
        previous = before if before and before.quiet and abs(before.since_ns - since_ns) < _SAME_NS else None
        progress_ns, io_bytes = end_ns, max(0, own["io_bytes"][at])
        if quiet:
            cpu_ns, elapsed_ns = own["cpu_ns"][at], _elapsed_ns(since_ns, end_ns, previous)
            if any(work.state == WAITED for work in works) and cpu_ns != UNKNOWN and elapsed_ns > 0:
                job.idle_cpu[number] = cpu_ns / elapsed_ns
            least_cpu = job.least_cpu(number, own["state"][at] == ProcessState.DISK)
            progress_ns = _progress_ns(cpu_ns, io_bytes, since_ns, end_ns, previous, least_cpu)
        state, stopped_ns = ProcessState(own["state"][at]), 0
        if state is ProcessState.STOPPED:
            stopped_ns = (previous.stopped_ns if previous else 0) or end_ns
            if end_ns - stopped_ns < _STOPPED_NS:
                state = ProcessState.UNKNOWN  # a debugger may have stopped it for a moment
        session = own["session"][at]
        job.pids[number], job.sessions[number] = pid, session
        job.ranks[number] = RankNow(
            *(number, self._sessions[session].hello.host, size, quiet, since_ns),
            *(state, WaitsFor(own["waits_for"][at]), progress_ns, tuple(works)),
            received_ns=end_ns,
            io_bytes=io_bytes + (previous.io_bytes if previous else 0),
            waited_for_disk=previous is not None and (previous.waited_for_disk or previous.state is ProcessState.DISK),
            stopped_ns=stopped_ns,
        )

    def _present(self, newest: Collection[Session]) -> tuple[set[tuple[str, int]], dict[int, int]]:
        """Job and number of all ranks that are there; and by session, since when its host is silent (UTC, ns), 0: it
        is not."""
        found, received, now_ns = set[tuple[str, int]](), dict[int, int](), time.time_ns()
        for session in newest:
            silent_s = self._silent_s(session.last_batch_s)
            received[session.index] = now_ns - int(silent_s * 1e9) if silent_s > _SILENT_S else 0
            found |= {(name, number) for name, number in session.window.ranks.processes() if name in self._jobs}
        return found, received

    def _check(
        self, name: str, job: _Job, present: set[tuple[str, int]], received: Mapping[int, int], now_ns: int
    ) -> None:
        self._count_flows(name, job, now_ns)
        ranks = {}
        for number, one in job.ranks.items():
            silent_ns = received.get(job.sessions[number], one.received_ns)  # another agent may report it by now
            there = (name, number) in present and one.state is not ProcessState.GONE
            if there or silent_ns:
                job.left_ns.pop(number, None)
            else:
                job.left_ns.setdefault(number, now_ns)
            if progress_ns := one.progress_ns:
                progress_ns = max(progress_ns, job.flowed_ns.get(number, 0))
            ranks[number] = replace(
                one, left_ns=job.left_ns.get(number, 0), silent_ns=silent_ns, progress_ns=progress_ns
            )
        flow = now_ns - job.any_flow_ns < _FLOWING_NS
        known = Known(job.longest_ns, job.pause_ns, flow, self._cut(name, ranks, now_ns))
        found = judge(name, ranks, now_ns, known)
        wait, found = (None, found) if found is None or found.reported_ns else (found, None)
        if found:
            job.wait = None
        else:
            self._take_wait(name, job, None if job.hang else wait)
        if found and (found.what in _NO_WAIT or (found.rank in ranks and is_inactive(ranks[found.rank]))):
            job.sure_ns = now_ns
        before = job.hang
        if found and before and before.what is Hung.CUT_OFF and found.what not in _SAYS_MORE:
            found = None  # TCP retransmits ever less often
        if found and before is None and job.recent and found.since_ns <= job.recent[0].reported_ns:
            before = job.hang = replace(job.recent.popleft(), until_ns=0)  # it seemed to have ended for a moment
            self._shown(name, job)
        if before and (found is None or not _same(before, found)):
            still = any(ranks[number].quiet for number in before.waiting if number in ranks)
            if found is None and still and not all(one.gone for one in ranks.values()):
                return
            ended_ns = max(
                (ranks[n].received_ns for n in before.waiting if n in ranks and not ranks[n].quiet), default=0
            )
            over = replace(before, until_ns=ended_ns if ended_ns > before.since_ns else now_ns)
            job.recent.appendleft(over)
            job.hang = None
            self._report(name, job, over)
        if found and job.hang is None:
            job.hang = found
            self._report(name, job, found)
        elif all(_is_over(one, now_ns) for one in ranks.values()):
            if not job.recent and (end := ended(name, ranks, now_ns)):
                job.recent.appendleft(end)
                self._report(name, job, end)
            self._over.pop(name, None)
            self._over[name] = now_ns, self._jobs.pop(name).pids
            if len(self._over) > _MOST_JOBS:
                del self._over[next(iter(self._over))]
        elif found and before and any(getattr(found, name) != getattr(before, name) for name in _CHANGING):
            job.hang = replace(found, reported_ns=before.reported_ns, since_ns=before.since_ns)
            self._shown(name, job)

    def _take_wait(self, name: str, job: _Job, wait: Hang | None) -> None:
        """Viewers see it; it is neither stored nor logged, and no trigger."""
        if wait != job.wait:
            job.wait = wait
            self._shown(name, job)

    def _report(self, name: str, job: _Job, hang: Hang) -> None:
        _log.warning(line(hang, format_moment))
        self._store(hang)
        self._shown(name, job)

    def _shown(self, name: str, job: _Job) -> None:
        now = job.hang or job.wait
        self._show(name, (*((now,) if now else ()), *job.recent)[:RECENT_HANGS])

    def _count_flows(self, name: str, job: _Job, now_ns: int) -> None:
        """Note when the flows of each rank last had more than a trickle of bytes, and more than those of waiting ranks:
        Horovod's ranks poll each other a thousand times a second for work."""
        flows = self._tables.flows
        state = flows.state
        number = flows.jobs.index(name) if name in flows.jobs else UNKNOWN
        own = np.flatnonzero((state["job"] == number) & (state["session"] >= 0) & (state["rank"] >= 0))
        sessions, session_of = np.unique(state["session"][own], return_inverse=True)
        sent = np.empty(len(own), _SENT)
        sent["flow"], sent["payload_bytes"] = own, state["payload_bytes"][own]
        sent["until_ns"] = np.array([self._horizon_ns(one) for one in sessions.tolist()], np.int64)[session_of]
        at = np.searchsorted(job.sent["flow"], own)
        known = np.isin(own, job.sent["flow"])
        before = sent.copy()
        before[known] = job.sent[at[known]]
        elapsed_ns = sent["until_ns"] - before["until_ns"]
        job.sent = np.where(known & (elapsed_ns <= 0), before, sent)  # a batch of its host is still to come
        waiting = _waiting(job.ranks)
        if now_ns < min(waiting.values(), default=now_ns) + _COLLECTIVE_NS:
            return
        new = np.flatnonzero((elapsed_ns > 0) & (elapsed_ns < _FLOWING_NS))
        bps = (sent["payload_bytes"] - before["payload_bytes"])[new] * 1e9 / elapsed_ns[new]
        ranks, rank_of = np.unique(state["rank"][own[new]], return_inverse=True)
        total_bps, carrying = np.bincount(rank_of, bps), np.bincount(rank_of, bps > 0)
        job.sent_bps.update(zip(ranks.tolist(), (total_bps / np.maximum(carrying, 1)).tolist(), strict=True))
        idle_bps = max((job.sent_bps.get(rank, 0.0) for rank in waiting), default=0.0)
        for rank in ranks[total_bps > _PROGRESS_IO_BPS].tolist():
            job.any_flow_ns = now_ns
            if job.sent_bps[rank] > _ABOVE_IDLE * idle_bps:
                job.flowed_ns[rank] = now_ns

    def _horizon_ns(self, session: int) -> int:
        """Up to where the rows of a session have come; 0: it is over."""
        return self._sessions[session].window.horizon_ns if session in self._sessions else 0

    def _cut(self, name: str, ranks: Mapping[int, RankNow], now_ns: int) -> set[tuple[int, int]]:
        """Pairs of ranks: the first one sends the second one only retransmissions, or nothing.

        Where a link is down, nothing leaves the host when TCP's timer runs out.
        """
        from_ns = max(min(_waiting(ranks).values(), default=now_ns) + _CUT_NS, now_ns - _CUT_AGE_NS)
        flows = self._tables.flows
        if from_ns > now_ns or name not in flows.jobs:
            return set()
        rows = self._tables.evidence.lately["transport"].all(_OF_CONNECTION)
        if rows is None:
            return set()
        state = flows.state
        own = np.flatnonzero((state["job"] == flows.jobs.index(name)) & (state["session"] >= 0) & (state["rank"] >= 0))
        own = own[state["link"][own] % 2 == Direction.TX]
        tries = (rows["sent_bytes"] > 0) | (rows["timeouts"] > 0)
        rows = rows.take(np.flatnonzero(np.isin(rows["session"], state["session"][own]) & tries))
        end_ns = self._tables.sessions.utc(rows["session"], rows["end_ns"])
        again = rows["retransmitted_bytes"] >= rows["sent_bytes"]
        keys = zip(rows["session"].tolist(), rows["flow_id"].tolist(), strict=True)
        last = dict(zip(keys, zip(end_ns.tolist(), again.tolist(), strict=True), strict=True))
        ends = [(int(state["rank"][at]), flow) for at in own.tolist() if (flow := flows.flows[at])]
        rank_at = {flow.src: rank for rank, flow in ends}
        keys = zip(state["session"][own].tolist(), state["flow_id"][own].tolist(), strict=True)
        found = set[tuple[int, int]]()
        for key, (rank, flow) in zip(keys, ends, strict=True):
            ended_ns, is_again = last.get(key, (0, False))
            if is_again and ended_ns > from_ns and flow.dst in rank_at:
                found.add((rank, rank_at[flow.dst]))
        return found

    def current(self) -> list[Hang]:
        """The hangs that have not ended."""
        return [job.hang for job in self._jobs.values() if job.hang]

    def _forget_old(self, now_ns: int) -> None:
        for name in [
            name for name, job in self._jobs.items() if job.reported_ns < now_ns - _FORGOTTEN_NS and not job.hang
        ]:
            del self._jobs[name]
        while len(self._jobs) >= _MOST_JOBS:
            del self._jobs[min(self._jobs, key=lambda name: self._jobs[name].reported_ns)]


def _waiting(ranks: Mapping[int, RankNow]) -> dict[int, int]:
    """Since when each waiting rank waits (UTC, ns)."""
    return {
        number: min(begun)
        for number, one in ranks.items()
        if one.quiet and (begun := [work.begun_ns for work in one.works if work.state == WAITED])
    }


def _is_over(one: RankNow, now_ns: int) -> bool:
    """Whether no further report of a rank can arrive."""
    return one.gone and (one.state is ProcessState.GONE or one.left_ns < now_ns - _LATE_NS)


def _same(before: Hang, found: Hang) -> bool:
    """Whether it is the same hang, of which more is known by now: no rank that waited then has resumed."""
    if found.since_ns <= before.reported_ns and Hung.CUT_OFF not in (found.what, before.what):
        return True
    if before.what is not Hung.CUT_OFF:
        return found.rank == before.rank
    return found.what is Hung.CUT_OFF or found.rank in before.missing


def _work(own: Mapping[str, list[Any]], row: int, end_ns: int) -> Work:
    about = {name: own[name][row] for name in _WORK}
    return Work(**about, begun_ns=end_ns - max(0, own["age_ns"][row]), state=own["pending"][row])


def _elapsed_ns(since_ns: int, end_ns: int, previous: RankNow | None) -> int:
    """Time since the row before. previous: the rank then; None: it was not quiet."""
    return end_ns - (previous.received_ns if previous else max(since_ns, end_ns - _ROWS_NS))


def _progress_ns(
    cpu_ns: int, io_bytes: int, since_ns: int, end_ns: int, previous: RankNow | None, least_cpu: float
) -> int:
    """When a quiet rank was last seen to make progress; 0: not known yet. cpu_ns, io_bytes: since the row before."""
    if cpu_ns == UNKNOWN:
        return 0
    if _made_progress(cpu_ns, io_bytes, _elapsed_ns(since_ns, end_ns, previous), least_cpu):
        return end_ns
    return previous.progress_ns or since_ns if previous else since_ns


def _made_progress(cpu_ns: int, io_bytes: int, elapsed_ns: int, least_cpu: float) -> bool:
    if elapsed_ns <= 0:
        return True
    return cpu_ns > least_cpu * elapsed_ns or io_bytes * 1e9 > _PROGRESS_IO_BPS * elapsed_ns
