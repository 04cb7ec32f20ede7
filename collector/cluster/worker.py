# SPDX-License-Identifier: Apache-2.0
"""One worker of several: its connection to the bus, its hosts there, and its part in who has which."""

import asyncio
import contextlib
import logging
from dataclasses import dataclass

from collector.bus.intake import BusIntake
from collector.cluster.handover import Handover
from collector.cluster.heartbeat import Heartbeat
from collector.cluster.membership import TTL_S, Membership
from collector.cluster.ties import ties_of
from collector.dataset.sink import ParquetSink
from collector.registry import Registry
from netmon.errors import NetmonError
from netmon.wire.bus import Bus, BusSettings
from netmon.wire.bus_streams import depth

_CLOSE_S = 2.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerSettings:
    """name: one of a kind on the bus. weight: what it can carry in relation to the others. ttl_s: see Membership."""

    bus: BusSettings
    name: str
    weight: float = 1.0
    ttl_s: float = TTL_S


class ClusterWorker:
    """Between `begin` and `close`; lives on one event loop."""

    def __init__(self, settings: WorkerSettings, registry: Registry, sink: ParquetSink, bus: Bus) -> None:
        """`begin` makes one."""
        self._bus = bus
        members = Membership(bus, settings.name, settings.ttl_s)
        heart = Heartbeat(settings.bus, settings.name, settings.weight, settings.ttl_s)
        self.intake = BusIntake(bus, registry, settings.name, members.may_have)
        self._handover = Handover(members, heart, self.intake, sink, lambda hosts: ties_of(registry.sessions(), hosts))

    @classmethod
    async def begin(cls, settings: WorkerSettings, registry: Registry, sink: ParquetSink) -> "ClusterWorker":
        """Connect. Raises BusError."""
        bus = await Bus.connect(settings.bus, f"netmon worker {settings.name}", lasting=True)
        worker = cls(settings, registry, sink, bus)
        try:
            await worker.intake.start()
        except BaseException:
            await bus.close()
            raise
        _log.info("taking in from the bus at %s as %s", settings.bus.name, settings.name)
        return worker

    async def run(self) -> None:
        """Take and release hosts, until it leaves."""
        await self._handover.run()

    async def depth(self) -> tuple[int, int]:
        """Batches that wait on the bus, and their bytes. Raises BusError."""
        return await depth(self._bus)

    async def leave(self) -> None:
        """Give all hosts to the others; what cannot be said to the bus they find out."""
        try:
            await self._handover.close()
        except NetmonError as error:
            _log.warning("%s", error)

    async def close(self) -> None:
        """Let go of the bus."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.intake.close(), _CLOSE_S)
        await self._bus.close()
