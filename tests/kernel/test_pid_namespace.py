# SPDX-License-Identifier: Apache-2.0
"""An agent in a PID namespace, as in a pod without the host's: the steps of the processes beside it are told."""

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from pair import NETMON, Watched

pytestmark = pytest.mark.kernel

STEPS = 12
STAND_IN = "#include <stddef.h>\nint ncclAllReduce(const void *a, void *b, size_t count) { return 4; }\n"
TRAIN = f"""
import ctypes, sys, time
nccl = ctypes.CDLL(sys.argv[1])
print("mapped", flush=True)
input()
for step in range({STEPS}):
    time.sleep(0.05)
    for layer in range(5):
        nccl.ncclAllReduce(None, None, ctypes.c_size_t(1024 << layer))
print("trained", flush=True)
input()
"""
# The agent and a rank in a namespace of theirs, in which the machine's numbers of them mean nothing.
POD = """
import os, signal, subprocess, sys, time
train, library, log, *agent = sys.argv[1:]
agent = subprocess.Popen(agent, stderr=open(log, "w"))
def wait_for(word):
    while word not in open(log).read():
        assert agent.poll() is None, open(log).read()
        time.sleep(0.05)
wait_for("watching")
def started(job):
    variables = {**os.environ, "RANK": "0", "WORLD_SIZE": "2", "NETMON_JOB": job}
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
    rank = subprocess.Popen([sys.executable, "-c", train, library], env=variables, **pipes)
    assert rank.stdout.readline().strip() == "mapped"
    return rank
first = started("first")  # so that the next one's calls are seen from the first one on, however busy the machine
wait_for("probing")
first.kill()
rank = started("job")
print(file=rank.stdin, flush=True)
assert rank.stdout.readline().strip() == "trained"
time.sleep(1)
rank.communicate(os.linesep)
agent.send_signal(signal.SIGTERM)
assert agent.wait() == 0
"""


def test_steps_are_told_by_the_numbers_of_the_namespace(namespaces: Callable, tmp_path: Path) -> None:
    (tmp_path / "nccl.c").write_text(STAND_IN)
    library, log = tmp_path / "libnccl.so.2", tmp_path / "log"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "nccl.c"], check=True)
    with ExitStack() as cleanup:
        watched = Watched(*namespaces(), tmp_path, cleanup)
        collector = watched.collector()
        alone = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, "-c", POD)
        command = watched.right.namespace.inside(*alone, TRAIN, str(library), str(log), *watched.agent_command())
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr
        collector.end_in_order(seconds=60)
    iterations = watched.table("iterations").sort_values("iteration")
    assert set(iterations["source"]) == {"uprobe"}
    assert iterations["iteration"].tolist() == list(range(STEPS - 1))  # nothing tells when the last one was over
    (line,) = (line for line in log.read_text().splitlines() if "PID namespace" in line)
    assert "not of those nested in it or outside of it" in line


def test_doctor_says_what_is_not_seen() -> None:
    command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", *NETMON, "doctor"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=os.environ)
    assert "not of those nested in it or outside of it" in " ".join(done.stdout.split())
