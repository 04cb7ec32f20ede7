# SPDX-License-Identifier: Apache-2.0
"""The agent asks for the time, the real collector answers."""

import sys
import time
from pathlib import Path

from netmon.agent.clock import Clock
from netmon.agent.exchange import ClockExchanges
from netmon.dl.clocks import exchange_bounds, fit_offset
from netmon.kernel.timekeeping import clock_state, parse_tracking
from netmon.lab.process import Process


def collector(folder: Path) -> Process:
    """A collector, once it listens."""
    command = [sys.executable, "-m", "netmon", "collector", "--listen", f"unix:{folder}/socket"]
    process = Process("collector", [*command, "--data", str(folder / "data")], folder, notify=folder / "notify")
    process.wait_ready(60)
    return process


def wait_for(exchanges: ClockExchanges, count: int) -> list:
    taken, deadline = [], time.monotonic() + 20
    while len(taken) < count and time.monotonic() < deadline:
        time.sleep(0.02)
        taken += exchanges.take()
    return taken


def test_exchanges_bound_the_difference_of_two_readings_of_one_clock(tmp_path: Path) -> None:
    exchanges = ClockExchanges(f"unix:{tmp_path}/socket")
    exchanges.start()  # it waits for a collector that comes later
    with collector(tmp_path):
        taken = wait_for(exchanges, 20)
        exchanges.finish(5)
    assert not exchanges.is_alive()
    assert len(taken) >= 20
    fit = fit_offset(exchange_bounds(taken), taken[-1].agent_received_ns)
    truth = time.time_ns() - time.monotonic_ns()
    assert abs(fit.offset_ns - truth) <= fit.error_ns + 100_000  # two readings that are not one
    assert fit.error_ns < 50_000_000


def test_it_goes_on_with_a_collector_that_comes_back(tmp_path: Path) -> None:
    exchanges = ClockExchanges(f"unix:{tmp_path}/socket")
    exchanges.start()
    for _ in range(2):
        with collector(tmp_path):
            assert len(wait_for(exchanges, 4)) >= 4
    exchanges.finish(5)
    assert not exchanges.is_alive()


def test_it_ends_without_a_collector(tmp_path: Path) -> None:
    exchanges = ClockExchanges(f"unix:{tmp_path}/socket")
    exchanges.start()
    time.sleep(0.1)
    exchanges.finish(5)
    assert not exchanges.is_alive()
    ClockExchanges(f"unix:{tmp_path}/socket").finish(1)  # it was never started


def test_a_clock_sample_says_what_the_kernel_says() -> None:
    sample, state = Clock().sample(), clock_state()
    assert abs(sample.offset_ns - (time.time_ns() - time.monotonic_ns())) < 10_000_000
    assert 0 < sample.error_ns < 10_000_000
    assert (sample.utc_error_ns > 0) == (sample.discipline != "")
    if not state.synchronised:
        assert (sample.utc_error_ns, sample.discipline) == (0, "")


def test_chronys_words_are_understood() -> None:
    line = "A29FC87B,time.example,3,1795267699.3,0.000012,-0.00001,0.00002,-1.5,0.001,0.01,0.002,0.0005,64.2,Normal"
    state = parse_tracking(line)
    assert state
    assert (state.synchronised, state.discipline, state.told_by) == (True, "ntp", "chrony")
    assert state.error_ns == 12_000 + 500_000 + 1_000_000
    phc = parse_tracking(line.replace("time.example", "PHC0"))
    assert phc
    assert phc.discipline == "ptp"
    lost = parse_tracking(line.replace("Normal", "Not synchronised"))
    assert lost
    assert (lost.synchronised, lost.discipline) == (False, "")
    assert parse_tracking("506 Cannot talk to daemon") is None
