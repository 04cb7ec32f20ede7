# SPDX-License-Identifier: Apache-2.0
"""`netmon lab`: a testbed on this machine."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from netmon.commands.lab_options import (
    INJECTIONS,
    add_run_options,
    add_second_job_options,
    add_sweep_options,
    run_spec,
    sweep_spec,
)
from netmon.errors import UsageError
from netmon.options import DIR, FILE
from netmon.own_module import typed
from netmon.units import format_bytes, format_duration, format_rate, parse_rate

if TYPE_CHECKING:
    from rich.console import Console

    from netmon.lab.spec import RunSpec

log = logging.getLogger(__name__)

HELP = "run training with cross traffic in network namespaces on this machine, and watch it (needs root)"
EXAMPLES = """\
  netmon lab demo                                              something worth seeing in 45 s
  netmon lab run --data out/one --trainer horovod              real Horovod, built on first use
  netmon lab run --data out/two --model resnet50 --configuration A --cross-profile burst
  netmon lab sweep --data out/study                            a small study: 24 runs, about ten minutes
  netmon lab sweep --data out/full --trainer horovod --models resnet50,vgg16,bertlarge --repetitions 5 --iterations 100
  netmon lab run --data out/three --cross-load 0 --inject stop:rank=1,at=20.5,for=300ms    a straggler, on purpose
  netmon lab run --data out/four --compute 250ms --beside 0,2 --shift 225ms --period 450ms     two jobs, held apart
  netmon lab load write burst.csv --profile burst --load 0.8   the flows of ten seconds, as a file
  netmon lab clean                                             remove what a killed lab left behind

Links lose packets at random only with --inject loss (a filter on the switch, because many kernels lack netem).
Otherwise only queues that overflow drop packets, as in a switch: a port buffers 3 ms of its rate.
"""

_STUDY = """\
Measure iteration time against cross traffic. The defaults are a small study of about ten minutes. For a full study give
--trainer horovod, all --models, --levels in steps of 0.1, --repetitions 5 or more, and --iterations 100 for its tails.
After an interruption the same command goes on with what is left.
"""
_DEMO_ITERATIONS = 70
_ANY_HEIGHT = 1_000_000
_DEMO_DATA = Path("out/demo")


def arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="WHAT")
    raw = argparse.RawDescriptionHelpFormatter
    run_parser = commands.add_parser(
        "run", help="one run of a training job, watched", epilog=INJECTIONS, formatter_class=raw
    )
    run_parser.add_argument("--data", required=True, **DIR, help="folder for the dataset")
    add_run_options(run_parser, iterations=50)
    add_second_job_options(run_parser)
    run_parser.set_defaults(lab=_run)
    demo = commands.add_parser("demo", help="a run with defaults that show something worth seeing")
    demo.add_argument("--data", default=_DEMO_DATA, **DIR, help="folder for the dataset (%(default)s)")
    add_run_options(demo, iterations=_DEMO_ITERATIONS)
    demo.set_defaults(lab=_demo)
    sweep = commands.add_parser(
        "sweep", help="many runs, one dataset; goes on where it was interrupted", description=_STUDY
    )
    sweep.add_argument("--data", required=True, **DIR, help="folder for the dataset")
    add_sweep_options(sweep)
    sweep.set_defaults(lab=_sweep)
    add_load_commands(commands.add_parser("load", help="write, look at and replay the flows of cross traffic"))
    clean = commands.add_parser("clean", help="remove what a killed lab left behind")
    clean.add_argument("--all", action="store_true", help="also labs that are running now")
    clean.set_defaults(lab=_clean)


def run(args: argparse.Namespace) -> int:
    status: int = args.lab(args)
    return status


def _run(args: argparse.Namespace) -> int:
    if args.beside:
        return _run_two_jobs(args)
    return _run_spec(run_spec(args, args.overwrite), live=False, as_json=args.json)


def _run_two_jobs(args: argparse.Namespace) -> int:
    """Another job like it on other hosts, at the same time."""
    from netmon.lab.record import prepare
    from netmon.lab.run import train_two_jobs

    spec = run_spec(args, args.overwrite)
    (prepare(spec.data, args.overwrite) / "log").rmdir()
    names = train_two_jobs(spec, args.beside, args.shift, args.period, _print_address)
    document = {"data": str(spec.data), "jobs": names, "shift_ns": args.shift, "period_ns": args.period}
    line = f"dataset: {spec.data}; next:\n  {typed('netmon')} advise --data {spec.data}"
    print(json.dumps(document) if args.json else line)
    return 0


def _print_address(address: str) -> None:
    log.info(
        f"lab run: both train; {typed('netmon')} top --collector {address} shows them meanwhile, advise what to do"
    )


def _demo(args: argparse.Namespace) -> int:
    return _run_spec(run_spec(args, overwrite=True), live=not args.json, as_json=args.json)


def _run_spec(spec: RunSpec, live: bool, as_json: bool) -> int:
    """live: draw `netmon top` meanwhile, where there is a terminal for it."""
    from netmon.commands.lab_results import print_run, shown
    from netmon.lab.outcome import run_document
    from netmon.lab.run import run as run_lab
    from netmon.terminal import console as standard_output

    console = standard_output()
    if spec.bus and spec.monitor and not as_json:
        with shown(spec) as progress:
            result = run_lab(spec, progress=progress, view=lambda addresses: _last_frame(addresses, console))
    elif live and spec.monitor and console.is_interactive and find_spec("textual") is not None:
        result = run_lab(spec, view=_live_view)
    else:
        with shown(spec) as progress:
            result = run_lab(spec, progress=progress, view=_told_where)
    document = run_document(result.data)
    if as_json:
        print(json.dumps(document))
    else:
        print_run(result.data, document, console)
    return 0


def _sweep(args: argparse.Namespace) -> int:
    from netmon.commands.lab_results import print_sweep, sweep_shown
    from netmon.lab.outcome import sweep_document
    from netmon.lab.sweep import sweep
    from netmon.terminal import console

    spec = sweep_spec(args)
    with sweep_shown() as progress:
        sweep(spec, progress)
    document = sweep_document(spec.base.data)
    if args.json:
        print(json.dumps(document))
    else:
        print_sweep(document, console())
    return 0


@contextlib.contextmanager
def _live_view(address: str) -> Iterator[None]:
    """`netmon top` as a program of its own. Whoever quits it sees the run's end all the same."""
    command = [sys.executable, "-m", "netmon", "top", "--collector", address]
    with subprocess.Popen(["setpriv", "--pdeathsig", "TERM", *command]) as view:
        try:
            yield
        finally:
            view.terminate()


