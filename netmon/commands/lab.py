# SPDX-License-Identifier: Apache-2.0
"""`netmon lab`: a testbed on this machine."""

from __future__ import annotations

import argparse
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from netmon.errors import UsageError
from netmon.units import format_bytes, format_duration, parse_count, parse_duration, parse_rate

if TYPE_CHECKING:
    from rich.console import Console

    from netmon.lab.run import RunResult
    from netmon.lab.spec import RunSpec

HELP = "train, disturb and watch, in network namespaces on this machine (needs root)"
EXAMPLES = """\
  netmon lab demo                                              something worth seeing in half a minute
  netmon lab run --data out/one --trainer horovod              real Horovod, built on first use
  netmon lab run --data out/two --ring 0,1,2 --cross 3:0 --cross 3:1 --cross-profile websearch
  netmon lab clean                                             remove what a killed lab left behind
"""

_DEMO_ITERATIONS = 70
_DEMO_DATA = Path("out/demo")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    commands = parser.add_subparsers(required=True, metavar="WHAT")
    run_parser = commands.add_parser("run", help="one run of a training job, watched")
    run_parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="where the dataset goes")
    _add_run_options(run_parser, iterations=50)
    run_parser.set_defaults(lab=_run)
    demo = commands.add_parser("demo", help="a run with defaults that show something worth seeing")
    demo.add_argument("--data", type=Path, default=_DEMO_DATA, metavar="DIR", help="default: %(default)s")
    _add_run_options(demo, iterations=_DEMO_ITERATIONS)
    demo.set_defaults(lab=_demo)
    clean = commands.add_parser("clean", help="remove what a killed lab left behind")
    clean.add_argument("--all", action="store_true", help="also labs that are running now")
    clean.set_defaults(lab=_clean)


def run(args: argparse.Namespace) -> int:
    """Run the subcommand."""
    import signal

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ended like Ctrl-C: everything is removed
    status: int = args.lab(args)
    return status


def _hosts(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(host) for host in text.split(","))
    except ValueError:
        raise UsageError(f"cannot read {text!r} as hosts: write numbers, such as 0,1,3") from None


def _pair(text: str) -> tuple[int, int]:
    source, _, target = text.partition(":")
    try:
        return int(source), int(target)
    except ValueError:
        raise UsageError(f"cannot read {text!r} as cross traffic: write FROM:TO, such as 2:0") from None


def _add_run_options(parser: argparse.ArgumentParser, iterations: int) -> None:
    job = parser.add_argument_group("the training job")
    job.add_argument("--trainer", default="ring", help="ring, or horovod: the real one (default: %(default)s)")
    job.add_argument("--ring", type=_hosts, default="0,1,3", metavar="HOSTS", help="of rank 0, 1, … (0,1,3)")
    job.add_argument("--params", type=parse_count, default="4e6", metavar="N", help="float32 parameters (4e6)")
    job.add_argument("--compute", type=parse_duration, default="100ms", metavar="TIME", help="per iteration (100ms)")
    job.add_argument("--iterations", type=parse_count, default=iterations, metavar="N", help="default: %(default)s")
    network = parser.add_argument_group("the network")
    network.add_argument("--hosts", type=int, default=4, metavar="N", help="around one switch (default: %(default)s)")
    network.add_argument("--rate", type=parse_rate, default="1gbit", help="of every port, each way (1gbit)")
    cross = parser.add_argument_group("cross traffic")
    cross.add_argument("--cross", type=_pair, action="append", metavar="FROM:TO", help="hosts; repeatable (2:0)")
    cross.add_argument("--cross-load", type=float, default=0.8, metavar="SHARE", help="of the rate; 0: none (0.8)")
    cross.add_argument("--cross-profile", default="iperf", help="iperf, websearch or burst (default: %(default)s)")
    cross.add_argument("--cross-after", type=float, default=0.5, metavar="SHARE", help="of the iterations (0.5)")
    cross.add_argument("--seed", type=int, default=1, help="of what is random (default: %(default)s)")
    watch = parser.add_argument_group("how it is watched")
    watch.add_argument("--bucket", type=parse_duration, default="10us", metavar="TIME", help="width (10us)")
    watch.add_argument("--hook", choices=("auto", "tc", "xdp"), default="auto", help="default: %(default)s")
    watch.add_argument("--no-monitor", action="store_true", help="the same run, unobserved")
    watch.add_argument("--overwrite", action="store_true", help="a run that --data holds already")


