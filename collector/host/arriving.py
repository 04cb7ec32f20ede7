# SPDX-License-Identifier: Apache-2.0
"""What is done to the rows of all hosts when they arrive; little of it per row, as rows of a flow follow each other."""

from typing import Any

import numpy as np
import numpy.typing as npt

from collector.host.rows import COUNTS
from netmon.columnar import Columns
from netmon.dl.grouped import order_by, starts
from netmon.dl.onsets import REST_NS
from netmon.records import Table
from netmon.wire.batch_fields import ManyBatches


def rows_of(
    many: ManyBatches, session_index: npt.NDArray[np.int64], flow: npt.NDArray[np.int64], sessions: Table
) -> Columns:
    """The rows of batches, of ARRIVED. session_index: of each batch; flow: of each run; sessions: dtype SESSION."""
    rows, heads = many.rows, many.heads
    batch, start_ns = rows["batch"], rows["start_ns"]
    width = np.where(heads["bucket_ns"] > 0, heads["bucket_ns"], sessions["full_ns"][session_index])
    columns: dict[str, npt.NDArray[Any]] = {
        "session": session_index.astype(np.int32)[batch],
        "flow": np.repeat(flow, many.runs.rows),
    }
    columns |= {"start_ns": start_ns, "bucket_ns": width[batch]} | {name: rows[name] for name in COUNTS}
    complete, begun = (
        heads["sequence"] <= sessions[name][session_index] for name in ("stored_complete", "stored_last")
    )
    if begun.any() or complete.any():
        settled_ns = sessions["stored_settled_ns"][session_index]
        columns["stored"] = complete[batch] | (begun[batch] & (start_ns < settled_ns[batch]))
    else:
        columns["stored"] = np.zeros(len(rows), np.bool_)
    return Columns(columns)


def count_arrived(state: Table, rows: Columns) -> npt.NDArray[np.intp]:
    """Add up rows of ARRIVED, at least one, in the state of their flows (dtype STATE); which of them follow a rest."""
    onsets = _count(state, rows)
    if onsets is None:
        order = order_by(rows["flow"], rows["start_ns"])
        onsets = _count(state, rows.take(order))
        assert onsets is not None
        return np.sort(order[onsets])
    return onsets


def _count(state: Table, rows: Columns) -> npt.NDArray[np.intp] | None:
    """The same where the rows of each flow are in order of time; None, and nothing changed, where they are not."""
    flow, start, payload = rows["flow"], rows["start_ns"], rows["payload_bytes"]
    first = starts(flow)
    turn = np.argsort(flow[first], kind="stable")  # the runs of a flow, one after the other
    run, end_ns = first[turn], start[np.append(first[1:], len(flow)) - 1][turn]
    new = starts(flow[run])
    flows = flow[run[new]]
    before = np.empty(len(run), np.int64)
    before[1:] = end_ns[:-1]
    before[new] = np.where(state["wire_bytes"][flows] > 0, state["last_ns"][flows], -REST_NS)
    gap = np.empty(len(flow), np.int64)
    np.subtract(start[1:], start[:-1], out=gap[1:])
    gap[run] = start[run] - before
    back = np.flatnonzero(gap < 0)
    if len(back) and not np.isin(back, run[new]).all():
        return None
    amounts = {
        "wire_bytes": rows["wire_bytes"],
        "payload_bytes": payload,
        "payload_packets": rows["packets"] * (payload > 0),
    }
    for name, amount in amounts.items():
        of_run = np.add.reduceat(amount, first, dtype=np.int64)
        state[name][flows] += np.add.reduceat(of_run[turn], new)
    last = np.append(new[1:], len(run)) - 1
    state["last_ns"][flows] = np.maximum(state["last_ns"][flows], end_ns[last])
    state["changed"][flows] = True
    return np.flatnonzero(gap >= REST_NS)
