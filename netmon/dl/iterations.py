# SPDX-License-Identifier: Apache-2.0
"""From marks to iterations, for one rank."""

from typing import NamedTuple

from netmon.dl.numbering import Trust
from netmon.dl.source import Bound, Bounds, SourceMarks
from netmon.dl.step_alignment import Events, StepMoment, best_shifts, score
from netmon.records import Mark, Moment, Source
from netmon.views import SourceScore

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
    so that they continue the deciding source's. What the others tell is scored against it. The traffic, which is
    understood late, tells nothing more of a process that has left.
    """

    def __init__(self, job: str, rank: int) -> None:
        self.job, self.rank = job, rank
        self.size = self.parameters = self.gradient_bytes = 0
        self.job_name = ""
        self.parameters_source: Source | None = None
        self.unusable = 0  # marks that repeat, contradict or come after their iteration
        self.finished_ns = -1  # end of the last finished iteration
        self.ending = False  # something has come by which an iteration may have ended: `finished` is to be asked
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
    def several(self) -> bool:
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
