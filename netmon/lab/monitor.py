# SPDX-License-Identifier: Apache-2.0
"""netmon itself in a testbed: a collector, or a bus with workers, and an agent in every host, each a process."""

import contextlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from netmon.lab import bus
from netmon.lab.control_groups import with_control_groups
from netmon.lab.management import connect_management
from netmon.lab.network import INTERFACE, Host, Network
from netmon.lab.process import Process
from netmon.lab.spec import RunSpec

_READY_SECONDS = 120.0


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
        names = [f"worker-{number}" for number in (1, 2)] if spec.bus else ["collector"]
        self.address = ",".join(f"unix:{self._run / name}.sock" for name in names)
        self.agents: list[Process] = []
        self._bus = ""
        self._agents_ended = False
        self._stack = contextlib.ExitStack()
        with self._stack:  # ends what was started if one cannot be
            self._middle = self._start_bus() if spec.bus else None
            self.collectors = [self._start_collector(name) for name in names]
            for collector in self.collectors:
                collector.wait_ready(_READY_SECONDS)
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
        for process in (*self.collectors, *self.agents):
            process.check_running()

    def end_in_order(self) -> None:
        """Agents first, so that all they have reaches the dataset; then the collector. Raises LabError."""
        if not self._agents_ended:
            self.end_agents()
        for collector in self.collectors:
            collector.ask_to_end()
        for collector in self.collectors:
            collector.end_in_order(seconds=60)

    def end_agents(self) -> None:
        """Block until the collector has all that they have. Raises LabError."""
        for agent in self.agents:
            agent.ask_to_end()
        for agent in self.agents:
            agent.end_in_order(seconds=30)
        if self._middle:
            command = [sys.executable, "-m", "netmon.lab.bus", self._bus]
            with Process("stored", command, self._logs, host=self._middle) as stored:
                while stored.status() is None:
                    self._check_collectors()
                    time.sleep(0.05)
                stored.check()
        self._agents_ended = True

    def _check_collectors(self) -> None:
        for collector in self.collectors:
            collector.check_running()

    def __enter__(self) -> "Monitor":
        """Nothing: all are ready."""
        return self

    def __exit__(self, *exception: object) -> None:
        """End them."""
        self._stack.close()

    def _start_bus(self) -> Host:
        """Servers on a host that all others reach by a network of its own."""
        middle = connect_management(self._network.lease, self._network.hosts)
        self._bus = bus.addresses(middle)
        for name, configuration in bus.configurations(middle, self._run):
            command = [bus.program(), "-c", str(configuration)]
            self._stack.enter_context(Process(name, command, self._logs, host=middle))
        return middle

    def _start_collector(self, name: str) -> Process:
        where = ["--listen", f"unix:{self._run / name}.sock", "--data", str(self._spec.data)]
        if self._middle:
            where += ["--bus", self._bus, "--bus-replicas", str(bus.SERVERS), "--worker", name, "--insecure"]
        command = [sys.executable, "-m", "netmon", "collector", *where, "--parameters", str(self._parameters)]
        command += [] if self._spec.evidence else ["--verdicts", "none"]
        return self._start(name, command, self._middle)

    def _start_agent(self, host: Host) -> Process:
        command = [*with_control_groups(), sys.executable, "-m", "netmon", "agent"]
        command += ["--interface", INTERFACE, "--host", host.name]
        what = ["--capacity", f"{self._network.rate_bps}bit", "--bucket", f"{self._spec.bucket_ns}ns"]
        what += ["--stream-bucket", f"{self._spec.stream_ns or self._spec.bucket_ns}ns"]
        # Nobody else is in the testbed's networks.
        where = ["--bus", self._bus, "--insecure"] if self._middle else ["--collector", self.address]
        where += ["--socket", str(self._run / f"{host.name}.sock")]
        rest = ["--spool", str(self._run / f"spool-{host.name}"), "--hook", self._spec.hook]
        rest += [] if self._spec.evidence else ["--evidence", "none"]
        return self._start(f"agent-{host.name}", [*command, *what, *where, *rest], host)

    def _start(self, name: str, command: list[str], host: Host | None) -> Process:
        notify = self._run / f"notify-{name}.sock"
        return self._stack.enter_context(Process(name, command, self._logs, host=host, notify=notify))
