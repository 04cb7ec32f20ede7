# SPDX-License-Identifier: Apache-2.0
"""`netmon bench verdict`: runs of the lab with injections, and the verdicts of `netmon why` on their datasets; also
simulated tables, reruns without the culprit, and shifted jobs."""

import contextlib
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from netmon.bench.result import document, figures_table, table
from netmon.bench.specs import Progress, VerdictSpec, silent
from netmon.bench.verdict.plan import KINDS, ensure_run, in_turn, plan
from netmon.bench.verdict.predictions import RerunResult, ShiftResult, plan_reruns, plan_shifts, rerun, shift
from netmon.bench.verdict.scoring import (
    MISSED,
    NO_EFFECT,
    NOTHING,
    RIGHT,
    SCORED_FROM,
    WRONG_CAUSE,
    WRONG_CULPRIT,
    Accusation,
    IncidentsFound,
    Outcome,
    VerdictRow,
    accused,
    kept_from_cpus,
    percent,
    percentile,
    score,
    stored,
    why,
)
from netmon.bench.verdict.simulated import SIMULATED, judge_one, scenario
from netmon.errors import UsageError
from netmon.lab.injections.spec import CAUSES, NETWORK
from netmon.lab.record import Truth, read_truth
from netmon.lab.spec import RunSpec
from netmon.terminal import FittingTable, figures, labels
from netmon.units import format_duration

# --- Verdicts on undisturbed iterations: how reliable a verdict is whose cause was not injected.


@dataclass
class Undisturbed:
    """Undisturbed iterations of a campaign; add extends it."""

    iterations: int = 0  # that nothing was done to, without the first of each run
    judged: list[VerdictRow] = field(
        default_factory=list
    )  # verdicts on them: they took NOTABLE × the baseline by themselves

    def add(self, truth: Truth, verdicts: Sequence[VerdictRow]) -> None:
        self.iterations += len(truth.undisturbed)
        self.judged += [each for each in verdicts if not _met(truth, each)]

    def document(self) -> dict[str, Any]:
        """For JSON: by cause, how many verdicts there were, and the highest confidence of them."""
        causes = sorted({str(each["cause"]) for each in self.judged})
        of = {cause: [each for each in self.judged if each["cause"] == cause] for cause in causes}
        return {
            "iterations": self.iterations,
            "stood_out": len(self.judged),
            "judged": {
                cause: {"count": len(own), "surest": max(float(each["confidence"]) for each in own)}
                for cause, own in of.items()
            },
        }

    def words(self) -> str:
        verdicts = self.document()["judged"]
        parts = [f"{each['count']} {cause.replace('_', ' ')}" for cause, each in verdicts.items()]
        return f"{len(self.judged)} of {self.iterations}{': ' if parts else ''}{', '.join(parts)}"


def _met(truth: Truth, verdict: VerdictRow) -> bool:
    """Whether something was done while the iteration lasted, or the one before."""
    middle = (int(verdict["start_ns"]) + int(verdict["end_ns"])) // 2
    since = int(truth.start_ns[max(0, int(np.searchsorted(truth.start_ns, middle, "right")) - 2)])
    return any(
        each["start_ns"] < verdict["end_ns"] and (each["end_ns"] or np.iinfo(np.int64).max) > since
        for each in truth.injections
    )


# --- campaign

_OUTCOMES = (RIGHT, WRONG_CAUSE, WRONG_CULPRIT, MISSED, NO_EFFECT)
ORDER = (*dict.fromkeys(cause for cause in CAUSES.values() if cause), "compute", "unknown", NOTHING)
"""Of causes, in tables and pictures."""
_MOST_NAMED = 20


@dataclass(frozen=True)
class LeftOut:
    """Injections of one kind for which no verdict was requested."""

    count: int
    done: bool  # False: nothing was done
    as_undisturbed: int  # of them, iterations that were long enough, but no longer than undisturbed ones
    most: float  # what the worst of their iterations took, in baseline iterations
    judged: dict[str, int]  # their verdicts all the same, by cause

    @classmethod
    def of(cls, outcomes: Sequence[Outcome]) -> "LeftOut":
        """outcomes: at least one, of one kind."""
        causes = Counter(each.judged for each in outcomes if each.judged != NOTHING)
        done = outcomes[0].cause != NOTHING
        ratios = [1 + each.excess_ns / each.baseline_ns for each in outcomes]
        return cls(
            len(outcomes), done, sum(ratio >= SCORED_FROM for ratio in ratios) if done else 0, max(ratios), dict(causes)
        )


