# SPDX-License-Identifier: Apache-2.0
"""How coarse the stream has to be so that it does not fall behind."""

import logging
from dataclasses import dataclass

from netmon.agent.recorder import Recorder
from netmon.dl.coarse import Coarsener
from netmon.records import Table
from netmon.units import format_duration

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
