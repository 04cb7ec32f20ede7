# SPDX-License-Identifier: Apache-2.0
"""The real agent, killed in the midst of traffic and started again: its ledger goes on where the last one ended."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from conftest import Network
from test_cuts import Cut, steady
from waiting import wait_for

pytestmark = pytest.mark.kernel


@pytest.fixture
def hosts(network: Network, tmp_path: Path) -> Iterator[Cut]:
    with ExitStack() as cleanup:
        yield Cut(network, tmp_path, cleanup)


@pytest.mark.parametrize("kills", [1, pytest.param(2, marks=pytest.mark.long)])
def test_the_time_in_which_no_agent_counted_has_a_row(hosts: Cut, kills: int) -> None:
    collector, agent = hosts.both()
    before = hosts.counters()
    with steady(hosts):
        for _ in range(kills):
            hosts.more_is_stored()
            os.kill(agent.pid, signal.SIGKILL)
            wait_for(lambda killed=agent: killed.status() is not None)
            killed = hosts.counters()["rx"]
            wait_for(lambda killed=killed: hosts.counters()["rx"] > killed + 20_000)  # about 140 packets
            agent = hosts.agent()
        hosts.more_is_stored()
    after = hosts.settled()
    time.sleep(1.5)  # its last sample of a live interval
    agent.end_in_order(seconds=60)
    collector.end_in_order(seconds=60)
    ledger, buckets = hosts.table("ledger"), hosts.table("buckets")
    ledger = ledger[ledger["direction"] == "rx"].sort_values("start_ns")
    assert ledger["nic_counter_bytes"].sum() == after["rx"] - before["rx"]
    assert ledger["attributed_bytes"].sum() == buckets[buckets["direction"] == "rx"]["wire_bytes"].sum()
    gaps = ledger[ledger["hook"] == "none"]
    assert len(gaps) == kills
    assert (gaps["invisible_bytes"] >= 20_000).all()
    assert gaps["invisible_bytes"].sum() == ledger["invisible_bytes"].sum() - rest(ledger)
    starts, ends = ledger["start_ns"].to_numpy()[1:], ledger["end_ns"].to_numpy()[:-1]
    assert (abs(starts - ends) < 20_000_000).all()  # two sessions' clocks
    assert "never arrived" not in collector.output()


def rest(ledger) -> int:
    """What the intervals without a gap leave open: rows that straddle their edges."""
    return int(ledger[ledger["hook"] != "none"]["invisible_bytes"].sum())
