# SPDX-License-Identifier: Apache-2.0
"""How a process got on with the CPUs is told as it was: throttled by a quota, waiting beside others, or neither."""

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from waiting import DIES_WITH_US

from netmon.kernel.load import Load, OpenFiles, Pressure, ProcessLoad

pytestmark = pytest.mark.kernel

SPIN = "print(flush=True)\nwhile True: pass"
THREADED = """
import threading, time
threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()
print(flush=True)
time.sleep(600)
"""


@pytest.fixture
def quota() -> Iterator[Path]:
    """A control group that may use a 25th of a CPU: less than a busy machine gives anybody."""
    one, two = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
    version1 = (one / "cpu.cfs_quota_us").exists() or (one / "cpu.shares").exists()
    if not version1 and not (two / "cgroup.controllers").exists():
        pytest.skip("no control groups are mounted")
    group = (one if version1 else two) / f"nmt-{secrets.token_hex(4)}"
    if not version1:
        (two / "cgroup.subtree_control").write_text("+cpu")
    group.mkdir()
    try:
        if version1:
            (group / "cpu.cfs_period_us").write_text("50000")
            (group / "cpu.cfs_quota_us").write_text("2000")
        else:
            (group / "cpu.max").write_text("2000 50000")
        yield group
    finally:
        group.rmdir()


@pytest.fixture
def started() -> Iterator:
    """Starts Python scripts that have printed a line, on one CPU each if it is given."""
    with ExitStack() as cleanup:

        def start(script: str, cpu: int | None = None) -> int:
            pinned = (lambda: os.sched_setaffinity(0, {cpu})) if cpu is not None else None
            command = [*DIES_WITH_US, sys.executable, "-c", script]
            process = cleanup.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, preexec_fn=pinned))
            cleanup.callback(process.wait)
            cleanup.callback(process.kill)
            assert process.stdout
            process.stdout.readline()
            return process.pid

        yield start


def after(load: ProcessLoad, enough, limit_s: float = 60) -> Load:
    """What the first look tells by which it is enough; the last one otherwise. Each tells of half a second or more."""
    until = time.monotonic() + limit_s
    while True:
        time.sleep(0.5)
        told = load.sample()
        assert told
        if enough(told) or time.monotonic() > until:
            return told


def test_a_quota_that_is_used_up_throttles(quota: Path, started) -> None:
    pid, free = started(SPIN), started(SPIN)
    (quota / "cgroup.procs").write_text(str(pid))
    load, other = ProcessLoad(pid), ProcessLoad(free)
    told = after(load, lambda told: told.throttled_ns > 100_000_000)
    assert told.throttled_ns > 100_000_000
    beside = other.sample()
    assert beside
    assert beside.throttled_ns == 0
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    assert load.sample() is None
    load.close()


def test_a_quota_that_a_running_process_gets_is_seen_from_its_beginning(quota: Path, started) -> None:
    """Looks are ten a second, one of which reads all, as the agent's are."""
    pid = started(SPIN)
    load = ProcessLoad(pid)
    throttled_ns = 0
    for look in range(30):
        if look == 5:
            (quota / "cgroup.procs").write_text(str(pid))
        time.sleep(0.1)
        told = load.sample(thorough=look % 10 == 9)
        assert told
        throttled_ns += max(told.throttled_ns, 0)
        assert look >= 5 or told.throttled_ns == 0
        if look == 14:
            assert throttled_ns > 200_000_000
    assert throttled_ns == pytest.approx(throttled_by(quota), rel=0.1)
    load.close()


def test_what_a_group_was_throttled_before_is_not_the_newcomers(quota: Path, started) -> None:
    before, pid = started(SPIN), started("print(flush=True); import time; time.sleep(600)")
    (quota / "cgroup.procs").write_text(str(before))
    until = time.monotonic() + 60
    while throttled_by(quota) < 2_000_000_000 and time.monotonic() < until:
        time.sleep(0.1)
    os.kill(before, 9)
    os.waitpid(before, 0)
    load = ProcessLoad(pid)
    (quota / "cgroup.procs").write_text(str(pid))
    told = load.sample()
    assert told
    assert told.throttled_ns == 0
    load.close()


def throttled_by(quota: Path) -> int:
    """ns for which a control group has throttled."""
    told = dict(line.split() for line in (quota / "cpu.stat").read_text().splitlines())
    return int(told["throttled_time"]) if "throttled_time" in told else int(told["throttled_usec"]) * 1000


def test_who_shares_a_cpu_waits_for_it(started) -> None:
    cpu = min(os.sched_getaffinity(0))
    crowd = [started(SPIN, cpu) for _ in range(3)]
    load, machine = ProcessLoad(crowd[0]), Pressure.of_machine(OpenFiles())
    told = after(load, lambda told: told.run_delay_ns > 200_000_000)
    assert told.run_delay_ns > 200_000_000
    assert told.cpu_ns > 10_000_000
    (cpu_pressure_ns, *_) = machine.read()
    assert cpu_pressure_ns >= told.run_delay_ns / 2 or cpu_pressure_ns == -1  # a kernel without PSI


def test_a_thread_that_waits_counts_and_one_that_sleeps_does_not(started) -> None:
    cpu = min(os.sched_getaffinity(0))
    started(SPIN, cpu)
    busy, asleep = started(THREADED, cpu), started("print(flush=True); import time; time.sleep(600)")
    load, idle = ProcessLoad(busy), ProcessLoad(asleep)
    assert after(load, lambda told: told.run_delay_ns > 100_000_000).run_delay_ns > 100_000_000
    told = idle.sample()
    assert told
    assert told.cpu_ns < 1_000_000_000
    assert told.run_delay_ns < 1_000_000_000
