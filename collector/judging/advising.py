# SPDX-License-Identifier: Apache-2.0
"""Advice on jobs that share links, from the rows that verdicts are made of: when somebody asks, alongside the loop."""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collector.host.tables import Tables
from collector.judging.judging import Judging
from collector.view.job_views import Jobs
from netmon.columnar import Columns, joined
from netmon.dl.sharing.advice import Advice, renamed
from netmon.dl.sharing.advice_text import document, of_share
from netmon.dl.sharing.passed import Iterations, Names, Passed, iterations
from netmon.dl.timemap import TimeMap, TimeMaps
from netmon.dl.traffic import Traffic
from netmon.errors import DataError
from netmon.records import Direction, Table
from netmon.wire.limits import MAX_TEXT

_log = logging.getLogger(__name__)
_Numbers = npt.NDArray[np.int64]
_SERVES_S = 5.0  # an answer, to whoever asks for the same
_MOST_ANSWERS = 16
_VIEWED_S = 10.0  # from one to the next, where it is only for viewers
_REST = 20  # times what it took: so long it is not done again for viewers
_MOST_JOBS = 48  # that are compared with each other
_ARRIVED_NS = 1_500_000_000  # after which the rows of all hosts have come
_ROWS = 200_000  # that are added up at once
_USED = ("session", "flow", "start_ns", "bucket_ns", "wire_bytes")


@dataclass(frozen=True)
class Kept:
    """What is kept of the last seconds. Nothing in it changes any more."""

    span_ns: tuple[int, int]  # UTC
    parts: Sequence[Columns]  # of ARRIVED
    clocks: Mapping[int, TimeMap]  # by index of session
    error_ns: Mapping[int, int]  # of these clocks
    hosts: Mapping[int, str]  # by index
    steps: Mapping[str, Table]  # of each job, dtype STEP
    links: Mapping[int, tuple[str, float]]  # by number: name and capacity (bit/s, 0: unknown)
    jobs: Sequence[str]  # by number
    of_flow: Mapping[str, _Numbers]  # by flow: session, link, job, rank, rank id, traffic, peer (−1: not known)

    def advice(self, only: frozenset[str] = frozenset()) -> Advice:
        """What there is to say of them. Blocks for a second where there is much; a thread's work. Raises DataError."""
        iterations, stamps = self._iterations()
        passed, (pair, pairs) = Passed(*self.span_ns), self._pairs()
        job = np.where(self.of_flow["traffic"] == Traffic.CONTROL, 0, self.of_flow["job"])
        of_flow = {"link": self.of_flow["link"], "job": np.where(job > 0, job, -1), "pair": pair}
        for rows in self._chunks(self._near(only) if only else None):
            passed.add(self._rows(rows, of_flow, stamps))
        if not iterations or passed.empty:
            seconds = max(0.0, (self.span_ns[1] - self.span_ns[0]) / 1e9)
            raise DataError(f"cannot advise: no job has ended an iteration in the {seconds:.0f} s that are kept")
        names = [self.links.get(link, ("", 0.0))[0] for link in range(max(self.links, default=-1) + 1)]
        known = {link: bps for link, (_, bps) in self.links.items() if bps}
        return passed.advice(iterations, Names(names, self.jobs, pairs, known), only, _MOST_JOBS)

    def _iterations(self) -> tuple[dict[str, Iterations], "_Stamps"]:
        """The iterations of each job that lie within, and those of each rank."""
        begin, end = self.span_ns
        flows = np.flatnonzero(self.of_flow["job"] > 0)
        whose = zip(*(self.of_flow[name][flows].tolist() for name in ("session", "job", "rank")), strict=True)
        rank_id = {
            (session_index, self.jobs[job], rank): int(self.of_flow["rank_id"][flow])
            for (session_index, job, rank), flow in zip(whose, flows.tolist(), strict=True)
        }
        there = np.array(sorted(self.clocks), np.int64)
        maps = TimeMaps([self.clocks[session_index] for session_index in there.tolist()])
        by_job, stamps = {}, [np.empty((4, 0), np.int64)]
        for job, steps in self.steps.items():
            rows = steps[np.isin(steps["session"], there)]
            if not len(rows):
                continue
            of = np.searchsorted(there, rows["session"])
            starts, ends = (maps.utcs(of, np.ascontiguousarray(rows[name])) for name in ("start_ns", "end_ns"))
            both, which = np.unique(np.stack([rows["session"], rows["rank"]]), axis=1, return_inverse=True)
            known = np.array(
                [rank_id.get((session_index, job, rank), -1) for session_index, rank in both.T.tolist()], np.int64
            )
            stamps.append(np.stack([known[which.ravel()], starts, ends, rows["number"]]))
            inside = (starts >= begin) & (ends <= end)
            if inside.any():
                indices = np.unique(both[0]).tolist()
                clocks = (
                    max(self.error_ns.get(session_index, 0) for session_index in indices) if len(indices) > 1 else 0
                )
                error = int(np.median(rows["error_ns"][inside])) + clocks
                by_job[job] = iterations(rows["number"][inside], starts[inside], ends[inside], error)
        return by_job, _Stamps(np.concatenate(stamps, axis=1), begin, end)

    def _pairs(self) -> tuple[_Numbers, list[tuple[int, str, str]]]:
        """The pair of ranks of each flow, and the pairs, as Names and ROW of netmon.dl.sharing.passed have them."""
        flow = self.of_flow
        hosts = {
            (job, rank): self.hosts.get(session_index, "?")
            for job, rank, session_index in zip(
                *(flow[name].tolist() for name in ("job", "rank", "session")), strict=True
            )
            if job > 0
        }
        found = np.full(len(flow["job"]), -1, np.int64)
        numbers: dict[tuple[int, str, str], int] = {}
        for at in np.flatnonzero((flow["job"] > 0) & (flow["rank"] >= 0) & (flow["peer"] >= 0)).tolist():
            job, rank, peer = (int(flow[name][at]) for name in ("job", "rank", "peer"))
            sends = flow["link"][at] % 2 == Direction.TX
            source, target = (
                f"rank {one} ({hosts.get((job, one), '?')})" for one in ((rank, peer) if sends else (peer, rank))
            )
            number = numbers.setdefault((job, source, target), len(numbers))
            found[at] = number if sends else -2 - number
        return found, list(numbers)

    def _near(self, only: frozenset[str]) -> npt.NDArray[np.bool_]:
        """By flow, whether its link is one of these jobs', or of those that share links with them."""
        link, job = self.of_flow["link"], self.of_flow["job"]
        own = np.array([name in only for name in self.jobs], np.bool_)
        for _ in range(2):  # the others on their links, then all links of those
            near = np.isin(link, link[own[job] & (job > 0)])
            own[job[near]] = True
        return near

    def _chunks(self, flows: npt.NDArray[np.bool_] | None) -> Iterator[Columns]:
        """Rows of sessions whose clock is known. flows: by flow, whether its rows are wanted; None: all are."""
        sessions = np.zeros(max(self.clocks, default=0) + 2, np.bool_)
        sessions[list(self.clocks)] = True
        known = len(self.of_flow["link"])
        waiting: list[Columns] = []
        for rows in self.parts:
            wanted = sessions[np.minimum(rows["session"], len(sessions) - 1)] & (rows["flow"] < known)
            if flows is not None:
                wanted &= flows[np.minimum(rows["flow"], known - 1)]
            own = np.flatnonzero(wanted)
            waiting.append(Columns({name: rows[name].take(own) for name in _USED}))
            if sum(map(len, waiting)) >= _ROWS:
                yield joined(waiting)
                waiting = []
        if waiting:
            yield joined(waiting)

    def _rows(self, rows: Columns, of_flow: Mapping[str, _Numbers], stamps: "_Stamps") -> Columns:
        there, flow = np.array(sorted(self.clocks), np.int64), rows["flow"]
        maps = TimeMaps([self.clocks[session_index] for session_index in there.tolist()])
        start = maps.utcs(np.searchsorted(there, rows["session"]), np.ascontiguousarray(rows["start_ns"]))
        return Columns(
            {
                **{name: column[flow] for name, column in of_flow.items()},
                "flow": flow.astype(np.int64),
                "iteration": stamps.of(self.of_flow["rank_id"][flow], start),
                "start_ns": start,
                "width_ns": rows["bucket_ns"].astype(np.int64),
                "wire_bytes": rows["wire_bytes"].astype(np.int64),
            }
        )


