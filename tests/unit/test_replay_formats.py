# SPDX-License-Identifier: Apache-2.0
"""The same frames in every format of captures are the same rows."""

import struct
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from captures import EPOCH_NS, HOST, Timed, pcap, pcapng, segment
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Raw

from netmon.errors import DataError
from netmon.records import BUCKET, Batch, Direction, Flow
from netmon.replay.frames import Capture, frames_of
from netmon.replay.replay import FlowCounts, Replay, Rule, Settings

FRAMES: list[Timed] = [(0, segment(100)), (4_000, segment(200)), (25_000, segment(300)), (31_000, segment(0, False))]
ROWS = [(0, Direction.TX, 2, 408, 300), (20_000, Direction.TX, 1, 354, 300), (30_000, Direction.RX, 1, 54, 0)]
IP_PACKET = bytes(IP(src="198.18.1.2", dst=HOST) / TCP(sport=1, dport=2) / Raw(b"x" * 100))

Row = tuple[int, Direction, int, int, int]


def batches(*paths: Path, addresses: tuple[str, ...] = (HOST,)) -> tuple[list[Batch], Replay]:
    replay = Replay(Settings(paths, "h", addresses=addresses))
    found = list(replay.batches())
    replay.close()
    return found, replay


def rows_of(found: list[Batch]) -> list[Row]:
    """(start since EPOCH_NS, direction, packets, wire bytes, payload bytes), by time."""
    flows: dict[int, Flow] = {flow.flow_id: flow for batch in found for flow in batch.flows}
    buckets = np.concatenate([batch.buckets for batch in found])
    assert buckets.dtype == BUCKET
    sums: Counter[tuple[int, Direction, int, int]] = Counter()
    names = ["bucket_start_ns", "flow_id", "packets", "wire_bytes", "payload_bytes"]
    for start, flow_id, *amounts in buckets[names].tolist():
        for i, count in enumerate(amounts):
            sums[start - EPOCH_NS, flows[flow_id].direction, flow_id, i] += count
    keys = {key[:3] for key in sums}
    return sorted((at, way, *(sums[at, way, flow_id, i] for i in range(3))) for at, way, flow_id in keys)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("nano", [False, True])
@pytest.mark.parametrize("write", [pcap, pcapng])
def test_formats_byte_orders_and_resolutions(write, nano: bool, order: str, tmp_path: Path) -> None:
    shift = 1 if nano else 0  # something that only nanoseconds can tell
    path = write(tmp_path / "c", [(time_ns + shift, frame) for time_ns, frame in FRAMES], nano=nano, order=order)
    found, replay = batches(path)
    assert rows_of(found) == ROWS
    assert replay.hello.clock.error_ns == (1 if nano else 1000)


@pytest.mark.parametrize("number", [101, 228])
def test_raw_ip_has_no_link_header(number: int, tmp_path: Path) -> None:
    found, _ = batches(pcap(tmp_path / "c", [(0, IP_PACKET)], link=number))
    assert rows_of(found) == [(0, Direction.RX, 1, 140, 100)]


@pytest.mark.parametrize("kind", [0, 4])
@pytest.mark.parametrize("number", [113, 276])
def test_cooked_frames_know_their_direction_and_count_an_ethernet_header(
    number: int, kind: int, tmp_path: Path
) -> None:
    cooked = {
        113: struct.pack(">HHH8xH", kind, 1, 6, 0x0800),
        276: struct.pack(">HHIHBB8x", 0x0800, 0, 3, 1, kind, 6),
    }
    found, _ = batches(pcap(tmp_path / "c", [(0, cooked[number] + IP_PACKET)], link=number), addresses=())
    assert rows_of(found) == [(0, Direction(kind == 4), 1, 154, 100)]


def test_the_original_length_counts_not_the_captured_one(tmp_path: Path) -> None:
    found, _ = batches(pcap(tmp_path / "c", [(0, segment(1000))], snap=80))
    assert rows_of(found) == [(0, Direction.TX, 1, 1054, 1000)]


