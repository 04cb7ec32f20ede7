# SPDX-License-Identifier: Apache-2.0
"""Results of benchmarks as tables for a terminal."""

import math

import numpy as np
from rich.console import Group

from netmon.bench.clock import ClockResult
from netmon.bench.drain import DrainResult
from netmon.bench.evidence import EvidenceResult
from netmon.bench.flows import FlowsResult
from netmon.bench.hook import HookResult
from netmon.bench.inference import InferenceResult
from netmon.bench.kernel import KernelResult
from netmon.bench.overhead import KindResult, OverheadResult
from netmon.terminal import BREAK, Column, FittingTable, figures, labels
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


def kernel_table(result: KernelResult) -> FittingTable:
    """A row per case and program."""
    floors = ", ".join(f"{program} {ns:.0f} ns" for program, ns in result.floor_net_ns.items())
    columns = [*labels("case", prose=True), *labels("program"), *figures("ns", "net", "spread", "× floor")]
    table = FittingTable(columns, "ns per packet, medians", f"Floor, net of the empty program: {floors}.")
    for case in result.cases:
        row = (f"{case.ns:.0f}", f"{case.net_ns:.0f}", f"{case.spread:.0f}", f"{case.floor_ratio:.2f}")
        table.add_row(case.case, case.program, *row)
    return table


def drain_table(result: DrainResult) -> FittingTable:
    """A row per figure."""
    table = figures_table("the agent's drain, medians")
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


def clock_table(result: ClockResult) -> FittingTable:
    """A row per injection; the caption says what was measured."""
    caption = (
        f"Two hosts of the lab with links of {format_rate(result.rate_bps)} and buckets of "
        f"{format_duration(result.bucket_ns)} send bursts to each other; one host's clock is off by offset and skew. "
        "Errors are those of the times in the dataset, in µs, "
        f"after the first 6 of {result.seconds:g} s. Host: error of that host's times. Hosts: difference between the "
        "errors of both hosts, which is all that traffic alone can tell. Bound: the error that the collector states."
    )
    injected = (f"offset{BREAK}s", f"skew{BREAK}ppm")
    errors = (f"host{BREAK}median", f"host{BREAK}largest", f"hosts{BREAK}median", f"hosts{BREAK}largest", "bound")
    columns = [*labels("known by", prose=True), *figures(*injected, *errors, f"skew found{BREAK}ppm")]
    table = FittingTable(columns, "recovered clocks", caption)
    for run in result.runs:
        wrong = (run.host_error_ns, run.host_error_most_ns, run.difference_ns, run.difference_most_ns, run.bound_ns)
        skew = f"{run.skew_ppm:+.1f}" if run.injection.source == "exchange" else "–"
        clock = f"{run.injection.offset_ns / 1e9:+g}", f"{run.injection.skew_ppm:+g}"
        label = "exchange" if run.injection.source == "exchange" else "traffic alone"
        shown = ["–" if math.isnan(error) else f"{error / 1e3:.1f}" for error in wrong]
        table.add_row(label, *clock, *shown, skew)
    return table


def hook_table(result: HookResult) -> FittingTable:
    """A row with an agent and one without."""
    columns = [*labels("agent", "between steps"), *figures("median µs", "p99 µs")]
    table = FittingTable(columns, "a step that the training marks", f"{result.steps} steps each, 2 ms apart.")
    for name, between, cost in (
        ("listens", "8 KiB of memory", result.with_agent),
        ("listens", "4 MiB of memory", result.with_agent_cold),
        ("none", "8 KiB of memory", result.without_agent),
        ("none", "4 MiB of memory", result.without_agent_cold),
    ):
        table.add_row(name, between, f"{cost.median_ns / 1e3:.1f}", f"{cost.p99_ns / 1e3:.1f}")
    return table


