# SPDX-License-Identifier: Apache-2.0
"""Figures of volumes, pairs and sizes."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from netmon.records import CLASS_NAMES
from netmon.report.figures.style import COLOUR_OF_CLASS, legend_outside, panels
from netmon.report.flows import SIZE_CLASSES

_MOST_JOBS = 16


def volume(figure: Figure, volume: pd.DataFrame) -> None:
    """Stacked bars by class: sent and received, a row per job."""
    jobs = sorted(volume["job"].unique())[:_MOST_JOBS]
    axes = panels(figure, ["sent", "received"], height=1.4 + 0.26 * len(jobs), sharey=True)
    for ax, direction in zip(axes, ("tx", "rx"), strict=True):
        own = volume[volume["direction"] == direction]
        sums = own.pivot_table(index="job", columns="class", values="wire_bytes", aggfunc="sum").reindex(jobs).fillna(0)
        left = np.zeros(len(jobs))
        for name in [name for name in CLASS_NAMES if name in sums]:
            ax.barh(jobs, sums[name] / 1e9, left=left, color=COLOUR_OF_CLASS[name], label=name, height=0.65)
            left += sums[name].to_numpy() / 1e9
        ax.set_xlabel("volume (GB)")
        ax.grid(axis="y", visible=False)
        ax.margins(x=0.05)
    axes[0].set_ylim(max(len(jobs), 3) - 0.5, -0.5)
    legend_outside(figure, max(axes, key=lambda ax: len(ax.get_legend_handles_labels()[1])))


def heat_map(figure: Figure, pairs: pd.DataFrame) -> None:
    """Sender by receiver, a panel per job; the jobs with the most bytes."""
    sums = pairs.groupby(["run", "job"])["payload_bytes"].sum().sort_values(ascending=False)
    keys = list(sums.index)
    names = [job if run in (job, "") else f"{run}" for run, job in keys]
    for ax, (run, job) in zip(panels(figure, names, columns=3), keys, strict=False):
        own = pairs[(pairs["run"] == run) & (pairs["job"] == job)]
        hosts = sorted({*own["source"], *own["target"]})
        matrix = own.pivot_table(index="source", columns="target", values="payload_bytes", aggfunc="sum")
        matrix = matrix.reindex(index=hosts, columns=hosts) / 1e6
        shown = matrix.where(matrix > 0)
        image = ax.imshow(shown, cmap="cividis", vmin=0)
        ax.set_xticks(range(len(hosts)), hosts, rotation=0 if len(hosts) < 7 else 90)
        ax.set_yticks(range(len(hosts)), hosts)
        ax.set_xlabel("receiver")
        ax.set_ylabel("sender")
        ax.title.set_fontsize("small")  # a run's name is long alongside a colour bar
        ax.grid(visible=False)
        figure.colorbar(image, ax=ax, shrink=0.8, label="payload (MB)")


def sizes(figure: Figure, sizes: pd.DataFrame) -> None:
    """Number of flows, and their payload, by size class and class."""
    classes = [name for name in CLASS_NAMES if name in set(sizes["class"])]
    axes = panels(figure, ["number of flows", "payload"], height=2.6)
    width = 0.8 / max(len(classes), 1)
    for ax, column, scale in zip(axes, ("flows", "payload_bytes"), (1, 1e6), strict=True):
        for place, name in enumerate(classes):
            own = sizes[sizes["class"] == name].set_index("size")[column].reindex(list(SIZE_CLASSES)).fillna(0) / scale
            x = np.arange(len(SIZE_CLASSES)) + (place - (len(classes) - 1) / 2) * width
            ax.bar(x, own, width=width * 0.92, color=COLOUR_OF_CLASS[name], label=name)
        ax.set_yscale("symlog", linthresh=1)
        ax.set_ylim(bottom=0)
        ax.set_xticks(range(len(SIZE_CLASSES)), ["small\n< 100 kB", "medium", "large\n≥ 10 MB"])
        ax.grid(axis="x", visible=False)
    axes[0].set_ylabel("flows")
    axes[1].set_ylabel("payload (MB)")
    legend_outside(figure, axes[0])
