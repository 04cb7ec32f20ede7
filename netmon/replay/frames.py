# SPDX-License-Identifier: Apache-2.0
"""Capture files: the beginnings of their frames, as a matrix of bytes; and these parsed, as columns."""

import ctypes
import functools
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from netmon.errors import DataError, UnsupportedError
from netmon.records import PROTOCOL_NON_IP, Direction

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
"""By libpcap's number; raw IP has more than one, and another one on each system."""


# --- The few calls of libpcap that read a capture: whatever tcpdump can read, can be replayed.

ERROR_BYTES = 256
NANOSECONDS = 1  # PCAP_TSTAMP_PRECISION_NANO


class PacketHeader(ctypes.Structure):
    """struct pcap_pkthdr of a capture that was opened with NANOSECONDS."""

    _fields_ = (
        ("seconds", ctypes.c_long),
        ("nanoseconds", ctypes.c_long),
        ("captured", ctypes.c_uint32),
        ("original", ctypes.c_uint32),
    )


@functools.cache
def library() -> ctypes.PyDLL:
    """Keeps the interpreter's lock in calls: they are as short as they are many. Raises UnsupportedError."""
    for name in ("libpcap.so.0.8", "libpcap.so.1", "libpcap.so"):
        try:
            pcap = ctypes.PyDLL(name)
            break
        except OSError:
            continue
    else:
        raise UnsupportedError("cannot read captures: libpcap is not installed; install tcpdump, which brings it")
    handle, text = ctypes.c_void_p, ctypes.c_char_p
    for call, result, *arguments in (
        ("pcap_open_offline_with_tstamp_precision", handle, text, ctypes.c_uint, text),
        ("pcap_next_ex", ctypes.c_int, handle, handle, handle),
        ("pcap_datalink", ctypes.c_int, handle),
        ("pcap_datalink_val_to_name", text, ctypes.c_int),
        ("pcap_geterr", text, handle),
        ("pcap_file", handle, handle),
        ("pcap_close", None, handle),
    ):
        function = getattr(pcap, str(call))
        function.restype, function.argtypes = result, arguments
    return pcap


@functools.cache
def c_library() -> ctypes.PyDLL:
    """The C library that libpcap's files belong to."""
    library_ = ctypes.PyDLL(None)
    library_.ftell.restype, library_.ftell.argtypes = ctypes.c_long, [ctypes.c_void_p]
    return library_


# --- capture


HEADER_BYTES = 256
"""Of each frame so much is looked at: more than any chain of headers that occurs."""

CHUNK = 1 << 13
LARGEST_FRAME = (1 << 19) - 1
"""A longer one is damage, for Linux makes none. A chunk of the largest ones can be summed in 32 bits."""

_PACKET = np.dtype(PacketHeader)


@dataclass(frozen=True)
class Chunk:
    """Frames in the order of the capture: n of them."""

    link: Link
    data: npt.NDArray[np.uint8]  # (n, HEADER_BYTES); meaningless beyond `available`, overwritten by the next read
    time_ns: npt.NDArray[np.int64]  # UTC
    available: npt.NDArray[np.int64]  # bytes of the frame in `data`
    original: npt.NDArray[np.int64]  # bytes of the frame when it was captured


