# SPDX-License-Identifier: Apache-2.0
"""What is told of connections is what happened to them, and what `ss` says of them."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import contextmanager

import pytest

pytestmark = pytest.mark.kernel

# One process has both ends of a connection, in two network namespaces: made in one, looked at in both. It is told what
# to do by arguments, and prints what the kernel says at the end, when nothing moves any more.
BOTH_ENDS = """
import ctypes, json, os, socket, sys, threading, time
from netmon.kernel.owners.endpoint import Endpoint
from netmon.kernel.tcp_info import TCP_INFO, TcpInfo
left, right, address, megabytes, way = sys.argv[1:]
def enter(name):
    with open(f"/run/netns/{name}") as namespace:
        assert ctypes.CDLL(None).setns(namespace.fileno(), 0) == 0
enter(right)
listener = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
there = TcpInfo()
enter(left)
here = TcpInfo()
sender = socket.create_connection((address, listener.getsockname()[1]))
receiver, _ = listener.accept()
(local, port, *_), (remote, remote_port, *_) = sender.getsockname(), sender.getpeername()
end = Endpoint(6, local, port, remote, remote_port)
total = int(megabytes) << 20
def read():
    got = 0
    while got < total:
        if way == "slow-reader":
            time.sleep(0.005)
        got += len(receiver.recv(1 << 14 if way == "slow-reader" else 1 << 20))
reader = threading.Thread(target=read)
reader.start()
before = here.look([end])
for _ in range(int(megabytes) * 16):
    if way == "idler":
        time.sleep(0.02)
    sender.sendall(bytes(1 << 16))
reader.join()
deadline = time.monotonic() + 30
def arrived():
    (now,) = here.look([end])
    return now["sent_bytes"] - now["retransmitted_bytes"] >= total
while not arrived() and time.monotonic() < deadline:
    time.sleep(0.05)
def told(table):
    return [dict(zip(TCP_INFO.names, row)) for row in table.tolist()]
seen = told(before), told(here.look([end])), told(there.look([end.reversed()])), told(there.look([end]))
print(json.dumps({"port": port, "looks": seen}), flush=True)
sys.stdin.readline()
sender.close()
receiver.close()
closed = time.monotonic() + 30
while here.look([end]).size and time.monotonic() < closed:
    time.sleep(0.05)
print(len(here.look([end])), flush=True)
"""


@contextmanager
def transfer(left, right, megabytes: int, way: str = "plain", address: str = ""):
    """(what it printed, the process): a transfer from left to right that is over, whose connection is still there."""
    names = (left.namespace.name, right.namespace.name, address or right.address)
    command = [sys.executable, "-c", BOTH_ENDS, *names, str(megabytes), way]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield json.loads(process.stdout.readline()), process
        finally:
            process.kill()


def as_ss_says(end, port: int) -> dict[str, int]:
    """bytes_sent, bytes_retrans and minrtt of the connection from this port."""
    text = end.namespace.run("ss", "-tinH", "sport", "=", f":{port}")
    return {name: int(float(value) * 1000) for name, value in re.findall(r"(\w+):([\d.]+)", text)}


@pytest.fixture
def routed(network):
    """Two ends with a router between them, whose way to the right one has a queue of a few packets."""
    left, router, right = (network.namespace() for _ in range(3))
    (near, first), (second, far) = network.veth(left, router), network.veth(router, right)
    router.set("net.ipv4.ip_forward=1")
    left.run("ip", "route", "add", "default", "via", first.address)
    right.run("ip", "route", "add", "default", "via", second.address)
    queue = ("tbf", "rate", "100mbit", "burst", "64k", "limit", "64k")
    router.run("tc", "qdisc", "add", "dev", second.interface, "root", *queue)
    return near, far


def test_what_a_full_queue_drops_is_sent_again_and_told_as_ss_tells_it(routed) -> None:
    left, right = routed
    with transfer(left, right, 8) as (said, _):
        (before,), (now,), (other,), nobody = said["looks"]
        ss = as_ss_says(left, said["port"])
    assert before["cookie"] == now["cookie"] != other["cookie"]
    assert now["retransmitted_bytes"] > 0
    assert now["sent_bytes"] == (8 << 20) + now["retransmitted_bytes"]
    assert now["sent_bytes"] * 1000 == ss["bytes_sent"]
    assert now["retransmitted_bytes"] * 1000 == ss["bytes_retrans"]
    assert now["rtt_min_us"] == ss["minrtt"]
    assert now["busy_us"] > 500_000  # 8 MiB at 100 Mbit/s
    assert other["out_of_order_packets"] > 0  # what came after a hole, as the receiver saw it
    assert other["sent_bytes"] == 0
    assert nobody == []  # the left end, asked for where the right one is


def test_next_to_nothing_is_sent_again_where_nothing_is_lost(namespaces: Callable) -> None:
    left, right = namespaces()
    with transfer(left, right, 8) as (said, process):
        _, (now,), (other,), _ = said["looks"]
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "0\n"  # a connection that is over is not told of, in TIME_WAIT or gone
    assert other["out_of_order_packets"] == 0
    # A busy machine answers late at times, and TCP probes whether its last segments were lost: a few of thousands.
    assert now["retransmitted_bytes"] < (8 << 20) / 100
    assert now["sent_bytes"] == (8 << 20) + now["retransmitted_bytes"]
    assert 0 < now["rtt_min_us"] <= now["rtt_us"]


def test_a_reader_that_is_slow_limits_by_its_window(namespaces: Callable) -> None:
    with transfer(*namespaces(), 4, "slow-reader") as (said, _):
        _, (now,), _, _ = said["looks"]
    assert now["receiver_limited_us"] > now["busy_us"] / 2 > 100_000
    assert now["sender_limited_us"] < now["receiver_limited_us"] / 4


def test_who_sends_seldom_is_limited_by_itself(namespaces: Callable) -> None:
    with transfer(*namespaces(), 2, "idler") as (said, _):
        _, (now,), _, _ = said["looks"]
    assert now["application_limited"] & 1
    assert now["busy_us"] < 16 * 2 * 20_000 / 2  # it slept that long at least
    assert now["receiver_limited_us"] + now["sender_limited_us"] <= now["busy_us"]


def test_ipv6_is_told_of_too(namespaces: Callable) -> None:
    left, right = namespaces()
    for number, end in enumerate((left, right), 1):
        end.namespace.set(f"net.ipv6.conf.{end.interface}.disable_ipv6=0")
        end.namespace.run("ip", "address", "add", f"fd00::{number}/64", "dev", end.interface, "nodad")
    with transfer(left, right, 2, address="fd00::2") as (said, _):
        _, (now,), (other,), _ = said["looks"]
    assert now["sent_bytes"] == (2 << 20) + now["retransmitted_bytes"]
    assert other["sent_bytes"] == 0
