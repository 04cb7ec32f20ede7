# SPDX-License-Identifier: Apache-2.0
"""All-reduces by NCCL, of which only the handing over is seen: what is not known is stored as unknown.

Without a GPU the library can do no more than refuse, but it is called. What is called is a stand-in that refuses, too,
or the real one, by its path in NETMON_NCCL (libnccl.so.2 of the package nvidia-nccl-cu12, of half a gigabyte).
"""

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from pair import Watched

from netmon.lab.network import Host
from netmon.lab.process import Process

pytestmark = pytest.mark.kernel

STAND_IN = """
#include <stddef.h>
int ncclAllReduce(const void *send, void *receive, size_t count, int type, int operation, void *group, void *stream)
{
	return 4; /* ncclInvalidArgument */
}
"""
STEPS, LAYERS = 12, 5
SCRIPT = f"""
import ctypes, pathlib, sys, time
nccl = ctypes.CDLL(sys.argv[1])
print("mapped", flush=True)
while not pathlib.Path(sys.argv[2]).exists():
    time.sleep(0.02)
gradients = [ctypes.create_string_buffer(4096 << layer) for layer in range({LAYERS})]
for step in range({STEPS}):
    time.sleep(0.05)
    print("step", time.monotonic_ns(), time.time_ns() - time.monotonic_ns(), flush=True)
    for gradient in reversed(gradients):
        status = nccl.ncclAllReduce(gradient, gradient, ctypes.c_size_t(len(gradient) // 4), 7, 0, None, None)
        assert status, "reduced without a GPU"
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    if real := os.environ.get("NETMON_NCCL"):
        return real
    folder = tmp_path_factory.mktemp("nccl")
    (folder / "nccl.c").write_text(STAND_IN)
    built = str(folder / "libnccl.so.2")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", built, folder / "nccl.c"], check=True)
    return built


def test_first_enqueues_are_told_and_waits_are_not(namespaces: Callable, tmp_path: Path, library: str) -> None:
    with ExitStack() as cleanup:
        watched = Watched(*namespaces(), tmp_path, cleanup)
        collector, agent = watched.collector(), watched.agent()
        host = Host("right", watched.right.namespace.name, watched.right.address)
        command = [sys.executable, "-c", SCRIPT, library, str(tmp_path / "go")]
        rank = {"RANK": "0", "WORLD_SIZE": "2", "NETMON_JOB": "job"}
        trainer = cleanup.enter_context(Process("rank", command, tmp_path, host=host, environment=rank))
        trainer.wait_output("mapped", 60)
        agent.wait_output("probing .*libnccl", 60)
        (tmp_path / "go").touch()
        trainer.wait_output(rf"(step.*\s+){{{STEPS}}}", 60)
        agent.end_in_order(seconds=60)
        collector.end_in_order(seconds=60)
    log = np.array([line.split()[1:] for line in trainer.output().splitlines() if line.startswith("step")], np.int64)
    iterations = watched.table("iterations").sort_values("iteration")
    assert set(iterations["source"]) == {"uprobe"}
    assert iterations["iteration"].tolist() == list(range(STEPS - 1))  # nothing tells when the last one was over
    late = iterations["comm_start_ns"].to_numpy(np.int64) - log[:-1].sum(axis=1)
    assert (late > 0).all()
    assert np.median(late) < 1_000_000
    assert iterations[["comm_end_ns", "wait_start_ns", "exposed_ns"]].isna().all(axis=None)
