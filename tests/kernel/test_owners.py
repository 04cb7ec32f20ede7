# SPDX-License-Identifier: Apache-2.0
"""Every flow is given to the process that has its socket, however short the socket lives."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pandas as pd
import pytest
from pair import Watched
from waiting import DIES_WITH_US

from netmon.kernel.sock_diag import Endpoint

pytestmark = pytest.mark.kernel

CONNECTIONS = 200
# Accepts in a child, so that who listens is not who accepts; each connection is one request and one answer.
SERVER = """
import os, socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])), backlog=300)
child = os.fork()
if child:
    print(child, flush=True)
while not child:
    connection, _ = listener.accept()
    connection.sendall(connection.recv(100))
    connection.close()
os.waitpid(child, 0)
"""
CLIENT = """
import socket, sys
for number in range(int(sys.argv[2])):
    with socket.create_connection((sys.argv[1], 6000)) as connection:
        connection.sendall(b"request")
        assert connection.recv(100) == b"request"
        connection.recv(100)
"""
# Process 1 of a machine of its own: an agent, and a container with a connection before it and some after it.
MACHINE = """
import os, socket, subprocess, sys, time
container, long, short, address, *agent = sys.argv[1:]
inside = ["ip", "netns", "exec", container, sys.executable, "-c"]
connected = subprocess.Popen([*inside, long, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
connected.stdout.readline()
ready = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
ready.settimeout(60)
ready.bind(os.environ["NOTIFY_SOCKET"])
watching = subprocess.Popen(agent)
while b"READY=1" not in ready.recv(4096):
    pass
for _ in range(20):
    client = subprocess.Popen([*inside, short, address, "1"])
    client.wait()
    print(client.pid)
connected.communicate(b"go")
print(connected.pid)
time.sleep(0.7)
watching.terminate()
watching.wait()
"""
LONG_CONNECTION = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], 6001))
print("connected", flush=True)
sys.stdin.read(2)
connection.sendall(b"request")
assert connection.recv(100) == b"request"
time.sleep(1.5)
"""
# What masquerading and a published port leave in the connection tracking; asked for as the uplink shows them.
TRANSLATED = """
from pyroute2.netlink.nfnetlink.nfctsocket import NFCTAttrTuple, NFCTSocket
from netmon.kernel.owners.owner_search import Translations
from netmon.kernel.sock_diag import Endpoint
def track(begun, answered):
    parts = [NFCTAttrTuple(saddr=a, sport=b, daddr=c, dport=d, proto=6) for a, b, c, d in (begun, answered)]
    NFCTSocket().entry("add", tuple_orig=parts[0], tuple_reply=parts[1], timeout=60, status=8)
track(("172.17.0.2", 40000, "192.0.2.9", 443), ("192.0.2.9", 443, "192.0.2.1", 61000))
track(("192.0.2.9", 50000, "192.0.2.1", 8080), ("172.17.0.2", 80, "192.0.2.9", 50000))
track(("192.0.2.1", 50001, "192.0.2.9", 443), ("192.0.2.9", 443, "192.0.2.1", 50001))
translations = Translations()
for port, remote_port in ((61000, 443), (8080, 50000), (50001, 443), (1, 1)):
    print(translations.inside(Endpoint(6, "192.0.2.1", port, "192.0.2.9", remote_port)))
"""
DATAGRAMS = """
import socket, sys
own, other, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
channel = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
channel.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
channel.bind((own, 7000))
print("bound", flush=True)
sys.stdin.readline()
for _ in range(10):
    channel.sendto(b"datagram", (other, port))
sys.stdin.readline()
"""


@pytest.fixture
def watched(namespaces: Callable, tmp_path: Path) -> Iterator[Watched]:
    with ExitStack() as cleanup:
        yield Watched(*namespaces(), tmp_path, cleanup)


@contextmanager
def running(command: list[str], *script: object) -> Iterator[subprocess.Popen]:
    """A Python script that has printed its first line; it is ended at last, with the children that it has."""
    arguments = [*DIES_WITH_US, *command, sys.executable, "-c", *map(str, script)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    process = subprocess.Popen(arguments, **pipes, start_new_session=True)
    with process:
        try:
            process.first_line = process.stdout.readline().strip()
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def tell(*processes: subprocess.Popen) -> None:
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()


def finish(watched: Watched, agent, collector) -> pd.DataFrame:
    time.sleep(1.5)  # looks at sockets, some even on a busy machine
    agent.end_in_order(seconds=60)
    collector.end_in_order(seconds=60)
    return watched.table("flows")


def test_short_connections_belong_to_who_connected_and_who_accepted(watched: Watched) -> None:
    collector, agent = watched.both()
    left, right = watched.left.namespace, watched.right.namespace
    with (
        running(left.inside(), SERVER, watched.left.address, 6000),
        running(right.inside(), SERVER, watched.right.address, 6000) as server,
    ):
        nobody = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", os.path.realpath(sys.executable))
        client = subprocess.Popen(right.inside(*nobody, "-c", CLIENT, watched.left.address, str(CONNECTIONS)))
        assert client.wait(120) == 0
        left.run(sys.executable, "-c", CLIENT, watched.right.address, str(CONNECTIONS))
        flows = finish(watched, agent, collector)
    made = flows[(flows["src_port"] == 6000) & (flows["src"] == watched.left.address)]
    accepted = flows[(flows["src_port"] == 6000) & (flows["src"] == watched.right.address)]
    assert len(made) == len(accepted) == CONNECTIONS
    assert set(made["pid"]) == {client.pid}
    assert set(made["class_source"]) <= {"connect", "socket"}
    assert set(accepted["pid"]) == {int(server.first_line)}
    assert (set(made["user"]), set(accepted["user"])) == ({"nobody"}, {"root"})
    assert set(accepted["class_source"]) <= {"close", "socket"}


def test_datagrams_belong_to_the_more_specific_socket(watched: Watched) -> None:
    collector, agent = watched.both()
    left, right = watched.left, watched.right
    with (
        running(right.namespace.inside(), DATAGRAMS, "0.0.0.0", left.address, 7001) as anywhere,
        running(right.namespace.inside(), DATAGRAMS, right.address, left.address, 7002) as here,
        running(left.namespace.inside(), DATAGRAMS, left.address, right.address, 7000) as outside,
    ):
        tell(here, outside)
        flows = finish(watched, agent, collector)
        tell(anywhere)
    arrived = flows[(flows["protocol"] == 17) & (flows["dst"] == right.address)]
    assert arrived["dst_port"].tolist() == [7000]
    assert arrived["pid"].tolist() == [here.pid]
    assert arrived["class_source"].tolist() == ["socket"]
    counters = watched.table("nic")
    received = counters[(counters["source"] == "sysfs") & (counters["counter"] == "rx_bytes")].sort_values("time_ns")
    assert set(received["device"]) == {right.interface}
    assert received["value"].is_monotonic_increasing
    assert 0 < received["value"].iloc[-1] <= watched.counters()["rx"]


def test_traffic_of_a_container_belongs_to_its_processes(network, tmp_path: Path) -> None:
    """container — host, whose uplink is watched — outside. The host has a process namespace of its own."""
    container, host, outside = (network.namespace() for _ in range(3))
    inner, bridge = network.veth(container, host)
    uplink, far = network.veth(host, outside)
    host.set("net.ipv4.ip_forward=1")
    container.run("ip", "route", "add", "default", "via", bridge.address)
    outside.run("ip", "route", "add", inner.address, "via", uplink.address)
    with ExitStack() as cleanup:
        watched = Watched(far, uplink, tmp_path, cleanup)
        collector = watched.collector()
        for port in (6000, 6001):
            cleanup.enter_context(running(outside.inside(), SERVER, far.address, port))
        alone = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, "-c", MACHINE)
        arguments = (container.name, LONG_CONNECTION, CLIENT, far.address, *watched.agent_command())
        environment = os.environ | {"NOTIFY_SOCKET": str(tmp_path / "ready")}
        done = subprocess.run(
            host.inside(*alone, *arguments), capture_output=True, text=True, check=True, timeout=120, env=environment
        )
        *clients, connected = map(int, done.stdout.split())
        collector.end_in_order(seconds=60)
        flows = watched.table("flows")
    flows = flows[flows["src"] == inner.address].sort_values("first_ns")
    assert sorted(flows["pid"]) == sorted([*clients, connected])
    assert set(flows["process"]) == {Path(sys.executable).name}
    assert flows.set_index("pid")["class_source"].to_dict() == {connected: "socket"} | dict.fromkeys(clients, "connect")


def test_a_translated_connection_is_followed_to_the_container(network) -> None:
    printed = network.namespace().run(sys.executable, "-c", TRANSLATED).splitlines()
    assert printed == [
        str(Endpoint(6, "172.17.0.2", 40000, "192.0.2.9", 443)),
        str(Endpoint(6, "172.17.0.2", 80, "192.0.2.9", 50000)),
        "None",
        "None",
    ]
