# SPDX-License-Identifier: Apache-2.0
"""Between the sessions and the job stage: sends what is new, and applies the answer."""

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from collector.host.job_updates import FlowUpdates, JobUpdates, apply, build_news
from collector.host.session import Session
from collector.jobs.link import JobLink
from netmon.records import Mark

Marks = list[tuple[Session, list[Mark]]]

SILENT_AFTER_S = 5.0
"""Agents send several times a second; a broken connection may come back before."""

_OFTEN_S, _SELDOM_S = 0.3, 10.0  # between two exchanges
_SAID_S = 3.0
_AT_ONCE = 400_000  # rows in a message: both ends hold several copies of it
_REST_OWN, _REST_STAGE = 19, 4  # × the CPU time of telling it, × that of the job stage
_TOGETHER_S, _LONGEST_S = 1.0, 5.0
"""Resumed sessions are reported when none has come for so long, at the latest after so long."""


class JobExchange:
    """One exchange at a time."""

    def __init__(self, stage: JobLink) -> None:
        """stage: the way to the job stage."""
        self._stage = stage
        self.updates: dict[Session, JobUpdates] = {}  # of all sessions that are known now
        self._now = asyncio.Lock()
        self._flow_updates = FlowUpdates()
        self._session_count = 0  # indices that the job stage knows
        self._ended: list[int] = []  # indices of sessions that have ended, not reported yet
        self._pending_updates = 0  # rows that it has not got
        self._sent_s = time.monotonic()
        self._coming = -_LONGEST_S, -_LONGEST_S  # sessions that are taken up again: since when, and the last one
        self.rest_s = _OFTEN_S
        """Until the next exchange: longer where one takes long, so that rows do not wait for it."""

    @property
    def trouble(self) -> list[str]:
        """Lines for viewers."""
        pending_updates = (
            [f"{self._pending_updates} rows were not told to the inference: it falls behind"]
            if self._pending_updates
            else []
        )
        seldom = [f"hosts are compared only every {self.rest_s:.0f} s: it takes long"] if self.rest_s > _SAID_S else []
        return [*self._stage.trouble, *pending_updates, *seldom]

    def begin_session(self, session: Session) -> None:
        """A session is new here."""
        self._session_count += 1
        if session.stored_before:
            (since, last), now = self._coming, time.monotonic()
            self._coming = since if now - last < _TOGETHER_S else now, now
        self.updates[session] = JobUpdates(self._session_count, session, self._flow_updates)

    def end_session(self, session: Session) -> None:
        self._ended.append(self.updates.pop(session).session_index)

    def begin_anew(self) -> None:
        """All sessions are over, and so is the host stage of which they were."""
        self._ended += [updates.session_index for updates in self.updates.values()]
        self.updates.clear()
        self._flow_updates = FlowUpdates()

    async def exchange(
        self,
        newest: Sequence[Session],
        last_words: Collection[str],
        marked: frozenset[str],
        unclear: Mapping[str, bool],
    ) -> tuple[Marks, Mapping[str, str]]:
        """Tell what is new; returns what the traffic tells: marks of sessions, and the patterns of jobs by name.

        newest: the newest session of each host; last_words: sessions that are heard although they have gone. The
        horizon waits for the slowest host that is heard, and while hosts come one after the other whose sessions are
        taken up again. marked, unclear: as HostNews has them.
        """
        async with self._now:
            since, last = (time.monotonic() - one for one in self._coming)
            if last < _TOGETHER_S and since < _LONGEST_S and not last_words:
                return [], {}
            own_s = -time.thread_time()
            soon = time.monotonic() - SILENT_AFTER_S
            newest = [session for session in newest if not session.broken]
            reporting = [
                self.updates[session]
                for session in newest
                if session.hello.session in last_words or (session.connected and session.last_batch_s > soon)
            ]
            if not self._stage.alive or not (reporting or self._ended):
                return [], {}
            ended, self._ended = self._ended, []
            compared = [self.updates[session] for session in newest if session.connected and session.received]
            news = replace(build_news(reporting, compared, ended), marked=marked, unclear=unclear)
            self._pending_updates += news.pending_updates
            own_s += time.thread_time()
            answer = await self._stage.exchange(news)
            told_s, self._sent_s = self._sent_s, time.monotonic()
            rows_per_s = len(news.payload) / max(self._sent_s - told_s, _OFTEN_S)
            most_s = min(_SELDOM_S, max(_OFTEN_S, _AT_ONCE / max(rows_per_s, 1.0)))
            self.rest_s = min(most_s, max(_OFTEN_S, _REST_OWN * own_s, _REST_STAGE * answer.cpu_s))
            known = {updates.session_index: updates for updates in self.updates.values() if not updates.session.broken}
            if answer.begins_anew:
                for updates in known.values():
                    updates.begin_anew()
                return [], {}
            marks = apply(answer, {session_index: updates.session for session_index, updates in known.items()})
            return [(known[session_index].session, mark) for session_index, mark in marks.items()], answer.patterns
