# SPDX-License-Identifier: Apache-2.0
"""Real Horovod with an unchanged script, watched from outside, against what the script itself wrote down."""

import numpy as np
import pandas as pd
import pytest

from netmon.dl.classify import ring_bytes
from netmon.lab.record import Run, utc_minus_mono_ns
from netmon.lab.run import run
from netmon.lab.spec import RunSpec

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("as_horovod_is")]

RANKS = (0, 1, 2)
MILLISECOND, SECOND = 1_000_000, 1_000_000_000
CLOCK_NS = MILLISECOND  # between the map from the host's clock to UTC and the machine's own


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    data = tmp_path_factory.mktemp("horovod")
    spec = RunSpec(data, trainer="horovod", parameters=1_000_000, compute_ns=60_000_000, iterations=40)
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


def test_the_size_of_the_model_is_read_from_the_calls(watched):
    spec, iterations = watched
    assert set(iterations["parameters"]) == {spec.parameters}
    assert set(iterations["gradient_bytes"]) == {4 * spec.parameters}
    assert set(iterations["parameters_basis"]) == {"calls"}


def test_a_job_is_called_as_its_script_and_its_launchers_host(watched):
    _, iterations = watched
    (job,), (name,) = set(iterations["job"]), set(iterations["job_name"])
    address, _, port = job.rpartition(":")
    assert port.isdecimal()
    assert name == f"horovod_torch.py@{address}"


@pytest.mark.parametrize("rank", RANKS)
def test_boundaries_are_where_the_script_saw_them(watched, rank):
    """It notes the first enqueue before it begins and the last wait after it has ended, with any time between."""
    spec, iterations = watched
    to_utc = utc_minus_mono_ns()
    found, truth = of_rank(iterations, rank), Run(spec.data / "lab").rank(rank)
    assert (truth["step_start_ns"] < truth["first_enqueue_ns"]).all()
    assert (truth["last_wait_ns"] < truth["step_end_ns"]).all()
    begun, ended = (found[name].to_numpy() - to_utc for name in ("comm_start_ns", "comm_end_ns"))
    enqueued, waited = truth["first_enqueue_ns"], truth["last_wait_ns"]
    assert (enqueued < begun + CLOCK_NS).all()
    assert (begun < ended).all()
    assert (ended < waited + CLOCK_NS).all()
    # On a busy machine the scheduler comes between a moment and its note; where it did, the script knows.
    at_once = truth["interrupted"] == 0 if (truth["interrupted"] == 0).any() else slice(None)
    assert np.median((begun - enqueued)[at_once]) < MILLISECOND
    assert np.median((waited - ended)[at_once]) < MILLISECOND


@pytest.mark.parametrize("rank", RANKS)
def test_the_exposed_part_of_the_communication_is_known(watched, rank):
    found = of_rank(watched[1], rank)
    assert ((found["comm_start_ns"] < found["wait_start_ns"]) & (found["wait_start_ns"] < found["comm_end_ns"])).all()


@pytest.mark.parametrize("rank", RANKS)
def test_an_iteration_lasts_from_last_wait_to_last_wait(watched, rank):
    spec, iterations = watched
    found, truth = of_rank(iterations, rank), Run(spec.data / "lab").rank(rank)
    assert found["start_moment"].tolist() == ["first_enqueue"] + ["last_wait"] * (spec.iterations - 1)
    assert set(found["end_moment"]) == {"last_wait"}
    lasted = (found["end_ns"] - found["start_ns"]).to_numpy()[1:]
    # An end and the next beginning are one moment, told in two batches: a clock that is moved between them rounds.
    assert np.abs(lasted - np.diff(found["comm_end_ns"])).max() <= 1
    assert np.median(np.abs(lasted - np.diff(truth["last_wait_ns"]))) < MILLISECOND


@pytest.mark.parametrize("rank", RANKS)
def test_a_quiet_iteration_moves_what_equation_3_1_says(watched, rank):
    spec, iterations = watched
    found = of_rank(iterations, rank)
    quiet = found[~found["node_shared"] & (found["iteration"] < spec.iterations // 2 - 1)]
    assert len(quiet) >= spec.iterations // 2 - 2
    ratio = quiet["dl_tx_bytes"] / ring_bytes(len(RANKS), spec.parameters)
    # Nothing is counted twice; the last packets of an iteration may leave when the rank itself is done with it.
    assert 0.98 <= ratio.median() <= 1.05
    assert 0.98 <= ratio.mean() <= 1.05


def test_cross_traffic_is_told_from_the_training(watched):
    spec, iterations = watched
    (sender,) = Run(spec.data / "lab").cross()
    # iperf3 begins a moment after it was started
    begun, ended = sender["started"]["utc_ns"] + SECOND, sender["ended"]["utc_ns"]
    late = iterations[(iterations["start_ns"] > begun) & (iterations["end_ns"] < ended)]
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
    # A connection that closes while the agent does may send an acknowledgement between its last look and its end.
    assert (sums["attributed_bytes"] - sums["nic_bytes"]).abs().max() <= 3 * 66
