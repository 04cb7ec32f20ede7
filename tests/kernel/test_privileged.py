# SPDX-License-Identifier: Apache-2.0
"""The part with capabilities, in a process of its own, against another part that has been broken into."""

import json
import os
import random
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import End
from waiting import wait_for

from netmon.kernel.requests import FindOwners, Look, LookClosely, LookElsewhere, More, Start, encode
from netmon.kernel.sock_diag import Endpoint
from netmon.own_module import own_module

pytestmark = pytest.mark.kernel

MUTATIONS = 100_000
AT_A_TIME = 64
NOBODY = 65534
HEAD = '[\n{"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros":17}},\n'
RANK = """
import ctypes, os, sys
library, libc = open("mpi_lib_v2.so", "rb"), ctypes.CDLL(None)
libc.mmap(None, ctypes.c_size_t(4096), 5, 2, library.fileno(), ctypes.c_long(0))
print("mapped", flush=True)
for line in sys.stdin:
    action, name = line.split()
    if action == "become":
        os.execvp(name, [name])
    own = open(name, "w")
    own.write(os.environ["HEAD"])
    own.flush()
    print("done", flush=True)
"""


class Other:
    """The other part, which sends what it likes."""

    def __init__(self, end: End) -> None:
        self.end = end
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            program = own_module("netmon.kernel.privileged", os.getpid())
            program["args"] = end.namespace.inside(*program["args"])
            self._child = subprocess.Popen(**program, stdin=theirs.fileno(), stderr=subprocess.PIPE)
        self.pid = self._child.pid

    def send(self, packet: bytes) -> None:
        self._socket.send(packet)

    def receive(self) -> tuple[dict, list[int]]:
        assert select.select([self._socket], [], [], 120)[0]
        message, descriptors, *_ = socket.recv_fds(self._socket, 1 << 20, 64)
        assert message, "it has ended"
        return json.loads(message), descriptors

    def ask(self, packet: bytes) -> tuple[dict, list[int]]:
        self.send(packet)
        return self.receive()

    def start(self) -> None:
        start = Start(((self.end.interface, self.end.index),), "auto", 10_000, 0)
        reply, descriptors = self.ask(encode(start))
        assert len(reply["maps"]) == len(descriptors) > 0
        for descriptor in descriptors:
            os.close(descriptor)

    def holds(self) -> list[str]:
        """What it has open, but for the processes that it looks at."""
        links = [os.readlink(path) for path in Path(f"/proc/{self.pid}/fd").iterdir()]
        return sorted(link.partition(":[")[0] for link in links if not link.startswith("/proc/"))

    def cpu_ticks_of_children(self) -> int:
        return sum(map(int, Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[13:15]))

    def close(self) -> str:
        """What it has said on standard error."""
        self._socket.close()
        _, said = self._child.communicate(timeout=60)
        return said.decode()


FORKED = """
import os, signal
from netmon.kernel.privileged import Privileged
from netmon.kernel.requests import More
signal.signal(signal.SIGHUP, lambda *_: None)
own = os.open("/etc/passwd", os.O_RDONLY)
privileged = Privileged()
privileged.request(More())
privileged._socket.recv(1 << 16)
print(sorted(os.listdir(f"/proc/{privileged.pid}/fd")), os.readlink(f"/proc/{privileged.pid}/cwd"))
caught = open(f"/proc/{privileged.pid}/status").read().partition("SigCgt:")[2].split()[0]
print(int(caught, 16) & 1)
privileged.close()
print(os.path.exists(f"/proc/{privileged.pid}"))
"""


def test_it_has_nothing_of_the_other_part_but_what_was_imported() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["['0', '1', '2'] /", "0", "False"], done.stderr


@pytest.fixture
def other(namespaces: Callable) -> Iterator[Other]:
    other = Other(namespaces()[1])
    yield other
    other.close()


def test_a_start_comes_once_and_first(other: Other) -> None:
    for early in (Look(), More(), FindOwners([Endpoint(6, "10.0.0.1", 1, "10.0.0.2", 2)])):
        assert "before all else" in other.ask(encode(early))[0]["error"]
    other.start()
    held = other.holds()
    again = Start(((other.end.interface, other.end.index),), "auto", 20_000, 0)
    assert "a start comes once" in other.ask(encode(again))[0]["error"]
    code = b'{"operation": "start", "interfaces": [], "hook": "auto", "geometry": {"bucket_ns": "({ 1; })"}}'
    assert "refused" in other.ask(code)[0]["error"]
    assert other.holds() == held


