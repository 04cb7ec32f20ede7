# SPDX-License-Identifier: Apache-2.0
"""What stands before the IP header, per link type."""

from dataclasses import dataclass

ETHERNET_BYTES = 14


@dataclass(frozen=True)
class Link:
    """Where things are in a captured frame; −1: nowhere."""

    name: str
    header_bytes: int
    type_at: int  # EtherType, 2 bytes
    hardware_source_at: int = -1  # 6 bytes
    kind_at: int = -1  # 1 byte, OUTGOING for what the host sends
    wire_header_bytes: int = ETHERNET_BYTES  # of the frame on the link; a cooked header stands for an Ethernet header


OUTGOING = 4  # PACKET_OUTGOING

ETHERNET = Link("Ethernet", ETHERNET_BYTES, 12, hardware_source_at=6)
COOKED = Link("Linux cooked v1", 16, 14, kind_at=1)
COOKED_2 = Link("Linux cooked v2", 20, 0, kind_at=10)
RAW = Link("raw IP", 0, -1, wire_header_bytes=0)

LINKS = {1: ETHERNET, 113: COOKED, 276: COOKED_2, 12: RAW, 14: RAW, 101: RAW, 228: RAW, 229: RAW}
"""By libpcap's number; raw IP has several, and one more on each system."""