class Capture:
    """An open capture; to be closed. `damage` says why it cannot be read to its end, once that is known."""

    def __init__(self, path: Path) -> None:
        """Open it. Raises DataError where it is not a capture or of a link type that is not understood."""
        self.path = path
        self.frames = 0
        self.damage = ""
        self._pcap = library()
        reason = ctypes.create_string_buffer(ERROR_BYTES)
        self._handle = self._open(reason)
        if not self._handle:
            # libpcap names the file in some of its reasons.
            why = reason.value.decode(errors="replace").removeprefix(f"{path.absolute()}: ")
            raise DataError(f"cannot read {path}: {why}; give a whole pcap or pcapng file that you may read")
        number = self._pcap.pcap_datalink(self._handle)
        if number not in LINKS:
            name = (self._pcap.pcap_datalink_val_to_name(number) or b"").decode() or str(number)
            self.close()
            known = ", ".join(dict.fromkeys(link.name for link in LINKS.values()))
            raise DataError(f"cannot read {path}: its link type is {name}, not one of {known}; capture on an interface")
        self.link = LINKS[number]
        self._data = np.zeros((CHUNK, HEADER_BYTES), np.uint8)
        self._headers = np.zeros(CHUNK, _PACKET)

    def _open(self, reason: "ctypes.Array[ctypes.c_char]") -> int | None:
        try:
            if not stat.S_ISREG(self.path.stat().st_mode):
                reason.value = b"not a regular file"
                return None
        except OSError as error:
            reason.value = str(error.strerror).encode()
            return None
        name = os.fsencode(self.path.absolute())  # "-" by itself is standard input to libpcap
        handle: int | None = self._pcap.pcap_open_offline_with_tstamp_precision(name, NANOSECONDS, reason)
        return handle

    def close(self) -> None:
        if self._handle:
            self._pcap.pcap_close(self._handle)
            self._handle = None

    @property
    def position(self) -> int:
        """Bytes of the file that have been read."""
        return max(0, int(c_library().ftell(self._pcap.pcap_file(self._handle))))

    def read(self) -> Chunk | None:
        """The next frames, at most CHUNK; None at the end, or where the damage begins."""
        count = 0 if self.damage else self._fill()
        if not count:
            return None
        self.frames += count
        headers = self._headers[:count]
        time_ns = headers["seconds"].astype(np.int64) * 1_000_000_000 + headers["nanoseconds"]
        available = np.minimum(headers["captured"], HEADER_BYTES).astype(np.int64)
        return Chunk(self.link, self._data[:count], time_ns, available, headers["original"].astype(np.int64))

    def _fill(self) -> int:
        """One call per frame is what libpcap offers; nothing else is done per frame in Python, here or later."""
        next_frame, copy, handle = self._pcap.pcap_next_ex, ctypes.memmove, self._handle
        header_at, data_at = ctypes.c_void_p(), ctypes.c_void_p()
        to_header, to_data = ctypes.byref(header_at), ctypes.byref(data_at)
        headers, rows = self._headers.ctypes.data, self._data.ctypes.data
        index, header = 0, PacketHeader()
        for count in range(CHUNK):
            status = next_frame(handle, to_header, to_data)
            if status != 1:
                if status == -1:
                    self.damage = self._pcap.pcap_geterr(handle).decode(errors="replace")
                return count
            if index != header_at.value:  # libpcap uses the same place for all of them
                index = header_at.value or 0
                header = PacketHeader.from_address(index)
            if header.original > LARGEST_FRAME:
                self.damage = f"a frame of {header.original} bytes"
                return count
            copy(headers, index, _PACKET.itemsize)
            copy(rows, data_at.value or 0, min(header.captured, HEADER_BYTES))
            headers += _PACKET.itemsize
            rows += HEADER_BYTES
        return CHUNK


# --- bpf/parse.h once more, for many frames at a time: flow key and payload of each row of a matrix of bytes.
#
# Step by step the same decisions, so that a capture and the kernel agree on every frame (which
# tests/kernel/test_differential.py checks). A step works on the rows that have come so far.

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]

_IPV4, _IPV6, _VLANS = 0x0800, 0x86DD, (0x8100, 0x88A8)
_VLAN_TAGS, _IPV6_EXTENSIONS = 2, 6
_TCP, _UDP = 6, 17
_FRAGMENT, _AH = 44, 51
_EXTENSION = np.zeros(256, np.bool_)
_EXTENSION[[0, 43, _FRAGMENT, _AH, 60]] = True  # hop by hop, routing, fragment, authentication, destination
_MAPPED = np.uint64(int.from_bytes(b"\0\0\xff\xff", "little"))  # before the four bytes of an IPv4 address


@dataclass(frozen=True)
class Headers:
    """Arrays of n rows."""

    words: Words  # (n, 5): FLOW_KEY without interface and direction
    payload_bytes: Ints
    cut: Bools  # the capture has less of the frame than its headers take


class _Bytes:
    """Numbers at any place of any row."""

    def __init__(self, data: npt.NDArray[np.uint8]) -> None:
        flat, self._width = data.reshape(-1), data.shape[1]
        self._flat = flat
        self.u16be, self.u32le, self.u64le = (self._view(flat, kind) for kind in (">u2", "<u4", "<u8"))

    @staticmethod
    def _view(flat: npt.NDArray[np.uint8], kind: str) -> npt.NDArray[Any]:
        size = np.dtype(kind).itemsize
        return np.ndarray((max(0, len(flat) - size + 1),), kind, flat, strides=(1,))

    def offset(self, row: Ints, at: Ints) -> Ints:
        index: Ints = row * self._width + at
        return index

    def u8(self, index: Ints) -> Ints:
        return self._flat[index].astype(np.int64)

    def u16(self, index: Ints) -> Ints:
        return self.u16be[index].astype(np.int64)


