# SPDX-License-Identifier: Apache-2.0
"""Real trainings whose ranks send each other more than sums of gradients: their steps are told by what recurs.

Where nothing does, nothing is said.
"""

import numpy as np
import pandas as pd
import pytest
from loopback_ranks import run_ranks
from probed import Probed

from netmon.agent.steps import StepMarks
from netmon.dl.understanding import Understanding
from netmon.lab.record import Run, utc_minus_mono_ns
from netmon.lab.run import run
from netmon.lab.spec import RunSpec
from netmon.records import Moment
from netmon.views import NETWORK, NOT_UNDERSTOOD

pytestmark = pytest.mark.kernel

MILLISECOND = 1_000_000
STEPS = 40
ATTEMPTS = 3
AT_ONCE = ("pipeline", "experts")
"""Their scripts do nothing between what a step sends last and writing down that it has ended."""


@pytest.mark.parametrize(
    "trainer",
    [
        "pipeline",
        *(pytest.param(trainer, marks=pytest.mark.long) for trainer in ("fsdp", "experts", "tensor", "hybrid")),
    ],
)
def test_all_steps_are_told_and_nobody_is_accused(tmp_path, trainer):
    ranks = tuple(range(4 if trainer == "hybrid" else 2))
    quiet = {"hosts": len(ranks), "ring": ranks, "cross": (), "cross_load": 0}
    for attempt in range(ATTEMPTS):
        data = tmp_path / str(attempt)
        run(RunSpec(data, trainer, **quiet, parameters=400_000, compute_ns=50 * MILLISECOND, iterations=STEPS))
        iterations = pd.read_parquet(data / "iterations")
        assert set(iterations["source"]) == {"uprobe"}
        verdicts = pd.read_parquet(data / "verdicts") if (data / "verdicts").exists() else pd.DataFrame({"cause": []})
        assert not {cause.name.lower() for cause in NETWORK} & set(verdicts["cause"])
        late_ns = []
        for rank in ranks:
            found = iterations[iterations["rank"] == rank].sort_values("iteration")
            assert found["iteration"].tolist() == list(range(STEPS))
            true_ns = Run(data / "lab").rank(rank)["step_end_ns"]
            late_ns.extend(np.abs(found["end_ns"].to_numpy() - utc_minus_mono_ns() - true_ns))
        if np.median(late_ns) < MILLISECOND / 5 or trainer not in AT_ONCE:
            break  # else something else had the CPU between the call and its noting
    assert NOT_UNDERSTOOD not in (data / "lab/log/collector.log").read_text()
    assert np.median(late_ns) < (MILLISECOND / 5 if trainer in AT_ONCE else 10 * MILLISECOND)


NEVER_THE_SAME = """
import os, random, time, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
drawn, rank = random.Random(1), dist.get_rank()  # the same on all ranks
print("ready", flush=True)
input()
for _ in range(11_000):
    time.sleep(0.001)
    values, kind = torch.zeros(drawn.randint(1, 500)), drawn.randrange(5)
    if kind == 0:
        dist.all_reduce(values)
    elif kind == 1:
        dist.all_gather([torch.zeros_like(values) for _ in range(2)], values)
    elif kind == 2:
        dist.broadcast(values, drawn.randrange(2))
    elif kind == 3:
        dist.all_to_all_single(torch.zeros(8), torch.zeros(8))
    elif rank == drawn.randrange(2):
        dist.send(values, 1 - rank)
    else:
        dist.recv(values, 1 - rank)
os._exit(0)
"""


@pytest.mark.long
def test_where_nothing_recurs_nothing_is_said(probed: Probed) -> None:
    pids, _, calls = run_ranks(probed, NEVER_THE_SAME, 2)
    told = StepMarks()
    for pid in pids:
        own = calls[calls["pid"] == pid]
        rank = {"pid": pid, "uid": 0, "job": "job", "rank": 0, "size": 2, "job_name": "", "trains": True}
        marks = told.ranks([{**rank, "late": False, "probed": True}], int(own["time_ns"][0]))
        for part in np.array_split(own, 200):
            marks += told.steps(part)
        assert {mark.moment for mark in marks} == {Moment.JOIN}
        assert marks[-1].iteration == Understanding.NOT_UNDERSTOOD
        assert {mark.moment for mark in told.finish()} == {Moment.LEAVE}
