# SPDX-License-Identifier: Apache-2.0
"""Loads: when which flow begins and how large it is, after the two algorithms of the thesis' appendix A.1; and files.

A load file is a table with the columns start_ns and size_bytes, as Parquet (names in .parquet) or CSV (all others).
What a load is like is shown in figures, and in a picture after the thesis' figure B-4.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from netmon.errors import DataError, UnsupportedError
from netmon.own_module import to_install
from netmon.records import Table

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

# --- Flow sizes drawn from a published distribution.

WEB_SEARCH = Path(__file__).with_name("web_search.csv")
DATA_MINING = Path(__file__).with_name("data_mining.csv")
PUBLISHED_RATE_BPS = 10_000_000_000


class FlowSizes:
    """A cumulative distribution of flow sizes, linear between its points, every size multiplied by `scale`.

    The published sizes are of links of PUBLISHED_RATE_BPS: with scale = rate / PUBLISHED_RATE_BPS a flow takes as
    long on a slower link as it took there.
    """

    def __init__(self, path: Path = WEB_SEARCH, scale: float = 1.0) -> None:
        """Columns of the file: bytes, probability; lines that begin with # are its source."""
        _header, *points = [line for line in path.read_text().splitlines() if not line.startswith("#")]
        self._sizes, self._probabilities = np.loadtxt(points, delimiter=",", unpack=True)
        self._sizes *= scale

    @property
    def mean(self) -> float:
        middles = (self._sizes[1:] + self._sizes[:-1]) / 2
        return float(np.sum(middles * np.diff(self._probabilities)))

    def draw(self, generator: np.random.Generator, shape: int | tuple[int, ...]) -> npt.NDArray[np.int64]:
        """Flow sizes in bytes, each at least 1."""
        sizes = np.interp(generator.random(shape), self._probabilities, self._sizes)
        whole: npt.NDArray[np.int64] = np.maximum(sizes.round().astype(np.int64), 1)
        return whole


# --- loads

LOAD = np.dtype([("start_ns", "<i8"), ("size_bytes", "<i8")])
"""One flow: ns from the load's beginning to the flow's, and payload bytes. Rows of a load are in order of time."""

SECOND_NS = 1_000_000_000
INTERVAL_NS = 10_000_000
BURST_NS = 1_000_000
BURST_SHARE = 3 / 10  # of an interval's bytes, in a tenth of its time: 300 % of the load
BURST_FLOWS = 2
FEWEST_FLOWS_BETWEEN = 8
_FLOWS_AT_ONCE = 1000


@dataclass(frozen=True)
class Recipe:
    """What makes a load. The same recipe makes the same load."""

    profile: str  # one of ALGORITHMS
    load_bps: float  # payload
    rate_bps: float  # of the link: flow sizes are scaled by rate_bps / 10 Gbit/s
    seed: int

    @property
    def size_scale(self) -> float:
        """What the published flow sizes are multiplied by."""
        return self.rate_bps / PUBLISHED_RATE_BPS


def endless(recipe: Recipe) -> Iterator[Table]:
    """The load, dtype LOAD, part after part, without end."""
    return ALGORITHMS[recipe.profile](recipe, np.random.default_rng(recipe.seed))


def load(recipe: Recipe, seconds: int) -> Table:
    """The first `seconds` of the load, dtype LOAD, shape (flows,)."""
    parts = []
    for part in endless(recipe):
        parts.append(part[part["start_ns"] < seconds * SECOND_NS])
        if len(parts[-1]) < len(part):
            break
    return np.concatenate(parts)


def consistent(recipe: Recipe, generator: np.random.Generator, distribution: Path = WEB_SEARCH) -> Iterator[Table]:
    """Algorithm 1: flows of the distribution's sizes, each followed by as long a gap as its bytes take at the load.

    So the load is the same over every time that is long against a flow's. (With a Poisson process of such sizes it
    would be more than the link can carry for seconds at a time, and burstier than Algorithm 2.)
    """
    sizes, sent = FlowSizes(distribution, recipe.size_scale), 0
    while True:
        drawn = sizes.draw(generator, _FLOWS_AT_ONCE)
        ends = sent + np.cumsum(drawn)
        yield _rows((ends - drawn) * (8 * SECOND_NS / recipe.load_bps), drawn)
        sent = int(ends[-1])


