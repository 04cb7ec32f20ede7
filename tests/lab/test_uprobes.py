# SPDX-License-Identifier: Apache-2.0
"""Probes on a real training library: one process of Horovod, in this mount namespace and in one of its own."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from probed import Probed

from netmon.dl.cycles import CycleDetector
from netmon.kernel.meter.memory import mapped_array
from netmon.lab.training import horovod_python
from netmon.records import STEP_DONE, STEP_ENQUEUE, Moment

pytestmark = pytest.mark.kernel

SCRIPT = """
import os, time, torch, horovod.torch as hvd
hvd.init()
os.environ["HOROVOD_ELASTIC"] = "1"  # else a job of one rank reduces nothing
print("ready", flush=True)
input()
model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
for _ in range(5):
    hvd.allreduce(torch.zeros(1), name="sanity")
for epoch in range(3):
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(torch.randn(2, 8)).sum()
        begin = time.monotonic_ns()
        loss.backward()
        backward = time.monotonic_ns()
        optimizer.step()
        print(begin, backward, time.monotonic_ns(), flush=True)
        hvd.allreduce(torch.zeros(1), name="loss")
    for _ in range(7):
        hvd.allreduce(torch.zeros(1), name="validation")
"""
ALONE = {f"HOROVOD_{name}": "0" for name in ("RANK", "LOCAL_RANK", "CROSS_RANK")}
ALONE |= {f"HOROVOD_{name}": "1" for name in ("SIZE", "LOCAL_SIZE", "CROSS_SIZE")}
ALONE |= {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}

LIBRARY = """
#include <memory>
#include <string>
#include <vector>

namespace horovod {
namespace common {
struct Status { std::string reason; };
using Things = std::vector<std::shared_ptr<int>>;

Status EnqueueTensorAllreduces(Things &, Things &, Things &, Things &, std::vector<std::string> &names) { return {}; }

struct Timeline { void End(const std::string &name, const std::shared_ptr<int> &output); };
void Timeline::End(const std::string &name, const std::shared_ptr<int> &output) {}
}
}

extern "C" void reduce(const char *first, const char *second)
{
	horovod::common::Things things;
	std::vector<std::string> names{first, second};
	horovod::common::EnqueueTensorAllreduces(things, things, things, things, names);
	for (const std::string &name : names)
		horovod::common::Timeline().End(name, nullptr);
}
"""
NAMES = ("short", "grad_" + 300 * "a" + "_1")
REDUCE = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
print("ready", flush=True)
input()
library.reduce(*(name.encode() for name in sys.argv[2:]))
"""


def own_mounts(folder: Path) -> list[str]:
    """The library under a path, and with an inode, that only the process's own mount namespace has."""
    (library,) = Path(horovod_python()).parents[1].glob("lib/python3*/site-packages/horovod/torch/mpi_lib_v2*.so")
    copy = f"mount -t tmpfs none {folder} && cp {library} {folder}/ && mount --bind {folder}/{library.name} {library}"
    return ["unshare", "-m", "sh", "-c", f'{copy} && exec "$@"', "sh"]


@pytest.mark.parametrize(
    ("mounts", "late"),
    [
        ("own", False),
        ("shared", True),
        *(pytest.param(*other, marks=pytest.mark.long) for other in (("shared", False), ("own", True))),
    ],
)
def test_every_step_and_nothing_else(probed: Probed, tmp_path: Path, mounts: str, late: bool) -> None:
    prefix = own_mounts(tmp_path) if mounts == "own" else []
    command = [*prefix, horovod_python(), "-c", SCRIPT]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=os.environ | ALONE, **pipes) as process:
        if not late:
            probed.uprobes.follow([process.pid])  # nothing is mapped yet
        assert process.stdout.readline() == "ready\n"
        time.sleep(1.1 if late else 0)
        paths = probed.uprobes.follow([process.pid])
        assert any("mpi_lib_v2" in path for path in paths)
        process.stdin.write("\n")
        process.stdin.flush()
        log = np.array([line.split() for line in process.stdout], np.int64)
    assert (process.pid in probed.uprobes.late) == late
    table = probed.ring.take()
    table = table[np.argsort(table["time_ns"], kind="stable")]
    detector = CycleDetector()
    found = {moment: [] for moment in Moment}
    for _, moment, time_ns in [*detector.feed(table[table["pid"] == process.pid]), *detector.finish()]:
        found[moment].append(time_ns)
    begin, backward, end = log.T
    enqueued, waited = np.array(found[Moment.FIRST_ENQUEUE]), np.array(found[Moment.LAST_WAIT])
    assert len(enqueued) == len(waited) == len(log) == 15
    assert ((begin < enqueued) & (enqueued < backward)).all()
    assert ((backward < found[Moment.FIRST_WAIT]) & (found[Moment.FIRST_WAIT] <= waited) & (waited < end)).all()


