# SPDX-License-Identifier: Apache-2.0
"""Several jobs in one network, at the same time, watched: what an inference has to tell apart."""

import contextlib
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from netmon.lab.monitor import Monitor
from netmon.lab.network import network
from netmon.lab.record import FOLDER, Record
from netmon.lab.spec import RunSpec
from netmon.lab.training import Training

_PORT, _PORTS = 29_500, 200  # of the first job's ranks, and how far the next job's are away
_REST_SECONDS = 0.5  # for what is in flight when the training ends
_MOST_ITERATIONS = 1_000_000


def train_together(data: Path, specs: Sequence[RunSpec], seconds: float) -> None:
    """Train all jobs for so long, each named by its spec; blocks. Raises UsageError or LabError.

    All are of the lab's own trainer, without cross traffic, and on the first one's network. They end in the middle of
    an iteration. DATA/lab/<job> has what DATA/lab has of a single run (netmon.lab.record); netmon.lab.labelling
    reads both.
    """
    specs = [replace(spec, data=data, cross=(), cross_load=0.0, iterations=_MOST_ITERATIONS) for spec in specs]
    first = replace(specs[0], hosts=max(max(spec.ring) for spec in specs) + 1)
    with contextlib.ExitStack() as stack:
        records = []
        for spec in specs:
            replace(spec, hosts=first.hosts).check()
            (data / FOLDER / spec.job / "log").mkdir(parents=True)
            records.append(stack.enter_context(Record(data / FOLDER / spec.job, spec)))
        testbed = stack.enter_context(network(first.hosts, first.rate_bps))
        monitor = stack.enter_context(Monitor(first, testbed, data / FOLDER))
        with contextlib.ExitStack() as trainings:
            for number, (spec, record) in enumerate(zip(specs, records, strict=True)):
                record.network(testbed, spec.ring)
                record.job(spec.job)
                folder, port = data / FOLDER / spec.job, _PORT + number * _PORTS
                trainings.enter_context(Training(spec, testbed, folder, sys.executable, port))
            time.sleep(seconds)
        time.sleep(_REST_SECONDS)
        monitor.check()
        monitor.end_in_order()
