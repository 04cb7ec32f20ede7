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
from dataclasses import fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from netmon.errors import UsageError
from netmon.options import DIR, FILE, RATE, TIME
from netmon.own_module import typed
from netmon.units import format_bytes, format_duration, format_rate, parse_count, parse_rate

if TYPE_CHECKING:
    from rich.console import Console

    from netmon.lab.spec import RunSpec
    from netmon.lab.sweep import SweepSpec


INJECTIONS = """\
--inject KIND:name=value,… does something to the training, then undoes it; DATA/lab/injections.json says what and when.
All take at=ITERATION, the moment in finished iterations (20.5: half a typical iteration after the 20th), and for=TIME;
some a strength=. A host is a number or, as the views have it, a name: 2 or h2.
  cross        from=HOST,to=HOST[,profile=iperf]   other traffic; strength: its load, a share of the rate
  job          hosts=A+B[,params=4e6]              another training job
  stop         rank=R                              one rank stands still (SIGSTOP)
  stop-all                                         all ranks do
  evaluate, checkpoint                             all ranks pause after a step, as their script has it
  upload, download  rank=R,to=HOST                 the rank itself does, to and from a file server there; strength: its
                                                   bytes, as a share of what the link carries meanwhile
  late         rank=R                              a rank's first gradient comes late; strength: the share it computes
  gc           rank=R                              garbage is collected in a rank's backward pass
  batch                                            another batch size; strength: times as long computed from then on
  slow-link    host=H[,direction=tx]               the link's shaper is slowed; strength: the share of its rate
  loss         host=H[,direction=tx]               the switch drops super-packets; strength: the share of them
  small-queue  host=H                              of the switch's port to a host; strength: the share of its bytes
  policer      host=H                              on the way to the host, without a queue; strength: the rate's share
  hog          rank=R                              busy loops on the one CPU that it is left; strength: how many
  quota        rank=R                              the kernel throttles the rank; strength: the cores that are left
  nothing                                          a moment to compare with
"""
_SHARE = "payload as a share of the link's rate"


def hosts(text: str) -> tuple[int, ...]:
    """`0,1,3` or `h0,h1,h3` → (0, 1, 3). Raises UsageError."""
    from netmon.lab.injections.spec import host_number

    try:
        return tuple(map(host_number, text.split(",")))
    except ValueError:
        raise UsageError(f"cannot read {text!r} as hosts: write numbers, such as 0,1,3") from None


def pair(text: str) -> tuple[int, int]:
    """`2:0` or `h2:h0` → (2, 0). Raises UsageError."""
    from netmon.lab.injections.spec import host_number

    source, _, target = text.partition(":")
    try:
        return host_number(source), host_number(target)
    except ValueError:
        raise UsageError(f"cannot read {text!r} as cross traffic: write FROM:TO, such as 2:0") from None


def words(text: str) -> tuple[str, ...]:
    """`a,b` → ("a", "b")."""
    return tuple(word for word in text.split(",") if word)


def levels(text: str) -> tuple[float, ...]:
    """`0,0.2,0.8` → (0.0, 0.2, 0.8). Raises UsageError."""
    try:
        return tuple(float(level) for level in words(text))
    except ValueError:
        raise UsageError(f"cannot read {text!r} as levels: write shares of the rate, such as 0,0.4,0.8") from None


