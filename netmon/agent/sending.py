# SPDX-License-Identifier: Apache-2.0
"""What leaves this host: batches in the spool, the streams that empty it, and how the session is introduced."""

import contextlib
import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING

from netmon.agent import downtime
from netmon.agent.connection import Connect, End
from netmon.agent.counting import Counting
from netmon.agent.exchange import Clock, ClockExchanges
from netmon.agent.pressure import Backlog, Resolution, Streamed
from netmon.agent.recorder import Pulls, start_recorder
from netmon.agent.settings import Settings
from netmon.agent.spool import Spool, described, link_totals
from netmon.agent.spool_folder import SpoolFolder
from netmon.agent.stream import Sender, Stream, Worker, check_alive
from netmon.agent.training_marks import TrainingMarks
from netmon.errors import DataError
from netmon.records import Batch, Flow, Hello, Table
from netmon.version import __version__
from netmon.wire import netmon_pb2
from netmon.wire.batches import batch_parts, encode_body, encode_hello, serialise_buckets, serialise_flow
from netmon.wire.security import new_session

if TYPE_CHECKING:
    from netmon.agent.metrics import AgentNews

# --- leftovers of earlier sessions

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
            log.warning("the ledger does not cover the time in which no agent ran: %s", error)
        while not self._ended.is_set():
            for session in self._sessions():
                self._send(session)
                if self._ended.is_set():
                    return
            self._ended.wait(_LOOK_AGAIN_S)

    def check(self) -> None:
        """To be called now and then: a connection on which nothing is received is given up."""
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


log = logging.getLogger(__name__)

_HELLO_NS = 2_000_000_000
_FAREWELL_S = 5.0
_LEFTOVERS_END_S = 1.0


class Sending:
    """One session's. One per agent."""

    def __init__(
        self,
        settings: Settings,
        way: tuple[str, Connect],
        folder: SpoolFolder,
        counting: Counting,
        marks: TrainingMarks,
        clock: Clock,
    ) -> None:
        """way: where it leads to, and how to connect."""
        self._settings, self._interfaces, self._marks, self._clock = settings, counting.interfaces, marks, clock
        (self._session, self._proof), (where, connect) = new_session(), way
        self.spool = Spool(folder, self._session, settings.spool_bytes, counting.ledger.lose)
        self.recorder = start_recorder(settings)
        self._resolution = Resolution(settings.bucket_ns, settings.streamed_ns, self.recorder)
        self._sequence = 0
        self._appended: deque[tuple[int, float]] = deque()  # batches that no connection has had, and since when
        self._news, self._hello_due_ns = False, 0
        self._introduce()
        self.exchanges = ClockExchanges()
        self.stream = Stream(where, connect, self.spool, Pulls(self.recorder), self.exchanges)
        end_accounts = partial(downtime.end_accounts, folder, self._session, counting.ledger.began, self._clock.sample)
        self.leftovers = Leftovers(connect, self.spool, settings.spool_bytes, end_accounts)
        self.reported: AgentNews | None = None
        """For whoever asks this agent itself; None: nobody does."""

    @property
    def next_sequence(self) -> int:
        """The number of the batch that is sent next."""
        return self._sequence + 1

    def start(self) -> None:
        self.stream.start()
        self.leftovers.start()

    def check(self) -> None:
        """To be called now and then. Raises KernelError where a thread has ended."""
        check_alive((self.stream, self.leftovers))
        self.stream.check()
        self.leftovers.check()

    def streamed(self, rows: Table, horizon_ns: int, last: bool) -> Streamed:
        """Rows (dtype BUCKET) in the resolution in which they leave, the recorder has them in full. last: none will
        follow."""
        while self._appended and self._appended[0][0] <= self.spool.handed_out:
            self._appended.popleft()
        late_s = time.monotonic() - self._appended[0][1] if self._appended else 0.0
        full = self.spool.size / self._settings.spool_bytes
        return self._resolution.stream(
            rows, horizon_ns, Backlog(late_s, full, self.stream.backpressure.bucket_ns), last
        )

    def send(self, batch: Batch, accounts: bytes, flows: Mapping[int, Flow]) -> None:
        """Into the spool. accounts: how the ledger was reported last; empty: as before; flows: all that are known."""
        self.spool.ledger = accounts or self.spool.ledger
        for part in batch_parts(batch):
            body = netmon_pb2.AgentMessage(batch=encode_body(part)).SerializeToString()
            loss = link_totals(part.buckets, flows).tobytes()
            described = [(flow.flow_id, serialise_flow(flow)) for flow in part.flows]
            rows_message = serialise_buckets(part.buckets, part.bucket_ns)
            self.spool.append(part.sequence, body, rows_message, loss, described)
            self._sequence = part.sequence
            self._appended.append((part.sequence, time.monotonic()))
        if self.reported:
            self.reported.sent(
                self._sequence, len(batch.buckets), batch.bucket_ns, batch.clock, batch.cost, batch.ledger
            )

    def sent(self, over: Collection[int], news: bool, now_ns: int) -> None:
        """A batch has been, after which these flows are over; news: it had marks, or flows."""
        if over:
            self.spool.end_flows(over)
        self._news |= news
        if self._news and now_ns >= self._hello_due_ns:
            self._introduce()

    def _introduce(self) -> None:
        hello = Hello(
            host=self._settings.host,
            session=self._session,
            bucket_ns=self._settings.bucket_ns,
            stream_ns=self._settings.streamed_ns,
            clock=self._clock.sample(),
            interfaces=self._interfaces,
            agent_version=__version__,
            training=self._marks.present(),
        )
        message = encode_hello(hello)
        message.proof = self._proof
        self.spool.hello = netmon_pb2.AgentMessage(hello=message).SerializeToString()
        self._news = False
        self._hello_due_ns = time.monotonic_ns() + _HELLO_NS

    def finish(self) -> None:
        """Waits a moment for the collector to have the rest, and closes everything."""
        self.leftovers.finish(_LEFTOVERS_END_S)
        self.stream.finish(_FAREWELL_S)
        if self.spool.waits:
            log.warning("%d bytes were not acknowledged; they are in %s", self.spool.size, self._settings.spool)
        self.spool.close()
        if self.recorder:
            self.recorder.close()
