# SPDX-License-Identifier: Apache-2.0
"""`netmon top`: the live view of what the collector knows."""

import argparse
import os
import sys
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from netmon.options import DIR, declare, read_options
from netmon.own_module import require
from netmon.wire.security import Security

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from netmon.top.program import Program
    from netmon.views import Past, Selection, Snapshot

HELP = "show hosts, links, jobs and flows live"
EXAMPLES = """\
  netmon top                                   the collector on this machine
  netmon top --collector gpu-head:9400 --tls ~/.netmon      another one
  netmon top --collector head-1:9400,head-2:9400 --tls ~/.netmon   two workers as one
  netmon top --hosts gpu-3,gpu-4               two hosts and what runs there
  netmon top --job resnet                      one job and the hosts of its ranks
  netmon top --data out/demo                   what was: ← and → go from iteration to iteration
  netmon top --once                            one frame, for a log or a mail
  netmon top --once --json | jq '.jobs[].last_ns'
  netmon top --once --page 2                   the 64 links and 32 jobs that come after the worst ones
"""

_INTERVAL_MS = 500
_FLOWS = 200  # more than a screen has lines: the reader may want those of one class only
_FLOWS_ONCE = 20
_ANY_HEIGHT = 1_000_000
_END_S = 5.0  # for putting the terminal back


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--collector",
        metavar="ADDR",
        default="localhost:9400",
        help="HOST:PORT or unix:PATH; multiple workers, separated by commas (default: %(default)s)",
    )
    parser.add_argument(
        "--data", **DIR, help="show the last hour of a dataset instead, iteration by iteration, such as --data out/demo"
    )
    declare(parser, Security)
    parser.add_argument("--hosts", metavar="H1,H2", default="", help="only these hosts and the jobs on them")
    parser.add_argument(
        "--job",
        metavar="J",
        action="append",
        default=[],
        help="only this job and the hosts of its ranks; may be repeated",
    )
    parser.add_argument("--once", action="store_true", help="print one frame and exit")
    parser.add_argument("--json", action="store_true", help="with --once: print one JSON document and nothing else")
    parser.add_argument(
        "--all",
        action="store_true",
        help="with --once: every link, job and rank, not only the worst 64 links and 32 jobs",
    )
    parser.add_argument(
        "--page", type=int, default=1, metavar="N", help="with --once: the N-th 64 links and 32 jobs (%(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    """Show the view until the reader leaves it; 0 also after Ctrl-C."""
    from netmon.errors import UsageError

    if args.json and not args.once:
        raise UsageError("cannot print a live view as JSON: add --once")
    if args.all and not args.once:
        raise UsageError("cannot show everything on a screen: add --once, or turn the pages (n and p)")
    if args.page < 1 or (args.page > 1 and (args.all or not args.once)):
        raise UsageError(
            "cannot turn the page: give --once and --page 1, 2, … without --all; on a screen press n and p"
        )
    try:
        if args.json:
            from netmon.top.document import document

            print(document(_snapshot(args)))
            return 0
        from netmon import terminal

        console = terminal.console()
        if args.once:
            _print_frame(args, console)
        elif console.is_terminal:
            _show_live(args, console)
        else:
            raise UsageError("cannot show a live view: standard output is not a terminal; use --once")
    except KeyboardInterrupt:
        pass
    return 0


def _selection(args: argparse.Namespace, flows: int) -> "Selection":
    from netmon.views import OVERVIEW, Selection

    hosts = tuple(host for host in args.hosts.split(",") if host)
    selection = Selection() if args.all else OVERVIEW
    left_out = {
        "links_from": (args.page - 1) * selection.most_links,
        "jobs_from": (args.page - 1) * selection.most_jobs,
    }
    return replace(selection, hosts=hosts, jobs=tuple(args.job), flows=flows, **left_out)


def _print_frame(args: argparse.Namespace, console: "Console") -> None:
    from netmon.terminal import drawing_width
    from netmon.top.frame import render
    from netmon.top.options import Options, arrange

    options = Options(colour=console.is_terminal and not console.no_color)
    width = drawing_width(console)
    console.print(render(arrange(_snapshot(args)), options, width, _ANY_HEIGHT), width=width)


def _snapshot(args: argparse.Namespace) -> "Snapshot":
    """The present of a collector, or the newest iteration of a dataset."""
    if args.data is None:
        from netmon.wire.watch import watch_once

        return watch_once(args.collector, _selection(args, _FLOWS_ONCE), read_options(Security, args))
    from netmon.history.past import DatasetPast, StoredRows

    return DatasetPast(StoredRows(args.data)).newest(args.job[0] if args.job else None).snapshot


def _show_live(args: argparse.Namespace, console: "Console") -> None:
    from netmon.errors import UnsupportedError

    if os.environ.get("TERM", "dumb") in ("dumb", "unknown"):
        raise UnsupportedError(
            "cannot show a live view: TERM says that the terminal cannot move its cursor; use --once"
        )
    require(["textual"], "show a live view (without it: --once)", "top")
    from netmon.top.program import Program, StandardOutput

    for fixed in ("COLUMNS", "LINES"):  # exported by some shells: the size would not follow the terminal's
        os.environ.pop(fixed, None)
    current = [_selection(args, _FLOWS)]

    def turned(selection: "Selection") -> None:
        current[0] = selection

    past: Past
    updates = None
    if args.data is not None:
        from netmon.history.past import DatasetPast, StoredRows

        past = DatasetPast(StoredRows(args.data))
        past.steps()  # what cannot be read is said before the screen is taken
    else:
        from netmon.top.collector_past import CollectorPast, with_steps
        from netmon.wire.watch import follow

        security = read_options(Security, args)
        past = collector = CollectorPast(args.collector, security, lambda: _stored(args.collector, security))
        news = follow(args.collector, _INTERVAL_MS, lambda: with_steps(current[0]), security=security)
        updates = collector.remember(news)
    program = Program(updates, past, current[0], turned, colour=not console.no_color)
    program.driver_class = StandardOutput
    with _ended_by_signals(program):
        program.run()
    if program.error:
        raise program.error
    if program.return_code:  # it has printed what was wrong with itself
        sys.exit(program.return_code)


def _stored(addresses: str, security: Security) -> "Past":
    from netmon.history.past import DatasetPast
    from netmon.wire.questions import CollectorRows

    return DatasetPast(CollectorRows(addresses, security))


@contextmanager
def _ended_by_signals(program: "Program") -> "Iterator[None]":
    """SIGTERM ends the program as q does, so that the terminal is put back as it was.

    After SIGHUP there is no terminal: nothing is put back, for writing to it would wait forever.
    """
    import signal
    import threading

    received: list[int] = []

    def end(number: int, _: object) -> None:
        if number == signal.SIGHUP:
            os._exit(128 + number)
        received.append(number)
        program.call_later(program.exit)
        last = threading.Timer(_END_S, os._exit, (128 + number,))  # where the terminal does not take what is drawn
        last.daemon = True
        last.start()

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if received:
        sys.exit(128 + received[0])
