# SPDX-License-Identifier: Apache-2.0
"""How much training sends, how fast, and what it leaves: measured and in theory (the thesis' chapter 3)."""

import math
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from netmon.history.dataset import groups, records
from netmon.report.estimates import spare_capacity, training_share
from netmon.report.study import (
    NO_LEVELS,
    NO_TIMES,
    Chapter,
    Exhibit,
    Frames,
    GapError,
    Study,
    by_profile,
    need,
    traffic_of,
)
from netmon.report.style import (
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
from netmon.report.summary import SIZE

# --- Figures of what training sends and leaves.


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


def unused(figure: Figure, bandwidth: pd.DataFrame) -> None:
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


# --- The chapter: its tables, and what they say.


def _bytes_frames(study: Study) -> Frames:
    """Per run and job: what a rank sent per iteration and what equation 3.1 says."""
    from netmon.dl.classify import ring_bytes

    times = need(study.times, NO_TIMES)
    runs: Any = study.runs.set_index("run").to_dict("index")
    rows = []
    for (run, job), group in groups(times, "run", "job"):
        about = runs[run]
        theory = ring_bytes(*(int(about[name]) for name in SIZE)) if about["pattern"] != "ps" else math.nan
        measured = float(group["dl_tx_bytes"].median())
        rows.append(
            {
                **{"run": run, "job": job, "model": about["model"], "ranks": about["ranks"]},
                **{"parameters": about["parameters"], "parameters_basis": about["parameters_basis"]},
                "iterations": len(group),
                **{
                    "measured_bytes": measured,
                    "theory_bytes": theory,
                    "ratio": measured / theory if theory else math.nan,
                },
            }
        )
    return {"bytes": pd.DataFrame(rows)}


def _bandwidth_frames(study: Study) -> Frames:
    """Mean rate of a rank's training traffic over the iteration, measured and in theory, by level."""
    levels = need(study.levels, NO_LEVELS)
    rows = []
    for (model, profile), group in by_profile(levels):
        capacity, step = study.rate_of(model), study.step_bytes(model)
        quiet = float(group.sort_values("level")["median_s"].iloc[0])
        if not capacity:
            continue
        for row in records(group):
            theory = (float(row.level), step, quiet, capacity)
            rows.append(
                {
                    **{"model": model, "profile": profile, "level": row.level, "iterations": row.iterations},
                    "measured": row.dl_tx_bytes * 8 / row.median_s / capacity,
                    "theory": training_share(*theory),
                    "spare_measured": 1 - row.busiest_share,
                    "spare_theory": spare_capacity(*theory),
                }
            )
    return {"bandwidth": need(pd.DataFrame(rows), "the links' capacity is not known: give --rate")}


def _injection_frames(study: Study) -> Frames:
    """How many milliseconds of a sending link had so many packets of a class."""
    traffic = traffic_of(study)
    series = traffic.series
    sent = series.index[series["direction"] == "tx"]
    cells = traffic.milliseconds
    cells = cells[cells["series"].isin(sent) & (cells["packets"] > 0)]
    need(cells, "no link sent a packet")
    edges = np.unique(np.round(np.geomspace(1, cells["packets"].max() + 1, 40)).astype(int))
    classes = cells["series"].map(series["class"])
    rows = [
        {"class": name, "from_packets": low, "to_packets": high, "milliseconds": int(count)}
        for name, group in cells["packets"].groupby(classes)
        for low, high, count in zip(edges[:-1], edges[1:], np.histogram(group, edges)[0], strict=True)
    ]
    return {"rates": pd.DataFrame(rows)}


def _node_frames(study: Study) -> Frames:
    """Rate of each rank's training traffic while it communicates, by the traffic of its node's links."""
    ranks = need(study.ranks, "there is no iteration")
    known = ranks["comm_start_ns"].notna() & ranks["comm_end_ns"].notna()
    begin = ranks["comm_start_ns"].where(known, ranks["start_ns"]).astype(float)
    end = ranks["comm_end_ns"].where(known, ranks["end_ns"]).astype(float)
    shared = ranks["node_shared"].eq(True)
    anywhere = shared.groupby([ranks["run"], ranks["job"], ranks["iteration"]]).transform("any")
    node = np.select([shared, anywhere], ["DL-shared", "DL-only"], "DL-only, no cross traffic anywhere")
    rates = ranks[["run", "job", "rank", "host", "iteration"]].assign(
        model=ranks["run"].map(study.runs.set_index("run")["model"].to_dict()),
        node=node,
        bandwidth_bps=ranks["dl_tx_bytes"] * 8 / ((end - begin) / 1e9),
        over=np.where(known, "communication", "iteration"),
    )
    return {"nodes": rates[np.isfinite(rates["bandwidth_bps"])]}


CHAPTER = Chapter(
    "Training bandwidth",
    (
        Exhibit(
            "bytes-per-iteration",
            "Data per iteration: measured against theory",
            "thesis, equation 3.1",
            "Payload that a rank sends per iteration (mean over ranks, median over iterations), against "
            "2·(N−1)/N·P·4 B.",
            _bytes_frames,
            bytes_per_iteration,
        ),
        Exhibit(
            "bandwidth",
            "Training bandwidth: measured against theory",
            "thesis, equations 3.1–3.7",
            "Mean rate of a rank's training payload over the iteration. Theory, in our form: min(8·D/t₀, C − BW), "
            "as a share of C.",
            _bandwidth_frames,
            bandwidth,
        ),
        Exhibit(
            "spare-capacity",
            "Spare capacity",
            "thesis, equation 3.8",
            "What training and cross payload leave unused on the busiest link of any rank's host, mean over an "
            "iteration. Theory, in our form: max(0, C − BW − 8·D/t₀), as a share of C.",
            _bandwidth_frames,
            unused,
        ),
        Exhibit(
            "packet-injection",
            "Packet-injection rate",
            "thesis, figure 3-8",
            "Packets (segments on the wire) that a link sends per millisecond, by class; milliseconds in which a "
            "class sends nothing are not counted.",
            _injection_frames,
            injection,
        ),
        Exhibit(
            "node-bandwidth",
            "Training bandwidth from the nodes' point of view",
            "thesis, figure 3-11",
            "Rate at which a rank sends while it communicates (first enqueue to last wait; the whole iteration "
            "where that is not known). A node is DL-shared when any of its links had cross traffic during the "
            "iteration.",
            _node_frames,
            nodes,
        ),
    ),
)
