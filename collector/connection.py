# SPDX-License-Identifier: Apache-2.0
"""One connection of a session, however its messages come: what is accepted, what its agent is sent, how it ends."""

import asyncio
import logging
from collections.abc import Iterable, Iterator

from collector.agent_checks import FailedBatchError, FailedSessionError, RefusedBatchError
from collector.entry import Entry
from collector.host.session import Session
from collector.registry import Registry
from netmon.errors import NetmonError, WireError
from netmon.records import Flow, Hello
from netmon.wire import netmon_pb2
from netmon.wire.batches import decode_batch

_log = logging.getLogger(__name__)


class BatchOrder:
    """The batches of one connection: ascending; those that the session has processed before are recognised.

    An agent sends all that it has from the first batch that is not acknowledged, in order, and what has left its spool
    never comes back. So a number is left out because it was acknowledged, also while it is being sent again, or because
    the agent gave it up; that is in its own account of losses, and worth a warning here.
    """

    def __init__(self, session: Session, acknowledged: int) -> None:
        """Begin a connection of the session. acknowledged: as the agent knows."""
        self._session = session
        self._known = max(acknowledged, session.stored_before)
        self._last = 0  # batch of this connection

    def accept(self, message: netmon_pb2.AgentMessage) -> bool:
        """Whether the next message is a batch to be taken in; False where it was before. Raises WireError.

        Any other exception is the collector's failure.
        """
        if message.WhichOneof("message") != "batch":
            raise WireError(f"a message of {self._session.hello.host} after its hello is not a batch")
        fresh = self.accept_number(message.batch.sequence)
        if not fresh:
            self._describe(message.batch)
        return fresh

    def accept_number(self, sequence: int) -> bool:
        """As `accept` of a batch of that number; what one that was before says of flows is for `describe`."""
        if sequence <= self._last:
            raise RefusedBatchError(sequence, self._session.hello.host, f"batch {self._last} came before it")
        self._notice_gap(sequence)
        self._last = sequence
        fresh = sequence > self._session.queued
        if fresh:
            self._session.queued = sequence
        return fresh

    def accept_run(self, sequences: list[int]) -> bool:
        """Whether these follow each other and are all fresh: then they are accepted; else nothing is, see above."""
        first, last = sequences[0], sequences[-1]
        if first <= max(self._last, self._session.queued) or list(range(first, last + 1)) != sequences:
            return False
        self._notice_gap(first)
        self._last = self._session.queued = last
        return True

    def describe(self, flows: Iterable[Flow]) -> None:
        """Of a batch that was before, only what it says of flows counts. Raises WireError."""
        for flow in flows:
            self._session.window.describe(flow)

    def _describe(self, message: netmon_pb2.Batch) -> None:
        try:
            self.describe(decode_batch(message).flows)
        except WireError as error:
            raise RefusedBatchError(message.sequence, self._session.hello.host, error) from None

    def _notice_gap(self, sequence: int) -> None:
        first = max(self._known, self._last, self._session.queued) + 1
        if sequence > first:
            host = self._session.hello.host
            self._session.missing += sequence - first
            self._session.window.ranks.rejected.warn(f"batches {first} to {sequence - 1} of {host} never arrived")


class Connection:
    """From an accepted hello to `leave`. A newer one of the same session ends it."""

    def __init__(self, registry: Registry, entry: Entry, acknowledged: int) -> None:
        """`open` makes one."""
        self._registry, self.entry = registry, entry
        self._number = entry.connections
        self.order = BatchOrder(entry.session, acknowledged)

    @classmethod
    async def open(cls, registry: Registry, hello: Hello, acknowledged: int, news: asyncio.Event) -> "Connection":
        """acknowledged: as the agent knows; news: set when there is something to report. As Registry.open."""
        entry = await registry.open(hello, news)
        _log.info(f"{hello.host} connected: session {hello.session}, {_hooks(hello)}")
        return cls(registry, entry, acknowledged)

    @property
    def current(self) -> bool:
        """Whether the session has not connected again since."""
        return self.entry.connections == self._number

    @property
    def free(self) -> bool:
        """Whether the session's next batch may come at once."""
        hello, of = self.entry.session.hello, self._registry
        return of.flushing.open and of.intake.free(hello.session) and not of.host_limiter.wait_s(hello.host)

    async def room(self) -> None:
        """Wait until the session's next batch may come."""
        await self._registry.host_limiter.turn(self.entry.session.hello.host)
        await self._registry.intake.turn(self.entry.session.hello.session)
        await self._registry.flushing.room()

    async def process(self, message: netmon_pb2.AgentMessage) -> None:
        """Take a message in. Raises NetmonError; FailedBatchError where the collector fails."""
        entry = self.entry
        try:
            if message.WhichOneof("message") == "full":
                self._registry.full.answer(entry, message.full)
                return
            if self.order.accept(message):
                self._registry.add(entry, message)
                self._registry.host_limiter.add_batch(entry.session.hello.host, message.batch)
            self._registry.check_host_clock(entry, message.batch.clock.utc_ns)
        except NetmonError:
            raise
        except Exception as error:
            sequence = message.batch.sequence
            reason = self._registry.failures.set_aside(entry.session.hello, f"batch {sequence}", [message], error)
            await self._registry.discard(entry)
            raise FailedBatchError(sequence, entry.session.hello.host, reason) from error

    def check(self) -> None:
        """Raise what the agent has to know.

        RefusedBatchError: a batch was not taken in; FailedSessionError: the session is not what it should be.
        """
        if self.entry.refused and self.current:
            raise self.entry.refused
        if self.entry.failure and self.current:
            raise FailedSessionError(self.entry.failure)

    def acknowledgements(self) -> Iterator[netmon_pb2.Acknowledgement]:
        """What is stored, and what the agent is requested."""
        order = self._registry.intake.order(self.entry.session.hello.session)
        news = netmon_pb2.Acknowledgement(
            sequence=self.entry.acknowledge, bucket_ns=order.bucket_ns, batch_ns=order.batch_ns
        )
        while self.current and self.entry.requests:
            news.request.CopyFrom(self.entry.requests.popleft())
            yield news
            news.ClearField("request")
        yield news

    async def leave(self, complete: bool) -> bool:
        """It has ended; complete: because the agent has said all that it has to say, and that is stored now.

        Whether all of it is. Raises as `check` does.
        """
        if not self.current:
            return False
        entry, hello = self.entry, self.entry.session.hello
        self._registry.disconnected(entry)
        _log.info(f"{hello.host} {'left' if complete else 'is cut off'}: session {hello.session}")
        if not complete:
            return False
        stored = await self._registry.part(entry)
        self.check()
        return stored


def _hooks(hello: Hello) -> str:
    return ", ".join(f"{i.name} ({i.hook_rx}/{i.hook_tx})" for i in hello.interfaces)
