# SPDX-License-Identifier: Apache-2.0
"""Results of benchmarks as tables for a terminal."""

from rich.table import Table

from netmon.bench.drain import DrainResult
from netmon.bench.kernel import KernelResult
from netmon.bench.overhead import KindResult, OverheadResult
from netmon.units import format_bytes

LABELS = {
    "nothing": "nothing",
    "programs": "netmon's programs alone, tc, receiver only",
    "tc": "netmon, tc",
    "tc_receiver": "netmon, tc, receiver only",
    "xdp": "netmon, xdp",
    "tcpdump": "tcpdump -s 150, receiver only",
}
"""What watched, by kind of observer."""


def kernel_table(result: KernelResult) -> Table:
    """A row per case and program."""
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


def drain_table(result: DrainResult) -> Table:
    """A row per figure."""
    table = Table(title="the agent's drain, medians")
    table.add_column("figure")
    table.add_column("value", justify="right")
    table.add_row("records/s, busy", f"{result.records_per_second / 1e6:.1f} M")
    table.add_row("spread between quartiles", f"{result.spread / 1e6:.1f} M")
    table.add_row(f"sweep of {result.sweep_flows} flows", f"{result.sweep_us:.0f} µs")
    return table


def overhead_table(result: OverheadResult) -> Table:
    """A row per observer; the caption says what was measured."""
    caption = (
        f"Medians of {result.rounds} rounds of {result.seconds:g} s: one TCP stream (iperf3, "
        f"{result.congestion}) between two namespaces over an unshaped veth pair, the watchers in turn. Ratio: "
        "to the same round's run with nothing (quartiles). netmon: an agent at each end unless said "
        "otherwise, buckets of 10 µs, streaming to a collector outside, which gets the CPU time that is left "
        "over (nice 19); xdp is the receiver's hook. tcpdump writes to memory. Machine: CPU time of "
        "everything, iperf3 and the collector included. Observer: of the agents' processes, or tcpdump, "
        "alone. Records and losses: of all agents. Coverage: of the bytes (tcpdump: packets) at the receiver."
    )
    table = Table(title="what being watched costs the traffic", caption=caption)
    table.add_column("watching")
    for name in ("Gbit/s", "ratio", "machine CPU\ns/GB", "observer CPU\ns/GB", "observer\ncores", "records", "lost"):
        table.add_column(name, justify="right")
    table.add_column("coverage", justify="right")
    for kind in result.kinds:
        table.add_row(LABELS[kind.kind], *_overhead_row(kind))
    return table


def _overhead_row(kind: KindResult) -> list[str]:
    low, high = kind.ratio_quartiles
    return [
        f"{kind.gbit_per_s:.1f}",
        "1" if kind.kind == "nothing" else f"{kind.ratio:.2f} ({low:.2f}–{high:.2f})",
        f"{kind.machine_cpu_s_per_gb:.3f}",
        _or_dash(kind.observer_cpu_s_per_gb, "{:.3f}"),
        _or_dash(kind.observer_cpu_fraction, "{:.2f}"),
        _or_dash(kind.records, "{:,}"),
        format_bytes(kind.lost_bytes) if kind.lost_bytes is not None else _or_dash(kind.lost_packets, "{:,} packets"),
        _or_dash(kind.coverage, "{:.3%}"),
    ]


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)
