# SPDX-License-Identifier: Apache-2.0
"""From marks to iterations: of one rank, and of all ranks of a host."""

from array import array
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

import numpy as np

from netmon.dl.numbering import Trust
from netmon.dl.step_alignment import Events, StepMoment, best_shifts, score
from netmon.dl.understanding import Understanding
from netmon.records import ITERATION, SCORE, Mark, Moment, RankState, Source, Training
from netmon.views import SourceScore

# --- one source of one rank

_MOST_OPEN = 1_000  # iterations of which only some marks are known
_SOME = 16
RECENT = 200
"""Marks of a moment that are kept for comparisons."""
_SOME_MORE = 40
# Plain numbers: an enum's own cost more to look up, and there is one for every mark.
_STEP_START, _STEP_END = int(Moment.STEP_START), int(Moment.STEP_END)
_FIRST_ENQUEUE, _FIRST_WAIT, _LAST_WAIT = int(Moment.FIRST_ENQUEUE), int(Moment.FIRST_WAIT), int(Moment.LAST_WAIT)
_KEPT = (_STEP_START, _FIRST_ENQUEUE, _FIRST_WAIT, _LAST_WAIT, _STEP_END)
_COUNT = max(Moment) + 1
_NONE = -(1 << 63)  # no mark
_ERROR = _COUNT  # where the errors begin
_NEWEST = 2 * _COUNT
_EMPTY = [_NONE] * _COUNT + [0] * _COUNT + [_NONE]
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
        self._recent: list[_Recent | None] = [_Recent() if moment in _KEPT else None for moment in range(_COUNT)]
        self._many = _SOME  # marks of so many iterations are looked through for those that are not needed
        self.touched: set[int] = set()  # iterations that a mark may have ended since `finished` was called

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


_MOST_WAITING = 1_000
_SILENT_AFTER = 3  # iterations that another source has seen since a source's last word

PARAMETERS_BASES = {Source.HOOK: "hook", Source.UPROBE: "calls"}
"""What the size of a model is known by."""
_ABOUT_PROCESSES = (Moment.JOIN, Moment.LEAVE)
_MOMENTS = {int(moment): moment for moment in Moment}


class Iteration(NamedTuple):
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
    wait_start_ns: int = 0  # first wait; 0: unknown
    gradient_bytes: int = 0  # of all gradients; 0: 4 for each parameter
    parameters_basis: str = ""  # the source of the parameters: "hook", "calls", "option"; empty: nobody
    job_name: str = ""  # what people call the job; empty: the same

    @property
    def communication_ns(self) -> int:
        """From the first gradient handed over to the last one reduced; −1: unknown."""
        return between(self.comm_start_ns, self.comm_end_ns)

    @property
    def exposed_ns(self) -> int:
        """The part of the communication for which the training thread only waited; −1: unknown."""
        return between(self.wait_start_ns, self.comm_end_ns)


def between(start_ns: int, end_ns: int) -> int:
    """−1: one of the two is not known."""
    return max(0, end_ns - start_ns) if start_ns and end_ns else -1


