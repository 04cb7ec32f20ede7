# SPDX-License-Identifier: Apache-2.0
"""An agent and a collector: the dataset says of connections what the kernel says, and of a rank what befell it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pandas as pd
import pytest
from pair import NETMON, Watched, run
from tcp_transfer import lossy_route, transfer
from waiting import DIES_WITH_US

from netmon.kernel.privilege import SERVICE_CAPABILITIES, effective_capabilities
from netmon.service import service_user

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
    process = cleanup.enter_context(subprocess.Popen([*DIES_WITH_US, *command], env=os.environ | environment))
    cleanup.callback(process.kill)
    return process


def wait_for(watched: Watched, table: str, holds: Callable[[pd.DataFrame], bool], limit_s: float = 60) -> pd.DataFrame:
    """The table as soon as it holds; as it is when there is no time left."""
    until = time.monotonic() + limit_s
    while True:
        found = watched.table(table)
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
        own = rows[rows["rank"] == 3]
        waiting = own["run_delay_ns"] > 0.3 * (own["end_ns"] - own["start_ns"])
        return bool(own.loc[waiting, "run_delay_ns"].sum() > 300_000_000)

    rows = wait_for(watched, "host", waited)
    assert waited(rows)
    host = rows[rows["rank"] < 0]
    assert (host["softnet_dropped"] >= 0).all()
    assert host["run_delay_ns"].isna().all()
    assert ((host["end_ns"] - host["start_ns"]) / 1e9).between(0.9, 3.1).all()
    spans = ((rows["end_ns"] - rows["start_ns"]) / 1e9)[rows["rank"] == 3]
    assert spans.max() <= 3.1
    assert spans.min() < 0.9  # what kept it from running is told by itself


# Process 1 of a machine of its own: an agent, and in a container somebody who sends until told otherwise.
MACHINE = """
import os, socket, subprocess, sys, time
container, sender, address, *agent = sys.argv[1:]
ready = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
ready.settimeout(60)
ready.bind(os.environ["NOTIFY_SOCKET"])
os.chmod(os.environ["NOTIFY_SOCKET"], 0o666)
watching = subprocess.Popen(agent)
while b"READY=1" not in ready.recv(4096):
    pass
inside = ["ip", "netns", "exec", container, sys.executable, "-c", sender, address]
sending = subprocess.Popen(inside, stdin=subprocess.PIPE, stdout=sys.stdout)
print("started", flush=True)
sys.stdin.readline()
sending.communicate(b"enough")
watching.terminate()
watching.wait()
"""
CAPABILITIES = ",".join(
    f"+{name.lower()[4:]}"
    for name, bit in (SERVICE_CAPABILITIES | {"CAP_SYS_ADMIN": 21}).items()
    if effective_capabilities() >> bit & 1
)
MAY_ENTER = ("--clear-groups", f"--inh-caps={CAPABILITIES}", f"--ambient-caps={CAPABILITIES}")
"""As its unit starts the agent, with what it takes to enter namespaces."""

SENDER = """
import select, socket, sys, time
connection = socket.create_connection((sys.argv[1], 6000))
sent = 0
while not select.select([sys.stdin], [], [], 0.01)[0]:
    connection.sendall(bytes(50_000))
    sent += 50_000
print(sent, flush=True)
"""
SINK = """
import socket, sys
listener = socket.create_server((sys.argv[1], 6000))
print("listening", flush=True)
connection, _ = listener.accept()
while connection.recv(1 << 20):
    pass
"""


def test_a_connection_of_a_container_is_told_of_from_outside(network, tmp_path: Path, cleanup: ExitStack) -> None:
    """container — host, whose uplink is watched — outside. The host has a process namespace of its own."""
    container, host, outside = (network.namespace() for _ in range(3))
    inner, bridge = network.veth(container, host)
    uplink, far = network.veth(host, outside)
    host.set("net.ipv4.ip_forward=1")
    container.run("ip", "route", "add", "default", "via", bridge.address)
    outside.run("ip", "route", "add", inner.address, "via", uplink.address)
    watched = Watched(far, uplink, tmp_path, cleanup)
    watched.collector()
    sink = cleanup.enter_context(
        subprocess.Popen(outside.inside(sys.executable, "-c", SINK, far.address), stdout=subprocess.PIPE)
    )
    cleanup.callback(sink.kill)
    assert sink.stdout
    sink.stdout.readline()
    alone = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, "-c", MACHINE)
    user = service_user()
    assert user
    os.chown(tmp_path, user.uid, user.gid)
    as_service = ("setpriv", f"--reuid={user.uid}", f"--regid={user.gid}", *MAY_ENTER)
    arguments = (container.name, SENDER, far.address, *as_service, *watched.agent_command())
    machine = cleanup.enter_context(
        subprocess.Popen(
            host.inside(*alone, *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"NOTIFY_SOCKET": str(tmp_path / "ready")},
        )
    )
    cleanup.callback(machine.kill)
    rows = wait_for(watched, "transport", lambda rows: len(rows) >= 2)
    shown = wait_for_round_trips(watched)
    output, _ = machine.communicate("\n", timeout=60)
    assert len(rows) >= 2
    assert 0 < rows["sent_bytes"].sum() <= int(output.split()[-1])
    flow = watched.table("flows").set_index("flow_id").loc[rows["flow_id"].iloc[0]]
    assert (flow["src"], flow["dst"]) == (inner.address, far.address)
    assert (rows["rtt_min_ns"] > 0).all()
    assert {flow["flow"]["direction"] for flow in shown} == {"rx", "tx"}
    assert all(0 < flow["rtt_min_ns"] <= flow["rtt_ns"] for flow in shown)
    assert all((flow["loss"] is None) == (flow["flow"]["direction"] == "rx") for flow in shown)


def wait_for_round_trips(watched: Watched, limit_s: float = 60) -> list[dict]:
    """The flows of `netmon top` whose round trip is told, as soon as there are those of both ways."""
    until = time.monotonic() + limit_s
    while True:
        said = run(*NETMON, "top", "--once", "--json", "--collector", watched.address)
        flows = [flow for flow in json.loads(said)["flows"] if flow["rtt_ns"] is not None]
        if len(flows) >= 2 or time.monotonic() > until:
            return flows
