# SPDX-License-Identifier: Apache-2.0
"""What the figures rest on: runs, links, byte accounts, NIC counters."""

import pandas as pd

from netmon.report.study import Chapter, Exhibit, Frames, Study, need


def _run_frames(study: Study) -> Frames:
    runs = need(study.runs, "there is no run, and no iteration to make one from")
    if study.ranks.empty:
        return {"runs": runs}
    seen = study.all_times.groupby("run").agg(iterations=("time_s", "size"), median_s=("time_s", "median"))
    return {"runs": runs.join(seen, on="run")}


def _owner_frames(study: Study) -> Frames:
    """Whose the bytes are: by class, process, container and how it is known."""
    flows = need(study.flows, "the table flows is missing, or none of its flows has a bucket")
    by = [name for name in ("class", "process", "container", "class_source", "traffic") if name in flows]
    sums = flows.fillna(dict.fromkeys(by, "")).groupby(by, as_index=False)
    owners = sums.agg(flows=("flow_id", "size"), wire_bytes=("wire_bytes", "sum"))
    return {"owners": owners.sort_values("wire_bytes", ascending=False, ignore_index=True)}


def _nic_frames(study: Study) -> Frames:
    """How much each counter of each device grew."""
    by = ["host", "device", "source", "counter"]
    grown = need(study.tables.growth("nic", by, "time_ns", "value"), "the dataset has no table nic")
    grown = grown.assign(growth=grown["last"] - grown["first"])
    return {"counters": grown[grown["growth"] > 0].reset_index(drop=True)}


def coverage(accounts: pd.DataFrame) -> float:
    """Attributed bytes of all links over those of their NICs' counters."""
    return float(accounts["attributed_bytes"].sum() / accounts["nic_bytes"].sum())


CHAPTER = Chapter(
    "What it rests on",
    (
        Exhibit("runs", "Runs", "", "As the lab wrote them down; one per job where no lab was.", _run_frames, rows=60),
        Exhibit(
            "owners", "Whose the bytes are", "", "Largest first; both ends of a flow count.", _owner_frames, rows=20
        ),
        Exhibit(
            "nic-counters", "NIC counters", "thesis, counter script", "Growth over the dataset.", _nic_frames, rows=40
        ),
    ),
)
