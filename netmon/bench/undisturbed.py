# SPDX-License-Identifier: Apache-2.0
"""`netmon bench hang --undisturbed HOURS`: training in order, and what is reported of it, which should be nothing.

One training of each trainer that is given runs at a time, all on the same hosts, and another one follows it. In each of
them ranks compile at first, all evaluate and write checkpoints, one loads data or works alone, collects garbage, has a
debugger attached, and batches change.
"""

import contextlib
import itertools
import re
import shutil
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from netmon.bench.hang import Place, kill, place, ranks_of, words
from netmon.bench.result import table
from netmon.bench.specs import HangSpec, Progress, silent
from netmon.errors import LabError
from netmon.history.groups import read_hangs
from netmon.lab.injections.spec import Injection
from netmon.lab.process import Process
from netmon.lab.training import Training, trainer_python
from netmon.terminal import FittingTable, figures, labels

_S = 1_000_000_000
_STEP_NS = _S // 4  # that a rank computes
_STEPS, _APART = 1_000, 80  # of a training; between two of its pauses
_PAUSES = (
    ("evaluate", (2.0, 30.0), 0.0),
    ("checkpoint", (5.0, 30.0), 0.0),
    ("late", (2.0, 30.0), 1.0),  # it compiles, or writes a checkpoint that the others wait for
    ("late", (0.5, 2.0), 0.1),  # it waits for its data
    ("gc", (0.2, 1.0), 0.0),
    ("batch", (0.1, 0.1), 1.5),
    ("batch", (0.1, 0.1), 0.8),
)
"""Kind, least and most seconds, and strength."""

_PAUSED = re.compile(r"^paused (\w+) (\d+) ", re.MULTILINE)
_COMPILING_S = (3.0, 20.0)
_DEBUGGED_S, _DEBUGGER_EVERY_S = 60.0, 150.0
_PORT = 29_600
_LOOK_S = 1.0
_PARAMETERS = 100_000


@dataclass
class UndisturbedResult:
    hours: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # of training, by trainer
    ended: Counter[str] = field(default_factory=Counter)  # trainings that came to their end, by trainer
    pauses: Counter[str] = field(default_factory=Counter)  # that ranks made, by kind
    reported: list[str] = field(default_factory=list)  # hangs
    failed: list[str] = field(default_factory=list)
    interrupted: bool = False

    def shown(self) -> Iterator[FittingTable | str]:
        """A row per trainer, then what was reported."""
        columns = [*labels("trainer"), *figures("hours", "ended in order")]
        rows = [(trainer, f"{hours:.2f}", str(self.ended[trainer])) for trainer, hours in self.hours.items()]
        yield table("training in which nothing hung", columns, rows)
        yield "pauses: " + (", ".join(f"{count} {kind}" for kind, count in sorted(self.pauses.items())) or "none")
        yield f"reported: {len(self.reported)} in {sum(self.hours.values()):.2f} hours"
        yield from self.reported
        yield from self.failed
        if self.interrupted:
            yield "interrupted: this is what was there"


def pauses(random: np.random.Generator, ranks: int) -> tuple[Injection, ...]:
    """Of one training, in the order of its steps."""

    def pause(kind: str, at: int, seconds: tuple[float, float], strength: float, rank: int) -> Injection:
        return Injection(kind, at, round(random.uniform(*seconds) * _S), strength, rank)

    found = [pause("late", 1, _COMPILING_S, 1.0, rank) for rank in range(ranks)]
    for at in range(_APART, _STEPS, _APART):
        kind, seconds, strength = _PAUSES[int(random.integers(len(_PAUSES)))]
        found.append(pause(kind, at, seconds, strength, int(random.integers(ranks))))
    return tuple(found)


class _Trainer:
    """The trainings of one trainer, one after the other."""

    def __init__(self, lab: Place, trainer: str, number: int, result: UndisturbedResult) -> None:
        self._lab, self._trainer, self._number, self._result = lab, trainer, number, result
        self._stack = contextlib.ExitStack()
        self._training: Training | None = None
        self._count, self._counted_s, self._debugged_s = 0, 0.0, 0.0

    def look(self, random: np.random.Generator) -> None:
        """Start a training if none runs; count the time of the one that does. Blocks while one starts."""
        now_s = time.monotonic()
        if self._training is None:
            self._start(random)
            self._counted_s = self._debugged_s = time.monotonic()
            return
        if self._training.iterations_done():
            self._result.hours[self._trainer] += (now_s - self._counted_s) / 3600
        self._counted_s = now_s
        try:
            if self._training.finished():
                self._result.ended[self._trainer] += 1
                self.end()
            elif now_s - self._debugged_s > _DEBUGGER_EVERY_S:
                self._debugged_s = now_s
                self._debug(int(random.integers(len(self._training.ranks))))
        except LabError as error:
            self._result.failed.append(f"{self._name()}: {error}")
            self.end()

    def _name(self) -> str:
        return f"{self._trainer}-{self._number}-{self._count}"

    def end(self) -> None:
        """Count what the ranks of the current training have done by now, and end it."""
        if self._training:
            lines = [_PAUSED.findall(rank.output()) for rank in self._training.ranks]
            self._result.pauses.update(kind for kind, _ in set(itertools.chain(*lines)))
            kill(self._training.ranks)
        self._stack.close()
        self._training = None

    def _start(self, random: np.random.Generator) -> None:
        self._count += 1
        about = {"parameters": _PARAMETERS, "compute_ns": _STEP_NS, "iterations": _STEPS}
        planned = pauses(random, ranks_of(self._trainer))
        spec = self._lab.spec(self._trainer, job=self._name(), injections=planned, **about)
        own = self._lab.folder / self._name()
        (own / "log").mkdir(parents=True)
        self._stack.callback(shutil.rmtree, own, ignore_errors=True)
        python = trainer_python(spec)
        self._training = self._stack.enter_context(Training(spec, self._lab.testbed, own, python, _PORT + self._number))
        self._logs = own / "log"

    def _debug(self, rank: int) -> None:
        """Attach a debugger to a rank."""
        assert self._training
        command = [sys.executable, "-m", "netmon.bench.debugger", str(self._training.ranks[rank].pid), f"{_DEBUGGED_S}"]
        self._stack.enter_context(Process(f"debugger-{time.monotonic_ns()}", command, self._logs))
        self._result.pauses["debugger"] += 1


def measure(spec: HangSpec, progress: Progress = silent) -> UndisturbedResult:
    """Blocks until all trainings together have run for spec.undisturbed hours. Ctrl-C ends it with what is there."""
    result, random = UndisturbedResult(), np.random.default_rng(spec.seed)
    with place(spec.trainers, spec.data) as lab, contextlib.ExitStack() as stack:
        trainers = [_Trainer(lab, trainer, number, result) for number, trainer in enumerate(spec.trainers)]
        for trainer in trainers:
            stack.callback(trainer.end)
        try:
            while (hours := sum(result.hours.values())) < spec.undisturbed:
                progress(hours, spec.undisturbed, f"{hours:.2f} hours of training")
                lab.monitor.check()
                for trainer in trainers:
                    trainer.look(random)
                time.sleep(_LOOK_S)
        except KeyboardInterrupt:
            result.interrupted = True
        until_ns = time.time_ns()  # ranks that are ended hang
        for trainer in trainers:
            trainer.end()
        lab.monitor.end_in_order()
        hangs = [hang for hang in read_hangs(lab.folder / "data") if hang.reported_ns < until_ns]
        result.reported = [words(hang) for hang in reversed(hangs)]
    return result
