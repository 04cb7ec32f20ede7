# SPDX-License-Identifier: Apache-2.0
"""What the user may set."""

import re
from dataclasses import dataclass
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING

from netmon.errors import UsageError
from netmon.options import DIR, FILE, SIZE, TIME, option
from netmon.service import DURABILITIES
from netmon.units import parse_count
from netmon.wire.security import PLAIN, Security, read_servers

if TYPE_CHECKING:
    from collector.dataset.files import Keep

AT_ONCE = frozenset({"flush_ns", "full_on", "full_burst", "full_rest_ns", "full_rows", "keep", "host_rates"})
"""What SIGHUP puts into force: whoever uses it reads it each time."""


@dataclass(frozen=True)
class Rates:
    """Of one second; an agent sends two batches, describes a hundred flows and tells of some hundred iterations."""

    batches: float = 500
    rows: float = 4e6
    flows: float = 5e3
    iterations: float = 2e4
    others: float = 5e4  # rows of other tables: the ledger, counters, clocks, what verdicts rest on


DEFAULT_RATES = Rates()


def _rate(text: str) -> tuple[str, float]:
    known = sorted(Rates.__dataclass_fields__)
    name, _, value = text.partition("=")
    if name not in known or not value or (number := parse_count(value)) < 1:
        raise UsageError(f"cannot read {text!r} as a rate limit: write rows=8e6, or one of {', '.join(known)}")
    return name, float(number)


def _keep(text: str) -> "Keep":
    from collector.allocator import set_libraries_up

    set_libraries_up()
    from collector.dataset.files import parse_keep

    return parse_keep(text)


def _worker_name() -> str:
    """This host's, as far as a worker can be called so."""
    name = re.sub(r"[^A-Za-z0-9_-]", "-", gethostname()).strip("-_")
    return name[:32] or "worker"


@dataclass(frozen=True)
class ListenConfig:
    """Who is let in."""

    security: Security = PLAIN
    tokens: Path | None = option(
        None, "tokens of viewers without a certificate (`netmon certificates DIR token`)", **FILE
    )
    token_listen: str = option(
        "", "address at which viewers with a token connect; no certificate is needed", metavar="HOST:PORT"
    )


@dataclass
class Settings:
    """How the collector works."""

    listen: str = option("localhost:9400", "HOST:PORT or unix:PATH (%(default)s)", metavar="ADDR")
    data: Path = option(None, "the dataset's directory", required=True, **DIR)
    listen_config: ListenConfig = ListenConfig()
    bus: tuple[str, ...] = option(
        "",
        "work as one of multiple workers on NATS JetStream: nats://[USER:PASSWORD@]HOST:4222 of each server",
        type=read_servers,
        metavar="URL[,URL]",
    )
    worker: str = option(
        _worker_name(), "with --bus: this worker's name, which no other has (%(default)s)", metavar="NAME"
    )
    bus_replicas: int = option(
        1,
        "with --bus: number of servers that keep each batch; 3 survive the loss of a machine (%(default)s)",
        type=int,
        metavar="N",
    )
    bus_bytes: int = option("4GB", "with --bus: how much may wait on the bus (%(default)s)", **SIZE)
    weight: float = option(
        1.0,
        "with --bus: share of the hosts that this worker takes, relative to the others (%(default)s)",
        type=float,
        metavar="X",
        above="0",
    )
    settle_ns: int = option("1s", "how long rows wait for late owners and iterations (%(default)s)", above="0s", **TIME)
    flush_ns: int = option("1s", "interval between writes (%(default)s)", above="0s", **TIME)
    keep: tuple["Keep", ...] = option(
        (),
        "drop the oldest hours of a table: buckets=7d, full=10GB, all=90d (keep everything)",
        nargs="+",
        type=_keep,
        metavar="TABLE=LIMIT",
    )
    durability: str = option(
        "power",
        "what stored rows survive: the end of the process, or a power cut too (%(default)s)",
        choices=DURABILITIES,
    )
    verdicts: str = option(
        "all",
        "which iterations that stand out are judged while they happen; `netmon why --data` judges later, too, and "
        "advice needs all (%(default)s)",
        choices=("all", "none"),
    )
    share_window_ns: int = option("10ms", "width of the sharing window (%(default)s)", above="0s", **TIME)
    share_threshold: float = option(
        0.01,
        "cross payload from which a window is shared, as a fraction of the link's capacity (%(default)s)",
        type=float,
        metavar="FRACTION",
        within=("0", "1"),
    )
    parameters: int = option(
        0, "parameters of the model, for jobs that do not report theirs", type=parse_count, metavar="P"
    )
    metrics: str = option(
        "",
        "serve /metrics for Prometheus, /health and /ready, such as localhost:9464; beyond this machine with --tls, to "
        "anybody who has a certificate of the same authority, or --insecure (nowhere)",
        metavar="HOST:PORT",
    )
    http: str = option(
        "",
        "serve the page of `netmon web` there, such as localhost:9480; beyond this machine with --tls, to viewers with "
        "a certificate or one of the --tokens, or --insecure (nowhere)",
        metavar="HOST:PORT",
    )
    otlp: str = option(
        "",
        "send iterations as spans and verdicts as their events there, such as http://localhost:4318/v1/traces; to "
        "other machines by https, or with --insecure (nowhere)",
        metavar="URL",
    )
    full_on: tuple[str, ...] = option(
        ("slow", "hang"),
        "what is stored at full resolution: slow iterations, hangs, bursts, changes of class (slow hang)",
        nargs="+",
        choices=("slow", "hang", "burst", "class", "nothing"),
    )
    full_burst: float = option(
        2.0, "peak from which a burst counts, × the capacity (%(default)s)", type=float, metavar="X"
    )
    full_rest_ns: int = option("30s", "least time between two windows of the same kind (%(default)s)", **TIME)
    full_rows: int = option(
        "20e6", "rows at full resolution stored in an hour at most (%(default)s)", type=parse_count, metavar="N"
    )
    host_rates: tuple[tuple[str, float], ...] = option(
        (),
        "what one host may send in a second before it has to wait: batches=500 rows=4e6 flows=5e3 iterations=2e4 "
        "others=5e4, which are the defaults, far above what honest agents need",
        nargs="+",
        type=_rate,
        metavar="WHAT=N",
    )
    hold_windows: int = 5  # a view's class changes when so many share windows in a row say so; rows are exact

    @property
    def rates(self) -> Rates:
        """What one host may send."""
        return Rates(**dict(self.host_rates))

    def adjust(self, other: "Settings") -> None:
        """Take over what may change while the collector works."""
        for name in AT_ONCE:
            setattr(self, name, getattr(other, name))
