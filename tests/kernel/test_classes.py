# SPDX-License-Identifier: Apache-2.0
"""Every byte gets its class, though a thousand connections a second are over before anybody could look them up."""

import pytest

from netmon.history.dataset import Tables
from netmon.lab.outcome import classification
from netmon.lab.record import Run
from netmon.lab.run import run
from netmon.lab.spec import RunSpec

pytestmark = pytest.mark.kernel


def test_bursts_of_short_connections_are_told_from_training(tmp_path):
    spec = RunSpec(
        tmp_path,
        parameters=500_000,
        compute_ns=50_000_000,
        iterations=25,
        cross_profile="burst",
        cross_load=0.8,
        cross_after=0.1,
    )
    run(spec)
    (sender,) = Run(tmp_path / "lab").cross()
    assert sender["flows"] > 1000
    told = classification(Tables(tmp_path), Run(tmp_path / "lab"))
    assert told.wrong_bytes == 0
    assert told.right_share >= 0.999
