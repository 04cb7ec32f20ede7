# SPDX-License-Identifier: Apache-2.0
"""What one source tells about one rank: its marks, and which of them bound a step."""

from array import array
from dataclasses import replace

import numpy as np

from netmon.dl.beats import Beat, Events
from netmon.records import Mark, Moment

_MOST_OPEN = 1_000  # iterations of which only some marks are known
_RECENT = 200  # marks of a moment that are kept for comparisons
_SETTLING = (Moment.STEP_START, Moment.FIRST_ENQUEUE)
FIRST_ENQUEUE, FIRST_WAIT, LAST_WAIT = Moment.FIRST_ENQUEUE, Moment.FIRST_WAIT, Moment.LAST_WAIT
_OF_STEPS = (Moment.STEP_START, Moment.STEP_END)
_KEPT = frozenset((*_SETTLING, Moment.FIRST_WAIT, Moment.LAST_WAIT, Moment.STEP_END))

Bounds = tuple[Mark, Mark]
"""The marks that begin and end an iteration."""


class _Recent:
    """Numbers and times of the latest marks of one moment, in the order of their arrival."""

    def __init__(self) -> None:
        """None."""
        self._numbers, self._times = array("q"), array("q")
        self._in_order = 0  # so many of the last ones ascend in time

    def __bool__(self) -> bool:
        """Whether there are some."""
        return bool(self._times)

    def add(self, number: int, time_ns: int) -> None:
        """Of one more mark."""
        self._in_order = self._in_order + 1 if not self._times or time_ns >= self._times[-1] else 1
        self._numbers.append(number)
        self._times.append(time_ns)
        if len(self._times) == 2 * _RECENT:  # not one at a time: each would move all others
            del self._numbers[:_RECENT], self._times[:_RECENT]

    def events(self, most: int) -> Events:
        """Copies of the last ones, ascending in time."""
        if self._in_order >= min(_RECENT, len(self._times)):
            return Events(np.array(self._numbers[-most:], np.int64), np.array(self._times[-most:], np.int64))
        numbers, times = (np.array(column[-_RECENT:], np.int64) for column in (self._numbers, self._times))
        order = np.argsort(times, kind="stable")[-most:]
        return Events(numbers[order], times[order])


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
        self._recent = {moment: _Recent() for moment in _KEPT}
        self.touched: set[int] = set()  # iterations that a mark may have ended since `finished` was asked

    def add(self, mark: Mark) -> bool:
        """Take in a mark; False where it repeats one, comes after its iteration, or bounds nothing."""
        moment, number = mark.moment, mark.iteration
        if moment not in _KEPT:
            return False
        # A pause shows later than the iteration's end.
        if number <= self.done and not (self._by_ends and moment == Moment.STEP_END and number == self.done):
            return False
        moments = self._marks.get(number)
        if moments is None:
            moments = self._marks[number] = {}
        elif moment in moments:
            return False
        moments[moment] = mark
        self.left = False
        self.newest_ns = max(self.newest_ns, mark.time_ns)
        self._recent[moment].add(number, mark.time_ns)
        if moment in _SETTLING:
            self.begun = True
            self._steps |= moment == Moment.STEP_START
        self._touch(number, moment)
        if len(self._marks) > _MOST_OPEN:
            del self._marks[min(self._marks)]
        return True

    def _touch(self, number: int, moment: Moment) -> None:
        """A mark may bound its own iteration, and the one that it ends or begins beside it."""
        if self._by_ends:
            if moment == LAST_WAIT:
                self.touched.update((number, number + 1))
            elif moment == FIRST_ENQUEUE:
                self.touched.add(number)
        elif moment in _OF_STEPS:
            self.touched.add(number)
        elif moment == FIRST_ENQUEUE and not self._steps:
            self.touched.update((number - 1, number))

    def finished(self) -> list[Bounds]:
        """Bounds of the iterations that have ended since the last call, in the order of their numbers."""
        if self.left and self._marks and not (self._by_ends or self._steps):
            self.touched.add(max(self._marks))
        if not self.touched:
            return []
        numbers = sorted(number for number in self.touched if number > self.done and number in self._marks)
        self.touched.clear()
        found = [bounds for bounds in map(self._bounds, numbers) if bounds]
        if found:
            self.done = found[-1][0].iteration
        return found

    def open(self, after_ns: int) -> Mark | None:
        """The latest beginning, not before after_ns, of which no end is known."""
        if self._by_ends:
            start = self._start_by_ends(self.done + 1)
            return start if start and start.time_ns >= after_ns else None
        beginning, done = self._beginning(), self.done
        latest = None
        for number, moments in self._marks.items():
            if number > done and beginning in moments:
                start = moments[beginning]
                if start.time_ns >= after_ns and (latest is None or start.time_ns > latest.time_ns):
                    latest = start
        return latest

    def communication(self, start_ns: int, end_ns: int) -> tuple[int | None, int | None, int | None]:
        """First enqueue, last wait and first wait in [start, end]; None: there is none."""
        enqueue = last_wait = first_wait = None
        for moments in self._marks.values():
            mark = moments.get(FIRST_ENQUEUE)
            if mark and start_ns <= mark.time_ns <= end_ns and (enqueue is None or mark.time_ns < enqueue):
                enqueue = mark.time_ns
            mark = moments.get(LAST_WAIT)
            if mark and start_ns <= mark.time_ns <= end_ns and (last_wait is None or mark.time_ns > last_wait):
                last_wait = mark.time_ns
            mark = moments.get(FIRST_WAIT)
            if mark and start_ns <= mark.time_ns <= end_ns and (first_wait is None or mark.time_ns < first_wait):
                first_wait = mark.time_ns
        return enqueue, last_wait, first_wait

    def events(self, beat: Beat, most: int = _RECENT) -> Events:
        """Recent numbers and times of what ends, or begins, its communication (its steps where it tells no more)."""
        for moment in beat.value:
            if self._recent[moment]:
                return self._recent[moment].events(most)
        return Events.none()

    def forget(self, before_ns: int) -> None:
        """Drop the marks of iterations that are over and concern only the time before before_ns."""
        # The open iteration's start may be old; what has no later mark of its own is not thereby over.
        over = self.done + (not self._by_ends)
        for number in [number for number in self._marks if number < over]:
            if all(mark.time_ns < before_ns for mark in self._marks[number].values()):
                del self._marks[number]

    def _beginning(self) -> Moment:
        return Moment.STEP_START if self._steps else Moment.FIRST_ENQUEUE

    def _start_by_ends(self, number: int) -> Mark | None:
        before = self._marks.get(number - 1, {})
        if Moment.LAST_WAIT in before and Moment.STEP_END not in before:
            return replace(before[Moment.LAST_WAIT], iteration=number)
        return self._marks.get(number, {}).get(Moment.FIRST_ENQUEUE)

    def _bounds(self, number: int) -> Bounds | None:
        """Of an iteration that has marks; None: it has not ended."""
        marks, beginning = self._marks, self._beginning()
        start = marks[number].get(beginning)
        if self._by_ends:
            start, end = self._start_by_ends(number), marks[number].get(Moment.LAST_WAIT)
        elif self._steps:
            end = marks[number].get(Moment.STEP_END)
        else:
            end = marks.get(number + 1, {}).get(beginning)
            if end is None and self.left and number == max(marks):
                end = marks[number].get(Moment.LAST_WAIT)
        return (start, end) if start is not None and end is not None else None
