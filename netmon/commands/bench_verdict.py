# SPDX-License-Identifier: Apache-2.0
"""`netmon bench verdict`: known causes, and what is said of them."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from netmon.errors import UsageError
from netmon.units import parse_count

if TYPE_CHECKING:
    from netmon.bench.verdict.campaign import CampaignProgress

log = logging.getLogger(__name__)

_PROGRESS_EVERY_S = 10.0  # of progress lines
_TRAINERS = ("ring", "horovod", "ddp")


def add_verdict(what: argparse.ArgumentParser) -> None:
    """Declare the options of `netmon bench verdict`."""
    what.add_argument(
        "--lab", type=parse_count, default=20, metavar="N", help="causes to inject in the lab (%(default)s)"
    )
    what.add_argument(
        "--simulated", type=parse_count, default=100, metavar="N", help="causes in simulated tables (%(default)s)"
    )
    what.add_argument(
        "--rerun",
        type=parse_count,
        default=0,
        metavar="N",
        help="configurations to run with and without the culprit (0)",
    )
    what.add_argument(
        "--shift",
        type=parse_count,
        default=0,
        metavar="N",
        help="pairs of jobs to run unshifted and shifted as advised (0)",
    )
    what.add_argument("--seed", type=int, default=1, help="seed of what is random (%(default)s)")
    what.add_argument(
        "--trainer",
        action="append",
        choices=_TRAINERS,
        help="trainer; repeatable, runs take turns (ring, horovod, ddp)",
    )
    what.add_argument(
        "--kinds", default="", metavar="K,…", help="kinds to inject, as in --inject of `netmon lab run` (all)"
    )
    keep = "keep the runs' datasets here; complete ones that are there already are judged again (they are removed)"
    what.add_argument("--data", type=Path, metavar="DIR", help=keep)
    what.add_argument("--json", action="store_true", help="one JSON document on standard output")
    what.add_argument("--plot", type=Path, metavar="FILE", help="also draw the matrix, as FILE.png, .svg or .pdf")
    what.set_defaults(bench=_verdict, recorded=False, root=False, rounds=1)


def _verdict(args: argparse.Namespace) -> None:
    from netmon.bench.plot import check_plottable
    from netmon.bench.verdict.campaign import campaign
    from netmon.bench.verdict.on_tables import judge_simulated
    from netmon.bench.verdict.plan import KINDS, plan
    from netmon.bench.verdict.plot import plot
    from netmon.bench.verdict.rerun import plan_reruns, rerun
    from netmon.bench.verdict.shifting import plan_shifts, shift
    from netmon.bench.verdict.table import print_reruns, print_shifts, print_verdicts
    from netmon.kernel.privilege import require_capabilities
    from netmon.lab.injections.spec import CAUSES
    from netmon.terminal import console as standard_output

    counts = args.lab, args.simulated, args.rerun, args.shift
    if min(counts) < 0 or not any(counts):
        raise UsageError("cannot judge nothing: give --lab, --simulated, --rerun or --shift 1 or more")
    if args.lab or args.rerun or args.shift:
        require_capabilities()
    if args.plot:
        check_plottable(args.plot)
    kinds = tuple(kind for kind in args.kinds.split(",") if kind) or KINDS
    if unknown := [kind for kind in kinds if kind not in CAUSES]:
        raise UsageError(f"cannot inject {unknown[0]!r}: choose from {', '.join(CAUSES)}")
    with contextlib.ExitStack() as stack:
        data = args.data or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="netmon-verdict-")))
        specs = plan(args.lab, args.seed, args.trainer or _TRAINERS, data.resolve(), kinds)
        progress, counted = stack.enter_context(_shown())
        result = campaign(specs, progress, keep=args.data is not None)
        if not result.interrupted:
            judge_simulated(args.simulated, args.seed, result, partial(counted, "simulated table", args.simulated))
        trainers = args.trainer or _TRAINERS
        reruns = plan_reruns(0 if result.interrupted else args.rerun, args.seed, trainers, data.resolve())
        done = rerun(reruns, partial(counted, "configuration", args.rerun))
        pairs = plan_shifts(args.shift, args.seed, data.resolve())
        shifted = shift(pairs, partial(counted, "pair of jobs", args.shift))
    if args.plot:
        plot(result, args.plot)
    if args.json:
        print(json.dumps({**result.document(), "counterfactual": done.document(), "shift": shifted.document()}))
        return
    console = standard_output()
    if result.planned or args.simulated:
        print_verdicts(result, console)
    if done.planned:
        print_reruns(done, console)
    if shifted.planned:
        print_shifts(shifted, console)


@contextlib.contextmanager
def _shown() -> Iterator[tuple[Callable[[CampaignProgress], None], Callable[[str, int, int], None]]]:
    """Two functions that show how far it is, on the lab and otherwise.

    A bar on a terminal, lines elsewhere. On standard error.
    """
    from rich.console import Console
    from rich.progress import Progress

    console, said = Console(stderr=True), float("-inf")

    def show(progress: CampaignProgress) -> None:
        left = "" if progress.seconds_left is None else f", about {progress.seconds_left / 60:.0f} min left"
        text = f"run {progress.runs_done + 1} of {progress.runs}, {progress.injections} injections judged{left}"
        bar.update(task, completed=progress.runs_done, total=progress.runs, description=text)
        if bar.disable:
            log.info("bench verdict: %s", text)

    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("bench verdict", total=None)

        def show_count(what: str, count: int, done: int) -> None:
            nonlocal said
            bar.update(task, completed=done, total=count, description=f"{what} {done + 1} of {count}")
            if bar.disable and time.monotonic() >= said + _PROGRESS_EVERY_S:
                said = time.monotonic()
                log.info("bench verdict: %s %d of %d", what, done + 1, count)

        yield show, show_count
