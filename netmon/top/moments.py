# SPDX-License-Identifier: Apache-2.0
"""The moment of the past that is looked at: asked for on a thread of its own, shown when the answer has come."""

import itertools
import time
from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple

from textual.message_pump import MessagePump

from netmon.errors import NetmonError
from netmon.past import Frame, Past, PastSteps
from netmon.top.news import Answer, QueryThread
from netmon.top.step_kind import Step, step_of, steps_of
from netmon.top.timeline import Span
from netmon.views import RankTimes, Verdict

# --- Going back in time: from iteration to iteration, and to the slow ones.


class Rewinding:
    """Which iteration is looked at. Without one it is now."""

    def __init__(self) -> None:
        """It is now, and nothing is known of the past."""
        self.past = PastSteps({})
        self.step: Step | None = None
        self._steps: dict[str, list[Step]] = {}

    def take(self, past: PastSteps) -> None:
        """What can be gone back to."""
        self.past = past
        self._steps.clear()

    def live(self) -> None:
        """It is now again."""
        self.step = None

    def by(self, job: str, count: int) -> Step | None:
        """So many iterations of a job later, or earlier; None where that is now, or there is none."""
        steps = self._of(job)
        if not steps:
            return None
        index = self._index(steps) + count
        self.step = steps[max(index, 0)] if index < len(steps) else None
        return self.step

    def to_slow(self, job: str, forward: bool) -> Step | None:
        """The next slow iteration of a job, backward from now or from where one is; None, and nothing moves: none."""
        steps = self._of(job)
        index = self._index(steps)
        ahead = steps[index + 1 :] if forward else steps[:index][::-1]
        found = next((step for step in ahead if step.slow or step.verdict), None)
        self.step = found or self.step
        return found

    def to(self, job: str, number: int, near_ns: int) -> Step | None:
        """That iteration."""
        self.step = step_of(self._of(job), number, near_ns) or self.step
        return self.step

    def to_verdict(self, verdict: Verdict) -> Step:
        """The iteration that it is about, even where it is not among those that are known."""
        found = step_of(
            [s for s in self._of(verdict.job) if s.number == verdict.iteration], verdict.iteration, verdict.start_ns
        )
        about = Step(
            *(verdict.job, verdict.iteration, verdict.start_ns, verdict.end_ns, verdict.duration_ns, verdict.usual_ns),
            *(verdict.relative, verdict),
        )
        self.step = found or about
        return self.step

    def _of(self, job: str) -> list[Step]:
        if job not in self._steps:
            self._steps[job] = steps_of(self.past, job)
        return self._steps[job]

    def _index(self, steps: list[Step]) -> int:
        """Of the present iteration; now is after the last."""
        if self.step is None:
            return len(steps)
        return bisect_left([step.end_ns for step in steps], self.step.end_ns)


# --- moments


_STALE_S = 2.0
Move = Callable[[Rewinding], Step | None]


class _Steps(NamedTuple):
    past: PastSteps
    move: Move | None


class _Frame(NamedTuple):
    step: Step
    frame: Frame


class _Times(NamedTuple):
    step: Step
    times: tuple[RankTimes, ...]


