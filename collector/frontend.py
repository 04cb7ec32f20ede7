# SPDX-License-Identifier: Apache-2.0
"""Where agents and viewers connect: in this process, or in one that receives for it."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

import grpc

from collector.agent_checks import BREAK_S, FailedBatchError, FailedSessionError, check_silence, end_of, read_hello
from collector.answers import Answers
from collector.connection import Connection
from collector.receiving.client import ReceiverClient
from collector.receiving.frames import Listen
from collector.registry import Registry
from collector.service import CollectorService, Context, add_health, admission_to, listen_at, stop_listening
from collector.settings import ListenConfig
from netmon.errors import DataError, NetmonError
from netmon.wire import netmon_pb2
from netmon.wire.channel import ALIVE_EVERY_S, COLLECTOR_OPTIONS
from netmon.wire.identity import Identity

# --- One agent's stream: one task takes its messages in, another says what is stored. Only that one writes.
#
# There are thousands of messages a second over all streams. They are read from the call's context: gRPC's iterator
# of requests takes half as much again.


_log = logging.getLogger(__name__)


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
            if self._connection:
                await self._connection.cut_off(error)
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
            name = self._connection.session.hello.session
            await self._context.abort(grpc.StatusCode.ABORTED, f"session {name} has connected again")

    def _check(self) -> None:
        """Raise what the agent has to know.

        As Connection.check; SilentError: nobody is there.
        """
        if self._connection:
            self._connection.check()
        if self._waits_since is not None:
            host = self._connection.session.hello.host if self._connection else ""
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
        connection = await Connection.open(self._registry, hello, self._news)
        self._connection = connection
        self._waits_since = time.monotonic()
        while (message := await self._read()) is not None:
            self._waits_since = None
            if not message.HasField("full"):
                await connection.room()
            if not connection.takes:  # nothing is accepted that is not taken in
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


# --- gRPC in the collector's process while its agents are few, in a process of its own from then on.


OWN_PROCESS_FROM = 128
"""Agents from which on the other process costs less than it saves."""

_AGAIN_S = 60.0  # after it could not be started


class AutoReceiver:
    """A Frontend of agents' streams. Who is connected when it grows is cut off once, and connects again."""

    def __init__(self, registry: Registry, listen: str, listen_config: ListenConfig, answers: Answers) -> None:
        """Opens the ports, as GrpcFrontend does."""
        self._of = registry, listen, listen_config
        self._answers = answers
        self._now: Frontend = GrpcFrontend(registry, listen, listen_config, True, answers)
        self._growing: asyncio.Task[None] | None = None
        self._grown = asyncio.Event()

    @property
    def pid(self) -> int:
        return self._now.pid

    async def start(self) -> None:
        await self._now.start()

    async def tick(self) -> float:
        registry, _, _ = self._of
        if self._growing is None and len(registry.recording(())) >= OWN_PROCESS_FROM:
            self._growing = asyncio.get_running_loop().create_task(self._grow())
        return await self._now.tick()

    async def _grow(self) -> None:
        registry, listen, listen_config = self._of
        _log.info(f"{OWN_PROCESS_FROM} agents: a process of its own receives from now on, and agents connect again")
        await self._now.close(0.0)
        own_process = ReceiverClient(registry, self._answers, Listen(listen, listen_config, streams=True))
        while True:
            try:
                await own_process.start()
            except NetmonError as error:
                _log.error(f"{error}; it is tried again in {_AGAIN_S:.0f} s")
            else:
                break
            with contextlib.suppress(NetmonError):  # until then it is done here
                self._now = GrpcFrontend(registry, listen, listen_config, True, self._answers)
                await self._now.start()
            await asyncio.sleep(_AGAIN_S)
            await self._now.close(0.0)
        self._now = own_process
        self._grown.set()

    async def rest(self, pause_s: float) -> None:
        await self._now.rest(pause_s)

    async def follow(self, why_not: Callable[[], str]) -> None:
        here = asyncio.get_running_loop().create_task(self._now.follow(why_not))
        try:
            await self._grown.wait()
        finally:
            here.cancel()
        await self._now.follow(why_not)

    async def leave(self) -> None:
        await self._now.leave()

    async def close(self, grace_s: float) -> None:
        if self._growing:
            self._growing.cancel()
            await asyncio.gather(self._growing, return_exceptions=True)
        await self._now.close(grace_s)


class Frontend(Protocol):
    """Between `start` and `close`; lives on one event loop."""

    @property
    def pid(self) -> int:
        """Of the process that receives, where that is another one; 0: it is this one."""

    async def start(self) -> None:
        """Listen. Raises UsageError, CertificateError, UnsupportedError."""

    async def tick(self) -> float:
        """Take in what has come, and settle what is due; returns for how long (s) it has waited for another process."""

    async def rest(self, pause_s: float) -> None:
        """Between two ticks."""

    async def follow(self, why_not: Callable[[], str]) -> None:
        """Tell who asks whether rows are taken in, as Health.follow."""

    async def leave(self) -> None:
        """As Health.leave."""

    async def close(self, grace_s: float) -> None:
        """Listen no more; who is still connected is cut off after so long."""


class GrpcFrontend:
    """gRPC in this process: what agents send is read as it comes, and taken in by the tick."""

    def __init__(
        self, registry: Registry, listen: str, listen_config: ListenConfig, streams: bool, answers: Answers
    ) -> None:
        """streams: agents may connect, and do not come by the bus. answers: for those who look.

        Opens the ports; raises as `start`."""
        self._registry = registry
        self._server = grpc.aio.server(options=COLLECTOR_OPTIONS)
        admission, serve_stream = admission_to(listen, listen_config), self._serve_stream if streams else None
        self._server.add_generic_rpc_handlers((CollectorService(admission, serve_stream, answers.answer),))
        self._health = add_health(self._server)
        listen_at(self._server, listen, listen_config, admission)

    async def _serve_stream(self, context: Context, identity: Identity | None) -> None:
        await AgentStream(self._registry, context, identity).serve()

    @property
    def pid(self) -> int:
        return 0

    async def start(self) -> None:
        await self._server.start()

    async def tick(self) -> float:
        self._registry.tick()
        return 0.0

    async def rest(self, pause_s: float) -> None:
        await asyncio.sleep(pause_s)

    async def follow(self, why_not: Callable[[], str]) -> None:
        await self._health.follow(why_not)

    async def leave(self) -> None:
        await self._health.leave()

    async def close(self, grace_s: float) -> None:
        await stop_listening(self._server, grace_s)  # streams that end wait for a tick
