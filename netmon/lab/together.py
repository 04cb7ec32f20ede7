# SPDX-License-Identifier: Apache-2.0
"""Several jobs in one network, at the same time, watched: what an inference has to distinguishes, and advice is for."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from netmon.errors import UsageError
from netmon.lab.monitor import Monitor
from netmon.lab.network import network
from netmon.lab.record import FOLDER, Record
from netmon.lab.spec import RunSpec
from netmon.lab.trainers.ring import write_pace
from netmon.lab.training import Training

_PORT, _PORTS = 29_500, 200  # of the first job's ranks, and how far the next job's are away
_REST_SECONDS = 0.5  # for what is in flight when the training ends
_LOOK_SECONDS = 0.05
_BEGIN_NS = 300_000_000  # so late that ranks hear of it before
_NEVER_NS = 1 << 62
MOST_ITERATIONS = 1_000_000


@dataclass(frozen=True)
class Jobs:
    """What trains now."""

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
    of an iteration. DATA/lab/<job> has what DATA/lab has of a single run (netmon.lab.record); netmon.lab.labelled
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


def train_together(data: Path, specs: Sequence[RunSpec], seconds: float) -> None:
    """Train all jobs for so long; blocks. As together."""
    with together(data, [replace(spec, iterations=MOST_ITERATIONS) for spec in specs]):
        time.sleep(seconds)


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
