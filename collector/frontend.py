# SPDX-License-Identifier: Apache-2.0
"""Where agents and viewers connect: in this process, or in one that receives for it."""

import asyncio
from collections.abc import Callable
from typing import Protocol

import grpc

from collector.answers import Answers
from collector.health import add_health
from collector.listening import admission_to, listen_at, stop_listening
from collector.registry import Registry
from collector.service import CollectorService, Context
from collector.settings import ListenConfig
from collector.stream import AgentStream
from netmon.wire.channel import COLLECTOR_OPTIONS
from netmon.wire.identity import Identity


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
