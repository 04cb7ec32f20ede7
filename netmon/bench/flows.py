# SPDX-License-Identifier: Apache-2.0
"""What new flows cost: so many a second, one frame each, at the receiver of a pair, with an agent and a collector."""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from netmon.bench.observers import Pair, fresh_folder, pair, watching
from netmon.bench.result import figures_table
from netmon.bench.specs import FlowsSpec, Progress, silent
from netmon.bench.traffic import FRAME_BYTES
from netmon.history.dataset import Tables, read_rows
from netmon.lab.network import INTERFACE, processes_in, run_tool
from netmon.lab.process import Process, collector_command, memory_bytes, process_seconds
from netmon.terminal import FittingTable
from netmon.units import format_bytes

_READY_SECONDS = 60
_END_SECONDS = 120
_MOST_FLOWS = 65_536 * 64_000  # addresses times ports
_LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class FlowsResult:
    """CPU as fractions of one core; memory: the most seen, all processes of the agent, as PSS and as RSS.

    described, aggregates: flows and aggregates of them in the dataset. Of the packets that were sent: dropped ones the
    link did not deliver, overflow and lost ones are in the dataset's ledger as such, missing ones are nowhere there.
    spooled: what the agent kept in files when it ended, because the collector had not acknowledged it by then; another
    agent has sent it since. refused: batches that the collector did not take in.
    """

    seconds: float
    flows_per_s: float
    flows: int
    agent_cpu_fraction: float
    agent_bytes: int
    agent_resident_bytes: int
    collector_cpu_fraction: float
    collector_bytes: int
    described: int
    aggregates: int
    members: int
    dropped_packets: int
    overflow_packets: int
    lost_packets: int
    missing_packets: int
    spooled_bytes: int
    refused_batches: int
    coverage: float

    def shown(self) -> Iterator[FittingTable]:
        memory = f"{format_bytes(self.agent_bytes)}; {format_bytes(self.agent_resident_bytes)}"
        yield figures_table(
            f"{self.flows_per_s:,.0f} new flows a second for {self.seconds:.0f} s, one frame each",
            [
                ("agent, of a core", f"{100 * self.agent_cpu_fraction:.1f} %"),
                ("agent, memory (PSS; RSS)", memory),
                ("collector, of a core", f"{100 * self.collector_cpu_fraction:.1f} %"),
                ("collector, memory (PSS)", format_bytes(self.collector_bytes)),
                ("flows described", f"{self.described:,}"),
                ("aggregates", f"{self.aggregates:,} of {self.members:,} flows"),
                ("packets that the link dropped", f"{self.dropped_packets:,}"),
                ("packets in the ledger's overflow", f"{self.overflow_packets:,}"),
                ("packets in the ledger as lost", f"{self.lost_packets:,}"),
                ("packets missing in the dataset", f"{self.missing_packets:,}"),
                ("sent by another agent, as it waited at the end", format_bytes(self.spooled_bytes)),
                ("batches refused", f"{self.refused_batches:,}"),
                ("coverage", f"{self.coverage:.3%}"),
            ],
        )


def measure(spec: FlowsSpec, progress: Progress = silent) -> FlowsResult:
    """Blocks for some ten seconds longer. Raises LabError. Everything it made is gone afterwards."""
    with pair() as hosts, fresh_folder() as folder:
        return _measure(hosts, folder, spec.rate, spec.seconds, progress)


