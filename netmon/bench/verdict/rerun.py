# SPDX-License-Identifier: Apache-2.0
"""The counterfactual compared with doing it: the same run again, without the culprit.

With it, each iteration that the culprit slowed has a verdict that says how long it would have taken; the median of
those is the prediction. Without it, the iterations of the same run are measured: their median by the trainers' own log.
A machine does not make the same run twice: by how much the two differ before the culprit comes stands alongside.
Horovod's iterations jitter by a quarter where three or four ranks share two cores, which no prediction can be held to
within 5 %: its jobs have two ranks here, and links on which the transfer is longer than what the cores add.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from netmon.bench.result import table
from netmon.bench.verdict.plan import RINGS, draw_run, ensure_run, in_turn, typical_iteration_ns
from netmon.bench.verdict.scoring import percent, percentile, why
from netmon.errors import DataError
from netmon.lab.injections.spec import Injection
from netmon.lab.record import Truth, read_truth
from netmon.lab.spec import RunSpec
from netmon.terminal import FittingTable, figures, labels
from netmon.units import format_duration

CULPRITS = ("cross", "job")
_ITERATIONS_HIT = 10
_LONGER = 2.5  # times the baseline that iterations may take with the culprit for so many to be hit
_QUIET_BEFORE = 16  # iterations, until there is a baseline
_AFTER = 3
_FEWEST = 3  # verdicts that make a prediction
_RINGS = {"horovod": ((0, 2), (3, 1))}
_RATES_MBPS = (200, 300)
_BLAMES = ("cross", "other_job")
WITHIN = 0.05
"""What a prediction is held to."""


@dataclass(frozen=True)
class Rerun:
    """One configuration. Medians in ns; predicted is None where no verdict blamed the culprit often enough."""

    run: str
    trainer: str
    culprit: str
    before_ns: float  # of the run with the culprit, before it came, by the log
    before_without_ns: float  # the same iterations of the other run: how alike the two runs are without a culprit
    slowed_ns: float  # with the culprit, by the log
    measured_ns: float  # without it, by the log
    predicted_ns: float | None
    verdicts: int

    @property
    def error(self) -> float | None:
        """|predicted − measured| / measured."""
        return None if self.predicted_ns is None else abs(self.predicted_ns - self.measured_ns) / self.measured_ns

    @property
    def spread(self) -> float:
        """By how much two runs of the same differ where there is no culprit: no prediction can be better than that."""
        return abs(self.before_ns - self.before_without_ns) / self.before_without_ns


@dataclass
class RerunResult:
    """All of them; may still grow."""

    planned: int
    reruns: list[Rerun] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    interrupted: bool = False

    @property
    def predicted(self) -> list[Rerun]:
        """Those with a prediction."""
        return [each for each in self.reruns if each.predicted_ns is not None]

    @property
    def alike(self) -> list[Rerun]:
        """Those with a prediction whose two runs were alike within WITHIN; only there it can be held to that."""
        return [each for each in self.predicted if each.spread <= WITHIN]

    def error(self, share: float) -> float | None:
        """Percentile of the predictions' errors."""
        return percentile([each.error for each in self.predicted if each.error is not None], share)

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "configurations": self.planned,
            "predicted": len(self.predicted),
            "error": {"median": self.error(50), "p90": self.error(90), "largest": self.error(100)},
            "within_5_percent": _within_limit(self.predicted),
            "alike": len(self.alike),
            "alike_within_5_percent": _within_limit(self.alike),
            "apart": percentile([each.spread for each in self.reruns], 50),
            "reruns": [{**asdict(each), "error": each.error, "apart": each.spread} for each in self.reruns],
            "failed": self.failed,
            "interrupted": self.interrupted,
        }

    def shown(self) -> Iterator[FittingTable | str]:
        """A row per configuration: what was predicted, and what it was when it was done."""
        medians = ("before", "with culprit", "predicted", "measured")
        columns = [*labels("run", "trainer", "culprit"), *figures(*medians, "error", "two runs differ by")]
        yield table("iteration time without the culprit: predicted, and measured", columns, map(_row, self.reruns))
        document = self.document()
        yield (
            f"{document['predicted']} of {self.planned} predicted; error: median {percent(self.error(50))}, "
            f"largest {percent(self.error(100))}; within 5 %: {document['within_5_percent']}, and "
            f"{document['alike_within_5_percent']} of the {document['alike']} whose two runs were alike within 5 %; "
            f"two runs differ by {percent(document['apart'])} (median) before there is a culprit"
        )
        yield from self.failed