@dataclass
class VerdictResult:
    planned: int  # runs
    outcomes: list[Outcome] = field(default_factory=list)
    accusations: list[Accusation] = field(default_factory=list)
    verdicts: int = 0  # in all
    undisturbed: Undisturbed = field(default_factory=Undisturbed)
    failed: list[str] = field(default_factory=list)  # runs that could not be done or judged, with the reason
    interrupted: bool = False
    counterfactual: RerunResult = field(default_factory=lambda: RerunResult(0))
    shift: ShiftResult = field(default_factory=lambda: ShiftResult(0))

    def add(self, outcomes: Sequence[Outcome], accusations: Sequence[Accusation], verdicts: int) -> None:
        self.outcomes += outcomes
        self.accusations += accusations
        self.verdicts += verdicts

    @property
    def confusion(self) -> dict[str, dict[str, int]]:
        """Injections by true cause and reported cause; those that had no effect are left out."""
        table: dict[str, dict[str, int]] = {}
        for each in self.outcomes:
            if each.outcome != NO_EFFECT:
                row = table.setdefault(each.cause, {})
                row[each.judged] = row.get(each.judged, 0) + 1
        return table

    def count(self, *outcomes: str) -> int:
        """Number of injections with one of these outcomes."""
        return sum(each.outcome in outcomes for each in self.outcomes)

    @property
    def scored(self) -> list[Outcome]:
        """Injections for which a verdict was requested: something was done, and it had an effect."""
        return [each for each in self.outcomes if each.cause != NOTHING and each.outcome != NO_EFFECT]

    @property
    def left_out(self) -> dict[str, LeftOut]:
        """Injections for which no verdict was requested, by kind: nothing was done, or its effect was too small."""
        kinds: dict[str, list[Outcome]] = {}
        for each in self.outcomes:
            if each.cause == NOTHING or each.outcome == NO_EFFECT:
                kinds.setdefault(each.kind, []).append(each)
        return {kind: LeftOut.of(own) for kind, own in sorted(kinds.items())}

    @property
    def right_cause_share(self) -> float | None:
        """Of those with a requested verdict; None: there are none."""
        right = sum(each.outcome in (RIGHT, WRONG_CULPRIT) for each in self.scored)
        return right / len(self.scored) if self.scored else None

    @property
    def right_culprit_share(self) -> float | None:
        """Of those with the right cause; None: there are none."""
        known = [each for each in self.scored if each.outcome in (RIGHT, WRONG_CULPRIT)]
        return sum(each.outcome == RIGHT for each in known) / len(known) if known else None

    @property
    def incidents(self) -> IncidentsFound:
        return IncidentsFound.of([each for each in self.outcomes if each.trainer != SIMULATED])

    @property
    def false(self) -> list[Accusation]:
        """Accusations of a cause that was not there."""
        return [each for each in self.accusations if not each.lost]

    def share_error(self, share: float) -> float | None:
        """Percentile of |reported − true| / true of the delay, where the cause was reported."""
        return percentile([error for each in self.outcomes if (error := each.share_error) is not None], share)

    def judged_delay_s(self, share: float) -> float | None:
        """Percentile of how long after the end of an iteration its verdict was reported."""
        after = [each.judged_after_ns / 1e9 for each in self.outcomes if each.judged_after_ns is not None]
        return percentile(after, share)

    @property
    def misjudged(self) -> tuple[int, int]:
        """Of the injections with a verdict: those whose cause was another one at once, and those judged again."""
        both = [each.verdict for each in self.outcomes if each.verdict and each.verdict.get("live_cause")]
        return sum(each["live_cause"] != each["cause"] for each in both), len(both)

    def document(self) -> dict[str, Any]:
        return {
            "runs": self.planned,
            "injections": len(self.outcomes),
            "asked": len(self.scored),
            "left_out": document(self.left_out),
            "verdicts": self.verdicts,
            **{name.replace(" ", "_"): self.count(name) for name in _OUTCOMES},
            "right_cause_share": self.right_cause_share,
            "right_culprit_share": self.right_culprit_share,
            "incidents": document(self.incidents),
            "false_accusations": len(self.false),
            "losses_not_injected": len(self.accusations) - len(self.false),
            "share_error_median": self.share_error(50),
            "reported_after_s": {"median": self.judged_delay_s(50), "p99": self.judged_delay_s(99)},
            "misjudged_at_once": self.misjudged[0],
            "undisturbed": document(self.undisturbed),
            "confusion": self.confusion,
            "outcomes": document(self.outcomes),
            "accusations": document(self.accusations),
            "failed": self.failed,
            "interrupted": self.interrupted,
            "counterfactual": document(self.counterfactual),
            "shift": document(self.shift),
        }

    def shown(self) -> Iterator[FittingTable | str]:
        """The confusion matrix, the figures, and what was wrong; then the configurations that were done twice."""
        if self.planned or self.outcomes or not (self.counterfactual.planned or self.shift.planned):
            for part in (_confusion(self), _figures(self)):
                yield part
                yield ""
            yield from _wrong(self)
        if self.counterfactual.planned:
            yield from self.counterfactual.shown()
        if self.shift.planned:
            yield from self.shift.shown()


