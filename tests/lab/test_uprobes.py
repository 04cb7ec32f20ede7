# SPDX-License-Identifier: Apache-2.0
"""Probes on a real training library: one process of Horovod, in this mount namespace and in one of its own."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from netmon.dl.cycles import CycleDetector
from netmon.kernel import loader
from netmon.kernel.geometry import choose_geometry
from netmon.kernel.ring import RingBuffer
from netmon.kernel.uprobes import Uprobes
from netmon.lab.training import horovod_python
from netmon.records import STEP, Moment

pytestmark = pytest.mark.kernel

SCRIPT = """
import os, time, torch, horovod.torch as hvd
hvd.init()
os.environ["HOROVOD_ELASTIC"] = "1"  # else a job of one rank reduces nothing
print("ready", flush=True)
input()
model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
for _ in range(5):
    hvd.allreduce(torch.zeros(1), name="sanity")
for epoch in range(3):
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(torch.randn(2, 8)).sum()
        begin = time.monotonic_ns()
        loss.backward()
        backward = time.monotonic_ns()
        optimizer.step()
        print(begin, backward, time.monotonic_ns(), flush=True)
        hvd.allreduce(torch.zeros(1), name="loss")
    for _ in range(7):
        hvd.allreduce(torch.zeros(1), name="validation")
"""
ALONE = {f"HOROVOD_{name}": "0" for name in ("RANK", "LOCAL_RANK", "CROSS_RANK")}
ALONE |= {f"HOROVOD_{name}": "1" for name in ("SIZE", "LOCAL_SIZE", "CROSS_SIZE")}
ALONE |= {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}


class Probed:
    """The step programs, and the ring that they write into."""

    def __init__(self) -> None:
        geometry = choose_geometry(10_000, [1], 0)
        self.descriptors = loader.load(geometry)
        self.ring = RingBuffer(self.descriptors["steps"], geometry.step_ring_bytes, STEP)
        self.uprobes = Uprobes(self.descriptors)


@pytest.fixture
def probed() -> Iterator[Probed]:
    probed = Probed()
    yield probed
    probed.uprobes.close()
    probed.ring.close()
    for descriptor in probed.descriptors.values():
        os.close(descriptor)


def own_mounts(folder: Path) -> list[str]:
    """The library under a path, and with an inode, that only the process's own mount namespace has."""
    (library,) = Path(horovod_python()).parents[1].glob("lib/python3*/site-packages/horovod/torch/mpi_lib_v2*.so")
    copy = f"mount -t tmpfs none {folder} && cp {library} {folder}/ && mount --bind {folder}/{library.name} {library}"
    return ["unshare", "-m", "sh", "-c", f'{copy} && exec "$@"', "sh"]


@pytest.mark.parametrize("mounts", ["shared", "own"])
@pytest.mark.parametrize("late", [False, True], ids=["watched from the start", "found in the end"])
def test_every_step_and_nothing_else(probed: Probed, tmp_path: Path, mounts: str, late: bool) -> None:
    prefix = own_mounts(tmp_path) if mounts == "own" else []
    command = [*prefix, horovod_python(), "-c", SCRIPT]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=os.environ | ALONE, **pipes) as process:
        if not late:
            probed.uprobes.follow([process.pid])  # nothing is mapped yet
        assert process.stdout.readline() == "ready\n"
        time.sleep(1.1 if late else 0)
        paths = probed.uprobes.follow([process.pid])
        assert any("mpi_lib_v2" in path for path in paths)
        process.stdin.write("\n")
        process.stdin.flush()
        log = np.array([line.split() for line in process.stdout], np.int64)
    assert (process.pid in probed.uprobes.late) == late
    table = probed.ring.take()
    table = table[np.argsort(table["time_ns"], kind="stable")]
    detector = CycleDetector()
    found = {moment: [] for moment in Moment}
    for _, moment, time_ns in [*detector.feed(table[table["pid"] == process.pid]), *detector.finish()]:
        found[moment].append(time_ns)
    begin, backward, end = log.T
    enqueued, waited = np.array(found[Moment.FIRST_ENQUEUE]), np.array(found[Moment.LAST_WAIT])
    assert len(enqueued) == len(waited) == len(log) == 15
    assert ((begin < enqueued) & (enqueued < backward)).all()
    assert ((backward < found[Moment.FIRST_WAIT]) & (found[Moment.FIRST_WAIT] <= waited) & (waited < end)).all()
