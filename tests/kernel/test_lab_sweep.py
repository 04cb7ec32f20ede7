# SPDX-License-Identifier: Apache-2.0
"""A small sweep for real: interrupted, gone on with, and its runs told apart in one dataset."""

import json

import pandas as pd
import pytest

from netmon.lab.outcome import run_document, sweep_document
from netmon.lab.run import run
from netmon.lab.spec import RunSpec
from netmon.lab.sweep import SweepSpec, sweep

pytestmark = pytest.mark.kernel

ITERATIONS = 6


@pytest.mark.long
def test_a_sweep_goes_on_where_it_was_interrupted(tmp_path):
    base = RunSpec(tmp_path, hosts=3, ring=(0, 1), rate_bps=200_000_000, iterations=ITERATIONS)
    spec = SweepSpec(base, models=("mobilenetv2",), profiles=("burst",), levels=(0.0, 0.5), batch=64)

    def interrupt_the_second(progress):
        if progress.number == 2 and progress.iterations_done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(spec, interrupt_the_second)
    folders = {folder.name: json.loads((folder / "run.json").read_text()) for folder in tmp_path.glob("lab/runs/*")}
    assert sorted(each["outcome"] for each in folders.values()) == ["complete", "interrupted"]

    numbers = set()
    runs = sweep(spec, lambda progress: numbers.add(progress.number))
    assert numbers == {2}
    document = sweep_document(tmp_path)
    assert [each["id"] for each in document["runs"]] == [each.id for each in runs]
    assert [each["outcome"] for each in document["runs"]] == ["complete", "complete"]
    assert 0 < document["models"][0]["congestion_point"] < 1

    iterations = pd.read_parquet(tmp_path / "iterations")
    for each in document["runs"]:
        assert sorted(iterations[iterations["job"] == each["job"]]["iteration"]) == sorted([*range(ITERATIONS)] * 2)
        (hook,) = (source for source in each["sources"] if source["source"] == "hook")
        assert (hook["found"], hook["logged"], hook["invented"]) == (2 * ITERATIONS, 2 * ITERATIONS, 0)
        assert each["classification"]["right_bytes"] > 0
    again = [each for each in document["runs"] if each["job"] != each["id"]]
    assert [each["job"].startswith(f"{each['id']}~") for each in again] == [True]


@pytest.mark.parametrize("pattern", ["hierarchical", pytest.param("star", marks=pytest.mark.long)])
def test_a_run_in_another_pattern_is_accounted_for(tmp_path, pattern):
    ring, cross = (0, 1, 2, 3), ((4, 0),)
    spec = RunSpec(tmp_path, hosts=5, ring=ring, cross=cross, pattern=pattern, parameters=500_000, iterations=8)
    run(spec)
    document = run_document(tmp_path)
    (hook,) = (source for source in document["sources"] if source["source"] == "hook")
    assert (hook["found"], hook["logged"], hook["invented"]) == (32, 32, 0)
    classes = document["classification"]
    assert classes["wrong_bytes"] < 0.001 * classes["right_bytes"]
    assert document["spec"]["pattern"] == pattern
