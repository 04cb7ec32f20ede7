# SPDX-License-Identifier: Apache-2.0
"""More than the rings and the table can take: bytes are attributed, overflowed or lost, and the three add up."""

import dataclasses
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Mapping

import numpy as np
import pytest

from netmon.bench.kernel import LOOPBACK, PROGRAMS, Yardsticks, frame
from netmon.kernel import loader
from netmon.kernel.bpf_calls import dry_run
from netmon.kernel.meter.flow_numbers import EVERY, FlowNumbers
from netmon.kernel.meter.memory import choose_geometry, map_memory
from netmon.kernel.meter.meter import STALE_NS, Meter
from netmon.kernel.watching import number_interface
from netmon.records import Direction

pytestmark = pytest.mark.kernel

CPUS = sorted(os.sched_getaffinity(0))
RECORDS = 128
FRAME = frame(size=200)
SIZES = {"packets": 1, "wire_bytes": len(FRAME), "payload_bytes": len(FRAME) - 54}
LINK = 7
"""The number of the loopback, on which test runs are."""


def _direction(program: str) -> Direction:
    return Direction.TX if program == "tc_egress" else Direction.RX


class Overloaded:
    """A meter with rings of 128 records, and what it has delivered."""

    def __init__(self, bucket_ns: int = 1000, ring_records: int = RECORDS, flow_records: int = RECORDS) -> None:
        usual = choose_geometry(bucket_ns, interfaces=LINK)
        geometry = dataclasses.replace(usual, ring_records=ring_records, flow_records=flow_records)
        self.programs = loader.load(geometry)
        number_interface(self.programs["interfaces"], LOOPBACK, LINK)
        self.meter = Meter(map_memory(self.programs, geometry), geometry, FlowNumbers(EVERY))
        self.yardsticks = Yardsticks()
        self.delivered: Counter[tuple[int, str]] = Counter()  # link, count
        self.links = np.zeros(1, np.int64)  # of flows, by id

    def send(self, program: str, packets: int, flows: int) -> None:
        self.yardsticks.aim(program, self.programs[PROGRAMS[program]], flows)
        dry_run(self.yardsticks.program("turn", program), FRAME, packets)

    def drain(self, ahead_ns: int = 0) -> None:
        drained = self.meter.drain(time.monotonic_ns() + ahead_ns)
        directions = drained.new.keys["link_protocol"] >> 8 & 1
        self.links = np.append(self.links, LINK << 1 | directions)  # their ids follow each other
        of_rows = self.links[drained.buckets["flow_id"]]
        for link in np.unique(of_rows).tolist():
            for name in SIZES:
                self.delivered[link, name] += int(drained.buckets[name][of_rows == link].sum())
        self.meter.rows.shrink(0)

    def settle(self) -> None:
        """Delivers what is still open: a drain ends what is in the rings, a later one takes what went quiet."""
        self.drain()
        time.sleep(STALE_NS / 1e9 + 0.01)
        self.drain()

    def check(self, packets: Mapping[str, int]) -> dict[str, int]:
        """Every packet sent by each program is in exactly one place of its link: packets, wire and payload bytes.

        Returns the account of both directions together.
        """
        links = self.meter.ledger()
        assert links.keys() == {LINK << 1 | _direction(program) for program in packets}
        for program, count in packets.items():
            link = LINK << 1 | _direction(program)
            assert links[link]["frames"] == links[link]["packets"] == count
            assert links[link]["wire_bytes"] == count * len(FRAME)
            for name, size in SIZES.items():
                lost = links[link][f"overflow_{name}"] + links[link][f"lost_{name}"]
                assert self.delivered[link, name] + lost == count * size, (program, name)
        return {name: sum(link[name] for link in links.values()) for name in links[link]}


def test_a_flood_of_a_million_flows_is_accounted_for() -> None:
    overloaded = Overloaded()
    for _ in range(10):
        overloaded.send("xdp", 100_000, 1 << 20)
        overloaded.drain()
    overloaded.settle()
    account = overloaded.check({"xdp": 1_000_000})
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
    account = overloaded.check({"tc_ingress": sent})
    assert account["lost_packets"] > 0
    lost = account["lost_packets"]
    for _ in range(50):
        overloaded.send("tc_ingress", 16, 16)
        overloaded.drain()
    overloaded.settle()
    assert overloaded.check({"tc_ingress": sent + 50 * 16})["lost_packets"] == lost


def test_what_was_taken_out_of_a_slot_is_not_counted_as_lost_again() -> None:
    """Buckets that went quiet are delivered; then the ring is full when their flows come back."""
    overloaded = Overloaded()
    overloaded.send("tc_egress", 16, 16)
    overloaded.settle()
    assert overloaded.delivered[LINK << 1 | Direction.TX, "packets"] == 16
    sent = 16
    for _ in range(20):
        overloaded.send("tc_egress", 100_000, 64)
        sent += 100_000
        if random.random() < 0.5:
            overloaded.settle()
    overloaded.settle()
    overloaded.check({"tc_egress": sent})


def test_what_is_lost_is_lost_to_its_own_link() -> None:
    """Flows of one direction displace those of the other while nobody drains: the displaced ones' bytes are lost."""
    overloaded = Overloaded(flow_records=1 << 14)
    sent = {"xdp": 0, "tc_egress": 0}
    for round_ in range(6):
        for program in sent:
            overloaded.send(program, 16_384, 1 << 20)
            sent[program] += 16_384
            if round_ % 2:
                overloaded.drain()
    overloaded.settle()
    assert overloaded.check(sent)["lost_packets"] > 0


@pytest.mark.skipif(len(CPUS) < 2, reason="one CPU")
@pytest.mark.parametrize(("records", "flows"), [(128, 64), (128, 1 << 20), (1 << 14, 1 << 20)])
def test_two_cpus_at_once(records: int, flows: int) -> None:
    """Their buckets are taken out of their slots all the while, as if each were old, also under the programs' hands."""
    overloaded = Overloaded(ring_records=records, flow_records=records)
    front = overloaded.yardsticks.program("turn", "xdp")
    overloaded.yardsticks.aim("xdp", overloaded.programs[PROGRAMS["xdp"]], flows)

    def send(cpu: int) -> None:
        os.sched_setaffinity(0, {cpu})
        for _ in range(40):
            dry_run(front, FRAME, 5_000)

    senders = [threading.Thread(target=send, args=(cpu,)) for cpu in CPUS[:2]]
    for sender in senders:
        sender.start()
    while any(sender.is_alive() for sender in senders):
        overloaded.drain(ahead_ns=2 * STALE_NS)
    overloaded.settle()
    overloaded.check({"xdp": 2 * 40 * 5_000})


def test_memory_stays_bounded() -> None:
    overloaded = Overloaded()
    for _ in range(40):
        overloaded.send("xdp", 50_000, 1 << 20)
        overloaded.drain()
    assert len(overloaded.meter.rows) == 0
    geometry = overloaded.meter.geometry
    assert geometry.ring_records == geometry.flow_records == RECORDS
