# SPDX-License-Identifier: Apache-2.0
"""What the kernel says about interfaces: who they are, and their own counters. Needs no privilege."""

import contextlib
import errno
import fcntl
import os
import re
import socket
import struct
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from netmon.errors import UnsupportedError
from netmon.kernel.processes import read_bounded
from netmon.records import Direction, NicSample
from netmon.wire.limits import MAX_NUMBER

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
    from pyroute2 import IPRoute  # 20 MB that stay: a long-lived process calls this in a child
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


# --- What NICs count of their own accord: interfaces (sysfs, `ethtool -S`) and RDMA ports. Needs no privilege.
#
# RDMA bypasses the kernel's network stack, so these counters are all that can be said of it: per port, not per flow.

MOST = 60
"""Counters of one source of one device, the most telling first."""

_SIOCETHTOOL = 0x8946
_GSTRINGS, _GSTATS, _GSSET_INFO = 0x1B, 0x1D, 0x37  # linux/ethtool.h
_STATISTICS, _NAME_BYTES = 1, 32  # ETH_SS_STATS, ETH_GSTRING_LEN
_MOST_FILE_BYTES = 64  # of a counter's file
_WORD_BYTES = 4  # of the RDMA specification's port_xmit_data and port_rcv_data
_WORDS = {"port_xmit_data": "port_xmit_bytes", "port_rcv_data": "port_rcv_bytes"}

_INTERFACE = (
    *(f"{way}_{what}" for what in ("bytes", "packets", "dropped", "errors", "fifo_errors") for way in ("rx", "tx")),
    *("rx_missed_errors", "rx_crc_errors", "tx_carrier_errors"),
)

_PRIORITY = re.compile(r"(prio|pri|priority_|cos|tc_?)\d")
_ETHTOOL = tuple(
    re.compile(pattern)
    for pattern in (
        r"^[rt]x_(bytes|packets)(_phy)?$",
        r"_vport_rdma_.*(bytes|packets)$",
        r"drop|discard|missed|out_of_buffer|no_buf|alloc_err",
        r"allowance_exceeded",  # of AWS' ENA: what the cloud delayed or dropped
        r"ecn|cnp",
        r"pause|xo(n|ff)|pfc",
        r"err|crc|symbol",
        r"retrans|timeout",
        r"^[rt]x_prio\d_(bytes|packets)$",
    )
)
_RDMA = tuple(
    re.compile(pattern)
    for pattern in (
        r"bytes|octets|_data$",
        r"packets|pkts",
        r"cnp|ecn|pause|pfc",
        r"out_of|seq|retr|timeout|nak|restart|impaired|unresponsive",
        r"err|discard|drop|wait|downed|icrc",
    )
)

Reader = Callable[[], tuple[tuple[str, ...], tuple[int, ...]]]
"""Reads some counters: their names and values; raises OSError."""


def chosen(names: Sequence[str], patterns: Iterable["re.Pattern[str]"]) -> list[int]:
    """Indices of the names that are worth keeping: at most MOST, in the order of the patterns.

    Counters of single queues and histograms of frame sizes carry numbers in their names and are left out, priorities'
    are not.
    """
    plain = [n for n, name in enumerate(names) if not re.search(r"\d", _PRIORITY.sub("", name))]
    found = dict.fromkeys(n for pattern in patterns for n in plain if pattern.search(names[n].lower()))
    return list(found)[:MOST]


