# SPDX-License-Identifier: Apache-2.0
"""A super-packet in a tunnel is counted as its segments are on the link, each with all the headers that it has.

What this kernel has no device for is tried with frames of our own, as the kernel would show them.
"""

import ctypes
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import End
from dry_meter import Loaded, load
from scapy.contrib.geneve import GENEVE, GeneveOptions
from scapy.contrib.mpls import MPLS
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrSegmentRouting
from scapy.layers.l2 import GRE, Dot1Q, Ether
from scapy.layers.vxlan import VXLAN
from scapy.packet import Packet, Raw

from netmon.kernel import bpf_calls
from netmon.kernel.watching import forget_interface, number_interface
from netmon.lab.network import Host
from netmon.lab.process import Process

pytestmark = pytest.mark.kernel

EVENLY, SEGMENTS = 600, 4
DATA = Raw(b"x" * (EVENLY * (SEGMENTS - 1) + 100))
CONTEXT = struct.Struct("=164xI8xI")  # struct __sk_buff up to gso_segs and gso_size
CLONE_NEWNET = 0x40000000
NUMBER = 1  # of the metered interface
ETHERNET, IPV4, IPV6, UDP_BYTES = 14, 20, 40, 8

ETHER = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
FOUR = IP(src="198.18.0.1", dst="198.18.0.2")
SIX = IPv6(src="2001:db8::1", dst="2001:db8::2")
INNER = IP(src="10.0.0.1", dst="10.0.0.2") / TCP(sport=1, dport=2, options=[("Timestamp", (1, 2))])
INNER6 = IPv6(src="fd00::1", dst="fd00::2") / TCP(sport=1, dport=2, options=[("Timestamp", (1, 2))])
OPTIONS = [GeneveOptions(classid=1, type=1, length=2, data=b"12345678")]
ROUTED = IPv6ExtHdrSegmentRouting(addresses=["2001:db8::2", "2001:db8::3"])

# A frame, and how many bytes the headers of its flow have.
CRAFTED: dict[str, tuple[Packet, int]] = {
    "VXLAN": (FOUR / UDP(dport=4789) / VXLAN(flags=8, vni=5) / ETHER / INNER, IPV4 + UDP_BYTES),
    "VXLAN on any port": (
        FOUR / UDP(dport=8472) / VXLAN(flags=8, vni=5) / ETHER / Dot1Q(vlan=3) / INNER6,
        IPV4 + UDP_BYTES,
    ),
    "VXLAN with a policy": (FOUR / UDP(dport=4789) / VXLAN(flags=0x88, gpid=9) / ETHER / INNER, IPV4 + UDP_BYTES),
    "VXLAN over IPv6": (SIX / UDP(dport=4789) / VXLAN(flags=8, vni=5) / ETHER / INNER, IPV6 + UDP_BYTES),
    "VXLAN with a datagram": (FOUR / UDP() / VXLAN(flags=8, vni=5) / ETHER / FOUR / UDP(dport=9), IPV4 + UDP_BYTES),
    "Geneve": (FOUR / UDP(dport=6081) / GENEVE(vni=5) / ETHER / INNER, IPV4 + UDP_BYTES),
    "Geneve with options": (FOUR / UDP(dport=6081) / GENEVE(options=OPTIONS) / ETHER / INNER6, IPV4 + UDP_BYTES),
    "Geneve without Ethernet": (FOUR / UDP(dport=6081) / GENEVE(proto=0x0800) / INNER, IPV4 + UDP_BYTES),
    "GRE": (FOUR / GRE() / INNER, IPV4),
    "GRE with all": (FOUR / GRE(chksum_present=1, key_present=1, seqnum_present=1) / INNER6, IPV4),
    "GRE with Ethernet": (FOUR / GRE(key_present=1, proto=0x6558) / ETHER / INNER, IPV4),
    "IPv4 in IPv4": (FOUR / INNER, IPV4),
    "IPv6 in IPv4": (FOUR / INNER6, IPV4),
    "IPv4 in IPv6": (SIX / INNER, IPV6),
    "IPv6 in IPv6, with options": (SIX / IPv6ExtHdrDestOpt() / INNER6, IPV6 + 8),
    "SRv6": (SIX / ROUTED / INNER6, IPV6 + 40),
    "SRv6, in line": (SIX / ROUTED / TCP(sport=1, dport=2), IPV6 + 40 + 20),
    "VXLAN in VXLAN": (
        FOUR / UDP() / VXLAN(flags=8) / ETHER / FOUR / UDP() / VXLAN(flags=8) / ETHER / INNER,
        IPV4 + UDP_BYTES,
    ),
    "no tunnel": (INNER, IPV4 + 32),
    "a datagram": (FOUR / UDP(sport=1, dport=2), IPV4 + UDP_BYTES),
    "802.1Q": (Dot1Q(vlan=5) / FOUR / UDP(dport=4789) / VXLAN(flags=8) / ETHER / INNER, 4 + IPV4 + UDP_BYTES),
}


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return load()


