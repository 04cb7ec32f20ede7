# SPDX-License-Identifier: Apache-2.0
"""`netmon advise`: what could be done about jobs that share links, and pairs of ranks that are slow."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from netmon.errors import UsageError
from netmon.units import parse_time

if TYPE_CHECKING:
    from netmon.dl.sharing.advice import Advice

HELP = "by how much to shift one job beside another, which pairs of ranks are slow, what bandwidth nobody needs"
EXAMPLES = """\
  netmon advise --data out
  netmon advise training --data /var/lib/netmon --seconds 60
  netmon advise --data out --until 2026-01-31T09:30:00 --json
"""
_MOST_SECONDS = 600


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("job", nargs="?", metavar="JOB", help="only this job and those that share its links (all)")
    parser.add_argument("--data", type=Path, metavar="DIR", help="the dataset's directory")
    parser.add_argument(
        "--seconds",
        type=float,
        default=30.0,
        metavar="S",
        help="how much of the time to look at (default: %(default)g)",
    )
    parser.add_argument(
        "--until", type=parse_time, metavar="T", help="the end of that time: ISO 8601, UTC unless it says else (newest)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document")


def run(args: argparse.Namespace) -> int:
    """Print the advice and its arithmetic."""
    from netmon.dl.sharing.advice import document, renamed
    from netmon.report.job_names import asked_job, job_names
    from netmon.report.sharing import advice

    if args.data is None:
        raise UsageError("cannot advise: give the dataset's --data")
    if not 0 < args.seconds <= _MOST_SECONDS:
        raise UsageError(f"cannot look at {args.seconds:g} s: give --seconds up to {_MOST_SECONDS}")
    names = job_names(args.data)
    asked = asked_job(args.job, names)
    found = advice(args.data, args.seconds, args.until, [asked] if asked else [])
    if args.json:
        print(json.dumps(document(found), indent=1))
    else:
        _print(renamed(found, names))
    return 0


def _print(found: "Advice") -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from netmon.dl.sharing.advice import pair_row, sentences
    from netmon.units import format_duration

    for sentence in sentences(found):
        print(sentence)
    console = Console()
    jobs = Table("job", "iterations", "takes", "alone", "transfers", title="jobs", title_justify="left")
    for one in found.jobs:
        alone = format_duration(one.period_ns) + ("" if one.alone else " (fastest)")
        measured = format_duration(one.measured_ns)
        jobs.add_row(escape(one.job), str(len(one.starts_ns) - 1), measured, alone, f"{one.busy:.0%}")
    pairs = Table(
        "job", "pair", "bytes", "pace", "sends", "to be had", "", title="pairs of ranks", title_justify="left"
    )
    for pair in found.pairs:
        pairs.add_row(*map(escape, pair_row(pair)))
    for table in (jobs, pairs):
        if table.row_count:
            print()
            console.print(table)
