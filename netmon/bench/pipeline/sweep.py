# SPDX-License-Identifier: Apache-2.0
"""How cost grows with hosts, flows and jobs: one run each, and a picture. The picture needs matplotlib."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from netmon.bench.pipeline.load import Load
from netmon.bench.pipeline.run import SIMULATED, PipelineResult, measure
from netmon.errors import DataError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SHARES = (4, 2, 1)  # of the hosts and jobs that were requested
_FACTORS = (1, 4, 16)  # of the flows
_CPU, _MEMORY = "#0072B2", "#D55E00"  # Okabe and Ito: distinguishable for the colour-blind too


@dataclass(frozen=True)
class SweepResult:
    """Runs by what is varied in them: "hosts", "flows", "jobs"."""

    runs: dict[str, list[PipelineResult]]

    def document(self) -> dict[str, Any]:
        """For --json."""
        runs = {name: [run.document() for run in runs] for name, runs in self.runs.items()}
        return {"simulated": SIMULATED, "sweeps": runs}


def loads(load: Load) -> dict[str, list[Load]]:
    """What is measured, by what is varied."""
    hosts = sorted({max(1, load.hosts // share) for share in _SHARES})
    jobs = sorted({0, *(load.jobs // share for share in _SHARES)})
    return {
        "hosts": [dataclasses.replace(load, hosts=count, jobs=min(load.jobs, count)) for count in hosts],
        "flows": [dataclasses.replace(load, flows=load.flows * factor) for factor in _FACTORS],
        "jobs": [dataclasses.replace(load, jobs=count) for count in jobs],
    }


def sweep(load: Load, progress: Callable[[float], None] = lambda _: None) -> SweepResult:
    """Blocks for several runs; what occurs twice is measured once. Raises LabError."""
    wanted = loads(load)
    distinct = list(dict.fromkeys(one for many in wanted.values() for one in many))
    results = {
        one: measure(one, lambda done, before=number: progress((before + done) / len(distinct)))  # type: ignore[misc]
        for number, one in enumerate(distinct)
    }
    return SweepResult({name: [results[one] for one in many] for name, many in wanted.items()})


def draw(result: SweepResult, path: Path) -> None:
    """CPU and memory of the collector. The file's type is by its name. Raises DataError."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.6), layout="constrained")
    panels = figure.subplots(1, len(result.runs))
    for axes, (name, runs) in zip(panels, result.runs.items(), strict=True):
        _panel(axes, name, runs)
    load = result.runs["hosts"][-1].load
    figure.suptitle(
        f"the collector; simulated agents: {load.hosts} hosts × {load.rows:,} rows/s, {load.batches} batches/s, "
        f"{load.flows:,} flows, {load.jobs} jobs unless said otherwise",
        fontsize=9,
    )
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot draw {path}: {error}") from None


def _panel(axes: "Axes", name: str, runs: list[PipelineResult]) -> None:
    at = [getattr(run.load, name) for run in runs]
    axes.plot(at, [run.taking_in_cores for run in runs], "o-", color=_CPU)
    axes.set_xlabel(f"{name} on each host" if name == "flows" else name)
    axes.set_ylabel("CPU (cores)", color=_CPU)
    memory = axes.twinx()
    memory.plot(at, [run.taking_in_bytes / 1e6 for run in runs], "s--", color=_MEMORY)
    memory.set_ylabel("memory, PSS (MB)", color=_MEMORY)
    for one in (axes, memory):
        one.set_ylim(0, 1.1 * one.get_ylim()[1])
    axes.grid(color="#dddddd", linewidth=0.6)
    for run, x in zip(runs, at, strict=True):
        if not run.true or run.coarse_batches:
            axes.annotate("shed" if run.true else "not the truth", (x, run.taking_in_cores), fontsize=7)
