# SPDX-License-Identifier: Apache-2.0
"""Figures of rates and regularity."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from netmon.history.frames import groups
from netmon.report.exhibit import GapError
from netmon.report.figures.style import COLOUR_OF_CLASS, INK, legend_outside, not_all, panels, stack

_MOST_FLOWS, _MOST_PAIRS = 6, 20


def flow_throughput(figure: Figure, flows: pd.DataFrame) -> None:
    """A strip per flow, the largest ones."""
    largest = flows.groupby("flow")["payload_bytes"].sum().sort_values(ascending=False)
    names = list(largest.index[:_MOST_FLOWS])
    axes = stack(figure, names, height=0.95)
    for ax, name in zip(axes, names, strict=True):
        own = flows[flows["flow"] == name].sort_values("time_s")
        times = np.arange(own["time_s"].min(), own["time_s"].max() + 0.26, 0.25)
        rates = np.zeros(len(times))
        rates[np.rint((own["time_s"] - times[0]) / 0.25).astype(int)] = own["rate_bps"] / 1e6
        colour = COLOUR_OF_CLASS[own["class"].iloc[0]]
        ax.fill_between(np.r_[times, times[-1] + 0.25], np.r_[rates, 0], step="post", color=colour, linewidth=0)
        ax.set_ylabel("Mbit/s")
    axes[0].set_ylim(bottom=0)
    axes[-1].set_xlabel("time (s)")
    not_all(figure, len(names), len(largest))


def pair_throughput(figure: Figure, pairs: pd.DataFrame) -> None:
    """Pairs by time, the rate as colour."""
    largest = pairs.groupby("pair")["rate_bps"].sum().sort_values(ascending=False).index[:_MOST_PAIRS]
    place = np.rint(pairs["time_s"] / 0.25).astype(int)
    grid = pairs.assign(place=place).pivot_table(index="pair", columns="place", values="rate_bps", aggfunc="sum")
    grid = grid.reindex(index=sorted(largest), columns=range(int(place.max()) + 1)).fillna(0) / 1e6
    figure.set_size_inches(8.6, 1.3 + 0.32 * len(grid))
    ax = figure.subplots()
    extent = (0, len(grid.columns) * 0.25, len(grid) - 0.5, -0.5)
    image = ax.imshow(grid, aspect="auto", cmap="cividis", vmin=0, extent=extent, interpolation="nearest")
    ax.set_yticks(range(len(grid)), list(grid.index))
    ax.set_xlabel("time (s)")
    ax.grid(visible=False)
    figure.colorbar(image, ax=ax, label="payload (Mbit/s)")


def throughput(figure: Figure, throughput: pd.DataFrame) -> None:
    """Mean with its interval and the peak, a row per run and pair; the fastest pairs."""
    fastest = throughput.sort_values("mean_bps", ascending=False).iloc[:_MOST_PAIRS]
    rows = fastest.sort_values(["run", "source"]).reset_index(drop=True)
    several = rows["run"].nunique() > 1
    names = rows["source"] + " → " + rows["target"]
    if several:
        names = rows["run"] + ": " + names
    figure.set_size_inches(8.6, 1.2 + 0.24 * len(rows))
    ax = figure.subplots()
    half = [(rows["mean_bps"] - rows["low_bps"]) / 1e6, (rows["high_bps"] - rows["mean_bps"]) / 1e6]
    ax.errorbar(
        rows["mean_bps"] / 1e6, rows.index, xerr=half, fmt="o", color=INK, capsize=3, label="mean, 95 % confidence"
    )
    ax.plot(rows["peak_bps"] / 1e6, rows.index, "D", color="#D55E00", fillstyle="none", label="peak over 250 ms")
    ax.set_yticks(range(len(rows)), names)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_xlim(left=0)
    ax.set_xlabel("training payload (Mbit/s)")
    legend_outside(figure, ax)
    not_all(figure, len(rows), len(throughput))


def periods(figure: Figure, periods: pd.DataFrame) -> None:
    """Period against the iteration time, and against the batch size or what stands for it."""
    found = periods[periods["period_s"].notna()]
    if found.empty:
        raise GapError("the autocorrelation shows no period in any run")
    by_batch = periods["batch"].notna().any()
    axes = panels(
        figure, ["against the iteration time", "against the batch size" if by_batch else "against compute time"]
    )
    other = "batch" if by_batch else "compute_s"
    for place, ((model,), rows) in enumerate(groups(found, "model")):
        style: dict[str, Any] = {"linestyle": "", "marker": "os^DvPX*"[place % 8], "label": str(model), "alpha": 0.8}
        axes[0].plot(rows["iteration_s"], rows["period_s"], **style)
        axes[1].plot(rows[other], rows["period_s"], **style)
    most = float(max(found["iteration_s"].max(), found["period_s"].max())) * 1.2
    axes[0].plot([0, most], [0, most], color=INK, linewidth=0.8, linestyle="--", label="equal")
    axes[0].set_xlim(0, most)
    axes[0].set_ylim(0, most)
    axes[0].set_xlabel("median iteration time (s)")
    axes[1].set_xlabel("batch size" if by_batch else "compute per iteration (s)")
    axes[1].set_ylim(0, most)
    for ax in axes:
        ax.set_ylabel("period of the traffic (s)")
    legend_outside(figure, axes[0])


def regression(figure: Figure, terms: pd.DataFrame, runs: pd.DataFrame) -> None:
    """Measured data per step against the regression's, and the model's size."""
    axes = panels(figure, ["data per step by model size", "measured against the regression"])
    estimate = terms.set_index("term")["estimate"]
    fitted = estimate["constant"] + sum(estimate[term] * runs[term].astype(float) for term in estimate.index[1:])
    axes[0].plot(runs["parameters"].astype(float) / 1e6, runs["step_bytes"] / 1e6, "o", color="#0072B2", alpha=0.7)
    axes[0].set_xlabel("model size (millions of parameters)")
    axes[0].set_ylabel("payload per rank and step (MB)")
    axes[1].plot(fitted / 1e6, runs["step_bytes"] / 1e6, "o", color="#0072B2", alpha=0.7)
    most = float(max(runs["step_bytes"].max(), fitted.max())) / 1e6 * 1.08
    axes[1].plot([0, most], [0, most], color=INK, linewidth=0.8, linestyle="--")
    axes[1].set_xlabel(f"regression (MB), R² = {terms['r_squared'].iloc[0]:.4f}")
    axes[1].set_ylabel("measured (MB)")
    for ax in axes:
        ax.margins(0.1)
        ax.set_xlim(left=0)
        ax.set_ylim(bottom=0)