def parse(chunk: Chunk) -> Headers:
    """Flow key and payload of every frame; what cannot be read is on the flow that has only an EtherType."""
    data, end, size = _Bytes(chunk.data), chunk.available, chunk.original
    types, at = _link_layer(data, chunk)
    words = np.zeros((len(end), 5), np.uint64)
    swapped = (types & 0xFF) << 8 | types >> 8
    words[:, 4] = np.where(types >= 0, swapped << 16 | PROTOCOL_NON_IP << 32, PROTOCOL_NON_IP << 32)
    payload, failed = np.zeros(len(end), np.int64), types < 0
    for ether_type, network in ((_IPV4, _ipv4), (_IPV6, _ipv6)):
        rows = np.flatnonzero(types == ether_type)
        if len(rows):
            good, found, bytes_ = network(data, rows, at[rows], end[rows], size[rows])
            words[good], payload[good] = found, bytes_
            failed[rows] = True
            failed[good] = False
    return Headers(words, payload, failed & (end < size))


def _link_layer(data: _Bytes, chunk: Chunk) -> tuple[Ints, Ints]:
    """EtherType, −1 where there is none, and where its header begins."""
    link, end = chunk.link, chunk.available
    types, at = np.full(len(end), -1, np.int64), np.full(len(end), link.header_bytes, np.int64)
    if link.type_at < 0:
        rows = np.flatnonzero(end > 0)
        version = data.u8(data.offset(rows, at[rows])) >> 4
        types[rows] = np.where(version == 4, _IPV4, np.where(version == 6, _IPV6, -1))
        return types, at
    rows = np.flatnonzero(end >= link.header_bytes)
    types[rows] = data.u16(data.offset(rows, np.full(len(rows), link.type_at)))
    for _ in range(_VLAN_TAGS):
        rows = np.flatnonzero(((types == _VLANS[0]) | (types == _VLANS[1])) & (at + 4 <= end))
        types[rows] = data.u16(data.offset(rows, at[rows] + 2))
        at[rows] += 4
    return types, at


_Network = tuple[Ints, Words, Ints]
"""The rows that could be read, with their words and payload bytes."""


def _ipv4(data: _Bytes, rows: Ints, at: Ints, end: Ints, size: Ints) -> _Network:
    rows, at, end, size = _keep(at + 20 <= end, rows, at, end, size)
    index = data.offset(rows, at)
    first_byte = data.u8(index)
    length = (first_byte & 15) * 4
    good = (first_byte >> 4 == 4) & (length >= 20)
    rows, at, end, size, index, length = _keep(good, rows, at, end, size, index, length)
    fragment = data.u16(index + 6) & 0x3FFF
    protocol = data.u8(index + 9)
    transport = _transport(data, rows, at + length, end, protocol, fragment != 0, fragment & 0x1FFF == 0)
    words = np.zeros((len(rows), 5), np.uint64)
    for word, source in ((1, 12), (3, 16)):
        words[:, word] = data.u32le[index + source].astype(np.uint64) << np.uint64(32) | _MAPPED
    words[:, 4] = transport.word
    payload = _payload(at, data.u16(index + 2), at + length + transport.length, size)
    return rows[transport.good], words[transport.good], payload[transport.good]


def _ipv6(data: _Bytes, rows: Ints, at: Ints, end: Ints, size: Ints) -> _Network:
    rows, at, end, size = _keep(at + 40 <= end, rows, at, end, size)
    index = data.offset(rows, at)
    rows, at, end, size, index = _keep(data.u8(index) >> 4 == 6, rows, at, end, size, index)
    upper = _extensions(data, rows, at + 40, end, data.u8(index + 6))
    transport = _transport(data, rows, upper.at, end, upper.protocol, upper.fragment, upper.first)
    words = np.empty((len(rows), 5), np.uint64)
    for word in range(4):
        words[:, word] = data.u64le[index + 8 + 8 * word]
    words[:, 4] = transport.word
    total = data.u16(index + 4)
    payload = _payload(at, np.where(total > 0, total + 40, 0), upper.at + transport.length, size)
    good = upper.good & transport.good
    return rows[good], words[good], payload[good]


@dataclass(frozen=True)
class _Upper:
    good: Bools
    at: Ints  # where the upper layer begins
    protocol: Ints
    fragment: Bools
    first: Bools


def _extensions(data: _Bytes, rows: Ints, at: Ints, end: Ints, protocol: Ints) -> _Upper:
    good, first = np.ones(len(rows), np.bool_), np.ones(len(rows), np.bool_)
    fragment = np.zeros(len(rows), np.bool_)
    for _ in range(_IPV6_EXTENSIONS):
        inside = np.flatnonzero(_EXTENSION[protocol] & good & first)
        if not len(inside):
            break
        short = at[inside] + 8 > end[inside]
        good[inside[short]] = False
        inside = inside[~short]
        index, kind = data.offset(rows[inside], at[inside]), protocol[inside]
        offset, is_fragment = data.u16(index + 2), kind == _FRAGMENT
        first[inside] = ~is_fragment | (offset & 0xFFF8 == 0)
        fragment[inside] = np.where(is_fragment, offset & 0xFFF9 != 0, fragment[inside])
        words = data.u8(index + 1)
        at[inside] += np.where(is_fragment, 8, np.where(kind == _AH, (words + 2) * 4, (words + 1) * 8))
        protocol[inside] = data.u8(index)
    return _Upper(good, at, protocol, fragment, first)


