# SPDX-License-Identifier: Apache-2.0
"""`netmon collector`: the service that agents stream to and viewers watch."""

import argparse
import os
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from netmon.commands.needs import require
from netmon.commands.security_options import declare_security, security
from netmon.commands.service_options import declare_service, heed_hangup
from netmon.durability import DURABILITIES
from netmon.errors import UnsupportedError, UsageError
from netmon.units import parse_count, parse_duration, parse_size
from netmon.wire.channel import FEW_THREADS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import pyarrow as pa

    from collector.cluster.worker import WorkerSettings
    from collector.dataset.retention import Keep
    from collector.metrics.spans import Spans
    from collector.settings import Settings
    from netmon.dl.sharing.advice import Advice
    from netmon.past import RowQuery
    from netmon.views import Verdict

HELP = "collect what agents stream: classify it, store it as Parquet, serve live views"
_ADVISED_S = 30.0
_MOST_JOBS = 48  # that are compared with each other
_AT_ONCE = frozenset({"flush", "full_on", "full_burst", "full_rest", "full_rows", "keep", "allowance"})
"""What SIGHUP puts into force."""
EXAMPLES = """\
  netmon collector --listen localhost:9400 --data out --metrics localhost:9464
  netmon collector --listen 0.0.0.0:9400 --tls /etc/netmon/tls --data /var/lib/netmon
  netmon collector --data /var/lib/netmon --keep buckets=7d full=10GB all=90d
  netmon collector --bus nats://bus1:4222,nats://bus2:4222 --worker w1 --tls /etc/netmon/tls --data /shared/netmon
  netmon collector --listen 0.0.0.0:9400 --tls tls --tokens tls/tokens --token-listen 0.0.0.0:9401 --data out
  netmon collector --listen 0.0.0.0:9400 --tls tls --data /var/lib/netmon --receiver apart
  netmon collector --data /var/lib/netmon --allowance rows=8e6 flows=1e4
  netmon collector --data /tmp/netmon --durability process
  netmon collector --listen unix:/run/netmon/collector.sock --data out --parameters 25.6e6
  netmon collector --data out --http localhost:9480
  netmon collector --data out --otlp http://localhost:4318/v1/traces
  netmon collector --config /etc/netmon/collector.toml --print-config
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--listen", default="localhost:9400", metavar="ADDR", help="HOST:PORT or unix:PATH (%(default)s)"
    )
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="the dataset's directory")
    declare_security(parser)
    parser.add_argument(
        "--tokens",
        type=Path,
        metavar="FILE",
        help="tokens of viewers without a certificate (`netmon certificates DIR token`)",
    )
    parser.add_argument(
        "--token-listen",
        default="",
        metavar="HOST:PORT",
        help="address at which viewers with a token connect; no certificate is needed",
    )
    parser.add_argument(
        "--receiver",
        choices=("auto", "here", "apart"),
        default="auto",
        help="where gRPC is served: in the collector's process or in one of its own, auto: that from 128 agents on "
        "(%(default)s)",
    )
    parser.add_argument(
        "--bus",
        default="",
        metavar="URL[,URL]",
        help="work as one of several workers on NATS JetStream: nats://[USER:PASSWORD@]HOST:4222 of each server",
    )
    parser.add_argument(
        "--worker",
        default=_here(),
        metavar="NAME",
        help="with --bus: this worker's name, which no other has (%(default)s)",
    )
    parser.add_argument(
        "--bus-replicas",
        type=int,
        default=1,
        metavar="N",
        help="with --bus: number of servers that keep each batch; 3 survive the loss of a machine (%(default)s)",
    )
    parser.add_argument(
        "--bus-bytes",
        type=parse_size,
        default="4GB",
        metavar="SIZE",
        help="with --bus: how much may wait on the bus (%(default)s)",
    )
    parser.add_argument(
        "--weight",
        type=float,
        default=1.0,
        metavar="X",
        help="with --bus: share of the hosts that this worker takes, relative to the others (%(default)s)",
    )
    parser.add_argument(
        "--settle",
        type=parse_duration,
        default="1s",
        metavar="TIME",
        help="how long rows wait for late owners and marks (%(default)s)",
    )
    parser.add_argument(
        "--flush", type=parse_duration, default="2s", metavar="TIME", help="interval between writes (%(default)s)"
    )
    parser.add_argument(
        "--keep",
        nargs="+",
        type=_keep,
        default=[],
        metavar="TABLE=LIMIT",
        help="drop the oldest hours of a table: buckets=7d, full=10GB, all=90d (keep everything)",
    )
    parser.add_argument(
        "--durability",
        choices=DURABILITIES,
        default="power",
        help="what stored rows survive: the end of the process, or a power cut too (%(default)s)",
    )
    parser.add_argument(
        "--verdicts",
        choices=("all", "none"),
        default="all",
        help="which iterations that stand out are judged while they happen; `netmon why --data` judges later, too, and "
        "advice needs all (%(default)s)",
    )
    parser.add_argument(
        "--share-window",
        type=parse_duration,
        default="10ms",
        metavar="TIME",
        help="width of the sharing window (%(default)s)",
    )
    parser.add_argument(
        "--share-threshold",
        type=float,
        default=0.01,
        metavar="FRACTION",
        help="cross payload from which a window is shared, as a fraction of the link's capacity (%(default)s)",
    )
    parser.add_argument(
        "--parameters",
        type=parse_count,
        default=0,
        metavar="P",
        help="parameters of the model, for jobs that do not tell theirs",
    )
    parser.add_argument(
        "--metrics",
        default="",
        metavar="HOST:PORT",
        help="serve /metrics for Prometheus, /health and /ready, such as localhost:9464; beyond this machine with "
        "--tls, to anybody who has a certificate of the same authority, or --insecure (nowhere)",
    )
    parser.add_argument(
        "--http",
        default="",
        metavar="HOST:PORT",
        help="serve the page of `netmon web` there, such as localhost:9480; beyond this machine with --tls, to viewers "
        "with a certificate or one of the --tokens, or --insecure (nowhere)",
    )
    parser.add_argument(
        "--otlp",
        default="",
        metavar="URL",
        help="send iterations as spans and verdicts as their events there, such as http://localhost:4318/v1/traces; "
        "to other machines by https, or with --insecure (nowhere)",
    )
    parser.add_argument(
        "--full-on",
        nargs="+",
        choices=("slow", "burst", "class", "nothing"),
        default=["slow"],
        help="what is stored at full resolution: slow iterations, bursts, changes of class (slow)",
    )
    parser.add_argument(
        "--full-burst",
        type=float,
        default=2.0,
        metavar="X",
        help="peak from which a burst counts, × the capacity (%(default)s)",
    )
    parser.add_argument(
        "--full-rest",
        type=parse_duration,
        default="30s",
        metavar="TIME",
        help="least time between two windows of the same kind (%(default)s)",
    )
    parser.add_argument(
        "--full-rows",
        type=parse_count,
        default="20e6",
        metavar="N",
        help="rows at full resolution stored in an hour at most (%(default)s)",
    )
    parser.add_argument(
        "--allowance",
        nargs="+",
        default=[],
        metavar="WHAT=N",
        help="what one host may send in a second before it has to wait: batches=500 rows=4e6 flows=5e3 marks=5e4 "
        "others=2e4, which are the usual ones, far above what honest agents need",
    )
    declare_service(parser)


def _keep(text: str) -> "Keep":
    _set_libraries_up()
    from collector.dataset.retention import parse_keep

    return parse_keep(text)


def _set_libraries_up() -> None:
    """Before they are imported, which is when they read it: the value of an option may be what imports them."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its own lines alongside ours
    os.environ.setdefault("GRPC_EXPERIMENTS", FEW_THREADS)
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # its own allocator keeps what was freed


