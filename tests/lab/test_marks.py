# SPDX-License-Identifier: Apache-2.0
"""Horovod's script with netmon's two lines in it and its Timeline on: four sources of the same iterations."""

import json

import pytest

from netmon.history.dataset import Tables
from netmon.lab.outcome import accuracy
from netmon.lab.record import Run
from netmon.lab.run import run
from netmon.lab.spec import RunSpec

pytestmark = pytest.mark.kernel

MILLISECOND = 1_000_000


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    data = tmp_path_factory.mktemp("marks")
    given = {"parameters": 1_000_000, "compute_ns": 60_000_000, "iterations": 30, "cross": (), "cross_load": 0}
    run(RunSpec(data, trainer="horovod", hosts=2, ring=(0, 1), marks=True, timeline=True, **given))
    return data


def test_the_hook_tells_every_iteration_and_each_of_its_moments(watched):
    (hook,) = accuracy(Tables(watched), Run(watched / "lab"))
    assert hook.source == "hook"
    assert (hook.logged, hook.found, hook.invented) == (60, 60, 0)
    assert [each.moment for each in hook.moments] == ["step_start", "first_enqueue", "last_wait", "step_end"]
    for each in hook.moments:
        assert each.percentile(50) < MILLISECOND / 5


def test_the_others_are_scored_against_it(watched):
    scores = json.loads((watched / "lab" / "run.json").read_text())["scores"]
    of = {score["source"]: score for score in scores}
    assert of["uprobe"]["reference"] == "hook"
    assert of["timeline"]["reference"] == "hook"
    for source, ranks in (("uprobe", 2), ("timeline", 1)):
        found, iterations = of[source]["found"], of[source]["iterations"]
        # All that rank 0 has written is read, also what it wrote last.
        assert found == iterations >= 29 * ranks
        # Where the machine kept a rank from running between a moment and its note, the two are no pair.
        assert found - 2 <= of[source]["matched"] <= found
    assert of["uprobe"]["error_ns"] < MILLISECOND / 5
