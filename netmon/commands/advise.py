# SPDX-License-Identifier: Apache-2.0
"""`netmon advise`: what could be done about jobs that share links, and pairs of ranks that are slow."""

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from netmon.errors import UsageError
from netmon.options import DIR, declare, read_options
from netmon.units import parse_time
from netmon.wire.security import Security

if TYPE_CHECKING:
    from netmon.terminal import FittingTable

HELP = "advise on whose traffic to limit or move, jobs that share links (by how much to shift one), and slow ranks"
EXAMPLES = """\
  netmon advise --data out
  netmon advise training --data /var/lib/netmon --seconds 60
  netmon advise --collector collector.example:9400 --tls ~/.netmon
  netmon advise --data out --until 2026-01-31T09:30:00 --json
"""
_SECONDS, _MOST_SECONDS = 30.0, 600.0


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", nargs="?", metavar="JOB", help="only this job and those that share its links (all)")
    parser.add_argument("--data", **DIR, help="the dataset's directory")
    parser.add_argument(
        "--collector", metavar="ADDR", help="instead of --data: the last seconds of a collector; HOST:PORT or unix:PATH"
    )
    declare(parser, Security)
    parser.add_argument(
        "--seconds", type=float, metavar="S", help=f"seconds of the dataset to look at (default: {_SECONDS:g})"
    )
    parser.add_argument(
        "--until",
        type=parse_time,
        metavar="T",
        help="end of these seconds: ISO 8601, UTC unless it says otherwise (the newest row)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document")


def run(args: argparse.Namespace) -> int:
    if (args.data is None) == (args.collector is None):
        raise UsageError("cannot advise: give either the dataset's --data or a --collector")
    from netmon.dl.sharing.advice_text import called

    found = _live(args) if args.collector else _stored(args)
    if args.json:
        print(json.dumps(found, indent=1))
    else:
        _print(called(found))
    return 0


def _stored(args: argparse.Namespace) -> dict[str, Any]:
    from netmon.dl.sharing.advice_text import document
    from netmon.history.advice import advice
    from netmon.history.dataset import job_names, requested_job

    seconds = _SECONDS if args.seconds is None else args.seconds
    if not 0 < seconds <= _MOST_SECONDS:
        raise UsageError(f"cannot look at {seconds:g} s: give --seconds up to {_MOST_SECONDS:g}")
    names = job_names(args.data)
    requested = requested_job(args.job, names)
    return document(advice(args.data, seconds, args.until, [requested] if requested else []), names)


def _live(args: argparse.Namespace) -> dict[str, Any]:
    from netmon.wire.questions import get_advice

    if args.until is not None or args.seconds is not None:
        raise UsageError(
            "cannot choose the time with --collector, which keeps its last seconds: --seconds and --until need --data"
        )
    return get_advice(args.collector, args.job or "", read_options(Security, args))


def _print(found: dict[str, Any]) -> None:
    from netmon.dl.sharing.advice import culprit_sentence
    from netmon.terminal import console, say

    culprits = found["culprits"]
    for culprit in culprits:
        say(culprit_sentence(culprit))
        for one in culprit["commands"]:
            say(f"  {one['does']}, on {culprit['at']}: {one['run']}")
            say(f"  {'undo':>{len(one['does'])}}: {one['undo']}")
    for text in found["advice"][len(culprits) :]:
        say(text)
    for table in tables(found):
        print()
        console().print(table)


def tables(found: dict[str, Any]) -> "Iterator[FittingTable]":
    """The tables of the advice that have rows. found: the advice as JSON has it."""
    from netmon.dl.sharing.advice_text import TABLES, rows
    from netmon.marks import printable
    from netmon.terminal import Column, FittingTable

    labels = ("job", "other job", "pair", "link", "")
    for title, lines in rows(found).items():
        columns = [
            Column(heading, heading not in labels, prose=heading in ("other job", "pair")) for heading in TABLES[title]
        ]
        table = FittingTable(columns, title)
        for line in lines:
            table.add_row(*(printable(cell, 4 * len(cell)) for cell in line))
        if lines:
            yield table
