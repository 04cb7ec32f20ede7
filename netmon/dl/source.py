# SPDX-License-Identifier: Apache-2.0
"""What one source tells about one rank: its marks, and which of them bound a step."""

from array import array
from typing import NamedTuple

import numpy as np

from netmon.dl.step_alignment import Events, StepMoment
from netmon.records import Moment

_MOST_OPEN = 1_000  # iterations of which only some marks are known
_SOME = 16
RECENT = 200
"""Marks of a moment that are kept for comparisons."""
_SOME_MORE = 40
# Plain numbers: an enum's own cost more to look up, and there is one for every mark.
_STEP_START, _STEP_END = int(Moment.STEP_START), int(Moment.STEP_END)
_FIRST_ENQUEUE, _FIRST_WAIT, _LAST_WAIT = int(Moment.FIRST_ENQUEUE), int(Moment.FIRST_WAIT), int(Moment.LAST_WAIT)
_KEPT = (_STEP_START, _FIRST_ENQUEUE, _FIRST_WAIT, _LAST_WAIT, _STEP_END)
_MOMENTS = max(Moment) + 1
_NONE = -(1 << 63)  # no mark
_ERROR = _MOMENTS  # where the errors begin
_NEWEST = 2 * _MOMENTS
_EMPTY = [_NONE] * _MOMENTS + [0] * _MOMENTS + [_NONE]
"""What is known of an iteration: times by moment, errors by moment, and the latest time."""


class Bound(NamedTuple):
    """A mark that begins or ends an iteration."""

    number: int  # of the iteration
    moment: int  # a Moment
    time_ns: int
    error_ns: int


Bounds = tuple[Bound, Bound]
"""The marks that begin and end an iteration."""


class _Recent:
    """Numbers and times of the latest marks of one moment, in the order of their arrival."""

    def __init__(self) -> None:
        self._numbers, self._times = array("q"), array("q")
        self._in_order = 0  # so many of the last ones ascend in time

    def __bool__(self) -> bool:
        return bool(self._times)

    def add(self, number: int, time_ns: int) -> None:
        self._in_order = self._in_order + 1 if not self._times or time_ns >= self._times[-1] else 1
        self._numbers.append(number)
        self._times.append(time_ns)
        if len(self._times) == RECENT + _SOME_MORE:  # not one at a time: each would move all others
            del self._numbers[:_SOME_MORE], self._times[:_SOME_MORE]

    def events(self, most: int) -> Events:
        """Copies of the last ones, ascending in time."""
        if self._in_order >= min(RECENT, len(self._times)):
            return Events(np.array(self._numbers[-most:], np.int64), np.array(self._times[-most:], np.int64))
        numbers, times = (np.array(column[-RECENT:], np.int64) for column in (self._numbers, self._times))
        order = np.argsort(times, kind="stable")[-most:]
        return Events(numbers[order], times[order])


