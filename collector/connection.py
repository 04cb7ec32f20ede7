# SPDX-License-Identifier: Apache-2.0
"""One connection of a session, however its messages come: what is accepted, what its agent is sent, how it ends."""

import asyncio
import logging
from collections.abc import Iterator

from collector.agent_checks import FailedBatchError
from collector.backpressure import BackpressureRequest
from collector.host.session import Session
from collector.registry import Registry
from netmon.errors import NetmonError, WireError
from netmon.records import Hello
from netmon.wire import netmon_pb2
from netmon.wire.batches import decode_batch

_log = logging.getLogger(__name__)


class Connection:
    """From an accepted hello to `leave`. A newer one of the same session ends it."""

    def __init__(self, registry: Registry, session: Session) -> None:
        """`open` makes one."""
        self._registry, self.session = registry, session
        self._number = session.connections

    @classmethod
    async def open(cls, registry: Registry, hello: Hello, news: asyncio.Event) -> "Connection":
        """news: set when there is something to report. As Registry.open."""
        session = await registry.open(hello, news)
        hooks = ", ".join(f"{i.name} ({i.hook_rx}/{i.hook_tx})" for i in hello.interfaces)
        _log.info(f"{hello.host} connected: session {hello.session}, {hooks}")
        return cls(registry, session)

    @property
    def current(self) -> bool:
        """Whether the session has not connected again since."""
        return self.session.connections == self._number

    @property
    def takes(self) -> bool:
        """Whether what comes is taken in."""
        return self.current and self.session.takes

    @property
    def order(self) -> BackpressureRequest:
        """What the agent is requested."""
        return self._registry.order(self.session)

    async def room(self) -> None:
        """Wait until the session's next batch may come."""
        await self._registry.host_limiter.turn(self.session.hello.host)
        await self._registry.intake.turn(self.session.hello.session)
        await self._registry.flushing.room()

    async def process(self, message: netmon_pb2.AgentMessage) -> None:
        """Take a message in. Raises NetmonError; FailedBatchError where the collector fails."""
        session, batch, host = self.session, message.batch, self.session.hello.host
        try:
            if message.WhichOneof("message") == "full":
                self._registry.live.full.answer(session, message.full)
                return
            if message.WhichOneof("message") != "batch":
                raise WireError(f"a message of {host} after its hello is not a batch")
            if session.accept(batch.sequence):
                self._registry.add(session, message)
                self._registry.host_limiter.add_batch(host, batch)
            else:
                session.describe_again(batch.sequence, lambda: decode_batch(batch).flows)
            self._registry.check_host_clock(session, batch.clock.utc_ns)
        except NetmonError:
            raise
        except Exception as error:
            failed = self._registry.failures.at_message(session, message, error)
            await self._registry.discard(session)
            raise failed from error

    def check(self) -> None:
        """Raise what the agent has to know, as Session.check."""
        if self.current:
            self.session.check()

    def acknowledgements(self) -> Iterator[netmon_pb2.Acknowledgement]:
        """What is stored, and what the agent is requested."""
        return self.session.acknowledgements(self.order)

    async def leave(self, complete: bool) -> bool:
        """It has ended; complete: because the agent has said all that it has to say, and that is stored now.

        Whether all of it is. Raises as `check` does.
        """
        if not self.current:
            return False
        session, hello = self.session, self.session.hello
        self._registry.disconnected(session)
        _log.info(f"{hello.host} {'left' if complete else 'is cut off'}: session {hello.session}")
        if not complete:
            return False
        stored = await self._registry.part(session)
        self.check()
        return stored

    async def cut_off(self, error: Exception) -> None:
        """End it because of this."""
        await self.leave(complete=False)
        if isinstance(error, FailedBatchError):
            await self._registry.discard(self.session)
