# SPDX-License-Identifier: Apache-2.0
"""Between the sessions and the job stage: sends what is new, and applies the answer."""

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from collector.host.align import Alignment
from collector.host.flows import AGGREGATE, PENDING, REPORTED
from collector.host.rows import newest_onsets
from collector.host.session import Session
from collector.host.window import HostWindow
from collector.jobs.process import JobStageProcess
from collector.messages import (
    BY_TRAFFIC,
    GRAIN_NS,
    ONSET_UPDATE,
    ClockUpdate,
    FlowUpdate,
    HostClock,
    HostNews,
    JobNews,
    MarkUpdate,
    flow_id_of,
    flow_numbers,
    session_of,
)
from netmon.dl.grouped import sums_by_two
from netmon.dl.inference.types import TRAFFIC
from netmon.records import Columns, Flow, Mark, Owner, Table, empty

# --- Builds the messages of which the job stage lives from the sessions' windows, and applies what it answers.

MOST_ROWS = 2_000_000
"""Grains of payload in one message; of more, the newest."""

_Numbers = npt.NDArray[np.int64]


class JobUpdates:
    """What the job stage has been reported one session."""

    def __init__(self, session_index: int, session: Session) -> None:
        """session_index: the session's in the messages, which no other one gets."""
        self.session_index, self.session = session_index, session
        self._known: set[int] = set()  # ids of the flows that were reported

    @property
    def window(self) -> HostWindow:
        return self.session.window

    def begin_anew(self) -> None:
        """The job stage knows nothing any more."""
        self.window.flows.described.update(self.window.flows.indices_of_all.tolist())
        self._known.clear()

    def flows(self, over: list[int]) -> list[FlowUpdate]:
        """Flows that were reported and have changed since; `over` gets those that are no more."""
        table = self.window.flows
        gone, table.over = self._known.intersection(table.over), []
        over += [flow_numbers(self.session_index, flow_id) for flow_id in gone]
        self._known -= gone
        described, table.described = list(table.described), set()
        table.state["reported"][described] = PENDING
        return self._updates(index for index in described if table[index].flow_id in self._known)

    def introduce(self, indices: Iterable[int]) -> list[FlowUpdate]:
        """Flows of which there is something to report, as far as they are not known."""
        reported = self.window.flows.state["reported"]
        return self._updates(index for index in indices if reported[index] == PENDING)

    def _updates(self, indices: Iterable[int]) -> list[FlowUpdate]:
        updates, reported = [], self.window.flows.state["reported"]
        for index in indices:
            flow = self.window.flows[index]
            reported[index] = AGGREGATE if flow.members else REPORTED
            if not flow.members:
                self._known.add(flow.flow_id)
                updates.append(self._update(index, flow))
        return updates

    def _update(self, index: int, flow: Flow) -> FlowUpdate:
        link = self.window.links.interface(int(self.window.flows.state["link"][index])).name
        owner = flow.owner if flow.owner.source != BY_TRAFFIC else Owner()
        return FlowUpdate(
            flow=flow_numbers(self.session_index, flow.flow_id),
            host=self.session.hello.host,
            link=link,
            direction=flow.direction,
            src=flow.src,
            dst=flow.dst,
            src_port=flow.src_port,
            dst_port=flow.dst_port,
            protocol=flow.protocol,
            job=owner.job,
            rank=owner.rank,
            known=bool(owner.source),
        )


def build_news(reporting: Sequence[JobUpdates], connected: Iterable[JobUpdates], ended: Sequence[int]) -> HostNews:
    """What is new on all hosts since the last call.

    reporting: the newest session of each host that sent something lately; the horizon waits for the slowest of them.
    connected: the sessions whose clocks are compared. ended: indices of the sessions that have ended.
    """
    over: list[int] = []
    flows = [flow for one in reporting for flow in one.flows(over)]
    payload, onsets, lost = _rows(reporting, flows) if reporting else (empty(TRAFFIC), empty(ONSET_UPDATE), 0)
    pending_updates = lost + max(0, len(payload) - MOST_ROWS)
    horizons = [one.window.alignment.utc(one.window.horizon_ns) for one in reporting]
    return HostNews(
        clocks=[clock_of(one.session_index, one.session.hello.host, one.window.alignment) for one in connected],
        flows=flows,
        payload=payload[-MOST_ROWS:],
        onsets=onsets,
        over=np.array(over, np.int64),
        ended=list(ended),
        horizon_ns=min(horizons, default=0),
        pending_updates=pending_updates,
    )


