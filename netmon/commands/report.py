# SPDX-License-Identifier: Apache-2.0
"""`netmon report`: tables, figures and one page from a dataset."""

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from netmon.options import DIR, RATE
from netmon.own_module import require

if TYPE_CHECKING:
    from netmon.report.report import Written

HELP = (
    "one HTML page, tables (CSV) and figures (PNG): who slowed whom, the jobs, the links, and the papers' measurements"
)
EXAMPLES = """\
  netmon report out --out report
  netmon report out --out report --job training
  netmon report out --out report --study         only the papers' measurements
  netmon report /var/lib/netmon --out report --rate 25gbit
"""
_NEEDS = ("jinja2", "matplotlib", "scipy")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", type=Path, metavar="DATA", help="the dataset's directory, of a collector or a lab")
    parser.add_argument("--out", required=True, **DIR, help="folder for the report")
    parser.add_argument("--study", action="store_true", help="only the chapters that repeat the papers' measurements")
    parser.add_argument("--job", metavar="J", help="only this job and its hosts")
    parser.add_argument("--rate", default=0, **RATE, help="capacity of a link, such as 25gbit (as the dataset says)")


def run(args: argparse.Namespace) -> int:
    """Write the report; says on standard output what it found, and what is missing."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    require(_NEEDS, "make a report", "report")
    from netmon.history.dataset import job_names, requested_job
    from netmon.report.report import chapters, write_report
    from netmon.report.study import read_study

    console = Console(stderr=True)
    columns = (BarColumn(20), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("reading", total=None)
        job = requested_job(args.job, job_names(args.data)) if args.job else None
        study = read_study(args.data, job, args.rate, lambda done, of: progress.update(task, completed=done, total=of))
        contents = chapters(args.study)
        progress.reset(task, total=sum(len(chapter.exhibits) for chapter in contents))
        title = f"netmon report: {args.data.resolve().name}" + (f", job {args.job}" if args.job else "")
        said = lambda name: progress.update(task, description=name, advance=1)  # noqa: E731
        written = write_report(study, args.out, _command(args), title, contents, said)
    _print(written)
    return 0


def _command(args: argparse.Namespace) -> str:
    words = ["netmon", "report", str(args.data), "--out", str(args.out)]
    words += ["--study"] if args.study else []
    words += ["--job", args.job] if args.job else []
    words += ["--rate", f"{args.rate}bit"] if args.rate else []
    return shlex.join(words)


def _print(written: "Written") -> None:
    from netmon.terminal import say

    for sentence in written.findings:
        say(f"- {sentence}")
    if written.missing:
        print("missing:")
    for sentence in written.missing:
        say(f"- {sentence}")
    print(f"{written.figures} figures, {written.tables} tables: {written.page}")
