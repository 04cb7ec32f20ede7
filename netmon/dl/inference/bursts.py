# SPDX-License-Identifier: Apache-2.0
"""A flow as the bursts it consists of, which is all of it that the inference keeps."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from netmon.dl.sums import sums_by_two
from netmon.records import Table

BURST = np.dtype([("start_ns", "<i8"), ("end_ns", "<i8"), ("level", "<i8"), ("volume", "<i8")])
"""Traffic without a pause, [start, end). level: the flow's bytes before it, volume: its own."""

_Column = npt.NDArray[np.int64]

SEGMENT_BYTES = 1448
"""Payload of a full segment. Gradients fill segments; negotiation and heartbeats are a few dozen bytes per ms."""
_PAUSE_BUCKETS = 2  # fewer empty buckets than this are no pause
_MOST = 2048  # bursts kept per flow


class Bursts:
    """The last bursts of one flow, oldest first.

    Memory is bounded: with more than 2,048 bursts, the flow's shortest pauses are forgotten, then its oldest bursts.
    """

    def __init__(self, resolution_ns: int) -> None:
        """No burst yet."""
        self._pause_ns = _PAUSE_BUCKETS * resolution_ns
        self._rows: Table = np.zeros(0, BURST)
        self.total = 0  # bytes of all bursts, also of the forgotten ones
        self.first_ns = self.last_ns = 0  # when the first burst began and the last one ended
        self.forgetful = False  # the first burst that is kept was not the first

    @property
    def rows(self) -> Table:
        """dtype BURST, shape (bursts,); a view."""
        return self._rows

    def since(self, time_ns: int) -> int:
        """Bytes of the bursts that began at time_ns or later."""
        place = int(np.searchsorted(self._rows["start_ns"], time_ns))
        return self.total - int(self._rows["level"][place]) if place < len(self._rows) else 0

    def add(self, time_ns: _Column, volume: _Column, resolution_ns: int) -> None:
        """Add buckets, each with gradient traffic, ascending in time, none earlier than those added before."""
        if not len(self._rows):
            self.first_ns, self.last_ns = int(time_ns[0]), int(time_ns[0]) - self._pause_ns
        ends = time_ns + resolution_ns
        begins = time_ns - np.concatenate(([self.last_ns], ends[:-1])) >= self._pause_ns
        self.last_ns = max(self.last_ns, int(ends[-1]))
        ends = _over(ends, volume, begins, resolution_ns)
        if not begins[0]:  # goes on where the last burst was
            count = int(np.argmax(begins)) if begins.any() else len(begins)
            self._rows["end_ns"][-1] = max(int(ends[count - 1]), int(self._rows["end_ns"][-1]))
            added = int(volume[:count].sum())
            self._rows["volume"][-1] += added
            self.total += added
            time_ns, volume, ends, begins = time_ns[count:], volume[count:], ends[count:], begins[count:]
        if len(time_ns):
            self._append(time_ns, volume, ends, np.flatnonzero(begins))

    def _append(self, time_ns: _Column, volume: _Column, ends: _Column, first: npt.NDArray[np.intp]) -> None:
        new = np.zeros(len(first), BURST)
        new["start_ns"] = time_ns[first]
        new["end_ns"] = ends[np.append(first[1:] - 1, len(ends) - 1)]
        new["volume"] = np.add.reduceat(volume, first)
        new["level"] = self.total + np.cumsum(new["volume"]) - new["volume"]
        self.total += int(new["volume"].sum())
        self._rows = np.concatenate((self._rows, new))
        if len(self._rows) > _MOST:
            self._forget()

    def _forget(self) -> None:
        pauses = pauses_before(self._rows)
        self._pause_ns = max(self._pause_ns, int(np.median(pauses)))
        first = np.flatnonzero(pauses >= self._pause_ns)
        merged: Table = self._rows[first].copy()
        merged["end_ns"] = self._rows["end_ns"][np.append(first[1:] - 1, len(pauses) - 1)]
        merged["volume"] = np.add.reduceat(self._rows["volume"], first)
        self._rows = merged[-_MOST // 2 :]
        self.forgetful |= len(merged) > len(self._rows)


def _over(ends: _Column, volume: _Column, begins: npt.NDArray[np.bool_], resolution_ns: int) -> _Column:
    """When the traffic of each bucket was over: as soon as at the rate of the bucket before, unless a burst begins."""
    before = np.concatenate((volume[:1], volume[:-1]))
    filled = np.where(begins, 1.0, np.minimum(1.0, volume / before))
    return ends - np.round((1 - filled) * resolution_ns).astype(np.int64)


def pauses_before(rows: Table) -> npt.NDArray[np.int64]:
    """ns of quiet before each burst; the one before the first is not known and counts as very long."""
    before = np.empty(len(rows), np.int64)
    before[:1] = np.iinfo(np.int64).max // 4
    before[1:] = rows["start_ns"][1:] - rows["end_ns"][:-1]
    return before


def together(flows: Iterable[Table], resolution_ns: int) -> Table:
    """Several flows as one: bursts are parted where all of them pause. Shape (bursts,), levels from 0 on."""
    rows = np.concatenate([*flows, np.zeros(0, BURST)])
    rows = rows[np.argsort(rows["start_ns"], kind="stable")]
    if not len(rows):
        return rows
    ends = np.maximum.accumulate(rows["end_ns"])
    parted = rows["start_ns"][1:] - ends[:-1] >= _PAUSE_BUCKETS * resolution_ns
    first = np.flatnonzero(np.concatenate(([True], parted)))
    merged: Table = rows[first]
    merged["end_ns"] = ends[np.append(first[1:] - 1, len(rows) - 1)]
    merged["volume"] = np.add.reduceat(rows["volume"], first)
    merged["level"] = np.cumsum(merged["volume"]) - merged["volume"]
    return merged


def summed(rows: Table, resolution_ns: int) -> tuple[npt.NDArray[np.int64], ...]:
    """Flow, time and bytes per bucket of resolution_ns, ordered by flow, then time. rows: dtype TRAFFIC."""
    flow, place, volume = sums_by_two(rows["flow"], rows["time_ns"] // resolution_ns, rows["payload_bytes"])
    return flow, place * resolution_ns, volume


def are_gradients(volume: npt.NDArray[np.int64], resolution_ns: int) -> npt.NDArray[np.bool_]:
    """Which buckets hold at least a full segment per ms."""
    full: npt.NDArray[np.bool_] = volume >= SEGMENT_BYTES * max(1.0, resolution_ns / 1e6)
    return full
