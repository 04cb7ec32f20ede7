# SPDX-License-Identifier: Apache-2.0
"""`netmon bench verdict`: known causes, and what is said of them."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from netmon.errors import UsageError
from netmon.units import parse_count

if TYPE_CHECKING:
    from netmon.bench.verdict.campaign import CampaignProgress

log = logging.getLogger(__name__)

_TABLES_APART = 50  # of lines that tell the progress
_TRAINERS = ("ring", "horovod", "ddp")


def add_verdict(what: argparse.ArgumentParser) -> None:
    """The options."""
    what.add_argument("--lab", type=parse_count, default=20, metavar="N", help="injections on the lab (%(default)s)")
    what.add_argument(
        "--simulated", type=parse_count, default=100, metavar="N", help="on tables of jobs that never ran (%(default)s)"
    )
    what.add_argument("--seed", type=int, default=1, help="of what is random (default: %(default)s)")
    what.add_argument(
        "--trainer", action="append", choices=_TRAINERS, help="repeatable, runs take turns (ring, horovod, ddp)"
    )
    what.add_argument("--kinds", default="", metavar="K,…", help="what is injected, as --inject has it (everything)")
    keep = "where the runs' datasets stay; complete ones that are there are judged again (nowhere)"
    what.add_argument("--data", type=Path, metavar="DIR", help=keep)
    what.add_argument("--json", action="store_true", help="one JSON document on standard output")
    what.set_defaults(bench=_verdict, recorded=False, root=False, rounds=1)


def _verdict(args: argparse.Namespace) -> None:
    from rich.console import Console

    from netmon.bench.verdict.campaign import campaign
    from netmon.bench.verdict.on_tables import judge_simulated
    from netmon.bench.verdict.plan import KINDS, plan
    from netmon.bench.verdict.table import print_verdicts
    from netmon.kernel.privilege import require_capabilities

    if args.lab < 0 or args.simulated < 0 or args.lab + args.simulated == 0:
        raise UsageError("cannot judge nothing: give --lab or --simulated 1 or more")
    if args.lab:
        require_capabilities()
    kinds = tuple(kind for kind in args.kinds.split(",") if kind) or KINDS
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise UsageError(f"cannot inject {unknown[0]!r}: choose from {', '.join(KINDS)}")
    with contextlib.ExitStack() as stack:
        data = args.data or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="netmon-verdict-")))
        specs = plan(args.lab, args.seed, args.trainer or _TRAINERS, data.resolve(), kinds)
        progress, tables = stack.enter_context(_shown())
        result = campaign(specs, progress, keep=args.data is not None)
        if not result.interrupted:
            judge_simulated(args.simulated, args.seed, result, lambda done: tables(done, args.simulated))
    if args.json:
        print(json.dumps(result.document()))
    else:
        print_verdicts(result, Console(highlight=False))


@contextlib.contextmanager
def _shown() -> Iterator[tuple[Callable[[CampaignProgress], None], Callable[[int, int], None]]]:
    """Two functions that show how far it is, on the lab and with tables.

    A bar on a terminal, lines elsewhere. On standard error.
    """
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)

    def show(progress: CampaignProgress) -> None:
        left = "" if progress.seconds_left is None else f", about {progress.seconds_left / 60:.0f} min left"
        text = f"run {progress.runs_done + 1} of {progress.runs}, {progress.injections} injections judged{left}"
        bar.update(task, completed=progress.runs_done, total=progress.runs, description=text)
        if bar.disable:
            log.info("bench verdict: %s", text)

    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("bench verdict", total=None)

        def show_tables(done: int, count: int) -> None:
            bar.update(task, completed=done, total=count, description=f"simulated table {done + 1} of {count}")
            if bar.disable and done % _TABLES_APART == 0:
                log.info("bench verdict: simulated table %d of %d", done + 1, count)

        yield show, show_tables
