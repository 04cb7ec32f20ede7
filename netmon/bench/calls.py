# SPDX-License-Identifier: Apache-2.0
"""What the probes of a training library's calls cost: the rank that calls, and the agent that takes them.

The rank is a real one: PyTorch on Gloo, alone in its group, so that a collective takes as little as it can. Rounds with
and without probes take turns; of each counts the processor time, of all threads, of its fastest hundred calls. The
agent's part is fed with the calls of a simulated rank, at different rates, and measured once it knows the steps.
"""

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

import numpy as np

from netmon.agent.collectives import Collectives
from netmon.agent.steps import StepMarks
from netmon.agent.waits import Waits
from netmon.bench.result import table
from netmon.bench.specs import CallsSpec, Progress, silent
from netmon.dl.operations import Operation, in_order
from netmon.errors import NetmonError
from netmon.kernel import loader
from netmon.kernel.meter.memory import RingBuffer, choose_geometry
from netmon.kernel.training.uprobes import Uprobes
from netmon.lab.training import horovod_python
from netmon.records import LIBRARY_GLOO, STEP, STEP_BACKWARD, STEP_BEGIN, STEP_WAIT_BEGIN, STEP_WAIT_END, Moment, Table
from netmon.terminal import FittingTable, figures, labels

_CALLS = 2_000  # of a round, which are within a process's budget
_PAUSE_S = 0.6  # until the budget is whole again
_ATTACH_S = 30.0

_SCRIPT = """
import sys, time, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
values = torch.zeros(64)
print("ready", flush=True)
for line in sys.stdin:
    took = []
    for _ in range(int(line) // 100):
        begin = time.process_time_ns()
        for _ in range(100):
            dist.all_reduce(values)
        took.append(time.process_time_ns() - begin)
    print(min(took) / 100, flush=True)
"""


@dataclass(frozen=True)
class AgentCost:
    """Of one rank's calls. kind: what its training exchanges."""

    kind: str
    calls_per_second: int
    us_per_call: float
    core_share: float
    steps: int


@dataclass(frozen=True)
class CallsResult:
    """Medians over the rounds, in ns of the rank's processor time per collective."""

    alone_ns: float
    probed_ns: float
    rows_per_call: float  # that the kernel reports
    agent: tuple[AgentCost, ...]

    def shown(self) -> Iterator[FittingTable]:
        added = self.probed_ns - self.alone_ns
        yield table(
            "an all-reduce of 64 values by a rank that is alone",
            [*labels("probes"), *figures("µs of CPU", "ratio")],
            (
                ("none", f"{self.alone_ns / 1e3:.1f}", "1.00"),
                ("all", f"{self.probed_ns / 1e3:.1f}", f"{self.probed_ns / self.alone_ns:.2f}"),
            ),
            f"{added / 1e3:.1f} µs more; {self.rows_per_call:.1f} rows per call.",
        )
        yield table(
            "the agent's part, for one rank",
            [*labels("the rank exchanges"), *figures("calls/s", "µs per call", "of a core")],
            (
                (of.kind, f"{of.calls_per_second:,}", f"{of.us_per_call:.1f}", f"{of.core_share:.2%}")
                for of in self.agent
            ),
            "Once the steps are known.",
        )


def measure(spec: CallsSpec, progress: Progress = silent) -> CallsResult:
    """Blocks for some five seconds per round. Raises NetmonError."""
    alone, probed, rows = [], [], 0
    with _rank() as (pid, call), _loaded() as (descriptors, ring):
        for done in range(spec.rounds):
            time.sleep(_PAUSE_S)
            alone.append(call())
            with _attached(descriptors, pid):
                ring.take()
                probed.append(call())
                rows += int((ring.take()["pid"] == pid).sum())
            progress(done + 1, spec.rounds)
    agent = tuple(agent_cost(kind, rate) for kind in KINDS for rate in spec.rates)
    return CallsResult(median(alone), median(probed), rows / (spec.rounds * _CALLS), agent)


