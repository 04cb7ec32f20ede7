# SPDX-License-Identifier: Apache-2.0
"""Real Horovod that has been training for a while when an agent begins to look: which iteration is it?"""

import json
import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from netmon.lab.monitor import Monitor
from netmon.lab.network import network
from netmon.lab.spec import RunSpec
from netmon.lab.training import Training, horovod_python
from netmon.lab.truth import read_rank

pytestmark = pytest.mark.kernel

ITERATIONS, LATE_AFTER, SEEN = 150, 10, 20
PATIENCE_S = 90


def wait_for(training: Training, reached: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while training.iterations_done() < reached and not training.finished():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def train(data, early: int) -> pd.DataFrame:
    """Iterations of a run in which so many hosts are watched from the start, the others from iteration 10 on."""
    spec = RunSpec(data, trainer="horovod", ring=(0, 1, 2), hosts=3, cross=(), cross_load=0, parameters=500_000)
    spec = replace(spec, compute_ns=60_000_000, iterations=ITERATIONS)
    folder = data / "lab"
    (folder / "log").mkdir(parents=True)
    python = horovod_python()
    with (
        network(spec.hosts, spec.rate_bps) as testbed,
        Monitor(spec, testbed, folder, hosts=testbed.hosts[:early]) as m,
    ):
        with Training(spec, testbed, folder, python) as training:
            wait_for(training, LATE_AFTER)
            m.watch(testbed.hosts[early:])
            wait_for(training, ITERATIONS)
            while not training.finished():
                time.sleep(0.05)
        m.end_in_order()
        offset = time.time_ns() - time.monotonic_ns()
    rows = pd.read_parquet(data / "iterations")
    rows = rows[rows["source"] == "uprobe"]
    logs = {rank: read_rank(data, rank) for rank in range(spec.hosts)}
    for rank, own in rows.groupby("rank"):
        waits = logs[rank]["last_wait_ns"] + offset
        nearest = [int(np.abs(waits - end).argmin()) for end in own["comm_end_ns"]]
        rows.loc[own.index, "true"] = logs[rank]["iteration"][nearest]
    return rows


def test_a_late_agents_rank_counts_as_the_others_do(tmp_path):
    rows = train(tmp_path, early=2)
    late = rows[rows["rank"] == 2]
    assert len(late) > SEEN
    assert (rows["iteration"] == rows["true"]).all(), rows[rows["iteration"] != rows["true"]].to_string()
    assert not rows["relative"].any()


def test_where_all_agents_are_late_all_ranks_count_from_the_same_iteration_and_say_that_it_is_relative(tmp_path):
    rows = train(tmp_path, early=0)
    assert set(rows["rank"]) == {0, 1, 2}
    assert rows["relative"].all()
    assert (rows["true"] - rows["iteration"]).nunique() == 1, json.dumps(
        rows.groupby("rank")["iteration"].min().to_dict()
    )
