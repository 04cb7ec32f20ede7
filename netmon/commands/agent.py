# SPDX-License-Identifier: Apache-2.0
"""`netmon agent`."""

import argparse
import gc
import logging
import signal
from collections.abc import Collection

from netmon.agent.settings import Settings
from netmon.commands.service_options import Service, heed_hangup
from netmon.errors import UsageError
from netmon.options import declare, read_options
from netmon.own_module import require
from netmon.units import format_duration, format_rate

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

log = logging.getLogger(__name__)


def arguments(parser: argparse.ArgumentParser) -> None:
    declare(parser, Settings, Service)
    parser.add_argument(
        "--prepare",
        action="store_true",
        help="compile the BPF programs for this kernel, keep them in /var/cache/netmon for the next start, and end",
    )


def run(args: argparse.Namespace) -> int:
    """Watch and stream until SIGINT or SIGTERM; blocks."""
    from netmon.agent.agent import Agent
    from netmon.service import Supervisor, keep_heap, trim_heap

    if args.prepare:
        return _prepare(args)
    agents: list[Agent] = []

    def adjust(read: argparse.Namespace, changed: Collection[str]) -> Collection[str]:
        return {name for agent in agents for name in agent.adjust({name: getattr(read, name) for name in changed})}

    heed_hangup(args, adjust)
    settings = read_options(Settings, args)
    # No Event: a second signal, within the first one's handler, would wait for its lock for ever.
    signalled: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: signalled.append(number))
    _check(settings)
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
    trim_heap()
    supervisor.ready()
    try:
        agent.run(lambda: bool(signalled), supervisor.alive)
    finally:
        agent.close()
        for number in (signal.SIGINT, signal.SIGTERM):  # a second signal changes nothing
            signal.signal(number, signal.SIG_IGN)
    return 0


def _prepare(args: argparse.Namespace) -> int:
    """Loads the programs as the agent will, which keeps what had to be compiled, and lets go of them."""
    from netmon.kernel import loader, privilege
    from netmon.kernel.interfaces import choose
    from netmon.kernel.meter.memory import choose_geometry

    privilege.require_capabilities()
    nics, _ = choose(args.interface)
    loader.prepare(choose_geometry(args.bucket_ns, len(nics), args.flows))
    return 0


def _check(settings: Settings) -> None:
    """What is wrong with files and addresses is said before anything is attached.

    Raises UsageError, CertificateError, UnsupportedError.
    """
    addresses = settings.bus or (settings.collector,)
    for address in addresses:
        folder = settings.security.folder(address, "send to")
        if folder is None:
            continue
        from netmon.wire.security import Role
        from netmon.wire.tls_files import read_tls

        identity = read_tls(folder, Role.AGENT).identity
        if identity and identity.name != settings.host:
            raise UsageError(
                f"the certificate in {folder} is of {identity}, and this host is called {settings.host}: "
                f"give --host {identity.name}, or another certificate"
            )
    if settings.security.exposed(*addresses):
        log.warning("--insecure: what is sent is not encrypted, and anybody can send in this host's name")
    if settings.metrics:
        require(("prometheus_client", "aiohttp"), "serve metrics", "metrics")
        from netmon.wire.http_listener import split_address

        split_address(settings.metrics)
