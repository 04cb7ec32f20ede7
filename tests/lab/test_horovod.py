# SPDX-License-Identifier: Apache-2.0
"""Real Horovod with an unchanged script, watched from outside, against what the script itself wrote down."""

import time

import numpy as np
import pandas as pd
import pytest

from netmon.dl.theory import ring_bytes
from netmon.lab.run import run
from netmon.lab.spec import RunSpec
from netmon.lab.truth import read_rank

pytestmark = pytest.mark.kernel

RANKS = (0, 1, 2)
MILLISECOND = 1_000_000


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    data = tmp_path_factory.mktemp("horovod")
    spec = RunSpec(data, trainer="horovod", parameters=1_000_000, compute_ns=60_000_000, iterations=50)
    run(spec)
    return spec, pd.read_parquet(data / "iterations")


def of_rank(table: pd.DataFrame, rank: int) -> pd.DataFrame:
    return table[table["rank"] == rank].sort_values("iteration")


@pytest.mark.parametrize("rank", RANKS)
def test_every_iteration_is_found_and_none_invented(watched, rank):
    spec, iterations = watched
    found = of_rank(iterations, rank)
    assert found["iteration"].tolist() == list(range(spec.iterations))
    assert set(found["source"]) == {"uprobe"}


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize(("column", "moment"), [("comm_start_ns", "first_enqueue_ns"), ("comm_end_ns", "last_wait_ns")])
def test_boundaries_are_where_the_script_saw_them(watched, rank, column, moment):
    spec, iterations = watched
    to_utc = time.time_ns() - time.monotonic_ns()
    truth = read_rank(spec.data, rank)
    errors = np.abs(of_rank(iterations, rank)[column].to_numpy() - to_utc - truth[moment])
    noted_at_once = truth["interrupted"] == 0  # on a busy machine the scheduler comes between a moment and its note
    assert noted_at_once.mean() > 0.5
    assert errors[noted_at_once].max() < MILLISECOND
    assert np.median(errors) < MILLISECOND / 5


@pytest.mark.parametrize("rank", RANKS)
def test_the_exposed_part_of_the_communication_is_known(watched, rank):
    found = of_rank(watched[1], rank)
    assert ((found["comm_start_ns"] < found["wait_start_ns"]) & (found["wait_start_ns"] < found["comm_end_ns"])).all()


@pytest.mark.parametrize("rank", RANKS)
def test_an_iteration_lasts_from_first_enqueue_to_first_enqueue(watched, rank):
    spec, iterations = watched
    found, truth = of_rank(iterations, rank), read_rank(spec.data, rank)
    assert set(found["start_moment"]) == {"first_enqueue"}
    assert found["end_moment"].tolist() == ["first_enqueue"] * (spec.iterations - 1) + ["last_wait"]
    lasted = (found["end_ns"] - found["start_ns"]).to_numpy()[:-1]
    noted_at_once = (truth["interrupted"][1:] == 0) & (truth["interrupted"][:-1] == 0)
    assert np.abs(lasted - np.diff(truth["first_enqueue_ns"]))[noted_at_once].max() < MILLISECOND


@pytest.mark.parametrize("rank", RANKS)
def test_a_quiet_iteration_moves_what_equation_3_1_says(watched, rank):
    spec, iterations = watched
    found = of_rank(iterations, rank)
    quiet = found[~found["node_shared"] & (found["iteration"] < spec.iterations // 2 - 1)]
    assert len(quiet) >= spec.iterations // 2 - 2
    ratio = quiet["dl_tx_bytes"] / ring_bytes(len(RANKS), spec.parameters)
    assert ratio.min() >= 1
    assert ratio.max() <= 1.05


def test_cross_traffic_is_told_from_the_training(watched):
    spec, iterations = watched
    late = iterations[iterations["iteration"] > spec.iterations // 2 + 1]
    assert late.groupby("rank")["node_shared"].mean().tolist() == [1, 0, 0]
    buckets = pd.read_parquet(spec.data / "buckets", columns=["host", "direction", "class", "payload_bytes"])
    sums = buckets.groupby(["host", "direction", "class"], observed=True)["payload_bytes"].sum()
    assert sums["h0", "rx", "DL-only"] > 0
    assert sums["h0", "rx", "DL-shared"] > 0
    shared = sums.xs("DL-shared", level="class")
    assert shared.drop(("h0", "rx")).sum() == 0
    assert sums[sums.index.get_level_values("class") == "unclassified"].sum() <= 0.001 * sums.sum()


def test_every_byte_is_accounted_for(watched):
    spec, _ = watched
    totals = pd.read_parquet(spec.data / "ledger").groupby(["host", "direction"], observed=True)
    sums = totals[["nic_bytes", "attributed_bytes"]].sum()
    assert (sums["attributed_bytes"] == sums["nic_bytes"]).all()
