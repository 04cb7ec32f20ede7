# SPDX-License-Identifier: Apache-2.0
"""A campaign on the lab: runs with injections, and what `netmon why` says of each dataset afterwards."""

import json
import logging
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset as ds

from netmon.bench.verdict.scoring import (
    MISSED,
    NO_EFFECT,
    NOTHING,
    RIGHT,
    SCORED_FROM,
    WRONG_CAUSE,
    WRONG_CULPRIT,
    Accusation,
    Outcome,
    VerdictRow,
    accused,
    percentile,
    score,
)
from netmon.bench.verdict.truth import Truth, complete, read_truth
from netmon.errors import DataError, NetmonError
from netmon.lab.run import run as run_lab
from netmon.lab.spec import RunSpec

# --- Verdicts on the iterations that nothing was done to: how much a verdict is worth that nobody can check.


@dataclass
class Undisturbed:
    """Of a campaign; may still grow."""

    iterations: int = 0  # that nothing was done to, without the first of each run
    told: list[VerdictRow] = field(
        default_factory=list
    )  # verdicts on them: they took NOTABLE × the usual by themselves

    def add(self, truth: Truth, verdicts: Sequence[VerdictRow]) -> None:
        """One more run. verdicts: verdicts on its job."""
        self.iterations += len(truth.undisturbed)
        self.told += [each for each in verdicts if not _met(truth, each)]

    def document(self) -> dict[str, Any]:
        """For JSON: by cause, how many there were, and what the surest of them was said with."""
        causes = sorted({str(each["cause"]) for each in self.told})
        of = {cause: [each for each in self.told if each["cause"] == cause] for cause in causes}
        return {
            "iterations": self.iterations,
            "stood_out": len(self.told),
            "told": {cause: {"count": len(own), "surest": _surest(own)} for cause, own in of.items()},
        }

    def words(self) -> str:
        """The same in a line."""
        verdicts = self.document()["told"]
        parts = [f"{each['count']} {cause.replace('_', ' ')}" for cause, each in verdicts.items()]
        return f"{len(self.told)} of {self.iterations}{': ' if parts else ''}{', '.join(parts)}"


def _met(truth: Truth, verdict: VerdictRow) -> bool:
    """Whether something was done while the iteration lasted, or the one before."""
    middle = (int(verdict["start_ns"]) + int(verdict["end_ns"])) // 2
    since = int(truth.start_ns[max(0, int(np.searchsorted(truth.start_ns, middle, "right")) - 2)])
    return any(
        each["start_ns"] < verdict["end_ns"] and (each["end_ns"] or np.iinfo(np.int64).max) > since
        for each in truth.injections
    )


def _surest(verdicts: Sequence[VerdictRow]) -> float:
    return max(float(each["confidence"]) for each in verdicts)


# --- campaign


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CampaignProgress:
    """How far it is."""

    runs_done: int
    runs: int
    injections: int  # that were judged
    seconds_left: float | None  # None: not known yet


@dataclass(frozen=True)
class LeftOut:
    """Injections of one kind that no verdict was asked on."""

    count: int
    done: bool  # False: nothing was done
    as_undisturbed: int  # of them, iterations that were long enough, but so are some that nothing was done to
    most: float  # what the worst of their iterations took, in baseline iterations
    told: dict[str, int]  # what was said of them all the same, by cause

    @classmethod
    def of(cls, outcomes: Sequence[Outcome]) -> "LeftOut":
        """At least one, of one kind."""
        causes = Counter(each.told for each in outcomes if each.told != NOTHING)
        done = outcomes[0].cause != NOTHING
        ratios = [1 + each.excess_ns / each.usual_ns for each in outcomes]
        return cls(
            len(outcomes), done, sum(ratio >= SCORED_FROM for ratio in ratios) if done else 0, max(ratios), dict(causes)
        )


