# SPDX-License-Identifier: Apache-2.0
"""`netmon agent`."""

import argparse
import logging
import os
import signal
import socket
import threading
from pathlib import Path

from netmon.marks import DEFAULT_SOCKET
from netmon.units import format_duration, format_rate, parse_count, parse_duration, parse_rate

HELP = "count the traffic of this host and stream it to a collector (needs root)"
EXAMPLES = """
  netmon agent --interface eth0 --collector collector.example:9400
  netmon agent --interface eth0 eth1 --collector unix:/run/netmon/collector.sock --bucket 100us
  netmon agent --config /etc/netmon/agent.toml
"""

log = logging.getLogger(__name__)


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("--interface", nargs="+", required=True, metavar="IF", help="the interfaces to watch")
    parser.add_argument("--collector", required=True, metavar="HOST:PORT", help="the collector, or unix:PATH")
    parser.add_argument("--bucket", type=parse_duration, default="10us", metavar="TIME", help="width, 1us to 1s (10us)")
    parser.add_argument("--hook", choices=("auto", "tc", "xdp"), default="auto", help="where to count (auto)")
    parser.add_argument(
        "--capacity", type=parse_rate, default=0, metavar="RATE", help="of the links, where the driver cannot tell"
    )
    parser.add_argument(
        "--flows", type=parse_count, default=0, metavar="N", help="open at a time on one CPU (16384, less on many CPUs)"
    )
    parser.add_argument(
        "--nic-counters",
        type=parse_duration,
        default="1s",
        metavar="TIME",
        help="between samples of the NICs' own counters (1s; 0s: none)",
    )
    parser.add_argument("--host", default=socket.gethostname(), metavar="NAME", help="this host's name in the dataset")
    parser.add_argument(
        "--socket", type=Path, default=Path(DEFAULT_SOCKET), metavar="PATH", help="where training scripts send marks"
    )
    parser.add_argument(
        "--spool", type=Path, default=Path("/var/lib/netmon-agent"), metavar="DIR", help="batches not yet acknowledged"
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML with these options' long names")


def run(args: argparse.Namespace) -> int:
    """Until SIGINT or SIGTERM."""
    # numpy's BLAS, which nobody here uses, would start a thread with its memory for every CPU, in each process.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import sdnotify

    from netmon.agent.agent import Agent, Settings

    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    settings = Settings(
        interfaces=tuple(dict.fromkeys(args.interface)),
        collector=args.collector,
        host=args.host,
        bucket_ns=args.bucket,
        hook=args.hook,
        capacity_bps=args.capacity,
        flows=args.flows,
        nic_interval_ns=args.nic_counters,
        socket=args.socket,
        spool=args.spool,
    )
    agent = Agent(settings)
    for interface in agent.interfaces:
        capacity = format_rate(interface.capacity_bps) if interface.capacity_bps else "unknown; give --capacity"
        hooks = f"{interface.hook_rx}/{interface.hook_tx}"
        width = format_duration(settings.bucket_ns)
        log.info("watching %s (rx/tx by %s, buckets of %s, capacity %s)", interface.name, hooks, width, capacity)
    sdnotify.SystemdNotifier().notify("READY=1")
    try:
        agent.run(stop)
    finally:
        agent.close()
        for number in (signal.SIGINT, signal.SIGTERM):  # told twice is told once
            signal.signal(number, signal.SIG_IGN)
    return 0