class IterationTracker:
    """Collects the marks of one rank and gives its iterations.

    The best source that has marked a beginning decides, until it leaves or falls silent: then the next best does, from
    the end of the last iteration on. Iterations of a rank ascend and never overlap; the others' numbers are shifted
    so that they continue the deciding source's. What the others report is scored against it. The traffic, which is
    understood late, adds nothing to a process that has left.
    """

    def __init__(self, job: str, rank: int) -> None:
        self.job, self.rank = job, rank
        self.size = self.parameters = self.gradient_bytes = 0
        self.job_name = ""
        self.parameters_source: Source | None = None
        self.unusable = 0  # marks that repeat, contradict or come after their iteration
        self.finished_ns = -1  # end of the last finished iteration
        self.ending = False  # something has come by which an iteration may have ended: `finished` is to be called
        self.source: Source | None = None  # the one that decides
        self.last_number = -1  # of the last finished iteration
        self._source: Source | None = None
        self._sources: dict[Source, SourceMarks] = {}
        self._silent: set[Source] = set()
        self._waiting: dict[Source, list[Bounds]] = {}  # iterations of each source that are not (yet) the rank's
        self._shifts: dict[Source, int] = {}
        self._relative: dict[Source, bool] = {}
        self.from_other_sources: list[
            Bounds
        ] = []  # iterations by sources that do not decide; whoever reads them clears it
        self._opened: Bound | None = None  # start of the iteration that has begun and not ended, if that is known
        self._knows_opened = False
        self._unsure = False  # something has changed by which another source may have to decide

    def add(self, mark: Mark) -> None:
        self._learn(mark)
        if mark.moment not in _ABOUT_PROCESSES:
            self._take(self._marks_of(mark.source), mark)

    @property
    def relative(self) -> bool:
        """Whether its numbers count only from when somebody began to look."""
        return self.trust == Trust.RELATIVE

    def _learn(self, mark: Mark) -> None:
        if mark.source != Source.INFERRED or not self.size:
            self.size = mark.size or self.size
        self.observe_job(mark)

    def observe_job(self, mark: Mark) -> None:
        """What a mark says of the job as a whole; of its model's size the script knows better than its calls."""
        self.job_name = mark.job_name or self.job_name
        if mark.parameters and (self.parameters_source != Source.HOOK or mark.source == Source.HOOK):
            self.parameters, self.gradient_bytes = mark.parameters, mark.gradient_bytes
            self.parameters_source = mark.source

    def _marks_of(self, source: Source) -> SourceMarks:
        marks = self._sources.get(source)
        if marks is None:
            marks = self._sources[source] = SourceMarks(steps=source == Source.HOOK)
        return marks

    def _take(self, marks: SourceMarks, mark: Mark) -> None:
        source, begun, left = mark.source, marks.begun, marks.left
        if not marks.add(mark.moment, mark.iteration, mark.time_ns, mark.error_ns):
            self.unusable += source != Source.INFERRED  # those nobody has sent
            return
        self._knows_opened = False
        if marks.touched:
            self.ending = True
        self._relative[source] = mark.relative
        if begun != marks.begun or left != marks.left or source in self._silent:
            self._silent.discard(source)
            self._unsure = True
        if self._unsure:
            self._choose()

    def join(self, source: Source) -> None:
        """The source looks at this rank from now on; one that had left counts anew."""
        self._knows_opened, self._unsure, self.ending = False, True, True
        if source in self._sources and self._sources[source].left:
            del self._sources[source]
            self._waiting.pop(source, None)

    def leave(self, source: Source) -> None:
        """No more marks of this source will come."""
        self._knows_opened, self._unsure, self.ending = False, True, True
        if source in self._sources:
            self._sources[source].left = True

    def finished(self, leaving: bool = False) -> list[Iteration]:
        """Iterations that have ended since the last call; `leaving`: no more marks of any source will come."""
        if not (leaving or self.ending):
            return []
        self.ending = False
        for source, marks in self._sources.items():
            if leaving and not marks.left:
                marks.left = self._unsure = True
            found = marks.finished()
            if found:
                self._knows_opened = False
                self._waiting.setdefault(source, []).extend(found)
                if source != self.source:
                    self._unsure = True
                    self.from_other_sources += found
        iterations = self._decided()
        return iterations + self._decided() if self._choose() else iterations

    def _decided(self) -> list[Iteration]:
        iterations: list[Iteration] = []
        source = self.source
        if source is not None and source in self._waiting:
            waiting = self._waiting.pop(source)
            iterations = [found for bounds in waiting if (found := self._iteration(source, *bounds))]
        for source, others in self._waiting.items():
            self._waiting[source] = [one for one in others if self._comes_after(source, *one)][-_MOST_WAITING:]
        return iterations

    def _comes_after(self, source: Source, start: Bound, end: Bound) -> bool:
        """Whether an iteration that another source reported is none of those that have finished, for its most part."""
        begin_ns = start.time_ns if source == Source.INFERRED else (start.time_ns + end.time_ns) // 2
        return begin_ns >= self.finished_ns

    def _iteration(self, source: Source, start: Bound, end: Bound) -> Iteration | None:
        if source != self._source and self._comes_after(source, start, end):
            start = start._replace(time_ns=max(start.time_ns, self.finished_ns))
        if not self.finished_ns <= start.time_ns < end.time_ns:
            self.unusable += 2 * (source == self._source)  # else a better source has reported this time
            return None
        number = start.number + self._shifts.get(source, 0)
        if number <= self.last_number:  # it cannot be an earlier one again
            self._shifts[source] = self.last_number + 1 - start.number
            number = self.last_number + 1
        self.finished_ns, self.last_number, self._source = end.time_ns, number, source
        return Iteration(
            *(self.job, self.rank, self.size, number, start.time_ns, end.time_ns),
            *(_MOMENTS[start.moment], _MOMENTS[end.moment], source, max(start.error_ns, end.error_ns)),
            *(self.relative, self.parameters),
            gradient_bytes=self.gradient_bytes,
            parameters_basis=PARAMETERS_BASES.get(self.parameters_source, "") if self.parameters_source else "",
            job_name=self.job_name,
        )

    def _choose(self) -> bool:
        """Which source decides from here on; whether it is another one than before.

        That can change only with who has begun, left, spoken again after a silence, or ended iterations alongside the
        one that decides: a source's newer marks alone make nobody silent.
        """
        if not self._unsure:
            return False
        self._unsure = False
        begun = [source for source, marks in sorted(self._sources.items()) if marks.begun]
        candidates = [self._sources[source] for source in begun if source != Source.INFERRED]
        if candidates and all(marks.left for marks in candidates):
            begun = begun[: len(candidates)]  # the traffic is the last
        for source in begun:
            since = self._sources[source].newest_ns
            after = [sum(start.time_ns > since for start, _ in self._waiting.get(other, ())) for other in begun]
            if max(after) >= _SILENT_AFTER:
                self._silent.add(source)
        present = [source for source in begun if not self._sources[source].left]
        speaking = [source for source in present or begun if source not in self._silent]
        chosen = min(speaking or begun, default=None)
        if chosen is None or chosen == self.source:
            return False
        self._align(chosen)
        self.source, self._knows_opened, self.ending = chosen, False, True
        return True

    def _align(self, source: Source) -> None:
        """Count on where the source that decided until now has stopped, unless this one knows better."""
        if self.source is None or source < self.source or self.source not in self._sources:
            return
        (found,) = best_shifts([self._events(self.source)], [self._events(source)])
        if found:
            self._shifts[source] = found.shift + self._shifts.get(self.source, 0)

    @property
    def trust(self) -> Trust:
        """Where the zero of the rank's numbers comes from."""
        sources = [s for s, marks in self._sources.items() if marks.begun and s <= (self.source or s)]
        best = min(sources, default=None)
        if best is None or self._relative[best] or best == Source.INFERRED:
            return Trust.RELATIVE
        return Trust.NUMBERED if best == Source.HOOK else Trust.COUNTED

    def _events(self, source: Source) -> dict[StepMoment, Events]:
        return {step_moment: self._sources[source].events(step_moment) for step_moment in StepMoment}

    def events(self) -> dict[StepMoment, Events]:
        """The latest events of the source that decides, with the rank's numbers."""
        if self.source is None or self.source not in self._sources:
            return {}
        shift = self._shifts.get(self.source, 0)
        return {moment: one._replace(number=one.number + shift) for moment, one in self._events(self.source).items()}

    @property
    def has_other_sources(self) -> bool:
        """Whether more than one source tells of it."""
        return len(self._sources) > 1

    def scores(self) -> list[SourceScore]:
        """Each other source against the one that decides, over its recent marks: all of them, once all have left."""
        if self.source not in self._sources:
            return []
        over = all(marks.left for source, marks in self._sources.items() if source != Source.INFERRED)
        candidates = [source for source, marks in sorted(self._sources.items()) if over or not marks.left]
        others = [source for source in candidates if source != self.source and source not in self._silent]
        true = self._events(self.source) if others else {}
        scores = (score(source, self.source, self._events(source), true) for source in others)
        return [one for one in scores if one and one.iterations]

    def communication(self, start_ns: int, end_ns: int) -> tuple[int, int, int]:
        """First enqueue, last wait and first wait in [start, end], by the best source that has them; 0: none has.

        What traffic alone tells is coarser than a boundary's error bound says, so it counts only where it decides.
        """
        if len(self._sources) == 1 and self.source in self._sources:
            measured = self._sources[self.source].communication(start_ns, end_ns)
            return measured[0] or 0, measured[1] or 0, measured[2] or 0
        sources = [s for s in sorted(self._sources) if s != Source.INFERRED or s == self.source]
        bounds = zip(*(self._sources[source].communication(start_ns, end_ns) for source in sources), strict=True)
        first, last, wait = (
            next((time for time in times if time is not None), 0) for times in (bounds if sources else ((),) * 3)
        )
        return first, last, wait

    def under_way(self) -> Bound | None:
        """What has begun the iteration that has not ended, with the rank's number."""
        start = self._open()
        if start is None:
            return None
        shift = self._shifts.get(self.source, 0) if self.source is not None else 0
        return start._replace(number=max(start.number + shift, self.last_number + 1))

    def forget(self, before_ns: int) -> None:
        """Drop what concerns only the time before before_ns."""
        for marks in self._sources.values():
            marks.forget(before_ns)

    def _open(self) -> Bound | None:
        if not self._knows_opened:
            marks = self._sources.get(self.source) if self.source is not None else None
            self._opened, self._knows_opened = marks.open(self.finished_ns) if marks else None, True
        return self._opened


