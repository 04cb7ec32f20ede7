# SPDX-License-Identifier: Apache-2.0
"""A flow as the bursts it consists of, which is all of it that the inference keeps."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from netmon.dl.grouped import joined, sums_by_two
from netmon.records import Table

Edge = tuple[str, str]
"""From one address to another."""

BURST = np.dtype([("start_ns", "<i8"), ("end_ns", "<i8"), ("level", "<i8"), ("volume", "<i8")])
"""Traffic without a pause, [start, end). level: the flow's bytes before it, volume: its own."""

_END, _VOLUME, _COLUMNS = 1, 3, 4  # of BURST
_FIRST = 8  # bursts that there is room for at first
_TAIL = 64  # of the last bursts, that are kept as they are
_BLOCK = 64  # of those before, that are packed together
_PACKED = np.dtype([("start", "<u4"), ("length_ns", "<u4"), ("volume", "<u4")])
_PACK = np.dtype([("base_ns", "<i8"), ("rows", _PACKED, (_BLOCK,))])
"""A block. start: in units of the resolution since base_ns."""
_FITS = 1 << 32
NEVER = int(np.iinfo(np.int64).max)

_Column = npt.NDArray[np.int64]

SHORT = 0.5
"""Of the typical pause before an iteration, or of another chain's: what is less is no such pause."""

SEGMENT_BYTES = 1448
"""Payload of a full segment. Gradients fill segments; negotiation and heartbeats are a few dozen bytes per ms."""
_PAUSE_BUCKETS = 2  # fewer empty buckets than this are no pause
_MOST = 2048  # bursts kept per flow
_LONGEST_PAUSES = 16  # of them: half as long as these are (median) one between iterations may be
_YOUNG_NS, _FEW = 30_000_000_000, 64  # of a flow that is spared and older, bursts that are kept beside the newest
_SPAN_NS, _WITHIN_NS = 60_000_000_000, 25_000_000  # where they cover so much time: any that is so long