def _confusion(result: VerdictResult) -> FittingTable:
    confusion, effect = result.confusion, Counter(each.cause for each in result.outcomes if each.outcome == NO_EFFECT)
    causes = [cause for cause in ORDER if any(cause in row for row in confusion.values())]
    columns = [*labels("cause"), *figures(*(cause.replace("_", " ") for cause in causes), "no effect")]
    rows = (
        (
            cause.replace("_", " "),
            *(str(confusion.get(cause, {}).get(each) or "") for each in causes),
            str(effect[cause] or ""),
        )
        for cause in ORDER
        if cause in confusion or effect[cause]
    )
    return table("rows: injected; columns: reported", columns, rows)


def _figures(result: VerdictResult) -> FittingTable:
    after = [result.judged_delay_s(share) for share in (50, 99)]
    otherwise, both = result.misjudged
    rows = [
        ("injections that made an iteration stand out", f"{len(result.scored)} of {len(result.outcomes)}"),
        *((f"left out: {kind}", _why_left_out(each)) for kind, each in result.left_out.items()),
        ("right cause", percent(result.right_cause_share)),
        ("right culprit, where the cause was right", percent(result.right_culprit_share)),
        ("network accused, and it was not", f"{len(result.false)} of {result.verdicts} verdicts"),
        ("packets lost that nobody dropped on purpose", str(len(result.accusations) - len(result.false))),
        ("share of the delay against the truth: median error", percent(result.share_error(50))),
        ("reported after, s: median, p99", ", ".join("not reported" if s is None else f"{s:.2f}" for s in after)),
        ("another cause was reported at first", f"{otherwise} of {both}"),
    ]
    if found := result.incidents if result.incidents.made else None:
        rows += [
            ("incidents with right cause and culprit", f"{found.right} of {found.made}"),
            ("of more than one step", f"{found.lasting_right} of {found.lasting}"),
            ("begin and end within a step", f"{found.within_a_step} of {found.right}"),
        ]
    if result.undisturbed.iterations:
        rows.append(("slow with nothing done, and verdicts on them", result.undisturbed.words()))
    if result.failed:
        rows.append(("runs that failed", str(len(result.failed))))
    return figures_table("", rows)


def _why_left_out(each: LeftOut) -> str:
    if not each.done:
        return f"{each.count}, nothing was done"
    short, noise = each.count - each.as_undisturbed, each.as_undisturbed
    parts = [f"{short} took less than {SCORED_FROM:g} × the baseline"] if short else []
    parts += [f"{noise} took no longer than some that nothing was done to"] if noise else []
    return f"{'; '.join(parts)}; the longest {each.most:.2f} ×"


def _wrong(result: VerdictResult) -> list[str]:
    wrong = [each for each in result.outcomes if each.outcome in (WRONG_CAUSE, WRONG_CULPRIT, MISSED)]
    lines = [_line(each) for each in wrong[:_MOST_NAMED]]
    lines += [
        f"{each.run}, iteration {each.verdict['iteration']}: {each.verdict['cause']} "
        f"({each.verdict['culprit'] or each.verdict['host']}) accused, done: {', '.join(each.injected) or 'nothing'}"
        for each in result.false[:_MOST_NAMED]
    ]
    lines += result.failed
    if result.interrupted:
        lines.append("interrupted: this is what was there")
    return lines


