# SPDX-License-Identifier: Apache-2.0
"""What comes from other threads: snapshots, and the moment of the past that is looked at."""

import itertools
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from rich.text import Text
from textual.message import Message
from textual.message_pump import MessagePump

from netmon.errors import NetmonError
from netmon.top.glyphs import class_sparkline_styles, clock, shown, sparkline
from netmon.top.incidents import of_past
from netmon.top.links import ARROWS
from netmon.top.options import Options
from netmon.top.steps import Step, step_of, steps_of
from netmon.units import format_duration
from netmon.views import Frame, GroupLine, Incident, LinkView, Past, PastSteps, RankSpan, RankTimes, Snapshot, Verdict
from netmon.wire.watch import Outage

# --- A span of the past on a time axis: what ranks did, and the traffic of links, as finely as buckets are.

FINEST_NS = 10_000
"""What a character stands for at least: a bucket."""

_LABEL = 24
_COMPUTING, _COMMUNICATING, _AFTER = "░", "█", "▒"


@dataclass(frozen=True)
class Span:
    """The part of the time axis that is looked at."""

    since_ns: int
    until_ns: int

    @property
    def length_ns(self) -> int:
        return self.until_ns - self.since_ns

    def zoomed(self, factor: float, width: int) -> "Span":
        """Shorter (factor < 1) or longer around its middle; at the finest a bucket for each character."""
        length = max(int(self.length_ns * factor), FINEST_NS * max(width, 1))
        begin = self.since_ns + int((self.length_ns - length) * 0.5)
        return Span(begin, begin + length)

    def moved(self, part: float) -> "Span":
        """Later by a part of its length; earlier where that is negative."""
        by = int(self.length_ns * part)
        return Span(self.since_ns + by, self.until_ns + by)

    def within(self, other: "Span") -> "Span":
        """Moved, and cut, so that it lies in another one."""
        length = min(self.length_ns, other.length_ns)
        begin = min(max(self.since_ns, other.since_ns), other.until_ns - length)
        return Span(begin, begin + length)


def room_for_axis(width: int) -> int:
    """Characters of the time axis on a line."""
    return max(width - label_width(width), 1)


