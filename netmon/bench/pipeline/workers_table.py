# SPDX-License-Identifier: Apache-2.0
"""One worker and several, side by side, as a table for a terminal."""

from netmon.bench.pipeline.same import LEFT_OUT
from netmon.bench.pipeline.workers import PLAYED, Played, WorkersResult
from netmon.terminal import Column, FittingTable, labels


def workers_table(result: WorkersResult) -> FittingTable:
    """A row per figure, a column for each of the two runs."""
    load, count = result.load, len(result.several.workers)
    what = f"{load.hosts} hosts × {load.rows:,} rows/s in {load.batches} batches/s, {load.jobs} jobs, {load.seconds} s"
    left_out = ", ".join(f"{table}.{column}" for table, columns in LEFT_OUT.items() for column in columns)
    caption = f"{PLAYED} The datasets are compared in all columns except {left_out}."
    counts = ("1 worker", f"{count} workers")
    columns = [*labels("", prose=True), *(Column(n, right=True, prose=True) for n in counts)]
    table = FittingTable(columns, f"workers on {result.cores_each:g} cores each, {what}", caption)
    for name, one, several in _figures(result):
        table.add_row(name, one, several)
    return table


def _figures(result: WorkersResult) -> list[tuple[str, str, str]]:
    one, several = result.one, result.several

    def both(name: str, figure: str) -> tuple[str, str, str]:
        return name, _one(one, figure), _one(several, figure)

    rows = [
        both("rows/s stored, in all", "{0.rows_per_s:,.0f}"),
        *(_of_worker(result, number) for number in range(len(several.workers))),
        ("rows/s : rows/s of one", "1", f"{result.ratio:.2f}"),
        ("  had each got its whole share of the CPU", "1", f"{result.ratio_by_cpu:.2f}"),
        both("until all was stored, s", "{0.seconds:.1f}"),
        both("rows per second of the workers' CPU", "{0.rows_per_cpu_s:,.0f}"),
        both("bus: CPU, cores", "{0.bus_cores:.2f}"),
        both("hosts that changed their worker meanwhile", "{0.moved}"),
        ("dataset = truth", _yes(one.verdict.true), _yes(several.verdict.true)),
        ("dataset of several = dataset of one", "", _yes(result.same)),
    ]
    for table, found in result.differences.items():
        shown = "".join(f"\n{line}" for line in found.shown)
        rows.append((f"  {table}: rows; missing, extra", f"{found.rows:,}", f"{found.missing}, {found.extra}{shown}"))
    return rows


def _yes(holds: bool) -> str:
    return "yes" if holds else "NO"


def _one(played: Played, figure: str) -> str:
    return figure.format(played)


def _of_worker(result: WorkersResult, number: int) -> tuple[str, str, str]:
    texts = []
    for played in (result.one, result.several):
        worker = played.workers[number] if number < len(played.workers) else None
        texts.append(f"{worker.rows_per_s:,.0f}, {worker.cores:.2f}" if worker else "")
    return f"  worker {number + 1}: rows/s, cores used", texts[0], texts[1]
