# SPDX-License-Identifier: Apache-2.0
"""Jobs that share links."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from netmon.report.figures.style import INK, legend_outside, not_all, panels

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MOST_LINKS = 24


def circles(figure: Figure, circles: pd.DataFrame) -> None:
    """A row of two circles per share: now, and shifted; an iteration is once round."""
    names = list(dict.fromkeys(circles["share"]))
    titles = [f"{name}: {when}" for name in names for when in ("as they are", "shifted")]
    axes = panels(figure, titles, height=3.6, subplot_kw={"projection": "polar"})
    for place, ax in enumerate(axes):
        rows = circles[circles["share"] == names[place // 2]]
        rows = rows[rows["when"] == ("shifted" if place % 2 else "now")]
        round_ms, capacity = rows["round_ms"].iloc[0], rows["capacity_bps"].iloc[0] / 1e6
        for number, (job, own) in enumerate(rows.groupby("job", sort=True)):
            angle = own["time_ms"] / round_ms * 2 * np.pi
            width = 2 * np.pi / len(own)
            colour = _COLOURS[number % len(_COLOURS)]
            ax.bar(angle, own["rate_bps"] / 1e6, width=width, align="edge", color=colour, alpha=0.55, label=str(job))
        ax.plot(np.linspace(0, 2 * np.pi, 181), np.full(181, capacity), color=INK, linestyle="--", linewidth=0.9)
        theta = np.arange(0, 360, 90)
        ax.set_xticks(np.radians(theta), [f"{round_ms * part / 360:.0f} ms" for part in theta])
        ax.set_yticks([capacity], [f"{capacity:.0f} Mbit/s"])
        ax.set_ylim(0, max(capacity * 1.1, float(rows["rate_bps"].max()) / 1e6))
    legend_outside(figure, axes[0])


def drift(figure: Figure, drift: pd.DataFrame) -> None:
    """A panel per share: the phase of each iteration over time."""
    names = list(dict.fromkeys(drift["share"]))
    for ax, name in zip(panels(figure, names, height=2.2), names, strict=False):
        own = drift[drift["share"] == name]
        ax.plot(own["time_s"], own["phase_ms"], ".", color=_COLOURS[0], markersize=4)
        ax.set_xlabel("time (s)")
        ax.set_ylabel("later by (ms)")
        ax.set_ylim(0, float(own["period_ms"].iloc[0]))


def scores(figure: Figure, scores: pd.DataFrame) -> None:
    """A panel per share."""
    names = list(dict.fromkeys(scores["share"]))
    for ax, name in zip(panels(figure, names, height=2.6), names, strict=False):
        own = scores[scores["share"] == name]
        ax.plot(own["shift_ms"], own["score"], color=_COLOURS[0])
        ax.axvline(own["chosen_ms"].iloc[0], color=INK, linewidth=0.9, linestyle="--")
        ax.set_xlabel("shift (ms)")
        ax.set_ylabel("compatibility")
        ax.set_ylim(min(0.0, float(own["score"].min())), 1.02)


def links(figure: Figure, links: pd.DataFrame) -> None:
    """A bar per link: what would do, and what could be had."""
    own = links.head(_MOST_LINKS)[::-1]
    figure.set_size_inches(8.6, 1.2 + 0.26 * len(own))
    ax = figure.subplots()
    names = own["link"].astype(str)
    ax.barh(names, own["enough_bps"] / 1e6, color=_COLOURS[0], label="would do")
    ax.barh(names, own["to_be_had_bps"] / 1e6, left=own["enough_bps"] / 1e6, color=_COLOURS[4], label="spare")
    ax.plot(own["capacity_bps"] / 1e6, names, "|", color=INK, markersize=9, label="capacity")
    ax.set_xlabel("training's pace while it sends (Mbit/s)")
    ax.grid(axis="y", visible=False)
    legend_outside(figure, ax)
    not_all(figure, len(own), len(links))
