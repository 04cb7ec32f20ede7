# SPDX-License-Identifier: Apache-2.0
"""Ranks of a real NCCL on one GPU, each a host of its own: a network namespace behind a router."""

import functools
import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from conftest import End, Network  # type: ignore[import-not-found]
from pair import NETMON

from netmon.lab.network import Host
from netmon.lab.process import Process

PORT = 29400  # of PyTorch's store, on the first host
JOB = "gpu"
BACKEND = os.environ.get("NETMON_TEST_BACKEND", "nccl")
_PYTHON = os.environ.get("NETMON_TORCH", sys.executable)
_ASKS = "import torch; assert torch.cuda.is_available(), 'PyTorch finds no GPU'; torch.cuda.nccl.version()"
_NCCL = {
    **{"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"},
    **{"NCCL_MNNVL_ENABLE": "0", "NCCL_MULTI_RANK_GPU_ENABLE": "1"},
}


@functools.cache
def lacking() -> str:
    """Why there is no real NCCL here; empty where there is."""
    if BACKEND != "nccl":
        return ""
    done = subprocess.run([_PYTHON, "-c", _ASKS], capture_output=True, text=True)
    return done.stderr.strip().rpartition("\n")[2] if done.returncode else ""


class Cluster:
    """So many hosts."""

    def __init__(self, network: Network, size: int, folder: Path, cleanup: ExitStack) -> None:
        self.folder, self._cleanup = folder, cleanup
        router = network.namespace()
        router.set("net.ipv4.ip_forward=1")
        self.hosts: list[End] = []
        for _ in range(size):
            near, host = network.veth(router, network.namespace())
            host.namespace.run("ip", "route", "add", "default", "via", near.address)
            self.hosts.append(host)
        self.data, self.collected = folder / "data", f"unix:{folder}/collector.sock"
        self.watchers: list[Process] = []

    def watch(self, *options: str) -> None:
        """A collector, and an agent on each host, which are named after their ranks."""
        where = ["--listen", self.collected, "--data", str(self.data)]
        self.watchers = [self._start("collector", ["collector", *where])]
        for number, host in enumerate(self.hosts):
            own = ["--interface", host.interface, "--collector", self.collected, "--host", str(number)]
            own += ["--socket", f"{self.folder}/agent-{number}.sock", "--spool", f"{self.folder}/spool-{number}"]
            self.watchers.append(self._start(f"agent-{number}", ["agent", *own, *options], host))
        for watcher in self.watchers:
            watcher.wait_ready(120)

    def unwatch(self) -> None:
        """All that they have seen is stored."""
        for watcher in reversed(self.watchers):
            watcher.end_in_order(seconds=60)

    def _start(self, name: str, command: list[str], on: End | None = None) -> Process:
        host = Host(name, on.namespace.name, on.address) if on else None
        notify = self.folder / f"notify-{name}"
        started = Process(name, [*NETMON, *command], self.folder, host=host, notify=notify)
        return self._cleanup.enter_context(started)

    def job(self) -> "Job":
        job = Job(self.hosts, self.folder)
        self._cleanup.callback(job.close)
        return job


class Job:
    """All ranks, set up."""

    def __init__(self, hosts: list[End], folder: Path) -> None:
        self._ranks = []
        for number, host in enumerate(hosts):
            own = {"RANK": str(number), "WORLD_SIZE": str(len(hosts)), "NETMON_JOB": JOB, "LOCAL_RANK": "0"}
            own |= {"MASTER_ADDR": hosts[0].address, "MASTER_PORT": str(PORT), "GLOO_SOCKET_IFNAME": host.interface}
            own |= {**_NCCL, "NCCL_SOCKET_IFNAME": host.interface, "NCCL_HOSTID": f"host-{number}"}
            command = host.namespace.inside(_PYTHON, str(Path(__file__).with_name("rank.py")))
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            with (folder / f"rank-{number}.log").open("w") as log:
                self._ranks.append(subprocess.Popen(command, env=os.environ | own, stderr=log, **pipes))
        self._folder = folder
        self.about = self._hear()
        self.pids = [each["pid"] for each in self.about]

    def call(self, *call: Any) -> list[Any]:
        """What each rank answers."""
        for rank in self._ranks:
            rank.stdin.write(json.dumps(call) + "\n")
            rank.stdin.flush()
        return self._hear()

    def _hear(self) -> list[Any]:
        lines = [rank.stdout.readline() for rank in self._ranks]
        if not all(lines):
            time.sleep(0.5)
            logs = "".join(path.read_text()[-2000:] for path in sorted(self._folder.glob("rank-*.log")))
            raise AssertionError(f"a rank has ended: {logs}")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        for rank in self._ranks:
            rank.kill()
        for rank in self._ranks:
            rank.communicate()