def add_run_options(parser: argparse.ArgumentParser, iterations: int) -> None:
    job = parser.add_argument_group("the training job")
    _add_job_options(job, iterations)
    job.add_argument("--marks", action="store_true", help="the script tells its steps by netmon.horovod")
    job.add_argument("--timeline", action="store_true", help="Horovod writes its Timeline, which the agent follows")
    job.add_argument("--profile", action="store_true", help="DDP's ranks write traces of PyTorch's profiler")
    job.add_argument(
        "--pattern",
        default="ring",
        help="pattern of --trainer ring: ring, star, tree, clique or hierarchical (%(default)s)",
    )
    job.add_argument(
        "--model", default="", help="a published model, such as resnet50, scaled to the rate; or --params and --compute"
    )
    job.add_argument(
        "--params", dest="parameters", type=parse_count, metavar="N", help="number of float32 parameters (4e6)"
    )
    job.add_argument(
        "--compute", dest="compute_ns", **TIME, help="computing time per iteration (100ms, or the model's)"
    )
    job.add_argument(
        "--backward",
        dest="backward_share",
        type=float,
        metavar="SHARE",
        help="share of the computing time in which gradients are already sent (0)",
    )
    job.add_argument("--replay", **FILE, help="a recorded job instead, from netmon export --format generator")
    _add_network_options(parser)
    cross = parser.add_argument_group("cross traffic")
    cross.add_argument("--cross-load", type=float, default=0.8, metavar="SHARE", help=f"{_SHARE}; 0: none (0.8)")
    cross.add_argument(
        "--cross-profile", default="iperf", help="iperf, websearch, datamining, poisson, burst (%(default)s)"
    )
    cross.add_argument("--cross-file", **FILE, help="send the flows of a load file instead")
    cross.add_argument(
        "--cross-after", type=float, default=0.5, metavar="SHARE", help="share of the iterations before it begins (0.5)"
    )
    cross.add_argument(
        "--inject",
        action="append",
        default=[],
        metavar="KIND:…",
        help="something that slows an iteration, such as stop:rank=1,at=20.5,for=300ms; repeatable; see below",
    )
    _add_watch_options(parser)
    parser.add_argument(
        "--bus", action="store_true", help="collect by three NATS servers and two workers instead of one collector"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def add_second_job_options(parser: argparse.ArgumentParser) -> None:
    second = parser.add_argument_group("another job like it, of --trainer ring, at the same time")
    second.add_argument(
        "--second-job",
        type=hosts,
        metavar="HOSTS",
        help="hosts of its rank 0, 1, …, such as 0,2; leaves cross traffic out",
    )
    second.add_argument("--shift", default=0, **TIME, help="how much later it begins (0s)")
    second.add_argument(
        "--period", default=0, **TIME, help="both jobs begin an iteration every TIME (as soon as they can)"
    )


def add_sweep_options(parser: argparse.ArgumentParser) -> None:
    varied = parser.add_argument_group("what is varied: every combination is a run")
    varied.add_argument(
        "--models", type=words, default="resnet50,inceptionv3", metavar="M,…", help="published models (%(default)s)"
    )
    varied.add_argument(
        "--profiles",
        type=words,
        default="websearch,burst",
        metavar="P,…",
        help="profiles of cross traffic (%(default)s)",
    )
    varied.add_argument(
        "--levels", type=levels, default="0,0.2,0.4,0.6,0.8,0.9", metavar="S,…", help=f"{_SHARE} (%(default)s)"
    )
    varied.add_argument(
        "--repetitions", type=int, default=1, metavar="N", help="repetitions of each combination (%(default)s)"
    )
    job = parser.add_argument_group("the training jobs")
    _add_job_options(job, iterations=20)
    _add_network_options(parser)
    _add_watch_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")


_LATER = ("model", "batch", "parameters", "compute_ns", "backward_share")  # what a model says, or else an option


def run_spec(args: argparse.Namespace, overwrite: bool) -> RunSpec:
    """The run that the options describe. Raises UsageError."""
    from netmon.lab.injections.spec import injection

    spec = replace(
        _base(args, overwrite),
        pattern={"ps": "star"}.get(args.pattern, args.pattern),
        injections=tuple(injection(text) for text in args.inject),
    )
    if args.cross_file:
        spec = replace(spec, cross_profile="file", cross_file=args.cross_file.resolve())
    if args.model and args.parameters:
        raise UsageError("--model says how many parameters there are; leave --params out")
    if args.model:
        spec = spec.of(args.model, args.batch)
    spec = replace(spec, **{name: value for name in _LATER[2:] if (value := getattr(args, name)) is not None})
    return _played(spec, args.replay.resolve(), args.ring) if args.replay else spec


def _played(spec: RunSpec, path: Path, ring: tuple[int, ...] | None) -> RunSpec:
    """The run with a recorded job instead of its own: of as many ranks, on as many hosts."""
    import json

    from netmon.dl.generated import read_generator
    from netmon.errors import DataError

    try:
        generator = read_generator(json.loads(path.read_text()), str(path))
    except (OSError, ValueError) as error:
        raise DataError(f"cannot play {path} again: {error}") from None
    on = ring or tuple(range(generator.ranks))
    if len(on) != generator.ranks:
        raise UsageError(
            f"cannot play {path} again on {len(on)} hosts: its job has {generator.ranks} ranks; see --ring"
        )
    sent = sum(size for phase in generator.phases for size in phase.bytes.values())
    return replace(
        spec,
        trainer="generated",
        generator=path,
        ring=on,
        hosts=max(spec.hosts, *(host + 1 for host in on)),
        job=spec.job or generator.job,
        compute_ns=generator.iteration_ns,
        parameters=max(1, sent // (8 * (generator.ranks - 1))),  # as an all-reduce in a ring (equation 3.1)
    )


def sweep_spec(args: argparse.Namespace) -> SweepSpec:
    """The sweep that the options describe. Raises UsageError."""
    from netmon.lab.sweep import SweepSpec

    return SweepSpec(_base(args, args.overwrite), args.models, args.profiles, args.levels, args.repetitions, args.batch)


def _base(args: argparse.Namespace, overwrite: bool) -> RunSpec:
    """What the options say that have the names of the spec's fields."""
    from netmon.lab.spec import CONFIGURATIONS, RunSpec

    own = {each.name for each in fields(RunSpec)} - {*_LATER}
    ring, cross = CONFIGURATIONS[args.configuration]
    given = {name: value for name, value in vars(args).items() if name in own}
    more = {"data": args.data.resolve(), "ring": args.ring or ring, "cross": tuple(args.cross or cross)}
    return RunSpec(**{**given, **more, "overwrite": overwrite})


def _add_job_options(job: argparse._ArgumentGroup, iterations: int) -> None:
    job.add_argument(
        "--trainer",
        default="ring",
        help="ring (netmon's own), or real training: horovod (PyTorch), horovod-tensorflow, horovod-eager, "
        "horovod-keras, ddp, fsdp, pipeline, experts, tensor, hybrid (default: %(default)s)",
    )
    job.add_argument(
        "--iterations", type=parse_count, default=iterations, metavar="N", help="iterations to run (%(default)s)"
    )
    job.add_argument("--batch", type=int, default=0, metavar="N", help="samples per step of --model (as published)")


def _add_network_options(parser: argparse.ArgumentParser) -> None:
    network = parser.add_argument_group("the network")
    network.add_argument("--hosts", type=int, default=4, metavar="N", help="hosts around the switch (%(default)s)")
    network.add_argument(
        "--rate", dest="rate_bps", **RATE, default="1gbit", help="rate of every port in each direction (1gbit)"
    )
    network.add_argument(
        "--configuration",
        choices=("A", "B"),
        default="B",
        help="the thesis' setup: cross traffic leaves host 0 with the training (A), or meets it at the switch (B); "
        "or --ring and --cross (B)",
    )
    network.add_argument("--ring", type=hosts, metavar="HOSTS", help="hosts of rank 0, 1, … (0,1,3)")
    network.add_argument(
        "--cross",
        type=pair,
        action="append",
        metavar="FROM:TO",
        help="hosts between which cross traffic runs; repeatable (A 0:2, B 2:0)",
    )
    network.add_argument("--seed", type=int, default=1, help="seed of what is random (%(default)s)")


def _add_watch_options(parser: argparse.ArgumentParser) -> None:
    watch = parser.add_argument_group("how it is watched")
    watch.add_argument("--bucket", dest="bucket_ns", default="10us", **TIME, help="bucket width (10us)")
    watch.add_argument(
        "--stream-bucket",
        dest="stream_ns",
        default="0s",
        **TIME,
        help="width of the rows that agents stream (full resolution)",
    )
    watch.add_argument(
        "--hook", choices=("auto", "tc", "xdp"), default="auto", help="kernel hook that counts (%(default)s)"
    )
    watch.add_argument("--no-monitor", dest="monitor", action="store_false", help="run without netmon")
    watch.add_argument("--overwrite", action="store_true", help="replace what --data already holds")


log = logging.getLogger(__name__)

HELP = "run training with cross traffic in network namespaces on this machine, and watch it (needs root)"
EXAMPLES = """\
  netmon lab demo                                              something worth seeing in 45 s
  netmon lab run --data out/one --trainer horovod              real Horovod, built on first use
  netmon lab run --data out/two --model resnet50 --configuration A --cross-profile burst
  netmon lab sweep --data out/study                            a small study: 24 runs, about ten minutes
  netmon lab sweep --data out/full --trainer horovod --models resnet50,vgg16,bertlarge --repetitions 5 --iterations 100
  netmon lab run --data out/three --cross-load 0 --inject stop:rank=1,at=20.5,for=300ms    a straggler, on purpose
  netmon lab run --data out/four --compute 250ms --second-job 0,2 --shift 225ms --period 450ms    two jobs, out of phase
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
    if args.second_job:
        return _run_two_jobs(args)
    return _run_spec(run_spec(args, args.overwrite), live=False, as_json=args.json)


def _run_two_jobs(args: argparse.Namespace) -> int:
    """Another job like it on other hosts, at the same time."""
    from netmon.lab.record import prepare
    from netmon.lab.run import train_two_jobs

    spec = run_spec(args, args.overwrite)
    (prepare(spec.data, args.overwrite) / "log").rmdir()
    names = train_two_jobs(spec, args.second_job, args.shift, args.period, _print_address)
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
            result = run_lab(spec, progress=progress, view=_say_where)
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


def _say_where(address: str) -> contextlib.AbstractContextManager[None]:
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

    with _say_where(addresses):
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
