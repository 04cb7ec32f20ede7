# SPDX-License-Identifier: Apache-2.0
"""Load files: a table with the columns start_ns and size_bytes, as Parquet (names in .parquet) or CSV (all others).

And what a load is like, in figures and in a picture after the thesis' figure B-4.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from netmon.errors import DataError, UnsupportedError
from netmon.lab.traffic.loads import LOAD
from netmon.own_module import to_install
from netmon.records import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PARQUET = ".parquet"
_COLUMNS = list(LOAD.names or ())


def write_load(path: Path, rows: Table, comment: str = "") -> None:
    """Write a load, dtype LOAD. comment: how it was made, one line; kept in a CSV. Raises DataError."""
    frame = pd.DataFrame(rows)
    try:
        if path.suffix == _PARQUET:
            frame.to_parquet(path, index=False, compression="zstd")
        else:
            path.write_text((f"# {comment}\n" if comment else "") + frame.to_csv(index=False))
    except OSError as error:
        raise DataError(f"cannot write a load to {path}: {error.strerror}") from None


def read_load(path: Path) -> Table:
    """A load, dtype LOAD, in order of time. Raises DataError where the file is none, saying what is wrong with it."""
    frame = _read(path)
    if list(frame.columns) != _COLUMNS:
        found = ", ".join(map(str, frame.columns[:4]))
        raise DataError(f"cannot read {path} as a load: its columns are {found}; it takes {' and '.join(_COLUMNS)}")
    if frame.empty:
        raise DataError(f"cannot read {path} as a load: it holds no flow")
    rows = np.empty(len(frame), LOAD)
    for column in _COLUMNS:
        values = frame[column].to_numpy()
        if not np.issubdtype(values.dtype, np.integer):
            raise DataError(f"cannot read {path} as a load: {column} must be whole numbers throughout")
        rows[column] = values
    _check(path, rows)
    return rows


def _read(path: Path) -> pd.DataFrame:
    try:
        return pd.read_parquet(path) if path.suffix == _PARQUET else pd.read_csv(path, comment="#")
    except OSError as error:
        raise DataError(f"cannot read the load {path}: {error.strerror or error}") from None
    except ValueError as error:  # what is neither CSV nor Parquet, of several libraries
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"cannot read {path} as a load: {reason}") from None


def _check(path: Path, rows: Table) -> None:
    late = np.flatnonzero(np.diff(rows["start_ns"]) < 0)
    for row, reason in (
        (np.flatnonzero(rows["start_ns"] < 0), "begins before the load does"),
        (late + 1, "begins before the one above it"),
        (np.flatnonzero(rows["size_bytes"] < 1), "has no bytes"),
    ):
        if len(row):
            raise DataError(f"cannot read {path} as a load: flow {row[0] + 1} {reason}")


# --- what a load is like

MS_NS = 1_000_000
_SHOWN_NS = 200 * MS_NS  # of the fine picture
_COLOURS = ("#0072B2", "#E69F00")  # Okabe and Ito


def offered_bps(rows: Table, interval_ns: int) -> npt.NDArray[np.float64]:
    """Rate by interval, shape (intervals,), of a load, dtype LOAD: a flow's bytes count when it begins."""
    sums = np.bincount(rows["start_ns"] // interval_ns, weights=rows["size_bytes"])
    rates: npt.NDArray[np.float64] = sums * 8e9 / interval_ns
    return rates


def summarise(rows: Table) -> dict[str, Any]:
    """Of a load, dtype LOAD, with at least one flow: counts, bytes, rates. Its duration is in whole 10 ms."""
    sizes = rows["size_bytes"]
    begun = np.bincount(rows["start_ns"] // (10 * MS_NS))
    duration_ns = len(begun) * 10 * MS_NS
    intervals = {"1ms": MS_NS, "10ms": 10 * MS_NS, "1s": 1000 * MS_NS}
    return {
        "flows": len(rows),
        "bytes": int(sizes.sum()),
        "duration_ns": duration_ns,
        "mean_bps": float(sizes.sum() * 8e9 / duration_ns),
        "peak_bps": {name: float(offered_bps(rows, length).max()) for name, length in intervals.items()},
        "size_bytes": {
            "mean": float(sizes.mean()),
            "median": float(np.median(sizes)),
            "p99": float(np.percentile(sizes, 99)),
            "largest": int(sizes.max()),
        },
        "flows_per_10ms": {"mean": float(begun.mean()), "fewest": int(begun.min()), "most": int(begun.max())},
    }


def draw(rows: Table, path: Path, name: str) -> None:
    """Write a picture: rate per 1 ms and 10 ms, and the distribution of flow sizes. Raises DataError."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise UnsupportedError(f"cannot draw a load: matplotlib is not installed; {to_install('report')}") from None
    figure = Figure(figsize=(9, 8), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(f"{name}: {len(rows)} flows, offered load")
    fine, coarse, sizes = figure.subplots(3, 1)
    early = rows[rows["start_ns"] < _SHOWN_NS]
    _draw_rate(fine, early if len(early) else rows, MS_NS, "the first 200 ms, by 1 ms")
    _draw_rate(coarse, rows, 10 * MS_NS, "by 10 ms")
    _draw_sizes(sizes, rows)
    try:
        figure.savefig(path, dpi=130)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot draw the load to {path}: {error}") from None


def _draw_rate(axes: "Axes", rows: Table, interval_ns: int, title: str) -> None:
    rates = offered_bps(rows, interval_ns) / 1e9
    axes.stairs(
        rates,
        np.arange(len(rates) + 1) * interval_ns / 1e9,
        fill=True,
        color=_COLOURS[0],
        label="bytes of the flows begun",
    )
    axes.axhline(rates.mean(), color=_COLOURS[1], label=f"mean {rates.mean():.2f} Gbit/s")
    axes.set(title=title, xlabel="time (s)", ylabel="offered rate (Gbit/s)", xlim=(0, len(rates) * interval_ns / 1e9))
    axes.set_ylim(0, 1.35 * rates.max())  # room for the legend
    axes.legend(loc="upper right", ncols=2)


def _draw_sizes(axes: "Axes", rows: Table) -> None:
    sizes = np.sort(rows["size_bytes"])
    share = np.arange(1, len(sizes) + 1) / len(sizes)
    axes.step(sizes, share, where="post", color=_COLOURS[0], label="flows")
    axes.step(sizes, np.cumsum(sizes) / sizes.sum(), where="post", color=_COLOURS[1], label="bytes")
    axes.set(title="flow sizes", xlabel="size (bytes)", ylabel="cumulative share", xscale="log", ylim=(0, 1))
    axes.legend(loc="upper left")
