# SPDX-License-Identifier: Apache-2.0
"""How coarse the stream has to be so that it does not fall behind."""

import logging
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from netmon.agent.recorder import Recorder
from netmon.dl.grouped import starts
from netmon.native import compiled
from netmon.records import BUCKET, COARSE, COUNTED, Table, empty
from netmon.units import format_duration

# --- Rows of full resolution → coarser ones: sums, and what bursts are found by afterwards.


_SUMMED = tuple(name for name in COUNTED if name != "wire_bytes")
_SPAN_BITS = np.uint64(32)
_COMPILED = frozenset(("packets", "wire_bytes", "payload_bytes"))  # counts that compiled.c sums
_Keys = npt.NDArray[np.uint64]


def coarsen(rows: Table, bucket_ns: int, width_ns: int) -> Table:
    """BUCKET rows of bucket_ns, in any order → COARSE rows of width_ns, by flow and time. Sums are exact.

    Rows of one flow and bucket add up before the largest is looked for: all of a bin's rows have to be here.
    width_ns: a multiple of bucket_ns. The rows must lie within 2^32 buckets of each other.
    """
    if not len(rows):
        return empty(COARSE)
    start = rows["bucket_start_ns"]
    base = start.min() // np.uint64(width_ns) * np.uint64(width_ns)
    key = rows["flow_id"].astype(np.uint64) << _SPAN_BITS | (start - base) // np.uint64(bucket_ns)
    order = np.argsort(key)
    if compiled and frozenset(COUNTED) == _COMPILED:
        return np.frombuffer(compiled.sum_bins(rows, key, order, int(base), width_ns // bucket_ns, width_ns), COARSE)
    return sum_bins(rows, key, order, int(base), width_ns // bucket_ns, width_ns)


def sum_bins(rows: Table, key: _Keys, order: npt.NDArray[np.intp], base_ns: int, buckets: int, width_ns: int) -> Table:
    """Without what is compiled, and for counts that it does not know.

    key: of each row, flow << 32 | its bucket's number from base_ns on; order: in which they ascend; buckets: of a bin.
    """
    key = key[order]
    first = starts(key)
    wire = rows["wire_bytes"][order]
    if len(first) < len(key):
        wire = np.add.reduceat(wire, first)  # of each full bucket
        key = key[first]
    flow, bucket = key >> _SPAN_BITS, key & np.uint64(0xFFFFFFFF)
    bins = bucket // np.uint64(buckets)
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


log = logging.getLogger(__name__)

_STEPS_NS = (5_000_000, 20_000_000)
_LATE_S = (5.0, 15.0)  # the oldest batch that could not be sent is so old: the first step, the second
_FULL = (1 / 8, 1 / 4)  # of the spool
_EASY_LATE_S, _EASY_FULL = 1.0, 1 / 16
_EASY_FOR_NS = 10_000_000_000  # before it goes back, one step at a time


def widths(bucket_ns: int, stream_ns: int) -> tuple[int, ...]:
    """Widths of the stream, finest first; only one where it carries full resolution."""
    if stream_ns == bucket_ns:
        return (bucket_ns,)
    return (stream_ns, *(step for step in _STEPS_NS if step > stream_ns and step % stream_ns == 0))


@dataclass(frozen=True)
class Backpressure:
    """What the collector can take now; 0: anything."""

    bucket_ns: int = 0  # rows at least so wide
    batch_ns: int = 0  # batches no closer together
    within_ns: int = 0  # somebody waits: longest interval between batches


@dataclass(frozen=True)
class Backlog:
    """What waits for the collector, and what it has requested."""

    late_s: float = 0.0  # age of the oldest batch that could not be sent yet
    full: float = 0.0  # share of the spool's bound
    requested_ns: int = 0  # width of the rows; 0: any


class Pressure:
    """Coarser at once, finer when it has been easy for a while."""

    def __init__(self, steps: tuple[int, ...]) -> None:
        """steps: of `widths`."""
        self._steps = steps
        self._level = 0
        self._hard_ns = 0

    def width(self, backlog: Backlog, now_ns: int) -> int:
        """The width in ns that the stream has to have now."""
        wanted = max(_reached(backlog.late_s, _LATE_S), _reached(backlog.full, _FULL))
        if wanted > self._level:
            self._level, self._hard_ns = min(wanted, len(self._steps) - 1), now_ns
        elif backlog.late_s > _EASY_LATE_S or backlog.full > _EASY_FULL:
            self._hard_ns = now_ns
        elif self._level and now_ns - self._hard_ns >= _EASY_FOR_NS:
            self._level, self._hard_ns = self._level - 1, now_ns
        # The collector says itself when it can take more: what it asks for leaves nothing behind.
        requested = min(sum(step < backlog.requested_ns for step in self._steps), len(self._steps) - 1)
        return self._steps[max(self._level, requested)]


def _reached(value: float, limits: tuple[float, ...]) -> int:
    return sum(value >= limit for limit in limits)


# --- Full resolution stays here, a coarser table goes out.

_FOR_EVER_NS = 2**63 - 1


@dataclass(frozen=True)
class Streamed:
    """What a batch is to carry."""

    buckets: Table
    bucket_ns: int
    horizon_ns: int  # every row whose bucket ended before has been given out


class Resolution:
    """One per agent."""

    def __init__(self, bucket_ns: int, stream_ns: int, recorder: Recorder | None) -> None:
        """stream_ns: a multiple of bucket_ns; equal: full resolution goes out as it is, whatever waits."""
        self._bucket_ns, self._stream_ns, self._recorder = bucket_ns, stream_ns, recorder
        self._coarsener = Coarsener(bucket_ns)
        self._pressure = Pressure(widths(bucket_ns, stream_ns))
        self._width_ns, self._horizon_ns = stream_ns, 0

    def stream(self, rows: Table, horizon_ns: int, backlog: Backlog, last: bool) -> Streamed:
        """rows: dtype BUCKET, all that ended before horizon_ns (mono) and were not here before.

        last: none will follow.
        """
        if self._recorder:
            self._recorder.add(rows, horizon_ns)
        if self._stream_ns == self._bucket_ns:
            return Streamed(rows, self._bucket_ns, horizon_ns)
        width = self._pressure.width(backlog, horizon_ns)
        if width != self._width_ns:
            log.warning("streaming buckets of %s %s", format_duration(width), self._why(width, backlog))
            self._width_ns = width
        self._horizon_ns = max(self._horizon_ns, horizon_ns // width * width)
        until = _FOR_EVER_NS // width * width if last else horizon_ns // width * width
        return Streamed(self._coarsener.take(rows, width, until), width, self._horizon_ns)

    def _why(self, width: int, backlog: Backlog) -> str:
        if width < self._width_ns:
            return "again: the collector has caught up"
        if width <= backlog.requested_ns:
            return "until the collector, which has requested it, can take more"
        return f"until the collector catches up ({backlog.late_s:.0f} s behind, spool {backlog.full:.0%} full)"
