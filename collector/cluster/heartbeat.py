# SPDX-License-Identifier: Apache-2.0
"""A worker says that it lives, from a thread of its own and over a connection of its own.

A worker that catches up after an outage uses all the CPU that it has, and what the bus answers it waits behind
megabytes of batches. Were its beats to wait there too, others would take it for gone, take its hosts, and have the
more to catch up with.
"""

import asyncio
import contextlib
import threading
import time

from collector.cluster.bucket import Bucket
from collector.cluster.membership import TTL_S, WORKERS
from netmon.errors import NetmonError
from netmon.wire.bus import Bus, BusSettings

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
