# SPDX-License-Identifier: Apache-2.0
"""Bucket rows between their arrival and the dataset."""

import numpy as np
import numpy.typing as npt

from netmon.records import COARSE, Table

_COUNTS = ("packets", "wire_bytes", "payload_bytes", "peak_bytes", "busy_buckets")

ARRIVED = np.dtype([(name, "<i8") for name in ("flow", "start_ns", "bucket_ns", *_COUNTS)] + [("stored", "?")])
"""A row on its way: dense flow index, mono time, width, counts; stored: the dataset has it, it is for the state."""

CARRIED = ("bucket_ns", *_COUNTS)
"""What a row keeps on its way."""

SETTLED = np.dtype(
    [("flow_id", "<u4"), ("link", "<i4"), ("class", "u1"), ("job", "<i4"), ("iteration", "<i8")]
    + [(name, "<i8") for name in ("bucket_start_ns", *CARRIED)]
)
"""A row of the dataset: bucket_start_ns in UTC, job an index into the session's jobs."""

FINAL = np.dtype([("link", "<i4"), ("job", "<i4"), ("class", "u1"), ("start_ns", "<i8"), ("wire_bytes", "<i8")])
"""A settled row as viewers need it: start_ns in mono, job the flow's own, an index into the session's jobs."""


def arrived(buckets: Table, flow: npt.NDArray[np.int64], width_ns: int) -> Table:
    """Rows of BUCKET or COARSE, width_ns wide, and their dense flow indices → rows of ARRIVED, not stored."""
    rows = np.empty(len(buckets), ARRIVED)
    rows["flow"], rows["start_ns"], rows["bucket_ns"] = flow, buckets["bucket_start_ns"], width_ns
    for name in ("packets", "wire_bytes", "payload_bytes"):
        rows[name] = buckets[name]
    coarse = buckets.dtype == COARSE
    rows["peak_bytes"] = buckets["peak_bytes"] if coarse else rows["wire_bytes"]
    rows["busy_buckets"] = buckets["busy_buckets"] if coarse else 1
    rows["stored"] = False
    return rows


def merge(rows: Table, full_ns: int) -> Table:
    """One row per (flow, bucket), sorted by time, counts added up; dtype ARRIVED in and out.

    Rows of different widths stay apart. full_ns: the agent's bucket; the parts of one of those are its peak together.
    Of the parts of a wider one, which stragglers make, the larger peak is taken, and their busy buckets add up.
    """
    if not len(rows):
        return rows
    rows = rows[np.lexsort((rows["stored"], rows["bucket_ns"], rows["flow"], rows["start_ns"]))]
    same = np.ones(len(rows) - 1, np.bool_)
    for name in ("stored", "bucket_ns", "flow", "start_ns"):
        same &= rows[name][1:] == rows[name][:-1]
    first = np.flatnonzero(np.concatenate([[True], ~same]))
    merged = rows[first]
    for name in ("packets", "wire_bytes", "payload_bytes", "busy_buckets"):
        merged[name] = np.add.reduceat(rows[name], first)
    merged["peak_bytes"] = np.maximum.reduceat(rows["peak_bytes"], first)
    full = merged["bucket_ns"] == full_ns
    merged["peak_bytes"][full], merged["busy_buckets"][full] = merged["wire_bytes"][full], 1
    return merged
