# SPDX-License-Identifier: Apache-2.0
"""The moment of the past that is looked at: asked for on a thread of its own, shown when the answer has come."""

import itertools
import time
from collections.abc import Callable
from typing import NamedTuple

from textual.message_pump import MessagePump

from netmon.errors import NetmonError
from netmon.past import Frame, Past, PastSteps
from netmon.top.news import Answer, Asker
from netmon.top.rewinding import Rewinding
from netmon.top.step_kind import Step
from netmon.top.timeline import Span
from netmon.views import RankTimes

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


class Moments:
    """Lives on the program's thread; what blocks happens on another one."""

    def __init__(self, past: Past | None, to: MessagePump) -> None:
        """past: where it can be had from; None: nowhere. to: is posted the answers."""
        self.rewinding = Rewinding()
        self.frame: Frame | None = None
        self.times: tuple[RankTimes, ...] = ()
        self.span: Span | None = None  # the part of the time axis that is looked at
        self.busy = self.problem = ""
        self._source = past
        self._asker = Asker(to) if past else None
        self._numbers = itertools.count(1)
        self._asked = 0
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
        self._asked = 0

    def refresh(self, move: Move | None = None) -> None:
        """Ask which iterations there are, and then go where `move` leads."""
        source = self._source
        if source is None:
            self.problem = "nothing is known of the past here"
            return
        self._ask("looking back", lambda: _Steps(source.steps(), move))

    def go(self, move: Move) -> None:
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
        self._ask(
            f"reading iteration {step.number}",
            lambda: _Frame(step, source.frame(step.job, step.number, span.since_ns, span.until_ns)),
        )

    def _ask(self, busy: str, question: Callable[[], object]) -> None:
        assert self._asker is not None
        self.busy, self.problem = busy, ""
        self._asked = next(self._numbers)
        self._asker.ask(self._asked, question)

    def answer(self, answer: Answer) -> None:
        """Take in what has come. Raises what was not meant to happen."""
        if answer.number != self._asked:
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
            self._ask_times(answer.found.step)
        elif isinstance(answer.found, _Times) and answer.found.step is self.rewinding.step:
            self.times = answer.found.times

    def _ask_times(self, step: Step) -> None:
        source, asker = self._source, self._asker
        if not step.verdict or self.times or source is None or asker is None:
            return
        self._asked = next(self._numbers)
        asker.ask(self._asked, lambda: _Times(step, source.times(step.job, step.number, step.end_ns)))


def _narrower(span: Span, frame: Frame) -> bool:
    return 2 * span.length_ns <= frame.until_ns - frame.since_ns