class MomentView:
    """Lives on the program's thread; what blocks happens on another one."""

    def __init__(self, past: Past | None, to: MessagePump) -> None:
        """past: where it can be had from; None: nowhere. to: is posted the answers."""
        self.rewinding = Rewinding()
        self.frame: Frame | None = None
        self.times: tuple[RankTimes, ...] = ()
        self.span: Span | None = None  # the part of the time axis that is looked at
        self.busy = self.problem = ""
        self._source = past
        self._asker = QueryThread(to) if past else None
        self._numbers = itertools.count(1)
        self._queries = 0
        self._fresh_s = float("-inf")

    @property
    def step(self) -> Step | None:
        """The iteration that is shown; None: it is now."""
        return self.rewinding.step if self.frame else None

    def stop(self) -> None:
        """Ask nothing more."""
        if self._asker:
            self._asker.stop()

    def live(self) -> None:
        """It is now."""
        self.rewinding.live()
        self.frame, self.times, self.span, self.busy, self.problem = None, (), None, "", ""
        self._queries = 0

    def refresh(self, move: Move | None = None) -> None:
        """Ask which iterations there are, and then go where `move` leads."""
        source = self._source
        if source is None:
            self.problem = "nothing is known of the past here"
            return
        self._query("looking back", lambda: _Steps(source.steps(), move))

    def move_to(self, move: Move) -> None:
        """To another iteration; from now on it is looked first which ones there are."""
        if self.frame is None and time.monotonic() - self._fresh_s > _STALE_S:
            self.refresh(move)
        else:
            self._go(move)

    def _go(self, move: Move) -> None:
        before = self.rewinding.step
        step = move(self.rewinding)
        if step is None:
            if self.rewinding.step is None and before is not None:
                self.live()
            else:
                self.problem = "there is no such iteration within the last hour"
            return
        if step.start_ns == 0:
            self.problem = "nobody can be asked about that moment"
            return
        self.times = ()
        self._show(step, Span(step.start_ns, step.end_ns))

    def zoom(self, factor: float, width: int) -> None:
        """Look at less (factor < 1) or more of the time around the middle; width: characters of the axis."""
        if self.span and self.frame and self.step:
            self._look(self.span.zoomed(factor, width), width)

    def pan(self, part: float, width: int) -> None:
        """Look at what is later, or earlier, by a part of the axis."""
        if self.span and self.frame and self.step:
            self._look(self.span.moved(part), width)

    def _look(self, span: Span, width: int) -> None:
        step, frame = self.step, self.frame
        assert step is not None
        assert frame is not None
        margin = (step.end_ns - step.start_ns) // 2
        self.span = span.within(Span(step.start_ns - margin, step.end_ns + margin))
        finest = min((link.interval_ns for link in frame.snapshot.links), default=0)
        outside = self.span.since_ns < frame.since_ns or self.span.until_ns > frame.until_ns
        if outside or (finest > 10_000 and self.span.length_ns < finest * width and _narrower(self.span, frame)):
            self._show(step, self.span)

    def _show(self, step: Step, span: Span) -> None:
        source = self._source
        if source is None:
            self.problem = "nothing is known of the past here"
            return
        self.span = span
        self._query(
            f"reading iteration {step.number}",
            lambda: _Frame(step, source.frame(step.job, step.number, span.since_ns, span.until_ns)),
        )

    def _query(self, busy: str, question: Callable[[], object]) -> None:
        assert self._asker is not None
        self.busy, self.problem = busy, ""
        self._queries = next(self._numbers)
        self._asker.submit(self._queries, question)

    def answer(self, answer: Answer) -> None:
        """Take in what has come. Raises what was not meant to happen."""
        if answer.number != self._queries:
            return
        self.busy = ""
        if answer.error:
            self.problem = str(answer.error)
            if self.frame is None:
                self.rewinding.live()
            if not isinstance(answer.error, NetmonError):
                raise answer.error
        elif isinstance(answer.found, _Steps):
            self._fresh_s = time.monotonic()
            self.rewinding.take(answer.found.past)
            if answer.found.move:
                self._go(answer.found.move)
        elif isinstance(answer.found, _Frame):
            self.frame = answer.found.frame
            self._query_times(answer.found.step)
        elif isinstance(answer.found, _Times) and answer.found.step is self.rewinding.step:
            self.times = answer.found.times

    def _query_times(self, step: Step) -> None:
        source, asker = self._source, self._asker
        if not step.verdict or self.times or source is None or asker is None:
            return
        self._queries = next(self._numbers)
        asker.submit(self._queries, lambda: _Times(step, source.times(step.job, step.number, step.end_ns)))


def _narrower(span: Span, frame: Frame) -> bool:
    return 2 * span.length_ns <= frame.until_ns - frame.since_ns
