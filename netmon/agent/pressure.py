# SPDX-License-Identifier: Apache-2.0
"""How coarse the stream has to be so that it does not fall behind."""

from dataclasses import dataclass

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


@dataclass(frozen=True)
class Backlog:
    """What waits for the collector, and what it has asked for."""

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