def counted(loaded: Loaded, program: str, frame: bytes, segments: int, size: int = EVENLY) -> tuple[int, int, int]:
    loaded.counted()
    assert loaded.run(program, frame, context=CONTEXT.pack(segments, size))
    (counts,) = loaded.counted().values()
    return counts


@pytest.mark.parametrize("told", [SEGMENTS, 0], ids=["", "not counted by the kernel"])
@pytest.mark.parametrize("program", ["meter_tc_ingress", "meter_tc_egress"])
@pytest.mark.parametrize("kind", CRAFTED)
def test_segments_have_all_headers(loaded: Loaded, kind: str, program: str, told: int) -> None:
    packet, own = CRAFTED[kind]
    headers, frame = len(bytes(ETHER / packet)), bytes(ETHER / packet / DATA)
    wire = SEGMENTS * headers + len(DATA)
    payload = wire - SEGMENTS * (ETHERNET + own)
    assert counted(loaded, program, frame, told) == (SEGMENTS, wire, payload)


def test_what_is_no_tunnel_is_not_taken_for_one(loaded: Loaded) -> None:
    """Datagrams that begin as VXLAN does, and as Geneve does; one holds a whole frame, but is cut elsewhere."""
    outer = ETHER / FOUR / UDP(sport=1, dport=4789)
    inner = bytes(ETHER / INNER)
    for head in (b"\x08" + bytes(7), b"\0\0\x08\0" + bytes(4), b"\0\0\x65\x58" + bytes(4)):
        for content in (bytes(3 * EVENLY), inner + bytes(3 * EVENLY - len(inner) - 8 + 10)):
            frame = bytes(outer / Raw(head + content))
            data = len(frame) - 42
            segments = -(-data // EVENLY)
            wire = len(frame) + (segments - 1) * 42
            assert counted(loaded, "meter_tc_egress", frame, segments) == (segments, wire, data), (head, content[:40])


def test_an_unknown_layer_leaves_the_outer_header(loaded: Loaded) -> None:
    frame = bytes(ETHER / FOUR / GRE(proto=0x8847) / MPLS(label=5) / INNER / DATA)
    outer = ETHERNET + IPV4
    expected = (SEGMENTS, len(frame) + (SEGMENTS - 1) * outer, len(frame) - outer)
    assert counted(loaded, "meter_tc_egress", frame, SEGMENTS) == expected


class Tunnel:
    """Two hosts, each with an address in a tunnel; the right one's link is metered, in and out."""

    def __init__(self, loaded: Loaded, left: End, right: End, folder: Path) -> None:
        self.loaded, self.left, self.right, self.folder = loaded, left, right, folder
        self.before: dict[str, tuple[int, int]] = {}
        self.ledger_before: dict[int, dict[str, int]] = {}
        self._links: list[int] = []

    def attach(self) -> None:
        number_interface(self.loaded.programs["interfaces"], self.right.index, NUMBER)
        thread = threading.Thread(target=self._attach)  # the only one that goes into the namespace
        thread.start()
        thread.join()
        assert len(self._links) == 2
        while self.before != (before := {"rx": self._sent("rx"), "tx": self._sent("tx")}):
            self.before, self.ledger_before = before, self._ledger()  # nothing is to go over the link between the two

    def _attach(self) -> None:
        with open(f"/run/netns/{self.right.namespace.name}") as namespace:
            assert ctypes.CDLL(None).setns(namespace.fileno(), CLONE_NEWNET) == 0
        for name, where in (("meter_tc_ingress", bpf_calls.TCX_INGRESS), ("meter_tc_egress", bpf_calls.TCX_EGRESS)):
            self._links.append(bpf_calls.link_create(self.loaded.programs[name], self.right.index, where))

    def detach(self) -> None:
        for link in self._links:
            os.close(link)
        forget_interface(self.loaded.programs["interfaces"], self.right.index)

    def _ledger(self) -> dict[int, dict[str, int]]:
        return {link: dict(row) for link, row in self.loaded.meter.ledger().items()}

    def transfer(self, left: str, right: str) -> None:
        """Some megabytes of TCP each way."""
        for number, (server, client, address) in enumerate(
            ((self.left, self.right, left), (self.right, self.left, right))
        ):
            host = Host(f"server-{number}", server.namespace.name, address)
            command = ["iperf3", "-s", "-1", "-p", "5999", "--forceflush"]
            with Process(host.name, command, self.folder, host=host) as process:
                process.wait_output("listening", 10)
                client.namespace.run("iperf3", "-c", address, "-p", "5999", "-n", "20M")

    def _sent(self, direction: str) -> tuple[int, int]:
        """Packets and bytes that went that way, after what is too long was cut."""
        end = self.left if direction == "rx" else self.right
        folder = f"/sys/class/net/{end.interface}/statistics"
        read = end.namespace.run("cat", f"{folder}/tx_packets", f"{folder}/tx_bytes")
        packets, count = map(int, read.split())
        # Where the receiver puts packets together, veth counts what it is handed: without Ethernet's header.
        return packets, count + (packets * ETHERNET if direction == "rx" else 0)

    def check(self, *directions: str) -> dict[str, tuple[int, int]]:
        """Packets and bytes are those that the senders' interfaces have cut; returns frames and packets per way."""
        came = {}
        for direction in directions or ("rx", "tx"):
            deadline = time.monotonic() + 2
            while (both := self._both(direction))[0][:2] != both[1] and time.monotonic() < deadline:
                time.sleep(0.05)
            metered, truth = both  # read once: hosts say something of their own now and then
            assert metered[:2] == truth, direction
            came[direction] = (metered[2], metered[0])
        return came

    def _both(self, direction: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Packets, bytes and frames as metered since `attach`; packets and bytes that went over the link since."""
        link = NUMBER << 1 | (direction == "tx")
        now, before = self._ledger()[link], self.ledger_before.get(link, {})
        metered = tuple(now[name] - before.get(name, 0) for name in ("packets", "wire_bytes", "frames"))
        began = self.before[direction]
        return metered, tuple(sent - before for sent, before in zip(self._sent(direction), began, strict=True))


@pytest.fixture
def tunnel(loaded: Loaded, namespaces: Callable, tmp_path: Path) -> Iterator[Tunnel]:
    left, right = namespaces()
    for end, together in ((left, "off"), (right, "on")):  # cut by the sender, put together by the right one
        offloads = ("tso", "off", "gso", "off", "tx-udp_tnl-segmentation", "off", "gro", together)
        end.namespace.run("ethtool", "-K", end.interface, *offloads)
    made = Tunnel(loaded, left, right, tmp_path)
    yield made
    made.detach()
    loaded.counted()


def test_vxlan(tunnel: Tunnel) -> None:
    for number, (here, there) in enumerate(((tunnel.left, tunnel.right), (tunnel.right, tunnel.left)), 1):
        path = ("local", here.address, "remote", there.address, "dstport", "4789", "dev", here.interface)
        here.namespace.run("ip", "link", "add", "vx0", "type", "vxlan", "id", "7", *path)
        here.namespace.run("ip", "address", "add", f"10.9.0.{number}/24", "dev", "vx0")
        here.namespace.run("ip", "link", "set", "vx0", "up")
    tunnel.attach()
    tunnel.loaded.counted()
    tunnel.transfer("10.9.0.1", "10.9.0.2")
    came = tunnel.check()
    assert all(frames < packets / 2 for frames, packets in came.values()), came
    flows = tunnel.loaded.counted()
    assert {flow[3:] for flow in flows} == {(4789, 17)}
    outer = ETHERNET + IPV4 + UDP_BYTES
    assert all(wire - packets * outer == payload for packets, wire, payload in flows.values())


@pytest.mark.parametrize("mode", ["encap", "inline"])
def test_segment_routing(tunnel: Tunnel, mode: str) -> None:
    for number, end in enumerate((tunnel.left, tunnel.right), 1):
        enable_ipv6(end, f"fd00:1::{number}/64")
        end.namespace.set("net.ipv6.conf.all.seg6_enabled=1", f"net.ipv6.conf.{end.interface}.seg6_enabled=1")
        end.namespace.run("ip", "-6", "address", "add", f"fd00:{number}0::1/128", "dev", "lo", "nodad")
    for own, other, end in ((1, 2, tunnel.left), (2, 1, tunnel.right)):
        through = ("encap", "seg6", "mode", mode, "segs", f"fd00:1::{other}", "dev", end.interface)
        route = ("src", f"fd00:{own}0::1", "mtu", "1400")
        end.namespace.run("ip", "-6", "route", "add", f"fd00:{other}0::1/128", *through, *route)
    tunnel.attach()
    tunnel.transfer("fd00:10::1", "fd00:20::1")
    # What a segment routing header is taken off is received anew, and so metered again.
    came = tunnel.check("tx") if mode == "encap" else tunnel.check()
    assert all(frames < packets / 2 for frames, packets in came.values()), came


def enable_ipv6(end: End, address: str) -> None:
    quiet = ("router_solicitations=0", "accept_dad=0", "disable_ipv6=0")
    end.namespace.set("net.ipv6.conf.all.disable_ipv6=0", "net.ipv6.conf.lo.disable_ipv6=0")
    end.namespace.set(*(f"net.ipv6.conf.{end.interface}.{setting}" for setting in quiet))
    end.namespace.run("ip", "-6", "address", "add", address, "dev", end.interface, "nodad")


def test_super_packets_longer_than_a_length_field(tunnel: Tunnel) -> None:
    """BIG TCP over IPv6: a header that only super-packets have says how long they are."""
    for number, end in enumerate((tunnel.left, tunnel.right), 1):
        enable_ipv6(end, f"fd00:1::{number}/64")
        sizes = ("gso_max_size", "200000", "gro_max_size", "200000")
        end.namespace.run("ip", "link", "set", "dev", end.interface, *sizes)
    tunnel.attach()
    tunnel.transfer("fd00:1::1", "fd00:1::2")
    came = tunnel.check()
    assert all(frames < packets / 2 for frames, packets in came.values()), came
