# SPDX-License-Identifier: Apache-2.0
"""An agent's options."""

from dataclasses import dataclass
from pathlib import Path

from netmon.wire.security import PLAIN, Security


@dataclass(frozen=True)
class Settings:
    """Durations in ns, rates in bit/s."""

    interfaces: tuple[str, ...]
    collector: str  # HOST:PORT or unix:PATH; empty: there is a bus
    host: str
    bus: tuple[str, ...] = ()  # nats://HOST:PORT, instead of a collector
    bucket_ns: int = 10_000
    hook: str = "auto"
    capacity_bps: int = 0  # 0: as the interface says
    flows: int = 0  # flow-table slots per CPU; 0: as many as suit the machine
    socket: Path = Path("/run/netmon/marks.sock")
    spool: Path = Path("/var/lib/netmon-agent")
    durability: str = "process"  # what a batch in the spool outlives: see netmon.durability
    spool_bytes: int = 256 << 20
    nic_interval_ns: int = 1_000_000_000  # between samples of the NICs' own counters; 0: none
    stream_ns: int = 1_000_000  # width of the buckets that are streamed, a multiple of bucket_ns; less: bucket_ns
    record: Path | None = Path("/var/lib/netmon-agent")  # where full resolution is kept; None: in memory
    record_ns: int = 600_000_000_000  # for so long; 0: not at all
    record_bytes: int = 1_000_000_000
    security: Security = PLAIN
    evidence: str = "all"  # what is reported alongside bytes and marks: all, none
    metrics: str = ""  # HOST:PORT of /metrics, /health and /ready; empty: nowhere
