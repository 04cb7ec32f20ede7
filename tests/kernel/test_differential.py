# SPDX-License-Identifier: Apache-2.0
"""The agent against tcpdump: the same traffic, counted by the kernel and captured, agrees per flow and to the byte."""

import random
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pandas as pd
import pytest
from both import COUNTS, ETHERNET, LEFT_IPV6, RIGHT_IPV6, Both
from crafted import FRAMES, TCP_PORTS
from dry_meter import Flow, Loaded, load
from pair import Watched
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrFragment, IPv6ExtHdrHopByHop
from scapy.layers.l2 import ARP, Dot1AD, Dot1Q, Ether
from scapy.packet import Packet, Raw

from netmon.records import FLOW_KEY, address
from netmon.replay.frames import Capture, frames_of

pytestmark = pytest.mark.kernel


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return load()


def replayed(folder: Path, frames: list[bytes]) -> dict[Flow, tuple[int, int, int]]:
    """What a replay makes of these frames."""
    path = folder / "frames.pcap"
    with path.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 1 << 16, 1))
        for frame in frames:
            file.write(struct.pack("<IIII", 0, 0, len(frame), len(frame)) + frame)
    capture = Capture(path)
    counts: dict[Flow, tuple[int, int, int]] = {}
    while (chunk := capture.read()) is not None:
        found = frames_of(chunk)
        keys = found.words.view(FLOW_KEY)[:, 0].tolist()
        for (src, dst, *ports, protocol), wire, payload in zip(
            keys, found.wire_bytes.tolist(), found.payload_bytes.tolist(), strict=True
        ):
            flow = (address(src), address(dst), ports[0], ports[1], protocol)
            before = counts.get(flow, (0, 0, 0))
            counts[flow] = (before[0] + 1, before[1] + wire, before[2] + payload)
    capture.close()
    return counts


def test_every_cut_of_every_kind_of_frame_has_the_same_flow(loaded: Loaded, tmp_path: Path) -> None:
    whole = [bytes(Ether() / packet) for packet, _, _ in FRAMES.values()]
    frames = [frame[:length] for frame in whole for length in range(ETHERNET, len(frame) + 1)]
    loaded.counted()
    for frame in frames:
        loaded.run("meter_xdp", frame)
    assert loaded.counted() == replayed(tmp_path, frames)


def test_damaged_headers_have_the_same_flow(loaded: Loaded, tmp_path: Path) -> None:
    """Each byte of the headers of every kind of frame, replaced by others."""
    rng = random.Random(1)
    whole = [bytes(Ether() / packet) for packet, _, _ in FRAMES.values()]
    frames = [
        frame[:at] + bytes([value]) + frame[at + 1 :]
        for frame in whole
        for at in range(12, min(90, len(frame)))
        for value in (0, 4, 44, 51, 60, 255, rng.randrange(256))
    ]
    loaded.counted()
    for frame in frames:
        loaded.run("meter_xdp", frame)
    assert loaded.counted() == replayed(tmp_path, frames)


HOOKS = pytest.mark.parametrize("hook", ["tc", "xdp"])
MEGABYTES = "8M"


@pytest.fixture
def watched(namespaces: Callable, tmp_path: Path) -> Iterator[Watched]:
    with ExitStack() as cleanup:
        yield Watched(*namespaces(), tmp_path, cleanup)


def same(both: Both, protocols: tuple[int, ...] = ()) -> pd.DataFrame:
    """Checks that every flow has the same counts; returns what super-packets had beyond the capture."""
    both.check_counter()
    live, captured, more = both.live(), both.replayed(), both.further_segments()
    if protocols:  # what neighbours say to each other may come before the capture begins
        live, captured = (t[t.index.isin(protocols, level="protocol")] for t in (live, captured))
    assert len(live)
    pd.testing.assert_frame_equal(live, captured.add(more, fill_value=0).astype("int64")[COUNTS].sort_index())
    return more


@HOOKS
def test_tcp_in_super_packets(watched: Watched, hook: str) -> None:
    both = Both(watched)
    with both.observed(hook):
        both.iperf(watched.right.address, "-n", MEGABYTES)
    assert same(both)["packets"].sum() > 100


