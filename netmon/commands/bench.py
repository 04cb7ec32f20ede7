# SPDX-License-Identifier: Apache-2.0
"""`netmon bench`: netmon measured on this machine."""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from netmon.commands.bench_verdict import add_verdict
from netmon.errors import UsageError
from netmon.units import parse_count

if TYPE_CHECKING:
    from rich.console import RenderableType

    from netmon.bench.pipeline.load import Load

log = logging.getLogger(__name__)

HELP = "measure netmon itself (on this machine: needs root)"
EXAMPLES = """\
  netmon bench kernel              ns per packet of the BPF programs, and of the least such a program can do
  netmon bench drain --json        records per second of the agent's drain
  netmon bench overhead            throughput of a stream watched by nobody, netmon or tcpdump
  netmon bench overhead --rounds 15 --seconds 5 --plot overhead.png
  netmon bench overhead --evidence --rounds 5 --seconds 30
  netmon bench flows               what a flood of new flows costs the agent and the collector
  netmon bench hook                what marking a step costs the training (needs no root)
  netmon bench clock               how well injected clock offsets and skews are recovered
  netmon bench inference           jobs and iterations found in recorded traffic, compared with the trainers' log
  netmon bench pipeline --hosts 64  cost of the collector under simulated agents, and whether its dataset is right
  netmon bench verdict --lab 100    causes brought about in the lab, and what `netmon why` says of each
  netmon bench pipeline --bus nats --collectors 2 --hosts 64 --jobs 8 --rows 1000 --seconds 60
                                   two workers compared with one: the same batches, the same CPU for each worker
  netmon bench inference out/one   the same on what `netmon lab run --data out/one` recorded
"""


_FLOWS = "CPU and memory of the agent and the collector under a flood of new flows"
_HOOK = "time that marking a step by netmon.horovod costs the training, with and without an agent (needs no root)"
_CLOCK = "how well injected clock offsets and skews are recovered, by exchange and by traffic (two minutes)"
_PIPELINE = "the collector under simulated agents: cost, delay, and whether its dataset is right (needs no root)"
_INFERENCE = "jobs and iterations found in traffic alone, compared with the trainers' log (needs no root)"
_VERDICT = "known causes of slow iterations, brought about in the lab, and what `netmon why` says of each"

_MOST_CPUS = 1024
_PROGRESS_EVERY_S = 10.0  # of progress lines


class _Result(Protocol):
    def document(self) -> dict[str, Any]: ...