# --- The ranks of one host and their iterations, from the marks of all that tells of them.


_REFINED_NS = 10_000_000_000  # what another source tells later of an iteration's communication is not waited for
_SCORED_NS = 2_000_000_000  # between two scores of a rank's sources
_MOST_GONE = 1_000  # processes remembered as gone
_FOREVER = 1 << 62

REPEATED, GONE, STRANGER = (
    "repeated, out of order or out of any iteration",
    "of a process that is gone",
    "of a process that never joined",
)
"""Why a mark is not used."""

_Key = tuple[str, int, int]
"""Job as the process calls it, rank, pid."""
_Row = tuple[int, ...]
"""Of ITERATION, without the rank's id."""


@dataclass
class _Rank:
    """A process as one rank, until all its sources have seen it leave."""

    tracker: IterationTracker
    rank_id: int
    pid: int
    joined: dict[Source, int] = field(default_factory=dict)  # when, as the next one
    left: dict[Source, int] = field(default_factory=dict)
    understanding: Understanding = Understanding.UNDERSTOOD
    set_ups: int = 0
    ended: list[Iteration] = field(default_factory=list)  # that nobody has taken
    recent: deque[tuple[Iteration, _Row]] = field(default_factory=deque)  # those that were taken, as they were
    refined_ns: int = _FOREVER  # since when something new may be known of those
    open: _Row = ()  # the iteration under way, as it was taken
    state: RankState | None = None  # as it was taken
    scores: list[_Row] = field(default_factory=list)  # as they were taken
    scored_ns: int = 0

    @property
    def steps(self) -> bool:
        return self.tracker.source is not None

    @property
    def over(self) -> bool:
        """Whether every source that saw it join has seen it leave."""
        return bool(self.left) and self.left.keys() >= self.joined.keys()

    def leave(self, time_ns: int) -> None:
        """No source will report it as this rank any more."""
        self.left = dict.fromkeys(self.joined, time_ns) | self.left
        for source in self.left:
            self.tracker.leave(source)
        self.end()

    def end(self) -> None:
        self.ended += self.tracker.finished(self.over)

    def now(self) -> RankState:
        tracker = self.tracker
        return RankState(
            *(self.rank_id, tracker.job, tracker.rank, tracker.size, self.pid, min(self.joined.values(), default=0)),
            *(max(self.left.values()) if self.over else 0, int(tracker.trust), Source.HOOK in self.joined),
            *(int(self.understanding), self.set_ups, tracker.parameters, tracker.gradient_bytes),
            *(int(tracker.parameters_source or 0), tracker.job_name),
        )

    def take(self) -> list[_Row]:
        """What is new of its iterations."""
        rows = list(self._refined())
        for one in self.ended:
            row = self._row(one)
            rows.append(row)
            if self.tracker.has_other_sources:
                self.recent.append((one, row))
        self.ended = []
        under_way = self._under_way()
        if under_way != self.open:
            if self.open and self.open[0] not in {row[0] for row in (*rows, under_way) if row}:
                rows.append((*self.open[:4], self.open[4], self.open[4], *self.open[6:]))  # it never was
            rows += [under_way] if under_way else []
            self.open = under_way
        for start, end in self.tracker.from_other_sources:
            moments = start.moment, end.moment
            rows.append((-1, int(self.tracker.source or Source.HOOK), *moments, start.time_ns, end.time_ns, 0, 0, 0, 0))
        self.tracker.from_other_sources.clear()
        return rows

    def _row(self, one: Iteration) -> _Row:
        first, last, wait = self.tracker.communication(one.start_ns, one.end_ns)
        moments = int(one.start_moment), int(one.end_moment)
        return one.number, int(one.source), *moments, one.start_ns, one.end_ns, one.error_ns, first, wait, last

    def _refined(self) -> Iterable[_Row]:
        """Iterations that were taken of which more is known now."""
        for place, (one, taken) in enumerate(self.recent if self.refined_ns < _FOREVER else ()):
            if one.end_ns >= self.refined_ns and (row := self._row(one)) != taken:
                self.recent[place] = one, row
                yield row
        self.refined_ns = _FOREVER
        oldest_ns = self.tracker.finished_ns - _REFINED_NS
        while self.recent and self.recent[0][0].end_ns < oldest_ns:
            self.recent.popleft()

    def _under_way(self) -> _Row:
        start = self.tracker.under_way()
        if start is None or self.tracker.source is None or self.over:
            return ()
        first, last, wait = self.tracker.communication(start.time_ns, _FOREVER)
        whose = start.number, int(self.tracker.source), start.moment, 0
        return *whose, start.time_ns, 0, start.error_ns, first, wait, last

    def score(self) -> list[_Row]:
        """How its other sources do against the best one, where that is another score than before."""
        due = self.over or self.tracker.finished_ns >= self.scored_ns + _SCORED_NS
        if not (due and self.tracker.has_other_sources):
            return []
        self.scored_ns, before = self.tracker.finished_ns, self.scores
        self.scores = [
            (int(one.source), int(one.reference), one.iterations, one.found, one.matched, one.error_ns)
            for one in self.tracker.scores()
        ]
        return self.scores if self.scores != before else []