class Bursts:
    """The last bursts of one flow, oldest first.

    Memory is bounded: with more than 2,048 bursts, the flow's shortest pauses are forgotten, but none that may be one
    between iterations; then its oldest bursts. Of a flow that is spared and no longer young the last hundred remain.
    All but the last ones are packed, in 12 bytes each.
    """

    __slots__ = (
        *("count", "first_ns", "forgetful", "kept_ns", "last_ns", "pause_ns", "spared", "total"),
        *("_kept", "_packed", "_resolution_ns", "_table", "_unpackable"),
    )

    def __init__(self, resolution_ns: int) -> None:
        self.pause_ns = _PAUSE_BUCKETS * resolution_ns
        self._resolution_ns = resolution_ns
        self._packed: list[bytes] = []  # of _PACK, one or more each, oldest first
        self._unpackable = False  # a burst is too long, or too large
        self._table = np.zeros((_FIRST, _COLUMNS), np.int64)  # the others: the columns of BURST; with room for more
        self._kept = 0  # of those
        self.count = 0  # of all bursts that are kept
        self.total = 0  # bytes of all bursts, also of the forgotten ones
        self.first_ns = self.last_ns = 0  # when the first burst began and the last one ended
        self.forgetful = False  # the first burst that is kept was not the first
        self.kept_ns = NEVER  # pauses of at least so long are never forgotten
        self.spared = False  # what it is is known: it is looked at less often, and less of it is kept

    def __len__(self) -> int:
        return self.count

    @property
    def rows(self) -> Table:
        """dtype BURST, shape (bursts,); not to be written, nor kept."""
        tail = self._tail()
        if not self._packed:
            return tail
        blocks = np.frombuffer(b"".join(self._packed), _PACK)
        packed = blocks["rows"].ravel()
        rows: Table = np.empty(self.count, BURST)
        rows[len(packed) :] = tail
        begin = rows["start_ns"][: len(packed)]
        np.multiply(packed["start"], self._resolution_ns, out=begin, dtype=np.int64)
        begin += np.repeat(blocks["base_ns"], _BLOCK)
        rows["end_ns"][: len(packed)] = begin + packed["length_ns"]
        rows["volume"][: len(packed)] = packed["volume"]
        through = np.cumsum(packed["volume"], dtype=np.int64)
        through -= packed["volume"]
        rows["level"][: len(packed)] = through + (int(tail["level"][0]) - int(packed["volume"].sum(dtype=np.int64)))
        return rows

    def rows_around(self, level: float) -> Table:
        """As rows, from a burst on whose level is lower, or from the first one."""
        tail = self._tail()
        return tail if not self._packed or tail["level"][0] < level else self.rows

    @property
    def ended_ns(self) -> int:
        """When the traffic of the last burst was over."""
        return int(self._table[self._kept - 1, _END])

    def since(self, time_ns: int) -> int:
        """Bytes of the bursts that began at time_ns or later."""
        rows = self._tail()
        if self._packed and rows["start_ns"][0] >= time_ns:
            rows = self.rows
        index = int(rows["start_ns"].searchsorted(time_ns))
        return self.total - int(rows["level"][index]) if index < len(rows) else 0

    def add(self, time_ns: _Column, volume: _Column, resolution_ns: int) -> None:
        """Add buckets, each with gradient traffic, ascending in time, none earlier than those added before."""
        add_buckets([self], np.zeros(1, np.int64), time_ns, volume, resolution_ns)

    def extend(self, end_ns: int, volume: int) -> None:
        """The last burst does."""
        last = self._table[self._kept - 1]
        last[_END] = max(end_ns, last[_END])
        last[_VOLUME] += volume
        self.total += volume

    def append(self, new: npt.NDArray[np.int64], total: int) -> None:
        """New bursts, the columns of BURST, with their levels; total: the flow's bytes with them."""
        old = self.spared and self.last_ns - self.first_ns > _YOUNG_NS
        if old and self._kept > 2 * _FEW:
            self._keep_few()
        kept = self._kept + len(new)
        if kept > len(self._table):
            room = np.zeros((max(kept, 2 * len(self._table)), _COLUMNS), np.int64)
            room[: self._kept] = self._table[: self._kept]
            self._table = room
        self._table[self._kept : kept] = new
        self._kept, self.total = kept, total
        self.count += len(new)
        if self.count > _MOST:
            self._forget()
        elif not old and kept >= _TAIL + _BLOCK:
            self._pack()

    def _tail(self) -> Table:
        rows: Table = self._table[: self._kept].view(BURST)[:, 0]
        return rows

    def _pack(self) -> None:
        """All but the last ones, as far as they fit."""
        blocks = (self._kept - _TAIL) // _BLOCK
        if self._unpackable or blocks < 1:
            return
        rows = self._table[: blocks * _BLOCK].view(BURST).reshape(blocks, _BLOCK)
        packs = np.empty(blocks, _PACK)
        packs["base_ns"] = rows["start_ns"][:, 0]
        since_ns = rows["start_ns"] - rows["start_ns"][:, :1]
        columns = np.stack([since_ns // self._resolution_ns, rows["end_ns"] - rows["start_ns"], rows["volume"]])
        fits = (columns.view(np.uint64) < _FITS).all() and (columns[0] * self._resolution_ns == since_ns).all()
        if not fits:
            self._unpackable = True
            return
        for name, column in zip(_PACKED.names or (), columns, strict=True):
            packs["rows"][name] = column
        self._packed.append(packs.tobytes())
        self._table = self._table[blocks * _BLOCK : self._kept].copy()
        self._kept = len(self._table)

    def _keep_few(self) -> None:
        """The last ones, as they are: less is to be done for them."""
        self._packed = []
        self._table = self._table[self._kept - _FEW : self._kept].copy()
        self.count = self._kept = _FEW
        self.forgetful = True

    def _forget(self) -> None:
        rows = self.rows
        pauses = pauses_before(rows)
        forgettable_ns = min(np.median(pauses), self._forgettable_ns(rows, pauses), self.kept_ns)
        self.pause_ns = max(self.pause_ns, int(forgettable_ns))
        first = np.flatnonzero(pauses >= self.pause_ns)
        merged: Table = rows.take(first)
        merged["end_ns"] = rows["end_ns"][np.append(first[1:] - 1, len(pauses) - 1)]
        merged["volume"] = np.add.reduceat(rows["volume"], first)
        kept = merged[-_MOST // 2 :]
        self._packed = []
        self._table = np.ascontiguousarray(kept).view(np.int64).reshape(-1, _COLUMNS)
        self.count = self._kept = len(kept)
        self._unpackable = False
        self.forgetful |= len(merged) > len(kept)
        self._pack()

    @staticmethod
    def _forgettable_ns(rows: Table, pauses: npt.NDArray[np.int64]) -> float:
        """Pauses of at least so long are kept: without half of those between iterations nobody could follow these."""
        longest = SHORT * float(np.median(np.sort(pauses[1:])[-_LONGEST_PAUSES:]))
        return longest if rows["end_ns"][-1] - rows["start_ns"][0] < _SPAN_NS else min(longest, _WITHIN_NS)


def add_buckets(
    flows: Sequence[Bursts], first: npt.NDArray[np.int64], time_ns: _Column, volume: _Column, resolution_ns: int
) -> None:
    """Add buckets of many flows, those of the k-th from index first[k] on; each as Bursts.add."""
    count = np.diff(np.append(first, len(time_ns)))
    last, pause, total, kept = (
        np.fromiter(column, np.int64, len(flows))
        for column in zip(*[(b.last_ns, b.pause_ns, b.total, b.count) for b in flows], strict=True)
    )
    last = np.where(kept > 0, last, time_ns[first] - pause)
    ends = time_ns + resolution_ns
    before = np.concatenate((ends[:1], ends[:-1]))
    before[first] = last
    begins = time_ns - before >= np.repeat(pause, count)
    last = np.maximum(last, ends[first + count - 1])
    ends = _over(ends, volume, begins, first, resolution_ns)
    parts = begins.copy()
    parts[first] = True
    starts = np.flatnonzero(parts)
    new = np.empty(len(starts), BURST)
    new["start_ns"], new["end_ns"] = time_ns[starts], ends[np.append(starts[1:] - 1, len(ends) - 1)]
    new["volume"] = np.add.reduceat(volume, starts)
    where = np.searchsorted(starts, first)
    through = np.cumsum(new["volume"])
    # Of bytes, all that came before in the flow: of all flows together, less what there was before its first burst.
    offset = total - (through[where] - new["volume"][where])
    new["level"] = through - new["volume"] + np.repeat(offset, np.diff(np.append(where, len(starts))))
    goes_on = ~begins[first]
    plain = new.view(np.int64).reshape(-1, _COLUMNS)
    until = np.append(where[1:], len(starts))
    totals = new["level"][until - 1] + new["volume"][until - 1]
    columns = (where, until, goes_on, last, new["start_ns"][where], new["end_ns"][where], new["volume"][where], totals)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for bursts, (begin, end, more, last_ns, start_ns, end_ns, added, now) in zip(flows, rows, strict=True):
        if not bursts.count:
            bursts.first_ns = start_ns
        bursts.last_ns = last_ns
        if more:
            bursts.extend(end_ns, added)
            begin += 1
        if begin < end:
            bursts.append(plain[begin:end], now)


def _over(
    ends: _Column, volume: _Column, begins: npt.NDArray[np.bool_], first: npt.NDArray[np.int64], resolution_ns: int
) -> _Column:
    """When the traffic of each bucket was over: as soon as at the rate of the bucket before, unless a burst begins."""
    before = np.concatenate((volume[:1], volume[:-1]))
    before[first] = volume[first]
    filled = np.where(begins, 1.0, np.minimum(1.0, volume / before))
    return ends - np.round((1 - filled) * resolution_ns).astype(np.int64)


def pauses_before(rows: Table) -> npt.NDArray[np.int64]:
    """ns of quiet before each burst; the one before the first is not known and counts as very long."""
    before = np.empty(len(rows), np.int64)
    before[:1] = np.iinfo(np.int64).max // 4
    before[1:] = rows["start_ns"][1:] - rows["end_ns"][:-1]
    return before


def levels_at(rows: Table, times_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Bytes of a flow's bursts that began before each time. rows: one or more."""
    levels = np.append(rows["level"], rows["level"][-1] + rows["volume"][-1])
    before: npt.NDArray[np.int64] = levels[rows["start_ns"].searchsorted(times_ns)]
    return before


def together(flows: Iterable[Table], resolution_ns: int) -> Table:
    """Many flows as one: bursts are parted where all of them pause. Shape (bursts,), levels from 0 on."""
    rows = joined([np.empty(0, BURST), *flows])
    rows = rows.take(np.argsort(rows["start_ns"], kind="stable"))
    if not len(rows):
        return rows
    ends = np.maximum.accumulate(rows["end_ns"])
    parted = rows["start_ns"][1:] - ends[:-1] >= _PAUSE_BUCKETS * resolution_ns
    first = np.flatnonzero(np.concatenate(([True], parted)))
    merged: Table = rows.take(first)
    merged["end_ns"] = ends[np.append(first[1:] - 1, len(rows) - 1)]
    merged["volume"] = np.add.reduceat(rows["volume"], first)
    merged["level"] = np.cumsum(merged["volume"]) - merged["volume"]
    return merged


def summed(rows: Table, resolution_ns: int) -> tuple[npt.NDArray[np.int64], ...]:
    """Flow, time and bytes per bucket of resolution_ns, ordered by flow, then time. rows: dtype TRAFFIC."""
    flow, index, volume = sums_by_two(rows["flow"], rows["time_ns"] // resolution_ns, rows["payload_bytes"])
    return flow, index * resolution_ns, volume


def are_gradients(volume: npt.NDArray[np.int64], resolution_ns: int) -> npt.NDArray[np.bool_]:
    """Which buckets hold at least a full segment per ms."""
    full: npt.NDArray[np.bool_] = volume >= SEGMENT_BYTES * max(1.0, resolution_ns / 1e6)
    return full