def _told_where(address: str) -> contextlib.AbstractContextManager[None]:
    """Where the run can be watched from another terminal."""
    netmon = typed("netmon")
    print(f"meanwhile: {netmon} top --collector {address}, {netmon} web {address}", file=sys.stderr)
    return contextlib.nullcontext()


@contextlib.contextmanager
def _last_frame(addresses: str, console: Console) -> Iterator[None]:
    """What `netmon top` shows of all workers when the training is over."""
    from netmon.terminal import drawing_width
    from netmon.top.frame import render
    from netmon.top.options import Options, arrange
    from netmon.views import Selection
    from netmon.wire.watch import split, watch_once

    with _told_where(addresses):
        yield
    options = Options(colour=console.is_terminal and not console.no_color)
    for address in split(addresses):
        own = watch_once(address, Selection())
        hosts = ", ".join(host.host for host in own.hosts) or "none"
        jobs = ", ".join(job.name or job.job for job in own.jobs) or "none"
        console.print(f"{Path(address).stem}: hosts {hosts}; jobs {jobs}")
    snapshot = arrange(watch_once(addresses, Selection(flows=8)))
    width = drawing_width(console)
    console.print(render(snapshot, options, width, _ANY_HEIGHT), width=width)


def _clean(args: argparse.Namespace) -> int:
    from netmon.lab.network import abandoned, all_runs, remove

    found = all_runs() if args.all else abandoned()
    for name in found:
        remove(name)
        print(f"removed run {name}")
    if not found:
        print("nothing was left behind")
    return 0


# --- `netmon lab load`: the flows of cross traffic as a file; written, looked at, and replayed between any two hosts.


