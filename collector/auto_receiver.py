# SPDX-License-Identifier: Apache-2.0
"""gRPC in the collector's process while its agents are few, in a process of its own from then on."""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from collector.answers import Answers
from collector.frontend import Frontend, GrpcFrontend
from collector.receiving.client import ReceiverClient
from collector.receiving.frames import Listen
from collector.registry import Registry
from collector.settings import ListenConfig
from netmon.errors import NetmonError

_log = logging.getLogger(__name__)
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