def _rows(reporting: Sequence[JobUpdates], flows: list[FlowUpdate]) -> tuple[Table, Table, int]:
    """New payload (TRAFFIC) and onsets (ONSET_UPDATE) of at least one session, and the number of unreported rows.

    flows: those of which there is something are added if they have not been reported.
    """
    tables = reporting[0].session.tables
    session_indices = np.array([one.session.index for one in reporting], np.int64)
    payload, onsets = (
        rows.take(session_indices, len(tables.sessions.table)) for rows in (tables.payload, tables.onsets)
    )
    lost = tables.payload.lost(session_indices)
    known = tables.flows.state
    # A late report may be of a flow that has ended.
    onsets = newest_onsets(onsets)
    payload, onsets = (_where(rows, known["session"][rows["flow"]] == rows["session"]) for rows in (payload, onsets))
    by_place = {one.session.index: one for one in reporting}
    for rows in (payload, onsets):
        new = np.unique(rows["flow"][tables.flows.of_flows("reported", rows["flow"]) == PENDING])
        for session_index, own in _runs(known["session"][new]):
            flows += by_place[session_index].introduce(new[own].tolist())
    payload, onsets = (
        _where(rows, tables.flows.of_flows("reported", rows["flow"]) == REPORTED) for rows in (payload, onsets)
    )
    index_of_session = np.zeros(len(tables.sessions.table), np.int64)
    index_of_session[session_indices] = [one.session_index for one in reporting]

    def numbers(flow: _Numbers) -> _Numbers:
        return flow_numbers(index_of_session[known["session"][flow]], known["flow_id"][flow].astype(np.int64))

    time_ns = tables.sessions.utc(payload["session"], payload["time_ns"])
    older = tables.sessions.older(payload["session"], payload["time_ns"])
    for session_index, run in _runs(payload["session"][older]):
        late = older[run]
        time_ns[late] = by_place[session_index].window.alignment.map.utcs(payload["time_ns"][late])
    updates = np.empty(len(onsets), ONSET_UPDATE)
    updates["flow"] = numbers(onsets["flow"])
    updates["time_ns"], updates["bucket_ns"] = onsets["time_ns"], onsets["amount"]
    grains = _grains(time_ns, payload["flow"], payload["amount"])
    grains["flow"] = numbers(grains["flow"])
    return grains, updates, lost


def _where(rows: Columns, there: npt.NDArray[np.bool_]) -> Columns:
    """Nearly always all of them."""
    return rows if there.all() else rows[there]


def _runs(session_indices: _Numbers) -> list[tuple[int, slice]]:
    """Where equal values stand alongside each other, and which they are."""
    begin = np.flatnonzero(np.diff(session_indices, prepend=-1)).tolist()
    return [
        (int(session_indices[first]), slice(first, over)) for first, over in pairwise([*begin, len(session_indices)])
    ]


