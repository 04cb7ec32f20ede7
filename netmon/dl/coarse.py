# SPDX-License-Identifier: Apache-2.0
"""Rows of full resolution → coarser ones: sums, and what bursts are found by afterwards."""

import numpy as np
import numpy.typing as npt

from netmon.dl.grouped import starts
from netmon.native import loops_over_rows
from netmon.records import BUCKET, COARSE, COUNTED, Table, empty

_SUMMED = tuple(name for name in COUNTED if name != "wire_bytes")
_SPAN_BITS = np.uint64(32)
_compiled = loops_over_rows(COUNTED)


def coarsen(rows: Table, bucket_ns: int, width_ns: int) -> Table:
    """BUCKET rows of bucket_ns, in any order → COARSE rows of width_ns, by flow and time. Sums are exact.

    Rows of one flow and bucket add up before the largest is looked for: all of a bin's rows have to be here.
    width_ns: a multiple of bucket_ns. The rows must lie within 2^32 buckets of each other.
    """
    if not len(rows):
        return empty(COARSE)
    base_ns = int(rows["bucket_start_ns"].min()) // width_ns * width_ns
    if _compiled:
        return np.frombuffer(_compiled.sum_bins(rows, base_ns, bucket_ns, width_ns), COARSE)
    return sum_bins(rows, base_ns, bucket_ns, width_ns)


def sum_bins(rows: Table, base_ns: int, bucket_ns: int, width_ns: int) -> Table:
    """Without what is compiled, and for counts that it does not know. base_ns: a multiple of width_ns."""
    since = rows["bucket_start_ns"] - np.uint64(base_ns)
    key = rows["flow_id"].astype(np.uint64) << _SPAN_BITS | since // np.uint64(bucket_ns)
    order = np.argsort(key)
    key = key[order]
    first = starts(key)
    wire = rows["wire_bytes"][order]
    if len(first) < len(key):
        wire = np.add.reduceat(wire, first)  # of each full bucket
        key = key[first]
    flow, bucket = key >> _SPAN_BITS, key & np.uint64(0xFFFFFFFF)
    bins = bucket // np.uint64(width_ns // bucket_ns)
    begins = starts(flow << _SPAN_BITS | bins)
    coarse = np.empty(len(begins), COARSE)
    coarse["flow_id"] = flow[begins]
    coarse["bucket_start_ns"] = np.uint64(base_ns) + bins[begins] * np.uint64(width_ns)
    coarse["wire_bytes"] = np.add.reduceat(wire, begins)
    coarse["peak_bytes"] = np.maximum.reduceat(wire, begins)
    coarse["busy_buckets"] = np.diff(np.append(begins, len(wire)))
    for name in _SUMMED:
        coarse[name] = np.add.reduceat(rows[name][order], first[begins])
    return coarse


class Coarsener:
    """Holds rows of full resolution until their bins are complete."""

    def __init__(self, bucket_ns: int) -> None:
        """bucket_ns: of the rows."""
        self._bucket_ns = bucket_ns
        self._waiting = empty(BUCKET)

    def take(self, rows: Table, width_ns: int, until_ns: int) -> Table:
        """Take in rows (copied where kept); the bins of width_ns that begin before until_ns, dtype COARSE.

        until_ns: a multiple of width_ns, before which nothing is to come but stragglers, which make rows of their own.
        """
        if not len(rows) and not len(self._waiting):
            return empty(COARSE)
        # A row as words is copied in a fraction of the time.
        words = np.concatenate([_words(self._waiting), _words(rows)])
        due = words[:, 0] < np.uint64(max(0, until_ns))
        self._waiting = _rows(words.take(np.flatnonzero(~due), axis=0))
        return coarsen(_rows(words.take(np.flatnonzero(due), axis=0)), self._bucket_ns, width_ns)


def _words(rows: Table) -> npt.NDArray[np.uint64]:
    """(n, words), the first of each row its start."""
    return rows.view(np.uint64).reshape(-1, BUCKET.itemsize // 8)


def _rows(words: npt.NDArray[np.uint64]) -> Table:
    rows: Table = words.reshape(-1).view(BUCKET)
    return rows
