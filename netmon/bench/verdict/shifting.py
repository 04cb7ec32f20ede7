# SPDX-License-Identifier: Apache-2.0
"""The advised shift compared with doing it: two jobs on one link, first as they come, then one of them shifted.

Each job trains alone for a while, then both begin together, and the collector is requested advice; then both begin
their iterations as often as it says, one of them so much after the other. What they took is from the trainers' own
logs: median time from one beginning to the next.

The switch serves senders in turn. In one queue for all, TCP gives more to whoever came first, so that jobs of equal
length move apart by themselves within a few iterations (as MLTCP, HotNets'24, makes them on purpose), and there is
nothing left for a shift to save.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from netmon.bench.result import table
from netmon.bench.verdict.plan import in_turn
from netmon.bench.verdict.scoring import percent, percentile
from netmon.dl.theory import ring_bytes
from netmon.errors import DataError
from netmon.lab.record import FOLDER
from netmon.lab.spec import RunSpec
from netmon.lab.together import MOST_ITERATIONS, Jobs, together
from netmon.lab.truth import Run
from netmon.terminal import FittingTable, figures, labels
from netmon.units import format_duration
from netmon.wire.queries import get_advice

WITHIN = 0.2
"""Of the measured gain: what a prediction is held to."""

_ALONE, _BOTH, _SHIFTED = 9, 18, 18  # iterations
_SETTLED = 2  # iterations after which a phase is what it is
_LAST = 12  # of them that count: the advice is on what there was when it was requested
_ADVICE_S = 30.0  # until there is some
_RINGS = ((0, 1), (0, 2))


@dataclass(frozen=True)
class Phase:
    """Some of a run; moments of CLOCK_MONOTONIC in ns."""

    begin_ns: int
    end_ns: int


@dataclass(frozen=True)
class Shifted:
    """One configuration. Times in ns: median of each job, mean over both; costs are against the same alone."""

    run: str
    rate_bps: int
    shift_ns: int
    period_ns: int  # to which both were held
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
class ShiftResult:
    """All of them; may still grow."""

    planned: int
    done: list[Shifted] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    interrupted: bool = False

    def document(self) -> dict[str, Any]:
        """For JSON."""
        names = ("gain", "predicted_gain", "error", "cost_before", "cost_after")
        return {
            "configurations": self.planned,
            "error": {
                "median": percentile([one.error for one in self.done], 50),
                "largest": percentile([one.error for one in self.done], 100),
            },
            "within_20_percent": sum(one.error <= WITHIN for one in self.done),
            "from_1.3_to_1.1": sum(one.cost_before >= 1.3 and one.cost_after <= 1.1 for one in self.done),
            "shifts": [{**asdict(one), **{name: getattr(one, name) for name in names}} for one in self.done],
            "failed": self.failed,
            "interrupted": self.interrupted,
        }

    def shown(self) -> Iterator[FittingTable | str]:
        """A row per pair of jobs: what a shift was said to save, and what it saved."""
        times = ("shift", "alone", "unshifted", "shifted")
        ratios = ("unshifted / alone", "shifted / alone", "predicted gain", "measured gain", "error")
        columns = [*labels("run"), *figures(*times, *ratios)]
        yield table("two jobs on a link: unshifted, and shifted as advised", columns, map(_row, self.done))
        document = self.document()
        yield (
            f"within 20 %: {document['within_20_percent']} of {self.planned}; from 1.3 × or more to 1.1 × or less: "
            f"{document['from_1.3_to_1.1']}"
        )
        yield from self.failed


def _row(one: Shifted) -> tuple[str, ...]:
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
            for name, ring, seconds in zip("ab", _RINGS, transfers_s.tolist(), strict=True)
        ]
        pairs.append((jobs[0], jobs[1]))
    return pairs


def shift(pairs: Sequence[tuple[RunSpec, RunSpec]], progress: Callable[[int], None] = lambda _: None) -> ShiftResult:
    """Do each; blocks. Ctrl-C ends it with what is there. progress: how many are done."""
    result = ShiftResult(len(pairs))
    plans = {pair[0].data.name: pair for pair in pairs}
    result.interrupted = in_turn(plans, lambda pair: result.done.append(_one(pair)), result.failed, progress)
    return result


def _one(specs: tuple[RunSpec, RunSpec]) -> Shifted:
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
