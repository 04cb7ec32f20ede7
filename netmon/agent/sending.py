# SPDX-License-Identifier: Apache-2.0
"""What leaves this host: batches in the spool, the streams that empty it, and how the session is introduced."""

import logging
import time
from collections import deque
from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING

from netmon.agent import downtime
from netmon.agent.batch_parts import batch_parts
from netmon.agent.clock import Clock
from netmon.agent.connection import Connect
from netmon.agent.counting import Counting
from netmon.agent.exchange import ClockExchanges
from netmon.agent.leftovers import Leftovers
from netmon.agent.link_totals import link_totals
from netmon.agent.pressure import Backlog, Resolution, Streamed
from netmon.agent.recorder import Pulls, start_recorder
from netmon.agent.settings import Settings
from netmon.agent.spool import Spool
from netmon.agent.spool_folder import SpoolFolder
from netmon.agent.stream import Stream, check_alive
from netmon.agent.training_marks import TrainingMarks
from netmon.records import Batch, Flow, Hello, Table
from netmon.version import __version__
from netmon.wire import netmon_pb2
from netmon.wire.batches import encode_body, encode_hello, serialise_buckets, serialise_flow
from netmon.wire.identity import new_session

if TYPE_CHECKING:
    from netmon.agent.metrics import AgentNews

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
        """Starts its threads."""
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
