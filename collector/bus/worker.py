# SPDX-License-Identifier: Apache-2.0
"""A collector as a worker on the bus: its connection, its intake, and which hosts it takes."""

import asyncio
import contextlib
import logging

from collector.bus.intake import BusIntake
from collector.registry import Registry
from netmon.wire.bus import Bus, BusError, BusSettings

_log = logging.getLogger(__name__)
_LOOK_EVERY_S = 1.0
_CLOSE_S = 2.0


class BusWorker:
    """One that takes every host. `start` makes one."""

    def __init__(self, bus: Bus, intake: BusIntake) -> None:
        """Connected, and started."""
        self._bus, self._intake = bus, intake

    @classmethod
    async def start(cls, settings: BusSettings, registry: Registry, name: str) -> "BusWorker":
        """Connect, and make what is missing on the bus. Raises BusError."""
        bus = await Bus.connect(settings, f"netmon worker {name}", lasting=True)
        try:
            intake = BusIntake(bus, registry, name)
            await intake.start()
        except BaseException:
            await bus.close()
            raise
        _log.info("taking in from the bus at %s as %s", settings.name, name)
        return cls(bus, intake)

    async def work(self) -> None:
        """Take every host that appears, until it is cancelled."""
        while True:
            try:
                for host in sorted(await self._intake.hosts() - self._intake.held()):
                    await self._intake.take(host)
            except BusError as error:
                if self._bus.client.is_connected:  # else that is said already
                    _log.warning("%s", error)
                    await self._intake.mend()
            await asyncio.sleep(_LOOK_EVERY_S)

    def stop(self) -> None:
        """Take nothing in any more."""
        self._intake.stop()

    async def close(self) -> None:
        """Acknowledge what is stored, and go; the rest waits on the bus."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._intake.close(), _CLOSE_S)
        await self._bus.close()
