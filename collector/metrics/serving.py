# SPDX-License-Identifier: Apache-2.0
"""Serves what Prometheus and probes ask, where the library for it is installed."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from collector.registry import Registry
from collector.settings import ListenConfig
from netmon.errors import NetmonError, UnsupportedError
from netmon.own_module import to_install

if TYPE_CHECKING:
    from collector.cluster.worker import ClusterWorker
    from collector.metrics.families import Seen
    from netmon.telemetry.endpoint import Endpoint

_BUS_EVERY_S, _BUS_WITHIN_S = 5.0, 1.0


def why_not_ready(registry: Registry) -> str:
    """Why the collector takes nothing in now; empty: it does."""
    if registry.flushing.trouble:
        return registry.flushing.trouble
    return "" if registry.flushing.open else "rows wait for the disk: nothing more is taken in until it has some"


def serve_metrics(
    address: str,
    registry: Registry,
    listen_config: ListenConfig,
    among: "ClusterWorker | None",
    helpers: Mapping[str, Callable[[], int]],
) -> "Endpoint | None":
    """At HOST:PORT; empty: nowhere. helpers: pids of the collector's other processes, 0: none runs.

    Raises UsageError, UnsupportedError, CertificateError.
    """
    if not address:
        return None
    try:
        from collector.metrics.families import Seen, metrics_endpoint
        from netmon.telemetry.endpoint import Condition, used, used_by
    except ImportError as error:  # it needs libraries that the rest does without
        raise UnsupportedError(
            f"cannot serve metrics: {error.name} is not installed; {to_install('metrics')}"
        ) from None
    bus = _BusDepth(among) if among else None

    async def look() -> "Seen":
        waits = await bus.now() if bus else None
        waiting, flushing = registry.intake.waiting_rows, registry.flushing
        stored = flushing.storing()
        return Seen(
            frozen=registry.freeze(),
            jobs=registry.live.jobs.counts.copy(),
            waiting_rows=waiting,
            unwritten=stored.full,
            pending_bytes=flushing.pending_bytes,
            used=used(),
            helpers={name: now for name, pid in helpers.items() if (now := used_by(pid()))},
            delays=flushing.delays.copy(),
            clock_jumps=registry.failures.jumps.count,
            bus=waits,
        )

    return metrics_endpoint(address, listen_config.security, look, lambda: Condition(unready=why_not_ready(registry)))


class _BusDepth:
    """Asked for now and then, however often somebody scrapes."""

    def __init__(self, among: "ClusterWorker") -> None:
        self._among = among
        self._known: tuple[int, int] | None = None
        self._requested_s = -_BUS_EVERY_S

    async def now(self) -> tuple[int, int] | None:
        if time.monotonic() - self._requested_s >= _BUS_EVERY_S:
            self._requested_s, self._known = time.monotonic(), None
            with contextlib.suppress(NetmonError, asyncio.TimeoutError):
                self._known = await asyncio.wait_for(self._among.depth(), _BUS_WITHIN_S)
        return self._known
