# SPDX-License-Identifier: Apache-2.0
"""An agent and a collector under churn, for hours: PYTHONPATH=tests/unit python tests/kernel/soak.py SECONDS [DIR].

Simulated agents come, send flows that nobody has seen before, train in a job that somebody has left, and go; a real
agent watches an interface with new flows all the time; viewers come and go, and some do not read. What both sides hold
is looked at meanwhile: the memory of all their processes, descriptors, threads, and what waits on their disks.

A collector knows a flow for ten minutes after it was seen last, so it holds more for as long; from `WARM_UP_S` on
nothing may grow: `RISE` says how much from the first third of the time to the last one is taken for noise.
"""

import contextlib
import itertools
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc
import numpy as np
from collector_stream import Host, hello
from waiting import DIES_WITH_US, wait_for

from netmon.records import Batch, ClockSample, Direction, Flow, Owner
from netmon.views import Selection
from netmon.wire import netmon_pb2
from netmon.wire.batches import encode_batch, encode_hello
from netmon.wire.netmon_pb2_grpc import CollectorStub
from netmon.wire.watch import watch

HERE = Path(__file__).parent
RISE = {"rss": (0.05, 12 << 20), "descriptors": (0.0, 4), "threads": (0.0, 4), "waiting_bytes": (0.1, 4 << 20)}
"""Share, and amount: the larger of the two may be gained."""
WARM_UP_S = 780.0
"""FLOW_OVER_NS of the collector, and until the 4,096 flows that are forgotten together all have been silent so long."""

_HOSTS, _AT_A_TIME, _VIEWERS, _NEW_FLOWS = 40, 12, 4, 5
_JOBS = 30  # that are known; a collector remembers a job for an hour, and thousands of them
_BATCH_S, _LOOK_S = 0.2, 2.0


@dataclass(frozen=True)
class Footprint:
    """By one side, at one moment."""

    rss: int
    descriptors: int
    threads: int
    waiting_bytes: int  # files beside the dataset


@dataclass
class Side:
    name: str
    process: "subprocess.Popen[bytes]"
    folder: Path
    seen: list[Footprint] = field(default_factory=list)

    def look(self) -> None:
        assert self.process.poll() is None, f"the {self.name} has ended"
        rss = descriptors = threads = 0
        for pid in (self.process.pid, *children(self.process.pid)):
            with contextlib.suppress(OSError):
                rss += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
                descriptors += len(os.listdir(f"/proc/{pid}/fd"))
                threads += len(os.listdir(f"/proc/{pid}/task"))
        self.seen.append(Footprint(rss, descriptors, threads, size_of(self.folder)))


def children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def size_of(folder: Path) -> int:
    """Of the files that are nowhere else, while others come and go, and folders with them."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                file = os.lstat(os.path.join(where, name))
                total += file.st_size if file.st_nlink == 1 else 0
    return total


def grown(name: str, seen: Sequence[Footprint]) -> list[str]:
    """A line for each thing of which there is more in the last third than in the first one."""
    lines = []
    for what, (share, amount) in RISE.items():
        first, last = thirds(seen, what)
        if last - first > max(share * first, amount):
            lines.append(f"{name}: {what} from {first:.0f} to {last:.0f}")
    return lines


def thirds(seen: Sequence[Footprint], what: str) -> tuple[float, float]:
    """The lower quartile of the first third, and of the last one: while files are merged a collector holds more."""
    third = max(2, len(seen) // 3)
    first, last = (
        statistics.quantiles([getattr(held, what) for held in part], n=4)[0] for part in (seen[:third], seen[-third:])
    )
    return first, last


def told(name: str, seen: Sequence[Footprint], seconds: float) -> Iterator[str]:
    """A line for each thing, with its slope."""
    for what in RISE:
        first, last = thirds(seen, what)
        per_hour = (last - first) / (seconds * 2 / 3) * 3600
        amount, unit = (1 << 20, " MB") if what in ("rss", "waiting_bytes") else (1, "")
        yield f"{name}: {what} {first / amount:.1f} -> {last / amount:.1f}{unit}, {per_hour / amount:+.1f}{unit}/h"


class Churner(Host):
    """A host of its own job, with flows that are new in each batch."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.base_ns, self.job = time.time_ns(), f"job-{number % _JOBS}"
        self._flow = itertools.count(100)

    def at(self, mono_ns: int) -> ClockSample:
        return ClockSample(mono_ns, self.base_ns + mono_ns, 1_000)

    def batch(self) -> Batch:
        made = super().batch()
        ids = [next(self._flow) for _ in range(_NEW_FLOWS)]
        rows = np.repeat(made.buckets[:1], len(ids))
        rows["flow_id"] = ids
        flows = [Flow(n, 7, Direction.RX, "198.18.9.9", "198.18.0.1", n % 60_000, 80, 17, 0, Owner()) for n in ids]
        ranks = [replace(rank, job=self.job) for rank in made.training.ranks]
        training = replace(made.training, ranks=ranks)
        named = [
            replace(flow, owner=replace(flow.owner, job=self.job)) if flow.owner.job else flow for flow in made.flows
        ]
        buckets, clock = np.concatenate([made.buckets, rows]), self.at(made.clock.mono_ns)
        return replace(
            made, buckets=buckets, flows=(*named, *flows), training=training, clock=clock, evidence={}, words=()
        )


