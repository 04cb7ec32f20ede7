# SPDX-License-Identifier: Apache-2.0
"""netmon itself in a testbed: one collector, and an agent in every host, as separate processes."""

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

from netmon.lab.network import INTERFACE, Host, Network
from netmon.lab.process import Process
from netmon.lab.spec import RunSpec

_READY_SECONDS = 60.0


class Monitor:
    """The collector and the agents; leaving the context ends them."""

    def __init__(
        self,
        spec: RunSpec,
        network: Network,
        logs: Path,
        parameters: int = 0,
        hosts: Sequence[Host] | None = None,
    ) -> None:
        """Start them and block until all are ready. Raises LabError with the words of one that is not.

        parameters: of the models of jobs that do not tell; 0: unknown. hosts: those that are watched from now on; all.
        """
        self._spec, self._network, self._logs, self._parameters = spec, network, logs, parameters
        self._run = network.lease.folder
        # A Unix socket crosses network namespaces: not a byte of the monitor's is on the links it watches.
        self.address = f"unix:{self._run / 'collector.sock'}"
        self.agents: list[Process] = []
        self._stack = contextlib.ExitStack()
        with self._stack:  # ends what was started if one cannot be
            self.collector = self._start_collector()
            self.collector.wait_ready(_READY_SECONDS)
            self.watch(network.hosts if hosts is None else hosts)
            self._stack = self._stack.pop_all()

    def watch(self, hosts: Sequence[Host]) -> None:
        """Start agents in these hosts, too; blocks until they are ready. Raises LabError."""
        agents = [self._start_agent(host) for host in hosts]
        self.agents += agents
        for agent in agents:
            agent.wait_ready(_READY_SECONDS)

    def check(self) -> None:
        """Raise LabError if one of them has ended."""
        for process in (self.collector, *self.agents):
            process.check_running()

    def end_in_order(self) -> None:
        """Agents first, so that all they have reaches the dataset; then the collector. Raises LabError."""
        for agent in self.agents:
            agent.ask_to_end()
        for agent in self.agents:
            agent.end_in_order(seconds=30)
        self.collector.end_in_order(seconds=60)

    def __enter__(self) -> "Monitor":
        """Nothing: all are ready."""
        return self

    def __exit__(self, *exception: object) -> None:
        """End them."""
        self._stack.close()

    def _start_collector(self) -> Process:
        where = ["--listen", self.address, "--data", str(self._spec.data)]
        command = [sys.executable, "-m", "netmon", "collector", *where, "--parameters", str(self._parameters)]
        return self._start("collector", command, None)

    def _start_agent(self, host: Host) -> Process:
        command = [sys.executable, "-m", "netmon", "agent", "--interface", INTERFACE, "--host", host.name]
        what = ["--capacity", f"{self._network.rate_bps}bit", "--bucket", f"{self._spec.bucket_ns}ns"]
        what += ["--stream-bucket", f"{self._spec.stream_ns or self._spec.bucket_ns}ns"]
        where = ["--collector", self.address, "--socket", str(self._run / f"{host.name}.sock")]
        rest = ["--spool", str(self._run / f"spool-{host.name}"), "--hook", self._spec.hook]
        return self._start(f"agent-{host.name}", [*command, *what, *where, *rest], host)

    def _start(self, name: str, command: list[str], host: Host | None) -> Process:
        notify = self._run / f"notify-{name}.sock"
        return self._stack.enter_context(Process(name, command, self._logs, host=host, notify=notify))
