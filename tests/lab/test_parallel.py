# SPDX-License-Identifier: Apache-2.0
"""Real trainings whose ranks send each other more than sums of gradients: nothing is said of their steps."""

import json

import numpy as np
import pandas as pd
import pytest

from netmon.cli import main
from netmon.lab.record import Run
from netmon.lab.run import run
from netmon.lab.spec import RunSpec
from netmon.views import NOT_UNDERSTOOD

pytestmark = pytest.mark.kernel

MS = 1_000_000
COMPUTE_NS = 50 * MS
LONG_ENOUGH_S = 15  # a rank that never sums anything is waited for


@pytest.mark.parametrize("trainer", ["fsdp", "pipeline", "experts"])
def test_nothing_is_said_of_steps(tmp_path, capsys, trainer):
    steps = LONG_ENOUGH_S * 1000 * MS // COMPUTE_NS
    ranks = {"hosts": 2, "ring": (0, 1), "cross": (), "cross_load": 0}
    run(RunSpec(tmp_path, trainer, **ranks, parameters=400_000, compute_ns=COMPUTE_NS, iterations=steps))
    took = Run(tmp_path / "lab").rank(0)
    assert (np.diff(took["step_end_ns"]) > 0).all()
    assert not (tmp_path / "iterations").exists()
    assert not (tmp_path / "verdicts").exists()
    flows, buckets = (pd.read_parquet(tmp_path / table) for table in ("flows", "buckets"))
    (job,) = set(flows.loc[flows["traffic"] == "unexplained", "job"])
    assert set(buckets["iteration"]) == {-1}
    assert set(buckets.loc[buckets["payload_bytes"] > 1_000, "class"]) == {"DL-only"}
    assert (tmp_path / "lab/log/collector.log").read_text().count(NOT_UNDERSTOOD) == 1
    capsys.readouterr()
    assert main(["why", "--data", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"incidents": [], "verdicts": [], "not_understood": [job]}