class SourceMarks:
    """The marks of one source. It bounds iteration k by STEP_START k and STEP_END k if it marks steps.

    One that marks only the communication bounds it by LAST_WAIT k−1 and LAST_WAIT k: no rank has all gradients of k
    before every rank has handed its own over, so a bound is the same moment on all of them, and who comes late is late
    in the same iteration as those that wait for him. Where a LAST_WAIT is not known, and after a STEP_END, there is
    FIRST_ENQUEUE instead. The first mark of a kind counts; an iteration of which a bound is missing is left out.
    """

    def __init__(self, steps: bool = False) -> None:
        """Begin without marks; steps: it marks steps, not only the communication. Else the first STEP_START tells."""
        self.begun = False  # it has marked a beginning
        self.left = False
        self.newest_ns = -1
        self.done = -1  # last number that can no longer become an iteration
        self._steps = steps
        self._marks: dict[int, list[int]] = {}  # by number, as _EMPTY
        self._recent: list[_Recent | None] = [_Recent() if moment in _KEPT else None for moment in range(_MOMENTS)]
        self._many = _SOME  # marks of so many iterations are looked through for those that are not needed
        self.touched: set[int] = set()  # iterations that a mark may have ended since `finished` was asked

    def add(self, moment: int, number: int, time_ns: int, error_ns: int) -> bool:
        """Take in a mark; False where it repeats one, comes after its iteration, or bounds nothing."""
        recent = self._recent[moment]
        if recent is None:
            return False
        # A pause shows later than the iteration's end.
        if number <= self.done and not (not self._steps and moment == _STEP_END and number == self.done):
            return False
        times = self._marks.get(number)
        if times is None:
            times = self._marks[number] = _EMPTY.copy()
        elif times[moment] != _NONE:
            return False
        times[moment], times[_ERROR + moment] = time_ns, error_ns
        if time_ns > times[_NEWEST]:
            times[_NEWEST] = time_ns
        self.left = False
        if time_ns > self.newest_ns:
            self.newest_ns = time_ns
        recent.add(number, time_ns)
        if moment == _STEP_START:
            self.begun = self._steps = True
        elif moment == _FIRST_ENQUEUE:
            self.begun = True
        self._touch(number, moment, times)
        if len(self._marks) > _MOST_OPEN:
            del self._marks[min(self._marks)]
        return True

    def _touch(self, number: int, moment: int, times: list[int]) -> None:
        """A mark may bound its own iteration, and the one that it ends or begins alongside it."""
        if moment in (_STEP_START, _STEP_END):
            if times[_STEP_START] != _NONE != times[_STEP_END]:
                self.touched.add(number)
        elif self._steps:
            return
        elif moment == _LAST_WAIT:
            self.touched.update((number, number + 1))
        elif moment == _FIRST_ENQUEUE:
            self.touched.update((number - 1, number))

    def finished(self) -> list[Bounds]:
        """Bounds of the iterations that have ended since the last call, in the order of their numbers."""
        if not self.touched:
            return []
        numbers = sorted(number for number in self.touched if number > self.done and number in self._marks)
        self.touched.clear()
        found = [bounds for bounds in map(self._bounds, numbers) if bounds]
        if found:
            self.done = found[-1][0].number
        return found

    def open(self, after_ns: int) -> Bound | None:
        """The latest beginning, not before after_ns, of which no end is known."""
        if not self._steps:
            newest = max(self._marks, default=self.done)
            start = self._start_by_ends(newest + 1) or self._start_by_ends(newest)
            return start if start and start.number > self.done and start.time_ns >= after_ns else None
        latest, latest_ns = None, after_ns - 1
        for number, times in self._marks.items():
            if number > self.done and times[_STEP_START] > latest_ns:
                latest, latest_ns = number, times[_STEP_START]
        return None if latest is None else self._bound(latest, _STEP_START)

    def communication(self, start_ns: int, end_ns: int) -> tuple[int | None, int | None, int | None]:
        """First enqueue, last wait and first wait in [start, end]; None: there is none."""
        enqueue = last_wait = first_wait = None
        for times in self._marks.values():
            if times[_NEWEST] < start_ns:
                continue
            time_ns = times[_FIRST_ENQUEUE]
            if start_ns <= time_ns <= end_ns and (enqueue is None or time_ns < enqueue):
                enqueue = time_ns
            time_ns = times[_LAST_WAIT]
            if start_ns <= time_ns <= end_ns and (last_wait is None or time_ns > last_wait):
                last_wait = time_ns
            time_ns = times[_FIRST_WAIT]
            if start_ns <= time_ns <= end_ns and (first_wait is None or time_ns < first_wait):
                first_wait = time_ns
        return enqueue, last_wait, first_wait

    def events(self, step_moment: StepMoment, most: int = RECENT) -> Events:
        """Recent numbers and times of what ends, or begins, its communication (its steps where it tells no more)."""
        for moment in step_moment.value:
            recent: _Recent | None = self._recent[moment]
            if recent:
                return recent.events(most)
        return Events.none()

    def forget(self, before_ns: int) -> None:
        """Drop the marks of iterations that are over and concern only the time before before_ns."""
        # The open iteration's start may be old; what has no later mark of its own is not thereby over.
        if not self._marks:
            return
        over = self.done + self._steps
        first, times = next(iter(self._marks.items()))
        if len(self._marks) < self._many and not (first < over and times[_NEWEST] < before_ns):
            return  # mostly they come in order: then all others are needed, too
        gone = [number for number, times in self._marks.items() if number < over and times[_NEWEST] < before_ns]
        for number in gone:
            del self._marks[number]
        self._many = 2 * len(self._marks) + _SOME

    def _bound(self, number: int, moment: int) -> Bound | None:
        """A mark of an iteration; None: there is none."""
        times = self._marks.get(number)
        if times is None or times[moment] == _NONE:
            return None
        return Bound(number, moment, times[moment], times[_ERROR + moment])

    def _start_by_ends(self, number: int) -> Bound | None:
        before = self._bound(number - 1, _LAST_WAIT)
        if before and self._marks[number - 1][_STEP_END] == _NONE:
            return before._replace(number=number)
        return self._bound(number, _FIRST_ENQUEUE)

    def _bounds(self, number: int) -> Bounds | None:
        """Of an iteration that has marks; None: it has not ended."""
        if self._steps:
            start, end = self._bound(number, _STEP_START), self._bound(number, _STEP_END)
        else:
            start = self._start_by_ends(number)
            end = self._bound(number, _LAST_WAIT) or self._bound(number + 1, _FIRST_ENQUEUE)
        return (start, end) if start is not None and end is not None else None
