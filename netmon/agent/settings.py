# SPDX-License-Identifier: Apache-2.0
"""An agent's options."""

from dataclasses import dataclass
from pathlib import Path
from socket import gethostname

from netmon.errors import UsageError
from netmon.marks import DEFAULT_SOCKET
from netmon.options import DIR, RATE, SIZE, TIME, option
from netmon.service import DURABILITIES
from netmon.units import format_duration, parse_count
from netmon.wire.security import PLAIN, Security, read_servers

_STREAMED_NS = 1_000_000
_WIDEST_NS = 100_000_000  # sums of wider buckets do not fit their columns on the fastest links


@dataclass(frozen=True)
class Settings:
    """Durations in ns, rates in bit/s."""

    interface: tuple[str, ...] = option(
        (),
        "the interfaces to watch: names, patterns ('ens*f?np*'), or `physical` for all with a device behind them (of a "
        "bond its members; no virtual functions). Later matches are watched from the next start",
        nargs="+",
        required=True,
        metavar="IF",
    )
    collector: str = option("", "the collector, or unix:PATH", metavar="HOST:PORT")
    bus: tuple[str, ...] = option(
        "",
        "NATS JetStream instead of a collector: nats://HOST:4222 of each server",
        type=read_servers,
        metavar="URL[,URL]",
    )
    bucket_ns: int = option("10us", "bucket width, 1us to 1s (10us)", within=("1us", "1s"), **TIME)
    stream_bucket_ns: int | None = option(
        None, "width of the streamed rows, a multiple of --bucket; the same width streams full resolution (1ms)", **TIME
    )
    hook: str = option("auto", "kernel hook that counts; auto never chooses xdp (auto)", choices=("auto", "tc", "xdp"))
    capacity_bps: int = option(0, "capacity of the links, if the driver does not report it", **RATE)
    flows: int = option(0, "flow-table slots per CPU (8192, fewer on many CPUs)", type=parse_count, metavar="N")
    nic_counters_ns: int = option("1s", "interval between readings of the NICs' own counters; 0s: none (1s)", **TIME)
    host: str = option(gethostname(), "this host's name in the dataset", metavar="NAME")
    socket: Path = option(DEFAULT_SOCKET, "socket to which training scripts send marks", type=Path, metavar="PATH")
    spool: Path = option("/var/lib/netmon-agent", "folder for batches that are not yet acknowledged", **DIR)
    record: str = option(
        "", "where the recorder keeps full resolution: DIR, memory or off (in the spool)", metavar="DIR"
    )
    record_time_ns: int = option("10min", "how long the recorder keeps it (10min)", **TIME)
    record_bytes: int = option("1GB", "how much the recorder keeps at most (1GB)", **SIZE)
    evidence: str = option(
        "all",
        "evidence for verdicts in addition to bytes and steps: what TCP says of connections, and what kept ranks and "
        "the host from running; none costs less, and verdicts say unknown more often (all)",
        choices=("all", "none"),
    )
    transfers: str = option(
        "operations",
        "what is reported of what NCCL sends, over whatever network: operations of its network proxies with the sum of "
        "their transfers, or each transfer; with --evidence none nothing is (operations)",
        choices=("operations", "each", "none"),
    )
    durability: str = option(
        "process",
        "what a batch in the spool outlives: the end of the process, or a cut of power too, for which the agent waits "
        "for the disk at each batch (process)",
        choices=DURABILITIES,
    )
    metrics: str = option(
        "",
        "serve /metrics for Prometheus, /health and /ready there, such as localhost:9465; beyond this machine with "
        "--tls, to anybody who has a certificate of the same authority, or --insecure (nowhere)",
        metavar="HOST:PORT",
    )
    security: Security = PLAIN
    spool_bytes: int = 256 << 20

    def __post_init__(self) -> None:
        """Raises UsageError for options that do not go together."""
        if bool(self.collector) == bool(self.bus):
            raise UsageError("an agent sends to a collector or to a bus: give either --collector or --bus")
        width = self.stream_bucket_ns
        if width is not None and width != self.bucket_ns and (not 0 < width <= _WIDEST_NS or width % self.bucket_ns):
            raise UsageError(
                f"cannot stream buckets of {format_duration(width)}: --stream-bucket is a multiple of --bucket "
                f"({format_duration(self.bucket_ns)}), at most {format_duration(_WIDEST_NS)}"
            )

    @property
    def streamed_ns(self) -> int:
        """Width of the buckets that are streamed; where nothing is said, at least a millisecond."""
        return self.stream_bucket_ns or -(-_STREAMED_NS // self.bucket_ns) * self.bucket_ns

    @property
    def record_folder(self) -> Path | None:
        """Where full resolution is recorded; None: in memory, or not at all."""
        return None if self.record in ("memory", "off") else Path(self.record or self.spool)
