# SPDX-License-Identifier: Apache-2.0
"""`netmon top`: the live view of what the collector knows."""

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

HELP = "show hosts, links, jobs and flows live"
EXAMPLES = """\
  netmon top                                   the collector on this machine
  netmon top --collector gpu-head:9400         another one
  netmon top --once                            one frame, for a log or a mail
  netmon top --once --json | jq '.jobs[].last_ns'
"""

_INTERVAL_MS = 500
_FLOWS = 200  # more than a screen has lines: the reader may want those of one class only
_FLOWS_ONCE = 20
_ANY_HEIGHT = 1_000_000


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "--collector", metavar="ADDR", default="localhost:9400", help="HOST:PORT or unix:PATH (default: %(default)s)"
    )
    parser.add_argument("--once", action="store_true", help="print one frame and exit")
    parser.add_argument("--json", action="store_true", help="with --once: print one JSON document and nothing else")


def run(args: argparse.Namespace) -> int:
    """Show the view until the reader leaves it; 0 also after Ctrl-C."""
    from rich.console import Console

    from netmon.errors import UsageError

    console = Console(highlight=False)
    if args.json and not args.once:
        raise UsageError("cannot print a live view as JSON: add --once")
    if not args.once and not console.is_terminal:
        raise UsageError("cannot show a live view: standard output is not a terminal; use --once")
    try:
        if args.json:
            print(_document(args.collector))
        elif args.once:
            _print_frame(args.collector, console)
        else:
            _show_live(args.collector, console)
    except KeyboardInterrupt:
        pass
    return 0


def _document(address: str) -> str:
    from netmon.top.document import document
    from netmon.wire.watch import watch_once

    return document(watch_once(address, _FLOWS_ONCE))


def _print_frame(address: str, console: "Console") -> None:
    from netmon.top.frame import render
    from netmon.top.options import Options, arrange
    from netmon.wire.watch import watch_once

    options = Options(colour=console.is_terminal and not console.no_color)
    snapshot = arrange(watch_once(address, _FLOWS_ONCE), options)
    console.print(render(snapshot, options, console.width, _ANY_HEIGHT))


def _show_live(address: str, console: "Console") -> None:
    import signal
    import sys

    from netmon.top.live import run_live
    from netmon.wire.watch import follow

    # An exit by exception, so that the terminal is put back as it was.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    run_live(follow(address, _INTERVAL_MS, _FLOWS), console)
