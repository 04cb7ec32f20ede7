# SPDX-License-Identifier: Apache-2.0
"""Figures of what training sends and leaves."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from netmon.history.frames import groups
from netmon.report.exhibit import GapError
from netmon.report.figures.style import (
    COLOUR_OF_CLASS,
    CROSS_LABEL,
    INK,
    THEORY,
    as_percent,
    by_model,
    cumulative,
    legend_outside,
    profile_style,
)


def bytes_per_iteration(figure: Figure, bytes: pd.DataFrame) -> None:  # the frame's name
    """Measured bars alongside the theory, per model."""
    rows = bytes.groupby("model", as_index=False)[["measured_bytes", "theory_bytes"]].median().iloc[:12]
    figure.set_size_inches(8.6, 1.3 + 0.4 * len(rows))
    ax = figure.subplots()
    place = np.arange(len(rows))
    ax.barh(place, rows["measured_bytes"] / 1e6, height=0.5, color=COLOUR_OF_CLASS["DL-only"], label="measured")
    ax.plot(rows["theory_bytes"] / 1e6, place, "|", color=INK, markersize=16, markeredgewidth=2, label="equation 3.1")
    ax.set_yticks(place, rows["model"])
    ax.set_xlabel("payload sent per rank and iteration (MB)")
    ax.grid(axis="y", visible=False)
    ax.set_ylim(max(len(rows), 2) - 0.5, -0.5)
    legend_outside(figure, ax)


def bandwidth(figure: Figure, bandwidth: pd.DataFrame) -> None:
    """Mean training rate by level, measured and in theory."""
    _measured_and_theory(figure, bandwidth, "measured", "theory", "training payload, share of C")


def spare_capacity(figure: Figure, bandwidth: pd.DataFrame) -> None:
    """Unused capacity of the busiest link by level, measured and in theory."""
    _measured_and_theory(figure, bandwidth, "spare_measured", "spare_theory", "unused, share of C")


def _measured_and_theory(figure: Figure, table: pd.DataFrame, measured: str, theory: str, label: str) -> None:
    for ax, _, rows in by_model(figure, table):
        expected = rows.groupby("level")[theory].mean()
        ax.plot(expected.index, expected, color=THEORY, linestyle="--", linewidth=1, label="theory")
        for (profile,), own in groups(rows, "profile"):
            ax.plot(own["level"], own[measured], label=f"measured, {profile}", **profile_style(str(profile)))
        ax.set_ylim(min(0, rows[measured].min()), max(1.0, rows[measured].max()))
        ax.set_xlabel(CROSS_LABEL)
        ax.set_ylabel(label)
        as_percent(ax.xaxis)
        as_percent(ax.yaxis)
        ax.legend()


def injection(figure: Figure, rates: pd.DataFrame) -> None:
    """Histogram of packets per millisecond, by class."""
    figure.set_size_inches(8.6, 3.4)
    ax = figure.subplots()
    for (name,), rows in groups(rates, "class"):
        edges = np.r_[rows["from_packets"], rows["to_packets"].iloc[-1]]
        share = rows["milliseconds"] / rows["milliseconds"].sum()
        ax.stairs(share, edges, color=COLOUR_OF_CLASS[str(name)], linewidth=1.6, label=str(name))
    ax.set_xscale("log")
    ax.set_xlabel("packets sent per millisecond and link")
    ax.set_ylabel("share of the class's\nactive milliseconds")
    as_percent(ax.yaxis)
    ax.legend()


def nodes(figure: Figure, nodes: pd.DataFrame) -> None:
    """Distribution of the rank's sending rate, by what its node was."""
    if nodes["bandwidth_bps"].max() <= 0:
        raise GapError("no rank sent training payload")
    for ax, _, rows in by_model(figure, nodes):
        for (node,), own in groups(rows, "node"):
            quiet = "no cross" in str(node)
            colour = COLOUR_OF_CLASS["DL-shared" if node == "DL-shared" else "DL-only"]
            label = f"{node} ({len(own)})"
            style: Any = {"color": colour, "linestyle": "--" if quiet else "-"}
            style["linewidth"] = 1.2 if node == "DL-shared" else 2.6  # the two may lie upon each other
            cumulative(ax, own["bandwidth_bps"] / 1e6, label=label, **style)
        ax.set_xlim(left=0)
        ax.set_xlabel("training payload sent while communicating (Mbit/s)")
        ax.set_ylabel("share of ranks' iterations")
        ax.legend(loc="upper left")
