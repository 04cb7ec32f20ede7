# SPDX-License-Identifier: Apache-2.0
"""Two hosts joined by one veth pair whose speed nothing limits but this machine, and who may watch them: nobody, netmon
by one of its hooks, or tcpdump.

As a program: ADDRESS REPORT. It is the sink of an agent that is watched alone: it prints that it listens; on SIGTERM it
writes its counts to the file REPORT.
"""

import contextlib
import json
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import grpc
import numpy as np

from netmon.bench.kernel import ATTACHED
from netmon.errors import LabError
from netmon.history.dataset import Tables
from netmon.lab.network import INTERFACE, SUBNET, Host, leased, run_lines, run_tool
from netmon.lab.process import Process, agent_command, collector_command
from netmon.service import give_socket
from netmon.wire import netmon_pb2, netmon_pb2_grpc
from netmon.wire.buckets import decode_buckets
from netmon.wire.limits import ALIVE_EVERY_S, COLLECTOR_OPTIONS, MAX_MONO_NS
from netmon.wire.tables import FLOWS, claimed, join_tables, read_ledger, split_tables

# --- What an agent needs of a collector, and nothing else: every batch is acknowledged, counted and forgotten.

LISTENS = "listens"
_THREADS = 16  # each holds one stream


@dataclass
class Received:
    """What agents have sent. bytes: of batches, as encoded; lost_bytes, wire_bytes: of the ledgers, all links."""

    batches: int = 0
    bytes: int = 0
    records: int = 0
    record_bytes: int = 0  # wire bytes of the records
    flows: int = 0  # described
    links: dict[str, dict[str, int]] = field(default_factory=dict)  # the newest ledger of each
    begun: dict[str, dict[str, int]] = field(default_factory=dict)  # the first

    def total(self, counter: str) -> int:
        """Of a counter of the ledgers, over all links, since the first sample of each."""
        return sum(link[counter] - self.begun[name][counter] for name, link in self.links.items())


class Sink(netmon_pb2_grpc.CollectorServicer):
    def __init__(self) -> None:
        self.received = Received()
        self._lock = threading.Lock()

    def Stream(  # noqa: N802 (gRPC's name)
        self, messages: Iterator[netmon_pb2.AgentMessage], context: grpc.ServicerContext
    ) -> Iterator[netmon_pb2.Acknowledgement]:
        """Acknowledges as often as a collector says that it is alive; at the end, everything."""
        session, acknowledged, pending, due = "", 0, 0, time.monotonic()
        for message in messages:
            if message.HasField("batch"):
                with self._lock:
                    self._count(session, message.batch)
                pending = message.batch.sequence
            else:
                session = message.hello.session
            if pending > acknowledged and time.monotonic() >= due:
                acknowledged, due = (
                    pending,
                    time.monotonic() + ALIVE_EVERY_S * 0.9,
                )  # a batch a second is acknowledged each time
                yield netmon_pb2.Acknowledgement(sequence=acknowledged)
        if pending > acknowledged:
            yield netmon_pb2.Acknowledgement(sequence=pending)

    def _count(self, session: str, batch: netmon_pb2.Batch) -> None:
        received = self.received
        received.batches += 1
        received.bytes += batch.ByteSize()
        received.flows += claimed(batch.tables).get(FLOWS.name, 0)
        received.records += batch.buckets.rows
        received.record_bytes += int(decode_buckets(batch.buckets)["wire_bytes"].sum(dtype=np.int64))
        for sample in read_ledger(join_tables([split_tables(batch.tables)], [0], [MAX_MONO_NS]).tables["ledger"]):
            name = f"{session}/{sample.interface}/{int(sample.direction)}"
            counters = {counter: int(value) for counter, value in vars(sample).items()}
            received.begun.setdefault(name, counters)
            received.links[name] = counters

    def Clock(  # noqa: N802
        self, probes: Iterator[netmon_pb2.ClockProbe], context: grpc.ServicerContext
    ) -> Iterator[netmon_pb2.ClockEcho]:
        for probe in probes:
            now = time.time_ns()
            yield netmon_pb2.ClockEcho(number=probe.number, received_ns=now, sent_ns=time.time_ns())


def read_report(path: Path) -> Received:
    return Received(**json.loads(path.read_text()))


