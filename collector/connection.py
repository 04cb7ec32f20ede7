# SPDX-License-Identifier: Apache-2.0
"""One connection of a session, however its messages come: what is taken in, what its agent is told, how it ends."""

import asyncio
import logging
from collections.abc import Iterator

from collector.door import BatchOrder, FailedBatchError, FailedSessionError
from collector.entry import Entry
from collector.registry import Registry
from netmon.errors import NetmonError
from netmon.records import Hello
from netmon.wire import netmon_pb2

_log = logging.getLogger(__name__)


class Connection:
    """From an accepted hello to `leave`. A newer one of the same session ends it."""

    def __init__(self, registry: Registry, entry: Entry, acknowledged: int) -> None:
        """`open` makes one."""
        self._registry, self.entry = registry, entry
        self._number = entry.connections
        self.order = BatchOrder(entry.session, acknowledged)

    @classmethod
    async def open(cls, registry: Registry, hello: Hello, acknowledged: int, news: asyncio.Event) -> "Connection":
        """acknowledged: as the agent knows; news: set when there is something to tell. As Registry.open."""
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
        return of.flushing.open and of.intake.free(hello.session) and not of.allowance.wait_s(hello.host)

    async def room(self) -> None:
        """Wait until the session's next batch may come."""
        await self._registry.allowance.turn(self.entry.session.hello.host)
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
                self._registry.allowance.came(entry.session.hello.host, message.batch)
            self._registry.heard_at(entry, message.batch.clock.utc_ns)
        except NetmonError:
            raise
        except Exception as error:
            sequence = message.batch.sequence
            told = self._registry.failures.set_aside(entry.session.hello, f"batch {sequence}", [message], error)
            await self._registry.discard(entry)
            raise FailedBatchError(sequence, entry.session.hello.host, told) from error

    def check(self) -> None:
        """Raise what the agent is to be told.

        RefusedBatchError: a batch was not taken in; FailedSessionError: the session is not what it should be.
        """
        if self.entry.refused and self.current:
            raise self.entry.refused
        if self.entry.failure and self.current:
            raise FailedSessionError(self.entry.failure)

    def tell(self) -> Iterator[netmon_pb2.Acknowledgement]:
        """What is stored, and what the agent is asked for."""
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