def fnv(name: str) -> int:
    """The hash that stands for a name: of the words of its last 255 bytes, filled up with zeros to 256."""
    found = 0xCBF29CE484222325
    for word in np.frombuffer(name.encode()[-255:].ljust(256, b"\0"), np.uint64).tolist():
        found = (found ^ word) * 0x100000001B3 % 2**64
    return found


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
@pytest.mark.parametrize("cxx11", [0, 1], ids=["copied on write", "of C++11"])
def test_names_are_read_out_of_either_kind_of_string(probed: Probed, tmp_path: Path, cxx11: int) -> None:
    library = tmp_path / "mpi_lib.so"
    (tmp_path / "library.cc").write_text(LIBRARY)
    compile_ = ["g++", "-O1", "-fPIC", "-shared", f"-D_GLIBCXX_USE_CXX11_ABI={cxx11}", "-o", library]
    subprocess.run([*compile_, tmp_path / "library.cc"], check=True, timeout=120)
    command = [sys.executable, "-c", REDUCE, library, *NAMES]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        assert probed.uprobes.follow([process.pid]) == [str(library)]
        process.communicate("\n")
    first, second = map(fnv, NAMES)
    steps = probed.ring.take()[["kind", "name_hash", "tensors"]].tolist()
    assert steps == [(STEP_ENQUEUE, first, 2), (STEP_DONE, first, 1), (STEP_DONE, second, 1)]


CALL = """
import ctypes, sys, time
library, calls = ctypes.CDLL(sys.argv[1]), int(sys.argv[2])
print("ready", flush=True)
input()
began = time.monotonic_ns()
for _ in range(calls):
    library.ncclAllReduce(None, None, ctypes.c_size_t(1024))
print(time.monotonic_ns() - began)
"""


def test_calls_beyond_the_budget_of_a_process_are_counted_and_cost_others_nothing(
    probed: Probed, tmp_path: Path
) -> None:
    library = tmp_path / "libnccl.so.2"
    (tmp_path / "nccl.c").write_text(
        "int ncclAllReduce(void *send, void *receive, unsigned long count) { return 0; }\n"
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "nccl.c"], check=True)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    flood, honest = (
        subprocess.Popen([sys.executable, "-c", CALL, library, str(calls)], **pipes) for calls in (50_000, 8_000)
    )
    for process in (flood, honest):
        assert process.stdout.readline() == "ready\n"
    probed.uprobes.follow([flood.pid, honest.pid])
    for process in (flood, honest):
        process.stdin.write("\n")
        process.stdin.flush()
    (flood_ns, _), (_, _) = (process.communicate() for process in (flood, honest))
    table = probed.ring.take()
    told = {
        pid: int(((table["pid"] == pid) & (table["kind"] == STEP_ENQUEUE)).sum()) for pid in (flood.pid, honest.pid)
    }
    lost, dropped = map(int, mapped_array(probed.descriptors["steps_lost"], np.dtype("<u8"), 2))
    assert (told[honest.pid], lost) == (8_000, 0)
    assert told[flood.pid] + dropped == 50_000
    assert told[flood.pid] <= 8192 + int(flood_ns) // (1 << 16) + 2