def churn(address: str, over: threading.Event, numbers: "itertools.count[int]", chance: random.Random) -> None:
    """One agent after the other, each for a while."""
    while not over.is_set():
        number = next(numbers)
        host, ends = Churner(number), time.monotonic() + chance.uniform(3, 40)
        messages = _messages(host, f"h{number % _HOSTS}", number, ends, over)
        with grpc.insecure_channel(address) as channel, contextlib.suppress(grpc.RpcError):
            for _ in CollectorStub(channel).Stream(messages, wait_for_ready=True):
                pass


def _messages(
    host: Churner, name: str, number: int, ends: float, over: threading.Event
) -> Iterator[netmon_pb2.AgentMessage]:
    told = netmon_pb2.AgentMessage
    yield told(hello=encode_hello(hello(host=name, session=f"s{number}-{host.base_ns}", clock=host.at(0))))
    while time.monotonic() < ends and not over.wait(_BATCH_S / 2):
        yield told(batch=encode_batch(host.batch()))


def look_on(address: str, over: threading.Event, chance: random.Random) -> None:
    while not over.is_set():
        ends = time.monotonic() + chance.uniform(1, 20)
        with contextlib.suppress(Exception):  # it may be let go, for it reads slowly
            for _ in watch(address, 200, Selection(flows=50)):
                if over.wait(chance.choice((0.0, 0.1, 3.0))) or time.monotonic() > ends:
                    break


FLOWS = """
import socket, time, random
while True:
    for _ in range(40):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.sendto(b"x" * random.randrange(1400), ("198.18.5.2", random.randrange(1024, 65000)))
    time.sleep(0.2)
"""


@contextlib.contextmanager
def namespace() -> Iterator[str]:
    name = f"nmt-soak-{os.getpid()}"
    steps = ("link add v0 type veth peer name v1", "link set v0 up", "link set v1 up", "link set lo up")
    more = ("addr add 198.18.5.1/24 dev v0", "neigh add 198.18.5.2 lladdr 02:00:00:00:00:02 dev v0")
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        for step in (*steps, *more):
            subprocess.run(["ip", "-n", name, *step.split()], check=True)
        yield name
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


def soak(seconds: float, folder: Path, tell: bool = True) -> list[str]:
    """What has grown in so many seconds after WARM_UP_S; empty: nothing. Blocks for both."""
    address, data, spool = f"unix:{folder}/socket", folder / "data", folder / "spool"
    with contextlib.ExitStack() as stack:
        inside = [*DIES_WITH_US, "ip", "netns", "exec", stack.enter_context(namespace())]
        netmon = [sys.executable, "-m", "netmon"]

        def start(name: str, *command: str) -> "subprocess.Popen[bytes]":
            log = stack.enter_context(open(folder / f"{name}.log", "wb"))
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=HERE.parents[1])
            stack.callback(process.wait)
            stack.callback(process.terminate)
            return process

        options = ("--listen", address, "--data", str(data), "--durability", "process", "--keep", "all=2h")
        collector = Side(
            "collector", start("collector", *DIES_WITH_US, *netmon, "collector", *options), data / ".netmon"
        )
        wait_for(lambda: Path(f"{folder}/socket").exists())
        options = ("--interface", "v0", "--collector", address, "--spool", str(spool), "--socket", f"{folder}/marks")
        more = ("--record-bytes", "20MB", "--record-time", "60s")
        agent = Side("agent", start("agent", *inside, *netmon, "agent", *options, *more), spool)
        wait_for(lambda: b"connected to" in (folder / "agent.log").read_bytes(), 300)
        start("flows", *inside, sys.executable, "-c", FLOWS)
        over, numbers = threading.Event(), itertools.count()
        threads = [
            *(
                threading.Thread(target=churn, args=(address, over, numbers, random.Random(n)))
                for n in range(_AT_A_TIME)
            ),
            *(threading.Thread(target=look_on, args=(address, over, random.Random(n))) for n in range(_VIEWERS)),
        ]
        for thread in threads:
            thread.start()
        try:
            begins = time.monotonic() + WARM_UP_S
            for turn in itertools.count():
                time.sleep(_LOOK_S)
                for side in (collector, agent):
                    side.look()
                    if tell and turn % 30 == 0:
                        print(f"{turn * _LOOK_S:.0f} s: {side.name} {side.seen[-1]}", flush=True)
                    if time.monotonic() < begins:
                        side.seen = side.seen[-1:]
                if time.monotonic() > begins + seconds:
                    break
        finally:
            over.set()
            for thread in threads:
                thread.join()
    if tell:
        print(f"{next(numbers)} sessions; {size_of(data) >> 20} MB of dataset")
        print(*told(collector.name, collector.seen, seconds), *told(agent.name, agent.seen, seconds), sep="\n")
    return [line for side in (collector, agent) for line in grown(side.name, side.seen)]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="netmon-soak-") as own:
        found = soak(float(sys.argv[1]), Path(sys.argv[2] if len(sys.argv) > 2 else own))
    print("\n".join(found) or "nothing has grown")
    sys.exit(bool(found))
