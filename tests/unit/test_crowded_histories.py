# SPDX-License-Identifier: Apache-2.0
"""Random histories of crowded hosts, from the slots to the batches, with minutes between two packets of a flow.

Flows are described, put into aggregates, forgotten, and come back while slots change hands: every packet is in one row
of a flow that is known, or in one counter.
"""

from collections import Counter

import numpy as np
import pytest
from slot_machine import SlotMachine

from netmon.agent import flow_owners as flow_module
from netmon.agent.flow_owners import AggregateFlows, FlowOwners, RecentFlows, describe_flows, distinct_ids
from netmon.agent.pressure import Backlog, Resolution
from netmon.agent.spool import link_totals
from netmon.kernel.meter import flow_numbers, meter
from netmon.kernel.meter.flow_numbers import FlowLimit, FlowNumbers
from netmon.kernel.meter.memory import Geometry
from netmon.kernel.meter.meter import STALE_NS, Meter
from netmon.kernel.sock_diag import packed_address
from netmon.records import FLOW_KEY, Direction, Flow, Table

MS, S = 1_000_000, 1_000_000_000
GEOMETRY = Geometry(10_000, cpus=2, slots=32, links=1, ring_records=64, flow_records=32, step_ring_bytes=4096)
BUDGET = FlowLimit(per_s=3, burst=20, alive=60)
PREFIXES, HOSTS, PORTS = 6, 5, 6
PACKETS = 12_000


def all_keys() -> Table:
    names = [
        (packed_address(f"198.51.{prefix}.{host}"), packed_address("192.0.2.1"), 1000 + port, 9, 1 << 9 | 17)
        for prefix in range(PREFIXES)
        for host in range(1, 1 + HOSTS)
        for port in range(PORTS)
    ]
    return np.array(names, FLOW_KEY)


def prefix(address: str) -> str:
    return address.rpartition(".")[0]


class Host:
    """What an agent does between the kernel and its spool. Programs run while it reads."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.kernel, self.keys = SlotMachine(GEOMETRY), all_keys()
        self.meter = Meter(self.kernel.memory, GEOMETRY, FlowNumbers(BUDGET))
        self.meter._fence = self.meter.slots._fence = self._meanwhile
        self.aggregates = AggregateFlows(self.meter.numbers.aggregates.by_id)
        self.owners, self.recent = FlowOwners(), RecentFlows()
        self.resolution = Resolution(GEOMETRY.bucket_ns, MS, None)
        self.now, self.asked_ns = 1_000 * S, 0
        self.told: dict[int, Flow] = {}
        self.rows: Counter[int] = Counter()  # packets by flow id
        self.runs = True

    def packets(self, count: int) -> None:
        for _ in range(count):
            key = self.keys[int(len(self.keys) * self.random.random() ** 2)]  # some are seen more often than others
            cpu, size = int(self.random.integers(GEOMETRY.cpus)), int(self.random.choice((60, 60, 60, 9000)))
            self.now += int(self.random.integers(0, 20_000))
            self.kernel.packet(key, cpu, self.now, size)

    def _meanwhile(self) -> None:
        if self.runs:
            self.packets(int(self.random.integers(0, 3)))

    def drain(self) -> None:
        now = self.now
        self.owners.add(describe_flows(self.meter.drain(now), now), now)

    def send(self, last: bool = False) -> None:
        now = self.now
        rows = self.meter.rows.table()
        seen = distinct_ids(rows["flow_id"])
        self.owners.add(self.aggregates.described(seen, now, last=last), now)
        horizon = now - STALE_NS - GEOMETRY.bucket_ns
        streamed = self.resolution.stream(rows, horizon, Backlog(requested_ns=self.asked_ns), last)
        self.told |= {flow.flow_id: flow for flow in self.owners.changed()}
        counted = link_totals(streamed.buckets, self.owners.flows)
        assert counted["packets"].sum() == streamed.buckets["packets"].sum()
        for flow_id, packets in streamed.buckets[["flow_id", "packets"]].tolist():
            assert flow_id in self.told
            self.rows[flow_id] += packets
        over = self.recent.over(seen, now, self.owners.flows)
        self.owners.forget(over)
        self.meter.rows.shrink(0)
        self.meter.forget(over)

    def finish(self) -> None:
        self.runs = False
        self.now += S
        self.drain()
        self.send(last=True)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_every_packet_has_its_row_or_is_counted(monkeypatch: pytest.MonkeyPatch, seed: int, compiled: bool) -> None:
    if not compiled:
        monkeypatch.setattr(flow_numbers, "compiled", None)
        for module in (flow_numbers, meter):
            monkeypatch.setattr(module, "_compiled", None)
    for name, value in (("_MANY", 25), ("_CROWDED_IDLE_NS", 2 * S), ("_CROWDED_SWEEP_NS", S // 2), ("_SWEEP_NS", S)):
        monkeypatch.setattr(flow_module, name, value)
    host = Host(seed)
    while host.kernel.sent.total() < PACKETS:
        host.packets(int(host.random.integers(0, 120)))
        rest = host.random.choice((0, MS, 40 * MS, 300 * MS, 3 * S, 400 * S), p=(0.4, 0.2, 0.2, 0.14, 0.05, 0.01))
        host.now += int(rest)
        if host.random.random() < 0.8:
            host.drain()
        if host.random.random() < 0.5:
            host.asked_ns = int(host.random.choice((0, 0, 5 * MS, 20 * MS)))
            host.send()
    host.finish()
    kernel, sent = host.kernel, host.kernel.sent.total()
    account = host.meter.ledger()[1 << 1 | Direction.RX]
    assert account["packets"] == sent
    assert account["overflow_packets"] == kernel.overflow
    assert host.rows.total() + account["overflow_packets"] + account["lost_packets"] == sent
    assert account["lost_packets"] <= kernel.lost
    check_flows(host)


def check_flows(host: Host) -> None:
    """No row is of another flow, or of another prefix's aggregate."""
    sent = Counter[tuple[str, int]]()
    of_prefix = Counter[str]()
    for raw, packets in host.kernel.sent.items():
        key = np.frombuffer(raw, FLOW_KEY)[0]
        address = ".".join(str(byte) for byte in bytes(key["src"])[12:])
        sent[address, int(key["src_port"])] += packets
        of_prefix[prefix(address)] += packets
    told, rows = Counter[tuple[str, int]](), Counter[str]()
    for flow_id, packets in host.rows.items():
        flow = host.told[flow_id]
        rows[prefix(flow.src)] += packets
        if not flow.members:
            told[flow.src, flow.src_port] += packets
    assert all(packets <= sent[flow] for flow, packets in told.items())
    assert all(packets <= of_prefix[name] for name, packets in rows.items())
    assert sum(flow.members > 0 for flow in host.told.values()) == PREFIXES
    assert len(host.told) > 3 * BUDGET.burst
