# SPDX-License-Identifier: Apache-2.0
"""Runs of the lab: build the network, watch it, train, disturb, and leave data and truth behind."""

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from netmon.errors import LabError, UsageError
from netmon.lab.injections.injector import Injector
from netmon.lab.monitor import Monitor
from netmon.lab.network import Network, network, share_ports
from netmon.lab.process import PRIORITY
from netmon.lab.record import FOLDER, Record, prepare
from netmon.lab.spec import RunSpec
from netmon.lab.traffic.cross import CrossTraffic
from netmon.lab.traffic.profiles import Offer
from netmon.lab.trainers.ring import write_pace
from netmon.lab.training import Training, trainer_python
from netmon.views import Selection, Snapshot, SourceScore
from netmon.wire.watch import UnreachableError, follow, watch_once

_POLL_SECONDS = 0.05
_REST_SECONDS = 0.5  # for what is in flight when the training ends
_CROSS_PORT = 5201

View = Callable[[str], contextlib.AbstractContextManager[object]]
"""Shows a collector, given its address, for as long as its context is open."""


@dataclass(frozen=True)
class Progress:
    iterations_done: int
    iterations: int
    cross: bool  # cross traffic is being sent


@dataclass(frozen=True)
class RunResult:
    data: Path
    job: str
    cross: tuple[dict[str, Any], ...]  # as in cross.json


def run(
    spec: RunSpec,
    *,
    progress: Callable[[Progress], None] = lambda _: None,
    view: View = lambda _: contextlib.nullcontext(),
) -> RunResult:
    """Run `spec`; blocks until all is done and removed again. Raises UsageError, DataError or LabError.

    `view` is open from when agents and collector are ready until the training is over; it is not used where
    nothing is monitored. `progress` is called a few times per second.
    """
    spec.check()
    offered_bps(spec)  # a load file that is none is best found out now
    folder = prepare(spec.data, spec.overwrite)
    python = trainer_python(spec)
    with (
        Record(folder, spec) as record,
        network(spec.hosts, spec.rate_bps, spec.fair) as testbed,
        contextlib.ExitStack() as stack,
    ):
        if spec.trainer == "nccl":
            share_ports(testbed)
        monitor = stack.enter_context(Monitor(spec, testbed, folder / "log", spec.parameters)) if spec.monitor else None
        if monitor:
            record.event("monitor ready", (*monitor.collectors, *monitor.agents))
            with LiveScores(monitor.address) as live:
                with view(monitor.address):
                    result = train(spec, testbed, monitor, python, record, progress)
                time.sleep(_REST_SECONDS)
                monitor.end_agents()  # with what they read last, as of a timeline
            record.scores(live.of(result.job))
            monitor.end_in_order()
            record.event("monitor ended")
        else:
            result = train(spec, testbed, monitor, python, record, progress)
    return result


def train(
    spec: RunSpec,
    testbed: Network,
    monitor: Monitor | None,
    python: str,
    record: Record,
    progress: Callable[[Progress], None] = lambda _: None,
) -> RunResult:
    """One training in a network that stands, with cross traffic from when it is due; blocks. Raises LabError.

    With cross_after 0 the cross traffic is there before the training begins.
    """
    record.network(testbed, spec.ring)
    with contextlib.ExitStack() as stack:
        crosses = [stack.enter_context(cross) for cross in _cross_traffic(spec, testbed, record.folder / "log")]
        if spec.cross_after == 0:
            _begin(crosses, record)
        injector = stack.enter_context(Injector(spec, testbed, record))
        training = stack.enter_context(_training(spec, testbed, record, python))
        stack.enter_context(injector.during(training))
        for done in _iterations(training, spec.patience_seconds):
            injector.check()
            if not _begun(crosses) and done >= spec.cross_after * spec.iterations:
                _begin(crosses, record)
            progress(Progress(done, spec.iterations, bool(crosses) and _begun(crosses)))
            for cross in crosses:
                cross.check()
            if monitor:
                monitor.check()
        for cross in crosses:
            cross.stop()
        record.event("training ended")
        return RunResult(spec.data, training.job, tuple(cross.truth for cross in crosses))