def serve_sink(address: str, report: str) -> None:
    """Blocks until SIGTERM or SIGINT comes."""
    ends = signal.SIGINT, signal.SIGTERM
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    sink = Sink()
    server = grpc.server(ThreadPoolExecutor(_THREADS), options=COLLECTOR_OPTIONS)
    netmon_pb2_grpc.add_CollectorServicer_to_server(sink, server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(address)
    server.start()
    give_socket(Path(address.removeprefix("unix:")))
    print(LISTENS, flush=True)
    signal.sigwait(ends)
    server.stop(1).wait()
    Path(report).write_text(json.dumps(asdict(sink.received)))


# --- The pair.

_SETTINGS = """
cd /proc/sys/net
for every in ipv6/conf/all ipv6/conf/default; do [ ! -d $every ] || echo 1 > $every/disable_ipv6; done
cat ipv4/tcp_congestion_control
"""


@dataclass(frozen=True)
class Pair:
    sender: Host
    receiver: Host
    congestion: str  # TCP's congestion control


@contextlib.contextmanager
def pair() -> Iterator[Pair]:
    """Make both hosts; they are gone afterwards, with all that runs in them. Needs root. Raises LabError."""
    with leased() as lease:
        names = ("sender", "receiver")
        hosts = [Host(name, lease.namespace(name), f"{SUBNET}.{number}") for number, name in enumerate(names, 1)]
        for host in hosts:
            run_tool(["ip", "netns", "add", host.namespace])
            used = run_tool(["ip", "netns", "exec", host.namespace, "sh", "-se"], _SETTINGS).strip()
        sender, receiver = hosts
        link = f"link add {INTERFACE} type veth peer name {INTERFACE} netns {receiver.namespace}"
        run_lines("ip", sender.namespace, [link])
        for host in hosts:
            address = f"address add {host.address}/24 dev {INTERFACE}"
            run_lines("ip", host.namespace, ["link set lo up", address, f"link set {INTERFACE} up"])
        yield Pair(sender, receiver, used)


@contextlib.contextmanager
def fresh_folder() -> Iterator[Path]:
    """In memory, so that nobody waits for a disk; an agent, which is not root, reaches what is in it."""
    with tempfile.TemporaryDirectory(prefix="netmon-bench-", dir="/dev/shm") as folder:
        os.chmod(folder, 0o711)
        yield Path(folder)


# --- observers

_READY_SECONDS = 60
_END_SECONDS = 60
_DROPS = re.compile(r"(\d+) packets captured\s+(\d+) packets received by filter\s+(\d+) packets dropped by kernel")


@dataclass(frozen=True)
class Account:
    """What an observer has to show for a run. lost, seen and all_traffic are in `unit`: wire bytes, or packets."""

    records: int
    lost: int
    seen: int  # of the traffic of the receiver's interface
    all_traffic: int
    unit: str  # "bytes" or "packets"
    sent: int | None = None  # bytes that the agent sent to its collector


Observer = Callable[[Pair, Path], contextlib.AbstractContextManager[Callable[[], Account | None]]]
"""Watches a pair from when its context is entered; the function it gives ends it in order and tells its account.

The folder is for everything that it writes. Raises LabError.
"""


@contextlib.contextmanager
def _nobody(_pair: Pair, _folder: Path) -> Iterator[Callable[[], None]]:
    yield lambda: None


@contextlib.contextmanager
def _programs(watched: Pair, folder: Path) -> Iterator[Callable[[], None]]:
    """The meter's programs on the receiver, and no agent: the kernel path alone. What they count is not drained."""
    command = [sys.executable, "-m", "netmon.bench.kernel", INTERFACE]
    with Process("programs", command, folder, host=watched.receiver) as process:
        process.wait_output(ATTACHED, _READY_SECONDS)
        yield process.check_running


def watching(host: Host, hook: str, address: str, folder: Path) -> list[str]:
    """An agent of a host of the pair, by `hook`, with buckets of 10 µs."""
    return agent_command(host, folder, "--bucket", "10us", "--hook", hook, "--collector", address)


@contextlib.contextmanager
def agent_alone(watched: Pair, folder: Path) -> Iterator[Callable[[], Account]]:
    """An agent on the receiver, and a sink outside that only acknowledges: the agent without its collector."""
    address, report = f"unix:{folder / 'sink.sock'}", folder / "sink.json"
    listen = ["nice", "-n", "19", sys.executable, "-m", "netmon.bench.observers", address, str(report)]
    notify = folder / "notify-agent.sock"
    watch = watching(watched.receiver, "tc", address, folder)
    with (
        Process("sink", listen, folder) as sink,
        Process("agent", watch, folder, host=watched.receiver, notify=notify) as agent,
    ):
        sink.wait_output(LISTENS, _READY_SECONDS)
        agent.wait_ready(_READY_SECONDS)

        def account() -> Account:
            for process in (agent, sink):
                process.check_running()
                process.end_in_order(seconds=_END_SECONDS)
            received = read_report(report)
            lost = sum(received.total(f"lost_{where}_wire_bytes") for where in ("kernel", "agent"))
            wire_bytes = received.total("wire_bytes")
            return Account(received.records, lost, received.record_bytes, wire_bytes, "bytes", received.bytes)

        yield account


@contextlib.contextmanager
def _netmon(hook: str, both: bool, watched: Pair, folder: Path) -> Iterator[Callable[[], Account]]:
    """An agent on the receiver by `hook`, one on the sender too where `both`, and a collector outside."""
    # A Unix socket crosses network namespaces: not a byte of netmon's own is on the link.
    address, data = f"unix:{folder / 'collector.sock'}", folder / "data"
    with contextlib.ExitStack() as stack:

        def start(name: str, command: Sequence[str], host: Host | None = None) -> Process:
            notify = folder / f"notify-{name}.sock"
            process = stack.enter_context(Process(name, command, folder, host=host, notify=notify))
            process.wait_ready(_READY_SECONDS)
            return process

        def agent(host: Host, by: str) -> Process:
            return start(f"agent-{host.name}", watching(host, by, address, folder), host)

        # In a cluster the collector is on another machine: here it gets what the others leave.
        collector = start("collector", ["nice", "-n", "19", *collector_command(address, data)])
        agents = [agent(watched.receiver, hook), *([agent(watched.sender, "tc")] if both else [])]

        def account() -> Account:
            for process in (*agents, collector):
                process.check_running()
                process.end_in_order(seconds=_END_SECONDS)
            return _of_dataset(data, watched.receiver.name)

        yield account


def _of_dataset(data: Path, receiver: str) -> Account:
    """Records and losses of all agents; seen and all traffic at the receiver, where tcpdump counts too.

    (With XDP on its peer, a veth's own counter is of packets that were cut after the sender's hook: no yardstick.)
    """
    tables = Tables(data)
    ledger = tables.read("ledger")
    here = ledger[ledger["host"] == receiver]
    return Account(
        records=tables.rows("buckets"),
        lost=int(ledger["lost_kernel_bytes"].sum() + ledger["lost_agent_bytes"].sum()),
        seen=int(here["attributed_bytes"].sum()),
        all_traffic=int(here["nic_bytes"].sum()),
        unit="bytes",
    )


@contextlib.contextmanager
def _tcpdump(watched: Pair, folder: Path) -> Iterator[Callable[[], Account]]:
    """On the receiver, as the studies did it: the first 150 bytes of every packet into a file."""
    # It writes as root (-Z): the folder is root's.
    command = ["tcpdump", "-i", INTERFACE, "-n", "-s", "150", "-Z", "root", "-w", str(folder / "capture.pcap")]
    with Process("tcpdump", command, folder, host=watched.receiver) as process:
        process.wait_output("listening on", _READY_SECONDS)

        def account() -> Account:
            process.check_running()
            process.end_in_order(seconds=_END_SECONDS)
            if not (drops := _DROPS.search(process.output())):
                raise LabError(f"what tcpdump dropped is unknown: it ended without a report; see {process.log}")
            captured, received, dropped = map(int, drops.groups())
            # What is received but neither captured nor dropped still waited in its buffer when it was stopped.
            return Account(captured, dropped, received - dropped, received, "packets")

        yield account


OBSERVERS: dict[str, Observer] = {
    "nothing": _nobody,
    "programs": _programs,
    "tc": partial(_netmon, "tc", True),
    "tc_receiver": partial(_netmon, "tc", False),
    "agent": agent_alone,
    "xdp": partial(_netmon, "xdp", True),
    "tcpdump": _tcpdump,
}
"""By kind, the undisturbed one first."""


if __name__ == "__main__":
    serve_sink(*sys.argv[1:])