class HostIterations:
    """One per host: marks go in, what is new of its ranks comes out."""

    def __init__(self) -> None:
        self._ranks: dict[_Key, _Rank] = {}
        self._over: list[_Rank] = []  # whose process is another rank now, or this one anew; not taken yet
        self._gone: dict[_Key, None] = {}
        self._ids = count(1)
        self._news: dict[int, _Rank] = {}  # by rank id
        self.unusable: Counter[str] = Counter()  # marks that led to nothing, by reason

    def add(self, marks: Iterable[Mark]) -> None:
        """Marks in the order in which they came."""
        for mark in marks:
            self._add(mark)

    def _add(self, mark: Mark) -> None:
        key = mark.job, mark.rank, mark.pid
        rank = self._ranks.get(key)
        if mark.moment is Moment.JOIN:
            rank = self._join(key, mark)
        elif rank is None:
            if mark.moment is not Moment.LEAVE:
                self.unusable[GONE if key in self._gone else STRANGER] += 1
            return
        elif mark.moment is Moment.LEAVE:
            rank.left[mark.source] = mark.time_ns
            rank.tracker.leave(mark.source)
        else:
            self._step(rank, mark)
        self._news[rank.rank_id] = rank
        rank.end()

    def _step(self, rank: _Rank, mark: Mark) -> None:
        rank.tracker.add(mark)
        if mark.source != rank.tracker.source:
            rank.refined_ns = min(rank.refined_ns, mark.time_ns)

    def _join(self, key: _Key, mark: Mark) -> _Rank:
        self._gone.pop(key, None)
        rank = self._ranks.get(key)
        if rank and mark.source in rank.left and rank.steps and not rank.over:
            rank.set_ups += 1
        resized = rank and rank.steps and mark.size and rank.tracker.size not in (0, mark.size)
        if rank is None or rank.over or resized:
            self._end_others(mark)
            rank = self._ranks[key] = _Rank(IterationTracker(mark.job, mark.rank), next(self._ids), mark.pid)
        rank.tracker.size = mark.size
        rank.tracker.observe_job(mark)
        rank.tracker.join(mark.source)
        rank.joined[mark.source] = mark.time_ns
        if mark.source is Source.UPROBE:
            rank.understanding = Understanding(min(max(mark.iteration, 0), Understanding.NOT_UNDERSTOOD))
        rank.left.pop(mark.source, None)
        return rank

    def _end_others(self, mark: Mark) -> None:
        """What the process has been in the job until now, it is no more."""
        for key, rank in list(self._ranks.items()):
            if (rank.pid, rank.tracker.job) == (mark.pid, mark.job) and (rank.steps or rank.over):
                if not rank.over:
                    rank.leave(mark.time_ns)
                self._news[rank.rank_id] = rank
                self._over.append(self._ranks.pop(key))

    def take(self) -> Training:
        """All that is new since the last time; of a rank first what it was."""
        states, rows, scores = list[RankState](), list[_Row](), list[_Row]()
        for rank_id, rank in sorted(self._news.items()):
            found = rank.take()
            rows += [(rank_id, *row) for row in found]
            scores += [(rank_id, *score) for score in rank.score()]
            state = rank.now()
            if found or state != rank.state:
                states.append(state)
            rank.state = state
            if rank.tracker.unusable:
                self.unusable[REPEATED] += rank.tracker.unusable
                rank.tracker.unusable = 0
            rank.tracker.forget(rank.tracker.finished_ns - _REFINED_NS if rank.tracker.has_other_sources else _FOREVER)
        self._news = {}
        self._forget()
        return Training(tuple(states), np.array(rows, ITERATION), np.array(scores, SCORE))

    def _forget(self) -> None:
        self._over = []
        for key in [key for key, rank in self._ranks.items() if rank.over]:
            del self._ranks[key]
            self._gone[key] = None
        while len(self._gone) > _MOST_GONE:
            del self._gone[next(iter(self._gone))]

    def present(self) -> Training:
        """The ranks that were taken and are there, with their iterations under way: for whoever hears of them first."""
        there = [rank for rank in self._ranks.values() if rank.state]
        rows = [(rank.rank_id, *rank.open) for rank in there if rank.open]
        return Training(tuple(rank.state for rank in there if rank.state), np.array(rows, ITERATION))
