# SPDX-License-Identifier: Apache-2.0
"""Injections into real runs: they hurt when and whom they say and are undone; a killed lab leaves nobody stopped."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from waiting import wait_for

from netmon.lab.injections.spec import injection
from netmon.lab.network import RUNS, all_runs, namespaces, processes_in, remove
from netmon.lab.record import INJECTIONS as FILE
from netmon.lab.record import Run
from netmon.lab.run import run
from netmon.lab.spec import RunSpec

pytestmark = pytest.mark.kernel

TEXTS = (
    "stop:rank=1,at=6.3,for=200ms",
    "stop-all:at=10.6,for=200ms",
    "checkpoint:at=14,for=100ms",
    "cross:from=2,to=0,at=18.2,for=500ms,profile=burst",
    "job:hosts=2+0,at=26,for=500ms",
    "slow-link:host=1,at=36,for=400ms,strength=0.1",
    "loss:host=1,at=44,for=500ms,strength=0.1",
    "quota:rank=1,at=52,for=300ms",
    "hog:rank=1,at=60,for=300ms",
    "small-queue:host=0,at=68,for=200ms",
    "nothing:at=72,for=200ms",
    "policer:host=0,at=74,for=200ms",
    "upload:rank=0,to=3,at=79,for=300ms,strength=1",
    "download:rank=1,to=0,at=86,for=300ms,strength=1",
)
HURT = ("stop", "stop-all", "job", "slow-link", "loss", "upload", "download")


@pytest.fixture(scope="module")
def injected(tmp_path_factory):
    data = tmp_path_factory.mktemp("injected")
    texts = tuple(injection(text) for text in TEXTS)
    spec = RunSpec(
        data,
        parameters=500_000,
        compute_ns=20_000_000,
        iterations=94,
        rate_bps=200_000_000,
        cross_load=0,
        monitor=False,
        injections=texts,
    )
    run(spec)
    return data, {each["kind"]: each for each in json.loads((data / "lab" / FILE).read_text())}


def durations_during(data, each):
    """Of the iterations of the rank that took longest, and the usual one."""
    record = json.loads((data / "lab" / "run.json").read_text())
    to_utc = record["events"][0]["utc_ns"] - record["events"][0]["mono_ns"]
    ranks = [Run(data / "lab").rank(rank) for rank in range(3)]
    lasted = np.max([rank["step_end_ns"] - rank["step_start_ns"] for rank in ranks], axis=0)
    hit = (ranks[0]["step_end_ns"] + to_utc > each["start_ns"]) & (ranks[0]["step_start_ns"] + to_utc < each["end_ns"])
    return lasted[hit], np.median(lasted)


def test_each_is_written_down_with_who_and_when(injected):
    _, told = injected
    assert set(told) == {text.partition(":")[0] for text in TEXTS}
    for text in TEXTS:
        asked, each = injection(text), told[text.partition(":")[0]]
        assert each["end_ns"] - each["start_ns"] >= asked.duration_ns
        assert each["cause"] == asked.cause
    assert (told["stop"]["host"], told["stop"]["rank"]) == ("h1", 1)
    assert told["cross"]["hosts"] == ["h2", "h0"]
    assert told["cross"]["bytes_sent"] > 0
    assert told["cross"]["processes"]
    assert told["job"]["job"] == "injected-4"
    assert (told["slow-link"]["host"], told["slow-link"]["direction"]) == ("h1", "tx")


@pytest.mark.parametrize("kind", HURT)
def test_it_hurts_the_iterations_that_it_meets(injected, kind):
    data, told = injected
    lasted, usual = durations_during(data, told[kind])
    # All together: a transfer that gets a small share of the link slows many of them by little.
    assert (lasted - usual).sum() > 0.3 * usual


def test_a_stop_delays_by_as_long_as_it_lasts(injected):
    data, told = injected
    each = told["stop"]
    lasted, usual = durations_during(data, each)
    # A rank that was stopped while it waited for the others anyway lost less.
    assert lasted.max() - usual < 1.5 * (each["end_ns"] - each["start_ns"]) + usual


def test_what_was_done_is_undone(injected):
    data, told = injected
    ranks = [Run(data / "lab").rank(rank) for rank in range(3)]
    assert [len(rank) for rank in ranks] == [94, 94, 94]
    last = [rank["step_end_ns"][-4:] - rank["step_start_ns"][-4:] for rank in ranks]
    _, usual = durations_during(data, told["nothing"])
    assert np.min(last) < 1.5 * usual


def test_a_killed_lab_leaves_no_rank_stopped(tmp_path):
    inject = ["--inject", "stop:rank=1,at=3,for=20s", "--inject", "job:hosts=0+2,at=40,for=1s"]
    command = [sys.executable, "-m", "netmon", "lab", "run", "--data", str(tmp_path), "--no-monitor", *inject]
    log = tmp_path / "lab" / "log" / "injected-0.log"
    with subprocess.Popen([*command, "--cross-load", "0"], stderr=subprocess.DEVNULL) as lab:
        wait_for(lambda: log.exists() and "begun" in log.read_text())
        (run_id,) = (each for each in all_runs() if lab.pid in owners(each))
        os.kill(lab.pid, signal.SIGKILL)
    names = namespaces(f"netmon-{run_id}-")
    wait_for(lambda: not [pid for name in names for pid in processes_in(name)])
    assert "ended" in log.read_text()
    remove(run_id)


def owners(run_id):
    inode = (RUNS / run_id / "lock").stat().st_ino
    fields = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return [int(field[4]) for field in fields if field[1] == "FLOCK" and field[5].endswith(f":{inode}")]
