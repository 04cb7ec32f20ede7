# SPDX-License-Identifier: Apache-2.0
"""What the kernel says about interfaces: who they are, and their own counters. Needs no privilege."""

import contextlib
import os
import socket
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from netmon.errors import UnsupportedError
from netmon.kernel.processes import read_bounded
from netmon.records import Direction

_COUNTERS, _MOST_BYTES = "/proc/self/net/dev", 16 << 20
_ETHERNET = 1  # ARPHRD_ETHER
_LOOPBACK = 772
_ETHERNET_HEADER = 14


@dataclass(frozen=True)
class Nic:
    """One interface as it is now."""

    index: int
    name: str
    driver: str
    mtu: int
    capacity_bps: int  # 0: unknown, or a virtual interface's invention
    gro: bool
    super_packet_bytes: int  # the largest packet that can pass the hooks as one


def describe(name: str) -> Nic:
    """The interface of this name in the network namespace of the caller. Raises UnsupportedError."""
    from pyroute2 import IPRoute  # 20 MB that stay: a long-lived process calls this apart
    from pyroute2.netlink.exceptions import NetlinkError

    with IPRoute() as route:
        found = list(route.link_lookup(ifname=name))
        if not found:
            there = ", ".join(sorted(link.get_attr("IFLA_IFNAME") for link in route.get_links()))
            raise UnsupportedError(f"cannot watch {name}: no such interface; there are {there}")
        try:
            (link,) = route.get_links(found[0])
        except NetlinkError as error:
            raise UnsupportedError(f"cannot watch {name}: it has gone just now ({error.args[-1]})") from error
    if link["ifi_type"] not in (_ETHERNET, _LOOPBACK):
        raise UnsupportedError(f"cannot watch {name}: not an Ethernet interface (type {link['ifi_type']})")
    info = link.get_attr("IFLA_LINKINFO")
    kind = info.get_attr("IFLA_INFO_KIND") if info else ""
    device = Path("/sys/class/net") / name / "device/driver"
    return Nic(
        index=link["index"],
        name=name,
        driver=kind or (os.path.basename(os.readlink(device)) if device.exists() else ""),
        mtu=link.get_attr("IFLA_MTU"),
        capacity_bps=0 if kind else _speed(name),
        gro=_gro(name),
        super_packet_bytes=max(link.get_attr(name) or 0 for name in ("IFLA_GSO_MAX_SIZE", "IFLA_GRO_MAX_SIZE")),
    )


def describe_all(names: Collection[str]) -> list[Nic]:
    """The interfaces of these names, in their order. Raises UnsupportedError."""
    return [describe(name) for name in names]


def name_of(index: int) -> str:
    """What the interface of this ifindex is called now; empty where it is not there."""
    try:
        return socket.if_indextoname(index)
    except (OSError, OverflowError):
        return ""


def counters(names: Collection[str]) -> dict[str, tuple[tuple[int, int], tuple[int, int]]]:
    """The interfaces' own 64-bit counters: name → ((bytes, packets) received, (bytes, packets) sent).

    In the caller's network namespace; an interface that is gone is left out.
    """
    result = {}
    for line in read_bounded(_COUNTERS, _MOST_BYTES).decode(errors="replace").splitlines()[2:]:
        name, _, values = line.partition(":")
        if name.strip() in names:
            fields = values.split()
            result[name.strip()] = ((int(fields[0]), int(fields[1])), (int(fields[8]), int(fields[9])))
    return result


def header_bytes_not_counted(nic: Nic, direction: Direction, hook_rx: str) -> int:
    """What the NIC's byte counter leaves out of each frame that our hook counts.

    Measured: veth counts its receive side without the Ethernet header once it polls (GRO switched on, or an XDP
    program attached), and with it otherwise; the loopback interface counts neither side's. Drivers of hardware
    count what is on the link.
    """
    if nic.driver == "veth" and direction is Direction.RX and (nic.gro or hook_rx == "xdp"):
        return _ETHERNET_HEADER
    return _ETHERNET_HEADER if nic.name == "lo" else 0


def _speed(name: str) -> int:
    try:
        megabits = int((Path("/sys/class/net") / name / "speed").read_text())
    except (OSError, ValueError):
        return 0
    return max(0, megabits) * 1_000_000


def _gro(name: str) -> bool:
    from pyroute2.ethtool import Ethtool

    with contextlib.suppress(Exception), Ethtool() as ethtool:  # absent on old kernels, in many ways
        features = ethtool.get_features(name)
        return bool(features.features["rx-gro"].enable)
    return True
