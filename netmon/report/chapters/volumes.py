# SPDX-License-Identifier: Apache-2.0
"""How much, from whom to whom, in flows of which size: the traffic-characteristics study."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from netmon.records import CLASS_NAMES, Class
from netmon.report.exhibit import Chapter, Exhibit, Frames, GapError, need
from netmon.report.figures.style import COLOUR_OF_CLASS, legend_outside, panels
from netmon.report.flows import SIZE_CLASSES, once_per_flow, size_class, who_sends_to_whom
from netmon.report.scan import Traffic
from netmon.report.study import Study

# --- Figures of volumes, pairs and sizes.

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


# --- The chapter: its tables, and what they say.

DL = (CLASS_NAMES[Class.DL_ONLY], CLASS_NAMES[Class.DL_SHARED])
_AMOUNTS = ["packets", "wire_bytes", "payload_bytes"]
NO_FLOWS = "the table flows is missing, or none of its flows has a bucket: it is not known who sends to whom"


def traffic_of(study: Study) -> Traffic:
    """What the pass over the buckets found. Raises GapError where there was no row."""
    if study.traffic is None:
        raise GapError("there is no row of buckets")
    return study.traffic


def _volume_frames(study: Study) -> Frames:
    rows = traffic_of(study).phases
    rows = rows[rows["job"] != ""]
    need(rows, "no row of buckets belongs to a job")
    sums = rows.groupby(["job", "direction", "class"], as_index=False)[_AMOUNTS].sum()
    iterations = study.all_times.groupby("job").size() if len(study.ranks) else pd.Series(dtype=int)
    return {"volume": sums.assign(iterations=sums["job"].map(iterations).fillna(0).astype(int))}


def training_pairs(study: Study) -> pd.DataFrame:
    """who_sends_to_whom of the training flows that carried payload. Raises GapError where there are none."""
    flows = need(study.flows, NO_FLOWS)
    dl = flows[flows["class"].isin(DL)]
    pairs = who_sends_to_whom(need(dl, "no flow is known to be a training job's"))
    return need(pairs[pairs["payload_bytes"] > 0], "no training flow carried payload")


def _heat_frames(study: Study) -> Frames:
    return {"pairs": training_pairs(study)}


def _size_frames(study: Study) -> Frames:
    """Flows and payload by class and size class; a flow with two classes counts with that of most of its bytes."""
    flows = once_per_flow(need(study.flows, NO_FLOWS))
    keys = ["session", "flow_id"]
    payload = flows.groupby(keys)["payload_bytes"].transform("sum")
    main = flows.assign(payload=payload).sort_values("payload_bytes").drop_duplicates(keys, keep="last")
    sizes = main.assign(size=size_class(main["payload"]))
    counted = sizes.groupby(["class", "size"], as_index=False).agg(
        flows=("flow_id", "size"), payload_bytes=("payload", "sum")
    )
    return {"sizes": counted}


CHAPTER = Chapter(
    "Traffic characteristics: volumes",
    (
        Exhibit(
            "volume",
            "Volume per job",
            "traffic characteristics",
            "Wire bytes on the links of the job's hosts, by direction and class: what they sent and received.",
            _volume_frames,
            volume,
        ),
        Exhibit(
            "who-to-whom",
            "Who sends to whom",
            "traffic characteristics, heat map",
            "Training payload by sender and receiver, counted at the sender.",
            _heat_frames,
            heat_map,
        ),
        Exhibit(
            "flow-sizes",
            "Flows by size",
            "traffic characteristics and communication patterns",
            "Small: less than 100 kB of payload in all; large: at least 10 MB (limits are ours). A flow between "
            "two watched hosts counts once.",
            _size_frames,
            sizes,
        ),
    ),
)