@contextlib.contextmanager
def _rank() -> Iterator[tuple[int, Callable[[], float]]]:
    """Its process, and a function that has it call: ns of its processor time per call."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    group = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    environment = os.environ | group | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [horovod_python(), "-c", _SCRIPT]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as process:  # type: ignore[call-overload]

        def answer() -> str:
            line: str = process.stdout.readline()
            if not line:
                raise NetmonError("cannot measure calls: the rank's script has ended, see above")
            return line

        def call() -> float:
            process.stdin.write(f"{_CALLS}\n")
            process.stdin.flush()
            return float(answer())

        try:
            answer()
            yield process.pid, call
        finally:
            process.kill()


@contextlib.contextmanager
def _loaded() -> Iterator[tuple[dict[str, int], RingBuffer]]:
    """The programs, and the ring that they write into."""
    geometry = choose_geometry(10_000)
    descriptors = loader.load(geometry)
    ring = RingBuffer(descriptors["steps"], geometry.step_ring_bytes, STEP)
    try:
        yield descriptors, ring
    finally:
        ring.close()
        for descriptor in descriptors.values():
            os.close(descriptor)


@contextlib.contextmanager
def _attached(descriptors: dict[str, int], pid: int) -> Iterator[None]:
    uprobes, until = Uprobes(descriptors), time.monotonic() + _ATTACH_S
    try:
        while pid not in uprobes.probed:
            uprobes.follow([pid])
            if time.monotonic() > until:
                raise NetmonError("cannot measure calls: PyTorch's library cannot be probed")
        yield
    finally:
        uprobes.close()


# --- The agent's part.

_STEP_CALLS, _SECONDS = 200, 16
_DRAIN_NS, _DRAINS_OF_BATCH = 400_000_000, 2
KINDS = {"sums of gradients": False, "shards of parameters": True}
"""Whether the training gathers and scatters."""
_RANK = {
    "pid": 1,
    "uid": 0,
    "job": "paper",
    "rank": 0,
    "size": 2,
    "job_name": "",
    "trains": True,
    "probed": True,
    "late": False,
}


def agent_cost(kind: str, rate: int) -> AgentCost:
    """Of the second half of some seconds of calls of a rank on paper: its steps, what it has called in each, and what
    it waits for, from the ring to the batch."""
    calls = paper_calls(KINDS[kind], rate, _SECONDS)
    steps, collectives, waits, found = StepMarks(), Collectives(), Waits(), 0
    steps.ranks([_RANK], 0)
    number = (calls["time_ns"] - calls["time_ns"][0]) // _DRAIN_NS
    parts = np.split(calls, np.flatnonzero(np.diff(number)) + 1)
    begin_s, count, jobs = 0.0, 0, dict[str, int]()
    for place, part in enumerate(parts):
        if place == len(parts) // 2:
            begin_s, count = time.process_time(), 0
        part = in_order(part)
        marks = steps.steps(part)
        collectives.add(part)
        collectives.add_marks(marks)
        if place % _DRAINS_OF_BATCH:
            now_ns = int(part["time_ns"][-1])
            collectives.due(now_ns, jobs)
            waits.due(steps.active(), now_ns, jobs)
        found += sum(mark.moment is Moment.FIRST_ENQUEUE for mark in marks)
        count += int((part["kind"] == STEP_BEGIN).sum())
    spent_s = time.process_time() - begin_s
    return AgentCost(kind, rate, 1e6 * spent_s / count, spent_s / (count / rate), found)


def paper_calls(sharded: bool, rate: int, seconds: int) -> Table:
    """dtype STEP: of steps that call as fast as they can half of the time, and compute in the other half."""
    count = max(1, rate * seconds // _STEP_CALLS) * _STEP_CALLS
    number = np.arange(count)
    of_step, every_ns = number % _STEP_CALLS, 1e9 / rate
    begun_ns = 1e9 + (number - of_step / 2) * every_ns
    rows = np.zeros((count, 3), STEP)
    rows["library"], rows["pid"], rows["work"] = LIBRARY_GLOO, 1, (number % 64 + 1)[:, None]
    for place, (kind, after) in enumerate(((STEP_BEGIN, 0.0), (STEP_WAIT_BEGIN, 0.05), (STEP_WAIT_END, 0.3))):
        rows["kind"][:, place], rows["time_ns"][:, place] = kind, begun_ns + after * every_ns
    begun = rows[:, 0]
    begun["name_hash"], begun["sequence"], begun["group_size"] = 1, number, 2
    gathers = (of_step < _STEP_CALLS // 2) | (of_step % 2 == 0)
    of_shards = np.where(gathers, Operation.ALL_GATHER_BASE, Operation.REDUCE_SCATTER_BASE)
    begun["tensors"] = of_shards if sharded else Operation.ALL_REDUCE
    begun["size"] = (10_000 + of_step).astype(np.uint64) << np.uint64(4) | np.uint64(4)
    passes = np.zeros(count // _STEP_CALLS, STEP)
    passes["kind"], passes["library"], passes["pid"] = STEP_BACKWARD, LIBRARY_GLOO, 1
    passes["time_ns"] = begun_ns[(_STEP_CALLS // 2 if sharded else 0) :: _STEP_CALLS] - 0.1 * every_ns
    return np.sort(np.concatenate([rows.reshape(-1), passes]), order="time_ns", kind="stable")
