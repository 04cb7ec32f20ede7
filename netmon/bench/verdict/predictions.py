# SPDX-License-Identifier: Apache-2.0
"""Predictions of verdicts and advice, compared with measurements: runs without the culprit, and shifted jobs."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from netmon.bench.result import table
from netmon.bench.verdict.plan import RINGS, draw_run, ensure_run, in_turn, typical_iteration_ns
from netmon.bench.verdict.scoring import percent, percentile, why
from netmon.dl.classify import ring_bytes
from netmon.errors import DataError
from netmon.lab.injections.spec import Injection
from netmon.lab.record import FOLDER, Run, read_truth
from netmon.lab.run import MOST_ITERATIONS, Jobs, together
from netmon.lab.spec import RunSpec
from netmon.terminal import FittingTable, figures, labels
from netmon.units import format_duration
from netmon.wire.questions import get_advice

_Plan = TypeVar("_Plan")
_One = TypeVar("_One")


@dataclass
class Configurations(Generic[_One]):
    """Configurations that run twice, to compare the two."""

    planned: int
    done: list[_One] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    interrupted: bool = False

    def do(self, plans: Mapping[str, _Plan], one: Callable[[_Plan], _One], progress: Callable[[int], None]) -> None:
        """Do each, by name; blocks. Ctrl-C ends it with what is there. progress: how many are over."""
        self.planned = len(plans)
        self.interrupted = in_turn(plans, lambda plan: self.done.append(one(plan)), self.failed, progress)


# --- The counterfactual compared with a measurement: the same run again, without the culprit.
#
# With it, each iteration that the culprit slowed has a verdict that says how long it would have taken; the median of
# those is the prediction. Without it, the iterations of the same run are measured: their median by the trainers' log.
# A machine does not repeat a run exactly: the result also states by how much the two differ before the culprit begins.
# Horovod's iterations jitter by a quarter where three or four ranks share two cores, which no prediction meets within
# 5 %: its jobs have two ranks here, and links on which the transfer is longer than what the cores add.

CULPRITS = ("cross", "job")
_ITERATIONS_HIT = 10
_LONGER = 2.5  # times the baseline that iterations may take with the culprit for so many to be hit
_QUIET_BEFORE = 16  # iterations, until there is a baseline
_AFTER = 3
_FEWEST = 3  # verdicts that make a prediction
_RERUN_RINGS = {"horovod": ((0, 2), (3, 1))}
_RATES_MBPS = (200, 300)
_BLAMES = ("cross", "other_job")
PREDICTED_WITHIN = 0.05
"""Limit of a prediction's error."""


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
class RerunResult(Configurations[Rerun]):
    @property
    def predicted(self) -> list[Rerun]:
        return [each for each in self.done if each.predicted_ns is not None]

    @property
    def alike(self) -> list[Rerun]:
        """Those with a prediction whose two runs were alike within PREDICTED_WITHIN: only they can meet that limit."""
        return [each for each in self.predicted if each.spread <= PREDICTED_WITHIN]

    def error(self, share: float) -> float | None:
        """Percentile of the predictions' errors."""
        return percentile([each.error for each in self.predicted if each.error is not None], share)

    def document(self) -> dict[str, Any]:
        return {
            "configurations": self.planned,
            "predicted": len(self.predicted),
            "error": {"median": self.error(50), "p90": self.error(90), "largest": self.error(100)},
            "within_5_percent": _within_limit(self.predicted),
            "alike": len(self.alike),
            "alike_within_5_percent": _within_limit(self.alike),
            "spread": percentile([each.spread for each in self.done], 50),
            "reruns": [{**asdict(each), "error": each.error, "spread": each.spread} for each in self.done],
            "failed": self.failed,
            "interrupted": self.interrupted,
        }

    def shown(self) -> Iterator[FittingTable | str]:
        medians = ("before", "with culprit", "predicted", "measured")
        columns = [*labels("run", "trainer", "culprit"), *figures(*medians, "error", "two runs differ by")]
        yield table("iteration time without the culprit: predicted, and measured", columns, map(_rerun_row, self.done))
        document = self.document()
        yield (
            f"{document['predicted']} of {self.planned} predicted; error: median {percent(self.error(50))}, "
            f"largest {percent(self.error(100))}; within 5 %: {document['within_5_percent']}, and "
            f"{document['alike_within_5_percent']} of the {document['alike']} whose two runs were alike within 5 %; "
            f"two runs differ by {percent(document['spread'])} (median) before there is a culprit"
        )
        yield from self.failed


def _rerun_row(each: Rerun) -> tuple[str, ...]:
    predicted = "nothing" if each.predicted_ns is None else format_duration(each.predicted_ns)
    before, slowed, measured = map(format_duration, (each.before_ns, each.slowed_ns, each.measured_ns))
    times = (before, slowed, predicted, measured)
    return each.run, each.trainer, each.culprit, *times, percent(each.error), percent(each.spread)