def _measure(hosts: Pair, folder: Path, per_s: int, seconds: float, progress: Progress) -> FlowsResult:
    address, data = f"unix:{folder / 'collector.sock'}", folder / "data"
    collect, watch = collector_command(address, data), watching(hosts.receiver, "tc", address, folder)
    flows = min(round(per_s * seconds), _MOST_FLOWS)
    what = [INTERFACE, *_addresses(hosts), str(flows), str(per_s)]
    send = [sys.executable, "-m", "netmon.bench.traffic", "flood", *what]
    with (
        Process("collector", collect, folder, notify=folder / "notify-collector") as collector,
        Process("agent", watch, folder, host=hosts.receiver, notify=folder / "notify-agent") as agent,
    ):
        collector.wait_ready(_READY_SECONDS)
        agent.wait_ready(_READY_SECONDS)
        agents, collectors = processes_in(hosts.receiver.namespace), [collector.pid]
        used, begin = (process_seconds(agents), process_seconds(collectors)), time.monotonic()
        most = [0, 0, 0]
        with Process("flood", send, folder, host=hosts.sender) as flood:
            while flood.status() is None:
                time.sleep(_LOOK_SECONDS)
                now = (memory_bytes(agents, "Pss"), memory_bytes(agents, "Rss"), memory_bytes(collectors, "Pss"))
                most = [max(pair_) for pair_ in zip(most, now, strict=True)]
                progress(min(1, (time.monotonic() - begin) / seconds), 1)
            flood.check()
        dropped = _dropped(hosts)
        elapsed = time.monotonic() - begin
        cpu = process_seconds(agents) - used[0], process_seconds(collectors) - used[1]
        agent.end_in_order(seconds=_END_SECONDS)
        spool = folder / f"spool-{hosts.receiver.name}"
        spooled = sum(path.stat().st_size for path in spool.glob("*.spool*"))
        if spooled:
            notify = folder / "notify-successor"
            with Process("successor", watch, folder, host=hosts.receiver, notify=notify) as successor:
                _send_the_rest(spool, successor)
        collector.end_in_order(seconds=_END_SECONDS)
    return FlowsResult(
        seconds=elapsed,
        flows_per_s=flows / elapsed,
        flows=flows,
        agent_cpu_fraction=cpu[0] / elapsed,
        agent_bytes=most[0],
        agent_resident_bytes=most[1],
        collector_cpu_fraction=cpu[1] / elapsed,
        collector_bytes=most[2],
        dropped_packets=dropped,
        spooled_bytes=spooled,
        refused_batches=len(list(spool.glob("refused/*.batch"))),
        **_of_dataset(data, flows - dropped),
    )


def _addresses(hosts: Pair) -> list[str]:
    """Of hardware, the sender's and the receiver's, and the receiver's own."""
    links = [
        json.loads(run_tool(["ip", "-n", host.namespace, "-json", "link", "show", INTERFACE]))[0]
        for host in (hosts.sender, hosts.receiver)
    ]
    return [*(link["address"] for link in links), hosts.receiver.address]


def _dropped(hosts: Pair) -> int:
    """Packets that the sender's end of the link had no room for."""
    command = ["ip", "-n", hosts.sender.namespace, "-json", "-statistics", "link", "show", INTERFACE]
    return int(json.loads(run_tool(command))[0]["stats64"]["tx"]["dropped"])


def _send_the_rest(spool: Path, successor: Process) -> None:
    """What an agent could not send in time is its successor's to send."""
    successor.wait_ready(_READY_SECONDS)
    end = time.monotonic() + _END_SECONDS
    while len(list(spool.glob("*.spool"))) > 1 and time.monotonic() < end:  # one is its own
        time.sleep(_LOOK_SECONDS)
    successor.end_in_order(seconds=_END_SECONDS)


def _of_dataset(data: Path, delivered: int) -> dict[str, Any]:
    """delivered: packets of the flood, which are all that comes in but for a few."""
    tables = Tables(data)
    flows = tables.read("flows")
    udp = flows[flows["protocol"] == 17]
    members = udp["members"].fillna(0)
    session = udp["session"].iloc[0]  # another agent may have sent what the first one could not
    of_flood = (ds.field("session") == session) & ds.field("flow_id").isin(udp["flow_id"].tolist())
    packets = read_rows(data, "buckets", ["packets"], of_flood)["packets"].sum()
    ledger = tables.read("ledger")
    received = ledger[ledger["direction"] == "rx"]
    overflow, lost = (
        round(sum(int(received[f"{name}_bytes"].sum()) for name in names) / FRAME_BYTES)
        for names in (("overflow",), ("lost_kernel", "lost_agent"))
    )
    return {
        "described": int((members == 0).sum()),
        "aggregates": int((members > 0).sum()),
        "members": int(members.sum()),
        "overflow_packets": overflow,
        "lost_packets": lost,
        "missing_packets": delivered - int(packets) - overflow - lost,
        "coverage": float(ledger["attributed_bytes"].sum() / ledger["nic_bytes"].sum()),
    }