class CounterFiles:
    """The files of one device. They stay open: finding them takes most of the time of reading them."""

    def __init__(self, files: dict[str, Path]) -> None:
        """files: by the name of the counter."""
        self._files = files
        self._open: dict[str, int] = {}

    def read(self) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Names and values of those that the device has; nothing while it is gone."""
        with contextlib.suppress(OSError):
            if values := self._values():
                return values
        self.close()  # the device is gone, or was made again, or this is the first time
        for name, path in self._files.items():
            with contextlib.suppress(OSError):
                self._open[name] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            return self._values() or ((), ())
        return (), ()

    def _values(self) -> tuple[tuple[str, ...], tuple[int, ...]] | None:
        """None without any. Raises OSError where the device is gone."""
        values: dict[str, int] = {}
        for name, descriptor in self._open.items():
            try:
                value = min(int(os.pread(descriptor, _MOST_FILE_BYTES, 0)), MAX_NUMBER)
            except ValueError:
                continue
            except OSError as error:
                if error.errno == errno.ENODEV:
                    raise
                continue  # a counter that this device does not have
            values[_WORDS.get(name, name)] = value * (_WORD_BYTES if name in _WORDS else 1)
        return (tuple(values), tuple(values.values())) if values else None

    def close(self) -> None:
        """Closes the files; the next `read` opens them again."""
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open = {}


class NicCounters:
    """Reads the counters of some interfaces and of all RDMA ports of the host."""

    def __init__(self, root: Path = Path("/sys")) -> None:
        """root: where sysfs is."""
        self._net, self._infiniband = root / "class/net", root / "class/infiniband"
        self._ethtool: dict[str, EthtoolStatistics] = {}
        self._sysfs: dict[str, CounterFiles] = {}
        self._ports: dict[str, CounterFiles] = {}

    def read(self, interfaces: Iterable[str]) -> list[NicSample]:
        """One sample for each device and source that has counters. Blocks as long as the drivers take."""
        samples = []
        for name in interfaces:
            if name not in self._ethtool:
                files = {counter: self._net / name / "statistics" / counter for counter in _INTERFACE}
                self._sysfs[name], self._ethtool[name] = CounterFiles(files), EthtoolStatistics(name)
            samples += _sample(name, "sysfs", self._sysfs[name].read)
            samples += _sample(name, "ethtool", self._ethtool[name].read)
        for device, port in self._rdma_ports().items():
            samples += _sample(device, "rdma", port.read)
        return samples

    def _rdma_ports(self) -> dict[str, CounterFiles]:
        """Counters by port, such as `mlx5_0/1`; looked for once for each port."""
        for port in self._infiniband.glob("*/ports/*") if os.path.isdir(self._infiniband) else ():
            device = f"{port.parts[-3]}/{port.name}"
            if device not in self._ports:
                files = sorted([*port.glob("counters/*"), *port.glob("hw_counters/*")])
                files = [file for file in files if file.name != "lifespan"]
                chosen_files = {files[n].name: files[n] for n in _of_rdma([file.name for file in files])}
                self._ports[device] = CounterFiles(chosen_files)
        return self._ports


def _of_rdma(names: Sequence[str]) -> list[int]:
    """Those without a number in their names first: irdma's are called ip4InOctets."""
    found = dict.fromkeys(n for pattern in _RDMA for n, name in enumerate(names) if pattern.search(name.lower()))
    return list(found)[:MOST]


def _sample(device: str, source: str, read: Reader) -> list[NicSample]:
    now = time.monotonic_ns()
    with contextlib.suppress(OSError):
        names, values = read()
        if names:
            return [NicSample(device, source, now, names, values)]
    return []


class EthtoolStatistics:
    """`ethtool -S` of one interface: the names are read once, and again when their number changes."""

    def __init__(self, interface: str) -> None:
        self._interface = interface
        self._count = -1
        self._names: tuple[str, ...] = ()
        self._positions: npt.NDArray[np.intp] = np.empty(0, np.intp)

    def read(self) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Raises OSError where the interface is gone; nothing where its driver counts nothing."""
        count = _count(self._interface)
        if count != self._count:
            self._choose(_names(self._interface, count) if count else [])
        if not self._names:
            return (), ()
        values = _statistics(self._interface, count)[self._positions]
        return self._names, tuple(values.tolist())

    def _choose(self, names: list[str]) -> None:
        names = [name.strip().replace(" ", "_") for name in names]
        self._positions = np.array(chosen(names, _ETHTOOL), np.intp)
        self._names = tuple(names[index] for index in self._positions)
        self._count = len(names)


def _count(interface: str) -> int:
    # struct ethtool_sset_info: cmd, reserved, mask of the sets, then a number for each that is there.
    buffer = bytearray(struct.pack("IIQII", _GSSET_INFO, 0, 1 << _STATISTICS, 0, 0))
    _query(interface, buffer)
    _, _, mask, count, _ = struct.unpack("IIQII", buffer)
    return int(count) if mask else 0


def _names(interface: str, count: int) -> list[str]:
    """What the driver calls them, `count` or fewer."""
    # struct ethtool_gstrings: cmd, set, number, then the names. The driver may have got more of them since.
    buffer = bytearray(12 + (2 * count + 512) * _NAME_BYTES)
    struct.pack_into("III", buffer, 0, _GSTRINGS, _STATISTICS, count)
    _query(interface, buffer)
    count = min(count, struct.unpack_from("III", buffer)[2])
    raw = (bytes(buffer[12 + n * _NAME_BYTES : 12 + (n + 1) * _NAME_BYTES]) for n in range(count))
    return [name.partition(b"\0")[0].decode(errors="replace") for name in raw]


def _statistics(interface: str, count: int) -> npt.NDArray[np.int64]:
    """All values, (count,)."""
    # The driver may have got more counters since they were counted, and writes all of them.
    buffer = np.zeros(2 * count + 512, np.int64)
    buffer[0] = _GSTATS | count << 32  # struct ethtool_stats: cmd, n_stats, then the values
    _query(interface, buffer)
    return buffer[1 : count + 1]


def _query(interface: str, buffer: "bytearray | npt.NDArray[np.int64]") -> None:
    """The driver writes its answer into the buffer. Raises OSError."""
    index = np.frombuffer(buffer, np.uint8).ctypes.data
    request = struct.pack("16sP16x", interface.encode(), index)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as anything:
        fcntl.ioctl(anything, _SIOCETHTOOL, request)
