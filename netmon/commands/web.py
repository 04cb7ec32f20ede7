# SPDX-License-Identifier: Apache-2.0
"""`netmon web`: a live timeline in a browser."""

import argparse
from typing import TYPE_CHECKING

from netmon.errors import UsageError
from netmon.options import DIR, FILE, declare, read_options
from netmon.own_module import require
from netmon.wire.security import Security

if TYPE_CHECKING:
    from netmon.web.source import Source

HELP = "a live timeline in a browser: hosts and jobs, iterations, bytes by class, verdicts, advice"
EXAMPLES = """\
  netmon web                                     the collector on this machine; open http://localhost:9480
  netmon web --data out/demo                     a dataset, also while a collector writes it
  netmon web gpu-head:9400 --tls ~/.netmon       another machine's collector
  netmon web --data /var/lib/netmon --listen 0.0.0.0:9480 --listen-tls /etc/netmon/tls --tokens /etc/netmon/tokens
"""
_NEEDS = ("aiohttp",)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "collector",
        nargs="?",
        metavar="ADDR",
        help="a collector: HOST:PORT or unix:PATH; multiple workers, separated by commas (localhost:9400)",
    )
    parser.add_argument("--data", **DIR, help="show a dataset instead of a collector")
    declare(parser, Security)
    parser.add_argument(
        "--listen", default="localhost:9480", metavar="HOST:PORT", help="where browsers connect (%(default)s)"
    )
    parser.add_argument(
        "--listen-tls",
        **DIR,
        help="serve https with this certificate (of `netmon certificates DIR collector NAME`); browsers then need a "
        "viewer's certificate or token. Without it only browsers on this machine can connect",
    )
    parser.add_argument("--tokens", **FILE, help="tokens of viewers (`netmon certificates DIR token`)")


def run(args: argparse.Namespace) -> int:
    """Serve until a signal."""
    import asyncio

    require(_NEEDS, "serve a page", "web")
    from netmon.web.server import Access, serve

    if args.data and args.collector:
        raise UsageError("cannot show two things on one page: give a collector's address or --data")
    own = Security(args.listen_tls, args.insecure and not args.listen_tls)
    access = Access(args.listen, own, args.tokens)
    source = _source(args)
    try:
        asyncio.run(serve(source, access, args.listen, lambda address: print(f"netmon web: {address}", flush=True)))
    finally:
        source.close()
    return 0


def _source(args: argparse.Namespace) -> "Source":
    if args.data:
        from netmon.web.stored import Stored

        return Stored(args.data)
    from netmon.web.live import Live

    return Live(args.collector or "localhost:9400", read_options(Security, args))