@dataclass(frozen=True)
class _Transport:
    good: Bools
    word: Words  # the last one of the key: ports and protocol
    length: Ints  # of the header


def _transport(
    data: _Bytes, rows: Ints, at: Ints, end: Ints, protocol: Ints, fragment: Bools, first: Bools
) -> _Transport:
    """Ports and header of TCP and UDP. A later fragment has no header; a first one has, but its flow has no ports."""
    good, length = np.ones(len(rows), np.bool_), np.zeros(len(rows), np.int64)
    word = protocol.astype(np.uint64) << np.uint64(32)
    for number, shortest in ((_TCP, 20), (_UDP, 8)):
        inside = np.flatnonzero((protocol == number) & first)
        there = at[inside] + shortest <= end[inside]
        good[inside[~there]] = False
        inside = inside[there]
        index = data.offset(rows[inside], at[inside])
        length[inside] = (data.u8(index + 12) >> 4) * 4 if number == _TCP else shortest
        good[inside] = length[inside] >= shortest
        with_ports = ~fragment[inside]
        word[inside[with_ports]] |= data.u32le[index[with_ports]].astype(np.uint64)
    return _Transport(good, word, length)


def _payload(at: Ints, total: Ints, header_bytes: Ints, size: Ints) -> Ints:
    """total: from the IP header's start, 0 where the header does not say; never more than the frame has."""
    end = np.where(total > 0, np.minimum(at + total, size), size)
    return np.maximum(end - header_bytes, 0)


def _keep(good: Bools, *columns: Ints) -> tuple[Ints, ...]:
    return columns if good.all() else tuple(column[good] for column in columns)


# --- frames


PROTOCOL_SHIFT, DIRECTION_SHIFT, INTERFACE_SHIFT = np.uint64(32), np.uint64(40), np.uint64(41)
"""Within the last word of a FLOW_KEY."""

_UNKNOWN = -1


@dataclass(frozen=True)
class Frames:
    """Columns of n rows, in the order of the capture."""

    words: npt.NDArray[np.uint64]  # (n, 5): FLOW_KEY
    time_ns: npt.NDArray[np.int64]
    wire_bytes: npt.NDArray[np.int64]
    payload_bytes: npt.NDArray[np.int64]
    cut: npt.NDArray[np.bool_]  # headers that the capture does not have
    hardware_source: npt.NDArray[np.uint64]  # 0: not in the capture
    direction: npt.NDArray[np.int8]  # as the capture says, −1 where it does not

    def __len__(self) -> int:
        return len(self.time_ns)

    def take(self, rows: npt.NDArray[np.bool_] | slice) -> "Frames":
        return Frames(*(getattr(self, column.name)[rows] for column in fields(self)))


def concatenated(parts: Sequence[Frames]) -> Frames:
    """At least one part → one."""
    columns = ([getattr(part, column.name) for part in parts] for column in fields(Frames))
    return parts[0] if len(parts) == 1 else Frames(*map(np.concatenate, columns))


def frames_of(chunk: Chunk) -> Frames:
    """Copies what is needed out of a chunk. Wire bytes are those of the original frame with an Ethernet header."""
    headers, link, rows = parse(chunk), chunk.link, len(chunk.time_ns)
    hardware, direction = np.zeros(rows, np.uint64), np.full(rows, _UNKNOWN, np.int8)
    if link.hardware_source_at >= 0:
        there = chunk.available >= ETHERNET_BYTES
        address = np.zeros((rows, 8), np.uint8)
        address[there, :6] = chunk.data[there, link.hardware_source_at : link.hardware_source_at + 6]
        hardware = address.view(np.uint64)[:, 0]
    if link.kind_at >= 0:
        there = chunk.available >= link.header_bytes
        outgoing = chunk.data[:, link.kind_at] == OUTGOING
        direction[there] = np.where(outgoing, Direction.TX, Direction.RX)[there]
    wire = np.maximum(chunk.original - link.header_bytes + link.wire_header_bytes, 0)
    return Frames(headers.words, chunk.time_ns, wire, headers.payload_bytes, headers.cut, hardware, direction)


def is_ip(frames: Frames) -> npt.NDArray[np.bool_]:
    """Which frames have addresses."""
    ip: npt.NDArray[np.bool_] = frames.words[:, 4] >> PROTOCOL_SHIFT & np.uint64(0xFF) != PROTOCOL_NON_IP
    return ip


def knows_direction(frames: Frames) -> bool:
    """Whether the capture tells for every frame which way it went."""
    return not (frames.direction == _UNKNOWN).any()
