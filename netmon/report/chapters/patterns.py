# SPDX-License-Identifier: Apache-2.0
"""Before, inside and after iterations; sizes; the ring: the communication-patterns study."""

import pandas as pd

from netmon.history.frames import groups
from netmon.report.chapters.volumes import DL, traffic_of, training_pairs
from netmon.report.exhibit import Chapter, Exhibit, Frames, GapError, need
from netmon.report.figures import patterns as draw
from netmon.report.flows import ring_order
from netmon.report.scan import PHASES
from netmon.report.study import Study

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
    times = need(study.times, "there is no iteration after the first one")
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
            draw.phases,
        ),
        Exhibit(
            "durations",
            "Distribution of iteration durations",
            "communication patterns",
            "Of the slowest rank: the whole iteration; its communication, first enqueue to last wait; and the "
            "part of it that is exposed (nothing is computed meanwhile), as far as the source of the iterations "
            "tells them.",
            _duration_frames,
            draw.durations,
        ),
        Exhibit(
            "bytes-per-flow",
            "Bytes per flow and iteration",
            "communication patterns",
            "Payload that a training flow sends in an iteration; flows without payload in it are not counted.",
            _bytes_frames,
            draw.bytes_per_flow,
        ),
        Exhibit(
            "ring",
            "The order of the ring",
            "communication patterns",
            "Each host's largest receiver, followed from the first name on; thickness by payload.",
            _ring_frames,
            draw.rings,
        ),
    ),
)
