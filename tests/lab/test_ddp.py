# SPDX-License-Identifier: Apache-2.0
"""PyTorch's DistributedDataParallel over gloo with an unchanged script, against what the script itself wrote down."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from netmon.lab.record import Run, utc_minus_mono_ns
from netmon.lab.run import run
from netmon.lab.spec import RunSpec

pytestmark = pytest.mark.kernel

RANKS = (0, 1)
MILLISECOND = 1_000_000


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    data = tmp_path_factory.mktemp("ddp")
    spec = RunSpec(data, trainer="ddp", hosts=2, ring=RANKS, parameters=1_000_000, compute_ns=60_000_000, iterations=30)
    spec = replace(spec, cross=(), cross_load=0)
    run(spec)
    return spec, pd.read_parquet(data / "iterations")


def test_the_size_of_the_model_is_read_from_the_calls(watched):
    spec, iterations = watched
    assert set(iterations["parameters"]) == {spec.parameters}
    assert set(iterations["gradient_bytes"]) == {4 * spec.parameters}
    assert set(iterations["parameters_basis"]) == {"calls"}


@pytest.mark.parametrize("rank", RANKS)
def test_every_step_is_found_where_the_script_saw_it(watched, rank):
    spec, iterations = watched
    found = iterations[(iterations["rank"] == rank) & (iterations["source"] == "uprobe")].sort_values("iteration")
    assert found["iteration"].tolist() == list(range(spec.iterations))
    to_utc = utc_minus_mono_ns()
    truth = Run(spec.data / "lab").rank(rank)
    at_once = truth["interrupted"] == 0
    for column, moment in (("comm_start_ns", "first_enqueue_ns"), ("comm_end_ns", "last_wait_ns")):
        errors = np.abs(found[column].to_numpy() - to_utc - truth[moment])
        assert np.median(errors[at_once]) < MILLISECOND / 5
