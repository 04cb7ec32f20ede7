# SPDX-License-Identifier: Apache-2.0
"""For tests: the real agent and the real collector, as processes, on a veth pair between two namespaces."""

import json
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pandas as pd
from dataset_rows import stored_rows

from netmon.lab.network import Host
from netmon.lab.process import Process

NETMON = [sys.executable, "-m", "netmon"]
QUERY_ATTACHED = """
import sys
from netmon.kernel.bpf_calls import TCX_EGRESS, TCX_INGRESS, attached_programs
print(*(len(attached_programs(int(sys.argv[1]), hook)) for hook in (TCX_INGRESS, TCX_EGRESS)))
"""


class Watched:
    """A pair of hosts; the right one has an agent."""

    def __init__(self, left, right, folder: Path, cleanup: ExitStack) -> None:
        self.left, self.right, self.folder = left, right, folder
        self.data = folder / "data"
        self.address = f"unix:{folder}/collector.sock"
        self.more: list[str] = []  # options of both
        self._cleanup = cleanup

    def _start(self, name: str, command: list[str], inside: bool) -> Process:
        host = Host("right", self.right.namespace.name, self.right.address) if inside else None
        notify = self.folder / f"notify-{name}"
        notify.unlink(missing_ok=True)
        process = Process(name, [*NETMON, *command], self.folder, host=host, notify=notify)
        return self._cleanup.enter_context(process)

    def _start_collector(self, *options: str) -> Process:
        where = ["--listen", self.address, "--data", str(self.data)]
        return self._start("collector", ["collector", *where, *self.more, *options], inside=False)

    def _start_agent(self, name: str, *options: str) -> Process:
        return self._start(name, [*self._agent(name), *options], inside=True)

    def collector(self, *options: str) -> Process:
        return _ready(self._start_collector(*options))

    def agent(self, *options: str, name: str = "agent") -> Process:
        return _ready(self._start_agent(name, *options))

    def both(self, *options: str) -> tuple[Process, Process]:
        """A collector and an agent, started side by side."""
        collector, agent = self._start_collector(), self._start_agent("agent", *options)
        return _ready(collector), _ready(agent)

    def agent_command(self) -> list[str]:
        """For those who start the agent themselves."""
        return [*NETMON, *self._agent("agent")]

    def _agent(self, name: str) -> list[str]:
        where = ["--socket", f"{self.folder}/{name}.sock", "--spool", f"{self.folder}/spool-{name}"]
        return [
            "agent",
            "--interface",
            self.right.interface,
            "--collector",
            self.address,
            "--host",
            "right",
            *where,
            *self.more,
        ]

    def transfer(self, megabytes: int = 20, rate: str = "0") -> None:
        """So many bytes from left to right, over TCP; again where iperf3 ends before all of it is sent."""
        host = Host("right", self.right.namespace.name, self.right.address)
        client = ["iperf3", "-c", self.right.address, "-p", "5999", "-n", f"{megabytes}M", "-b", rate]
        until = self.counters()["rx"] + (megabytes << 20)
        while self.settled()["rx"] < until:
            command = ["iperf3", "-s", "-1", "-p", "5999", "--forceflush"]
            with Process("iperf3", command, self.folder, host=host) as server:
                server.wait_output("listening", 10)
                self.left.namespace.run(*client)
                server.end()

    def counters(self) -> dict[str, int]:
        """The NIC's own."""
        (link,) = json.loads(self.right.namespace.run("ip", "-json", "-s", "link", "show", self.right.interface))
        return {way: link["stats64"][way]["bytes"] for way in ("rx", "tx")}

    def settled(self) -> dict[str, int]:
        """The NIC's own counters, when nothing moves any more."""
        before, now = {}, self.counters()
        while now != before:
            time.sleep(0.1)
            before, now = now, self.counters()
        return now

    def attached(self) -> tuple[int, ...]:
        """Programs on the interface: XDP, tcx ingress, tcx egress."""
        command = (sys.executable, "-c", QUERY_ATTACHED, str(self.right.index))
        (link,) = json.loads(self.right.namespace.run("ip", "-json", "link", "show", self.right.interface))
        return (int("xdp" in link), *map(int, self.right.namespace.run(*command).split()))

    def table(self, name: str) -> pd.DataFrame:
        return stored_rows(self.data, name)


def _ready(process: Process) -> Process:
    process.wait_ready(60)
    return process


def run(*command: str) -> str:
    """A command's standard output."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
