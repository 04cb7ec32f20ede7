# SPDX-License-Identifier: Apache-2.0
"""Bucket rows between their arrival and the dataset, of all hosts in one table."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from netmon.dl import sums
from netmon.dl.grouped import order_by, starts
from netmon.records import COARSE, Table

COUNTS = ("packets", "wire_bytes", "payload_bytes", "peak_bytes", "busy_buckets")

ARRIVED = np.dtype(
    [("session", "<i4")] + [(name, "<i8") for name in ("flow", "start_ns", "bucket_ns", *COUNTS)] + [("stored", "?")]
)
"""A row on its way: place of its session, index of its flow, mono time, width, counts; stored: the dataset has it, it
is for the state."""

CARRIED = ("bucket_ns", *COUNTS)
"""What a row keeps on its way."""

SETTLED = np.dtype(
    [("session", "<i4"), ("flow_id", "<u4"), ("link", "<i4"), ("class", "u1"), ("job", "<i4"), ("iteration", "<i8")]
    + [(name, "<i8") for name in ("bucket_start_ns", *CARRIED)]
)
"""A row of the dataset: place of its session, bucket_start_ns in UTC, job an index into the jobs of all hosts."""


def arrived(buckets: Table, flow: npt.NDArray[np.int64], width_ns: int, session: int = 0) -> Table:
    """Rows of BUCKET or COARSE, width_ns wide, and the indices of their flows → rows of ARRIVED, not stored."""
    rows = np.empty(len(buckets), ARRIVED)
    rows["session"], rows["stored"] = session, False
    rows["flow"], rows["start_ns"], rows["bucket_ns"] = flow, buckets["bucket_start_ns"], width_ns
    fill_counts(rows, buckets)
    return rows


def fill_counts(rows: Table, buckets: Table) -> None:
    """COUNTS of rows of BUCKET or COARSE into the table of as many `rows`: one of BUCKET is its own peak."""
    for name in ("packets", "wire_bytes", "payload_bytes"):
        rows[name] = buckets[name]
    coarse = buckets.dtype == COARSE
    rows["peak_bytes"] = buckets["peak_bytes"] if coarse else rows["wire_bytes"]
    rows["busy_buckets"] = buckets["busy_buckets"] if coarse else 1


def merge(rows: Table, full_ns: npt.NDArray[np.int64] | int) -> Table:
    """One row per (flow, bucket), sorted by session and time, counts added up; dtype ARRIVED in and out.

    Rows of different widths stay apart. full_ns: the agent's bucket, of each session or of all; the parts of one of
    those are its peak together. Of the parts of a wider one, which stragglers make, the larger peak is taken, and their
    busy buckets add up.
    """
    if not len(rows):
        return rows
    rows = rows.take(_order(rows))  # which copies whole rows; brackets copy field by field
    first = starts(*(np.ascontiguousarray(rows[name]) for name in ("start_ns", "flow", "bucket_ns", "stored")))
    if len(first) < len(rows):
        merged = rows.take(first)
        for name in ("packets", "wire_bytes", "payload_bytes", "busy_buckets"):
            merged[name] = np.add.reduceat(rows[name], first)
        merged["peak_bytes"] = np.maximum.reduceat(rows["peak_bytes"], first)
        rows = merged
    full = rows["bucket_ns"] == (full_ns if isinstance(full_ns, int) else full_ns[rows["session"]])
    rows["peak_bytes"][full], rows["busy_buckets"][full] = rows["wire_bytes"][full], 1
    return rows


def _order(rows: Table) -> npt.NDArray[np.intp]:
    """By session, time, flow, width and whether it is stored. Each host has a clock of its own."""
    session, start = np.ascontiguousarray(rows["session"]), np.ascontiguousarray(rows["start_ns"])
    if session.min() == session.max():
        since = start - start.min()
    else:
        base = np.full(int(session.max()) + 1, np.iinfo(np.int64).max)
        np.minimum.at(base, session, start)
        since = start - base[session]
    unit = int(np.gcd.reduce(since))
    if unit > 1:
        since //= unit
    return order_by(session, since, rows["flow"], rows["bucket_ns"], rows["stored"].view(np.uint8))


class Pending:
    """Rows that have not settled, in the pieces in which they came."""

    def __init__(self) -> None:
        """Begin without rows."""
        self._pieces: list[Table] = []

    @property
    def count(self) -> int:
        """How many rows wait."""
        return sum(map(len, self._pieces))

    def add(self, rows: Table) -> None:
        """Add rows of ARRIVED."""
        if len(rows):
            self._pieces.append(rows)

    def take(self, until_ns: npt.NDArray[np.int64]) -> Table:
        """Hand over the rows that begin before until_ns of their session."""
        due, kept = [], []
        for rows in self._pieces:
            over = rows["start_ns"] < until_ns[rows["session"]]
            count = int(np.count_nonzero(over))
            if count == len(rows):
                due.append(rows)
            elif count:
                due.append(rows.take(np.flatnonzero(over)))
                kept.append(rows.take(np.flatnonzero(~over)))
            else:
                kept.append(rows)
        self._pieces = kept
        return joined(due)

    def drop(self, session: int) -> None:
        """Forget the rows of a session."""
        self._pieces = [rows[rows["session"] != session] for rows in self._pieces]

    def all(self) -> Table:
        """Every row that waits."""
        return joined(self._pieces)


def joined(tables: Iterable[Table]) -> Table:
    """Tables of ARRIVED as one; a single one is not copied."""
    tables = list(tables)
    if len(tables) == 1:
        return tables[0]
    return sums.joined(tables) if tables else np.empty(0, ARRIVED)
