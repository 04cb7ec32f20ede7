# SPDX-License-Identifier: Apache-2.0
"""Flows 1, 2 and 3 of the thesis around an iteration: read once more, but only the moments that are drawn."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow.dataset as ds

from netmon.records import CLASS_NAMES, Class
from netmon.report.exhibit import GapError
from netmon.report.study import Study

_DL = (CLASS_NAMES[Class.DL_ONLY], CLASS_NAMES[Class.DL_SHARED])
_CROSS = CLASS_NAMES[Class.CROSS]
COLUMNS = ("host", "interface", "direction", "bucket_start_ns", "class", "wire_bytes")


@dataclass(frozen=True)
class Moment:
    """An iteration in the middle of the run in focus, and the hosts that play the thesis' parts in it."""

    ranks: pd.DataFrame  # rows of the iteration
    around: pd.DataFrame  # rows of iteration_times: it, and its neighbours
    only: str  # host of a DL-only node; empty: none
    shared: str  # host of a DL-shared node; empty: none


def middle(study: Study) -> Moment:
    """Choose the iteration: in the middle of those with cross traffic, else of all. Raises GapError without any."""
    times = study.times[study.times["run"] == study.focus] if study.focus else study.times
    if times.empty:
        raise GapError("there is no iteration after the first one")
    disturbed = times[times["node_shared"].eq(True)]
    rows = (disturbed if len(disturbed) else times).sort_values("start_ns")
    chosen = rows.iloc[len(rows) // 2]
    same_job = times[times["job"] == chosen["job"]].sort_values("start_ns")
    around = same_job[(same_job["iteration"] - chosen["iteration"]).abs() <= 1]
    of_job = (study.ranks["run"] == study.focus) & (study.ranks["job"] == chosen["job"])
    ranks = study.ranks[of_job & (study.ranks["iteration"] == chosen["iteration"])].sort_values("rank")
    shared = ranks[ranks["node_shared"].eq(True)]["host"]
    only = ranks[~ranks["node_shared"].eq(True)]["host"]
    return Moment(ranks, around, str(only.iloc[0]) if len(only) else "", str(shared.iloc[0]) if len(shared) else "")


def traces(study: Study, moment: Moment, begin_ns: int, end_ns: int, grid_ns: int) -> pd.DataFrame:
    """Rate by flow over [begin, end): columns flow, host, node (its class), time_ns (interval's start), rate_bps."""
    pieces = list(_rows(study, begin_ns, end_ns, {moment.only, moment.shared} - {""}))
    rows = pd.concat(pieces) if pieces else pd.DataFrame()
    if rows.empty:
        raise GapError("no bucket lies in the chosen iteration")
    parts = []
    for label, node, host, direction, classes in _parts(moment, rows):
        own = rows[(rows["host"] == host) & (rows["direction"] == direction) & rows["class"].isin(classes)]
        index = (own["bucket_start_ns"].to_numpy(np.int64) - begin_ns) // grid_ns
        count = -(-(end_ns - begin_ns) // grid_ns)
        inside = (index >= 0) & (index < count)
        sums = np.bincount(index[inside], weights=own["wire_bytes"].to_numpy(float)[inside], minlength=count)
        parts.append(
            pd.DataFrame(
                {
                    **{"flow": label, "host": host, "node": node},
                    **{"time_ns": begin_ns + np.arange(count) * grid_ns, "rate_bps": sums * 8e9 / grid_ns},
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


def _rows(study: Study, begin_ns: int, end_ns: int, hosts: set[str]) -> Iterator[pd.DataFrame]:
    time = ds.field("bucket_start_ns")
    condition = (time >= begin_ns) & (time < end_ns) & ds.field("host").isin(sorted(hosts))
    for batch in study.tables.batches("buckets", COLUMNS, condition):
        rows = batch.to_pandas()
        yield rows.astype({"direction": str, "class": str, "host": str})


def _parts(moment: Moment, rows: pd.DataFrame) -> list[tuple[str, str, str, str, tuple[str, ...]]]:
    """Label, what its node is, host, direction and classes of what is drawn."""
    parts: list[tuple[str, str, str, str, tuple[str, ...]]] = []
    if moment.only:
        parts.append((f"flow 1: training, sent by {moment.only}, a DL-only node", _DL[0], moment.only, "tx", _DL))
    if moment.shared:
        parts.append((f"flow 2: training, sent by {moment.shared}, a DL-shared node", _DL[1], moment.shared, "tx", _DL))
        cross = rows[(rows["host"] == moment.shared) & (rows["class"] == _CROSS)]
        if len(cross):
            direction = str(cross.groupby("direction")["wire_bytes"].sum().idxmax())
            verb = "received" if direction == "rx" else "sent"
            parts.append(
                (f"flow 3: cross traffic, {verb} by {moment.shared}", _CROSS, moment.shared, direction, (_CROSS,))
            )
    return parts
