# SPDX-License-Identifier: Apache-2.0
"""The testbed itself: it carries its rate, trains for real, and leaves nothing behind, however it ends."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from waiting import wait_for

from netmon.errors import LabError
from netmon.lab.network import ETC_NETNS, RUNS, abandoned, all_runs, namespaces, network, processes_in, remove, run_tool
from netmon.lab.process import Process
from netmon.lab.record import Run
from netmon.lab.run import run
from netmon.lab.spec import RunSpec

pytestmark = pytest.mark.kernel


def remains(run_id):
    """What a run has left on this machine."""
    names = namespaces(f"netmon-{run_id}-")
    return [*names, *ETC_NETNS.glob(f"netmon-{run_id}-*"), *RUNS.glob(run_id)]


def in_host(host, *command):
    return run_tool(["ip", "netns", "exec", host.namespace, *command])


def test_a_port_carries_its_rate_and_no_more(tmp_path):
    with network(2, 200_000_000) as testbed:
        left, right = testbed.hosts
        server = ["iperf3", "--server", "--one-off", "--forceflush"]
        with Process("server", server, tmp_path, host=right) as receiver:
            receiver.wait_output("Server listening", 10)
            report = json.loads(in_host(left, "iperf3", "--client", right.address, "--time", "2", "--json"))
        # 1448 of 1514 bytes of a frame are payload. The first buckets' worth comes on top: 128 KiB at each end.
        received, most = report["end"]["sum_received"]["bits_per_second"], 200e6 * 1448 / 1514
        assert 0.8 * most < received < 1.05 * most  # a busy machine may not offer more
        assert "dropped 0" in in_host(left, "tc", "-s", "qdisc", "show", "dev", "eth0")
    assert remains(testbed.lease.run) == []


def test_hosts_know_each_other_by_name_and_the_machine_by_its_own():
    with network(2, 10**9) as testbed:
        first, second = testbed.hosts
        resolve = "import socket; print(socket.gethostbyname(socket.gethostname()), socket.gethostbyname('h1'))"
        assert in_host(first, sys.executable, "-c", resolve).split() == [first.address, second.address]


def test_an_idle_link_is_silent():
    with network(2, 10**9) as testbed:
        time.sleep(1)
        for host in testbed.hosts:
            counters = json.loads(in_host(host, "ip", "-json", "-s", "link", "show", "eth0"))[0]["stats64"]
            assert (counters["rx"]["packets"], counters["tx"]["packets"]) == (0, 0)


def test_a_failure_removes_everything(tmp_path):
    with contextlib.suppress(ZeroDivisionError), network(2, 10**9) as testbed:
        process = Process("sleeper", ["sleep", "60"], tmp_path, host=testbed.hosts[0])
        wait_for(lambda: process.pid in processes_in(testbed.hosts[0].namespace))
        _ = 1 / 0
    assert remains(testbed.lease.run) == []
    assert process.status() == -signal.SIGTERM


def test_what_a_killed_lab_leaves_is_told_from_what_a_living_one_uses_and_removed():
    lab = (
        "import subprocess, time; from netmon.lab.network import network\n"
        "with network(2, 10**9) as testbed:\n"
        "    inside = ['ip', 'netns', 'exec', testbed.hosts[0].namespace, 'sleep', '60']\n"
        "    print(testbed.lease.run, subprocess.Popen(inside).pid, flush=True); time.sleep(60)"
    )
    with network(2, 10**9) as living:
        with subprocess.Popen([sys.executable, "-c", lab], stdout=subprocess.PIPE, text=True) as owner:
            run_id, orphan = owner.stdout.readline().split()
            assert run_id not in abandoned()
            owner.kill()
        assert run_id in abandoned()
        assert living.lease.run not in abandoned()
        remove(run_id)
        assert remains(run_id) == []
        assert len(remains(living.lease.run)) == 6  # three namespaces, two hosts files, a folder
    assert not Path(f"/proc/{orphan}/exe").exists()  # nor does a dead process's that nobody has waited for


def test_the_ring_takes_the_time_that_equation_3_1_says_until_it_is_disturbed(tmp_path):
    spec = RunSpec(
        tmp_path, parameters=1_000_000, compute_ns=20_000_000, iterations=40, rate_bps=500_000_000, monitor=False
    )
    result = run(spec)
    steps = np.concatenate([Run(tmp_path / "lab").rank(rank) for rank in range(3)])
    assert len(steps) == 3 * spec.iterations
    assert (steps["step_start_ns"] + spec.compute_ns <= steps["first_enqueue_ns"]).all()
    assert (steps["last_wait_ns"] <= steps["step_end_ns"]).all()
    assert result.job == "ring"

    expected = spec.compute_ns + 2 * 2 / 3 * spec.parameters * 32 / spec.rate_bps * 1e9
    quiet, disturbed = Run(tmp_path / "lab").quiet_and_disturbed()
    assert 0.95 * expected < np.quantile(quiet, 0.1) < 1.5 * expected  # others may have the machine for some of them
    assert np.median(disturbed) > 1.2 * np.median(quiet)
    (sender,) = Run(tmp_path / "lab").cross()
    seconds = (sender["ended"]["mono_ns"] - sender["started"]["mono_ns"]) / 1e9
    assert 0.2 * 400e6 * seconds < sender["bytes_sent"] * 8 < 1.1 * 400e6 * seconds

    record = json.loads((tmp_path / "lab" / "run.json").read_text())
    assert record["outcome"] == "complete"
    assert [host["rank"] for host in record["hosts"]] == [0, 1, None, 2]


def test_a_part_that_fails_ends_the_run_with_its_words(tmp_path):
    spec = RunSpec(tmp_path, parameters=10**15, iterations=1, monitor=False, cross_load=0)  # more than an address space
    with pytest.raises(LabError, match=r"rank-\d on h\d ended with status 1: .*allocate"):
        run(spec)
    record = json.loads((tmp_path / "lab" / "run.json").read_text())
    assert record["outcome"] == "failed"
    assert "allocate" in record["error"]


def test_interrupting_the_command_removes_everything(tmp_path):
    command = [sys.executable, "-m", "netmon", "lab", "run", "--data", str(tmp_path), "--no-monitor"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as lab:
        while not re.search(r"iteration [1-9]", lab.stderr.readline()):
            assert lab.poll() is None
        record = [run_id for run_id in all_runs() if owner_of(run_id) == lab.pid]
        os.kill(lab.pid, signal.SIGTERM)
        lab.wait(60)
    assert lab.returncode == 130
    assert [remains(run_id) for run_id in record] == [[]]
    assert json.loads((tmp_path / "lab" / "run.json").read_text())["outcome"] == "interrupted"
    assert (tmp_path / "lab" / "rank-0.csv").exists()


def owner_of(run_id):
    """The process that holds a run's lock."""
    inode = (RUNS / run_id / "lock").stat().st_ino
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if fields[1] == "FLOCK" and fields[5].endswith(f":{inode}"):
            return int(fields[4])
    return None
