# SPDX-License-Identifier: Apache-2.0
"""On which side of the frames the captured host is."""

import ipaddress
from collections.abc import Iterable

import numpy as np

from netmon.records import FLOW_KEY, Direction, address
from netmon.replay.frames import DIRECTION_SHIFT, INTERFACE_SHIFT, Frames, is_ip

INTERFACE = 1
"""The one interface that all captures are taken to be of."""

_UNSPECIFIED = np.frombuffer(bytes(10) + b"\xff\xff" + bytes(12), np.uint64)[1:]
"""0.0.0.0 and :: as the second words of addresses; the first is 0."""

_CANDIDATES = 1000


class HostSide:
    """Which frames the host sent: those with one of its addresses as the source.

    What has no address (ARP, LLDP, …) or not yet one (DHCP) is the host's if it comes from the hardware address of
    frames that are.
    """

    def __init__(self, addresses: Iterable[bytes]) -> None:
        """addresses: 16 bytes each, IPv4 as mapped; none: only what the capture says itself."""
        self._addresses = [np.frombuffer(each, np.uint64) for each in addresses]
        self._hardware = np.empty(0, np.uint64)

    def complete(self, frames: Frames) -> None:
        """Set interface and direction in the frames' words."""
        words = frames.words
        named = is_ip(frames) & ((words[:, 0] != 0) | ~np.isin(words[:, 1], _UNSPECIFIED))
        sent = np.zeros(len(frames), np.bool_)
        for high, low in self._addresses:
            sent |= (words[:, 0] == high) & (words[:, 1] == low)
        sent &= named
        hardware = frames.hardware_source
        own = np.unique(hardware[sent & (hardware != 0)])
        if len(np.setdiff1d(own, self._hardware)):
            self._hardware = np.union1d(own, self._hardware)
        sent |= ~named & np.isin(hardware, self._hardware)
        if not self._addresses:
            sent = frames.direction == Direction.TX
        words[:, 4] |= np.uint64(INTERFACE) << INTERFACE_SHIFT
        words[:, 4] |= sent.astype(np.uint64) << DIRECTION_SHIFT


def packed(text: str) -> bytes:
    """An address as a FLOW_KEY has it. Raises ValueError where it is none."""
    ip = ipaddress.ip_address(text)
    return b"\0" * 10 + b"\xff\xff" + ip.packed if ip.version == 4 else ip.packed


def guess_addresses(frames: Frames) -> tuple[list[str], str]:
    """The endpoint that is in most frames, one of each version of IP, and in words how sure that is."""
    found: dict[int, tuple[str, int]] = {}
    rivals = []
    for text, count in _common_endpoints(frames):
        ip = ipaddress.ip_address(text)
        if ip.is_multicast or ip.is_unspecified or text == "255.255.255.255":
            continue
        if ip.version not in found:
            found[ip.version] = text, count
        elif count == found[ip.version][1]:
            rivals.append(text)
    names = [text for text, _ in found.values()]
    share = sum(count for _, count in found.values()) / max(1, len(frames))
    line = f"taking {' and '.join(names)} to be the host: in {share:.0%} of the first {len(frames)} frames"
    return names, f"{line}, but as many have {', '.join(rivals[:3])}" if rivals else line


def _common_endpoints(frames: Frames) -> list[tuple[str, int]]:
    """Addresses by the number of frames that they are in, most first; of equals, who sent first."""
    keys = frames.words[is_ip(frames)].view(FLOW_KEY)[:, 0]
    ends = np.concatenate([keys["src"], keys["dst"]])
    _, first, counts = np.unique(ends.view("S16"), return_index=True, return_counts=True)
    order = np.lexsort((first, -counts))[:_CANDIDATES]
    return [(address(ends[i].tobytes()), count) for i, count in zip(first[order], counts[order].tolist(), strict=True)]