def _grains(time_ns: _Numbers, flow: _Numbers, payload_bytes: _Numbers) -> Table:
    """One row per millisecond and flow, sorted by time; dtype TRAFFIC.

    flow: small numbers, which sort much faster than those that the job stage knows.
    """
    grain, flow, payload_bytes = sums_by_two(time_ns // GRAIN_NS, flow, payload_bytes)
    summed = np.empty(len(grain), TRAFFIC)
    summed["time_ns"], summed["flow"], summed["payload_bytes"] = grain * GRAIN_NS, flow, payload_bytes
    return summed


def apply(news: JobNews, sessions: Mapping[int, Session]) -> dict[int, list[Mark]]:
    """Give the sessions (by index) what the job stage says of them; gives the marks that it has for them, by index.

    What is said of a session that is over by now is passed over.
    """
    for number, owner in news.owners.items():
        session = sessions.get(session_of(number))
        if session:
            session.window.flows.infer(flow_id_of(number), owner)
    for clock in news.clocks:
        session = sessions.get(clock.session)
        if session:
            correct(session.window.alignment, clock)
    marks: dict[int, list[Mark]] = {}
    for update in news.marks:
        if update.session in sessions:
            marks.setdefault(update.session, []).append(_mark(update, sessions[update.session].window))
    return marks


def clock_of(session_index: int, host: str, alignment: Alignment) -> HostClock:
    """How well a host's clock is known now."""
    sample = alignment.sample
    return HostClock(
        session=session_index,
        host=host,
        uncorrected=alignment.uncorrected,
        synchronized=alignment.fit is not None,
        unrefuted=alignment.unrefuted,
        own_error_ns=sample.utc_error_ns + sample.error_ns if sample.utc_error_ns else 0,
        coarse_ns=alignment.coarse_ns,
        correction=alignment.correction,
    )


def correct(alignment: Alignment, clock: ClockUpdate) -> None:
    """Take over what the traffic says of a host's clock."""
    alignment.correction, alignment.coarse_ns = clock.correction, clock.coarse_ns
    alignment.trusts_host = clock.trusts_host


def _mark(update: MarkUpdate, window: HostWindow) -> Mark:
    mono = window.alignment.map.mono(update.mark.time_ns) if update.mark.time_ns else window.horizon_ns
    return replace(update.mark, time_ns=mono)


Marks = list[tuple[Session, list[Mark]]]

SILENT_AFTER_S = 5.0
"""Agents send many times a second; a broken connection may come back before."""

_OFTEN_S, _SELDOM_S = 0.3, 10.0  # between two exchanges
_SAID_S = 3.0
_AT_ONCE = 400_000  # rows in a message: both ends have multiple copies of it
_REST_OWN, _REST_STAGE = 19, 4  # × the CPU time of sending it, × that of the job stage
_NEEDLESS_S = 2.0  # at most, while every job tells its iterations itself
_TOGETHER_S, _LONGEST_S = 1.0, 5.0
"""Resumed sessions are reported when none has come for so long, at the latest after so long."""


class JobExchange:
    """One exchange at a time."""

    def __init__(self, stage: JobStageProcess) -> None:
        """stage: the way to the job stage."""
        self._stage = stage
        self.updates: dict[Session, JobUpdates] = {}  # of all sessions that are known now
        self._now = asyncio.Lock()
        self._session_count = 0  # indices that the job stage knows
        self._ended: list[int] = []  # indices of sessions that have ended, not reported yet
        self._pending_updates = 0  # rows that it has not got
        self._sent_s = time.monotonic()
        self._coming = -_LONGEST_S, -_LONGEST_S  # sessions that are taken up again: since when, and the last one
        self.rest_s = _OFTEN_S
        """Until the next exchange: longer where one takes long, so that rows do not wait for it."""

    @property
    def trouble(self) -> list[str]:
        pending_updates = (
            [f"{self._pending_updates} rows were not sent to the inference: it falls behind"]
            if self._pending_updates
            else []
        )
        seldom = [f"hosts are compared only every {self.rest_s:.0f} s: it takes long"] if self.rest_s > _SAID_S else []
        return [*self._stage.trouble, *pending_updates, *seldom]

    def begin_session(self, session: Session) -> None:
        self._session_count += 1
        if session.stored_before:
            (since, last), now = self._coming, time.monotonic()
            self._coming = since if now - last < _TOGETHER_S else now, now
        self.updates[session] = JobUpdates(self._session_count, session)

    def end_session(self, session: Session) -> None:
        self._ended.append(self.updates.pop(session).session_index)

    def begin_anew(self) -> None:
        """All sessions are over, and so is the host stage of which they were."""
        self._ended += [updates.session_index for updates in self.updates.values()]
        self.updates.clear()

    async def exchange(
        self,
        newest: Sequence[Session],
        last_words: Collection[str],
        marked: frozenset[str],
        unclear: Mapping[str, bool],
    ) -> tuple[Marks, JobNews]:
        """Send what is new; returns what the traffic shows: marks of sessions, and the answer that they are in.

        newest: the newest session of each host; last_words: sessions that count although they have gone. The
        horizon waits for the slowest host that sends, and while hosts come one after the other whose sessions are
        taken up again. marked, unclear: as HostNews has them.
        """
        async with self._now:
            since, last = (time.monotonic() - one for one in self._coming)
            if last < _TOGETHER_S and since < _LONGEST_S and not last_words:
                return [], JobNews()
            own_s = -time.thread_time()
            soon = time.monotonic() - SILENT_AFTER_S
            newest = [session for session in newest if not session.broken]
            reporting = [
                self.updates[session]
                for session in newest
                if session.hello.session in last_words or (session.connected and session.last_batch_s > soon)
            ]
            if not self._stage.alive or not (reporting or self._ended):
                return [], JobNews()
            ended, self._ended = self._ended, []
            compared = [self.updates[session] for session in newest if session.connected and session.received]
            news = replace(build_news(reporting, compared, ended), marked=marked, unclear=unclear)
            self._pending_updates += news.pending_updates
            own_s += time.thread_time()
            answer = await self._stage.exchange(news)
            previous_s, self._sent_s = self._sent_s, time.monotonic()
            rows_per_s = len(news.payload) / max(self._sent_s - previous_s, _OFTEN_S)
            most_s = min(_SELDOM_S, max(_OFTEN_S, _AT_ONCE / max(rows_per_s, 1.0)))
            needless_s = 0.0 if answer.marks else min(_NEEDLESS_S, _REST_OWN * answer.cpu_s)
            self.rest_s = min(most_s, max(_OFTEN_S, needless_s, _REST_OWN * own_s, _REST_STAGE * answer.cpu_s))
            known = {updates.session_index: updates for updates in self.updates.values() if not updates.session.broken}
            if answer.begins_anew:
                for updates in known.values():
                    updates.begin_anew()
                return [], JobNews()
            marks = apply(answer, {session_index: updates.session for session_index, updates in known.items()})
            return [(known[session_index].session, mark) for session_index, mark in marks.items()], answer