def run(args: argparse.Namespace) -> int:
    """Collect until a signal."""
    import asyncio

    _set_libraries_up()
    from collector.allocator import give_back
    from collector.server import serve
    from collector.service import ListenConfig

    give_back()
    settings = _settings(args)

    def adjust(read: argparse.Namespace, changed: "Collection[str]") -> "Collection[str]":
        settings.adjust(_settings(read))
        return _AT_ONCE.intersection(changed)

    heed_hangup(args, adjust)
    listen_config = ListenConfig(security(args), args.tokens, args.token_listen)
    worker = _worker(args)
    # A thread that writes cannot be called off, and what is not whole on the disk is as if it had not been written.
    serving = serve(
        *(args.listen, args.data, settings),
        abandon=lambda: os._exit(0),
        worker=worker,
        listen_config=listen_config,
        metrics=args.metrics,
        spans=_spans(args),
        receiver=args.receiver,
        stored=StoredDataset(args.data),
        http=_page(args.http),
    )
    asyncio.run(serving)
    return 0


def _settings(args: argparse.Namespace) -> "Settings":
    """Raises UsageError."""
    from collector.host_limiter import parse_rates
    from collector.settings import Settings

    if min(args.settle, args.flush, args.share_window) <= 0:
        raise UsageError("--settle, --flush and --share-window have to be longer than 0")
    if not 0 <= args.share_threshold <= 1:
        raise UsageError(
            f"--share-threshold is a fraction of a link's capacity, from 0 to 1, not {args.share_threshold}"
        )
    return Settings(
        *(args.settle, args.flush, args.share_window, args.share_threshold),
        parameters=args.parameters,
        full_on=tuple(kind for kind in args.full_on if kind != "nothing"),
        full_burst=args.full_burst,
        full_rest_ns=args.full_rest,
        full_rows_per_hour=args.full_rows,
        keep=tuple(args.keep),
        durability=args.durability,
        verdicts=args.verdicts == "all",
        allowance=parse_rates(args.allowance),
    )