def overhead_table(result: OverheadResult) -> Group:
    """A row per observer in two tables; the caption says what was measured."""
    idle = result.idle
    caption = (
        f"Medians of {result.rounds} rounds of {result.seconds:g} s. One TCP stream (iperf3, {result.congestion}) runs "
        "between two namespaces over an unshaped veth pair; each round has a run with every observer. "
        "Ratio: throughput relative to the same round's run with no observer (quartiles over the rounds). "
        "netmon: an agent at each end unless the label says otherwise, buckets of 10 µs, streamed to a collector "
        "outside both namespaces with the lowest priority (nice 19); xdp: the receiver's hook. tcpdump writes to "
        "memory. "
        "Machine CPU: of all processes, iperf3 and the collector included. Observer CPU: of the agents or of tcpdump "
        "alone. No collector: the agent streams to a process that only acknowledges, and `sent` is what it gets. "
        "Records and lost: of all agents. Coverage: share of the receiver's bytes (tcpdump: packets). "
        f"Without traffic an agent took {100 * idle.cpu_fraction:.2f} % of a core, "
        f"{idle.switches_per_s:.0f} context switches/s and {format_bytes(idle.proportional_bytes)} of memory (PSS; "
        f"RSS {format_bytes(idle.resident_bytes)}), and sent {format_bytes(round(idle.sent_bytes_per_s))}/s."
    )
    names = ("Gbit/s", "ratio (quartiles)", "machine CPU s/GB", "observer CPU s/GB", "observer cores")
    watched = labels("watched by", prose=True)
    breaks = (BREAK.join(name.split(" ", 1)) for name in names)
    costs = FittingTable([*watched, *figures(*breaks)], "what being watched costs the traffic")
    accounts = FittingTable(
        [*watched, *figures("sent, B/s", "records", "lost", "coverage")], "what was sent, recorded and lost", caption
    )
    for kind in result.kinds:
        costs.add_row(LABELS[kind.kind], *_cost_row(kind))
        if kind.records is not None:
            accounts.add_row(LABELS[kind.kind], *_account_row(kind))
    return Group(costs, "", accounts)


def evidence_table(result: EvidenceResult) -> FittingTable:
    """A row per process, medians over the rounds."""
    rounds = len(result.without)
    table = FittingTable(
        [*labels("of a core"), *figures("with", "without", "more", "least", "most")],
        "what verdicts and their evidence cost",
        f"Medians of {rounds} rounds, each of a run with and one without. With: agents tell what TCP says and what"
        " keeps ranks and hosts from running, and the collector judges; without: neither. An agent: mean of three hosts"
        " with a rank each. Least, most: of a single round; the true median lies between them with a probability of"
        f" {result.sureness:.0%}.",
    )
    for name, more, form in (
        ("agent", result.agent_more, "{:+.2%}"),
        ("collector", result.collector_more, "{:+.1%} of it"),
    ):
        sides = (np.median([getattr(one, name) for one in side]) for side in (result.with_all, result.without))
        table.add_row(name, *(f"{side:.2%}" for side in sides), *(form.format(one) for one in more))
    return table


def flows_table(result: FlowsResult) -> FittingTable:
    """A row per figure."""
    title = f"{result.flows_per_s:,.0f} new flows a second for {result.seconds:.0f} s, one frame each"
    table = figures_table(title)
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


def inference_table(result: InferenceResult) -> FittingTable:
    """A row per run; the caption says what was scored."""
    caption = (
        "The recorded traffic is replayed in slices of 200 ms. Boundary: median distance between a rank's inferred end "
        "of an iteration and the end of its wait for the last gradient in the trainer's log, relative to the median "
        "iteration. Begin: the same for the start of its traffic and the last rank's first enqueue. After: number of "
        "iterations that had ended when the first was reported. Bytes: payload whose flow is rightly assigned to the "
        "job or to none. CPU: of one core. Wrong: which of members, ring order and pattern are not exactly right."
    )
    scores = figures("found", "F1", "boundary", "begin", "after", "bytes", "CPU")
    columns = [*labels("run", "cross traffic", prose=True), *scores, *labels("wrong")]
    table = FittingTable(columns, "iterations found in the traffic alone", caption)
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


def figures_table(title: str, caption: str = "") -> FittingTable:
    """A row per figure: its name and its value."""
    return FittingTable([*labels("", prose=True), Column("", right=True, prose=True)], title, caption, headings=False)


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