def label_width(width: int) -> int:
    """Of what stands before it."""
    return min(_LABEL, width // 3)


def draw(frame: Frame, span: Span, links: Sequence[LinkView], width: int, lines: int, ink: Options) -> list[Text]:
    """A scale, then ranks and links, as many as there is room for; the last line says how many there is no room for."""
    axis = room_for_axis(width)
    lanes = [_scale(frame, span, width, axis)]
    lanes += [_lane(f"rank {one.rank} {one.host}", _phases(one, span, axis), width) for one in frame.spans]
    lanes += [_lane(_name(link), _course(link, frame.since_ns, span, axis), width) for link in links]
    if len(lanes) > lines > 1:
        hidden = len(lanes) - lines + 1
        lanes = [*lanes[: lines - 1], Text(f"… {hidden} more lanes", "dim")]
    return lanes[:lines]


def legend() -> Text:
    return Text(f"{_COMPUTING} computing {_COMMUNICATING} communicating {_AFTER} afterwards", "dim", no_wrap=True)


def resampled(link: LinkView, begin_ns: int, span: Span, width: int) -> npt.NDArray[np.float64]:
    """(width, class) mean rates over equal parts of the span; nan where the link's columns do not reach.

    begin_ns: of its first column.
    """
    edges = span.since_ns + np.arange(width + 1) * span.length_ns / width
    index = np.clip((edges - begin_ns) / link.interval_ns, 0, len(link.wire_bps))
    sums = np.concatenate([np.zeros((1, link.wire_bps.shape[1])), np.cumsum(link.wire_bps, axis=0)])
    whole = np.minimum(index.astype(np.int64), len(link.wire_bps))
    inside = np.minimum(whole, max(len(link.wire_bps) - 1, 0))
    at = sums[whole] + (index - whole)[:, None] * (link.wire_bps[inside] if len(link.wire_bps) else 0)
    covered = np.diff(index)
    rates: npt.NDArray[np.float64] = np.diff(at, axis=0) / np.where(covered > 0, covered, np.nan)[:, None]
    return rates


def _scale(frame: Frame, span: Span, width: int, axis: int) -> Text:
    begin = clock(span.since_ns)
    text = f"1 character = {format_duration(span.length_ns / axis)}; {frame.basis}"
    left, right = f"{begin} ├", f"┤ +{format_duration(span.length_ns)}"
    middle = text if len(left) + len(right) + len(text) <= axis else ""
    line = f"{left}{middle.center(max(axis - len(left) - len(right), 0), '─')}{right}"
    return shown(Text(" " * label_width(width) + line[:axis], "dim", no_wrap=True))


def _lane(label: str, course: Text, width: int) -> Text:
    room = label_width(width)
    short = label if len(label) < room else f"{label[: max(room - 2, 1)]}…"
    return shown(Text(short.ljust(room), no_wrap=True)).append_text(course)


def _name(link: LinkView) -> str:
    return f"{link.host} {link.interface} {ARROWS[link.direction]}"


def _course(link: LinkView, begin_ns: int, span: Span, axis: int) -> Text:
    rates = resampled(link, begin_ns, span, axis)
    totals = rates.sum(axis=1)
    full = link.capacity_bps or float(np.nanmax(totals, initial=0))
    return sparkline(totals, full, class_sparkline_styles(rates))


def _phases(rank: RankSpan, span: Span, axis: int) -> Text:
    middle = span.since_ns + (np.arange(axis) + 0.5) * span.length_ns / axis
    marks = np.full(axis, " ")
    marks[(middle >= rank.start_ns) & (middle < rank.end_ns)] = _COMPUTING
    if rank.comm_start_ns:
        marks[(middle >= rank.comm_start_ns) & (middle < rank.comm_end_ns)] = _COMMUNICATING
        marks[(middle >= rank.comm_end_ns) & (middle < rank.end_ns)] = _AFTER
    return Text("".join(marks), no_wrap=True)


# --- What comes from other threads: snapshots, and the moment of the past that is looked at.

_JOIN_S = 0.5


class Update(Message):
    """A snapshot has come, or the collector is gone."""

    def __init__(self, update: Snapshot | Outage) -> None:
        """update: as the source sent it."""
        super().__init__()
        self.update, self.received_ns = update, time.time_ns()


class Ended(Message):
    """There will be no more snapshots."""

    def __init__(self, error: Exception | None) -> None:
        """error: why, if it was not their end."""
        super().__init__()
        self.error = error


@dataclass
class Answer(Message):
    """What a question about the past has led to."""

    number: int  # of the question
    found: Any = None
    error: Exception | None = None


class Reader:
    """Reads snapshots on a thread of its own, and posts each."""

    def __init__(self, updates: Iterable[Snapshot | Outage], to: MessagePump) -> None:
        """Begin. A reading that blocks for ever ends with the process."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(updates, to), name="snapshots", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Let the reading end with its next snapshot."""
        self._stopped.set()
        self._thread.join(_JOIN_S)

    def _read(self, updates: Iterable[Snapshot | Outage], to: MessagePump) -> None:
        error = None
        try:
            for update in updates:
                if self._stopped.is_set():
                    return
                to.post_message(Update(update))
        except Exception as caught:
            error = caught
        finally:
            # Here, while all threads live: a connection that is let go of when Python ends waits for one that does not.
            if isinstance(updates, Generator):
                updates.close()
        if not self._stopped.is_set():
            to.post_message(Ended(error))


class QueryThread:
    """Asks about the past, one question after the other, on a thread of its own; of those that wait only the newest."""

    def __init__(self, to: MessagePump) -> None:
        self._to = to
        self._waiting: tuple[int, Callable[[], Any]] | None = None
        self._changed = threading.Condition()
        self._over = False
        self._thread = threading.Thread(target=self._work, name="past", daemon=True)
        self._thread.start()

    def submit(self, number: int, question: Callable[[], Any]) -> None:
        """Have it answered; it replaces what waits to be requested."""
        with self._changed:
            self._waiting = number, question
            self._changed.notify()

    def stop(self) -> None:
        """Send no more requests."""
        with self._changed:
            self._over, self._waiting = True, None
            self._changed.notify()
        self._thread.join(_JOIN_S)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting is not None or self._over)
                if self._waiting is None:
                    return
                (number, question), self._waiting = self._waiting, None
            try:
                answer = Answer(number, question())
            except Exception as error:
                answer = Answer(number, error=error)
            if not self._over:
                self._to.post_message(answer)


# --- Going back in time: from iteration to iteration, and to the slow ones.


_MOST_FRESH = 1_000


