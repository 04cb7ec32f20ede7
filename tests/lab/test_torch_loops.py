# SPDX-License-Identifier: Apache-2.0
"""PyTorch scripts that are not the usual loop: gradients reduced by the script itself, accumulated, and evaluations.

Two ranks on the loopback, with PyTorch's own Gloo.
"""

import numpy as np
import pytest
from loopback_ranks import run_ranks
from probed import Probed

from netmon.dl.cycles import CycleDetector, calls_from_works
from netmon.records import STEP_ENQUEUE, STEP_WAIT_BEGIN, STEP_WAIT_END, Moment

pytestmark = pytest.mark.kernel

SCRIPT = """
import os, sys, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def loop(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)

def handles(model):
    handed_over, pending = [], []
    for parameter in model.parameters():
        handed_over.append(time.monotonic_ns())
        pending.append(dist.all_reduce(parameter.grad, async_op=True))
    for handle in pending:
        handle.wait()
    return max(after - before for before, after in zip(handed_over, handed_over[1:]))

def backward(model):
    loss(model).backward()

def loss(model):
    return model(torch.randn(8, 64)).pow(2).mean()

def accumulate(model):
    with model.no_sync():
        for _ in range(3):
            backward(model)
    return time.monotonic_ns()

kind = sys.argv[1]
os.nice(-20)  # whatever else the machine does, ranks do not stand still where the script does not
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.Sequential(*(torch.nn.Linear(64, 64, bias=False) for _ in range(6)), torch.nn.Linear(64, 40))
if kind == "accumulated":
    model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
print("ready", flush=True)
input()
for epoch in range(3):
    for step in range(8):
        optimizer.zero_grad()
        time.sleep(0.03)
        pause = None
        if kind == "accumulated":
            begin = accumulate(model)
            backward(model)
        else:
            backward(model)
            begin = time.monotonic_ns()
            pause = {"loop": loop, "handles": handles}[kind](model)
        end = time.monotonic_ns()
        optimizer.step()
        dist.all_reduce(torch.zeros(1))
        print(begin, end, pause or 0, flush=True)
    with torch.no_grad():
        for _ in range(5):
            time.sleep(0.01)
            dist.all_reduce(loss(model))
"""
STEPS = 24
ATTEMPTS = 5
SHORTEST_PAUSE_NS = 1_000_000  # that is taken for one between steps, when nothing is known of a script yet


def train(probed: Probed, kind: str) -> tuple[list[int], list[np.ndarray], np.ndarray]:
    """Of each rank its process id, and of each of its steps: begin and end of the reduction, longest pause in it.

    And the calls of all.
    """
    pids, said, calls = run_ranks(probed, SCRIPT, 2, kind)
    return pids, [np.array([line.split() for line in lines], np.int64) for lines in said], calls


@pytest.mark.parametrize("kind", ["handles", "accumulated", pytest.param("loop", marks=pytest.mark.long)])
def test_every_step_and_nothing_else(probed: Probed, kind: str) -> None:
    for _ in range(ATTEMPTS):
        pids, logs, calls = train(probed, kind)
        # Where a rank stands still while it hands its first gradients over, nobody can know that this is one step.
        if all(log[:2, 2].max() < SHORTEST_PAUSE_NS for log in logs):
            break
    table = np.sort(np.concatenate([calls, calls_from_works(calls)]), order="time_ns", kind="stable")
    for pid, log in zip(pids, logs, strict=True):
        detector = CycleDetector()
        told = [*detector.feed(table[table["pid"] == pid]), *detector.finish()]
        enqueued, first_wait, last_wait = (
            {number: time for number, this, time in told if this is moment}
            for moment in (Moment.FIRST_ENQUEUE, Moment.FIRST_WAIT, Moment.LAST_WAIT)
        )
        assert len(told) == len(enqueued) + len(first_wait) + len(last_wait)
        assert list(enqueued) == list(last_wait) == list(range(len(log))) == list(range(STEPS))
        for number, (begin, end, _) in enumerate(log.tolist()):
            assert begin < enqueued[number] < last_wait[number] < end
            if number in first_wait:
                assert enqueued[number] < first_wait[number] < end
            else:
                assert nobody_waited(table[table["pid"] == pid], begin, end)


def nobody_waited(events: np.ndarray, begin: int, end: int) -> bool:
    """Whether the last large gradient had come before its rank waited for it."""
    own = events[(begin < events["time_ns"]) & (events["time_ns"] < end)]
    after = own[np.flatnonzero(own["kind"] == STEP_ENQUEUE)[-1] :]["kind"].tolist()
    return after.index(STEP_WAIT_END) < after.index(STEP_WAIT_BEGIN)
