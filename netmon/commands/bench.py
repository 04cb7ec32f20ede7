# SPDX-License-Identifier: Apache-2.0
"""`netmon bench`."""

import argparse
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from netmon.bench.drain import DrainResult
    from netmon.bench.kernel import KernelResult

HELP = "measure netmon itself on this machine (needs root)"
EXAMPLES = """
  netmon bench kernel              ns per packet of the BPF programs, beside the floor
  netmon bench drain --json        records per second of the agent's drain
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("what", choices=("kernel", "drain"), help="what to measure")
    parser.add_argument("--rounds", type=int, default=15, metavar="N", help="repetitions (15)")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")


def run(args: argparse.Namespace) -> int:
    """Measures, then prints."""
    from rich.console import Console
    from rich.progress import Progress

    from netmon.bench import drain, kernel
    from netmon.kernel.privilege import require_capabilities

    require_capabilities()
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"bench {args.what}", total=args.rounds)
        measures: dict[str, Callable[..., KernelResult | DrainResult]] = {
            "kernel": kernel.measure,
            "drain": drain.measure,
        }
        result = measures[args.what](args.rounds, lambda done: progress.update(task, completed=done))
    if args.json:
        print(json.dumps(result.document()))
    else:
        Console().print(_kernel_table(result) if isinstance(result, kernel.KernelResult) else _drain_table(result))
    return 0


def _kernel_table(result: "KernelResult") -> "Table":
    from rich.table import Table

    floors = ", ".join(f"{program} {ns:.0f} ns" for program, ns in result.floor_net_ns.items())
    table = Table(title="ns per packet, medians", caption=f"floor, net of the empty program: {floors}")
    table.add_column("case")
    table.add_column("program")
    for name in ("ns", "net", "spread", "× floor"):
        table.add_column(name, justify="right")
    for case in result.cases:
        row = (f"{case.ns:.0f}", f"{case.net_ns:.0f}", f"{case.spread:.0f}", f"{case.floor_ratio:.2f}")
        table.add_row(case.case, case.program, *row)
    return table


def _drain_table(result: "DrainResult") -> "Table":
    from rich.table import Table

    table = Table(title="the agent's drain, medians")
    table.add_column("figure")
    table.add_column("value", justify="right")
    table.add_row("records/s, busy", f"{result.records_per_second / 1e6:.1f} M")
    table.add_row("spread between quartiles", f"{result.spread / 1e6:.1f} M")
    table.add_row(f"sweep of {result.sweep_flows} flows", f"{result.sweep_us:.0f} µs")
    return table
