# SPDX-License-Identifier: Apache-2.0
"""What a step costs the training that marks it (netmon.training), with somebody who listens and without.

Between steps the thread is busy, either with next to no memory, so that a step finds its own code in the caches, or
with megabytes, as much training is: then most of its cost is to fetch itself and the kernel's way of a packet anew.
The listener is a process of its own which empties the socket as often as an agent does.
"""

import contextlib
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from netmon.bench.result import table
from netmon.bench.specs import HookSpec, Progress, silent
from netmon.errors import NetmonError
from netmon.marks import MAX_PACKET, SOCKET_VARIABLE
from netmon.terminal import FittingTable, figures, labels
from netmon.training.steps import Steps

_STEPS = 400  # of a round
_SPACING_NS = 2_000_000
_WARM, _COLD = 1 << 10, 1 << 19  # numbers of 8 bytes that are worked on between steps
_TICK_S = 0.05
_PATIENCE_S = 20.0


@dataclass(frozen=True)
class StepCost:
    """ns of the training thread's time per step, as `watch` marks it: one has ended, the next begins."""

    median_ns: float
    p99_ns: float


@dataclass(frozen=True)
class HookResult:
    """Over the steps of all rounds."""

    with_agent: StepCost
    without_agent: StepCost
    with_agent_cold: StepCost  # after work on 4 MiB
    without_agent_cold: StepCost
    steps: int
    rounds: int

    def shown(self) -> Iterator[FittingTable]:
        costs = (
            ("listens", "8 KiB of memory", self.with_agent),
            ("listens", "4 MiB of memory", self.with_agent_cold),
            ("none", "8 KiB of memory", self.without_agent),
            ("none", "4 MiB of memory", self.without_agent_cold),
        )
        yield table(
            "a step that the training marks",
            [*labels("agent", "between steps"), *figures("median µs", "p99 µs")],
            ((name, memory, f"{of.median_ns / 1e3:.1f}", f"{of.p99_ns / 1e3:.1f}") for name, memory, of in costs),
            f"{self.steps} steps each, every 2 ms.",
        )


def measure(spec: HookSpec, progress: Progress = silent) -> HookResult:
    """Blocks for some four seconds per round. Raises NetmonError."""
    kinds = [(listening, numbers) for numbers in (_WARM, _COLD) for listening in (True, False)]
    costs: dict[tuple[bool, int], list[npt.NDArray[np.int64]]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory(prefix="netmon-bench-") as folder:
        path = Path(folder) / "marks.sock"
        with _listener(path):
            for done in range(spec.rounds):
                for listening, numbers in kinds:
                    with _environment(str(path) if listening else f"{folder}/nobody.sock"):
                        costs[listening, numbers].append(_round(numbers))
                progress(done + 1, spec.rounds)
    percentiles = (np.percentile(np.concatenate(costs[kind]), (50, 99)).tolist() for kind in kinds)
    warm, warm_alone, cold, cold_alone = (StepCost(*of_kind) for of_kind in percentiles)
    return HookResult(warm, warm_alone, cold, cold_alone, spec.rounds * _STEPS, spec.rounds)


def _round(numbers: int) -> npt.NDArray[np.int64]:
    steps = Steps("bench", 0, 1)
    steps.begin()
    times = np.empty(_STEPS, np.int64)
    weights = np.ones(numbers)
    for number in range(_STEPS):
        computed_ns = time.monotonic_ns() + _SPACING_NS
        while time.monotonic_ns() < computed_ns:
            weights *= 0.999
        begin = time.perf_counter_ns()
        steps.next()
        times[number] = time.perf_counter_ns() - begin
    steps.close()
    return times


@contextlib.contextmanager
def _environment(path: str) -> Iterator[None]:
    before = os.environ.get(SOCKET_VARIABLE)
    os.environ[SOCKET_VARIABLE] = path
    try:
        yield
    finally:
        del os.environ[SOCKET_VARIABLE]
        if before is not None:
            os.environ[SOCKET_VARIABLE] = before


@contextlib.contextmanager
def _listener(path: Path) -> Iterator[None]:
    """Somebody who takes marks in, in a process of its own."""
    command = [sys.executable, "-m", __name__, str(path)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)  # Ctrl-C is not for it
    try:
        deadline = time.monotonic() + _PATIENCE_S
        while not path.exists():
            if child.poll() is not None or time.monotonic() > deadline:
                raise NetmonError(f"cannot measure the hook: nobody listens on {path}")
            time.sleep(_TICK_S)
        yield
    finally:
        child.communicate()  # the end of its standard input ends it


def _listen(path: str) -> None:
    """Until standard input ends."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as listening:
        listening.bind(path)
        listening.listen()
        connections: list[socket.socket] = []
        with selectors.DefaultSelector() as end:
            end.register(sys.stdin, selectors.EVENT_READ)
            while not end.select(_TICK_S):
                with contextlib.suppress(BlockingIOError):
                    connections.append(listening.accept()[0])
                    connections[-1].setblocking(False)
                for connection in connections:
                    with contextlib.suppress(OSError):
                        while connection.recv(MAX_PACKET):
                            pass


if __name__ == "__main__":
    _listen(sys.argv[1])