def _row(each: Rerun) -> tuple[str, ...]:
    predicted = "nothing" if each.predicted_ns is None else format_duration(each.predicted_ns)
    before, slowed, measured = map(format_duration, (each.before_ns, each.slowed_ns, each.measured_ns))
    times = (before, slowed, predicted, measured)
    return each.run, each.trainer, each.culprit, *times, percent(each.error), percent(each.spread)


def _within_limit(some: Sequence[Rerun]) -> int:
    return sum(each.error is not None and each.error <= WITHIN for each in some)


def plan_reruns(count: int, seed: int, trainers: Sequence[str], data: Path) -> list[RunSpec]:
    """Runs with a culprit that stays for _ITERATIONS_HIT iterations; the same ones without it have no injection."""
    generator = np.random.default_rng([seed, 1])
    specs = []
    for number in range(count):
        kinds = (CULPRITS[number % len(CULPRITS)],)
        trainer = trainers[number % len(trainers)]
        rings = _RINGS.get(trainer, RINGS)
        spec = draw_run(generator, data / f"rerun-{number:03}", trainer, kinds, seed + number, rings, _RATES_MBPS)
        lasts = round(min(15e9, _LONGER * _ITERATIONS_HIT * typical_iteration_ns(spec)))
        (drawn,) = spec.injections
        ends = [spec.ring[0], spec.hosts - 1]  # the last host never trains
        source, target = ends if generator.integers(2) else reversed(ends)
        at = _QUIET_BEFORE + drawn.at % 1
        culprit = replace(
            drawn, at=at, duration_ns=lasts, strength=max(drawn.strength, 0.7), source=source, target=target
        )
        iterations = math.ceil(at) + _ITERATIONS_HIT + _AFTER
        specs.append(replace(spec, injections=(culprit,), iterations=iterations))
    return specs


def rerun(specs: Sequence[RunSpec], progress: Callable[[int], None] = lambda _: None) -> RerunResult:
    """Do each with and without its culprit; blocks. Ctrl-C ends it with what is there. progress: how many are done."""
    result = RerunResult(len(specs))
    plans = {spec.data.name: spec for spec in specs}
    result.interrupted = in_turn(plans, lambda spec: result.reruns.append(_one(spec)), result.failed, progress)
    return result


def _one(spec: RunSpec) -> Rerun:
    with_it, without = spec.data / "with", spec.data / "without"
    nothing = tuple(Injection("nothing", each.at, each.duration_ns) for each in spec.injections)
    for data, injections in ((with_it, spec.injections), (without, nothing)):
        ensure_run(replace(spec, data=data, injections=injections))
    disturbed, quiet = read_truth(with_it), read_truth(without)
    if not disturbed.injections:
        raise DataError(f"cannot predict by {with_it}: the training ended before anything was injected")
    (injection,) = disturbed.injections
    hit = disturbed.hit(injection)
    verdicts = [
        each["counterfactual_ns"]
        for each in why(with_it, disturbed.job)
        if each["cause"] in _BLAMES and each["counterfactual_ns"] and _within(each, disturbed, injection)
    ]
    return Rerun(
        spec.data.name,
        spec.trainer,
        injection["kind"],
        float(np.median(disturbed.lasted_ns[1 : hit[0]])),
        float(np.median(quiet.lasted_ns[1 : hit[0]])),
        float(np.median(disturbed.lasted_ns[hit])),
        float(np.median(quiet.lasted_ns[1:])),
        float(np.median(verdicts)) if len(verdicts) >= _FEWEST else None,
        len(verdicts),
    )


def _within(verdict: dict[str, Any], truth: Truth, injection: dict[str, Any]) -> bool:
    until = injection["end_ns"] or int(truth.end_ns[-1])
    return bool(injection["start_ns"] < verdict["end_ns"] and verdict["start_ns"] < until)
