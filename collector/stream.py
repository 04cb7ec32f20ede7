# SPDX-License-Identifier: Apache-2.0
"""One agent's stream: one task takes its messages in, another says what is stored. Only that one writes.

There are thousands of messages a second over all streams. They are read from the call's context: gRPC's iterator of
requests takes half as much again.
"""

import asyncio
import logging
import time
from typing import Any

import grpc

from collector.agent_checks import FailedBatchError, FailedSessionError, read_hello
from collector.connection import Connection
from collector.registry import Registry
from collector.stream_ends import BREAK_S, check_silence, end_of
from netmon.errors import DataError, NetmonError
from netmon.wire import netmon_pb2
from netmon.wire.channel import ALIVE_EVERY_S
from netmon.wire.identity import Identity

_log = logging.getLogger(__name__)
Context = grpc.aio.ServicerContext[Any, Any]


class AgentStream:
    """A connection of an agent, from its hello to its end."""

    def __init__(self, registry: Registry, context: Context, identity: Identity | None = None) -> None:
        """`serve` does the work. identity: whose agent it is; None: it may be anybody's."""
        self._registry, self._context, self._identity = registry, context, identity
        self._connection: Connection | None = None
        self._news = asyncio.Event()  # of this connection: something is stored, or another one has come
        self._waits_since: float | None = time.monotonic()  # for the next message; None: one is being taken in

    async def serve(self) -> None:
        """Until the agent has said its last word, or the connection breaks, or a message breaks the contract.

        Raises DecodeError.
        """
        taking = asyncio.create_task(self._take())
        taking.add_done_callback(lambda _: self._news.set())
        try:
            while not taking.done():
                await self._acknowledge()
                await self._wait(taking)
                self._check()
            taking.result()
            await self._registry.intake.next_tick()  # a refusal has to be sent while the agent is there
            self._check()
            await asyncio.sleep(BREAK_S)
        except NetmonError as error:
            taking.cancel()
            if not isinstance(error, (FailedBatchError, FailedSessionError)):  # which are in the log
                _log.log(logging.ERROR if isinstance(error, DataError) else logging.WARNING, error)
            await self._leave(complete=False)
            if isinstance(error, FailedBatchError) and self._connection:
                await self._registry.discard(self._connection.entry)
            await self._context.abort(*end_of(error))
        except BaseException:  # above all: gRPC has cancelled us, because the connection is broken
            taking.cancel()
            await self._leave(complete=False)
            raise
        try:
            await self._leave(complete=True)
        except FailedSessionError as error:
            await self._context.abort(*end_of(error))

    async def _wait(self, taking: "asyncio.Task[None]") -> None:
        """For news, for the end of the messages, or until it is time to say that we are alive."""
        timer = asyncio.get_running_loop().call_later(ALIVE_EVERY_S, self._news.set)
        try:
            await self._news.wait()
        finally:
            timer.cancel()
        self._news.clear()
        if self._connection and not self._connection.current and not taking.done():
            taking.cancel()
            name = self._connection.entry.session.hello.session
            await self._context.abort(grpc.StatusCode.ABORTED, f"session {name} has connected again")

    def _check(self) -> None:
        """Raise what the agent has to know.

        As Connection.check; SilentError: nobody is there.
        """
        if self._connection:
            self._connection.check()
        if self._waits_since is not None:
            host = self._connection.entry.session.hello.host if self._connection else ""
            check_silence(host, time.monotonic() - self._waits_since)

    async def _acknowledge(self) -> None:
        """What is stored; every message says that we are alive, too."""
        for news in self._connection.acknowledgements() if self._connection else (netmon_pb2.Acknowledgement(),):
            await self._context.write(news)

    async def _take(self) -> None:
        first = await self._read()
        self._waits_since = None
        if first is None:
            return
        hello = read_hello(first, self._identity)
        await self._registry.host_limiter.turn(hello.host)
        self._registry.host_limiter.add_hello(hello.host, first.hello)
        connection = await Connection.open(self._registry, hello, hello.acknowledged, self._news)
        self._connection = connection
        self._waits_since = time.monotonic()
        entry = connection.entry
        while (message := await self._read()) is not None:
            self._waits_since = None
            if not (connection.free or message.HasField("full")):
                await connection.room()
            if not connection.current or entry.broken or entry.refused:  # nothing is accepted that is not taken in
                return
            await connection.process(message)
            self._waits_since = time.monotonic()

    async def _read(self) -> netmon_pb2.AgentMessage | None:
        """The next message; None: there is no more."""
        data: Any = await self._context.read()
        return None if data is grpc.aio.EOF else netmon_pb2.AgentMessage.FromString(data)

    async def _leave(self, complete: bool) -> None:
        """The connection has ended; complete: because the agent has said all that it has to say."""
        if self._connection and await self._connection.leave(complete):
            await self._acknowledge()
