# SPDX-License-Identifier: Apache-2.0
"""`netmon agent`."""

import argparse
import gc
import logging
import os
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from netmon.commands.needs import require
from netmon.commands.security_options import declare_security, security
from netmon.commands.service_options import declare_service, heed_hangup
from netmon.durability import DURABILITIES
from netmon.errors import UsageError
from netmon.marks import DEFAULT_SOCKET
from netmon.units import format_duration, format_rate, parse_count, parse_duration, parse_rate, parse_size

if TYPE_CHECKING:
    from collections.abc import Collection

    from netmon.wire.security import Security

HELP = "count the traffic of this host and stream it to a collector (needs root)"
EXAMPLES = """
  netmon agent --interface eth0 --collector localhost:9400
  netmon agent --interface eth0 eth1 --collector unix:/run/netmon/collector.sock --bucket 100us
  netmon agent --interface physical --bus nats://bus1.example:4222,nats://bus2.example:4222 --tls /etc/netmon/tls
  netmon agent --interface physical --collector collector.example:9400 --tls /etc/netmon/tls
  netmon agent --interface eth0 --collector localhost:9400 --durability power
  netmon agent --interface eth0 --collector localhost:9400 --metrics localhost:9465
  netmon agent --config /etc/netmon/agent.toml
  netmon agent --config /etc/netmon/agent.toml --print-config
  netmon agent --interface eth0 --prepare
"""

_DEFAULT_NS = 1_000_000
_WIDEST_NS = 100_000_000  # sums of wider buckets do not fit their columns on the fastest links

log = logging.getLogger(__name__)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--interface",
        nargs="+",
        required=True,
        metavar="IF",
        help="the interfaces to watch: names, patterns ('ens*f?np*'), or `physical` for all with a device behind "
        "them (of a bond its members; no virtual functions). Later matches are watched from the next start",
    )
    parser.add_argument("--collector", default="", metavar="HOST:PORT", help="the collector, or unix:PATH")
    parser.add_argument(
        "--bus",
        default="",
        metavar="URL[,URL]",
        help="NATS JetStream instead of a collector: nats://HOST:4222 of each server",
    )
    parser.add_argument(
        "--bucket", type=parse_duration, default="10us", metavar="TIME", help="bucket width, 1us to 1s (10us)"
    )
    parser.add_argument(
        "--stream-bucket",
        type=parse_duration,
        metavar="TIME",
        help="width of the streamed rows, a multiple of --bucket; the same width streams full resolution (1ms)",
    )
    parser.add_argument(
        "--hook",
        choices=("auto", "tc", "xdp"),
        default="auto",
        help="kernel hook that counts; auto never chooses xdp (auto)",
    )
    parser.add_argument(
        "--capacity",
        type=parse_rate,
        default=0,
        metavar="RATE",
        help="capacity of the links, if the driver does not tell it",
    )
    parser.add_argument(
        "--flows", type=parse_count, default=0, metavar="N", help="flow-table slots per CPU (8192, fewer on many CPUs)"
    )
    parser.add_argument(
        "--nic-counters",
        type=parse_duration,
        default="1s",
        metavar="TIME",
        help="interval between readings of the NICs' own counters; 0s: none (1s)",
    )
    parser.add_argument("--host", default=socket.gethostname(), metavar="NAME", help="this host's name in the dataset")
    parser.add_argument(
        "--socket",
        type=Path,
        default=Path(DEFAULT_SOCKET),
        metavar="PATH",
        help="socket to which training scripts send marks",
    )
    parser.add_argument(
        "--spool",
        type=Path,
        default=Path("/var/lib/netmon-agent"),
        metavar="DIR",
        help="folder for batches that are not yet acknowledged",
    )
    parser.add_argument(
        "--record",
        default="",
        metavar="DIR",
        help="where the recorder keeps full resolution: DIR, memory or off (in the spool)",
    )
    parser.add_argument(
        "--record-time",
        type=parse_duration,
        default="10min",
        metavar="TIME",
        help="how long the recorder keeps it (10min)",
    )
    parser.add_argument(
        "--record-bytes",
        type=parse_size,
        default="1GB",
        metavar="SIZE",
        help="how much the recorder keeps at most (1GB)",
    )
    parser.add_argument(
        "--evidence",
        choices=("all", "none"),
        default="all",
        help="what verdicts rest on beside bytes and steps: what TCP says of connections, and what kept ranks and the "
        "host from running; none costs less, and verdicts say unknown more often (all)",
    )
    parser.add_argument(
        "--durability",
        choices=DURABILITIES,
        default="process",
        help="what a batch in the spool outlives: the end of the process, or a cut of power too, for which the agent "
        "waits for the disk at each batch (process)",
    )
    parser.add_argument(
        "--metrics",
        default="",
        metavar="HOST:PORT",
        help="serve /metrics for Prometheus, /health and /ready there, such as localhost:9465; beyond this machine "
        "with --tls, to anybody who has a certificate of the same authority, or --insecure (nowhere)",
    )
    declare_security(parser)
    declare_service(parser)
    parser.add_argument(
        "--prepare",
        action="store_true",
        help="compile the BPF programs for this kernel, keep them in /var/cache/netmon for the next start, and end",
    )


