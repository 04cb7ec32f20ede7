# SPDX-License-Identifier: Apache-2.0
"""From marks to iterations, for one rank."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from netmon.records import Mark, Moment, Source

_MOST_OPEN = 1_000  # iterations per source of which only some marks are known
_BEGINNINGS = (Moment.STEP_START, Moment.FIRST_ENQUEUE)
_BOUNDARIES = (*_BEGINNINGS, Moment.LAST_WAIT, Moment.STEP_END)


@dataclass(frozen=True)
class Iteration:
    """One finished training step of one rank: [start, end) in the host's mono clock."""

    job: str
    rank: int
    size: int  # ranks in the job; 0: unknown
    number: int
    start_ns: int
    end_ns: int
    start_moment: Moment
    end_moment: Moment
    source: Source
    error_ns: int  # of either boundary
    relative: bool
    parameters: int  # 0: unknown
    comm_start_ns: int = 0  # first enqueue; 0: unknown
    comm_end_ns: int = 0  # last wait; 0: unknown


class IterationTracker:
    """Collects the marks of one rank and gives its iterations.

    A source that marks steps delimits iteration k by STEP_START k and STEP_END k; one that marks only the
    communication by FIRST_ENQUEUE k and FIRST_ENQUEUE k+1, the last one by its LAST_WAIT. The best source that has
    marked a beginning decides. The first mark of a kind counts; iterations of a rank ascend and never overlap, and one
    of which a boundary is missing is left out.
    """

    def __init__(self, job: str, rank: int) -> None:
        """Begin without marks."""
        self.job, self.rank = job, rank
        self.size = self.parameters = 0
        self.unusable = 0  # marks that repeat, contradict or come after their iteration
        self.finished_ns = -1  # end of the last finished iteration
        self._marks: dict[Source, dict[int, dict[Moment, Mark]]] = {}
        self._source: Source | None = None  # the best that has marked a beginning
        self._step_sources: set[Source] = set()  # those that mark steps, not only the communication
        self._done: dict[Source, int] = {}  # last number that can no longer become an iteration
        self._spans: list[tuple[int, int, int]] = []  # (start, end, number), ascending, not yet forgotten

    def resume(self, end_ns: int) -> None:
        """Leave out iterations that begin before end_ns: they are in the dataset already."""
        self.finished_ns = max(self.finished_ns, end_ns)

    def add(self, mark: Mark) -> None:
        """Take in a mark of this rank."""
        self.size, self.parameters = mark.size or self.size, mark.parameters or self.parameters
        if mark.moment not in _BOUNDARIES:
            return
        moments = self._marks.setdefault(mark.source, {})
        if mark.iteration <= self._done.get(mark.source, -1) or mark.moment in moments.get(mark.iteration, ()):
            self.unusable += 1
            return
        moments.setdefault(mark.iteration, {})[mark.moment] = mark
        if mark.moment in _BEGINNINGS and (self._source is None or mark.source < self._source):
            self._source = mark.source
        if mark.moment == Moment.STEP_START:
            self._step_sources.add(mark.source)
        if len(moments) > _MOST_OPEN:
            del moments[min(moments)]

    def finished(self, leaving: bool = False) -> list[Iteration]:
        """Iterations that have ended since the last call; `leaving`: no more marks will come."""
        source = self._source
        if source is None:
            return []
        marks, iterations = self._marks.get(source, {}), []
        for start, end in list(self._boundaries(marks, leaving)):
            if start.iteration <= self._done.get(source, -1):
                continue
            self._done[source] = start.iteration
            if not self.finished_ns <= start.time_ns < end.time_ns:
                self.unusable += 2
                continue
            self.finished_ns = end.time_ns
            self._spans.append((start.time_ns, end.time_ns, start.iteration))
            iterations.append(self._iteration(start, end))
        return iterations

    def communication(self, start_ns: int, end_ns: int) -> tuple[int, int]:
        """First enqueue and last wait in [start, end), by the best source that has them; 0 where none has."""
        found = {Moment.FIRST_ENQUEUE: 0, Moment.LAST_WAIT: 0}
        for source in sorted(self._marks):
            for moment, choose in ((Moment.FIRST_ENQUEUE, min), (Moment.LAST_WAIT, max)):
                times = [m[moment].time_ns for m in self._marks[source].values() if moment in m]
                times = [time for time in times if start_ns <= time <= end_ns]
                found[moment] = found[moment] or (choose(times) if times else 0)
        return found[Moment.FIRST_ENQUEUE], found[Moment.LAST_WAIT]

    def open_since(self) -> int | None:
        """Start of the iteration that has begun and not ended (mono ns)."""
        start = self._open()
        return start.time_ns if start else None

    def numbers_at(self, time_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Iteration number at each of the times, the open one included; −1 between iterations."""
        spans = list(self._spans)
        start = self._open()
        if start:
            spans.append((start.time_ns, np.iinfo(np.int64).max, start.iteration))
        if not spans:
            return np.full(len(time_ns), -1, np.int64)
        starts, ends, numbers = np.array(spans, np.int64).T
        place = np.searchsorted(starts, time_ns, side="right") - 1
        inside = (place >= 0) & (time_ns < ends[place])
        return np.where(inside, numbers[place], -1)

    def forget(self, before_ns: int) -> None:
        """Drop what concerns only the time before before_ns."""
        self._spans = [span for span in self._spans if span[1] > before_ns]
        for source, marks in self._marks.items():
            for number in [k for k, m in marks.items() if max(mark.time_ns for mark in m.values()) < before_ns]:
                # The open iteration's start may be old; what has no later mark of its own is not thereby over.
                if number <= self._last(source) or source != self._source:
                    del marks[number]

    def _last(self, source: Source) -> int:
        return self._done.get(source, -1)

    def _beginning(self) -> Moment:
        return Moment.STEP_START if self._source in self._step_sources else Moment.FIRST_ENQUEUE

    def _open(self) -> Mark | None:
        if self._source is None:
            return None
        beginning, last = self._beginning(), self._last(self._source)
        starts = [m[beginning] for k, m in self._marks.get(self._source, {}).items() if k > last and beginning in m]
        starts = [start for start in starts if start.time_ns >= self.finished_ns]
        return max(starts, key=lambda start: start.time_ns, default=None)

    def _boundaries(self, marks: dict[int, dict[Moment, Mark]], leaving: bool) -> Iterator[tuple[Mark, Mark]]:
        beginning = self._beginning()
        for number in sorted(marks):
            start = marks[number].get(beginning)
            if beginning == Moment.STEP_START:
                end = marks[number].get(Moment.STEP_END)
            else:
                end = marks.get(number + 1, {}).get(beginning)
                if end is None and leaving and number == max(marks):
                    end = marks[number].get(Moment.LAST_WAIT)
            if start is not None and end is not None:
                yield start, end

    def _iteration(self, start: Mark, end: Mark) -> Iteration:
        error = max(start.error_ns, end.error_ns)
        return Iteration(
            *(self.job, self.rank, self.size, start.iteration, start.time_ns, end.time_ns, start.moment, end.moment),
            *(start.source, error, start.relative, self.parameters),
        )