def _spec(args: argparse.Namespace, overwrite: bool) -> RunSpec:
    from netmon.lab.spec import RunSpec

    return RunSpec(
        data=args.data.resolve(),
        trainer=args.trainer,
        hosts=args.hosts,
        ring=args.ring,
        cross=tuple(args.cross or RunSpec.cross),
        rate_bps=args.rate,
        parameters=args.params,
        compute_ns=args.compute,
        iterations=args.iterations,
        cross_load=args.cross_load,
        cross_profile=args.cross_profile,
        cross_after=args.cross_after,
        seed=args.seed,
        bucket_ns=args.bucket,
        hook=args.hook,
        monitor=not args.no_monitor,
        overwrite=overwrite,
    )


def _run(args: argparse.Namespace) -> int:
    return _run_spec(_spec(args, args.overwrite), live=False)


def _demo(args: argparse.Namespace) -> int:
    return _run_spec(_spec(args, overwrite=True), live=True)


def _run_spec(spec: RunSpec, live: bool) -> int:
    """live: draw `netmon top` meanwhile, where there is a terminal for it."""
    from rich.console import Console

    from netmon.lab.progress import shown
    from netmon.lab.run import run as run_lab

    console = Console(highlight=False)
    if live and spec.monitor and console.is_terminal:
        result = run_lab(spec, view=lambda address: _live_view(address, console))
    else:
        with shown(spec) as progress:
            result = run_lab(spec, progress=progress)
    _print_result(result, spec.monitor, console)
    return 0


@contextlib.contextmanager
def _live_view(address: str, console: Console) -> Iterator[None]:
    """`netmon top` on a thread of its own. Whoever quits it sees the run's end all the same."""
    from netmon.top.live import run_live
    from netmon.wire.watch import follow

    over = threading.Event()
    updates = follow(address, interval_ms=500, flows=200)
    view = threading.Thread(target=run_live, args=(updates, console, over.is_set), name="view", daemon=True)
    view.start()
    try:
        yield
    finally:
        over.set()
        view.join()


def _print_result(result: RunResult, monitored: bool, console: Console) -> None:
    from netmon.report.summary import summarise

    if monitored:
        summarise(result.data).print(console)
    for sender in result.cross:
        if "bytes_sent" in sender:
            sent = format_bytes(sender["bytes_sent"])
            console.print(f"cross traffic, by its sender: {sender['from']} to {sender['to']}, {sent}")
    _print_truth(result, console)
    if monitored:
        _print_accuracy(result, console)
    if monitored:
        data = result.data
        with contextlib.suppress(ValueError):
            data = data.relative_to(Path.cwd())
        console.print(
            f"dataset: {data}; next:\n"
            f"  netmon export --data {data} --out iterations.csv\n"
            f"  python -c \"import pandas; print(pandas.read_parquet('{data}/iterations'))\"\n"
            "  netmon doctor",
            soft_wrap=True,
        )


def _print_truth(result: RunResult, console: Console) -> None:
    """The trainers' own log, to compare with."""
    import numpy as np

    from netmon.lab.truth import quiet_and_disturbed

    quiet, disturbed = quiet_and_disturbed(result.data)
    told = [
        f"{len(durations)} iterations {when} cross traffic, median {format_duration(float(np.median(durations)))}"
        for durations, when in ((quiet, "without"), (disturbed, "with"))
        if len(durations)
    ]
    console.print(f"the trainers' own log: {'; '.join(told)}", soft_wrap=True)


def _print_accuracy(result: RunResult, console: Console) -> None:
    from netmon.lab.accuracy import accuracy

    known = accuracy(result.data)
    console.print(f"iterations found: {known.found} of {known.logged}, invented: {known.invented}")
    for each in known.moments:
        median, p99, worst = (format_duration(each.percentile(share)) for share in (50, 99, 100))
        left_out = f"; {each.left_out} not noted at once left out" if each.left_out else ""
        console.print(
            f"  {each.moment} against the log: median {median}, p99 {p99}, largest {worst}{left_out}", soft_wrap=True
        )


def _clean(args: argparse.Namespace) -> int:
    from netmon.lab.lease import abandoned, remove, runs

    found = runs() if args.all else abandoned()
    for name in found:
        remove(name)
        print(f"removed run {name}")
    if not found:
        print("nothing was left behind")
    return 0
