# SPDX-License-Identifier: Apache-2.0
"""For tests: one packet of every kind, with the flow and the payload that it has."""

from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrFragment, IPv6ExtHdrHopByHop, IPv6ExtHdrRouting
from scapy.layers.l2 import ARP, Dot1AD, Dot1Q
from scapy.packet import Packet, Raw

from netmon.records import PROTOCOL_NON_IP


def ip4(**fields: object) -> Packet:
    return IP(src="198.18.0.1", dst="198.18.0.2", **fields)


def ip6(**fields: object) -> Packet:
    return IPv6(src="2001:db8::1", dst="2001:db8::2", **fields)


FOUR = ("198.18.0.1", "198.18.0.2")
SIX = ("2001:db8::1", "2001:db8::2")
TCP_PORTS = {"sport": 1000, "dport": 2000}
DATA = Raw(b"x" * 100)

FRAMES = {
    "TCP": (ip4() / TCP(**TCP_PORTS) / DATA, (*FOUR, 1000, 2000, 6), 100),
    "TCP with options": (ip4() / TCP(**TCP_PORTS, options=[("Timestamp", (1, 2))]) / DATA, (*FOUR, 1000, 2000, 6), 100),
    "TCP, ACK only": (ip4() / TCP(**TCP_PORTS), (*FOUR, 1000, 2000, 6), 0),
    "IPv4 options": (ip4(options=b"\x01" * 8) / UDP(**TCP_PORTS) / DATA, (*FOUR, 1000, 2000, 17), 100),
    "UDP": (ip4() / UDP(**TCP_PORTS) / DATA, (*FOUR, 1000, 2000, 17), 100),
    "ICMP": (ip4() / ICMP() / DATA, (*FOUR, 0, 0, 1), 108),
    "first fragment": (ip4(flags="MF") / UDP(**TCP_PORTS) / DATA, (*FOUR, 0, 0, 17), 100),
    "later fragment": (ip4(frag=10, proto=17) / DATA, (*FOUR, 0, 0, 17), 100),
    "802.1Q": (Dot1Q(vlan=5) / ip4() / TCP(**TCP_PORTS) / DATA, (*FOUR, 1000, 2000, 6), 100),
    "802.1ad": (Dot1AD(vlan=5) / Dot1Q(vlan=6) / ip4() / TCP(**TCP_PORTS) / DATA, (*FOUR, 1000, 2000, 6), 100),
    "IPv6": (ip6() / TCP(**TCP_PORTS) / DATA, (*SIX, 1000, 2000, 6), 100),
    "IPv6, extensions": (
        ip6() / IPv6ExtHdrHopByHop() / IPv6ExtHdrDestOpt() / IPv6ExtHdrRouting() / UDP(**TCP_PORTS) / DATA,
        (*SIX, 1000, 2000, 17),
        100,
    ),
    "IPv6 first fragment": (ip6() / IPv6ExtHdrFragment(m=1) / UDP(**TCP_PORTS) / DATA, (*SIX, 0, 0, 17), 100),
    "IPv6 later fragment": (ip6() / IPv6ExtHdrFragment(offset=9, nh=17) / DATA, (*SIX, 0, 0, 17), 100),
    "ARP": (ARP(), ("::", "::", 0, 0x0806, PROTOCOL_NON_IP), 0),
}