def test_headers_that_were_not_captured_are_counted_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found, _ = batches(pcap(tmp_path / "c", [(0, segment(1000)), (1000, segment(1000))], snap=40))
    assert rows_of(found) == [(0, Direction.RX, 2, 2108, 0)]
    assert [flow.dst_port for batch in found for flow in batch.flows] == [0x0800]
    assert [record.message for record in caplog.records] == [
        "2 frames were captured without all their headers: they have no flow but their EtherType; "
        "capture with a longer -s"
    ]


def test_what_has_no_address_is_sent_by_the_hosts_hardware_address(tmp_path: Path) -> None:
    ours, theirs = (bytes(Ether(src=f"02:00:00:00:00:0{n}") / ARP()) for n in (1, 9))
    found, _ = batches(pcap(tmp_path / "c", [(0, segment()), (10_000, ours), (20_000, theirs)]))
    assert [row[1] for row in rows_of(found)] == [Direction.TX, Direction.TX, Direction.RX]


def test_captures_are_merged_by_time(tmp_path: Path) -> None:
    many = [(i * 1_000, segment(i % 50, sport=1 + i % 7)) for i in range(30_000)]
    whole, _ = batches(pcap(tmp_path / "whole", many))
    late, early = pcap(tmp_path / "late", many[20_000:]), pcap(tmp_path / "early", many[:20_000])
    odd, even = pcap(tmp_path / "odd", many[1::2]), pcapng(tmp_path / "even", many[::2])
    for paths in ((late, early), (odd, even)):
        found, _ = batches(*paths)
        assert sum(int(batch.buckets["packets"].sum()) for batch in found) == 30_000
        horizons = [batch.horizon_ns for batch in found]
        assert horizons == sorted(horizons)
        assert all((batch.buckets["bucket_start_ns"] < batch.horizon_ns).all() for batch in found)
        for name in ("wire_bytes", "payload_bytes"):
            assert sum(b.buckets[name].sum() for b in found) == sum(b.buckets[name].sum() for b in whole)
        assert sorted(rows_of(found)) == sorted(rows_of(whole))


def test_a_flow_that_was_silent_for_long_is_a_new_one(tmp_path: Path) -> None:
    capture = Capture(pcap(tmp_path / "c", [(0, segment())]))
    chunk = capture.read()
    assert chunk
    frames, counts = frames_of(chunk), FlowCounts(10_000, Rule().owner)
    minutes = (0, 4, 6, 12)
    new = [counts.count(frames, EPOCH_NS + minute * 60_000_000_000)[1] for minute in minutes]
    capture.close()
    assert [[flow.flow_id for flow in flows] for flows in new] == [[1], [], [2], [3]]


def test_the_account_has_every_frame(tmp_path: Path) -> None:
    found, _ = batches(pcap(tmp_path / "c", [(i * 100_000_000, segment(100, i % 3 > 0)) for i in range(40)]))
    first, last = ([s for b in found for s in b.ledger][i : i + 2 or None] for i in (0, -2))
    assert [sample.nic_packets for sample in first] == [0, 0]
    assert [(sample.direction, sample.nic_packets, sample.nic_bytes) for sample in last] == [
        (Direction.RX, 14, 14 * 154),
        (Direction.TX, 26, 26 * 154),
    ]


@pytest.mark.parametrize("size", [1 << 19, 1 << 31])
def test_a_frame_longer_than_there_are_is_damage(size: int, tmp_path: Path) -> None:
    path = pcap(tmp_path / "c", FRAMES)
    with path.open("ab") as file:
        file.write(struct.pack("<IIII", 1_700_000_000, 0, 60, size) + bytes(60))
    found, replay = batches(path)
    assert rows_of(found) == ROWS
    assert replay.damage() == [f"{path} is whole only up to its frame 4: a frame of {size} bytes"]


def test_a_capture_without_packets_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no packet in it"):
        batches(pcap(tmp_path / "c", []))
