# SPDX-License-Identifier: Apache-2.0
"""A watched run of the lab, from the packets to the dataset, against what trainers and senders wrote down."""

import numpy as np
import pandas as pd
import pytest

from netmon.lab.record import Run
from netmon.lab.run import run
from netmon.lab.spec import RunSpec

pytestmark = pytest.mark.kernel

MILLISECOND = 1_000_000
CLOCK_NS = MILLISECOND // 5  # by which the map from the host's clock to UTC may move during a step


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    seen = []

    class View:
        def __init__(self, address):
            seen.append(address)

        def __enter__(self):
            seen.append("open")

        def __exit__(self, *exception):
            seen.append("closed")

    data = tmp_path_factory.mktemp("watched")
    spec = RunSpec(data, parameters=999_999, compute_ns=20_000_000, iterations=30)
    run(spec, view=View)
    return spec, seen


def test_the_view_is_open_during_the_training(watched):
    _, (address, *states) = watched
    assert address.startswith("unix:/run/netmon-lab/")
    assert states == ["open", "closed"]


@pytest.mark.parametrize("rank", range(3))
def test_every_iteration_is_in_the_dataset_with_its_time(watched, rank):
    """A rank marks a step's start before it notes it, and notes its end before it marks it, with any time between."""
    spec, _ = watched
    table = pd.read_parquet(spec.data / "iterations")
    rows, truth = table[table["rank"] == rank].sort_values("iteration"), Run(spec.data / "lab").rank(rank)
    assert rows["iteration"].tolist() == truth["iteration"].tolist()
    assert set(rows["source"]) == {"hook"}
    marked = (rows["end_ns"] - rows["start_ns"]).to_numpy()
    noted = truth["step_end_ns"] - truth["step_start_ns"]
    around = truth["step_start_ns"][2:] - truth["step_end_ns"][:-2]  # from the step before to the step after
    assert (marked > noted - CLOCK_NS).all()
    assert (marked[1:-1] < around + CLOCK_NS).all()
    assert np.median(marked - noted) < MILLISECOND


def test_undisturbed_iterations_have_the_bytes_of_equation_3_1(watched):
    spec, _ = watched
    table = pd.read_parquet(spec.data / "iterations")
    quiet = table[table["iteration"] < spec.iterations // 2 - 1]
    assert quiet["dl_tx_bytes"].median() == 2 * 2 / 3 * spec.parameters * 4
    assert not quiet["node_shared"].any()


def test_cross_traffic_is_on_the_links_it_crosses_and_no_others(watched):
    spec, _ = watched
    buckets = pd.read_parquet(spec.data / "buckets", columns=["host", "direction", "class", "payload_bytes"])
    cross = buckets[buckets["class"] == "cross"].groupby(["host", "direction"], observed=True)["payload_bytes"].sum()
    (sender,) = Run(spec.data / "lab").cross()
    assert cross["h2", "tx"] == pytest.approx(sender["bytes_sent"], rel=0.02)
    assert cross["h0", "rx"] == pytest.approx(sender["bytes_sent"], rel=0.02)
    assert cross.drop([("h2", "tx"), ("h0", "rx")]).sum() < 1000


def test_every_byte_of_every_link_is_accounted_for(watched):
    spec, _ = watched
    ledger = pd.read_parquet(spec.data / "ledger").groupby(["host", "direction"], observed=True)
    totals = ledger[["nic_bytes", "attributed_bytes"]].sum()
    assert len(totals) == 2 * spec.hosts
    assert (totals["attributed_bytes"] == totals["nic_bytes"]).all()
