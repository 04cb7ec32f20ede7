# SPDX-License-Identifier: Apache-2.0
"""Which rank a process is set up as, out of a library with Horovod's function; and calls that nobody has time for."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from waiting import wait_for

from netmon.kernel.meter.memory import mapped_array
from netmon.records import STEP_RANK

pytestmark = [pytest.mark.kernel, pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")]

LIBRARY = """
#include <chrono>
#include <memory>
#include <string>

namespace gloo {
struct Context {};
namespace transport { struct Device {}; }
}
namespace horovod {
namespace common {
using std::chrono::milliseconds;

std::shared_ptr<gloo::Context> Rendezvous(const std::string &prefix, const char *address, int port, int rank, int size,
	std::shared_ptr<gloo::transport::Device> &device, milliseconds timeout) { return nullptr; }
}
}

extern "C" void set_up(const char *prefix, int rank, int size, int times)
{
	std::shared_ptr<gloo::transport::Device> device;
	std::string text(prefix);
	while (times--)
		horovod::common::Rendezvous(text, "127.0.0.1", 1, rank, size, device, std::chrono::milliseconds(1));
}
"""
CALLER = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
print("ready", flush=True)
for line in sys.stdin:
    prefix, *numbers = line.split()
    library.set_up(prefix.encode(), *map(int, numbers))
"""
"""Lines of: prefix, rank, size, how often."""


def called(probed, folder: Path, cxx11: int, lines: str) -> np.ndarray:
    """What is told of these calls."""
    library = folder / "mpi_lib_v2.so"
    (folder / "library.cc").write_text(LIBRARY)
    compile_ = ["g++", "-O1", "-fPIC", "-shared", f"-D_GLIBCXX_USE_CXX11_ABI={cxx11}", "-o", library]
    subprocess.run([*compile_, folder / "library.cc"], check=True, timeout=120)
    command = [sys.executable, "-c", CALLER, library]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        found: list[str] = []  # a library that is not read in half a second is probed by a later look
        wait_for(lambda: bool(found.extend(probed.uprobes.follow([process.pid])) or found))
        assert found == [str(library)]
        process.communicate(lines)
    assert process.returncode == 0
    return probed.ring.take()


@pytest.mark.parametrize("cxx11", [0, 1], ids=["strings copied on write", "strings of C++11"])
def test_the_rank_in_the_job_is_told_and_no_other(probed, tmp_path, cxx11):
    others = "local_ 1 2 1\nlocal_h0 1 2 1\nglobal_set1 1 2 1\nglobaL 1 2 1\n"
    steps = called(probed, tmp_path, cxx11, f"global 3 70000 1\n{others}global 0 2 1\n")
    assert steps[["kind", "name_hash"]].tolist() == [(STEP_RANK, 3 << 32 | 70000), (STEP_RANK, 2)]


def test_calls_that_are_not_told_are_counted(probed, tmp_path):
    calls = 20_000
    steps = called(probed, tmp_path, 1, f"global 0 1 {calls}\n")
    no_room, over_budget = map(int, mapped_array(probed.descriptors["steps_lost"], np.dtype("<u8"), 2))
    assert no_room == 0  # a process's budget is smaller than the ring
    assert (steps["kind"] == STEP_RANK).sum() + over_budget == calls
