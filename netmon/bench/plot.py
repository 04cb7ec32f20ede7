# SPDX-License-Identifier: Apache-2.0
"""The overhead as a picture. Needs matplotlib."""

from pathlib import Path
from typing import TYPE_CHECKING

from netmon.bench.overhead import OverheadResult
from netmon.bench.tables import LABELS
from netmon.errors import DataError, UnsupportedError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_RUN, _MEDIAN, _OBSERVER = "#0072B2", "#000000", "#D55E00"  # Okabe and Ito: distinguishable for the colour-blind too
_DODGE = 0.3  # of a row, over which its rounds are spread


def check_plottable(path: Path) -> None:
    """Before anything is measured: raises UnsupportedError without matplotlib, DataError where path cannot be."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UnsupportedError(f"cannot draw {path}: matplotlib is not installed; install netmon[report]") from None
    if not path.parent.is_dir():
        raise DataError(f"cannot draw {path}: {path.parent} is no directory; make it first")


def plot(result: OverheadResult, path: Path) -> None:
    """Throughput of every round, and CPU time per gigabyte. The file's type is by its name. Raises DataError."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    kinds = list(result.runs)
    _throughput(left, result)
    _cpu(right, result)
    left.set_yticks(range(len(kinds)), [LABELS[kind] for kind in kinds])
    left.invert_yaxis()
    for axes in (left, right):
        axes.set_xlim(left=0)
        axes.grid(axis="x", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot draw {path}: {error}") from None


def _throughput(axes: "Axes", result: OverheadResult) -> None:
    for row, kind in enumerate(result.kinds):
        values = [run.gbit_per_s for run in result.runs[kind.kind]]
        offsets = [row + _DODGE * (number / max(1, len(values) - 1) - 0.5) for number in range(len(values))]
        axes.plot(values, offsets, "o", color=_RUN, markersize=4, alpha=0.7, label="a round" if not row else None)
        label = "median" if not row else None
        axes.plot(kind.gbit_per_s, row, "|", color=_MEDIAN, markersize=22, markeredgewidth=2, label=label)
    axes.set_xlabel("throughput of one TCP stream (Gbit/s)")
    axes.legend(frameon=False, loc="best")


def _cpu(axes: "Axes", result: OverheadResult) -> None:
    rows = range(len(result.kinds))
    observers = [kind.observer_cpu_s_per_gb or 0 for kind in result.kinds]
    machine = [kind.machine_cpu_s_per_gb for kind in result.kinds]
    axes.barh(rows, machine, color="#bbbbbb", height=0.5, label="whole machine")
    axes.barh(rows, observers, color=_OBSERVER, height=0.5, label="of it, the observer's processes")
    axes.set_xlabel("CPU time per payload (s/GB), medians")
    axes.legend(frameon=False, loc="best")
