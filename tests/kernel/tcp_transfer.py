# SPDX-License-Identifier: Apache-2.0
"""For tests: a TCP transfer between two namespaces, and what the kernel says of it when nothing moves any more."""

import json
import subprocess
import sys
from contextlib import contextmanager

# One process has both ends of a connection, in two network namespaces: made in one, looked at in both. It is told what
# to do by arguments, and prints what the kernel says at the end, when nothing moves any more.
BOTH_ENDS = """
import ctypes, json, os, socket, subprocess, sys, threading, time
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # of two CPUs that send for one connection, either may be first
from netmon.kernel.sock_diag import Endpoint
from netmon.kernel.sock_diag import TCP_INFO, TcpInfo
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
# A piece of one segment: a longer one is acknowledged while it is sent, and the rest of it is limited by nothing.
piece = bytes(1 << 10 if way == "idler" else 1 << 16)
total = len(piece) * 16 * int(megabytes)
def read():
    got = 0
    while got < total:
        if way == "slow-reader":
            time.sleep(0.005)
        got += len(receiver.recv(1 << 14 if way == "slow-reader" else 1 << 20))
reader = threading.Thread(target=read)
reader.start()
before = here.query([end])
for _ in range(int(megabytes) * 16):
    if way == "idler":
        time.sleep(0.02)
    sender.sendall(piece)
reader.join()
deadline = time.monotonic() + 30
def arrived():
    (now,) = here.query([end])
    return now["sent_bytes"] - now["retransmitted_bytes"] >= total
while not arrived() and time.monotonic() < deadline:
    time.sleep(0.05)
if way == "cut":  # the other end is not there any more, and nobody says so
    subprocess.run(["ip", "-n", right, "address", "flush", "scope", "global"], check=True)
    sender.sendall(bytes(1000))
    time.sleep(2)
def told(table):
    return [dict(zip(TCP_INFO.names, row)) for row in table.tolist()]
seen = told(before), told(here.query([end])), told(there.query([end.reversed()])), told(there.query([end]))
print(json.dumps({"port": port, "looks": seen}), flush=True)
sys.stdin.readline()
sender.close()
receiver.close()
closed = time.monotonic() + 30
while here.query([end]).size and time.monotonic() < closed:
    time.sleep(0.05)
print(len(here.query([end])), flush=True)
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


def lossy_route(network):
    """Two ends with a router between them, whose way to the right one has a queue of a few packets."""
    left, router, right = (network.namespace() for _ in range(3))
    (near, first), (second, far) = network.veth(left, router), network.veth(router, right)
    router.set("net.ipv4.ip_forward=1")
    left.run("ip", "route", "add", "default", "via", first.address)
    right.run("ip", "route", "add", "default", "via", second.address)
    queue = ("tbf", "rate", "100mbit", "burst", "64k", "limit", "64k")
    router.run("tc", "qdisc", "add", "dev", second.interface, "root", *queue)
    return near, far
