# SPDX-License-Identifier: Apache-2.0
"""The models' tensors add up to what was published."""

from pathlib import Path

import pytest

from netmon.errors import UsageError
from netmon.lab.spec import MODELS, RunSpec

TENSORS = {"resnet50": 161, "resnet101": 314, "densenet121": 364, "vgg16": 32, "mobilenetv2": 158, "bertlarge": 391}


def workload(name, rate_bps, batch=0):
    return RunSpec(Path("out"), rate_bps=rate_bps).of(name, batch)


@pytest.mark.parametrize("name", MODELS)
def test_the_tensors_add_up_to_the_published_count(name):
    assert sum(MODELS[name].architecture()) == MODELS[name].parameters


@pytest.mark.parametrize(("name", "tensors"), TENSORS.items())
def test_there_are_as_many_tensors_as_frameworks_have(name, tensors):
    assert len(MODELS[name].architecture()) == tensors


@pytest.mark.parametrize("name", MODELS)
def test_one_factor_scales_a_model_with_its_link(name):
    full, tenth = workload(name, 10**10), workload(name, 10**9)
    assert full.parameters == MODELS[name].parameters
    assert tenth.size_scale == 0.1
    assert tenth.parameters == pytest.approx(full.parameters / 10, rel=1e-3)
    assert tenth.compute_ns == full.compute_ns
    assert len(tenth.layers) == len(full.layers)


def test_compute_time_grows_with_the_batch_and_is_of_the_size_that_was_measured():
    assert workload("vgg16", 10**9, 16).compute_ns == pytest.approx(83.5e6, rel=1e-6)
    assert workload("densenet161", 10**9, 16).compute_ns == pytest.approx(142.5e6, rel=1e-6)
    assert workload("resnet50", 10**9, 64).compute_ns == 2 * workload("resnet50", 10**9, 32).compute_ns


def test_an_unknown_model():
    with pytest.raises(UsageError, match="no model 'lenet'"):
        workload("lenet", 10**9)
