# SPDX-License-Identifier: Apache-2.0
"""Figures about bursts."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from netmon.history.frames import groups
from netmon.report.exhibit import GapError
from netmon.report.figures.style import COLOUR_OF_CLASS, INK, legend_outside, panels
from netmon.units import format_duration

_LINES = {"all": "--"}


def peaks(figure: Figure, peaks: pd.DataFrame) -> None:
    """Median over links, and their range, by interval and class; sent and received."""
    axes = panels(figure, ["sent", "received"], sharey=True)
    for ax, direction in zip(axes, ("tx", "rx"), strict=True):
        own = peaks[peaks["direction"] == direction]
        for (name,), rows in groups(own, "class"):
            ratios = rows.groupby("interval_ns")["peak_to_mean"].agg(["median", "min", "max"])
            x, colour = ratios.index / 1e6, COLOUR_OF_CLASS[str(name)]
            ax.plot(x, ratios["median"], color=colour, linestyle=_LINES.get(str(name), "-"), label=str(name))
            ax.fill_between(x, ratios["min"], ratios["max"], color=colour, alpha=0.15, linewidth=0)
        ax.axvline(peaks["true_from_ns"].iloc[0] / 1e6, color=INK, linestyle="--", linewidth=0.8)
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xlabel("interval (ms)")
    axes[0].set_ylabel("peak-to-mean ratio")
    legend_outside(figure, max(axes, key=lambda ax: len(ax.get_legend_handles_labels()[1])))


def spans(figure: Figure, spans: pd.DataFrame) -> None:
    """Distribution of durations by class: bursts and gaps, a row per interval."""
    grains = sorted(spans["interval_ns"].unique())
    keys = [(grain, kind) for grain in grains for kind in ("burst", "gap")]
    if not keys:
        raise GapError("no interval was hot")
    titles = [
        f"{'bursts' if kind == 'burst' else 'gaps'}, intervals of {format_duration(grain)}" for grain, kind in keys
    ]
    axes = panels(figure, titles, height=2.7)
    for ax, (grain, kind) in zip(axes, keys, strict=True):
        own = spans[(spans["interval_ns"] == grain) & (spans["kind"] == kind)]
        for (name,), rows in groups(own, "class"):
            _distribution(ax, rows, str(name))
        ax.set_xscale("log")
        ax.set_ylim(0, 1.02)
        ax.set_xlabel("duration (ms)")
        ax.set_ylabel("share of bursts" if kind == "burst" else "share of gaps")
    legend_outside(figure, max(axes, key=lambda ax: len(ax.get_legend_handles_labels()[1])))


def _distribution(ax: Axes, rows: pd.DataFrame, name: str) -> None:
    counts = rows.sort_values("longest_ns")
    share = np.cumsum(counts["count"]) / counts["count"].sum()
    x = np.r_[counts["longest_ns"].iloc[0], counts["longest_ns"]] / 1e6
    style: dict[str, Any] = {"color": COLOUR_OF_CLASS[name], "linestyle": _LINES.get(name, "-")}
    ax.plot(x, np.r_[0, share], drawstyle="steps-post", label=name, **style)