def _training(spec: RunSpec, testbed: Network, record: Record, python: str) -> Training:
    (record.folder / "layers.json").write_text(json.dumps(spec.layer_sizes))
    training = Training(spec, testbed, record.folder, python)
    record.job(training.job)
    record.event("training", training.ranks)
    return training


def _begun(crosses: list[CrossTraffic]) -> bool:
    return all(cross.begun for cross in crosses)


def _begin(crosses: list[CrossTraffic], record: Record) -> None:
    if not crosses:
        return
    for cross in crosses:
        record.cross(cross.truth)
        cross.begin()
    record.event("cross traffic")


def _cross_traffic(spec: RunSpec, testbed: Network, logs: Path) -> Iterator[CrossTraffic]:
    if not spec.cross_load:
        return
    for number, (source, target) in enumerate(spec.cross):
        receiver = testbed.hosts[target]
        load = offered_bps(spec)
        offer = Offer(receiver.address, _CROSS_PORT + number, load, spec.rate_bps, spec.seed + number, spec.cross_file)
        name, sender = f"cross-{number}", testbed.hosts[source]
        yield CrossTraffic(name, spec.cross_profile, sender, receiver, offer, logs, PRIORITY)


def offered_bps(spec: RunSpec) -> float:
    """What each sender offers: as requested, or as its load file has it. Raises DataError where that is none."""
    if not spec.cross_file:
        return spec.cross_load * spec.rate_bps
    from netmon.lab.traffic.loads import read_load, summarise

    mean: float = summarise(read_load(spec.cross_file))["mean_bps"]
    return mean


def _iterations(training: Training, patience_seconds: float) -> Iterator[int]:
    """How many iterations are done, again and again until all ranks have ended. Raises LabError when stuck."""
    done, since = 0, time.monotonic()
    while not training.finished():
        time.sleep(_POLL_SECONDS)
        newly_done = training.iterations_done()
        if newly_done > done:
            done, since = newly_done, time.monotonic()
        if time.monotonic() - since > patience_seconds:
            raise LabError(f"gave up the training: iteration {done} did not end within {patience_seconds:.0f} s")
        yield done


# --- How the sources of iterations did against each other during a run, as the collector scored them.

_INTERVAL_MS = 500


