# SPDX-License-Identifier: Apache-2.0
"""All-reduces by NCCL, of which only the handing over is seen: what is not known is stored as unknown, unless the
training thread waits for its GPU.

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
#include <unistd.h>
int ncclAllReduce(const void *send, void *receive, size_t count, int type, int operation, void *group, void *stream)
{
	return 4; /* ncclInvalidArgument */
}
int cudaStreamSynchronize(void *stream) { return usleep(20000); }
int cudaEventSynchronize(void *event) { return usleep(20000); }
int cudaDeviceSynchronize(void) { return usleep(20000); }
"""
STEPS, LAYERS = 12, 5
SCRIPT = f"""
import ctypes, pathlib, sys, time
nccl, *cuda = map(ctypes.CDLL, sys.argv[1:-1])
print("mapped", flush=True)
while not pathlib.Path(sys.argv[-1]).exists():
    time.sleep(0.02)
gradients = [ctypes.create_string_buffer(4096 << layer) for layer in range({LAYERS})]
for step in range({STEPS}):
    time.sleep(0.05)
    print("step", time.monotonic_ns(), time.time_ns() - time.monotonic_ns(), flush=True)
    for gradient in reversed(gradients):
        status = nccl.ncclAllReduce(gradient, gradient, ctypes.c_size_t(len(gradient) // 4), 7, 0, None, None)
        assert status, "reduced without a GPU"
    for library in cuda:
        begun = time.monotonic_ns()
        (library.cudaStreamSynchronize, library.cudaEventSynchronize)[step % 2](None)
        print("waited", begun, time.monotonic_ns(), flush=True)
        library.cudaDeviceSynchronize()  # for something else
print("over", flush=True)
time.sleep(60)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("nccl")
    (folder / "nccl.c").write_text(STAND_IN)
    for name in ("libnccl.so.2", "libcudart.so.12"):
        subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / name, folder / "nccl.c"], check=True)
    return folder


def numbers(process: Process, word: str) -> np.ndarray:
    return np.array([line.split()[1:] for line in process.output().splitlines() if line.startswith(word)], np.int64)


@pytest.mark.parametrize("waits", [False, True])
def test_first_enqueues_are_told_and_waits_for_the_gpu(
    namespaces: Callable, tmp_path: Path, folder: Path, waits: bool
) -> None:
    libraries = [os.environ.get("NETMON_NCCL") or str(folder / "libnccl.so.2")]
    libraries += [str(folder / "libcudart.so.12")] if waits else []
    with ExitStack() as cleanup:
        watched = Watched(*namespaces(), tmp_path, cleanup)
        collector, agent = watched.collector(), watched.agent()
        host = Host("right", watched.right.namespace.name, watched.right.address)
        command = [sys.executable, "-c", SCRIPT, *libraries, str(tmp_path / "go")]
        rank = {"RANK": "0", "WORLD_SIZE": "2", "NETMON_JOB": "job"}
        trainer = cleanup.enter_context(Process("rank", command, tmp_path, host=host, environment=rank))
        trainer.wait_output("mapped", 60)
        for library in libraries:
            agent.wait_output(f"probing .*{Path(library).name}", 60)
        (tmp_path / "go").touch()
        trainer.wait_output("over", 60)
        agent.end_in_order(seconds=60)
        collector.end_in_order(seconds=60)
    log = numbers(trainer, "step")
    iterations = watched.table("iterations").sort_values("iteration")
    assert set(iterations["source"]) == {"uprobe"}
    whole = STEPS - (not waits)  # nothing else tells of the last one's end
    log = log[whole - len(iterations) :]
    assert len(iterations) >= whole - 1  # a slow machine may see the rank late, and begins with a whole step then
    late = iterations["comm_start_ns"].to_numpy(np.int64) - log[: len(iterations)].sum(axis=1)
    assert (late > 0).all()
    assert np.median(late) < 1_000_000
    columns = ["comm_end_ns", "wait_start_ns", "exposed_ns"]
    if not waits:
        assert iterations[columns].isna().all(axis=None)
        return
    assert iterations["comm_end_ns"].tail(STEPS - 4).notna().all()  # once it waits in every step
    known = iterations[columns].dropna()
    begun, over = (numbers(trainer, "waited")[-len(known) :] + log[:1, 1:]).T
    assert (known["wait_start_ns"].to_numpy(np.int64) > begun).all()
    assert (known["comm_end_ns"].to_numpy(np.int64) < over).all()
    assert (known["exposed_ns"].to_numpy(np.int64) >= 20_000_000).all()