def _within_limit(some: Sequence[Rerun]) -> int:
    return sum(each.error is not None and each.error <= PREDICTED_WITHIN for each in some)


def plan_reruns(count: int, seed: int, trainers: Sequence[str], data: Path) -> list[RunSpec]:
    """Runs with a culprit that stays for _ITERATIONS_HIT iterations; the same ones without it have no injection."""
    generator = np.random.default_rng([seed, 1])
    specs = []
    for number in range(count):
        kinds = (CULPRITS[number % len(CULPRITS)],)
        trainer = trainers[number % len(trainers)]
        rings = _RERUN_RINGS.get(trainer, RINGS)
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


def rerun(spec: RunSpec) -> Rerun:
    """Do it with and without its culprit; blocks. Raises DataError or LabError."""
    with_it, without = spec.data / "with", spec.data / "without"
    nothing = tuple(Injection("nothing", each.at, each.duration_ns) for each in spec.injections)
    for data, injections in ((with_it, spec.injections), (without, nothing)):
        ensure_run(replace(spec, data=data, injections=injections))
    disturbed, quiet = read_truth(with_it), read_truth(without)
    if not disturbed.injections:
        raise DataError(f"cannot predict by {with_it}: the training ended before anything was injected")
    (injection,) = disturbed.injections
    hit, until = disturbed.hit(injection), injection["end_ns"] or int(disturbed.end_ns[-1])
    verdicts = [
        each["counterfactual_ns"]
        for each in why(with_it, disturbed.job)
        if each["cause"] in _BLAMES and each["counterfactual_ns"]
        if injection["start_ns"] < each["end_ns"] and each["start_ns"] < until
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


# --- The advised shift compared with a measurement: two jobs on one link, first unshifted, then one of them shifted.
#
# Each job trains alone for a while. Then both begin together, and the collector advises. Then both begin
# their iterations with the advised period, one of them shifted. Durations are from the trainers' own logs: the median
# time from one beginning to the next.
#
# The switch serves senders in turn. In one queue for all, TCP gives more to whoever came first, so that jobs of equal
# length drift out of phase by themselves within a few iterations (as MLTCP, HotNets'24, makes them on purpose), and a
# shift has nothing left to save.

SHIFTED_WITHIN = 0.2
"""Limit of a prediction's error, as a share of the measured gain."""

_ALONE, _BOTH, _SHIFTED = 9, 18, 18  # iterations
_SETTLED = 2  # iterations after which a phase is what it is
_LAST = 12  # of them that count: the advice is on what there was when it was requested
_ADVICE_S = 30.0  # until there is some
_SHIFT_RINGS = ((0, 1), (0, 2))


@dataclass(frozen=True)
class Phase:
    """A part of a run; moments of CLOCK_MONOTONIC in ns."""

    begin_ns: int
    end_ns: int


@dataclass(frozen=True)
class Shifted:
    """One configuration. Times in ns: median of each job, mean over both; costs are against the same alone."""

    run: str
    rate_bps: int
    shift_ns: int
    period_ns: int  # to which both were paced
    alone_ns: float
    before_ns: float
    after_ns: float
    predicted_before_ns: float
    predicted_after_ns: float

    @property
    def gain(self) -> float:
        """Share of the time that the shift saved."""
        return 1 - self.after_ns / self.before_ns

    @property
    def predicted_gain(self) -> float:
        """The same as advised."""
        return 1 - self.predicted_after_ns / self.predicted_before_ns

    @property
    def error(self) -> float:
        """|predicted − measured| / measured."""
        return abs(self.predicted_gain - self.gain) / abs(self.gain) if self.gain else float("inf")

    @property
    def cost_before(self) -> float:
        """Of sharing, × the time alone."""
        return self.before_ns / self.alone_ns

    @property
    def cost_after(self) -> float:
        """The same, shifted."""
        return self.after_ns / self.alone_ns


@dataclass
class ShiftResult(Configurations[Shifted]):
    def document(self) -> dict[str, Any]:
        names = ("gain", "predicted_gain", "error", "cost_before", "cost_after")
        return {
            "configurations": self.planned,
            "error": {
                "median": percentile([one.error for one in self.done], 50),
                "largest": percentile([one.error for one in self.done], 100),
            },
            "within_20_percent": sum(one.error <= SHIFTED_WITHIN for one in self.done),
            "from_1.3_to_1.1": sum(one.cost_before >= 1.3 and one.cost_after <= 1.1 for one in self.done),
            "shifts": [{**asdict(one), **{name: getattr(one, name) for name in names}} for one in self.done],
            "failed": self.failed,
            "interrupted": self.interrupted,
        }

    def shown(self) -> Iterator[FittingTable | str]:
        times = ("shift", "alone", "unshifted", "shifted")
        ratios = ("unshifted / alone", "shifted / alone", "predicted gain", "measured gain", "error")
        columns = [*labels("run"), *figures(*times, *ratios)]
        yield table("two jobs on a link: unshifted, and shifted as advised", columns, map(_shift_row, self.done))
        document = self.document()
        yield (
            f"within 20 %: {document['within_20_percent']} of {self.planned}; from 1.3 × or more to 1.1 × or less: "
            f"{document['from_1.3_to_1.1']}"
        )
        yield from self.failed


def _shift_row(one: Shifted) -> tuple[str, ...]:
    medians = map(format_duration, (one.shift_ns, one.alone_ns, one.before_ns, one.after_ns))
    costs = (f"{cost:.2f}" for cost in (one.cost_before, one.cost_after))
    return one.run, *medians, *costs, *map(percent, (one.predicted_gain, one.gain, one.error))


def plan_shifts(count: int, seed: int, data: Path) -> list[tuple[RunSpec, RunSpec]]:
    """Pairs of jobs whose iterations take equally long alone, and that transfer for less than half of that.

    Both begin at once, so that each iteration takes longer by the shorter transfer: by a third.
    """
    generator = np.random.default_rng([seed, 2])
    pairs = []
    for number in range(count):
        rate = int(generator.choice([200, 300])) * 1_000_000
        transfers_s = generator.uniform(0.1, 0.13, 2)
        period_s = transfers_s.sum() * generator.uniform(1.25, 1.35)
        jobs = [
            RunSpec(
                data / f"shift-{number:03}",
                job=name,
                ring=ring,
                rate_bps=rate,
                parameters=round(rate * seconds / 8 / ring_bytes(len(ring), 1)),
                compute_ns=round(1e9 * (period_s - seconds)),
                iterations=MOST_ITERATIONS,
                stream_ns=1_000_000,
                fair=True,
                seed=seed,
            )
            for name, ring, seconds in zip("ab", _SHIFT_RINGS, transfers_s.tolist(), strict=True)
        ]
        pairs.append((jobs[0], jobs[1]))
    return pairs


def shift(specs: tuple[RunSpec, RunSpec]) -> Shifted:
    """Do the two unshifted and shifted; blocks. Raises DataError or LabError."""
    data, names = specs[0].data, [spec.job for spec in specs]
    if data.exists():
        raise DataError(f"cannot shift jobs in {data}: it is there already; choose another --data")
    data.mkdir(parents=True)
    with together(data, specs) as jobs:
        alone = {name: _phase(jobs, {name: 0}, 0, name, _ALONE) for name in names}
        both = _phase(jobs, dict.fromkeys(names, 0), 0, names[0], _BOTH)
        share, until = _advised(jobs.address, names)
        period = share["hold_ns"]
        later = {share["others"][0]: 0, share["job"]: round(share["offset_ns"])}
        shifted = _phase(jobs, later, period, names[0], _SHIFTED)
    both = Phase(both.begin_ns, until)
    predicted = [(share["shared_ns"], share["shifted_ns"])]
    predicted += zip(share["others_shared_ns"], share["others_shifted_ns"], strict=True)
    before, after = np.mean(predicted, axis=0)
    return Shifted(
        data.name,
        specs[0].rate_bps,
        share["shift_ns"],
        period,
        float(np.mean([_median(data, name, alone[name]) for name in names])),
        float(np.mean([_median(data, name, both) for name in names])),
        float(np.mean([_median(data, name, shifted) for name in names])),
        float(before),
        float(after),
    )


def _phase(jobs: Jobs, later: Mapping[str, int], period_ns: int, wait_for: str, iterations: int) -> Phase:
    begin = jobs.pace(later, period_ns)
    jobs.wait(wait_for, iterations)
    return Phase(begin, time.monotonic_ns())


def _advised(address: str, names: Sequence[str]) -> tuple[dict[str, Any], int]:
    """The collector's advice on the two, and when it was given."""
    deadline, said = time.monotonic() + _ADVICE_S, "no advice"
    while time.monotonic() < deadline:
        answer = get_advice(address, names[0])
        for share in answer["shares"]:
            worth = share["hold_ns"] and (share["advised"] or share["to_be_held"])
            if worth and {share["job"], *share["others"]} == set(names):
                return share, time.monotonic_ns()
        said = "; ".join(answer["advice"])
        time.sleep(1.0)
    raise DataError(f"no shift is advised: {said}")


def _median(data: Path, job: str, phase: Phase) -> float:
    """Median time from one beginning of an iteration to the next."""
    starts: npt.NDArray[np.int64] = Run(data / FOLDER / job).rank(0)["step_start_ns"]
    own = starts[(starts >= phase.begin_ns) & (starts < phase.end_ns)][_SETTLED:][-_LAST:]
    if len(own) < 3:
        raise DataError(f"job {job} did too few iterations")
    return float(np.median(np.diff(own)))
