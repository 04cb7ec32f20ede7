# SPDX-License-Identifier: Apache-2.0
"""One look for every figure: sizes, colours (Okabe and Ito's, safe for the colour-blind), panels."""

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, PercentFormatter

from netmon.records import CLASS_COLOURS, CLASS_NAMES
from netmon.report.study import GapError

COLOUR_OF_CLASS = {**dict(zip(CLASS_NAMES, CLASS_COLOURS, strict=True)), "all": "#000000"}
INK, THEORY = "#000000", "#000000"
CROSS_LABEL = "cross traffic, share of capacity C"
_PROFILES = {
    "websearch": ("#009E73", "o"),
    "burst": ("#D55E00", "^"),
    "iperf": ("#56B4E9", "s"),
    "none": ("#000000", "D"),
}
_OTHER_PROFILES = (("#0072B2", "v"), ("#CC79A7", "P"), ("#E69F00", "X"), ("#999999", "*"))
MOST_PANELS = 6
DPI = 130  # of the page's images
SETTINGS: Any = {
    "figure.dpi": 100,
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.fontsize": 8,
    "legend.frameon": True,
    "legend.framealpha": 0.85,
    "legend.edgecolor": "none",
    "lines.linewidth": 1.4,
    "lines.markersize": 5,
    "svg.fonttype": "none",
}


def profile_style(profile: str) -> dict[str, Any]:
    colour, marker = _PROFILES.get(profile, _OTHER_PROFILES[sum(map(ord, profile)) % len(_OTHER_PROFILES)])
    return {"color": colour, "marker": marker}


def level_colours(levels: Sequence[float]) -> dict[float, Any]:
    """From dark (no cross traffic) to light."""
    shades = colormaps["cividis"](np.linspace(0, 0.92, max(len(levels), 2)))
    return {level: shades[place] for place, level in enumerate(sorted(levels))}


def panels(figure: Figure, titles: Sequence[str], columns: int = 2, height: float = 3.1, **shared: Any) -> list[Axes]:
    """One axes per title, at most MOST_PANELS; the figure grows with their number. Raises GapError without a title."""
    if not titles:
        raise GapError("there is nothing to draw")
    shown = list(titles)[:MOST_PANELS]
    columns = min(columns, len(shown))
    rows = -(-len(shown) // columns)
    figure.set_size_inches(8.6, height * rows + (0.4 if rows == 1 else 0))
    grid = figure.subplots(rows, columns, squeeze=False, **shared)
    axes = list(grid.ravel())
    for spare in axes[len(shown) :]:
        spare.remove()
    for ax, title in zip(axes, shown, strict=False):
        ax.set_title(title, loc="left")
    not_all(figure, len(shown), len(titles))
    return axes[: len(shown)]


def not_all(figure: Figure, shown: int, there: int) -> None:
    """Let the figure's label say that some are left out, where they are; it is shown with the figure."""
    if there > shown:
        figure.set_label(f"{shown} of {there} drawn, the table has all")


def add_foot(figure: Figure, text: str) -> None:
    """Make the figure higher, and write the text below what is drawn."""
    lines = textwrap.wrap(text, int(figure.get_figwidth() * 19))
    width, height = figure.get_size_inches()
    foot = 0.13 * len(lines) + 0.1
    figure.set_size_inches(width, height + foot)
    engine: Any = figure.get_layout_engine()
    engine.set(rect=(0, foot / (height + foot), 1, height / (height + foot)))
    style: dict[str, Any] = {"fontsize": 6.5, "color": "#555555", "va": "bottom"}
    figure.text(0.01, 0.04 / (height + foot), "\n".join(lines), **style)


def without_mathematics(table: pd.DataFrame) -> pd.DataFrame:
    """The table with its texts' dollar signs escaped: matplotlib would set what is between two as a formula."""
    texts = table.select_dtypes(exclude=["number", "bool", "datetime"]).columns
    return table.assign(**{name: table[name].replace(r"\$", r"\\$", regex=True) for name in texts})


def log_if_wide(ax: Axes, values: pd.Series) -> None:
    """A logarithmic x axis where the values, all positive, span more than a factor of 8; else one from 0."""
    known = values[values > 0]
    if len(known) and known.max() > 8 * known.min():
        ax.set_xscale("log")
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.xaxis.set_major_formatter("{x:g}")
        ax.xaxis.set_minor_formatter("")
    else:
        ax.set_xlim(0, known.max() * 1.05 if len(known) else 1)


def stack(figure: Figure, titles: Sequence[str], height: float = 1.15) -> list[Axes]:
    """Axes one above the other with one time axis. Raises GapError without a title."""
    if not titles:
        raise GapError("there is nothing to draw")
    figure.set_size_inches(8.6, 0.9 + height * len(titles))
    grid = figure.subplots(len(titles), 1, sharex=True, sharey=True, squeeze=False)
    axes = list(grid.ravel())
    for ax, title in zip(axes, titles, strict=True):
        ax.set_title(title, loc="left")
    return axes


def as_percent(axis: Any) -> None:
    """Ticks of an x or y axis that holds shares."""
    axis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def cumulative(ax: Axes, values: pd.Series, **style: Any) -> None:
    """An empirical distribution function as steps from 0 to 1."""
    known = np.sort(values.dropna().to_numpy(float))
    if len(known):
        share = np.arange(1, len(known) + 1) / len(known)
        if len(known) > 2000:  # more steps than pixels
            keep = np.unique(np.linspace(0, len(known) - 1, 2000).astype(int))
            known, share = known[keep], share[keep]
        ax.step(np.r_[known[0], known], np.r_[0, share], where="post", **style)
    ax.set_ylim(0, 1.02)


def legend_outside(figure: Figure, ax: Axes, columns: int = 6) -> None:
    """One legend for all panels, above them."""
    handles, labels = ax.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside upper center", ncols=min(columns, len(handles)))


def by_model(figure: Figure, table: pd.DataFrame) -> Iterator[tuple[Axes, str, pd.DataFrame]]:
    """A panel per model: its axes, its name and its rows."""
    models = sorted(table["model"].unique())
    for ax, model in zip(panels(figure, models), models, strict=False):
        yield ax, model, table[table["model"] == model]
