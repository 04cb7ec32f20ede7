# SPDX-License-Identifier: Apache-2.0
"""Figures of the thesis' chapter 3."""

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from netmon.history.frames import groups, records
from netmon.report.congestion import CongestionPoint, rescaled
from netmon.report.figures.style import (
    CROSS_LABEL,
    INK,
    THEORY,
    as_percent,
    by_model,
    cumulative,
    legend_outside,
    level_colours,
    log_if_wide,
    panels,
    profile_style,
)
from netmon.report.fits import Fit

_FAMILY_STYLE = {1.0: ("-", "#0072B2"), 0.5: ("--", "#E69F00"), 2.0: (":", "#CC79A7")}
_FAMILY_NAME = {1.0: "n = 1", 0.5: "n = ½", 2.0: "n = 2"}


def _points(congestion: pd.DataFrame, model: str) -> Iterator[tuple[str, CongestionPoint, float]]:
    for row in records(congestion[congestion["model"] == model]):
        point = CongestionPoint(row.found, row.flat_s, row.slope_s, row.error, row.reason)
        yield str(row.profile), point, float(row.theory)


def _theory_line(ax: Axes, at: float, scale: bool = False) -> None:
    if math.isfinite(at) and 0 <= at < 1:
        place = float(rescaled(at)) if scale else at
        ax.axvline(place, color=THEORY, linestyle="--", linewidth=1, label="congestion point in theory")


def _known(level: float) -> str:
    return f"{level:.2f}" if math.isfinite(level) else "not known"


def iteration_time(figure: Figure, levels: pd.DataFrame, congestion: pd.DataFrame) -> None:
    """Medians with 99 % tails by level; one line per profile, a panel per model."""
    for ax, model, rows in by_model(figure, levels):
        profiles = sorted(rows["profile"].unique())
        for place, profile in enumerate(profiles):
            own = rows[rows["profile"] == profile].sort_values("level")
            x = own["level"] + (place - (len(profiles) - 1) / 2) * 0.008  # bars of two profiles stand side by side
            tails = [own["median_s"] - own["p01_s"], own["p99_s"] - own["median_s"]]
            ax.errorbar(
                x, own["median_s"], yerr=tails, capsize=2.5, elinewidth=0.9, label=profile, **profile_style(profile)
            )
        theories = [theory for _, _, theory in _points(congestion, model)]
        _theory_line(ax, theories[0] if theories else math.nan)
        for profile, point, _ in _points(congestion, model):
            if math.isfinite(point.level):
                colour = profile_style(profile)["color"]
                ax.axvline(point.level, color=colour, linestyle=":", label=f"found, {profile}")
        ax.set_ylim(bottom=0)
        ax.set_xlabel(CROSS_LABEL)
        ax.set_ylabel("iteration time (s)")
        as_percent(ax.xaxis)
        ax.legend()


def hyperbola(figure: Figure, levels: pd.DataFrame, congestion: pd.DataFrame) -> None:
    """Medians against 1 / (1 − level), with the two lines where they were found."""
    for ax, model, rows in by_model(figure, levels):
        for (profile,), own in groups(rows, "profile"):
            style = profile_style(str(profile))
            ax.plot(rescaled(own["level"]), own["median_s"], linestyle="", label=str(profile), **style)
        for profile, point, _ in _points(congestion, model):
            if math.isfinite(point.level):
                x = np.linspace(0, rows["level"].max(), 300)
                colour = profile_style(profile)["color"]
                ax.plot(rescaled(x), point.at(x), color=colour, linewidth=1, label=f"two lines, {profile}")
        points = list(_points(congestion, model))
        _theory_line(ax, points[0][2] if points else math.nan, scale=True)
        ax.set_ylim(bottom=0)
        ax.set_xlabel("1 / (C − BW), in units of 1 / C")
        ax.set_ylabel("iteration time (s)")
        ax.legend()


def congestion(figure: Figure, levels: pd.DataFrame, congestion: pd.DataFrame) -> None:
    """The two lines on the medians, corner marked, a panel per model and profile."""
    keys = [(row.model, row.profile) for row in records(congestion)]
    for ax, key in zip(panels(figure, [f"{model}, {profile}" for model, profile in keys]), keys, strict=False):
        rows = levels[(levels["model"] == key[0]) & (levels["profile"] == key[1])]
        ax.plot(rows["level"], rows["median_s"], linestyle="", label="median", **profile_style(key[1]))
        _, point, theory = next(found for found in _points(congestion, key[0]) if found[0] == key[1])
        _theory_line(ax, theory)
        if math.isfinite(point.level):
            x = np.linspace(0, rows["level"].max(), 400)
            ax.plot(x, point.at(x), color=INK, linewidth=1, label="flat, then straight in 1/(C − BW)")
            ax.plot([point.level], [point.flat_s], "o", color=INK, fillstyle="none", markersize=10, label="found")
            text = f"found {point.level:.2f} · theory {_known(theory)}"
        else:
            text = f"{point.reason} · theory {_known(theory)}"
        ax.set_xlabel(f"{CROSS_LABEL}\n{text}")
        ax.set_ylabel("median iteration time (s)")
        ax.set_ylim(0, rows["median_s"].max() * 1.1)
        as_percent(ax.xaxis)
        ax.legend(loc="upper left")


def fits(figure: Figure, fits: pd.DataFrame, levels: pd.DataFrame) -> None:
    """Three curves through each model's and profile's medians."""
    keys = list(fits[["model", "profile"]].drop_duplicates().itertuples(index=False, name=None))
    for ax, key in zip(panels(figure, [f"{model}, {profile}" for model, profile in keys]), keys, strict=False):
        rows = levels[(levels["model"] == key[0]) & (levels["profile"] == key[1])]
        x = np.linspace(0, rows["level"].max(), 300)
        for row in records(fits[(fits["model"] == key[0]) & (fits["profile"] == key[1])].sort_values("n")):
            line, colour = _FAMILY_STYLE.get(row.n, ("-.", INK))
            curve = Fit(row.n, row.A_s, row.B, row.r_squared, row.points).at(x)
            label = f"{_FAMILY_NAME.get(row.n, row.n)}, R² = {row.r_squared:.3f}"
            ax.plot(x, curve, linestyle=line, color=colour, label=label)
        ax.plot(rows["level"], rows["median_s"], "o", color=INK, markersize=4, label="median")
        ax.set_ylim(0, rows["median_s"].max() * 1.15)
        ax.set_xlabel(CROSS_LABEL)
        ax.set_ylabel("iteration time (s)")
        as_percent(ax.xaxis)
        ax.legend(loc="upper left")


def time_cdf(figure: Figure, times: pd.DataFrame) -> None:
    """Distribution functions, a panel per model and profile, a line per level."""
    keys = records(times[["model", "profile"]].drop_duplicates().sort_values(["model", "profile"]))
    colours = level_colours(sorted(times["level"].unique()))
    axes = panels(figure, [f"{key.model}, {key.profile}" for key in keys], sharex=True)
    for ax, key in zip(axes, keys, strict=False):
        own = times[(times["model"] == key.model) & (times["profile"] == key.profile)]
        for (level,), rows in groups(own, "level"):
            cumulative(
                ax,
                rows["time_s"],
                color=colours[level],
                label=f"{level:.0%} cross traffic" if level == 0 else f"{level:.0%}",
            )
        log_if_wide(ax.xaxis, times["time_s"])
        ax.set_xlabel("iteration time (s)")
        ax.set_ylabel("share of iterations")
    legend_outside(figure, max(axes, key=lambda ax: len(ax.get_legend_handles_labels()[1])), columns=10)
