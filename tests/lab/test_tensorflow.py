# SPDX-License-Identifier: Apache-2.0
"""Real Horovod with TensorFlow, where it is built: a script that knows no netmon, and Keras with its callback."""

import json

import pandas as pd
import pytest

from netmon.history.dataset import Tables
from netmon.lab.outcome import accuracy
from netmon.lab.record import Run
from netmon.lab.run import run
from netmon.lab.spec import RunSpec

pytestmark = [pytest.mark.kernel, pytest.mark.tensorflow]

RANKS, ITERATIONS = 2, 30
MOMENTS = ("comm_start", "wait_start", "comm_end")
MICROSECOND = 1_000


@pytest.fixture(scope="module", params=["horovod-tensorflow", "horovod-keras"])
def watched(request, tmp_path_factory):
    data = tmp_path_factory.mktemp(request.param)
    given = {"parameters": 1_000_000, "compute_ns": 60_000_000, "iterations": ITERATIONS, "cross_load": 0}
    given |= {"hosts": RANKS, "ring": tuple(range(RANKS)), "cross": ()}
    spec = RunSpec(data, trainer=request.param, marks=request.param == "horovod-keras", **given)
    run(spec)
    return spec


def test_every_iteration_is_found_and_none_invented(watched):
    (best, *_) = accuracy(Tables(watched.data), Run(watched.data / "lab"))
    assert best.source == ("hook" if watched.marks else "uprobe")
    assert (best.logged, best.found, best.invented) == (RANKS * ITERATIONS, RANKS * ITERATIONS, 0)
    for each in best.moments:
        assert each.percentile(50) < 200 * MICROSECOND


@pytest.mark.parametrize("rank", range(RANKS))
def test_the_communication_lies_within_what_the_script_saw(watched, rank):
    """The script notes a moment before the first gradient is handed over, and after the last one has come.

    The kernel side knows that it was the last one when the next step begins.
    """
    iterations = pd.read_parquet(watched.data / "iterations").sort_values("iteration")
    found = iterations[(iterations["rank"] == rank) & (iterations["iteration"] < ITERATIONS - 1)].reset_index(drop=True)
    event = json.loads((watched.data / "lab" / "run.json").read_text())["events"][0]
    begun, wait, over = (found[f"{name}_ns"] + event["mono_ns"] - event["utc_ns"] for name in MOMENTS)
    truth, clocks = Run(watched.data / "lab").rank(rank)[: len(found)], 50 * MICROSECOND
    assert (truth["first_enqueue_ns"] - clocks < begun).all()
    assert ((begun < wait) & (wait < over)).all()
    assert (over < truth["last_wait_ns"] + clocks).all()


def test_without_the_callback_the_same_steps_are_seen(watched):
    scores = json.loads((watched.data / "lab" / "run.json").read_text())["scores"]
    of = {score["source"]: score for score in scores if score["reference"] == "hook"}
    assert ("uprobe" in of) == watched.marks
    if watched.marks:
        assert of["uprobe"]["matched"] == of["uprobe"]["found"] >= of["uprobe"]["iterations"] - 2 * RANKS > ITERATIONS
