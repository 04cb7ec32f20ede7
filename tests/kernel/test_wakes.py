# SPDX-License-Identifier: Apache-2.0
"""The kernel's programs end a sleep where they have what is waited for, once, and otherwise leave it alone."""

import os
import select
import time
from collections.abc import Iterator

import pytest
from crafted import ip4
from scapy.layers.inet import TCP
from scapy.layers.l2 import Ether

from netmon.kernel import bpf_calls, loader
from netmon.kernel.meter.flow_numbers import EVERY, FlowNumbers
from netmon.kernel.meter.memory import WAKES, Wakes, choose_geometry, map_memory
from netmon.kernel.meter.meter import Meter

pytestmark = pytest.mark.kernel

BUCKET_NS = 10_000


class Sleeper:
    def __init__(self) -> None:
        self.geometry = choose_geometry(BUCKET_NS)
        self.descriptors = loader.load(self.geometry)
        memory = map_memory(self.descriptors, self.geometry)
        self.meter = Meter(memory, self.geometry, FlowNumbers(EVERY))
        self.wakes = Wakes(self.descriptors[WAKES], memory, self.geometry)
        self.poll = select.epoll()
        self.poll.register(self.wakes.descriptor, select.EPOLLIN)

    def run(self, port: int, packets: int = 1, apart_s: float = 0.0001) -> None:
        """Packets of one flow, each in a bucket of its own."""
        frame = bytes(Ether(dst="02:00:00:00:00:02", src="02:00:00:00:00:01") / ip4() / TCP(sport=port, dport=2000))
        for _ in range(packets):
            bpf_calls.dry_run(self.descriptors["meter_tc_ingress"], frame, 1, b"")
            time.sleep(apart_s)

    def drain(self) -> None:
        time.sleep(0.05)
        self.meter.drain(time.monotonic_ns())
        self.meter.rows.shrink(0)

    @property
    def woken(self) -> bool:
        return bool(self.poll.poll(0.2))


@pytest.fixture
def sleeper() -> Iterator[Sleeper]:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})  # on another CPU a flow that is known takes another slot
    sleeper = Sleeper()
    yield sleeper
    os.sched_setaffinity(0, allowed)
    sleeper.poll.close()
    sleeper.wakes.close()


def test_the_first_record_after_a_silence_ends_it(sleeper: Sleeper) -> None:
    assert sleeper.wakes.arm(0.0)
    assert not sleeper.woken
    sleeper.run(1000)  # a flow takes a slot
    assert sleeper.woken
    sleeper.drain()
    assert sleeper.wakes.arm(0.0)
    assert not sleeper.woken
    sleeper.run(1000)  # the next bucket of a flow that is known
    assert sleeper.woken


def test_what_came_before_it_was_armed_is_not_slept_over(sleeper: Sleeper) -> None:
    sleeper.run(1000)
    assert not sleeper.wakes.arm(0.0)
    sleeper.drain()
    assert sleeper.wakes.arm(0.0)


def test_records_wake_nobody_until_the_ring_fills_but_a_new_flow_does(sleeper: Sleeper) -> None:
    sleeper.run(1000)
    sleeper.drain()
    few = 20.5 / sleeper.geometry.ring_records
    assert sleeper.wakes.arm(few)
    sleeper.run(1000, packets=10)
    assert not sleeper.woken
    sleeper.run(1000, packets=30)
    assert sleeper.woken
    sleeper.drain()
    assert sleeper.wakes.arm(0.5)
    sleeper.run(1000, packets=10)
    assert not sleeper.woken
    sleeper.run(1001)
    assert sleeper.woken


def test_a_sleep_is_ended_once(sleeper: Sleeper) -> None:
    assert sleeper.wakes.arm(0.0)
    for port in range(1000, 1050):
        sleeper.run(port)
    assert sleeper.woken
    sleeper.drain()
    assert sleeper.wakes.arm(0.0)
    assert not sleeper.woken