class StoredDataset:
    """What viewers go back to, and late verdicts are made of. What reads it is loaded when somebody does."""

    def __init__(self, data: Path) -> None:
        self._data = data

    def batches(self, wanted: "RowQuery") -> "Iterator[pa.RecordBatch]":
        """See netmon.past.Rows."""
        from netmon.history.stored_rows import StoredRows

        return StoredRows(self._data).batches(wanted)

    def verdicts(self, job: str, since_ns: int, until_ns: int) -> "list[Verdict]":
        """See collector.stored_past.Dataset."""
        from netmon.history.judging import verdicts

        return list(verdicts(self._data, job, within_ns=(since_ns, until_ns)))

    def advice(self, jobs: "Collection[str]") -> "Advice":
        """See collector.stored_past.Dataset."""
        from netmon.history.advice import advice

        return advice(self._data, _ADVISED_S, jobs=jobs, most=_MOST_JOBS)


def _page(listen: str) -> str:
    """What --http says. Raises UnsupportedError without the library."""
    if listen:
        require(("aiohttp",), "serve a page", "web")
    return listen


def _spans(args: argparse.Namespace) -> "Spans | None":
    """To where --otlp says. Raises UsageError, UnsupportedError without the library."""
    if not args.otlp:
        return None
    try:
        from collector.metrics.spans import open_spans
    except ImportError:
        raise UnsupportedError(
            "cannot send spans: OpenTelemetry is not installed; pip install 'netmon[otlp]'"
        ) from None
    return open_spans(args.otlp, security(args))


def _here() -> str:
    """This host's name, as a worker's."""
    name = re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname()).strip("-_")
    return name[:32] or "worker"


def _worker(args: argparse.Namespace) -> "WorkerSettings | None":
    """What --bus and --worker say. Raises UsageError, UnsupportedError without the bus's library."""
    if not args.bus:
        return None
    if not args.weight > 0:
        raise UsageError(f"--weight has to be more than 0, not {args.weight:g}")
    from collector.cluster.worker import WorkerSettings
    from netmon.wire.bus import BusSettings, read_servers

    bus = BusSettings(read_servers(args.bus), args.bus_replicas, args.bus_bytes, security=security(args))
    return WorkerSettings(bus, args.worker, args.weight)
