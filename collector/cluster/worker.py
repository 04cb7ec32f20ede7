# SPDX-License-Identifier: Apache-2.0
"""One worker of several: its connection to the bus, its hosts there, and its part in who has which."""

import asyncio
import contextlib
import logging
import threading
import time
from dataclasses import dataclass

from collector.bus.intake import BusIntake
from collector.cluster.bucket import Bucket
from collector.cluster.handover import Handover
from collector.cluster.membership import TTL_S, WORKERS, Membership
from collector.cluster.ties import ties_of
from collector.dataset.sink import ParquetSink
from collector.registry import Registry
from netmon.errors import NetmonError
from netmon.wire.bus import Bus, BusSettings
from netmon.wire.bus_streams import depth

# --- A worker says that it lives, from a thread of its own and over a connection of its own.
#
# A worker that catches up after an outage uses all the CPU that it has, and what the bus answers it waits behind
# megabytes of batches. Were its beats to wait there too, others would take it for gone, take its hosts, and have the
# more to catch up with.

STUCK_S = 30.0
"""A worker whose event loop has not turned for so long does nothing any more: it says no longer that it lives."""

_END_S = 2.0


class Heartbeat:
    """One worker's, between `begin` and `end`. Whether the bus answers, whoever reads or writes there says."""

    def __init__(
        self, settings: BusSettings, worker: str, weight: float = 1.0, ttl_s: float = TTL_S, stuck_s: float = STUCK_S
    ) -> None:
        """worker: its name. weight: what it can carry in relation to the others."""
        self._settings, self._worker, self._weight = settings, worker, weight
        self._ttl_s, self._stuck_s = ttl_s, stuck_s
        self._here_s = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._beat()), name="heartbeat", daemon=True)

    def begin(self) -> None:
        """Say so from now on."""
        self.here()
        self._thread.start()

    def here(self) -> None:
        """The event loop turns; to be called from it every few seconds."""
        self._here_s = time.monotonic()

    async def end(self) -> None:
        """Nothing is said after it, unless the bus did not answer for seconds."""
        self._over.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, _END_S)

    async def _beat(self) -> None:
        while not self._over.is_set():
            with contextlib.suppress(NetmonError):  # the next connection may do better
                await self._beat_over(await Bus.connect(self._settings, f"netmon worker {self._worker}, heartbeat"))
            await self._pause()

    async def _beat_over(self, bus: Bus) -> None:
        """Until it is over, or the bus does not answer: raises BusError."""
        workers = Bucket(bus, WORKERS, self._ttl_s)
        try:
            while not self._over.is_set():
                if time.monotonic() - self._here_s < self._stuck_s:
                    await workers.put(self._worker, str(self._weight).encode())
                await self._pause()
        finally:
            await bus.close()

    async def _pause(self) -> None:
        await asyncio.to_thread(self._over.wait, self._ttl_s / 4)


# --- worker


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