class _Stamps:
    """In which iteration a rank was when."""

    def __init__(self, rows: _Numbers, begin_ns: int, end_ns: int) -> None:
        """rows: rank ids, starts, ends and numbers, (4, iterations of ranks)."""
        self._begin_ns, self._span_ns = begin_ns, max(1, end_ns - begin_ns + 1)
        rows = rows[:, (rows[0] >= 0) & (rows[2] > begin_ns)]
        keys = self._keys(rows[0], rows[1])
        order = np.argsort(keys, kind="stable")
        self._starts, self._rows = keys[order], rows[:, order]

    def _keys(self, rank_id: _Numbers, times: _Numbers) -> _Numbers:
        return rank_id * self._span_ns + np.clip(times - self._begin_ns, 0, self._span_ns - 1)

    def of(self, rank_id: _Numbers, times: _Numbers) -> _Numbers:
        """Numbers of iterations, −1: none."""
        if not len(self._starts):
            return np.full(len(times), -1)
        index = np.searchsorted(self._starts, self._keys(rank_id, times), "right") - 1
        found = self._rows[:, np.maximum(index, 0)]
        inside = (index >= 0) & (found[0] == rank_id) & (times < found[2])
        return np.where(inside, found[3], -1)


def snapshot(judging: Judging, tables: Tables, now_ns: int) -> Kept:
    """What there is now (UTC ns); some milliseconds on the loop."""
    remembered, flows, state = judging.remembered(), tables.flows, tables.flows.state
    sessions = remembered.sessions
    links = {
        number: (f"{link.host} {link.interface} {Direction(link.direction).name.lower()}", float(link.capacity_bps))
        for session in sessions.values()
        for number, link in remembered.links_of(session)
    }
    own = np.flatnonzero((state["job"] > 0) & np.isin(state["session"], list(sessions))).tolist()
    described = [(flow, described_flow) for flow in own if (described_flow := flows.flows[flow]) is not None]
    peer = np.full(len(state), -1, np.int64)
    peer[[flow for flow, _ in described]] = flows.ends.ranks(*zip(*described, strict=True)) if described else []
    of_flow = {name: state[name].astype(np.int64) for name in ("session", "job", "rank", "rank_id", "traffic")}
    first = tables.sessions.table["first_link"][np.maximum(state["session"], 0)]
    return Kept(
        span_ns=(now_ns - int(remembered.age_s * 1e9) + _ARRIVED_NS // 2, now_ns - _ARRIVED_NS),
        parts=[part.rows for part in remembered.parts],
        clocks={session_index: session.window.alignment.map for session_index, session in sessions.items()},
        error_ns={session_index: session.window.alignment.error_ns for session_index, session in sessions.items()},
        hosts={session_index: session.hello.host for session_index, session in sessions.items()},
        steps={name: job.rows() for name, job in remembered.jobs.items()},
        links=links,
        jobs=list(flows.jobs),
        of_flow={**of_flow, "link": first + state["link"], "peer": peer},
    )


def sharing(tables: Tables) -> frozenset[str]:
    """The jobs with flows on a link on which another one has some, too: of all others there is nothing to compare."""
    state = tables.flows.state[tables.flows.state["job"] > 0]
    link = tables.sessions.table["first_link"][state["session"]] + state["link"]
    link, job = np.unique(np.stack([link, state["job"].astype(np.int64)]), axis=1)
    number, count = np.unique(link, return_counts=True)
    crowded = np.isin(link, number[count > 1])
    return frozenset(tables.flows.jobs[one] for one in np.unique(job[crowded]).tolist())


class Advising:
    """Of one worker; lives on the thread of its event loop, computes alongside it: one at a time."""

    def __init__(self, judging: Judging, tables: Tables, viewed: Jobs) -> None:
        """viewed: get the jobs that share links, on the loop."""
        self._judging, self._tables, self._viewed = judging, tables, viewed
        self._answers: dict[str, tuple[float, bytes]] = {}  # by the job asked for: when, and what
        self._turn = asyncio.Lock()
        self._looking: asyncio.Task[None] | None = None
        self._rest_until = 0.0

    async def answer(self, job: str) -> bytes:
        """The advice as JSON, of all jobs or of one and those that share its links. Raises DataError."""
        async with self._turn:
            told_s, answer = self._answers.get(job, (float("-inf"), b""))
            if time.monotonic() < told_s + _SERVES_S:
                return answer
            names = self._viewed.names()
            requested = job if job in names else next((one for one, name in names.items() if name == job), "")
            if job and not requested:
                raise DataError(f"cannot advise on job {job!r}: the collector knows no such job")
            window = snapshot(self._judging, self._tables, time.time_ns())
            answer = await asyncio.to_thread(_encoded, window, requested, names)
            self._answers.pop(job, None)
            self._answers[job] = time.monotonic(), answer
            while len(self._answers) > _MOST_ANSWERS:
                del self._answers[next(iter(self._answers))]
            return answer

    def refresh(self) -> None:
        """Somebody views the jobs: see to it that they hear of shared links, now and then."""
        now = time.monotonic()
        if now < self._rest_until or (self._looking and not self._looking.done()):
            return
        self._rest_until = now + _VIEWED_S
        if self._judging.jobs_with_steps > 1:
            with contextlib.suppress(RuntimeError):  # nothing runs alongside whoever calls
                self._looking = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        async with self._turn:
            lines, took_s = dict[str, tuple[str, ...]](), 0.0
            try:
                if jobs := sharing(self._tables):
                    window = snapshot(self._judging, self._tables, time.time_ns())
                    lines, took_s = await asyncio.to_thread(_lines, window, jobs, self._viewed.names())
            except DataError:
                pass
            except Exception:  # viewers do not need it
                _log.exception("cannot advise on the jobs")
                return
        self._viewed.sharing(lines)
        self._rest_until = max(self._rest_until, time.monotonic() + _REST * took_s)


def _encoded(window: Kept, job: str, names: Mapping[str, str]) -> bytes:
    return json.dumps(document(window.advice(frozenset([job] if job else [])), names)).encode()


def _lines(window: Kept, jobs: frozenset[str], names: Mapping[str, str]) -> tuple[dict[str, tuple[str, ...]], float]:
    """What is said of each of the jobs that share links, in people's names, and the CPU time that it took (s)."""
    began = time.thread_time()
    advice = window.advice(jobs)
    found: dict[str, tuple[str, ...]] = {}
    for share, shown in zip(advice.shares, renamed(advice, names).shares, strict=True):
        found[share.fit.job] = (*found.get(share.fit.job, ()), of_share(shown, advice.links)[:MAX_TEXT])
    return found, time.thread_time() - began
