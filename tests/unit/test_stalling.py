# SPDX-License-Identifier: Apache-2.0
"""Calls that do not come back hold nobody up for long, and are few."""

import os
import threading
import time

import pytest
from waiting import wait_for

from netmon.kernel.stalling import StalledError, StallingCalls


def test_results_and_errors_are_the_functions() -> None:
    calls = StallingCalls(60)
    assert calls.call(1, lambda: 7, print) == 7
    with pytest.raises(FileNotFoundError):
        calls.call(1, lambda: os.stat("/nonexistent"), print)
    assert calls.call(1, lambda: threading.current_thread(), print) is calls.call(1, threading.current_thread, print)


def test_its_thread_ends_with_it() -> None:
    thread = StallingCalls(60).call(1, threading.current_thread, print)
    wait_for(lambda: not thread.is_alive(), 30)


def test_who_stalls_is_called_no_more_until_it_has_come_back() -> None:
    calls, answers, late = StallingCalls(0.01), threading.Event(), []

    def stall() -> int:
        answers.wait()
        return 5

    for _ in range(2):
        with pytest.raises(StalledError) as error:
            calls.call("slow", stall, late.append)
        assert error.value.under_way
    with pytest.raises(StalledError) as error:
        calls.call("slow", lambda: 7, late.append)
    assert not error.value.under_way
    assert StallingCalls.call(calls, "other", lambda: 7, late.append) == 7
    answers.set()
    wait_for(lambda: late == [5, 5])
    wait_for(lambda: comes_back(calls))


def comes_back(calls: StallingCalls) -> bool:
    try:
        return calls.call("slow", lambda: time.monotonic() > 0, print)
    except StalledError:
        return False
