# SPDX-License-Identifier: Apache-2.0
"""The reading end with 128 CPUs whose slots have all been used: exact, and its work grows with what is active.

Work is counted in bytes of memory that a drain needs at its peak: whatever goes over a table copies a column of it.
"""

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from netmon.bench.drain import SimulatedCpus
from netmon.kernel.meter.memory import choose_geometry
from netmon.kernel.meter.meter import STALE_NS, Drained

LINK = 1 << 1
LEAST_COLUMN = 128 * 1024
"""Bytes of a column of the smallest elements of every slot."""

LATER = STALE_NS + 1_000_000


class LossyCpus(SimulatedCpus):
    def lose_buckets(self, slots: np.ndarray, now_ns: int) -> None:
        """As next_buckets where the rings are full."""
        taken, links = self.memory.slots[slots], self.memory.slots["key"]["link_protocol"][slots] >> 8
        cpus = slots // self.geometry.slots
        for name in ("packets", "wire_bytes", "payload_bytes"):
            np.add.at(self.memory.ledger[f"lost_{name}"], (cpus, links), taken[name])
        self.open_buckets(slots, now_ns)
        self.memory.slots["losses"][slots] += 1
        np.add.at(self.memory.producers["losses"], cpus, 1)


class Host:
    """Simulated CPUs, and what their meter has delivered."""

    def __init__(self, cpus: int = 128, slots: int = 1024) -> None:
        self.cpus = LossyCpus(choose_geometry(10_000, slots=slots, cpus=cpus))
        self.now, self.sent = 1_000_000_000, 0
        self.packets: dict[int, int] = {}
        self.all = np.arange(cpus * slots - 1)  # one is left
        self.cpus.open_flows(self.all, self.now)
        self.sent += len(self.all)
        self.drain()

    def drain(self) -> Drained:
        drained = self.cpus.meter.drain(self.now)
        for flow_id, packets in drained.buckets[["flow_id", "packets"]].tolist():
            self.packets[flow_id] = self.packets.get(flow_id, 0) + packets
        self.cpus.meter.rows.shrink(0)
        return drained

    def wait(self) -> None:
        self.now += LATER

    def close(self, slots: np.ndarray, how: Callable[[np.ndarray, int], None]) -> None:
        self.now += 10_000
        how(slots, self.now)
        self.sent += len(slots)

    def check(self) -> None:
        account = self.cpus.meter.ledger()[LINK]
        assert account["packets"] == self.sent
        assert sum(self.packets.values()) + account["lost_packets"] == self.sent


def peak_bytes(work: Callable[[], object]) -> int:
    """Of memory, during the call."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    work()
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    return peak


@pytest.fixture(scope="module")
def quiet() -> Host:
    host = Host()
    host.wait()
    host.drain()
    assert host.packets == dict.fromkeys(range(1, len(host.all) + 1), 1)
    return host


def test_an_idle_host_costs_a_look_at_its_cpus(quiet: Host) -> None:
    assert quiet.cpus.meter.slots.live == 0
    quiet.wait()
    assert peak_bytes(quiet.drain) < LEAST_COLUMN // 4
    quiet.check()


def test_a_busy_host_costs_its_records_not_its_slots(quiet: Host) -> None:
    few = quiet.all[:: len(quiet.all) // 256]
    for _ in range(3):
        quiet.close(few, quiet.cpus.next_buckets)
        assert peak_bytes(quiet.drain) < LEAST_COLUMN
        assert quiet.cpus.meter.slots.live == len(few)
    quiet.wait()
    quiet.drain()
    assert quiet.cpus.meter.slots.live == 0
    quiet.check()


def test_a_new_flow_costs_itself(quiet: Host) -> None:
    quiet.close(quiet.all[-1:] + 1, quiet.cpus.open_flows)
    assert peak_bytes(quiet.drain) < LEAST_COLUMN // 4
    quiet.wait()
    quiet.drain()
    quiet.check()


def test_what_was_taken_and_then_lost_is_found_again() -> None:
    host = Host(cpus=64)
    host.wait()
    host.drain()
    unlucky = host.all[5::1000]
    host.close(unlucky, host.cpus.lose_buckets)  # the bucket that was taken: counted as lost, though delivered
    host.drain()
    assert host.cpus.meter.ledger()[LINK]["lost_packets"] == 0
    assert host.cpus.meter.slots.live == len(unlucky)
    host.wait()
    host.drain()
    assert host.cpus.meter.slots.live == 0
    host.check()
    assert sum(host.packets.values()) == host.sent


def test_a_later_record_tells_of_the_loss_as_well() -> None:
    host = Host(cpus=64)
    host.wait()
    host.drain()
    unlucky = host.all[7::999]
    host.close(unlucky, host.cpus.lose_buckets)
    host.close(unlucky, host.cpus.next_buckets)
    host.drain()
    host.wait()
    host.drain()
    host.check()
    assert sum(host.packets.values()) == host.sent


def test_random_histories_add_up() -> None:
    rng = np.random.default_rng(1)
    host = Host(cpus=64)
    steps = (host.cpus.next_buckets, host.cpus.lose_buckets)
    for _ in range(300):
        slots = np.sort(rng.choice(host.all, rng.integers(1, 200), replace=False))
        host.close(slots, steps[int(rng.random() < 0.3)])
        if rng.random() < 0.2:
            host.wait()
        if rng.random() < 0.6:
            host.drain()
    host.wait()
    host.drain()
    host.check()


def test_memory_is_divided_among_the_cpus() -> None:
    for cpus in (1, 2, 16, 64, 128, 512):
        geometry = choose_geometry(10_000, cpus=cpus)
        assert cpus * geometry.slots * 64 <= 64 << 20
        assert cpus * geometry.ring_records * 24 <= 50 << 20
        assert cpus * geometry.flow_records * 48 <= 25 << 20


def test_a_record_that_comes_after_the_next_bucket_was_taken_says_nothing_of_that_one() -> None:
    """The machine stood still: a bucket is old when it is opened, and is taken before the last record is there."""
    host = Host(cpus=1)
    slots = np.array([5])
    host.close(slots, host.cpus.next_buckets)
    host.drain()
    position = host.cpus.memory.producers["buckets"]
    host.close(slots, host.cpus.next_buckets)  # the record is there, and not published
    position[0] -= 1
    host.wait()
    host.drain()  # takes the new bucket
    position[0] += 1
    host.drain()
    host.close(slots, host.cpus.next_buckets)  # the taken one's own record
    host.drain()
    host.wait()
    host.drain()
    host.check()
    assert host.cpus.meter.ledger()[LINK]["lost_packets"] == 0


def test_buckets_of_a_flow_that_nobody_has_told_of_are_lost_and_cost_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    host = Host(cpus=2)
    host.close(np.array([5]), host.cpus.next_buckets)
    host.cpus.memory.buckets[0, 0, 2] |= np.uint64(7) << np.uint64(32)
    host.close(np.array([6, 1500]), host.cpus.next_buckets)
    host.close(host.all[-1:] + 1, host.cpus.open_flows)  # a change, among which it is looked for
    host.drain()
    assert host.cpus.meter.ledger()[LINK]["lost_packets"] == 1
    (said,) = caplog.messages
    assert said.endswith("slot 5, generation 7 where 0 is known")
    host.close(np.array([5, 6]), host.cpus.next_buckets)
    host.cpus.memory.buckets[0, 2, 2] |= np.uint64(7) << np.uint64(32)
    host.drain()  # no change any more
    assert host.cpus.meter.ledger()[LINK]["lost_packets"] == 2
    host.wait()
    host.drain()
    host.check()
    assert caplog.messages == [said]
