# SPDX-License-Identifier: Apache-2.0
"""Why a step is slow where no interface shows its bytes: ranks send by the library that stands in for NCCL, over a
loopback that nobody watches. Agent, collector and verdicts are the real ones.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import nccl_ring
import pytest
from pair import Watched

from netmon.history.dataset import Window
from netmon.history.transfers import read_transfers
from netmon.kernel import bpf_calls
from netmon.lab.nccl_library import Version, build

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(shutil.which("cc") is None, reason="no cc"),
    pytest.mark.skipif(not bpf_calls.has_uprobe_links(), reason="this kernel cannot tell probes apart"),
]
SIZE, PORT, COMPUTE_MS = 3, 7800, 100
SLOW, FAST = 12_000_000, -1  # bytes per second; −1: any


@pytest.fixture
def cleanup() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


class Ring:
    """All wait for all at the end of each step, as they do after an all-reduce."""

    def __init__(self, watched: Watched, library: Path, cleanup: ExitStack) -> None:
        self.ranks = []
        for rank in range(SIZE):
            own = {"RANK": str(rank), "WORLD_SIZE": str(SIZE), "NETMON_JOB": "ring"}
            command = [sys.executable, nccl_ring.__file__, str(library), str(rank), str(SIZE), str(PORT)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            process = subprocess.Popen(watched.right.namespace.inside(*command), env=os.environ | own, **pipes)
            cleanup.callback(process.communicate)
            cleanup.callback(process.kill)
            self.ranks.append(process)
        for said in ("listens", "connected"):
            for process in self.ranks:
                assert process.stdout.readline().strip() == said
            if said == "listens":
                self._tell([""] * SIZE)
        self.steps = 0

    def _tell(self, lines: list[str]) -> None:
        for process, line in zip(self.ranks, lines, strict=True):
            process.stdin.write(f"{line}\n")
            process.stdin.flush()

    def train(self, steps: int, late: int = -1, late_ms: int = 0, slow: int = -1) -> None:
        for _ in range(steps):
            ms = [COMPUTE_MS + late_ms * (rank == late) for rank in range(SIZE)]
            rates = [SLOW if rank == slow else FAST for rank in range(SIZE)]
            self._tell([f"{one} {rate}" for one, rate in zip(ms, rates, strict=True)])
            for process in self.ranks:
                assert process.stdout.readline().strip() == "done"
            self.steps += 1


def test_who_is_late_and_which_pair_is_slow(namespaces: Callable, tmp_path: Path, cleanup: ExitStack) -> None:
    watched = Watched(*namespaces(), tmp_path, cleanup)
    run = watched.right.namespace.run
    run("ip", "link", "set", "lo", "up")
    library = build(tmp_path / "library", Version())
    ring = Ring(watched, library, cleanup)
    collector, agent = watched.both("--transfers", "each")
    agent.wait_output(r"probing .* for what it sends", 30)
    ring.train(24)
    ring.train(3, late=1, late_ms=400)
    ring.train(12)
    ring.train(3, slow=0)
    ring.train(12)
    until = time.monotonic() + 30
    while len(watched.table("verdicts")) < 5 and time.monotonic() < until:
        time.sleep(0.5)
    agent.end_in_order(seconds=60)
    collector.end_in_order(seconds=60)
    rows = read_transfers(watched.data, Window())
    sends = rows[rows["sends"] == 1]
    assert ((sends["rank"] + 1) % SIZE == sends["peer_rank"])[sends["peer_rank"] >= 0].all()
    assert (sends["peer_rank"] >= 0).mean() > 0.95
    assert (sends["iteration"] >= 0).mean() > 0.5  # the first steps and the last have no numbers
    found = watched.table("verdicts").sort_values("start_ns")
    print(found[["iteration", "cause", "culprit", "rank", "duration_ns", "usual_ns", "confidence"]].to_string())
    assert set(found["cause"]) <= {"straggler", "slow_link", "unknown"}  # nobody else is accused
    late, slow = (found[found["cause"] == cause] for cause in ("straggler", "slow_link"))
    assert len(late) >= 1
    assert set(late["culprit"]) == {"rank 1"}
    assert len(slow) >= 1
    assert set(slow["rank"]) == {0}
