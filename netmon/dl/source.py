# SPDX-License-Identifier: Apache-2.0
"""What one source tells about one rank: its marks, and which of them bound a step."""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from netmon.dl.numbering import Beat, Events
from netmon.records import Mark, Moment

_MOST_OPEN = 1_000  # iterations of which only some marks are known
_RECENT = 200  # marks of a moment that are kept for comparisons
_SETTLING = (Moment.STEP_START, Moment.FIRST_ENQUEUE)
_KEPT = (*_SETTLING, Moment.FIRST_WAIT, Moment.LAST_WAIT, Moment.STEP_END)

Bounds = tuple[Mark, Mark]
"""The marks that begin and end an iteration."""


class SourceMarks:
    """The marks of one source. It bounds iteration k by STEP_START k and STEP_END k if it marks steps.

    One that marks only the communication bounds it by FIRST_ENQUEUE k and FIRST_ENQUEUE k+1; the last one, when it
    leaves, by its LAST_WAIT. One that knows best when a communication ended bounds it by LAST_WAIT k−1 and LAST_WAIT k;
    the first one, and one that comes after a STEP_END, begins with its FIRST_ENQUEUE. The first mark of a kind
    counts; an iteration of which a bound is missing is left out.
    """

    def __init__(self, by_ends: bool = False) -> None:
        """Begin without marks; by_ends: of a source that knows best when a communication ended."""
        self._by_ends = by_ends
        self.begun = False  # it has marked a beginning
        self.left = False
        self.newest_ns = -1
        self.done = -1  # last number that can no longer become an iteration
        self._steps = False  # it marks steps, not only the communication
        self._marks: dict[int, dict[Moment, Mark]] = {}
        self._recent: dict[Moment, deque[tuple[int, int]]] = {m: deque(maxlen=_RECENT) for m in _KEPT}

    def add(self, mark: Mark) -> bool:
        """Take in a mark; False where it repeats one, comes after its iteration, or bounds nothing."""
        if mark.moment not in _KEPT:
            return False
        moments = self._marks.setdefault(mark.iteration, {})
        over = mark.iteration <= self.done
        if self._by_ends and mark.moment == Moment.STEP_END:  # a pause shows later than the iteration's end
            over = mark.iteration < self.done
        if over or mark.moment in moments:
            if not moments:
                del self._marks[mark.iteration]
            return False
        moments[mark.moment] = mark
        self.left = False
        self.newest_ns = max(self.newest_ns, mark.time_ns)
        self._recent[mark.moment].append((mark.iteration, mark.time_ns))
        self.begun |= mark.moment in _SETTLING
        self._steps |= mark.moment == Moment.STEP_START
        if len(self._marks) > _MOST_OPEN:
            del self._marks[min(self._marks)]
        return True

    def finished(self) -> list[Bounds]:
        """Bounds of the iterations that have ended since the last call, in the order of their numbers."""
        found = [bounds for bounds in self._bounds() if bounds[0].iteration > self.done]
        if found:
            self.done = found[-1][0].iteration
        return found

    def open(self, after_ns: int) -> Mark | None:
        """The latest beginning, not before after_ns, of which no end is known."""
        if self._by_ends:
            start = self._start_by_ends(self.done + 1)
            return start if start and start.time_ns >= after_ns else None
        beginning = self._beginning()
        starts = [m[beginning] for k, m in self._marks.items() if k > self.done and beginning in m]
        starts = [start for start in starts if start.time_ns >= after_ns]
        return max(starts, key=lambda start: start.time_ns, default=None)

    def times(self, moment: Moment, start_ns: int, end_ns: int) -> list[int]:
        """Times of the marks of a moment in [start, end]."""
        times = (moments[moment].time_ns for moments in self._marks.values() if moment in moments)
        return [time for time in times if start_ns <= time <= end_ns]

    def events(self, beat: Beat, offset_ns: int = 0) -> Events:
        """Recent numbers and times of what ends, or begins, its communication (its steps where it tells no more)."""
        for moment in beat.value:
            if self._recent[moment]:
                numbers, times = np.array(sorted(self._recent[moment], key=lambda event: event[1]), np.int64).T
                return Events(numbers, times + offset_ns)
        return Events.none()

    def forget(self, before_ns: int) -> None:
        """Drop the marks of iterations that are over and concern only the time before before_ns."""
        for number in [k for k, m in self._marks.items() if max(mark.time_ns for mark in m.values()) < before_ns]:
            # The open iteration's start may be old; what has no later mark of its own is not thereby over.
            if number < self.done + (not self._by_ends):
                del self._marks[number]

    def _beginning(self) -> Moment:
        return Moment.STEP_START if self._steps else Moment.FIRST_ENQUEUE

    def _start_by_ends(self, number: int) -> Mark | None:
        before = self._marks.get(number - 1, {})
        if Moment.LAST_WAIT in before and Moment.STEP_END not in before:
            return replace(before[Moment.LAST_WAIT], iteration=number)
        return self._marks.get(number, {}).get(Moment.FIRST_ENQUEUE)

    def _bounds(self) -> Iterator[Bounds]:
        beginning, marks = self._beginning(), self._marks
        for number in sorted(marks):
            start = marks[number].get(beginning)
            if self._by_ends:
                start, end = self._start_by_ends(number), marks[number].get(Moment.LAST_WAIT)
            elif self._steps:
                end = marks[number].get(Moment.STEP_END)
            else:
                end = marks.get(number + 1, {}).get(beginning)
                if end is None and self.left and number == max(marks):
                    end = marks[number].get(Moment.LAST_WAIT)
            if start is not None and end is not None:
                yield start, end
