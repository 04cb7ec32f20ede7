# SPDX-License-Identifier: Apache-2.0
"""NCCL's RAS is asked in the network namespace of those who use NCCL, by who may do nothing else."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import stand_in_nccl

from netmon.kernel.machine import machine_checks
from netmon.kernel.training import ras
from netmon.lab.nccl_library import Version, build

pytestmark = pytest.mark.kernel

REAL = Path(__file__).parents[1] / "data/nccl/ras-2.28.9.json"
SERVER = """
import socket, sys
with socket.create_server(("127.0.0.1", 28028)) as server:
    print("listens", flush=True)
    while True:
        connection = server.accept()[0]
        with connection, connection.makefile("rwb") as both:
            for line in both:
                answers = {b"CLIENT": b"SERVER PROTOCOL 2\\n", b"VERBOSE": open(sys.argv[1], "rb").read()}
                both.write(answers.get(line.split()[0], b"OK\\n"))
                both.flush()
                if line.startswith(b"VERBOSE"):
                    break
"""


@pytest.fixture
def cleanup() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def started(cleanup: ExitStack, *command: str) -> subprocess.Popen[str]:
    """Once it has said something."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, **pipes)
    cleanup.callback(process.communicate)
    cleanup.callback(process.kill)
    assert process.stdout.readline()
    return process


def test_a_job_in_a_namespace_is_asked_there(namespaces: Callable, tmp_path: Path, cleanup: ExitStack) -> None:
    library = build(tmp_path, Version())
    left, right = namespaces()
    users = [
        started(cleanup, *end.namespace.inside(sys.executable, stand_in_nccl.__file__, str(library)))
        for end in (left, right)
    ]
    started(cleanup, *right.namespace.inside(sys.executable, "-c", SERVER, str(REAL)))
    silent, speaks = ({said.pids[0]: said for said in ras.query()}[user.pid] for user in users)
    assert "does not listen" in silent.reason
    assert (speaks.version, speaks.reason) == ("2.28.9", "")
    assert [(rank.rank, rank.host) for rank in speaks.communicators[0].ranks] == [(0, "198.18.1.2"), (1, "198.18.2.2")]
    details = [check.detail for check in machine_checks() if check.name == "NCCL"]
    assert any(f"used by {users[1].pid}: 2.28.9, says its RAS: of 2: rank 0 on 198.18.1.2" in text for text in details)