_R = TypeVar("_R", bound=_Result)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands and their options."""
    parser.set_defaults(root=True)
    whats = parser.add_subparsers(required=True, metavar="WHAT")
    for name, text, rounds, bench in (
        ("kernel", "ns per packet of the BPF programs, by test runs in the kernel", 15, _kernel),
        ("drain", "records per second of the agent's drain", 15, _drain),
        (
            "overhead",
            "throughput and CPU time of iperf3 when it is watched by nobody, netmon and tcpdump",
            7,
            _overhead,
        ),
    ):
        what = whats.add_parser(name, help=text, description=text)
        what.add_argument("--rounds", type=int, default=rounds, metavar="N", help="repetitions (default: %(default)s)")
        what.add_argument("--json", action="store_true", help="one JSON document on standard output")
        what.set_defaults(bench=bench, recorded=False)
        if name == "drain":
            what.add_argument(
                "--cpus", type=int, default=128, metavar="N", help="CPUs of a simulated host (default: %(default)s)"
            )
    what.add_argument(
        "--seconds", type=float, default=3, metavar="S", help="seconds of each run (default: %(default)s)"
    )
    what.add_argument(
        "--congestion", default="", metavar="NAME", help="TCP congestion control, such as cubic (the machine's)"
    )
    what.add_argument("--plot", type=Path, metavar="FILE", help="also draw it, as FILE.png, .svg or .pdf")
    what.add_argument(
        "--evidence", action="store_true", help="instead: what verdicts and their evidence cost agents and collector"
    )
    _flows_arguments(whats.add_parser("flows", help=_FLOWS, description=_FLOWS))
    _hook_arguments(whats.add_parser("hook", help=_HOOK, description=_HOOK))
    _clock_arguments(whats.add_parser("clock", help=_CLOCK, description=_CLOCK))
    _inference_arguments(whats.add_parser("inference", help=_INFERENCE, description=_INFERENCE))
    _pipeline_arguments(whats.add_parser("pipeline", help=_PIPELINE, description=_PIPELINE))
    add_verdict(whats.add_parser("verdict", help=_VERDICT, description=_VERDICT))


def _flows_arguments(what: argparse.ArgumentParser) -> None:
    what.add_argument("--rate", type=parse_count, default=20_000, metavar="N", help="new flows a second (20000)")
    what.add_argument("--seconds", type=float, default=60, metavar="S", help="seconds to send (default: %(default)s)")
    what.add_argument("--json", action="store_true", help="one JSON document on standard output")
    what.set_defaults(bench=_flows, recorded=False, rounds=1)


def _hook_arguments(what: argparse.ArgumentParser) -> None:
    what.add_argument("--rounds", type=int, default=5, metavar="N", help="repetitions (default: %(default)s)")
    what.add_argument("--json", action="store_true", help="one JSON document on standard output")
    what.set_defaults(bench=_hook, recorded=False, root=False)


def _clock_arguments(what: argparse.ArgumentParser) -> None:
    what.add_argument(
        "--seconds", type=float, default=12, metavar="S", help="seconds of each of six runs (default: %(default)s)"
    )
    what.add_argument("--json", action="store_true", help="one JSON document on standard output")
    what.set_defaults(bench=_clock, recorded=False, rounds=1)


def _inference_arguments(what: argparse.ArgumentParser) -> None:
    text = "a labelled table, the DATA of a `netmon lab run`, or a directory of either (the checkout's recorded runs)"
    what.add_argument("path", type=Path, nargs="?", metavar="PATH", help=text)
    what.add_argument("--json", action="store_true", help="one JSON document on standard output")
    what.set_defaults(bench=_inference, recorded=True)


def _pipeline_arguments(what: argparse.ArgumentParser) -> None:
    for option, default, text in (
        ("--hosts", 8, "agents"),
        ("--rows", 200, "rows of 1 ms that each agent sends in a second"),
        ("--flows", 0, "flows alive on each host (as many as the rows need)"),
        ("--jobs", 1, "training jobs; neighbouring hosts are the ranks of one"),
        ("--seconds", 20, "seconds to send"),
        ("--batches", 5, "batches of each agent in a second"),
        ("--new-flows", 0, "flows that begin, and as many that end, on each host in a second (0)"),
        ("--greedy", 1, "how many times its share the first agent sends"),
        ("--collectors", 1, "workers, compared with one; more than 1 need --bus nats and root"),
    ):
        shown = text if not default else f"{text} (%(default)s)"
        what.add_argument(option, type=parse_count, default=default, metavar="N", help=shown)
    what.add_argument(
        "--bus", choices=("grpc", "nats"), default="grpc", help="channel between agents and collector (%(default)s)"
    )
    what.add_argument(
        "--cpu",
        type=float,
        default=0,
        metavar="CORES",
        help="cores for each of several workers (0.4 of the machine's, shared out)",
    )
    what.add_argument(
        "--viewer",
        choices=("top", "all"),
        default="top",
        help="what a viewer asks for twice a second: as netmon top does, or everything (%(default)s)",
    )
    what.add_argument("--cut", action="store_true", help="end the collector while the agents still send")
    what.add_argument("--data", type=Path, metavar="DIR", help="keep the dataset here (it is removed)")
    what.add_argument("--json", action="store_true", help="one JSON document on standard output")
    what.add_argument("--plot", type=Path, metavar="FILE", help="vary hosts, flows and jobs, and draw the cost")
    what.set_defaults(bench=_pipeline, recorded=False, root=False, rounds=1)


def run(args: argparse.Namespace) -> int:
    """Measure, then print. Raises UsageError, and UnsupportedError without the root that it needs."""
    from netmon.kernel.privilege import require_capabilities

    if args.recorded:  # nothing of this machine is measured but the time that it takes
        args.bench(args)
        return 0
    if args.rounds < 1:
        raise UsageError(f"cannot measure in {args.rounds} rounds: give --rounds 1 or more")
    if args.root:
        require_capabilities()
    args.bench(args)
    return 0


@contextmanager
def _progress(what: str, rounds: int) -> Iterator[Callable[[float], None]]:
    """A function that takes the rounds done: a bar on standard error, or lines of text where that is no terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    said = time.monotonic()

    def tell(done: float) -> None:
        nonlocal said
        bar.update(task, completed=done)
        if bar.disable and time.monotonic() >= said + _PROGRESS_EVERY_S:
            said = time.monotonic()
            log.info("bench %s: %.1f of %d rounds", what, done, rounds)

    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"bench {what}, {rounds} rounds", total=rounds)
        yield tell


def _kernel(args: argparse.Namespace) -> None:
    from netmon.bench.kernel import measure
    from netmon.bench.tables import kernel_table

    with _progress("kernel", args.rounds) as progress:
        result = measure(args.rounds, progress)
    _print(args, result, kernel_table)


def _drain(args: argparse.Namespace) -> None:
    from netmon.bench.drain import measure
    from netmon.bench.tables import drain_table

    if not 1 <= args.cpus <= _MOST_CPUS:
        raise UsageError(f"cannot simulate {args.cpus} CPUs: give --cpus from 1 to {_MOST_CPUS}")
    with _progress("drain", args.rounds) as progress:
        result = measure(args.rounds, args.cpus, progress)
    _print(args, result, drain_table)


