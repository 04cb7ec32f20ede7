# SPDX-License-Identifier: Apache-2.0
"""Results of benchmarks as tables for a terminal."""

import math

from rich.console import Group
from rich.table import Table

from netmon.bench.clock import ClockResult
from netmon.bench.drain import DrainResult
from netmon.bench.flows import FlowsResult
from netmon.bench.hook import HookResult
from netmon.bench.inference import InferenceResult
from netmon.bench.kernel import KernelResult
from netmon.bench.overhead import KindResult, OverheadResult
from netmon.units import format_bytes, format_duration, format_rate

LABELS = {
    "nothing": "nothing",
    "programs": "netmon's programs alone, tc, receiver only",
    "tc": "netmon, tc",
    "tc_receiver": "netmon, tc, receiver only",
    "agent": "netmon, tc, receiver only, no collector",
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
    many = result.many_cpus
    table.add_section()
    table.add_row(f"{many.cpus} CPUs, {many.slots} used slots: idle", f"{many.idle_us:.0f} µs")
    table.add_row("one new flow", f"{many.new_flow_us:.0f} µs")
    for busy in many.busy:
        table.add_row(f"{busy.records} records", f"{busy.us:.0f} µs")
    return table


def clock_table(result: ClockResult) -> Table:
    """A row per injection; the caption says what was measured."""
    caption = (
        f"Two hosts of the lab, {format_rate(result.rate_bps)} links, buckets of {format_duration(result.bucket_ns)}, "
        "bursts both ways; the clock of one host is another than the machine's. Errors of the times in the dataset "
        f"in µs, median and largest, over {result.seconds:g} s but the first six. Host: against the truth. Hosts: of "
        "the difference of both hosts' errors, which is what the traffic alone can tell. Bound: the collector's own."
    )
    table = Table(title="recovered clocks", caption=caption)
    for name in ("known by", "offset\ns", "skew\nppm"):
        table.add_column(name, justify="left" if name == "known by" else "right")
    for name in ("host\nmedian", "most", "hosts\nmedian", "most", "bound", "told skew\nppm"):
        table.add_column(name, justify="right")
    for run in result.runs:
        errors = (run.host_error_ns, run.host_error_most_ns, run.difference_ns, run.difference_most_ns, run.bound_ns)
        told = f"{run.skew_ppm:+.1f}" if run.injection.source == "exchange" else "–"
        injected = f"{run.injection.offset_ns / 1e9:+g}", f"{run.injection.skew_ppm:+g}"
        label = "exchange" if run.injection.source == "exchange" else "traffic alone"
        figures = ["–" if math.isnan(error) else f"{error / 1e3:.1f}" for error in errors]
        table.add_row(label, *injected, *figures, told)
    return table


def hook_table(result: HookResult) -> Table:
    """A row with an agent and one without."""
    table = Table(title="a step that the training marks", caption=f"{result.steps} steps each, 2 ms apart")
    table.add_column("agent")
    table.add_column("between steps")
    for name in ("median µs", "p99 µs"):
        table.add_column(name, justify="right")
    for name, between, cost in (
        ("listens", "8 KiB of memory", result.with_agent),
        ("listens", "4 MiB of memory", result.with_agent_cold),
        ("none", "8 KiB of memory", result.without_agent),
        ("none", "4 MiB of memory", result.without_agent_cold),
    ):
        table.add_row(name, between, f"{cost.median_ns / 1e3:.1f}", f"{cost.p99_ns / 1e3:.1f}")
    return table


def overhead_table(result: OverheadResult) -> Group:
    """A row per observer in two tables, which a terminal of 80 columns holds; the caption says what was measured."""
    idle = result.idle
    caption = (
        f"Medians of {result.rounds} rounds of {result.seconds:g} s: one TCP stream (iperf3, "
        f"{result.congestion}) between two namespaces over an unshaped veth pair, the watchers in turn. Ratio: "
        "to the same round's run with nothing (quartiles). netmon: an agent at each end unless said "
        "otherwise, buckets of 10 µs, streaming to a collector outside, which gets the CPU time that is left "
        "over (nice 19); xdp is the receiver's hook. tcpdump writes to memory. Machine: CPU time of "
        "everything, iperf3 and the collector included. Observer: of the agents' processes, or tcpdump, "
        "alone. No collector: a sink that only acknowledges is in its place. Up: what the agent sends it. "
        f"Without any traffic the agent took {100 * idle.cpu_fraction:.2f} % of a core, "
        f"{idle.switches_per_s:.0f} context switches/s, {format_bytes(idle.proportional_bytes)} of memory (PSS; "
        f"RSS {format_bytes(idle.resident_bytes)}) and sent {format_bytes(round(idle.sent_bytes_per_s))}/s. "
        "Records and losses: of all agents. Coverage: of the bytes (tcpdump: packets) at the receiver."
    )
    costs = Table(title="what being watched costs the traffic")
    costs.add_column("watching")
    for name in ("Gbit/s", "ratio\n(quartiles)", "machine\nCPU s/GB", "observer\nCPU s/GB", "observer\ncores"):
        costs.add_column(name, justify="right", no_wrap=True)
    accounts = Table(title="and what they have to show for it", caption=caption)
    accounts.add_column("watching")
    for name in ("up, B/s", "records", "lost", "coverage"):
        accounts.add_column(name, justify="right", no_wrap=True)
    for kind in result.kinds:
        costs.add_row(LABELS[kind.kind], *_cost_row(kind))
        if kind.records is not None:
            accounts.add_row(LABELS[kind.kind], *_account_row(kind))
    return Group(costs, accounts)


def flows_table(result: FlowsResult) -> Table:
    """A row per figure."""
    title = f"{result.flows_per_s:,.0f} new flows a second for {result.seconds:.0f} s, one frame each"
    table = Table(title=title)
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in (
        ("agent, of a core", f"{100 * result.agent_cpu_fraction:.1f} %"),
        (
            "agent, memory (PSS; RSS)",
            f"{format_bytes(result.agent_bytes)}; {format_bytes(result.agent_resident_bytes)}",
        ),
        ("collector, of a core", f"{100 * result.collector_cpu_fraction:.1f} %"),
        ("collector, memory (PSS)", format_bytes(result.collector_bytes)),
        ("flows described", f"{result.described:,}"),
        ("aggregates", f"{result.aggregates:,} of {result.members:,} flows"),
        ("packets that the link dropped", f"{result.dropped_packets:,}"),
        ("packets in the ledger's overflow", f"{result.overflow_packets:,}"),
        ("packets in the ledger as lost", f"{result.lost_packets:,}"),
        ("packets missing in the dataset", f"{result.missing_packets:,}"),
        ("sent by another agent, as it waited at the end", format_bytes(result.spooled_bytes)),
        ("batches refused", f"{result.refused_batches:,}"),
        ("coverage", f"{result.coverage:.3%}"),
    ):
        table.add_row(name, value)
    return table


def inference_table(result: InferenceResult) -> Table:
    """A row per run; the caption says what was scored."""
    caption = (
        "Iterations of the job, replayed in slices of 200 ms. Boundary: median distance of every rank's end of an "
        "iteration from when its own wait for the last gradient was over, by the trainer's log, as a share of the "
        "median iteration; begin: of its traffic from the last rank's first enqueue. After: iterations that were over "
        "when the first was told. Bytes: payload whose flow is rightly the job's or not. CPU: of one core. "
        "Wrong: what of the members, the order of a ring and the pattern is not exactly right."
    )
    table = Table(title="iterations found in the traffic alone", caption=caption)
    table.add_column("run")
    table.add_column("cross")
    for name in ("found", "F1", "boundary", "begin", "after", "bytes", "CPU"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("wrong")
    for run in result.runs:
        row = (
            f"{run.found} of {run.true}",
            f"{run.f1:.3f}",
            _share(run.boundary_error_fraction),
            _share(run.begin_error_fraction),
            str(run.first_found_after),
            f"{run.bytes_right:.2%}",
            f"{run.cpu_fraction:.1%}",
        )
        exact = {"members": run.members_exact, "order": run.ring_exact, "pattern": run.pattern_exact}
        cross = f"{run.cross_load:.0%} {run.cross_profile}" if run.cross_profile else "none"
        table.add_row(run.run, cross, *row, ", ".join(name for name, right in exact.items() if not right) or "–")
    return table


def _share(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2%}"


def _cost_row(kind: KindResult) -> list[str]:
    low, high = kind.ratio_quartiles
    return [
        f"{kind.gbit_per_s:.1f}",
        "1" if kind.kind == "nothing" else f"{kind.ratio:.2f} ({low:.2f}–{high:.2f})",
        f"{kind.machine_cpu_s_per_gb:.3f}",
        _or_dash(kind.observer_cpu_s_per_gb, "{:.4f}"),
        _or_dash(kind.observer_cpu_fraction, "{:.4f}"),
    ]


def _account_row(kind: KindResult) -> list[str]:
    lost = format_bytes(kind.lost_bytes) if kind.lost_bytes is not None else _or_dash(kind.lost_packets, "{:,} packets")
    return [
        _or_dash(kind.sent_bytes_per_s, "{:,.0f}"),
        _or_dash(kind.records, "{:,}"),
        lost,
        _or_dash(kind.coverage, "{:.3%}"),
    ]


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)