class Rewinding:
    """Which iteration is looked at. Without one it is now."""

    def __init__(self) -> None:
        self.past = PastSteps({})
        self.incidents: list[Incident] = []  # newest first
        self.fresh: dict[tuple[str, int, int], Verdict] = {}  # of snapshots, oldest first
        self.step: Step | None = None
        self._steps: dict[str, list[Step]] = {}

    def take(self, past: PastSteps, incidents: list[Incident]) -> None:
        """incidents: of its verdicts, newest first."""
        self.past, self.incidents = past, incidents
        self._steps.clear()

    def add(self, verdicts: Iterable[Verdict]) -> None:
        """Those of a snapshot."""
        self.fresh |= {(one.job, one.iteration, one.end_ns): one for one in verdicts}
        for key in list(self.fresh)[:-_MOST_FRESH]:
            del self.fresh[key]

    def live(self) -> None:
        """It is now again."""
        self.step = None

    def by(self, job: str, count: int) -> Step | None:
        """So many iterations of a job later, or earlier; None where that is now, or there is none."""
        steps = self.of(job)
        if not steps:
            return None
        index = self._index(steps) + count
        self.step = steps[max(index, 0)] if index < len(steps) else None
        return self.step

    def to_slow(self, job: str, forward: bool) -> Step | None:
        """The next slow iteration of a job, backward from now or from where one is; None, and nothing moves: none."""
        steps = self.of(job)
        index = self._index(steps)
        ahead = steps[index + 1 :] if forward else steps[:index][::-1]
        found = next((step for step in ahead if step.slow or step.verdict), None)
        self.step = found or self.step
        return found

    def to(self, job: str, number: int, near_ns: int) -> Step | None:
        self.step = step_of(self.of(job), number, near_ns) or self.step
        return self.step

    def to_verdict(self, verdict: Verdict) -> Step:
        """The iteration that it is about, even where it is not among those that are known."""
        same = [one for one in self.of(verdict.job) if one.number == verdict.iteration]
        near = [one for one in same if one.start_ns < verdict.end_ns and verdict.start_ns < one.end_ns]
        found = step_of(near, verdict.iteration, verdict.start_ns)
        about = Step(
            *(verdict.job, verdict.iteration, verdict.start_ns, verdict.end_ns),
            *(verdict.duration_ns, verdict.baseline_ns, verdict.relative, verdict),
        )
        self.step = found or about
        return self.step

    def to_incident(self, incident: Incident) -> Step | None:
        """Its worst step; None, and nothing moves: it is not known any more."""
        since, until = incident.since_ns, incident.until_ns
        found = [one for one in self.past.verdicts if (one.job, one.iteration) == (incident.job, incident.worst)]
        inside = [one for one in found if since <= one.start_ns and one.end_ns <= until]
        return self.to_verdict(inside[-1]) if inside else None

    def of(self, job: str) -> list[Step]:
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
    incidents: list[Incident]
    move: Move | None


class _Frame(NamedTuple):
    step: Step
    frame: Frame


class _Times(NamedTuple):
    step: Step
    times: tuple[RankTimes, ...]


class _Groups(NamedTuple):
    job: str
    lines: Sequence[GroupLine]


class MomentView:
    """Lives on the program's thread; what blocks happens on another one."""

    def __init__(self, past: Past | None, to: MessagePump) -> None:
        """past: where it can be had from; None: nowhere. to: is posted the answers."""
        self.rewinding = Rewinding()
        self.frame: Frame | None = None
        self.times: tuple[RankTimes, ...] = ()
        self.groups: _Groups | None = None  # of the job that was queried last
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
        """Send no more requests."""
        if self._asker:
            self._asker.stop()

    def live(self) -> None:
        self.rewinding.live()
        self.frame, self.times, self.span, self.busy, self.problem = None, (), None, "", ""
        self._queries = 0

    def refresh(self, move: Move | None = None) -> None:
        """Query which iterations there are, and then go where `move` leads."""
        source = self._source
        if source is None:
            self.problem = "nothing is known of the past here"
            return
        self._query("looking back", lambda: _Steps((past := source.steps()), of_past(past), move))

    def query_groups(self, job: str) -> None:
        """Query what the groups of ranks of a job are used for."""
        source = self._source
        if source is None:
            self.problem = "nothing is known of the past here"
            return
        self._query("reading what its ranks call", lambda: _Groups(job, source.groups(job)))

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
            self.problem = "no source has that moment"
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
            self.rewinding.take(answer.found.past, answer.found.incidents)
            if answer.found.move:
                self._go(answer.found.move)
        elif isinstance(answer.found, _Frame):
            self.frame = answer.found.frame
            self._query_times(answer.found.step)
        elif isinstance(answer.found, _Groups):
            self.groups = answer.found
            if not answer.found.lines:
                self.problem = "nobody tells what this job's ranks call"
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
