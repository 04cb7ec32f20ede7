# SPDX-License-Identifier: Apache-2.0
"""An agent and a collector: the dataset says of connections what the kernel says, and of a rank what befell it."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pandas as pd
import pytest
from pair import Watched
from tcp_transfer import lossy_route, transfer

pytestmark = pytest.mark.kernel

RANK = """
import os, sys, time
from netmon.horovod import Steps
os.sched_setaffinity(0, {int(sys.argv[1])})
steps = Steps("train", 3, 4)
while True:
    with steps.step():
        until = time.monotonic() + 0.05
        while time.monotonic() < until:
            pass
"""
DATAGRAMS = """
import socket, sys, time
channel = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while True:
    for _ in range(100):
        channel.sendto(bytes(1400), (sys.argv[1], 9))
    time.sleep(0.01)
"""


@pytest.fixture
def cleanup() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def running(cleanup: ExitStack, *command: str, **environment: str) -> subprocess.Popen:
    process = cleanup.enter_context(subprocess.Popen(command, env=os.environ | environment))
    cleanup.callback(process.kill)
    return process


def wait_for(watched: Watched, table: str, holds: Callable[[pd.DataFrame], bool], limit_s: float = 60) -> pd.DataFrame:
    """The table as soon as it holds; as it is when there is no time left."""
    until = time.monotonic() + limit_s
    while True:
        found = watched.table(table) if list((watched.data / table).glob("**/*.parquet")) else pd.DataFrame()
        if (len(found) and holds(found)) or time.monotonic() > until:
            return found
        time.sleep(0.2)


def test_what_is_sent_again_is_in_the_dataset_to_the_byte(network, tmp_path: Path, cleanup: ExitStack) -> None:
    near, far = lossy_route(network)
    watched = Watched(far, near, tmp_path, cleanup)
    watched.both()
    running(cleanup, *near.namespace.inside(sys.executable, "-c", DATAGRAMS, far.address))
    with transfer(near, far, 40) as (said, _):  # more than three seconds at 100 Mbit/s
        _, (now,), _, _ = said["looks"]
        expected = now["sent_bytes"], now["retransmitted_bytes"]
        rows = wait_for(watched, "transport", lambda rows: sums(rows) == expected)
    assert sums(rows) == expected
    assert expected[1] > 0
    assert len(rows) >= 2
    flows = watched.table("flows").set_index("flow_id")
    (flow_id,) = rows["flow_id"].unique()
    assert (flows.loc[flow_id, "dst"], flows.loc[flow_id, "src_port"]) == (far.address, said["port"])
    assert (flows["protocol"] == 17).any()  # datagrams passed, and nothing is told of them
    rows = rows.sort_values("start_ns")
    assert (rows["end_ns"].iloc[:-1].to_numpy() == rows["start_ns"].iloc[1:].to_numpy()).all()  # without a gap
    assert (rows["busy_ns"] <= 1.2 * (rows["end_ns"] - rows["start_ns"])).all()
    assert (rows["rtt_min_ns"] <= rows["rtt_ns"]).all()
    assert rows["ecn_marked_packets"].isna().all()


def sums(rows: pd.DataFrame) -> tuple[int, int]:
    return int(rows["sent_bytes"].sum()), int(rows["retransmitted_bytes"].sum())


def test_a_rank_that_has_to_share_its_cpu_is_told_of(namespaces: Callable, tmp_path: Path, cleanup: ExitStack) -> None:
    watched = Watched(*namespaces(), tmp_path, cleanup)
    watched.both()
    cpu = str(min(os.sched_getaffinity(0)))
    inside = watched.right.namespace.inside(sys.executable, "-c", RANK, cpu)
    rank = running(cleanup, *inside, NETMON_SOCKET=f"{tmp_path}/agent.sock")
    alone = wait_for(watched, "host", lambda rows: (rows["rank"] == 3).sum() >= 2)
    own = alone[alone["rank"] == 3]
    assert (own["job"] == "train").all()
    assert set(own["pid"]) == {rank.pid}
    for _ in range(3):
        running(cleanup, "taskset", "-c", cpu, sys.executable, "-c", "while True: pass")

    def waited(rows: pd.DataFrame) -> bool:
        return bool((rows.loc[rows["rank"] == 3, "run_delay_ns"] > 300_000_000).any())

    rows = wait_for(watched, "host", waited)
    assert waited(rows)
    host = rows[rows["rank"] < 0]
    assert (host["softnet_dropped"] >= 0).all()
    assert host["run_delay_ns"].isna().all()
    spans = (rows["end_ns"] - rows["start_ns"]) / 1e9
    assert spans.between(0.9, 3.1).all()