def mutated(rng: random.Random, templates: list[bytes]) -> bytes:
    packet = bytearray(rng.choice(templates))
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(packet) + 1)
        kind = rng.randrange(5)
        if kind == 0 and place < len(packet):
            packet[place] = rng.randrange(256)
        elif kind == 1:
            packet[place:place] = rng.randbytes(rng.randint(1, 8))
        elif kind == 2:
            del packet[place : place + rng.randint(1, 40)]
        elif kind == 3 and packet:
            packet[0] = rng.randrange(8)
        else:
            other = rng.choice(templates)
            packet[place:] = other[place:]
    return bytes(packet) or b"\0"  # an empty one is the end


def test_mutated_requests_do_nothing_but_what_is_in_the_list(other: Other) -> None:
    ends = [Endpoint(6, "198.18.1.2", 5999, "198.18.1.1", port) for port in range(40_000, 40_003)]
    templates = [encode(Start(((other.end.interface, other.end.index),), "auto", 10_000, 0)), encode(Look())]
    templates += [encode(More()), encode(LookClosely()), encode(FindOwners(ends)), encode(LookElsewhere(ends))]
    other.start()
    other.ask(encode(Look()))
    held, compiled = other.holds(), other.cpu_ticks_of_children()
    rng, counts = random.Random(1), {"refused": 0, "done": 0}
    begun = time.monotonic()
    for _ in range(0, MUTATIONS, AT_A_TIME):
        for _ in range(AT_A_TIME):
            other.send(mutated(rng, templates))
        for _ in range(AT_A_TIME):
            reply, descriptors = other.receive()
            assert not descriptors
            assert "maps" not in reply
            counts["refused" if "was refused" in reply.get("error", "") else "done"] += 1
    print(counts, f"{time.monotonic() - begun:.1f} s")
    assert min(counts.values()) > MUTATIONS // 100
    assert other.holds() == held  # no program, map, probe, link or file that was not there
    assert other.cpu_ticks_of_children() == compiled
    reply, _ = other.ask(encode(Look()))
    assert reply["interfaces"] == [[other.end.index, other.end.interface]]


class Rank:
    """Another user's process that maps what is called a training library, in a folder of its own."""

    def __init__(self, end: End, folder: Path, timeline: str, *inherited: int) -> None:
        (folder / "mpi_lib_v2.so").write_bytes(bytes(4096))
        os.chown(folder, NOBODY, NOBODY)
        variables = {"RANK": "0", "WORLD_SIZE": "2", "HOROVOD_TIMELINE": timeline, "HEAD": HEAD}
        command = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "/usr/bin/python3"]
        self._child = subprocess.Popen(
            end.namespace.inside(*command, "-c", RANK),
            cwd=folder,
            env=os.environ | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=inherited,
        )
        assert self._child.stdout.readline() == "mapped\n"
        self.pid = self._child.pid

    def tell(self, action: str, name: str) -> None:
        self._child.stdin.write(f"{action} {name}\n")
        self._child.stdin.flush()
        assert action == "become" or self._child.stdout.readline() == "done\n"

    def close(self) -> None:
        self._child.kill()
        self._child.communicate()


def looks(other: Other, pid: int) -> tuple[bool, list[int]]:
    """Whether it is told that a process trains, and the timelines that are handed over."""
    reply, descriptors = other.ask(encode(Look()))
    return any(rank["trains"] for rank in reply["ranks"] if rank["pid"] == pid), descriptors


def test_timelines_are_the_ranks_own_whatever_it_names_inherits_or_becomes(other: Other) -> None:
    other.start()
    with tempfile.TemporaryDirectory(prefix="netmon-timelines-") as name:
        os.chmod(name, 0o755)
        secret = Path(name) / "secret.json"
        secret.write_text(HEAD)
        secret.chmod(0o600)
        (folder := Path(name) / "rank").mkdir()
        with secret.open("r+") as inherited:
            rank = Rank(other.end, folder, "/etc/shadow", inherited.fileno())
        try:
            wait_for(lambda: looks(other, rank.pid)[0])
            for _ in range(5):
                assert looks(other, rank.pid) == (True, [])
            rank.tell("write", "own.json")
            found: list[int] = []
            wait_for(lambda: found.extend(looks(other, rank.pid)[1]) or bool(found))
            assert [os.fstat(one).st_ino for one in found] == [(folder / "own.json").stat().st_ino]
            os.close(found[0])
            rank.tell("become", "su")
            wait_for(lambda: Path(f"/proc/{rank.pid}/exe").resolve().name == "su")
            for _ in range(5):
                assert looks(other, rank.pid)[1] == []
            wait_for(lambda: not looks(other, rank.pid)[0])  # what it was seen to map, another program mapped
        finally:
            rank.close()