def consistent_data_mining(recipe: Recipe, generator: np.random.Generator) -> Iterator[Table]:
    """Algorithm 1 with the data-mining sizes."""
    return consistent(recipe, generator, DATA_MINING)


def poisson(recipe: Recipe, generator: np.random.Generator) -> Iterator[Table]:
    """Web-search flows that arrive as a Poisson process, as the literature on flow scheduling has them."""
    sizes, now = FlowSizes(WEB_SEARCH, recipe.size_scale), 0.0
    mean_gap_ns = sizes.mean * 8 * SECOND_NS / recipe.load_bps
    while True:
        arrivals = now + np.cumsum(generator.exponential(mean_gap_ns, _FLOWS_AT_ONCE))
        yield _rows(arrivals, sizes.draw(generator, _FLOWS_AT_ONCE))
        now = float(arrivals[-1])


def burst(recipe: Recipe, generator: np.random.Generator) -> Iterator[Table]:
    """Algorithm 2: each 10 ms begin with 1 ms at 300 % of the load.

    3/10 of an interval's bytes come in that millisecond, as two flows; the rest in at least eight flows over the other
    9 ms. Sizes are drawn from the web-search distribution and the flows of each part scaled together so that every
    interval has exactly its bytes. That makes them smaller than published where eight flows of the mean size
    are more than the load; the thesis leaves open how it met both.
    """
    sizes = FlowSizes(WEB_SEARCH, recipe.size_scale)
    volume = recipe.load_bps / 8 * INTERVAL_NS / SECOND_NS
    between = max(FEWEST_FLOWS_BETWEEN, round((1 - BURST_SHARE) * volume / sizes.mean))
    parts = (
        (BURST_FLOWS, BURST_SHARE * volume, 0, BURST_NS),
        (between, (1 - BURST_SHARE) * volume, BURST_NS, INTERVAL_NS),
    )
    for second in itertools.count():
        begins = second * SECOND_NS + np.arange(0, SECOND_NS, INTERVAL_NS)[:, np.newaxis]
        starts, drawn = [], []
        for flows, share, since, until in parts:
            shape = (len(begins), flows)
            starts.append(begins + generator.uniform(since, until, shape))
            draws = sizes.draw(generator, shape)
            drawn.append(draws * (share / draws.sum(axis=1, keepdims=True)))
        yield _rows(np.concatenate(starts, axis=1).ravel(), np.concatenate(drawn, axis=1).ravel())


def _rows(starts: npt.NDArray[Any], sizes: npt.NDArray[Any]) -> Table:
    rows = np.empty(len(starts), LOAD)
    rows["start_ns"], rows["size_bytes"] = starts, np.maximum(np.round(sizes), 1)
    rows.sort(order="start_ns")
    return rows


ALGORITHMS: dict[str, Callable[[Recipe, np.random.Generator], Iterator[Table]]] = {
    "websearch": consistent,
    "datamining": consistent_data_mining,
    "poisson": poisson,
    "burst": burst,
}


# --- Load files.

_PARQUET = ".parquet"
_COLUMNS = list(LOAD.names or ())


def write_load(path: Path, rows: Table, comment: str = "") -> None:
    """Write a load, dtype LOAD. comment: how it was made, one line; kept in a CSV. Raises DataError."""
    import pandas as pd

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


def _read(path: Path) -> "pd.DataFrame":
    import pandas as pd  # it takes a second

    try:
        return pd.read_parquet(path) if path.suffix == _PARQUET else pd.read_csv(path, comment="#")
    except OSError as error:
        raise DataError(f"cannot read the load {path}: {error.strerror or error}") from None
    except ValueError as error:  # what is neither CSV nor Parquet, of different libraries
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
