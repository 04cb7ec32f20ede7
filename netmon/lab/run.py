# SPDX-License-Identifier: Apache-2.0
"""One run of the lab: build the network, watch it, train, disturb, and leave data and truth behind."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from netmon.errors import LabError
from netmon.lab.monitor import Monitor
from netmon.lab.network import Network, network
from netmon.lab.record import Record, prepare
from netmon.lab.spec import RunSpec
from netmon.lab.traffic.cross import CrossTraffic
from netmon.lab.traffic.profiles import Offer
from netmon.lab.training import Training, horovod_python

_POLL_SECONDS = 0.05
_REST_SECONDS = 0.5  # for what is in flight when the training ends
_CROSS_PORT = 5201

View = Callable[[str], contextlib.AbstractContextManager[object]]
"""Shows a collector, given its address, for as long as its context is open."""


@dataclass(frozen=True)
class Progress:
    """How far a run is."""

    iterations_done: int
    iterations: int
    cross: bool  # cross traffic is being sent


@dataclass(frozen=True)
class RunResult:
    """What a run left behind."""

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
    folder = prepare(spec.data, spec.overwrite)
    python = horovod_python() if spec.trainer == "horovod" else sys.executable
    with Record(folder, spec) as record, network(spec.hosts, spec.rate_bps) as testbed:
        record.network(testbed, spec.ring)
        with contextlib.ExitStack() as stack:
            monitor = stack.enter_context(Monitor(spec, testbed, folder / "log")) if spec.monitor else None
            if monitor:
                record.event("monitor ready", (monitor.collector, *monitor.agents))
            crosses = [stack.enter_context(cross) for cross in _cross_traffic(spec, testbed, folder / "log")]
            with view(monitor.address) if monitor else contextlib.nullcontext():
                job = _train(spec, testbed, folder, python, record, monitor, crosses, progress)
            time.sleep(_REST_SECONDS)
            if monitor:
                monitor.end_in_order()
                record.event("monitor ended")
    return RunResult(spec.data, job, tuple(cross.truth for cross in crosses))


def _cross_traffic(spec: RunSpec, testbed: Network, logs: Path) -> Iterator[CrossTraffic]:
    if not spec.cross_load:
        return
    for number, (source, target) in enumerate(spec.cross):
        receiver = testbed.hosts[target]
        load = spec.cross_load * spec.rate_bps
        offer = Offer(receiver.address, _CROSS_PORT + number, load, spec.rate_bps, spec.seed + number)
        yield CrossTraffic(f"cross-{number}", spec.cross_profile, testbed.hosts[source], receiver, offer, logs)


def _train(
    spec: RunSpec,
    testbed: Network,
    folder: Path,
    python: str,
    record: Record,
    monitor: Monitor | None,
    crosses: list[CrossTraffic],
    progress: Callable[[Progress], None],
) -> str:
    """Train to the end, with cross traffic from when it is due; returns the job's name."""
    with Training(spec, testbed, folder, python) as training:
        record.job(training.job)
        record.event("training", training.ranks)
        disturbed = False
        for done in _iterations(training, spec.patience_seconds):
            progress(Progress(done, spec.iterations, disturbed))
            if crosses and not disturbed and done >= spec.cross_after * spec.iterations:
                disturbed = True
                record.event("cross traffic")
                for cross in crosses:
                    record.cross(cross.truth)
                    cross.begin()
            for cross in crosses:
                cross.check()
            if monitor:
                monitor.check()
        for cross in crosses:
            cross.stop()
        record.event("training ended")
        return training.job


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
