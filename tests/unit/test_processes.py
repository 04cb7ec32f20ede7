# SPDX-License-Identifier: Apache-2.0
"""Processes come, go, and leave their numbers to others while the table looks."""

import os
import subprocess
import sys
import time

from waiting import wait_for

from netmon.kernel.processes import ProcessTable
from netmon.marks import RankIdentity

SECOND = 1_000_000_000


def sleeper(**environment: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=os.environ | environment)


def test_a_rank_is_found_and_forgotten() -> None:
    table = ProcessTable()
    with sleeper(HOROVOD_RANK="1", HOROVOD_SIZE="2", NETMON_JOB="found") as process:
        while not any(rank.pid == process.pid for rank in table.ranks()):  # until it has called exec
            table.scan(0)
        assert table.get(process.pid).rank == RankIdentity("found", 1, 2)
        process.kill()
    table.scan(SECOND)
    assert all(rank.pid != process.pid for rank in table.ranks())
    assert table.get(process.pid) is None


def test_a_process_that_was_only_asked_for_may_end_before_the_next_scan() -> None:
    table = ProcessTable()
    with sleeper() as process:
        assert table.get(process.pid).pid == process.pid
        process.kill()
    table.scan(0)
    assert table.get(process.pid) is None


def test_a_process_that_becomes_a_rank_by_exec_is_seen_at_the_next_scan() -> None:
    table = ProcessTable()
    script = "import os; input(); os.environ.update(HOROVOD_RANK='1', HOROVOD_SIZE='2', NETMON_JOB='became');"
    script += "os.execvp('sleep', ['sleep', '60'])"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE) as process:
        now = 0
        for now in range(3):
            table.scan(now)
        assert all(rank.pid != process.pid for rank in table.ranks())
        process.stdin.write(b"\n")
        process.stdin.flush()
        deadline = time.monotonic() + 60
        while not any(rank.pid == process.pid for rank in table.ranks()) and time.monotonic() < deadline:
            table.scan(now)
        assert table.get(process.pid).rank == RankIdentity("became", 1, 2)
        process.kill()


def test_a_connection_is_that_of_the_program_after_exec() -> None:
    """As with `ip netns exec`: who was looked at just before is asked again when it connects."""
    table = ProcessTable()
    script = "import os; input(); os.execvp('sleep', ['sleep', '60'])"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE) as process:
        table.scan(0)
        wait_for(lambda: table.current(process.pid).name.startswith("python"))
        process.stdin.write(b"\n")
        process.stdin.flush()
        wait_for(lambda: table.current(process.pid).name == "sleep")
        process.kill()