def add_load_commands(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="WHAT")
    write = commands.add_parser("write", help="write a load file: a table of flows with start_ns and size_bytes")
    write.add_argument("file", **FILE, help="file to write; Parquet if it ends in .parquet, else CSV")
    write.add_argument("--profile", default="websearch", help="websearch, datamining, poisson or burst (%(default)s)")
    write.add_argument(
        "--load", type=float, default=0.8, metavar="SHARE", help="payload as a share of the rate (%(default)s)"
    )
    write.add_argument(
        "--rate", type=parse_rate, default="1gbit", help="rate of the link; flow sizes scale with it (1gbit)"
    )
    write.add_argument("--seconds", type=int, default=10, metavar="N", help="length in seconds (%(default)s)")
    write.add_argument("--seed", type=int, default=1, metavar="N", help="seed of what is random (%(default)s)")
    write.set_defaults(lab=_write)
    show = commands.add_parser("show", help="what is in a load file")
    show.add_argument("file", **FILE, help="a load file")
    show.add_argument("--plot", type=Path, metavar="PNG", help="also draw its rate and its flow sizes")
    show.add_argument("--json", action="store_true", help="print one JSON document")
    show.set_defaults(lab=_show)
    receive = commands.add_parser("receive", help="receive a load until interrupted; needs no root")
    receive.add_argument("address", metavar="ADDRESS:PORT", help="address to listen on")
    receive.set_defaults(lab=_receive)
    replay = commands.add_parser("replay", help="send a load file's flows, each when it is due; needs no root")
    replay.add_argument("file", **FILE, help="a load file")
    replay.add_argument("address", type=_address, metavar="ADDRESS:PORT", help="address of a `netmon lab load receive`")
    replay.set_defaults(lab=_replay)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise UsageError(f"cannot read {text!r} as an address: write ADDRESS:PORT, such as 10.0.0.2:5201")
    return host, int(port)


def _write(args: argparse.Namespace) -> int:
    from netmon.lab.traffic.loads import ALGORITHMS, Recipe, load, write_load

    if args.profile not in ALGORITHMS:
        raise UsageError(f"no profile {args.profile!r} to write; choose {', '.join(ALGORITHMS)}")
    if not 0 < args.load <= 1 or args.seconds < 1:
        raise UsageError("cannot write a load: it takes a share of the rate above 0 up to 1, and at least one second")
    recipe = Recipe(args.profile, args.load * args.rate, args.rate, args.seed)
    rows = load(recipe, args.seconds)
    made = f"{args.profile}, {args.load:g} of {format_rate(args.rate)}, sizes × {recipe.size_scale:g}, seed {args.seed}"
    write_load(args.file, rows, f"netmon lab load write: {made}")
    print(f"{args.file}: {len(rows)} flows, {format_bytes(int(rows['size_bytes'].sum()))}")
    return 0


def _show(args: argparse.Namespace) -> int:
    from netmon.lab.traffic.loads import draw, read_load, summarise

    rows = read_load(args.file)
    summary = summarise(rows)
    if args.plot:
        draw(rows, args.plot, str(args.file.name))
    if args.json:
        print(json.dumps(summary))
        return 0
    sizes, peaks = summary["size_bytes"], summary["peak_bps"]
    print(f"{summary['flows']} flows, {format_bytes(summary['bytes'])} in {format_duration(summary['duration_ns'])}")
    print(f"rate: mean {format_rate(summary['mean_bps'])}; largest in 1 ms {format_rate(peaks['1ms'])}, ", end="")
    print(f"in 10 ms {format_rate(peaks['10ms'])}, in 1 s {format_rate(peaks['1s'])}")
    print(f"flow size: mean {format_bytes(sizes['mean'])}, median {format_bytes(sizes['median'])}, ", end="")
    print(f"p99 {format_bytes(sizes['p99'])}, largest {format_bytes(sizes['largest'])}")
    print(f"flows that begin in 10 ms: mean {summary['flows_per_10ms']['mean']:.1f}, ", end="")
    print(f"fewest {summary['flows_per_10ms']['fewest']}, most {summary['flows_per_10ms']['most']}")
    return 0


def _receive(args: argparse.Namespace) -> int:
    from netmon.lab.traffic.receive import receive

    receive(*_address(args.address))
    return 0


def _replay(args: argparse.Namespace) -> int:
    from netmon.lab.traffic.loads import read_load
    from netmon.lab.traffic.send import Sender, precise_sleeps

    sender = Sender(args.address)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, sender.stop)
    precise_sleeps()
    print(json.dumps(sender.run([read_load(args.file)])))
    return 0
