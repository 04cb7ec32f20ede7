# SPDX-License-Identifier: Apache-2.0
"""How much training sends, how fast, and what it leaves: measured and in theory (the thesis' chapter 3)."""

import math
from typing import Any

import numpy as np
import pandas as pd

from netmon.history.frames import groups, records
from netmon.report.congestion import spare_capacity, training_share
from netmon.report.exhibit import Chapter, Exhibit, Frames, GapError, need
from netmon.report.figures import bandwidth as draw
from netmon.report.runs import SIZE
from netmon.report.study import Study, by_profile

NO_LEVELS = "there is no iteration whose cross traffic is known"


def _bytes_frames(study: Study) -> Frames:
    """Per run and job: what a rank sent per iteration and what equation 3.1 says."""
    from netmon.dl.theory import ring_bytes

    times = need(study.times, "there is no iteration after the first one")
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
    """How many milliseconds of a sending link held so many packets of a class."""
    if study.traffic is None:
        raise GapError("there is no row of buckets")
    series = study.traffic.series
    sent = series.index[series["direction"] == "tx"]
    cells = study.traffic.milliseconds
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
    """Rate of each rank's training traffic while it communicates, by what its node's links carried."""
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
            draw.bytes_per_iteration,
        ),
        Exhibit(
            "bandwidth",
            "Training bandwidth: measured against theory",
            "thesis, equations 3.1–3.7",
            "Mean rate of a rank's training payload over the iteration. Theory, in our form: min(8·D/t₀, C − BW), "
            "as a share of C.",
            _bandwidth_frames,
            draw.bandwidth,
        ),
        Exhibit(
            "spare-capacity",
            "Spare capacity",
            "thesis, equation 3.8",
            "What training and cross payload leave unused on the busiest link of any rank's host, mean over an "
            "iteration. Theory, in our form: max(0, C − BW − 8·D/t₀), as a share of C.",
            _bandwidth_frames,
            draw.spare_capacity,
        ),
        Exhibit(
            "packet-injection",
            "Packet-injection rate",
            "thesis, figure 3-8",
            "Packets (segments on the wire) that a link sends per millisecond, by class; milliseconds in which a "
            "class sends nothing are not counted.",
            _injection_frames,
            draw.injection,
        ),
        Exhibit(
            "node-bandwidth",
            "Training bandwidth from the nodes' point of view",
            "thesis, figure 3-11",
            "Rate at which a rank sends while it communicates (first enqueue to last wait; the whole iteration "
            "where that is not known). A node is DL-shared when any of its links carried cross traffic during the "
            "iteration.",
            _node_frames,
            draw.nodes,
        ),
    ),
)
