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

_TRAINERS = ("ring", "horovod", "ddp")


def add_verdict(what: argparse.ArgumentParser) -> None:
    """The options."""
    what.add_argument("--lab", type=parse_count, default=20, metavar="N", help="injections on the lab (%(default)s)")
    what.add_argument("--seed", type=int, default=1, help="of what is random (default: %(default)s)")
    what.add_argument(
        "--trainer", action="append", choices=_TRAINERS, help="repeatable, runs take turns (ring, horovod, ddp)"
    )
    what.add_argument("--kinds", default="", metavar="K,…", help="what is injected, as --inject has it (everything)")
    keep = "where the runs' datasets stay; complete ones that are there are judged again (nowhere)"
    what.add_argument("--data", type=Path, metavar="DIR", help=keep)
    what.add_argument("--json", action="store_true", help="one JSON document on standard output")
    what.set_defaults(bench=_verdict, recorded=False, rounds=1)


def _verdict(args: argparse.Namespace) -> None:
    from rich.console import Console

    from netmon.bench.verdict.campaign import campaign
    from netmon.bench.verdict.plan import KINDS, plan
    from netmon.bench.verdict.table import print_verdicts

    if args.lab < 1:
        raise UsageError(f"cannot judge {args.lab} injections: give --lab 1 or more")
    kinds = tuple(kind for kind in args.kinds.split(",") if kind) or KINDS
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise UsageError(f"cannot inject {unknown[0]!r}: choose from {', '.join(KINDS)}")
    with contextlib.ExitStack() as stack:
        data = args.data or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="netmon-verdict-")))
        specs = plan(args.lab, args.seed, args.trainer or _TRAINERS, data.resolve(), kinds)
        progress = stack.enter_context(_shown())
        result = campaign(specs, progress, keep=args.data is not None)
    if args.json:
        print(json.dumps(result.document()))
    else:
        print_verdicts(result, Console(highlight=False))


@contextlib.contextmanager
def _shown() -> Iterator[Callable[[CampaignProgress], None]]:
    """Shows how far a campaign is: a bar on a terminal, a line for every run elsewhere. On standard error."""
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
        yield show
