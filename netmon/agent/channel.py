# SPDX-License-Identifier: Apache-2.0
"""Which of the two channels an agent uses: to a collector, or to the bus."""

from netmon.agent.connection import Connect
from netmon.agent.grpc_connection import connect_by_grpc
from netmon.agent.settings import Settings


def channel(settings: Settings) -> tuple[str, Connect]:
    """What it leads to, for the log, and how to connect. Raises UnsupportedError where nats-py is missing."""
    if not settings.bus:
        return f"the collector at {settings.collector}", connect_by_grpc(settings.collector, settings.security)
    # Whoever has no bus need not have nats-py, nor the memory that it takes.
    from netmon.agent.bus_connection import connect_by_bus
    from netmon.wire.bus import BusSettings

    bus = BusSettings(settings.bus, security=settings.security)
    return f"the bus at {bus.name}", connect_by_bus(bus)
