# SPDX-License-Identifier: Apache-2.0
"""A run as a table for a terminal."""

from netmon.bench.pipeline.run import SIMULATED, PipelineResult
from netmon.bench.pipeline.sweep import SweepResult
from netmon.bench.pipeline.truth import Difference
from netmon.bench.tables import figures_table
from netmon.terminal import FittingTable, figures, labels
from netmon.units import format_bytes

_MOST_NAMED = 5  # streams that failed


def pipeline_table(result: PipelineResult) -> FittingTable:
    """A row per figure; the caption says what was simulated."""
    load = result.load
    what = (
        f"{load.hosts} hosts × {load.rows:,} rows/s in {load.batches} batches/s, {load.jobs} jobs, {load.flows:,} flows"
    )
    table = figures_table(f"the collector under {what}, {load.seconds} s", SIMULATED)
    for name, value in _figures(result):
        table.add_row(name, value)
    return table


def _figures(result: PipelineResult) -> list[tuple[str, str]]:
    seen, verdict = result.seen, result.verdict
    rows = [
        ("rows/s sent, acknowledged", f"{result.sent_rows_per_s:,.0f}, {result.stored_rows_per_s:,.0f}"),
        ("batches/s sent", f"{result.batches_per_s:,.0f}"),
    ]
    for name, cost in result.costs.items():
        memory = f"{format_bytes(cost.resident_bytes)}, {format_bytes(cost.proportional_bytes)}"
        rows += [(f"{name}: CPU, cores", f"{cost.cores:.2f}"), (f"{name}: memory, RSS, PSS", memory)]
    delays = f"{result.delay_median_s:.2f}, {result.delay_p99_s:.2f}, {result.delay_most_s:.2f}"
    ages = f"{seen.age_median_s:.2f}, {seen.age_most_s:.2f} ({seen.snapshots} of {format_bytes(seen.bytes)} at most)"
    rows += [
        ("collector: CPU per batch, ms", f"{result.batch_cpu_ms:.2f}"),
        ("acknowledgement after, s: median, p99, most", delays),
        ("longest time without a word for an agent, s", f"{result.silent_most_s:.2f}"),
        ("late to send (backpressure), s: p99", f"{result.late_p99_s:.2f}"),
        ("age of the viewer's snapshot, s: median, most", ages),
        (
            "`netmon top --once --json` takes, s: median",
            "–" if result.top_median_s is None else f"{result.top_median_s:.2f}",
        ),
        ("age of the rows in it, s: hosts' median, most", f"{seen.data_median_s:.2f}, {seen.data_most_s:.2f}"),
    ]
    rows += [
        (f"{name}: rows, B/row, files", f"{table.rows:,}, {table.bytes / max(1, table.rows):.1f}, {table.files:,}")
        for name, table in result.tables.items()
    ]
    widths = ", ".join(f"{hosts} to {width} ms" for width, hosts in result.widths.items() if width > 1) or "nothing"
    rows += [
        ("B per bucket row, over all tables", f"{result.bytes_per_row:.2f}"),
        ("files an hour", f"{result.files_per_hour:,.0f}"),
        ("shed: hosts made coarser", widths),
        ("shed: batches, rows that are coarser", f"{result.coarse_batches:,}, {verdict.coarse_rows:,}"),
        ("collector ends after SIGTERM, s (status)", f"{result.stop_s:.1f} ({result.stop_status})"),
        ("streams that failed", f"{len(result.failed)}" + "".join(f"\n{line}" for line in result.failed[:_MOST_NAMED])),
        ("batches that were never acknowledged", f"{result.open_batches:,}"),
        ("dataset = truth", "yes" if result.true else "NO"),
        ("  bucket rows: true, missing, wrong", _difference(verdict.rows)),
        ("  iterations: true, missing, wrong", _difference(verdict.iterations)),
        ("  ledger: true, missing, wrong", _difference(verdict.ledger)),
        ("  rows of another class, iteration", f"{verdict.classes:,}, {verdict.numbers:,}"),
        ("  furthest from the true time, µs", f"{verdict.clock_error_ns / 1e3:.1f}"),
    ]
    return rows


def _difference(difference: Difference) -> str:
    return f"{difference.true:,}, {difference.missing:,}, {difference.wrong:,}"


def sweep_table(result: SweepResult) -> FittingTable:
    """A row per run; the caption says what was simulated."""
    costs = ("cores", "ms per batch", "memory (PSS)", "acknowledged p99, s", "snapshot's age, s", "dataset = truth")
    columns = [*labels("varied"), *figures("hosts", "flows", "jobs", "rows/s", *costs)]
    table = FittingTable(columns, "how the collector's cost grows", SIMULATED)
    for name, runs in result.runs.items():
        for run in runs:
            cost, load = run.costs["collector"], run.load
            table.add_row(
                *(name, str(load.hosts), f"{load.flows:,}", str(load.jobs), f"{run.sent_rows_per_s:,.0f}"),
                *(f"{cost.cores:.2f}", f"{run.batch_cpu_ms:.2f}", format_bytes(cost.proportional_bytes)),
                *(f"{run.delay_p99_s:.1f}", f"{run.seen.age_most_s:.1f}", "yes" if run.true else "NO"),
            )
        table.add_section()
    return table
