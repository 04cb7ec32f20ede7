# SPDX-License-Identifier: Apache-2.0
"""What verdicts cost: agents that tell what they rest on and a collector that judges, and the same ones without.

A job of the lab trains on three hosts; now and then one rank is stopped, so that iterations stand out. Each round has a
run of both kinds, in turns, after which CPU time per second of training is compared.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np

from netmon.bench.result import table
from netmon.bench.specs import OverheadSpec, Progress, silent
from netmon.bench.usage import children, process_seconds
from netmon.lab.injections.spec import Injection
from netmon.lab.monitor import Monitor
from netmon.lab.network import network
from netmon.lab.process import Process
from netmon.lab.record import Record, prepare
from netmon.lab.run import train
from netmon.lab.spec import RunSpec
from netmon.terminal import FittingTable, figures, labels

_RANKS = (0, 1, 2)
_COMPUTE_NS = 60_000_000
_PARAMETERS = 600_000
_ITERATION_NS = 100_000_000  # about
_STOP_NS, _STOP_EVERY = 150_000_000, 25  # iterations
_SETTLE_S = 4.0  # for what starting left to do


@dataclass(frozen=True)
class Costs:
    """Of one run, as shares of a core."""

    agent: float  # mean of the hosts with a rank
    collector: float  # with its processes


@dataclass(frozen=True)
class More:
    """By how much one side of the rounds is dearer: the median, and the least and the most of all rounds.

    Of n independent rounds the true median lies between these two with a probability of 1 − 2^(1 − n), whatever the
    noise is like (the sign test's interval): five rounds give 94 %, seven 98 %.
    """

    median: float
    least: float
    most: float


@dataclass(frozen=True)
class EvidenceResult:
    """All rounds, in their order: of each a run with and one without, the one right after the other."""

    ALSO = ("agent_more", "collector_more", "sureness")
    seconds: float
    with_all: tuple[Costs, ...]
    without: tuple[Costs, ...]

    @property
    def agent_more(self) -> More:
        """Of a core, for each agent."""
        return self._more(lambda one, other: one.agent - other.agent)

    @property
    def collector_more(self) -> More:
        """Of the collector's CPU time without."""
        return self._more(lambda one, other: one.collector / other.collector - 1)

    @property
    def sureness(self) -> float:
        """The probability that a true median lies within its rounds."""
        return float(1 - 2.0 ** (1 - len(self.without)))

    def _more(self, of: Callable[[Costs, Costs], float]) -> More:
        found = [of(*pair) for pair in zip(self.with_all, self.without, strict=True)]
        return More(float(np.median(found)), min(found), max(found))

    def shown(self) -> Iterator[FittingTable]:
        yield table(
            "what verdicts and their evidence cost",
            [*labels("of a core"), *figures("with", "without", "more", "least", "most")],
            (
                self._row("agent", self.agent_more, "{:+.2%}"),
                self._row("collector", self.collector_more, "{:+.1%} of it"),
            ),
            f"Medians of {len(self.without)} rounds, each of a run with and one without. With: agents tell what TCP "
            "says and what keeps ranks and hosts from running, and the collector judges; without: neither. An agent: "
            "mean of three hosts with a rank each. Least, most: of a single round; the true median lies between them "
            f"with a probability of {self.sureness:.0%}.",
        )

    def _row(self, name: str, more: More, form: str) -> tuple[str, ...]:
        sides = (np.median([getattr(one, name) for one in side]) for side in (self.with_all, self.without))
        return (name, *(f"{side:.2%}" for side in sides), *(form.format(one) for one in astuple(more)))


def measure(spec: OverheadSpec, progress: Progress = silent) -> EvidenceResult:
    """Blocks for about 2 · (seconds + 12 s) per round. Raises LabError."""
    found: dict[bool, list[Costs]] = {True: [], False: []}
    for number in range(spec.rounds):
        for index, evidence in enumerate((True, False) if number % 2 else (False, True)):
            with tempfile.TemporaryDirectory(prefix="netmon-bench-", dir="/dev/shm") as folder:
                found[evidence].append(_run(Path(folder) / "data", spec.seconds, evidence))
            progress(number + (index + 1) / 2, spec.rounds)
    return EvidenceResult(spec.seconds, tuple(found[True]), tuple(found[False]))


def _run(data: Path, seconds: float, evidence: bool) -> Costs:
    spec = _spec(data, seconds, evidence)
    folder = prepare(data, False)
    with (
        Record(folder, spec) as record,
        network(spec.hosts, spec.rate_bps) as testbed,
        Monitor(spec, testbed, folder / "log", spec.parameters) as monitor,
    ):
        time.sleep(_SETTLE_S)
        before, begun = _seconds(monitor), time.monotonic()
        train(spec, testbed, monitor, sys.executable, record)
        took = time.monotonic() - begun
        agents, collector = ((now - then) / took for now, then in zip(_seconds(monitor), before, strict=True))
        monitor.end_in_order()
    return Costs(agents / len(_RANKS), collector)


def _spec(data: Path, seconds: float, evidence: bool) -> RunSpec:
    iterations = max(2 * _STOP_EVERY, round(seconds * 1e9 / _ITERATION_NS))
    stops = tuple(
        Injection("stop", at=at + 0.3, duration_ns=_STOP_NS, rank=at // _STOP_EVERY % len(_RANKS))
        for at in range(_STOP_EVERY, iterations - 1, _STOP_EVERY)
    )
    return RunSpec(
        data,
        hosts=len(_RANKS),
        ring=_RANKS,
        cross=(),
        cross_load=0.0,
        parameters=_PARAMETERS,
        compute_ns=_COMPUTE_NS,
        iterations=iterations,
        injections=stops,
        stream_ns=1_000_000,
        evidence=evidence,
    )


def _seconds(monitor: Monitor) -> tuple[float, float]:
    """CPU time so far of the agents, and of the collector."""
    return _of(monitor.agents), _of(monitor.collectors)


def _of(processes: Sequence[Process]) -> float:
    pids = [process.pid for process in processes]
    return process_seconds([*pids, *(child for pid in pids for child in children(pid))])
