# SPDX-License-Identifier: Apache-2.0
"""The lab on three NATS servers and two workers: the same dataset as by one collector, and nothing left behind."""

import subprocess
import sys

import pandas as pd
import pytest

from netmon.errors import UnsupportedError
from netmon.lab.monitor import nats_server
from netmon.lab.network import abandoned

pytestmark = pytest.mark.kernel

COMMAND = [sys.executable, "-m", "netmon", "lab", "run", "--bus", "--overwrite", "--iterations"]


@pytest.fixture(autouse=True)
def server():
    try:
        nats_server()
    except UnsupportedError as error:
        pytest.skip(str(error))


def test_two_workers_find_every_iteration(tmp_path):
    before = set(abandoned())
    done = subprocess.run([*COMMAND, "12", "--data", tmp_path / "data"], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "iterations found: 36 of 36, invented: 0" in done.stdout
    lines = [line for line in done.stdout.splitlines() if line.startswith("worker-")]
    assert len(lines) == 2
    assert {host for line in lines for host in ("h0", "h1", "h2", "h3") if host in line} == {"h0", "h1", "h2", "h3"}
    training = [line for line in lines if "h0" in line]
    assert all(host in training[0] for host in ("h1", "h3"))
    ledger = pd.read_parquet(tmp_path / "data" / "ledger")
    attributed = ledger["attributed_bytes"].sum() / ledger["nic_bytes"].sum()
    assert attributed > 0.999
    assert set(abandoned()) <= before


def test_a_worker_that_cannot_write_ends_the_run_and_leaves_nothing_behind(tmp_path):
    before = set(abandoned())
    data = tmp_path / "data"
    (data / ".netmon").mkdir(parents=True)
    (data / ".netmon" / "workers").write_text("no folder")
    few = ("--hosts", "2", "--ring", "0,1", "--cross", "1:0")
    done = subprocess.run([*COMMAND, "5", *few, "--data", data], capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "worker-" in done.stderr
    assert set(abandoned()) <= before
