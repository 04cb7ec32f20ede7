# SPDX-License-Identifier: Apache-2.0
"""Processes of the lab: readiness, early deaths, ends; and the trainers' truth."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from waiting import wait_for

from netmon.errors import DataError, LabError
from netmon.lab.process import Process
from netmon.lab.record import Run
from netmon.lab.trainers.script import IterationLog

READY = "import sdnotify, time; sdnotify.SystemdNotifier().notify('READY=1'); time.sleep(60)"


def test_readiness_is_waited_for(tmp_path):
    with Process("ready", [sys.executable, "-c", READY], tmp_path, notify=tmp_path / "notify") as process:
        process.wait_ready(60)
        process.check_running()
    assert process.status() == -signal.SIGTERM


def test_an_early_death_is_told_in_its_own_words(tmp_path):
    command = ["sh", "-c", "echo no such interface >&2; exit 3"]
    with (
        Process("agent-h0", command, tmp_path, notify=tmp_path / "notify") as process,
        pytest.raises(LabError, match="agent-h0: it ended with status 3: no such interface"),
    ):
        process.wait_ready(60)


def test_patience_has_an_end(tmp_path):
    with (
        Process("slow", ["sleep", "60"], tmp_path, notify=tmp_path / "notify") as process,
        pytest.raises(LabError, match="in vain"),
    ):
        process.wait_ready(0.1)


def test_a_process_that_will_not_go_is_killed(tmp_path):
    with Process("stubborn", ["sh", "-c", "trap '' TERM; echo up; while :; do sleep 1; done"], tmp_path) as process:
        process.wait_output("up", 60)
        assert process.end(seconds=0.2) == -signal.SIGKILL


def test_processes_end_with_a_killed_lab(tmp_path):
    lab = (
        "import time; from pathlib import Path; from netmon.lab.process import Process; "
        f"print(Process('child', ['sleep', '60'], Path({str(tmp_path)!r})).pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", lab], stdout=subprocess.PIPE, text=True) as owner:
        child = int(owner.stdout.readline())
        wait_for(lambda: Path(f"/proc/{child}/cmdline").read_bytes() == b"sleep\x0060\0")  # no longer setpriv
        owner.kill()
    wait_for(lambda: not os.path.exists(f"/proc/{child}/exe"))


def write_truth(folder, capsys):
    (folder / "lab").mkdir()
    with IterationLog(str(folder / "lab" / "rank-0.csv"), 0) as log:
        for k in range(4):
            start = 100 * k
            log.add(k, start, start + 10, start + 80, start + 90 + k)
    assert capsys.readouterr().out.count("took") == 4
    sender = {"started": {"mono_ns": 195}, "ended": {"mono_ns": 392}}
    (folder / "lab" / "cross.json").write_text(json.dumps([sender]))


def test_the_truth_comes_back(tmp_path, capsys):
    write_truth(tmp_path, capsys)
    steps = Run(tmp_path / "lab").rank(0)
    assert steps["iteration"].tolist() == [0, 1, 2, 3]
    assert steps["last_wait_ns"].tolist() == [80, 180, 280, 380]


def test_steps_are_quiet_or_disturbed_or_neither(tmp_path, capsys):
    write_truth(tmp_path, capsys)
    quiet, disturbed = Run(tmp_path / "lab").quiet_and_disturbed()
    np.testing.assert_array_equal(quiet, [90, 91])
    np.testing.assert_array_equal(disturbed, [92])


def test_a_missing_truth(tmp_path):
    with pytest.raises(DataError, match="rank 3"):
        Run(tmp_path / "lab").rank(3)


def test_the_log_is_written_on_sigterm(tmp_path):
    path = tmp_path / "rank-1.csv"
    program = (
        "import time; from netmon.lab.trainers.script import IterationLog\n"
        f"with IterationLog({str(path)!r}, 1) as log:\n log.add(0, 1, 2, 3, 4)\n time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as trainer:
        trainer.stdout.readline()
        trainer.terminate()
    [line] = path.read_text().splitlines()[1:]
    moments, _, busiest = line.rsplit(",", 2)
    assert (moments, busiest) == ("1,0,1,2,3,4,0", "0")
