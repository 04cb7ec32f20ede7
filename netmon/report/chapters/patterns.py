# SPDX-License-Identifier: Apache-2.0
"""Before, inside and after iterations; sizes; the ring: the communication-patterns study."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from netmon.history.dataset import groups, records
from netmon.records import CLASS_NAMES
from netmon.report.chapters.traffic import DL, training_pairs
from netmon.report.estimates import ring_order
from netmon.report.scan import PHASES
from netmon.report.study import NO_TIMES, Chapter, Exhibit, Frames, GapError, Study, need, traffic_of
from netmon.report.style import COLOUR_OF_CLASS, INK, cumulative, legend_outside, log_if_wide, panels

# --- Figures of the communication-patterns study.

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
        log_if_wide(ax, own["seconds"])
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
    log_if_wide(ax, steps["payload_bytes"] / 1e6)
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


# --- The chapter: its tables, and what they say.

_AMOUNTS = ["packets", "wire_bytes", "payload_bytes"]


def _phase_frames(study: Study) -> Frames:
    rows = traffic_of(study).phases
    rows = rows[(rows["direction"] == "tx")]
    need(rows, "no link sent anything")
    if study.ranks.empty:
        raise GapError("there is no iteration")
    sums = rows.groupby(["phase", "class"], as_index=False)[_AMOUNTS].sum()
    order = {phase: index for index, phase in enumerate(PHASES)}
    return {"phases": sums.sort_values("phase", key=lambda names: names.map(order), ignore_index=True)}


def _duration_frames(study: Study) -> Frames:
    """Long form: part (iteration, communication, exposed, compute) and its seconds, by iteration."""
    times = need(study.times, NO_TIMES)
    columns = {"iteration": times["time_s"], "communication": times["communication_s"], "exposed": times["exposed_s"]}
    parts = [
        times[["run", "job", "model", "iteration", "node_shared"]].assign(part=part, seconds=seconds)
        for part, seconds in columns.items()
    ]
    return {"durations": pd.concat(parts, ignore_index=True).dropna(subset="seconds")}


def _bytes_frames(study: Study) -> Frames:
    """Payload by flow and iteration, at the sender, by kind of training traffic where that is known."""
    steps = need(traffic_of(study).flow_iterations, "no row of buckets belongs to an iteration")
    flows = need(study.flows, "the table flows is missing, or none of its flows has a bucket")
    known = flows.drop_duplicates(["session", "flow_id"]).copy()
    if "traffic" not in known:
        known["traffic"] = ""
    known = known[(known["direction"] == "tx") & known["class"].isin(DL)]
    rows = steps.merge(known[["session", "flow_id", "run", "job", "src", "dst", "traffic"]], on=["session", "flow_id"])
    rows = rows[rows["payload_bytes"] > 0]
    models = study.runs.set_index("run")["model"].to_dict()
    rows["model"] = rows["run"].map(models).fillna(rows["job"])
    return {"steps": need(rows, "no training flow sent payload in an iteration")}


def _ring_frames(study: Study) -> Frames:
    """The order of each job's hosts, or why there is none."""
    pairs = training_pairs(study)
    pairs = pairs[pairs["job"] != ""]
    rows = []
    for (run, job), own in groups(pairs, "run", "job"):
        try:
            order, reason = " → ".join(ring_order(own)), ""
        except ValueError as error:
            order, reason = "", str(error)
        rows.append({"run": run, "job": job, "order": order, "reason": reason, "ranks": _ranks(study, run, order)})
    return {"rings": need(pd.DataFrame(rows), "no flow is known to be a training job's"), "pairs": pairs}


def _ranks(study: Study, run: object, order: str) -> str:
    """The ranks on the hosts, in the same order."""
    known = study.ranks[study.ranks["run"] == run].drop_duplicates("host").set_index("host")["rank"]
    return " → ".join(str(known.get(host, "?")) for host in order.split(" → ")) if order else ""


CHAPTER = Chapter(
    "Communication patterns",
    (
        Exhibit(
            "phases",
            "Packets and bytes before, inside and after iterations",
            "communication patterns",
            "What links sent before the first iteration, inside iterations, between them, and after the last one. "
            "A row of a job goes by that job's iterations, another one by those of any job.",
            _phase_frames,
            phases,
        ),
        Exhibit(
            "durations",
            "Distribution of iteration durations",
            "communication patterns",
            "Of the slowest rank: the whole iteration; its communication, first enqueue to last wait; and the "
            "part of it that is exposed (nothing is computed meanwhile), as far as the source of the iterations "
            "tells them.",
            _duration_frames,
            durations,
        ),
        Exhibit(
            "bytes-per-flow",
            "Bytes per flow and iteration",
            "communication patterns",
            "Payload that a training flow sends in an iteration; flows without payload in it are not counted.",
            _bytes_frames,
            bytes_per_flow,
        ),
        Exhibit(
            "ring",
            "The order of the ring",
            "communication patterns",
            "Each host's largest receiver, followed from the first name on; thickness by payload.",
            _ring_frames,
            rings,
        ),
    ),
)