@dataclass
class VerdictResult:
    """What came of it; may still grow while the campaign goes on."""

    planned: int  # runs
    outcomes: list[Outcome] = field(default_factory=list)
    accusations: list[Accusation] = field(default_factory=list)
    verdicts: int = 0  # in all
    undisturbed: Undisturbed = field(default_factory=Undisturbed)
    failed: list[str] = field(default_factory=list)  # runs that could not be done or judged, with the reason
    interrupted: bool = False

    def add(self, run: str, outcomes: Sequence[Outcome], accusations: Sequence[Accusation], verdicts: int) -> None:
        """One more run."""
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
                row[each.told] = row.get(each.told, 0) + 1
        return table

    def count(self, *outcomes: str) -> int:
        """Injections that came to one of these."""
        return sum(each.outcome in outcomes for each in self.outcomes)

    @property
    def scored(self) -> list[Outcome]:
        """Injections that a verdict was asked on: something was done, and it hurt."""
        return [each for each in self.outcomes if each.cause != NOTHING and each.outcome != NO_EFFECT]

    @property
    def left_out(self) -> dict[str, LeftOut]:
        """Injections that no verdict was asked on, by kind, and why: nothing was done, or it did not hurt enough."""
        kinds: dict[str, list[Outcome]] = {}
        for each in self.outcomes:
            if each.cause == NOTHING or each.outcome == NO_EFFECT:
                kinds.setdefault(each.kind, []).append(each)
        return {kind: LeftOut.of(own) for kind, own in sorted(kinds.items())}

    @property
    def right_cause_share(self) -> float | None:
        """Of those asked."""
        right = sum(each.outcome in (RIGHT, WRONG_CULPRIT) for each in self.scored)
        return right / len(self.scored) if self.scored else None

    @property
    def right_culprit_share(self) -> float | None:
        """Of those whose cause was reported."""
        known = [each for each in self.scored if each.outcome in (RIGHT, WRONG_CULPRIT)]
        return sum(each.outcome == RIGHT for each in known) / len(known) if known else None

    def share_error(self, share: float) -> float | None:
        """Percentile of |told − true| / true of the delay, where the cause was reported."""
        return percentile([error for each in self.outcomes if (error := each.share_error) is not None], share)

    def told_delay_s(self, share: float) -> float | None:
        """Percentile of how long after the end of an iteration its verdict was reported."""
        after = [each.told_after_ns / 1e9 for each in self.outcomes if each.told_after_ns is not None]
        return percentile(after, share)

    @property
    def misjudged(self) -> tuple[int, int]:
        """Of the injections with a verdict: those whose cause was another one at once, and those judged again."""
        both = [each.verdict for each in self.outcomes if each.verdict and each.verdict.get("live_cause")]
        return sum(each["live_cause"] != each["cause"] for each in both), len(both)

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "runs": self.planned,
            "injections": len(self.outcomes),
            "asked": len(self.scored),
            "left_out": {kind: asdict(each) for kind, each in self.left_out.items()},
            "verdicts": self.verdicts,
            **{name.replace(" ", "_"): self.count(name) for name in _OUTCOMES},
            "right_cause_share": self.right_cause_share,
            "right_culprit_share": self.right_culprit_share,
            "false_accusations": len(self.accusations),
            "share_error_median": self.share_error(50),
            "told_after_s": {"median": self.told_delay_s(50), "p99": self.told_delay_s(99)},
            "told_otherwise_at_once": self.misjudged[0],
            "undisturbed": self.undisturbed.document(),
            "confusion": self.confusion,
            "outcomes": [{**asdict(each), "share_error": each.share_error} for each in self.outcomes],
            "accusations": [asdict(each) for each in self.accusations],
            "failed": self.failed,
            "interrupted": self.interrupted,
        }


_OUTCOMES = (RIGHT, WRONG_CAUSE, WRONG_CULPRIT, MISSED, NO_EFFECT)


def campaign(
    specs: Sequence[RunSpec], progress: Callable[[CampaignProgress], None] = lambda _: None, *, keep: bool = True
) -> VerdictResult:
    """Do all runs that are not there already, and judge each; blocks. Ctrl-C ends it with what is there.

    keep: the datasets stay. A run that fails is named in the result, and the next one is done.
    """
    result = VerdictResult(len(specs))
    begun, lab_runs = time.monotonic(), 0
    try:
        for number, spec in enumerate(specs):
            left = (time.monotonic() - begun) / lab_runs * (len(specs) - number) if lab_runs else None
            progress(CampaignProgress(number, len(specs), len(result.outcomes), left))
            try:
                if not complete(spec.data):
                    lab_runs += 1
                    spec.data.parent.mkdir(parents=True, exist_ok=True)
                    run_lab(RunSpec(**{**spec.__dict__, "overwrite": True}))
                judge_run(spec.data, result)
            except NetmonError as error:
                result.failed.append(f"{spec.data.name}: {error}")
                log.warning("bench verdict: %s: %s", spec.data.name, error)
            if not keep:
                shutil.rmtree(spec.data, ignore_errors=True)
    except KeyboardInterrupt:
        result.interrupted = True
    return result


def judge_run(data: Path, result: VerdictResult) -> None:
    """Add what is said of a run that lies there. Raises DataError."""
    truth = read_truth(data)
    live = {each["iteration"]: each for each in stored(data) if each["job"] == truth.job}
    verdicts = [each for each in why(data, "") if each["job"] == truth.job]
    for each in verdicts:
        if at_once := live.get(each["iteration"]):
            each |= {"told_ns": at_once["told_ns"], "live_cause": at_once["cause"]}
    outcomes, accusations = score(data.name, truth, verdicts)
    accusations += accused(data.name, truth, live.values(), {each.verdict["iteration"] for each in accusations})
    result.add(data.name, outcomes, accusations, len(verdicts))
    result.undisturbed.add(truth, verdicts)


def why(data: Path, job: str) -> list[dict[str, Any]]:
    """What `netmon why --data DATA --json` says, as a user sees it. job: "" for all. Raises DataError."""
    command = [sys.executable, "-m", "netmon", "why", *([job] if job else []), "--data", str(data), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DataError(f"cannot judge {data}: {(done.stderr.strip().splitlines() or ['it ended'])[-1]}")
    verdicts: list[dict[str, Any]] = json.loads(done.stdout)["verdicts"]
    return verdicts


def stored(data: Path) -> list[dict[str, Any]]:
    """The verdicts that the collector stored during the training."""
    files = [str(path) for path in (data / "verdicts").rglob("*.parquet")]
    rows: list[dict[str, Any]] = ds.dataset(files, format="parquet").to_table().to_pylist() if files else []
    return rows
