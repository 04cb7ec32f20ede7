# SPDX-License-Identifier: Apache-2.0
"""How cost grows with hosts, flows and jobs: one run each, and a picture. The picture needs matplotlib."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from netmon.bench.pipeline import run as single
from netmon.bench.pipeline.run import SIMULATED, PipelineResult
from netmon.bench.result import CPU, OTHER, figure, save, table
from netmon.bench.specs import Load, PipelineSpec, Progress, silent
from netmon.terminal import FittingTable, figures, labels
from netmon.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SHARES = (4, 2, 1)  # of the hosts and jobs that were requested
_FACTORS = (1, 4, 16)  # of the flows


@dataclass(frozen=True)
class SweepResult:
    """Runs by what is varied in them: "hosts", "flows", "jobs"."""

    ALSO, simulated = ("simulated",), SIMULATED
    sweeps: dict[str, list[PipelineResult]]

    def shown(self) -> Iterator[FittingTable]:
        costs = ("cores", "ms per batch", "memory (PSS)", "acknowledged p99, s", "snapshot's age, s", "dataset = truth")
        columns = [*labels("varied"), *figures("hosts", "flows", "jobs", "rows/s", *costs)]
        rows = (row for name, runs in self.sweeps.items() for row in (*(_row(name, run) for run in runs), ()))
        yield table("how the collector's cost grows", columns, rows, SIMULATED)

    def draw(self, path: Path) -> None:
        """CPU and memory of the collector. Needs matplotlib. Raises DataError."""
        made = figure(11, 3.6)
        for axes, (name, runs) in zip(made.subplots(1, len(self.sweeps)), self.sweeps.items(), strict=True):
            _panel(axes, name, runs)
        load = self.sweeps["hosts"][-1].load
        made.suptitle(
            f"the collector; simulated agents: {load.hosts} hosts × {load.rows:,} rows/s, {load.batches} batches/s, "
            f"{load.flows:,} flows, {load.jobs} jobs unless said otherwise",
            fontsize=9,
        )
        save(made, path)


def _row(name: str, run: PipelineResult) -> tuple[str, ...]:
    cost, load = run.costs["collector"], run.load
    return (
        *(name, str(load.hosts), f"{load.flows:,}", str(load.jobs), f"{run.sent_rows_per_s:,.0f}"),
        *(f"{cost.cores:.2f}", f"{run.batch_cpu_ms:.2f}", format_bytes(cost.proportional_bytes)),
        *(f"{run.delay_p99_s:.1f}", f"{run.seen.age_most_s:.1f}", "yes" if run.true else "NO"),
    )


def loads(load: Load) -> dict[str, list[Load]]:
    """What is measured, by what is varied."""
    hosts = sorted({max(1, load.hosts // share) for share in _SHARES})
    jobs = sorted({0, *(load.jobs // share for share in _SHARES)})
    return {
        "hosts": [dataclasses.replace(load, hosts=count, jobs=min(load.jobs, count)) for count in hosts],
        "flows": [dataclasses.replace(load, flows=load.flows * factor) for factor in _FACTORS],
        "jobs": [dataclasses.replace(load, jobs=count) for count in jobs],
    }


def measure(spec: PipelineSpec, progress: Progress = silent) -> SweepResult:
    """Blocks for several runs; what occurs twice is measured once. Raises LabError."""
    wanted = loads(spec.load)
    distinct = list(dict.fromkeys(one for many in wanted.values() for one in many))
    results = {}
    for number, one in enumerate(distinct):

        def show(done: float, of: float, text: str = "", before: int = number) -> None:
            progress(before + done, len(distinct))

        varied = dataclasses.replace(spec, **vars(one), plot=None, data=None)
        results[one] = single.measure(varied, show)
    return SweepResult({name: [results[one] for one in many] for name, many in wanted.items()})


def _panel(axes: "Axes", name: str, runs: list[PipelineResult]) -> None:
    at = [getattr(run.load, name) for run in runs]
    axes.plot(at, [run.taking_in_cores for run in runs], "o-", color=CPU)
    axes.set_xlabel(f"{name} on each host" if name == "flows" else name)
    axes.set_ylabel("CPU (cores)", color=CPU)
    memory = axes.twinx()
    memory.plot(at, [run.taking_in_bytes / 1e6 for run in runs], "s--", color=OTHER)
    memory.set_ylabel("memory, PSS (MB)", color=OTHER)
    for one in (axes, memory):
        one.set_ylim(0, 1.1 * one.get_ylim()[1])
    axes.grid(color="#dddddd", linewidth=0.6)
    for run, x in zip(runs, at, strict=True):
        if not run.true or run.coarse_batches:
            axes.annotate("shed" if run.true else "not the truth", (x, run.taking_in_cores), fontsize=7)
