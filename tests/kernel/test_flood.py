# SPDX-License-Identifier: Apache-2.0
"""Tens of thousands of new flows beside a training job: a bounded number is described, the job's flows all are."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pandas as pd
import pytest
from pair import Watched

from netmon.bench.traffic import FRAME_BYTES as SIZE_OF_FRAME
from netmon.kernel.meter.flow_numbers import ANY
from netmon.kernel.meter.memory import choose_geometry

pytestmark = pytest.mark.kernel

FLOWS, PER_S = 15_000, 5_000  # the flow ring then holds what comes in three seconds: the test is of what is told
SIZE = 1_000_000
MB = 1 << 20
GEOMETRY = choose_geometry(10_000)

# A rank connects, says and hears as much; the other end is of another host.
ECHO = f"""
import socket
server = socket.create_server(("", 7000))
print("listening", flush=True)
for _ in range(2):
    peer, _ = server.accept()
    with peer, peer.makefile("rwb") as file:
        file.write(file.read({SIZE}))
"""
RANK = f"""
import socket, sys
for go in sys.stdin:
    with socket.create_connection((sys.argv[1], 7000)) as peer, peer.makefile("rwb") as file:
        file.write(bytes({SIZE}))
        file.flush()
        assert len(file.read({SIZE})) == {SIZE}
    print("done", flush=True)
"""


@pytest.fixture
def watched(namespaces: Callable, tmp_path: Path) -> Iterator[Watched]:
    with ExitStack() as cleanup:
        yield Watched(*namespaces(), tmp_path, cleanup)


def python(end, *arguments: str, **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        end.namespace.inside(sys.executable, *arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def resident(process_id: int) -> int:
    return int(Path(f"/proc/{process_id}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_flood_of_new_flows_is_bounded_and_the_ranks_flows_are_whole(watched: Watched) -> None:
    collector, agent = watched.both("--host", "right")
    before, memory = watched.counters(), resident(agent.pid)
    left, right = watched.left, watched.right
    flood = (
        "-m",
        "netmon.bench.traffic",
        "flood",
        left.interface,
        left.hardware_address,
        right.hardware_address,
        right.address,
    )
    environment = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": left.address, "MASTER_PORT": "7000"}
    with (
        python(left, "-c", ECHO) as echo,
        python(right, "-c", RANK, left.address, **environment) as rank,
        python(left, *flood, str(FLOWS), str(PER_S)) as flooding,
    ):
        assert echo.stdout.readline() == "listening\n"
        sent = 0
        for _ in range(2):  # the budget is spent by the second time at the latest
            rank.stdin.write("go\n")
            rank.stdin.flush()
            assert rank.stdout.readline() == "done\n"
            if not sent:
                sent = int(flooding.stdout.readline())
                flooding = python(left, *flood, str(FLOWS), str(PER_S))
        flooding.communicate()
        rank.stdin.close()
        echo.wait()
    after = watched.settled()
    grown = resident(agent.pid) - memory
    agent.end_in_order(seconds=60)
    collector.end_in_order(seconds=60)
    overflow = check_account_with_overflow(watched, before, after)

    flows, buckets = watched.table("flows"), watched.table("buckets")
    udp = flows[flows["protocol"] == 17]
    aggregates = udp[udp["members"] > 0]
    assert len(udp) - len(aggregates) < ANY.burst + FLOWS / 6
    assert 0 < len(aggregates) < 1_000
    assert set(aggregates["prefix_bits"]) == {24}
    assert set(aggregates["class"]) == {"unclassified"}
    assert aggregates["members"].sum() >= FLOWS - (len(udp) - len(aggregates))
    packets = buckets[buckets["flow_id"].isin(udp["flow_id"])]["packets"].sum()
    assert packets == 2 * FLOWS or overflow
    check_rank(flows, buckets)
    assert grown < 100 * MB


def test_what_the_ring_of_new_flows_cannot_hold_is_in_the_overflow(watched: Watched) -> None:
    """The agent stands still while more flows begin than the rings announce."""
    sent = (GEOMETRY.cpus + 1) * GEOMETRY.flow_records
    collector, agent = watched.both()
    before = watched.counters()
    left, right = watched.left, watched.right
    ends = (left.interface, left.hardware_address, right.hardware_address, right.address)
    os.kill(agent.pid, signal.SIGSTOP)
    try:
        left.namespace.run(sys.executable, "-m", "netmon.bench.traffic", "flood", *ends, str(sent), "50000")
    finally:
        os.kill(agent.pid, signal.SIGCONT)
    after = watched.settled()
    agent.end_in_order(seconds=60)
    collector.end_in_order(seconds=60)
    overflow = check_account_with_overflow(watched, before, after)
    flows, buckets = watched.table("flows"), watched.table("buckets")
    packets = buckets[buckets["flow_id"].isin(flows[flows["protocol"] == 17]["flow_id"])]["packets"].sum()
    assert overflow >= SIZE_OF_FRAME * GEOMETRY.flow_records
    assert packets + overflow / SIZE_OF_FRAME == sent


def check_account_with_overflow(watched: Watched, before: dict[str, int], after: dict[str, int]) -> int:
    """Every byte of each link is in one place; how many are in the overflow, where the machine stood still for long."""
    ledger = watched.table("ledger").groupby("direction", observed=True).sum(numeric_only=True)
    buckets = watched.table("buckets").groupby("direction", observed=True)["wire_bytes"].sum()
    for way in ("rx", "tx"):
        link = ledger.loc[way]
        assert link["nic_counter_bytes"] == after[way] - before[way]
        assert link["attributed_bytes"] == buckets.get(way, 0)
        accounted = link["attributed_bytes"] + link["overflow_bytes"] + link["lost_kernel_bytes"]
        assert accounted == link["nic_bytes"]
    return int(ledger["overflow_bytes"].sum())


def check_rank(flows: pd.DataFrame, buckets: pd.DataFrame) -> None:
    """Both connections, in both directions, by themselves and whole; more is what TCP has sent again."""
    assert (flows[flows["protocol"] == 6]["members"] == 0).all()
    of_job = flows[flows["job"] != ""]
    assert sorted(of_job["direction"]) == ["rx", "rx", "tx", "tx"]
    assert set(of_job["class_source"]) <= {"connect", "socket"}
    payload = buckets.groupby("flow_id")["payload_bytes"].sum()
    assert payload[of_job["flow_id"]].between(SIZE, 1.1 * SIZE).all()
