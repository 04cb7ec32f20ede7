# SPDX-License-Identifier: Apache-2.0
"""An agent whose loop stands still, or whose host was suspended, says so once, counts it, and goes on."""

import logging
import threading

import pytest
from waiting import wait_for

from netmon.agent import standstill
from netmon.agent.standstill import Standstill


def test_a_loop_that_stands_still_is_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(standstill, "_STILL_S", 0.05)
    monkeypatch.setattr(standstill, "_LOOK_S", 0.01)
    watched, held = Standstill(), threading.Condition()
    standing = threading.Event()

    def loop() -> None:
        watched.start()
        standing.set()
        with held:
            held.wait_for(lambda: bool(goes_on))
        watched.turn()

    goes_on: list[int] = []
    thread = threading.Thread(target=loop)
    with caplog.at_level(logging.WARNING, standstill.__name__):
        thread.start()
        standing.wait()
        wait_for(lambda: len(caplog.messages) == 1)
        watched.look()
        watched.look()
        assert len(caplog.messages) == 1
        with held:
            goes_on.append(1)
            held.notify()
        thread.join()
        wait_for(lambda: any("goes on after" in line for line in caplog.messages))
        watched.finish()
    assert "has stood still for" in caplog.messages[0]
    assert watched.still_s > 0.05


def test_a_host_that_was_suspended_says_for_how_long(caplog: pytest.LogCaptureFixture) -> None:
    asleep = [10.0]
    watched = Standstill(lambda: asleep[0])
    with caplog.at_level(logging.WARNING, standstill.__name__):
        watched.look()
        asleep[0] += 3600
        watched.look()
        watched.look()
    assert caplog.messages == ["this host was suspended for 3600 s; nothing was counted then"]
    assert watched.suspended_s == 3600


def test_both_clocks_of_this_machine_can_be_read() -> None:
    assert standstill._asleep_s() > -1