def _line(each: Outcome) -> str:
    verdict = each.verdict
    said = f"{each.judged} ({verdict['culprit'] or verdict['host']})" if verdict else "no verdict"
    number = f", iteration {verdict['iteration']}" if verdict else ""
    longer = f"{format_duration(max(0.0, each.excess_ns))} longer than {format_duration(each.baseline_ns)}"
    return f"{each.run}{number} ({each.trainer}): {each.outcome}: {each.kind}, {longer}; reported: {said}"


def measure(spec: VerdictSpec, progress: Progress = silent) -> VerdictResult:
    """Blocks, in the lab for some minutes per ten causes. Ctrl-C ends it with what is there.

    A run that fails is named in the result, and the next one is done. Raises UsageError.
    """
    kinds = tuple(kind for kind in spec.kinds.split(",") if kind) or KINDS
    if unknown := [kind for kind in kinds if kind not in CAUSES]:
        raise UsageError(f"cannot inject {unknown[0]!r}: choose from {', '.join(CAUSES)}")

    def count(what: str, of: int, done: int) -> None:
        progress(done, of, f"{what} {done + 1} of {of}")

    with contextlib.ExitStack() as stack:
        data = spec.data or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="netmon-verdict-")))
        data = data.resolve()
        specs = plan(spec.lab, spec.seed, spec.trainers, data, kinds)
        result = _campaign(specs, progress, keep=spec.data is not None)
        if not result.interrupted:
            _judge_simulated(spec, result, partial(count, "simulated table", spec.simulated))
        reruns = plan_reruns(0 if result.interrupted else spec.rerun, spec.seed, spec.trainers, data)
        named = {each.data.name: each for each in reruns}
        result.counterfactual.do(named, rerun, partial(count, "configuration", spec.rerun))
        pairs = {pair[0].data.name: pair for pair in plan_shifts(spec.shift, spec.seed, data)}
        result.shift.do(pairs, shift, partial(count, "pair of jobs", spec.shift))
    return result


def _campaign(specs: Sequence[RunSpec], progress: Progress, keep: bool) -> VerdictResult:
    """Do all runs that are not there already, and judge each. keep: the datasets stay."""
    result = VerdictResult(len(specs))
    begun, lab_runs = time.monotonic(), 0

    def do(spec: RunSpec) -> None:
        nonlocal lab_runs
        try:
            lab_runs += ensure_run(spec)
            judge_run(spec.data, result)
        finally:
            if not keep:
                shutil.rmtree(spec.data, ignore_errors=True)

    def show(done: int) -> None:
        minutes = (time.monotonic() - begun) / max(1, lab_runs) * (len(specs) - done) / 60
        left = f", about {minutes:.0f} min left" if lab_runs else ""
        text = f"run {done + 1} of {len(specs)}, {len(result.outcomes)} injections judged{left}"
        progress(done, len(specs), text)

    result.interrupted = in_turn({spec.data.name: spec for spec in specs}, do, result.failed, show)
    return result


def judge_run(data: Path, result: VerdictResult) -> None:
    """Add the verdicts on a finished run. Raises DataError."""
    truth = read_truth(data)
    live = {each["iteration"]: each for each in stored(data) if each["job"] == truth.job}
    verdicts = [each for each in why(data, "") if each["job"] == truth.job]
    for each in verdicts:
        if at_once := live.get(each["iteration"]):
            each |= {"reported_ns": at_once["reported_ns"], "live_cause": at_once["cause"]}
    outcomes, accusations = score(data.name, truth, verdicts, kept_from_cpus(data, truth))
    accusations += accused(data.name, truth, live.values(), {each.verdict["iteration"] for each in accusations})
    result.add(outcomes, accusations, len(verdicts))
    result.undisturbed.add(truth, verdicts)


def _judge_simulated(spec: VerdictSpec, result: VerdictResult, progress: Callable[[int], None]) -> None:
    def do(number: int) -> None:
        outcome = judge_one(scenario(spec.seed * 1_000_000 + number))
        wrong = outcome.judged in NETWORK and outcome.cause not in NETWORK
        verdicts = [outcome.verdict] if outcome.verdict else []
        accusations = [Accusation(outcome.run, SIMULATED, (outcome.kind,), each) for each in verdicts if wrong]
        result.add([outcome], accusations, len(verdicts))

    result.interrupted = in_turn({str(number): number for number in range(spec.simulated)}, do, result.failed, progress)
