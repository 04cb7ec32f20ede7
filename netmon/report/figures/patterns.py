# SPDX-License-Identifier: Apache-2.0
"""Figures of the communication-patterns study."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from netmon.history.frames import groups, records
from netmon.records import CLASS_NAMES
from netmon.report.figures.style import COLOUR_OF_CLASS, INK, cumulative, legend_outside, log_if_wide, panels
from netmon.report.scan import PHASES

_PARTS = {"iteration": (INK, "-"), "communication": ("#009E73", "--"), "exposed": ("#D55E00", ":")}


def phases(figure: Figure, phases: pd.DataFrame) -> None:
    """Packets and wire bytes by phase and class."""
    axes = panels(figure, ["packets", "wire bytes"], height=2.8)
    classes = [name for name in CLASS_NAMES if name in set(phases["class"])]
    width = 0.8 / max(len(classes), 1)
    for ax, column in zip(axes, ("packets", "wire_bytes"), strict=True):
        for place, name in enumerate(classes):
            own = phases[phases["class"] == name].set_index("phase")[column].reindex(list(PHASES)).fillna(0)
            x = np.arange(len(PHASES)) + (place - (len(classes) - 1) / 2) * width
            ax.bar(x, own, width=width * 0.92, color=COLOUR_OF_CLASS[name], label=name)
        ax.set_yscale("symlog", linthresh=1 if column == "packets" else 100)
        ax.set_ylim(bottom=0)
        ax.set_xticks(range(len(PHASES)), list(PHASES))
        ax.grid(axis="x", visible=False)
    axes[0].set_ylabel("packets sent")
    axes[1].set_ylabel("wire bytes sent")
    legend_outside(figure, axes[0])


def durations(figure: Figure, durations: pd.DataFrame) -> None:
    """Distributions of the parts, a panel per model; quiet and disturbed iterations together."""
    models = sorted(durations["model"].unique())
    for ax, model in zip(panels(figure, models), models, strict=False):
        own = durations[durations["model"] == model]
        for part, (colour, line) in _PARTS.items():
            rows = own[own["part"] == part]
            if len(rows):
                cumulative(ax, rows["seconds"], color=colour, linestyle=line, label=f"{part} ({len(rows)})")
        log_if_wide(ax.xaxis, own["seconds"])
        ax.set_xlabel("duration (s)")
        ax.set_ylabel("share of iterations")
        ax.legend(loc="lower right")


def bytes_per_flow(figure: Figure, steps: pd.DataFrame) -> None:
    """Distribution of the payload per flow and iteration, a line per model."""
    figure.set_size_inches(8.6, 3.3)
    ax = figure.subplots()
    lines = ("-", "--", ":", "-.")
    colours = ("#000000", "#009E73", "#D55E00", "#56B4E9")
    for place, ((model,), rows) in enumerate(groups(steps, "model")):
        flows = len(rows[["session", "flow_id"]].drop_duplicates())
        style: dict[str, Any] = {"linestyle": lines[place // 4 % 4], "color": colours[place % 4]}
        cumulative(ax, rows["payload_bytes"] / 1e6, label=f"{model} ({flows} flows)", **style)
    log_if_wide(ax.xaxis, steps["payload_bytes"] / 1e6)
    ax.set_xlabel("payload per flow and iteration (MB)")
    ax.set_ylabel("share of flows' iterations")
    ax.legend(loc="upper left")


def rings(figure: Figure, rings: pd.DataFrame, pairs: pd.DataFrame) -> None:
    """Hosts on a circle, an arrow per pair that exchanges at least 1 % of the largest pair's payload."""
    keys = list(rings[["run", "job"]].itertuples(index=False, name=None))
    names = [job if run in (job, "") else str(run) for run, job in keys]
    for ax, (run, job), order in zip(panels(figure, names, columns=3, height=2.9), keys, rings["order"], strict=False):
        own = pairs[(pairs["run"] == run) & (pairs["job"] == job)]
        hosts = order.split(" → ") if order else sorted({*own["source"], *own["target"]})
        angle = np.pi / 2 - 2 * np.pi * np.arange(len(hosts)) / len(hosts)
        at = {host: (np.cos(a), np.sin(a)) for host, a in zip(hosts, angle, strict=True)}
        most = own["payload_bytes"].max()
        for row in records(own[own["payload_bytes"] >= 0.01 * most]):
            arrow = {
                **{"arrowstyle": "-|>", "color": "#0072B2", "shrinkA": 14, "shrinkB": 14},
                **{"lw": 0.5 + 2 * row.payload_bytes / most, "connectionstyle": "arc3,rad=0.15"},
            }
            ax.annotate("", xy=at[row.target], xytext=at[row.source], arrowprops=arrow)
        for host, (x, y) in at.items():
            ax.text(x, y, host, ha="center", va="center", bbox={"boxstyle": "round", "fc": "white", "ec": "#888888"})
        ax.set_xlim(-1.4, 1.4)
        ax.set_ylim(-1.4, 1.4)
        ax.set_aspect("equal")
        ax.axis("off")
