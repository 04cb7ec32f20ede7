# SPDX-License-Identifier: Apache-2.0
"""`netmon collector`: the service that agents stream to and viewers watch."""

import argparse
import os
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from netmon.commands.security_options import declare_security, security
from netmon.commands.service_options import declare_service, heed_hangup
from netmon.durability import DURABILITIES
from netmon.errors import UsageError
from netmon.units import parse_count, parse_duration, parse_size

if TYPE_CHECKING:
    from collector.cluster.worker import WorkerSettings
    from collector.dataset.retention import Keep

HELP = "collect what agents stream: classify it, store it as Parquet, serve live views"
EXAMPLES = """\
  netmon collector --listen localhost:9400 --data out --metrics localhost:9464
  netmon collector --listen 0.0.0.0:9400 --tls /etc/netmon/tls --data /var/lib/netmon
  netmon collector --data /var/lib/netmon --keep buckets=7d full=10GB all=90d
  netmon collector --bus nats://bus1:4222,nats://bus2:4222 --worker w1 --tls /etc/netmon/tls --data /shared/netmon
  netmon collector --listen 0.0.0.0:9400 --tls tls --tokens tls/tokens --token-listen 0.0.0.0:9401 --data out
  netmon collector --data /tmp/netmon --durability process
  netmon collector --listen unix:/run/netmon/collector.sock --data out --parameters 25.6e6
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
        "--tokens", type=Path, metavar="FILE", help="of viewers without a certificate (`netmon certificates DIR token`)"
    )
    parser.add_argument(
        "--token-listen", default="", metavar="HOST:PORT", help="where they connect; certificates are not asked for"
    )
    parser.add_argument(
        "--bus",
        default="",
        metavar="URL[,URL]",
        help="nats://[USER:PASSWORD@]HOST:4222 of each server: a worker, whose agents are on NATS JetStream",
    )
    parser.add_argument(
        "--worker", default=_here(), metavar="NAME", help="with --bus: its name, one of a kind (%(default)s)"
    )
    parser.add_argument(
        "--bus-replicas",
        type=int,
        default=1,
        metavar="N",
        help="with --bus: servers that keep a batch; 3 outlive the loss of a machine (%(default)s)",
    )
    parser.add_argument(
        "--bus-bytes",
        type=parse_size,
        default="4GB",
        metavar="SIZE",
        help="with --bus: that wait there at most (%(default)s)",
    )
    parser.add_argument(
        "--weight",
        type=float,
        default=1.0,
        metavar="X",
        help="with --bus: hosts that it takes, in relation to the other workers (%(default)s)",
    )
    parser.add_argument(
        "--settle",
        type=parse_duration,
        default="1s",
        metavar="TIME",
        help="wait for late owners and marks (%(default)s)",
    )
    parser.add_argument(
        "--flush", type=parse_duration, default="2s", metavar="TIME", help="write at this interval (%(default)s)"
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
        help="what stored rows outlive: the end of the process, or a cut of power too (%(default)s)",
    )
    parser.add_argument(
        "--share-window",
        type=parse_duration,
        default="10ms",
        metavar="TIME",
        help="a DL flow is DL-shared for so long at a time (%(default)s)",
    )
    parser.add_argument(
        "--share-threshold",
        type=float,
        default=0.01,
        metavar="FRACTION",
        help="of a link's capacity, from which cross payload makes a window shared (%(default)s)",
    )
    parser.add_argument(
        "--parameters", type=parse_count, default=0, metavar="P", help="model size of jobs that do not tell theirs"
    )
    parser.add_argument(
        "--metrics",
        default="",
        metavar="HOST:PORT",
        help="serve /metrics for Prometheus there, such as localhost:9464; beyond this machine with --tls, to who "
        "has a certificate of the same authority, or --insecure (nowhere)",
    )
    parser.add_argument(
        "--full-on",
        nargs="+",
        choices=("slow", "burst", "class", "nothing"),
        default=["slow"],
        help="store full resolution of slow iterations, bursts, changes of class (slow)",
    )
    parser.add_argument(
        "--full-burst", type=float, default=2.0, metavar="X", help="a burst's peak, × the capacity (%(default)s)"
    )
    parser.add_argument(
        "--full-rest", type=parse_duration, default="30s", metavar="TIME", help="between two of a kind (%(default)s)"
    )
    parser.add_argument(
        "--full-rows", type=parse_count, default="20e6", metavar="N", help="stored in an hour at most (%(default)s)"
    )
    declare_service(parser)


def _keep(text: str) -> "Keep":
    from collector.dataset.retention import parse_keep

    return parse_keep(text)


def run(args: argparse.Namespace) -> int:
    """Collect until a signal."""
    import asyncio

    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its own lines beside ours; read when it is imported
    # Arrow's own allocator keeps what was freed; read when it is imported, too.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    from collector.allocator import give_back
    from collector.listening import Door
    from collector.server import serve
    from collector.settings import Settings

    give_back()
    heed_hangup(args)
    if min(args.settle, args.flush, args.share_window) <= 0:
        raise UsageError("--settle, --flush and --share-window have to be longer than 0")
    if not 0 <= args.share_threshold <= 1:
        raise UsageError(
            f"--share-threshold is a fraction of a link's capacity, from 0 to 1, not {args.share_threshold}"
        )
    settings = Settings(
        *(args.settle, args.flush, args.share_window, args.share_threshold),
        parameters=args.parameters,
        full_on=tuple(kind for kind in args.full_on if kind != "nothing"),
        full_burst=args.full_burst,
        full_rest_ns=args.full_rest,
        full_rows_per_hour=args.full_rows,
        keep=tuple(args.keep),
        durability=args.durability,
    )
    door = Door(security(args), args.tokens, args.token_listen)
    worker = _worker(args)
    # A thread that writes cannot be called off, and what is not whole on the disk is as if it had not been written.
    serving = serve(
        args.listen, args.data, settings, abandon=lambda: os._exit(0), worker=worker, door=door, metrics=args.metrics
    )
    asyncio.run(serving)
    return 0


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
