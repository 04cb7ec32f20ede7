# SPDX-License-Identifier: Apache-2.0
"""Bucket rows between their arrival and the dataset."""

import numpy as np

from netmon.records import Table

ARRIVED = np.dtype(
    [(name, "<i8") for name in ("flow", "start_ns", "packets", "wire_bytes", "payload_bytes")] + [("stored", "?")]
)
"""A row on its way: dense flow index, mono time, counts; stored: the dataset has it, it serves the state only."""

SETTLED = np.dtype(
    [("flow_id", "<u4"), ("link", "<i4"), ("class", "u1"), ("job", "<i4"), ("iteration", "<i8")]
    + [(name, "<i8") for name in ("bucket_start_ns", "packets", "wire_bytes", "payload_bytes")]
)
"""A row of the dataset: bucket_start_ns in UTC, job an index into the session's jobs."""


def merge(rows: Table) -> Table:
    """One row per (flow, bucket), sorted by time, counts added up; dtype ARRIVED in and out."""
    if not len(rows):
        return rows
    rows = rows[np.lexsort((rows["stored"], rows["flow"], rows["start_ns"]))]
    same = np.ones(len(rows) - 1, np.bool_)
    for name in ("stored", "flow", "start_ns"):
        same &= rows[name][1:] == rows[name][:-1]
    first = np.flatnonzero(np.concatenate([[True], ~same]))
    merged = rows[first]
    for name in ("packets", "wire_bytes", "payload_bytes"):
        merged[name] = np.add.reduceat(rows[name], first)
    return merged
