# SPDX-License-Identifier: Apache-2.0
"""`netmon lab load`: the flows of cross traffic as a file; written, looked at, and replayed between any two hosts."""

from __future__ import annotations

import argparse
import json
import signal
from pathlib import Path

from netmon.errors import UsageError
from netmon.units import format_bytes, format_duration, format_rate, parse_rate


def add_load_commands(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands write, show, receive and replay."""
    commands = parser.add_subparsers(required=True, metavar="WHAT")
    write = commands.add_parser("write", help="write a load file: a table of flows with start_ns and size_bytes")
    write.add_argument(
        "file", type=Path, metavar="FILE", help="file to write; Parquet if it ends in .parquet, else CSV"
    )
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
    show.add_argument("file", type=Path, metavar="FILE", help="a load file")
    show.add_argument("--plot", type=Path, metavar="PNG", help="also draw its rate and its flow sizes")
    show.add_argument("--json", action="store_true", help="print one JSON document")
    show.set_defaults(lab=_show)
    receive = commands.add_parser("receive", help="receive a load until interrupted; needs no root")
    receive.add_argument("address", metavar="ADDRESS:PORT", help="address to listen on")
    receive.set_defaults(lab=_receive)
    replay = commands.add_parser("replay", help="send a load file's flows, each when it is due; needs no root")
    replay.add_argument("file", type=Path, metavar="FILE", help="a load file")
    replay.add_argument("address", type=_address, metavar="ADDRESS:PORT", help="address of a `netmon lab load receive`")
    replay.set_defaults(lab=_replay)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise UsageError(f"cannot read {text!r} as an address: write ADDRESS:PORT, such as 10.0.0.2:5201")
    return host, int(port)


def _write(args: argparse.Namespace) -> int:
    from netmon.lab.traffic.load_file import write_load
    from netmon.lab.traffic.loads import ALGORITHMS, Recipe, load

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
    from netmon.lab.traffic.load_file import draw, read_load, summarise

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
    from netmon.lab.traffic.load_file import read_load
    from netmon.lab.traffic.send import Sender, precise_sleeps

    sender = Sender(args.address)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, sender.stop)
    precise_sleeps()
    print(json.dumps(sender.run([read_load(args.file)])))
    return 0
