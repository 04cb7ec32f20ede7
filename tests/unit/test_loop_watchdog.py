# SPDX-License-Identifier: Apache-2.0
"""An agent whose loop stands still, or whose host was suspended, says so once, counts it, and goes on."""

import logging
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from waiting import wait_for

from collector.quarantine import Failures
from netmon import service
from netmon.service import ClockJumps, LoopWatchdog


def test_a_loop_that_stands_still_is_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(service, "_STILL_S", 0.05)
    monkeypatch.setattr(service, "_LOOK_S", 0.01)
    watched, held = LoopWatchdog(), threading.Condition()
    standing = threading.Event()

    def loop() -> None:
        watched.start()
        standing.set()
        with held:
            held.wait_for(lambda: bool(goes_on))
        watched.turn()

    goes_on: list[int] = []
    thread = threading.Thread(target=loop)
    with caplog.at_level(logging.WARNING, service.__name__):
        thread.start()
        standing.wait()
        wait_for(lambda: len(caplog.messages) == 1)
        watched.check()
        watched.check()
        assert len(caplog.messages) == 1
        with held:
            goes_on.append(1)
            held.notify()
        thread.join()
        wait_for(lambda: any("goes on after" in line for line in caplog.messages))
        watched.finish()
    assert "has been stalled for" in caplog.messages[0]
    assert watched.still_s > 0.05


def test_a_host_that_was_suspended_says_for_how_long(caplog: pytest.LogCaptureFixture) -> None:
    asleep = [10.0]
    watched = LoopWatchdog(lambda: asleep[0])
    assert not watched.turn()
    asleep[0] += 0.5
    assert [watched.turn(), watched.turn()] == [True, False]
    with caplog.at_level(logging.WARNING, service.__name__):
        watched.check()
        asleep[0] += 3600
        watched.check()
        watched.check()
    assert caplog.messages == ["this host was suspended for 3600 s; nothing was counted then"]
    assert watched.suspended_s == 3600


HOUR, YEAR = 3600.0, 366 * 86_400.0


@pytest.mark.parametrize(
    ("jump_s", "words"),
    [
        (HOUR, "set by +3600 s (1 h 0 min)"),
        (-HOUR, "set by -3600 s (1 h 0 min)"),
        (YEAR, "set by +31622400 s (366 d 0 h 0 min)"),
        (-YEAR, "set by -31622400 s (366 d 0 h 0 min)"),
    ],
)
def test_a_clock_that_is_set_is_said_and_counted(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, jump_s: float, words: str
) -> None:
    clock = [1_000.0]
    watched, failures = LoopWatchdog(jumps=ClockJumps(lambda: clock[0])), Failures(tmp_path)
    failures.jumps = ClockJumps(lambda: clock[0])
    with caplog.at_level(logging.WARNING):
        for step_s in (0.0, 0.5, jump_s - 0.5, 0.0, 0.2):  # what is slewed is no jump
            clock[0] += step_s
            watched.check()
            failures.check_clock()
    assert (watched.jumps.count, failures.jumps.count) == (1, 1)
    of_agent, of_collector = caplog.messages
    assert f"this host's clock was {words}" in of_agent
    assert f"this machine's clock was {words}" in of_collector


def test_suspend_is_no_jump_and_is_told_by_the_kernel() -> None:
    """A time namespace whose boot is an hour further back: as after an hour of sleep."""
    program = "from netmon.service import _asleep_s, _set_s; print(_asleep_s(), _set_s())"
    command = [sys.executable, "-c", program]
    namespace = ["unshare", "--time", "--boottime", "3600"]
    if os.geteuid() or not shutil.which("unshare"):
        pytest.skip("a time namespace needs root")
    slept = subprocess.run([*namespace, *command], capture_output=True, text=True, check=False)
    if "unshare" in slept.stderr:
        pytest.skip(f"this kernel has no time namespaces: {slept.stderr}")
    asleep_s, set_s = map(float, slept.stdout.split())
    here_s, here_set_s = service._asleep_s(), service._set_s()
    assert asleep_s - here_s == pytest.approx(3600, abs=1)
    assert here_set_s - set_s == pytest.approx(3600, abs=1)


def test_both_clocks_of_this_machine_can_be_read() -> None:
    assert service._asleep_s() > -1
