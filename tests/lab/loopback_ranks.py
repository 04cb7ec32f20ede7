# SPDX-License-Identifier: Apache-2.0
"""For tests: ranks of PyTorch's Gloo, or JAX's, on the loopback, whose calls are seen."""

import os
import socket
import subprocess
import time
from contextlib import ExitStack

import numpy as np
from probed import Probed

from netmon.lab.training import horovod_python
from netmon.records import Table

_LIBRARIES = {"torch": "libtorch_cpu", "jax": "libjax_common"}
_READ_S = 30


def run_ranks(
    probed: Probed, script: str, ranks: int, *arguments: str, framework: str = "torch"
) -> tuple[list[int], list[list[str]], Table]:
    """script: says `ready`, reads a line and does what is to be seen → process ids, what each says then, its calls.

    The calls: dtype STEP, in order of time.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    common = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    common |= {"GLOO_SOCKET_IFNAME": "lo"}
    common |= {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}", "JAX_PLATFORMS": "cpu"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [horovod_python(framework), "-c", script, *arguments]
    with ExitStack() as cleanup:
        environments = [os.environ | common | {"RANK": str(rank)} for rank in range(ranks)]
        processes = [cleanup.enter_context(subprocess.Popen(command, env=one, **pipes)) for one in environments]
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        until = time.monotonic() + _READ_S
        while not any(_LIBRARIES[framework] in probe.path for probe in probed.uprobes._probed.values()):
            assert time.monotonic() < until, probed.uprobes.warnings()
            probed.uprobes.follow(process.pid for process in processes)
        for process in processes:
            process.stdin.write("\n")
            process.stdin.flush()
        calls = []
        while any(process.poll() is None for process in processes):
            calls.append(probed.ring.take().copy())
            time.sleep(0.02)
        said = [process.stdout.readlines() for process in processes]
    table = np.concatenate([*calls, probed.ring.take()])
    return [process.pid for process in processes], said, np.sort(table, order="time_ns", kind="stable")