class LiveScores:
    """Follows a collector while the context is open, on a thread of its own, and keeps every source's last score.

    They are nowhere else: a dataset holds the best source's iterations only.
    """

    def __init__(self, address: str) -> None:
        """address: of a collector that is ready, or of multiple workers."""
        self._address = address
        self._over = threading.Event()
        self._scores: dict[str, tuple[SourceScore, ...]] = {}
        self._thread = threading.Thread(target=self._follow, name="scores", daemon=True)

    def of(self, job: str) -> list[dict[str, Any]]:
        """One document for each source of the job that did not decide; times in ns."""
        return [
            {**asdict(one), "source": one.source.name.lower(), "reference": one.reference.name.lower(), "f1": one.f1}
            for one in self._scores.get(job, ())
        ]

    def __enter__(self) -> "LiveScores":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Block until one more snapshot has come: all that the collector has received by now is in it."""
        self._over.set()
        self._thread.join()
        with contextlib.suppress(UnreachableError):  # the run itself says so
            self._keep(watch_once(self._address, Selection()))

    def _follow(self) -> None:
        try:
            for snapshot in follow(self._address, _INTERVAL_MS, Selection):
                if isinstance(snapshot, Snapshot):
                    self._keep(snapshot)
                if self._over.is_set():
                    return
        except UnreachableError:  # the run itself says so
            return

    def _keep(self, snapshot: Snapshot) -> None:
        """Sources leave one after the other; once the best has, the others are compared with the next best."""
        for job in snapshot.jobs:
            known = self._scores.get(job.job, job.scores)
            if job.scores and job.scores[0].reference <= known[0].reference:
                before = [score for score in known if score.reference == job.scores[0].reference]
                self._scores[job.job] = tuple({one.source: one for one in (*before, *job.scores)}.values())


# --- Multiple jobs in one network, at the same time, watched: what an inference has to distinguish, and advice is for.

_PORT, _PORTS = 29_500, 200  # of the first job's ranks, and how far the next job's are away
_LOOK_SECONDS = 0.05
_BEGIN_NS = 300_000_000  # so late that ranks know of it before
_NEVER_NS = 1 << 62
MOST_ITERATIONS = 1_000_000


@dataclass(frozen=True)
class Jobs:
    address: str  # of the collector
    monitor: Monitor
    trainings: Mapping[str, Training]  # by job
    paces: Mapping[str, Path]

    def pace(self, begin_in_ns: Mapping[str, int], period_ns: int = 0) -> int:
        """These jobs begin an iteration so much later than the moment that is returned (CLOCK_MONOTONIC), and then one
        every period_ns (0: one after the other); the other jobs begin none."""
        moment = time.monotonic_ns() + _BEGIN_NS
        for job, path in self.paces.items():
            write_pace(path, moment + begin_in_ns[job] if job in begin_in_ns else _NEVER_NS, period_ns)
        return moment

    def wait(self, job: str, iterations: int) -> None:
        """Block until the job has done so many more. Raises LabError where a process ends before."""
        training = self.trainings[job]
        until = training.iterations_done() + iterations
        while training.iterations_done() < until:
            self.monitor.check()
            if all(map(Training.finished, self.trainings.values())):
                return
            time.sleep(_LOOK_SECONDS)


@contextlib.contextmanager
def together(data: Path, specs: Sequence[RunSpec]) -> Iterator[Jobs]:
    """Train all jobs, each named by its spec, until the context is left. Raises UsageError or LabError.

    All are of the lab's own trainer, without cross traffic, and on the first one's network. They may end in the middle
    of an iteration. DATA/lab/<job> has what DATA/lab has of a single run (netmon.lab.record); netmon.bench.inference
    reads both.
    """
    specs = [replace(spec, data=data, cross=(), cross_load=0.0) for spec in specs]
    first = replace(specs[0], hosts=max(max(spec.ring) for spec in specs) + 1)
    with contextlib.ExitStack() as stack:
        records = []
        for spec in specs:
            replace(spec, hosts=first.hosts).check()
            (data / FOLDER / spec.job / "log").mkdir(parents=True)
            records.append(stack.enter_context(Record(data / FOLDER / spec.job, spec)))
        testbed = stack.enter_context(network(first.hosts, first.rate_bps, first.fair))
        monitor = stack.enter_context(Monitor(first, testbed, data / FOLDER))
        with contextlib.ExitStack() as trainings:
            started, paces = {}, {}
            for number, (spec, record) in enumerate(zip(specs, records, strict=True)):
                record.network(testbed, spec.ring)
                record.job(spec.job)
                folder, port = data / FOLDER / spec.job, _PORT + number * _PORTS
                paces[spec.job] = folder / "pace"
                training = Training(spec, testbed, folder, sys.executable, port, paces[spec.job])
                started[spec.job] = trainings.enter_context(training)
            yield Jobs(monitor.address, monitor, started, paces)
        time.sleep(_REST_SECONDS)
        monitor.check()
        monitor.end_in_order()


def train_two_jobs(
    spec: RunSpec,
    hosts: Sequence[int],
    shift_ns: int = 0,
    period_ns: int = 0,
    began: Callable[[str], None] = lambda _: None,
) -> list[str]:
    """A job and another one like it on other hosts, until both have done their iterations; their names.

    shift_ns: by how much the second one begins its iterations later; period_ns: both begin one so often, 0: as soon as
    they can. began: called with the collector's address. Blocks. Raises UsageError or LabError.
    """
    if spec.trainer != "ring" or not spec.monitor:
        raise UsageError("cannot run two jobs: they take --trainer ring, and are watched")
    specs = [replace(spec, job=spec.job or "a"), replace(spec, job="b", ring=tuple(hosts))]
    with together(spec.data, specs) as jobs:
        began(jobs.address)
        jobs.pace({specs[0].job: 0, "b": shift_ns}, period_ns)
        for one in specs:
            jobs.wait(one.job, spec.iterations)
    return [one.job for one in specs]
