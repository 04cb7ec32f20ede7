# SPDX-License-Identifier: Apache-2.0
"""One capture file: the beginnings of its frames, as a matrix of bytes."""

import ctypes
import functools
import os
import stat
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from netmon.errors import DataError, UnsupportedError

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
        """Close it."""
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
