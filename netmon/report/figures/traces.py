# SPDX-License-Identifier: Apache-2.0
"""Rates over time."""

import pandas as pd
from matplotlib.figure import Figure

from netmon.report.figures.style import COLOUR_OF_CLASS, INK, stack


def trace(figure: Figure, rates: pd.DataFrame, boundaries: pd.DataFrame) -> None:
    """A panel per flow above one time axis, the iterations' boundaries drawn through all of them."""
    names = list(dict.fromkeys(rates["flow"]))
    axes = stack(figure, names)
    for ax, name in zip(axes, names, strict=True):
        own = rates[rates["flow"] == name]
        colour = COLOUR_OF_CLASS[own["node"].iloc[0]]
        step = own["time_ms"].diff().median()
        ax.fill_between(own["time_ms"], own["rate_bps"] / 1e6, step="post", color=colour, linewidth=0)
        for moment in boundaries["start_ms"]:
            if own["time_ms"].min() <= moment <= own["time_ms"].max():
                ax.axvline(
                    moment, color=INK, linewidth=1.2 if moment == 0 else 0.8, linestyle="-" if moment == 0 else "--"
                )
        ax.set_ylabel("Mbit/s")
        ax.set_xlim(own["time_ms"].min(), own["time_ms"].max() + step)
    axes[0].set_ylim(0, max(float(rates["rate_bps"].max()) / 1e6 * 1.05, 1))
    axes[-1].set_xlabel("time since the iteration's start (ms)")