@HOOKS
def test_tcp_without_offloads(watched: Watched, hook: str) -> None:
    both = Both(watched, offload=False)
    with both.observed(hook):
        both.iperf(watched.right.address, "-n", MEGABYTES)
    assert not len(same(both))
    if hook == "tc":  # the NIC counts every segment
        assert both.ledger()["invisible_bytes"].tolist() == [0, 0]


def test_tcp_that_is_merged_by_the_receiver(watched: Watched) -> None:
    both = Both(watched)
    watched.left.namespace.run("ethtool", "-K", watched.left.interface, *["tso", "off", "gso", "off"])
    watched.right.namespace.run("ethtool", "-K", watched.right.interface, "gro", "on")
    with both.observed("tc"):
        both.iperf(watched.right.address, "-n", MEGABYTES)
    assert same(both).loc["rx", "packets"].sum() > 100


@HOOKS
def test_udp_small_whole_and_in_fragments(watched: Watched, hook: str) -> None:
    both = Both(watched)
    with both.observed(hook):
        for size in ("64", "1472", "8000"):
            both.iperf(watched.right.address, "-u", "-b", "100M", "-l", size, "-n", "1M")
    assert not len(same(both).query("protocol == 17"))


@HOOKS
def test_ipv6(watched: Watched, hook: str) -> None:
    both = Both(watched)
    both.enable_ipv6()
    with both.observed(hook):
        both.iperf(RIGHT_IPV6, "-n", MEGABYTES)
        both.iperf(RIGHT_IPV6, "-u", "-b", "100M", "-l", "8000", "-n", "1M")
    same(both, protocols=(6, 17))


@HOOKS
def test_jumbo_frames(watched: Watched, hook: str) -> None:
    both = Both(watched, mtu=9000, offload=False)
    with both.observed(hook):
        both.iperf(watched.right.address, "-n", MEGABYTES)
        both.iperf(watched.right.address, "-u", "-b", "100M", "-l", "8900", "-n", "1M")
    assert not len(same(both))


@HOOKS
def test_crafted_frames(watched: Watched, hook: str) -> None:
    """VLAN tags, extension headers, fragments, segments out of order and sent again, and what is not IP."""
    both = Both(watched)
    ends = watched.left, watched.right
    with both.observed(hook):
        for from_right, (here, there) in enumerate((ends, ends[::-1])):
            link = Ether(src=here.hardware_address, dst=there.hardware_address)
            six = (LEFT_IPV6, RIGHT_IPV6)[:: -1 if from_right else 1]
            frames = [bytes(link / packet) for packet in crafted(here.address, there.address, *six)]
            frames += [bytes(link) + b"\x81\x00\x00", bytes(link / IP(src=here.address, dst=there.address))[:30]]
            both.send(frames * 10, bool(from_right))
    assert not len(same(both))


def crafted(src: str, dst: str, src6: str, dst6: str) -> list[Packet]:
    four, six = IP(src=src, dst=dst), IPv6(src=src6, dst=dst6)
    data, tcp, udp = Raw(b"x" * 100), TCP(**TCP_PORTS), UDP(**TCP_PORTS)
    stream = [TCP(sport=7, dport=8, seq=sequence, flags="PA") / data for sequence in (1, 201, 101, 201, 301, 301, 1)]
    return [
        *[four / segment for segment in stream],
        four / TCP(sport=7, dport=8, flags="A"),
        four / TCP(sport=7, dport=9, options=[("Timestamp", (1, 2))]) / data,
        Dot1Q(vlan=5) / four / tcp / data,
        Dot1Q(vlan=5) / six / udp / data,
        Dot1AD(vlan=5) / Dot1Q(vlan=6) / four / tcp / data,
        six / IPv6ExtHdrHopByHop() / IPv6ExtHdrDestOpt() / udp / data,
        six / IPv6ExtHdrFragment(m=1) / udp / data,
        six / IPv6ExtHdrFragment(offset=9, nh=17) / data,
        IP(src=src, dst=dst, flags="MF") / udp / data,
        IP(src=src, dst=dst, frag=10, proto=17) / data,
        IP(src=src, dst=dst, proto=89) / data,
        ARP(),
    ]
