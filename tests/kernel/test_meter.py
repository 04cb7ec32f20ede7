# SPDX-License-Identifier: Apache-2.0
"""The kernel programs on crafted frames, one by one, against what the frames are."""

import random
import time
from collections import Counter

import pytest
from crafted import FOUR, FRAMES, TCP_PORTS, ip4
from dry_meter import PROGRAMS, Flow, Loaded, load
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scapy.layers.inet import TCP, UDP, fragment
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from collector.backpressure import WATCHED_NS
from netmon.kernel.meter.meter import STALE_NS

pytestmark = pytest.mark.kernel

CHECKS = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
SHORTEST = 14
"""BPF_PROG_TEST_RUN takes no frame without an Ethernet header, and for tc none that ends in its IP header."""


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return load()


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("what", FRAMES)
def test_every_kind_of_frame_is_counted_on_its_flow(loaded: Loaded, program: str, what: str) -> None:
    packet, flow, payload = FRAMES[what]
    frame = bytes(Ether(dst="02:00:00:00:00:02", src="02:00:00:00:00:01") / packet)
    loaded.counted()
    loaded.run(program, frame, repeat=100)
    assert loaded.counted() == {flow: (100, 100 * len(frame), 100 * payload)}


def test_padding_of_short_frames_is_not_payload(loaded: Loaded) -> None:
    frame = bytes(Ether() / ip4() / TCP(**TCP_PORTS)).ljust(60, b"\0")
    loaded.counted()
    loaded.run("meter_tc_ingress", frame)
    assert loaded.counted() == {(*FOUR, 1000, 2000, 6): (1, 60, 0)}


@pytest.mark.parametrize("what", FRAMES)
def test_a_frame_cut_at_any_length_is_counted_somewhere(loaded: Loaded, what: str) -> None:
    whole = bytes(Ether() / FRAMES[what][0])
    loaded.counted()
    lengths = range(SHORTEST, len(whole))
    ran = [loaded.run(program, whole[:length]) for program in PROGRAMS for length in lengths]
    counts = loaded.counted().values()
    assert sum(packets for packets, _, _ in counts) == len(ran) - ran.count(0)
    assert sum(wire for _, wire, _ in counts) == sum(ran)


@settings(max_examples=150, suppress_health_check=CHECKS)
@given(
    st.binary(min_size=SHORTEST, max_size=200), st.sampled_from([b"\x08\x00", b"\x86\xdd", b"\x81\x00", b"\x88\xa8"])
)
def test_any_bytes_are_passed_and_counted(loaded: Loaded, body: bytes, ether_type: bytes) -> None:
    frame = body[:12] + ether_type + body[14:]
    before = loaded.meter.ledger()
    ran = sum(loaded.run(program, frame) for program in PROGRAMS)
    after = loaded.meter.ledger()
    assert sum(after[link]["wire_bytes"] - before.get(link, {}).get("wire_bytes", 0) for link in after) == ran


def test_fragments_of_one_datagram_add_up(loaded: Loaded) -> None:
    fragments = fragment(ip4() / UDP(**TCP_PORTS) / Raw(b"x" * 4000), fragsize=1400)
    frames = [bytes(Ether() / each) for each in fragments]
    loaded.counted()
    for frame in frames:
        loaded.run("meter_tc_egress", frame)
    assert loaded.counted() == {(*FOUR, 0, 0, 17): (len(frames), sum(map(len, frames)), 4000)}


PACKET = st.tuples(
    st.sampled_from(sorted(PROGRAMS)), st.integers(1, 40), st.integers(0, 1400), st.integers(1, 30), st.booleans()
)


@settings(max_examples=40, suppress_health_check=CHECKS)
@given(st.lists(PACKET, max_size=60))
def test_random_sequences_match_a_model(loaded: Loaded, packets: list[tuple[str, int, int, int, bool]]) -> None:
    loaded.counted()
    model: Counter[tuple[Flow, int]] = Counter()
    for program, port, size, repeat, is_tcp in packets:
        transport = TCP(sport=port, dport=80) if is_tcp else UDP(sport=port, dport=80)
        frame = bytes(Ether() / ip4() / transport / Raw(b"x" * size))
        loaded.run(program, frame, repeat)
        for i, count in enumerate((1, len(frame), size)):
            model[(*FOUR, port, 80, 6 if is_tcp else 17), i] += repeat * count
    assert loaded.counted() == {flow: (model[flow, 0], model[flow, 1], model[flow, 2]) for flow, _ in model}


def test_more_flows_than_slots_lose_nothing(loaded: Loaded) -> None:
    loaded.counted()
    total = 0
    for high in range(0, 60_000, 5000):
        for port in range(high, high + 5000):
            loaded.run("meter_tc_egress", bytes.fromhex(TEMPLATE).replace(b"\x03\xe8", port.to_bytes(2, "big"), 1))
            total += 1
        assert sum(packets for packets, _, _ in loaded.counted().values()) == 5000
    counters = loaded.meter.ledger()
    assert total == 60_000
    assert all(link["overflow_packets"] == link["lost_packets"] == 0 for link in counters.values())


TEMPLATE = bytes(Ether() / ip4(chksum=0) / UDP(sport=1000, dport=2000, chksum=0)).hex()


def test_a_flow_that_goes_quiet_is_delivered_within_a_quarter_of_a_second_to_who_looks(loaded: Loaded) -> None:
    """Its last bucket comes with the first drain after STALE_NS; no packet has to follow."""
    assert STALE_NS + WATCHED_NS < 250_000_000
    loaded.counted()
    before = time.monotonic_ns()
    loaded.run("meter_tc_egress", bytes.fromhex(TEMPLATE))
    assert not len(loaded.meter.drain(before + STALE_NS).buckets)
    assert len(loaded.meter.drain(time.monotonic_ns() + STALE_NS + 10_000).buckets) == 1
    loaded.meter.rows.shrink(0)


def test_slots_change_hands_and_rows_keep_their_flow(loaded: Loaded) -> None:
    """Far more flows than slots, over and over, each of its own size: no row is of another flow than its bytes say."""
    rng = random.Random(2)
    loaded.counted()
    sent: Counter[int] = Counter()
    for _ in range(20):
        for _ in range(2000):
            port = rng.randrange(1, 60_000)
            frame = bytes.fromhex(TEMPLATE).replace(b"\x03\xe8", port.to_bytes(2, "big"), 1)
            loaded.run("meter_xdp", frame + bytes(port % 97))
            sent[port] += 1
        for (_, _, port, *_), (packets, wire, _) in loaded.counted().items():
            assert wire == packets * (len(TEMPLATE) // 2 + port % 97)
            sent[port] -= packets
    assert not any(sent.values())
