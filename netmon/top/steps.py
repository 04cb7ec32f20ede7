# SPDX-License-Identifier: Apache-2.0
"""Iterations of the past, and verdicts on them, as rows."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from rich.text import Text

from netmon.dl.verdict import NOTABLE
from netmon.dl.verdict.verdict_text import reason, renamed
from netmon.records import Table
from netmon.top.filters import Values, exactly
from netmon.top.glyphs import clock, iteration
from netmon.top.options import Options
from netmon.top.rows import Kind, Part, numeric
from netmon.units import format_duration
from netmon.views import PastSteps, Verdict


class Step(NamedTuple):
    """One iteration of a job, all its ranks."""

    job: str
    number: int
    start_ns: int  # utc
    end_ns: int
    longest_ns: int
    baseline_ns: int  # 0: not known
    relative: bool
    verdict: Verdict | None = None

    @property
    def slow(self) -> bool:
        """Whether it stands out."""
        return self.baseline_ns > 0 and self.longest_ns >= NOTABLE * self.baseline_ns


def steps_of(past: PastSteps, job: str) -> list[Step]:
    """The job's iterations, oldest first."""
    judged = {one.iteration: one for one in past.verdicts if one.job == job}
    rows: Table | None = past.jobs.get(job)
    if rows is None:
        return []
    columns = zip(*(rows[name].tolist() for name in Step._fields[1:-1]), strict=True)
    return [_judged(Step._make((job, *values, _of(judged, values[0], values[1])))) for values in columns]


def _judged(step: Step) -> Step:
    """With the baseline of its verdict: while it happened, the iterations after it were not known."""
    return step._replace(baseline_ns=step.verdict.baseline_ns) if step.verdict and step.verdict.baseline_ns else step


def _of(judged: dict[int, Verdict], number: int, start_ns: int) -> Verdict | None:
    """The verdict on this iteration: a job that began anew counts from 0 again."""
    verdict = judged.get(number)
    return verdict if verdict and abs(verdict.start_ns - start_ns) < verdict.duration_ns else None


def step_of(steps: Sequence[Step], number: int, near_ns: int) -> Step | None:
    """The iteration of that number which began nearest to a moment; of none the one that covers or follows it."""
    same = [step for step in steps if step.number == number]
    if same:
        return min(same, key=lambda step: abs(step.start_ns - near_ns))
    return next((step for step in steps if step.end_ns >= near_ns), steps[-1] if steps else None)


def cause(verdict: Verdict) -> str:
    """`cross: iperf3`."""
    word = verdict.cause.name.lower().replace("_", " ")
    return f"{word}: {verdict.culprit}" if verdict.culprit else word


def _verdict_values(verdict: Verdict | None) -> dict[str, tuple[str | float, ...]]:
    if verdict is None:
        return {"cause": (), "culprit": ()}
    return {"cause": (verdict.cause.name.lower(),), "culprit": (verdict.culprit,)}


def _step_values(step: Step) -> Values:
    own: dict[str, tuple[str | float, ...]] = {
        "job": (step.job,),
        "iteration": (step.number,),
        "duration": (step.longest_ns,),
    }
    return {**own, **_verdict_values(step.verdict)}


def _longest(step: Step, ink: Options, width: int) -> Text:
    return Text(format_duration(step.longest_ns), "bold yellow" if step.slow else "")


def _bar(step: Step, ink: Options, width: int) -> Text:
    """The baseline is half of the width."""
    full = 2 * (step.baseline_ns or step.longest_ns)
    filled = min(round(step.longest_ns / full * width), width) if full else 0
    return Text("━" * filled, "yellow" if step.slow else "dim").append("─" * (width - filled), "dim black")


def _excess(step: Step) -> float:
    return step.longest_ns / step.baseline_ns if step.baseline_ns else math.nan


STEPS = Kind(
    "iterations",
    (
        numeric(
            "iteration",
            lambda step, *_: Text(iteration(step.number, step.relative), "bold"),
            lambda step: step.start_ns,
            9,
            12,
            99,
        ),
        Part(
            "began",
            lambda step, *_: clock(step.start_ns) if step.start_ns else "",
            lambda step: step.start_ns,
            12,
            12,
            worth=7,
            falling=True,
        ),
        numeric("took", _longest, lambda step: step.longest_ns, 8, 10, 10),
        numeric(
            "× usual", lambda step, *_: "" if math.isnan(_excess(step)) else f"{_excess(step):.2f}", _excess, 7, 8, 6
        ),
        Part(
            "why",
            lambda step, *_: Text(cause(step.verdict), "yellow") if step.verdict else "",
            lambda step: cause(step.verdict) if step.verdict else None,
            14,
            50,
            worth=9,
        ),
        Part("against the usual", _bar, lambda step: step.longest_ns, 10, 40, worth=1, grows=True),
    ),
    key=lambda step: (step.job, step.number, step.start_ns),
    values=_step_values,
    term=lambda step: f"{exactly('job', step.job)} {exactly('iteration', step.number)}",
    by="began",
)


def _verdict_row(verdict: Verdict) -> Values:
    return {
        "job": (verdict.job,),
        "iteration": (verdict.iteration,),
        "duration": (verdict.duration_ns,),
        "host": (verdict.host,),
        "rank": (verdict.rank,),
        "bytes": (verdict.bytes,),
        **_verdict_values(verdict),
    }


def _words(verdict: Verdict, ink: Options, width: int) -> Text:
    return Text(reason(renamed(verdict, ink.jobs)), "dim")


VERDICTS = Kind(
    "verdicts",
    (
        Part("ended", lambda one, *_: clock(one.end_ns), lambda one: one.end_ns, 12, 12, worth=8, falling=True),
        Part("job", lambda one, ink, _: Text(ink.job(one.job), "bold"), lambda one: one.job, 6, 30, worth=7),
        numeric(
            "iteration", lambda one, *_: iteration(one.iteration, one.relative), lambda one: one.iteration, 9, 12, 99
        ),
        numeric(
            "lost",
            lambda one, *_: format_duration(one.excess_ns) if one.baseline_ns else "?",
            lambda one: one.excess_ns,
            8,
            10,
            10,
        ),
        Part("why", lambda one, *_: Text(cause(one), "yellow" if one.network else ""), cause, 14, 40, worth=11),
        Part("", _words, lambda one: one.excess_ns, 20, 300, worth=1, grows=True),
    ),
    key=lambda one: (one.job, one.iteration, one.end_ns),
    values=_verdict_row,
    term=lambda one: f"{exactly('job', one.job)} {exactly('iteration', one.iteration)}",
    by="ended",
)
