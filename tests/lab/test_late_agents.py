# SPDX-License-Identifier: Apache-2.0
"""Real Horovod that has been training for a while when an agent begins to look: which iteration is it?

Two collectors watch one training. To the first, one host has told of it from the start and the other one tells later;
to the second, both tell later.
"""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from waiting import wait_for

from netmon.lab.monitor import Monitor
from netmon.lab.network import network
from netmon.lab.record import Run, utc_minus_mono_ns
from netmon.lab.spec import RunSpec
from netmon.lab.training import Training, horovod_python

pytestmark = pytest.mark.kernel

LATE_AFTER, SEEN = 10, 25
COMPUTE_NS = 60_000_000
RANKS = (0, 1)
MOST = 10_000  # iterations: it is ended when enough have been seen


@pytest.fixture(scope="module")
def rows(lab_folder):
    """Iterations as the two collectors have them, each with its true number."""
    early, late = lab_folder / "early", lab_folder / "late"
    early.mkdir()
    late.mkdir()
    spec = RunSpec(early, trainer="horovod", ring=RANKS, hosts=2, cross=(), cross_load=0, parameters=250_000)
    spec = replace(spec, compute_ns=COMPUTE_NS, iterations=MOST)
    folder = early / "lab"
    (folder / "log").mkdir(parents=True)
    python = horovod_python()
    with network(spec.hosts, spec.rate_bps) as testbed, Monitor(spec, testbed, folder, hosts=testbed.hosts[:1]) as m:
        with Training(spec, testbed, folder, python) as training:
            train(training, LATE_AFTER)
            m.watch(testbed.hosts[1:])
            apart = replace(testbed, lease=SimpleNamespace(folder=late))  # where its sockets are
            with Monitor(replace(spec, data=late / "data"), apart, late) as other:
                train(training, training.iterations_done() + SEEN)
                for rank in training.ranks:
                    rank.request_stop()
                for rank in training.ranks:
                    rank.end(seconds=60)
                other.end_in_order()
        m.end_in_order()
    return {"early": numbered(early, early), "late": numbered(late / "data", early)}


def train(training: Training, reached: int) -> None:
    def there() -> bool:
        assert not training.finished()
        return training.iterations_done() >= reached

    wait_for(there, seconds=120)


def numbered(data, run) -> pd.DataFrame:
    """The dataset's iterations, with their number in the log whose last wait was nearest to theirs.

    A rank that is told to end may die between its last wait and the line of the log that would tell of it.
    """
    offset = utc_minus_mono_ns()
    table = pd.read_parquet(data / "iterations")
    table = table[table["source"] == "uprobe"]
    for rank, own in table.groupby("rank"):
        log = Run(run / "lab").rank(rank)
        ended = own["comm_end_ns"].to_numpy() - offset
        nearest = [int(np.abs(log["last_wait_ns"] - end).argmin()) for end in ended]
        pending_updates = ended > log["last_wait_ns"][-1] + COMPUTE_NS // 2
        assert pending_updates.sum() <= 1
        table.loc[own.index, "true"] = log["iteration"][nearest] + pending_updates
    return table


def test_a_late_agents_rank_counts_as_the_others_do(rows):
    of_both = rows["early"]
    assert (of_both["rank"] == 1).sum() > SEEN - 5
    wrong = of_both["iteration"] != of_both["true"]
    assert not wrong.any(), of_both[wrong].to_string()
    assert not of_both["relative"].any()


def test_where_all_agents_are_late_all_ranks_count_from_the_same_iteration_and_say_that_it_is_relative(rows):
    of_both = rows["late"]
    assert set(of_both["rank"]) == set(RANKS)
    assert of_both["relative"].all()
    shown = of_both[["rank", "iteration", "true", "start_ns", "comm_end_ns"]].to_string()
    counted = of_both["iteration"] >= 0  # what one of them saw before the others has no number
    behind = of_both["true"][counted] - of_both["iteration"][counted]
    assert behind.nunique() == 1, shown
    assert behind.iloc[0] > 0
    assert (of_both["true"][~counted] < behind.iloc[0]).all(), shown
    assert (~counted).sum() < counted.sum(), shown
