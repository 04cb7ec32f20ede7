# SPDX-License-Identifier: Apache-2.0
"""Sends what earlier sessions left behind, alongside the living one: oldest first, one after the other."""

import contextlib
import logging
import sqlite3
import threading
from collections.abc import Callable

from netmon.agent.connection import Connect, End
from netmon.agent.link_totals import described
from netmon.agent.recorder import Pulls
from netmon.agent.spool import Spool
from netmon.agent.stream import Sender, Worker
from netmon.errors import DataError
from netmon.records import Table

log = logging.getLogger(__name__)

_LOOK_AGAIN_S = 10.0


class Leftovers(Worker):
    """One thread per agent. What cannot be read, or is refused, is set aside, counted and named once.

    A session that is over has no ledger any more: what is given up of it is counted here, and named in the log.
    """

    def __init__(
        self, connect: Connect, own: Spool, limit_bytes: int, end_accounts: Callable[[], None] = lambda: None
    ) -> None:
        """own: the spool of the session that lives. limit_bytes: of all; others get half of it, it has the rest.

        end_accounts(): of agents that were killed, before anything is sent.
        """
        super().__init__("leftovers")
        self._connect, self._own, self._folder = connect, own, own.folder
        self._limit_bytes, self._end_accounts = limit_bytes, end_accounts
        self._ended = threading.Event()
        self._sender: Sender | None = None
        self._unreadable: set[str] = set()  # and not to be set aside either
        self.lost = 0  # sessions and batches that were given up

    def work(self) -> None:
        """Until `finish`; looks again now and then, for agents that have ended meanwhile."""
        try:
            self._end_accounts()
        except (sqlite3.Error, OSError) as error:
            log.warning("the ledger does not tell of the time in which no agent ran: %s", error)
        while not self._ended.is_set():
            for session in self._sessions():
                self._send(session)
                if self._ended.is_set():
                    return
            self._ended.wait(_LOOK_AGAIN_S)

    def check(self) -> None:
        """To be called now and then: a connection on which nothing is heard is given up."""
        if self._sender:
            self._sender.check()

    def finish(self, timeout_s: float) -> None:
        """Ends; what was not acknowledged stays where it is, for the next agent."""
        self._ended.set()
        if self._sender:
            self._sender.end()
        if self.is_alive():
            self.join(timeout_s)

    def _sessions(self) -> list[str]:
        """Those to send, oldest first; what is more than half of the bound is given up."""
        sessions = [s for s in self._folder.left_behind() if s.partition(".")[0] != self._own.session]
        size, kept = 0, list[str]()
        for session in reversed(sessions):
            size += (more := self._folder.size(session))
            if size > self._limit_bytes // 2:
                size -= more
                self._send(session, "more waits than the spool may hold")
            else:
                kept.append(session)
        self._own.limit_bytes = self._limit_bytes - size
        return [s for s in reversed(kept) if s not in self._unreadable]

    def _send(self, session: str, refused: str = "") -> None:
        """Until it is sent, or given up; refused: why it is not to be sent at all."""
        try:
            spool = self._take_over(session)
        except DataError as error:
            return self._give_up(session, str(error))
        if spool is None:
            return None
        with contextlib.closing(spool):
            if spool.waits and not refused:
                refused = self._send_spool(spool) if spool.hello else "it has no introduction"
            lost = spool.link_totals()
        if refused:
            self._give_up(session, f"session {session} ({described(lost)}): {refused}")
        return None

    def _take_over(self, session: str) -> Spool | None:
        table = self._folder.take_over(session)
        try:
            return Spool(self._folder, session, self._limit_bytes, self._count, table) if table else None
        except sqlite3.Error as error:
            if table:
                table.close()
            raise DataError(f"cannot read {session}: {error}") from error

    def _send_spool(self, spool: Spool) -> str:
        """Why the collector refuses it; empty: it is sent, or we end."""
        log.info("sending %d bytes that session %s left behind", spool.size, spool.session)
        refused: list[str] = []

        def last_word(end: End) -> bool:
            refused.extend([end.reason] if end.refused else [])
            return end.refused

        self._sender = sender = Sender(self._connect, spool, Pulls(None), None, lambda connected, reason: None)
        sender.finish()
        if not self._ended.is_set():
            sender.send(last_word)
        return refused[0] if refused else ""

    def _give_up(self, session: str, reason: str) -> None:
        self.lost += 1
        log.error("what an earlier session left behind is given up, see %s: %s", self._folder.refused, reason)
        if not self._folder.set_aside(session):
            self._unreadable.add(session)

    def _count(self, lost: Table) -> None:
        self.lost += 1
