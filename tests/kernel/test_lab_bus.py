# SPDX-License-Identifier: Apache-2.0
"""The lab on three NATS servers and two workers: the same dataset as by one collector, and nothing left behind."""

import subprocess
import sys

import pandas as pd
import pytest
from waiting import wait_for

from netmon.errors import UnsupportedError
from netmon.lab.monitor import nats_server
from netmon.lab.network import abandoned
from netmon.lab.record import FOLDER

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
    few = ("--hosts", "2", "--ring", "0,1", "--cross", "1:0", "--data", data)
    with subprocess.Popen([*COMMAND, "5", *few], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        wait_for((data / FOLDER).exists)  # the workers begin when the bus is there
        (data / ".netmon").mkdir()
        (data / ".netmon" / "workers").write_text("no folder")
        _, said = run.communicate(timeout=120)
    assert run.returncode != 0
    assert "worker-" in said
    assert set(abandoned()) <= before
