# SPDX-License-Identifier: Apache-2.0
"""The options of `netmon lab` that say what a run is."""

from __future__ import annotations

import argparse
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from netmon.errors import UsageError
from netmon.options import FILE, RATE, TIME
from netmon.units import parse_count

if TYPE_CHECKING:
    from netmon.lab.spec import RunSpec
    from netmon.lab.sweep import SweepSpec

INJECTIONS = """\
--inject KIND:name=value,… does something to the training, then undoes it; DATA/lab/injections.json says what and when.
All take at=ITERATION, the moment in finished iterations (20.5: half a usual iteration after the 20th), and for=TIME;
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
    beside = parser.add_argument_group("another job like it, of --trainer ring, at the same time")
    beside.add_argument(
        "--beside", type=hosts, metavar="HOSTS", help="hosts of its rank 0, 1, …, such as 0,2; leaves cross traffic out"
    )
    beside.add_argument("--shift", default=0, **TIME, help="how much later it begins (0s)")
    beside.add_argument(
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
