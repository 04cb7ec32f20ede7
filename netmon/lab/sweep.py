# SPDX-License-Identifier: Apache-2.0
"""A study: many runs in random order, in one network and into one dataset, that goes on after an interruption."""

import itertools
import json
import random
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from netmon.dl.classify import ring_bytes
from netmon.errors import DataError, UsageError
from netmon.lab.monitor import Monitor
from netmon.lab.network import Network, network
from netmon.lab.record import FOLDER, RUNS, SWEEP, Record, Run, prepare
from netmon.lab.run import LiveScores, train
from netmon.lab.spec import RunSpec
from netmon.lab.training import trainer_python

# --- How long the rest of a sweep will take: as theory has it, corrected by how long the runs so far took.

_RUN_SECONDS = 2.5  # to start and end its processes
_PAYLOAD = 1448 / 1514  # of a frame, and so of a link's rate


class TimeLeft:
    def __init__(self, specs: Mapping[str, RunSpec]) -> None:
        """specs: of the runs that are to be done, by their ids."""
        self._iterations = {run: spec.iterations for run, spec in specs.items()}
        self._expected = {run: expected_seconds(spec) for run, spec in specs.items()}
        self._waiting = set(specs)
        self._begun = time.monotonic()
        self._done = 0.0  # seconds, expected ones

    def finished(self, run: str) -> None:
        self._waiting.remove(run)
        self._done += self._expected[run]

    def seconds(self, run: str, iterations: int) -> float:
        """Left for all runs, when `iterations` of this one are done."""
        done = self._done + self._expected[run] * iterations / self._iterations[run]
        rest = self._done + sum(self._expected[each] for each in self._waiting) - done
        pace = (time.monotonic() - self._begun) / done if self._done else 1.0
        return rest * pace


def expected_seconds(spec: RunSpec) -> float:
    """Computing, and what communicating (3.1) in the bandwidth that is left takes longer than the backward pass."""
    communication = ring_bytes(len(spec.ring), spec.parameters) * 8
    communication /= max(0.05, _PAYLOAD - spec.cross_load) * spec.rate_bps
    compute = spec.compute_ns / 1e9
    overlap = spec.backward_share * compute
    return _RUN_SECONDS + spec.iterations * (compute - overlap + max(overlap, communication))


# --- sweep


_REST_SECONDS = 0.5


@dataclass(frozen=True)
class SweepSpec:
    """What is varied, and what all runs share (`base`). Every combination is a run."""

    base: RunSpec
    models: tuple[str, ...] = ("resnet50", "inceptionv3")
    profiles: tuple[str, ...] = ("websearch", "burst")
    levels: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9)  # payload of the cross traffic, of the link's rate
    repetitions: int = 1
    batch: int = 0  # 0: each model's own


@dataclass(frozen=True)
class Planned:
    id: str
    model: str
    profile: str
    level: float
    repetition: int
    seed: int


@dataclass(frozen=True)
class SweepProgress:
    run: Planned
    number: int  # of this run, from 1
    runs: int
    iterations_done: int
    iterations: int
    seconds_left: float  # of all runs


def plan(spec: SweepSpec) -> list[Planned]:
    """All runs, in the order that the seed gives. The same level of another profile or model has the same seed."""
    combinations = itertools.product(spec.models, spec.profiles, spec.levels, range(1, spec.repetitions + 1))
    runs = [
        Planned(f"{model}-{profile}-{100 * level:g}-{number}", model, profile, level, number, spec.base.seed + number)
        for model, profile, level, number in combinations
    ]
    random.Random(spec.base.seed).shuffle(runs)
    return runs


def run_spec(spec: SweepSpec, planned: Planned) -> RunSpec:
    base = replace(spec.base, cross_profile=planned.profile, cross_load=planned.level, cross_after=0.0)
    return replace(base.of(planned.model, spec.batch), seed=planned.seed, job=planned.id)


def sweep(spec: SweepSpec, progress: Callable[[SweepProgress], None] = lambda _: None) -> list[Planned]:
    """Do all runs that are not done yet; blocks. Returns them all. Raises UsageError, DataError or LabError.

    Interrupted, it goes on where it was when it is called again with the same spec.
    """
    check(spec)
    runs = plan(spec)
    specs = {planned: run_spec(spec, planned) for planned in runs}
    for each in specs.values():
        each.check()
    folder = _folder(spec, runs)
    left = [planned for planned in runs if not Run(folder / RUNS / planned.id).complete]
    if not left:
        return runs
    clock = TimeLeft({planned.id: specs[planned] for planned in left})
    python = trainer_python(spec.base)
    logs = folder / "log"
    with network(spec.base.hosts, spec.base.rate_bps) as testbed, ExitStack() as stack:
        monitor = stack.enter_context(Monitor(spec.base, testbed, logs)) if spec.base.monitor else None
        live = stack.enter_context(LiveScores(monitor.address)) if monitor else None
        for planned in left:
            number = runs.index(planned) + 1

            def report(done: int, planned: Planned = planned, number: int = number) -> None:
                seconds = clock.seconds(planned.id, done)
                progress(SweepProgress(planned, number, len(runs), done, spec.base.iterations, seconds))

            _one_run(specs[planned], planned, folder / RUNS / planned.id, testbed, monitor, live, python, report)
            clock.finished(planned.id)
        if monitor:
            monitor.end_in_order()
    return runs


def _one_run(
    spec: RunSpec,
    planned: Planned,
    folder: Path,
    testbed: Network,
    monitor: Monitor | None,
    live: LiveScores | None,
    python: str,
    report: Callable[[int], None],
) -> None:
    if folder.exists():  # begun before: what it left in the tables belongs to another job
        shutil.rmtree(folder)
        spec = replace(spec, job=f"{planned.id}~{testbed.lease.run}")
    (folder / "log").mkdir(parents=True)
    with Record(folder, spec, **asdict(planned)) as record:
        result = train(spec, testbed, monitor, python, record, lambda progress: report(progress.iterations_done))
        time.sleep(_REST_SECONDS)
        if live:
            record.scores(live.of(result.job))


def _folder(spec: SweepSpec, runs: list[Planned]) -> Path:
    """DATA/lab, made or found to hold this very sweep. Raises DataError."""
    base = spec.base
    shared = {name: value for name, value in asdict(base).items() if name not in ("data", "overwrite")}
    ours = {"spec": shared, "batch": spec.batch, "runs": [asdict(planned) for planned in runs]}
    file = base.data / FOLDER / SWEEP
    if file.exists() and not base.overwrite:
        if read_sweep(base.data) != json.loads(json.dumps(ours, default=str)):
            raise DataError(
                f"cannot go on with the sweep in {base.data}: it has other options; give them, or --overwrite"
            )
        return file.parent
    folder = prepare(base.data, base.overwrite)
    file.write_text(json.dumps(ours, indent=2, default=str) + "\n")
    return folder


def read_sweep(data: Path) -> dict[str, Any]:
    """The plan of the sweep in DATA. Raises DataError."""
    try:
        planned: dict[str, Any] = json.loads((data / FOLDER / SWEEP).read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read the sweep in {data}: {error}") from None
    return planned


def check(spec: SweepSpec) -> None:
    """Raise UsageError where nothing is varied or a number makes no sense."""
    for wrong, reason in (
        (not spec.models or not spec.profiles or not spec.levels, "without models, profiles or levels"),
        (spec.repetitions < 1, f"{spec.repetitions} repetitions"),
        (len(set(spec.levels)) < len(spec.levels), "a level twice; use --repetitions"),
    ):
        if wrong:
            raise UsageError(f"cannot sweep: {reason}")