def _overhead(args: argparse.Namespace) -> None:
    from netmon.bench.overhead import measure
    from netmon.bench.plot import check_plottable, plot
    from netmon.bench.tables import overhead_table

    if args.seconds <= 0:
        raise UsageError(f"cannot measure for {args.seconds:g} s: give --seconds more than 0")
    if args.evidence:
        _evidence(args)
        return
    if args.plot:
        check_plottable(args.plot)
    with _progress("overhead", args.rounds) as progress:
        result = measure(args.rounds, args.seconds, args.congestion, progress)
    _print(args, result, overhead_table)
    if args.plot:
        plot(result, args.plot)


def _evidence(args: argparse.Namespace) -> None:
    from netmon.bench.evidence import measure
    from netmon.bench.tables import evidence_table

    if args.plot:
        raise UsageError("--plot is of what being watched costs the traffic: leave --evidence out")
    with _progress("overhead", args.rounds) as progress:
        result = measure(args.rounds, args.seconds, progress)
    _print(args, result, evidence_table)


def _flows(args: argparse.Namespace) -> None:
    from netmon.bench.flows import measure
    from netmon.bench.tables import flows_table

    if args.seconds <= 0 or args.rate < 1:
        raise UsageError(f"cannot send {args.rate} flows/s for {args.seconds:g} s: give more than 0 of both")
    with _progress("flows", 1) as progress:
        result = measure(args.rate, args.seconds, progress)
    _print(args, result, flows_table)


def _hook(args: argparse.Namespace) -> None:
    from netmon.bench.hook import measure
    from netmon.bench.tables import hook_table

    with _progress("hook", args.rounds) as progress:
        result = measure(args.rounds, progress)
    _print(args, result, hook_table)


def _clock(args: argparse.Namespace) -> None:
    from netmon.bench.clock import INJECTIONS, SHORTEST_S, measure
    from netmon.bench.tables import clock_table

    if args.seconds < SHORTEST_S:
        raise UsageError(f"cannot recover a clock in {args.seconds:g} s: give --seconds {SHORTEST_S:g} or more")
    with _progress("clock", len(INJECTIONS)) as progress:
        result = measure(args.seconds, progress=progress)
    _print(args, result, clock_table)


def _inference(args: argparse.Namespace) -> None:
    from rich.console import Console

    from netmon.bench.inference import measure
    from netmon.bench.recorded import recorded_runs
    from netmon.bench.tables import inference_table

    console = Console(stderr=True)
    with console.status("bench inference") as status:
        result = measure(args.path or recorded_runs(), lambda run: status.update(f"bench inference, {run}"))
    _print(args, result, inference_table)


def _pipeline(args: argparse.Namespace) -> None:
    from netmon.bench.pipeline.load import Load, enough_flows
    from netmon.bench.pipeline.run import measure
    from netmon.bench.pipeline.sweep import draw, sweep
    from netmon.bench.pipeline.table import pipeline_table, sweep_table
    from netmon.bench.plot import check_plottable

    if args.collectors != 1 and args.bus != "nats":
        raise UsageError(f"cannot share agents out to {args.collectors} collectors over {args.bus}: give --bus nats")
    flows = args.flows or enough_flows(args.rows * args.greedy)
    counts = (args.hosts, args.rows, flows, args.jobs, args.seconds, args.batches, args.new_flows, args.greedy)
    load = Load(*counts, cut=args.cut)
    if args.plot and args.bus != "grpc":
        raise UsageError("--plot is of one collector over gRPC: leave --bus out")
    if args.plot:
        check_plottable(args.plot)
        with _progress("pipeline", 1) as progress:
            swept = sweep(load, progress)
        _print(args, swept, sweep_table)
        draw(swept, args.plot)
        return
    if args.collectors != 1:
        _workers(args, load)
        return
    with _progress("pipeline", 1) as progress:
        result = measure(load, progress, args.data, bus=args.bus == "nats", viewer=args.viewer)
    _print(args, result, pipeline_table)


def _workers(args: argparse.Namespace, load: Load) -> None:
    from netmon.bench.pipeline.workers import measure
    from netmon.bench.pipeline.workers_table import workers_table

    if args.collectors < 1 or args.cpu < 0:
        raise UsageError(f"cannot measure {args.collectors} collectors with {args.cpu:g} cores each: give more than 0")
    if args.cut or args.data or args.plot or args.greedy != 1:
        raise UsageError("--cut, --data, --plot and --greedy are of one collector: leave --collectors out")
    with _progress("pipeline", 1) as progress:
        result = measure(load, args.collectors, args.cpu, progress)
    _print(args, result, workers_table)


def _print(args: argparse.Namespace, result: _R, table: Callable[[_R], RenderableType]) -> None:
    from netmon.terminal import console

    if args.json:
        print(json.dumps(result.document()))
    else:
        console().print(table(result))
