# SPDX-License-Identifier: Apache-2.0
"""Figures of a part of a dataset, in the report's look."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from netmon.errors import DataError, UnsupportedError
from netmon.history.dataset import groups
from netmon.own_module import to_install
from netmon.records import CLASS_NAMES
from netmon.report.study import Chapter, Exhibit, Frames, GapError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from netmon.analysis.explanation import Explanation
    from netmon.report.study import Study

_PHASES = {
    "computed_ns": ("computing", "#CCEBDD"),
    "waited_ns": ("waiting for a rank", "#F0E442"),
    "transfer_ns": ("transfer", "#999999"),
    "stalled_ns": ("held up", "#CC0000"),
    "after_ns": ("after the last gradient", "#E5E5E5"),
}
"""Parts of a rank's time in their order; none has a colour of a class of traffic."""
_MOST_LINKS = 8


@contextmanager
def plot_style() -> Iterator[None]:
    """The report's settings, for as long as something is drawn. Raises UnsupportedError without matplotlib."""
    try:
        from matplotlib import rc_context

        from netmon.report.style import SETTINGS
    except ImportError:
        raise UnsupportedError(f"cannot draw: matplotlib is not installed; {to_install('report')}") from None
    with rc_context(SETTINGS):
        yield


def iteration_figure(ranks: pd.DataFrame, buckets: pd.DataFrame, explained: "Explanation") -> "Figure":
    """ranks: rows of `iterations`, of one iteration. buckets: `buckets` by link and class, of the same time."""
    with plot_style():
        from matplotlib.figure import Figure

        links = [name for name, _ in groups(buckets, "host", "direction")][:_MOST_LINKS]
        figure = Figure(figsize=(8.6, 1.2 + 0.3 * len(ranks) + 1.0 * len(links)), layout="constrained")
        heights = [0.5 + 0.3 * len(ranks), *([1.0] * len(links))]
        axes = figure.subplots(1 + len(links), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        begin = ranks["start"].min()
        _phases(axes[0], ranks.sort_values("rank"), explained.ranks, begin)
        axes[0].set_title(explained.sentence, loc="left", wrap=True, fontsize=8)
        for ax, (host, direction) in zip(axes[1:], links, strict=True):
            own = buckets[(buckets["host"] == host) & (buckets["direction"] == direction)]
            _draw_areas(ax, own, lambda moments: (moments - begin).dt.total_seconds() * 1e3)
            ax.set_title(f"{'leaves' if direction == 'tx' else 'enters'} {host}", loc="left")
        axes[-1].set_xlabel("time since the iteration's start (ms)")
        _legend(figure, axes)
        return figure


def draw_iterations(rows: pd.DataFrame, verdicts: pd.DataFrame, ax: "Axes | None") -> "Axes":
    """rows: of `iterations`. verdicts: rows with start, duration_ns and cause."""
    with plot_style():
        ax = ax if ax is not None else _axes()
        for (job,), own in groups(rows, "job"):
            slowest = own.groupby("iteration").agg(start=("start", "min"), took=("duration_ns", "max"))
            ax.plot(slowest["start"], slowest["took"] / 1e6, ".", markersize=3, label=f"job {job}")
        for (cause,), own in groups(verdicts, "cause"):
            ax.plot(own["start"], own["duration_ns"] / 1e6, "o", fillstyle="none", label=str(cause).replace("_", " "))
        ax.set_ylabel("iteration time (ms)")
        ax.set_ylim(bottom=0)
        ax.legend()
        return ax


def draw_rates(rows: pd.DataFrame, ax: "Axes | None") -> "Axes":
    """rows: of `buckets` by class, of one direction."""
    with plot_style():
        ax = ax if ax is not None else _axes()
        _draw_areas(ax, rows, lambda moments: moments)
        ax.legend()
        return ax


def _axes() -> "Axes":
    from matplotlib.figure import Figure

    return Figure(figsize=(8.6, 3.0), layout="constrained").subplots()


def _phases(ax: "Axes", ranks: pd.DataFrame, times: pd.DataFrame, begin: pd.Timestamp) -> None:
    """times: RankTimes of these ranks; of those that are not known the whole."""
    rows = ranks.merge(times.drop(columns=["host", "duration_ns"], errors="ignore"), on="rank", how="left")
    names = [f"rank {rank} ({host})" for rank, host in zip(rows["rank"], rows["host"], strict=True)]
    left = (rows["start"] - begin).dt.total_seconds() * 1e3
    known = rows["known"].fillna(False).astype(bool)
    for name, (label, colour) in _PHASES.items():
        long = rows[name].where(known).fillna(0) / 1e6
        ax.barh(names, long, left=left, color=colour, label=label, height=0.6)
        left = left + long
    if (~known).any():
        whole = ((rows["end"] - rows["start"]).dt.total_seconds() * 1e3).where(~known).fillna(0)
        ax.barh(names, whole, left=left, color="#cccccc", hatch="//", label="not known", height=0.6)
    ax.invert_yaxis()


def _draw_areas(ax: "Axes", rows: pd.DataFrame, place: Any) -> None:
    """Mbit/s by class, one upon the other; nothing where there is no row."""
    from netmon.report.style import COLOUR_OF_CLASS

    if rows.empty:
        return
    width = int(rows["bucket_ns"].iloc[0])
    rows = rows if "class" in rows else rows.assign(**{"class": "all"})
    table = rows.pivot_table(index="bucket_start", columns="class", values="wire_bytes", aggfunc="sum", fill_value=0)
    every = pd.date_range(table.index.min(), table.index.max() + pd.Timedelta(width, "ns"), freq=f"{width}ns")
    if len(every) <= 1_000_000:  # else what is silent is drawn as a slope
        table = table.reindex(every, fill_value=0)
    below = np.zeros(len(table))
    times = place(table.index.to_series())
    for name in (name for name in (*CLASS_NAMES, "all") if name in table):
        upto = below + table[name].to_numpy() * 8e3 / width
        ax.fill_between(times, below, upto, step="post", linewidth=0, color=COLOUR_OF_CLASS[name], label=name)
        below = upto
    ax.set_ylabel("Mbit/s")
    ax.set_ylim(bottom=0)


def _legend(figure: "Figure", axes: Any) -> None:
    known: dict[str, Any] = {}
    for ax in axes:
        handles, labels = ax.get_legend_handles_labels()
        known |= dict(zip(labels, handles, strict=True))
    figure.legend(list(known.values()), list(known), loc="outside lower center", ncols=min(7, max(1, len(known))))


# --- The report's exhibits one by one: their tables and figures.


def contents() -> pd.DataFrame:
    """A row per exhibit: chapter, name, title, follows (the figure or equation that it repeats)."""
    return pd.DataFrame(
        [
            (chapter.title, exhibit.name, exhibit.title, exhibit.follows)
            for chapter in _chapters()
            for exhibit in chapter.exhibits
        ],
        columns=["chapter", "name", "title", "follows"],
    )


def tables(study: "Study", name: str) -> dict[str, pd.DataFrame]:
    """By name. Raises DataError where there is no such exhibit, or the dataset does not have what it shows."""
    return dict(_frames(study, _named(name)))


def figure(study: "Study", name: str) -> "Figure":
    """Drawn. Raises DataError, also where the exhibit is a table only."""
    exhibit = _named(name)
    if exhibit.draw is None:
        raise DataError(f"cannot draw {name}: it is a table; call exhibit({name!r})")
    with plot_style():
        from matplotlib.figure import Figure

        from netmon.report.style import without_mathematics

        drawn = Figure(figsize=(8.6, 3.6), layout="constrained")
        frames = {part: without_mathematics(frame) for part, frame in _frames(study, exhibit).items()}
        try:
            exhibit.draw(drawn, **frames)
        except GapError as gap:
            raise DataError(f"cannot draw {name}: {gap}") from None
        return drawn


def _frames(study: "Study", exhibit: Exhibit) -> Frames:
    try:
        return exhibit.tables(study)
    except GapError as gap:
        raise DataError(f"cannot show {exhibit.name}: {gap}") from None


def _named(name: str) -> Exhibit:
    known = {exhibit.name: exhibit for chapter in _chapters() for exhibit in chapter.exhibits}
    if name not in known:
        raise DataError(f"no exhibit {name}: there are {', '.join(known)}")
    return known[name]


def _chapters() -> tuple[Chapter, ...]:
    try:
        from netmon.report.report import chapters

        return chapters()
    except ImportError as error:
        raise UnsupportedError(
            f"cannot show an exhibit: {error.name} is not installed; {to_install('report')}"
        ) from None