def run(args: argparse.Namespace) -> int:
    """Watch and stream until SIGINT or SIGTERM; blocks."""
    # numpy's BLAS, which nobody here uses, would start a thread with its memory for every CPU, in each process.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from netmon.agent.agent import Agent
    from netmon.agent.heap import keep_heap
    from netmon.agent.settings import Settings
    from netmon.kernel.probe import choose_interfaces, interface_facts
    from netmon.supervisor import Supervisor
    from netmon.wire.channel import wait_quietly

    if args.prepare:
        return _prepare(args)
    agents: list[Agent] = []

    def adjust(read: argparse.Namespace, changed: "Collection[str]") -> "Collection[str]":
        return {name for agent in agents for name in agent.adjust({name: getattr(read, name) for name in changed})}

    heed_hangup(args, adjust)
    stream_ns = _stream_width(args.bucket, args.stream_bucket)
    bus = _bus(args.collector, args.bus)
    asked: list[int] = []  # no Event: a second signal, within the first one's handler, would wait for its lock for ever
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: asked.append(number))
    chosen = choose_interfaces(args.interface, interface_facts().watchable)
    for remark in chosen.remarks:
        log.warning("%s", remark)
    settings = Settings(
        interfaces=chosen.names,
        collector=args.collector,
        bus=bus,
        host=args.host,
        bucket_ns=args.bucket,
        hook=args.hook,
        capacity_bps=args.capacity,
        flows=args.flows,
        nic_interval_ns=args.nic_counters,
        socket=args.socket,
        spool=args.spool,
        durability=args.durability,
        stream_ns=stream_ns,
        record=None if args.record == "memory" else Path(args.record) if args.record else args.spool,
        record_ns=0 if args.record == "off" else args.record_time,
        record_bytes=args.record_bytes,
        security=_checked(args),
        evidence=args.evidence,
        metrics=_metrics(args.metrics),
    )
    wait_quietly()
    keep_heap()
    supervisor = Supervisor()  # while the way to its socket is open to us
    agent = Agent(settings)
    agents.append(agent)
    for interface in agent.interfaces:
        capacity = format_rate(interface.capacity_bps) if interface.capacity_bps else "unknown; give --capacity"
        hooks = f"{interface.hook_rx}/{interface.hook_tx}"
        width = format_duration(settings.bucket_ns)
        log.info("watching %s (rx/tx by %s, buckets of %s, capacity %s)", interface.name, hooks, width, capacity)
    gc.collect()
    gc.freeze()  # what is there now stays: it need not be looked over again and again
    supervisor.ready()
    try:
        agent.run(lambda: bool(asked), supervisor.alive)
    finally:
        agent.close()
        for number in (signal.SIGINT, signal.SIGTERM):  # a second signal changes nothing
            signal.signal(number, signal.SIG_IGN)
    return 0


def _prepare(args: argparse.Namespace) -> int:
    """Loads the programs as the agent will, which keeps what had to be compiled, and lets go of them."""
    from netmon.kernel import loader, privilege
    from netmon.kernel.meter.geometry import choose_geometry
    from netmon.kernel.probe import choose_interfaces, interface_facts

    privilege.require_capabilities()
    interfaces = choose_interfaces(args.interface, interface_facts().watchable).names
    loader.prepare(choose_geometry(args.bucket, len(interfaces), args.flows))
    return 0


def _bus(collector: str, bus: str) -> tuple[str, ...]:
    """Its servers; none: there is a collector. Raises UsageError."""
    if bool(collector) == bool(bus):
        raise UsageError("an agent sends to a collector or to a bus: give either --collector or --bus")
    if not bus:
        return ()
    from netmon.wire.bus import read_servers

    return read_servers(bus)


def _metrics(address: str) -> str:
    """Where; what is wrong with it is said before anything is attached. Raises UsageError, UnsupportedError."""
    if address:
        require(("prometheus_client", "aiohttp"), "serve metrics", "metrics")
        from netmon.telemetry.endpoint import split_address

        split_address(address)
    return address


def _checked(args: argparse.Namespace) -> "Security":
    """What protects the connection; what is wrong with it is said at once. Raises UsageError, CertificateError."""
    checked = security(args)
    for address in args.bus.split(",") if args.bus else [args.collector]:
        folder = checked.folder(address.strip(), "send to")
        if folder is None:
            continue
        from netmon.wire.identity import Role
        from netmon.wire.tls_files import read_tls

        identity = read_tls(folder, Role.AGENT).identity
        if identity and identity.name != args.host:
            raise UsageError(
                f"the certificate in {folder} is of {identity}, and this host is called {args.host}: "
                f"give --host {identity.name}, or another certificate"
            )
    if checked.exposed(*(args.bus or args.collector).split(",")):
        log.warning("--insecure: what is sent is not encrypted, and anybody can send in this host's name")
    return checked


def _stream_width(bucket_ns: int, stream_ns: int | None) -> int:
    """What is streamed; where nothing is said, buckets of at least a millisecond. Raises UsageError."""
    if stream_ns is None:
        return -(-_DEFAULT_NS // bucket_ns) * bucket_ns if bucket_ns else 0  # which the kernel's side refuses
    if stream_ns != bucket_ns and (stream_ns > _WIDEST_NS or not bucket_ns or stream_ns % bucket_ns or not stream_ns):
        raise UsageError(
            f"cannot stream buckets of {format_duration(stream_ns)}: --stream-bucket is a multiple of --bucket "
            f"({format_duration(bucket_ns)}), at most {format_duration(_WIDEST_NS)}"
        )
    return stream_ns
