# SPDX-License-Identifier: Apache-2.0
"""More than the rings and the table can take: bytes are attributed, overflowed or lost, and the three add up."""

import dataclasses
import random
import time

import pytest

from netmon.bench.rig import PROGRAMS, Yardsticks, frame
from netmon.kernel import loader
from netmon.kernel.bpf_calls import dry_run
from netmon.kernel.meter.geometry import choose_geometry
from netmon.kernel.meter.meter import STALE_NS, Meter

pytestmark = pytest.mark.kernel

PAGE = 4096
FRAME = frame(size=200)


class Overloaded:
    """A meter with rings of one page, and what it has delivered."""

    def __init__(self, bucket_ns: int = 1000) -> None:
        usual = choose_geometry(bucket_ns, [1])
        geometry = dataclasses.replace(usual, ring_bytes=PAGE, flow_ring_bytes=PAGE)
        self.programs = loader.load(geometry)
        self.meter = Meter(self.programs, geometry)
        self.yardsticks = Yardsticks()
        self.delivered = [0, 0, 0]

    def send(self, program: str, packets: int, flows: int) -> None:
        self.yardsticks.aim(program, self.programs[PROGRAMS[program]], flows)
        dry_run(self.yardsticks.program("turn", program), FRAME, packets)

    def drain(self) -> None:
        rows = self.meter.drain(time.monotonic_ns()).buckets
        for i, name in enumerate(("packets", "wire_bytes", "payload_bytes")):
            self.delivered[i] += int(rows[name].sum())
        self.meter.rows.shrink(0)

    def settle(self) -> None:
        """Delivers what is still open: a drain ends what is in the rings, a later one takes what went quiet."""
        self.drain()
        time.sleep(STALE_NS / 1e9 + 0.01)
        self.drain()

    def account(self) -> dict[str, int]:
        counters = self.meter.ledger().values()
        return {name: sum(link[name] for link in counters) for name in next(iter(counters))}

    def check(self, packets: int) -> dict[str, int]:
        """Every packet sent is in exactly one place, in packets, wire bytes and payload bytes."""
        account = self.account()
        assert account["frames"] == packets
        sizes = {"packets": 1, "wire_bytes": len(FRAME), "payload_bytes": len(FRAME) - 54}
        for i, (name, size) in enumerate(sizes.items()):
            assert self.delivered[i] + account[f"overflow_{name}"] + account[f"lost_{name}"] == packets * size, name
        return account


def test_a_flood_of_a_million_flows_is_accounted_for() -> None:
    overloaded = Overloaded()
    for _ in range(10):
        overloaded.send("xdp", 100_000, 1 << 20)
        overloaded.drain()
    overloaded.settle()
    account = overloaded.check(1_000_000)
    assert account["overflow_packets"] > 0


def test_a_drain_that_stalls_loses_visibly_and_recovers() -> None:
    overloaded = Overloaded()
    overloaded.send("tc_ingress", 16, 16)
    overloaded.drain()
    sent = 16
    for _ in range(50):  # half a second and more, in buckets of a microsecond, into a ring of 128 records
        overloaded.send("tc_ingress", 100_000, 16)
        sent += 100_000
    overloaded.settle()
    account = overloaded.check(sent)
    assert account["lost_packets"] > 0
    lost = account["lost_packets"]
    for _ in range(50):
        overloaded.send("tc_ingress", 16, 16)
        overloaded.drain()
    overloaded.settle()
    assert overloaded.check(sent + 50 * 16)["lost_packets"] == lost


def test_what_was_taken_out_of_a_slot_is_not_counted_as_lost_again() -> None:
    """Buckets that went quiet are delivered; then the ring is full when their flows come back."""
    overloaded = Overloaded()
    overloaded.send("tc_egress", 16, 16)
    overloaded.settle()
    assert overloaded.delivered[0] == 16
    sent = 16
    for _ in range(20):
        overloaded.send("tc_egress", 100_000, 64)
        sent += 100_000
        if random.random() < 0.5:
            overloaded.settle()
    overloaded.settle()
    overloaded.check(sent)


def test_memory_stays_bounded() -> None:
    overloaded = Overloaded()
    for _ in range(40):
        overloaded.send("xdp", 50_000, 1 << 20)
        overloaded.drain()
    assert len(overloaded.meter.rows) == 0
    geometry = overloaded.meter.geometry
    assert geometry.ring_bytes == geometry.flow_ring_bytes == PAGE
