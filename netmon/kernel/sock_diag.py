# SPDX-License-Identifier: Apache-2.0
"""Questions to the kernel about single sockets (sock_diag), of the network namespace in which the asking one was made.

A question names both ends, and the kernel looks in its own hash tables: the cost does not grow with the number
of connections, and connected before bound, specific before wildcard is decided as for a packet. pyroute2 offers
only the listing of all sockets.
"""

import contextlib
import errno
import socket
import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from netmon.records import Table, empty

# --- One end of a connection, as text and as the kernel's bytes.


MAPPED = bytes(10) + b"\xff\xff"  # an IPv4 address in IPv6's clothes


class Endpoint(NamedTuple):
    """A flow as its local end sees it."""

    protocol: int
    local: str
    local_port: int
    remote: str
    remote_port: int

    def reversed(self) -> "Endpoint":
        return Endpoint(self.protocol, self.remote, self.remote_port, self.local, self.local_port)

    def listening(self) -> "Endpoint":
        """The query for the process that accepts connections to the local end."""
        return self._replace(remote="::" if ":" in self.local else "0.0.0.0", remote_port=0)


@lru_cache(maxsize=4096)
def packed_address(text: str) -> bytes:
    """16 bytes; IPv4 as IPv4-mapped. Raises OSError for what is no address."""
    if ":" in text:
        return socket.inet_pton(socket.AF_INET6, text)
    return MAPPED + socket.inet_pton(socket.AF_INET, text)


def packed(endpoint: Endpoint) -> bytes:
    """Both addresses and ports as netmon_socket_event begins: 36 bytes."""
    ports = struct.pack(">HH", endpoint.local_port, endpoint.remote_port)
    return packed_address(endpoint.local) + packed_address(endpoint.remote) + ports


def address_text(raw: bytes) -> str:
    """4 or 16 bytes → text; an IPv4-mapped address as IPv4."""
    if len(raw) == 16 and raw.startswith(MAPPED):
        raw = raw[12:]
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)


LISTEN = 10
"""TCP_LISTEN."""

INFO = 1 << (2 - 1)
"""The extension INET_DIAG_INFO: of a TCP socket its tcp_info."""

_SOCK_DIAG = 4  # NETLINK_SOCK_DIAG
_BY_FAMILY, _REQUEST = 20, 1
_HEADER = struct.Struct("=IHHII")
_QUESTION = struct.Struct("=BBBBI2s2s16s16sIII")  # struct inet_diag_req_v2
_ANY_COOKIE = 0xFFFFFFFF
_ALL_STATES = 0xFFFFFFFF
_AT_A_TIME = 32  # the answers have to fit into the socket's buffer
_RECEIVE_BYTES = 1 << 16


class DiagnosisSocket:
    """Asks the kernel. A question takes some 10 µs; blocks only for as long as the kernel takes. Needs no privilege."""

    def __init__(self) -> None:
        """Raises OSError where the kernel has no sock_diag."""
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG)
        self._socket.settimeout(1.0)

    def query(self, endpoints: Sequence[Endpoint], extensions: int = 0) -> Iterator[tuple[int, bytes]]:
        """(place of the endpoint, its socket's inet_diag_msg and attributes) of those that have one."""
        for begin in range(0, len(endpoints), _AT_A_TIME):
            for number, body in self._query_some(endpoints[begin : begin + _AT_A_TIME], extensions):
                yield begin + number, body

    def _query_some(self, endpoints: Sequence[Endpoint], extensions: int) -> Iterator[tuple[int, bytes]]:
        self._socket.send(b"".join(_question(n, endpoint, extensions) for n, endpoint in enumerate(endpoints)))
        waiting = len(endpoints)
        while waiting:
            try:
                packet = self._socket.recv(_RECEIVE_BYTES)
            except OSError as error:  # answers lost, or none: unknown, to be queried again
                if error.errno not in (errno.ENOBUFS, None):
                    raise
                self._discard()
                return
            for number, kind, body in _messages(packet):
                waiting -= 1
                if kind == _BY_FAMILY:
                    yield number, body

    def _discard(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._socket.recv(_RECEIVE_BYTES, socket.MSG_DONTWAIT):
                pass

    def close(self) -> None:
        self._socket.close()


def _question(number: int, endpoint: Endpoint, extensions: int) -> bytes:
    body = _about(endpoint, extensions)
    return _HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, _REQUEST, number, 0) + body


@lru_cache(maxsize=512)
def _about(endpoint: Endpoint, extensions: int) -> bytes:
    ends = [_end(endpoint.local, endpoint.local_port), _end(endpoint.remote, endpoint.remote_port)]
    if endpoint.protocol == socket.IPPROTO_UDP:  # net/ipv4/udp_diag.c: "src and dst are swapped for historical reasons"
        ends.reverse()
    (source, source_port), (destination, destination_port) = ends
    family = socket.AF_INET6 if ":" in endpoint.local else socket.AF_INET
    return _QUESTION.pack(
        *(family, endpoint.protocol, extensions, 0, _ALL_STATES, source_port, destination_port, source, destination),
        *(0, _ANY_COOKIE, _ANY_COOKIE),
    )


def _end(address: str, port: int) -> tuple[bytes, bytes]:
    raw = packed_address(address)
    return (raw if ":" in address else raw[12:].ljust(16, b"\0")), port.to_bytes(2, "big")


def _messages(packet: bytes) -> Iterator[tuple[int, int, bytes]]:
    """(number of the question, kind, body) of each netlink message."""
    offset = 0
    while offset + _HEADER.size <= len(packet):
        length, kind, _, number, _ = _HEADER.unpack_from(packet, offset)
        yield number, kind, packet[offset + _HEADER.size : offset + length]
        offset += max(_HEADER.size, length + 3 & ~3)


# --- What TCP itself says of a connection (struct tcp_info of linux/tcp.h), queried socket by socket.

_FIELDS = {  # name → (format, offset)
    "options": ("u1", 5),
    "application_limited": ("u1", 7),  # bit 0, of the latest delivery rate sample
    "segment_bytes": ("<u4", 16),
    "rtt_us": ("<u4", 68),
    "congestion_window": ("<u4", 80),  # segments
    "rtt_min_us": ("<u4", 148),
    "delivery_rate": ("<u8", 160),  # bytes a second
    "received_bytes": ("<u8", 128),
    "busy_us": ("<u8", 168),
    "receiver_limited_us": ("<u8", 176),
    "sender_limited_us": ("<u8", 184),
    "ecn_marked_packets": ("<u4", 196),
    "sent_bytes": ("<u8", 200),
    "retransmitted_bytes": ("<u8", 208),
    "out_of_order_packets": ("<u4", 224),
    "timeouts": ("<u2", 240),
}
_INFO_BYTES, _LEAST_INFO_BYTES = 242, 232  # Linux 6.7 brought what lies between
TCP_INFO = np.dtype(
    {
        "names": ["number", "cookie", *_FIELDS],
        "formats": ["<i4", "<u8", *(kind for kind, _ in _FIELDS.values())],
        "offsets": [0, 4, *(12 + offset for _, offset in _FIELDS.values())],
        "itemsize": 12 + _INFO_BYTES,
    }
)
"""A socket: which endpoint's it is, the cookie that no other socket has, and counters since its beginning."""

ECN = 8
"""In options: both ends have agreed on ECN (TCPI_OPT_ECN)."""

RTT_UNKNOWN = 0xFFFFFFFF
"""As rtt_min_us, where there is no sample yet."""

TIMEOUTS_UNKNOWN = 0xFFFF
"""As timeouts, where the kernel does not count them (before Linux 6.7)."""

_SOCKET_BYTES, _COOKIE = 72, slice(44, 52)  # struct inet_diag_msg
_ATTRIBUTE = struct.Struct("=HH")
_INET_DIAG_INFO = 2
_HAS_NO_INFO = (LISTEN, 6, 7)  # a listener's numbers mean something else; TIME_WAIT and CLOSE have none


class TcpInfo:
    """Asks in the network namespace in which it was made. Needs no privilege."""

    def __init__(self) -> None:
        """Raises OSError where the kernel has no sock_diag."""
        self._kernel = DiagnosisSocket()
        self._offsets: dict[int, int] = {}  # where tcp_info begins, by the length of an answer

    def query(self, endpoints: Sequence[Endpoint]) -> Table:
        """TCP endpoints → dtype TCP_INFO of those whose connection is there. Takes some 10 µs each.

        Raises OSError where the kernel does not answer.
        """
        found = []
        for number, body in self._kernel.query(endpoints, INFO):
            info = self._info(body)
            if info and int.from_bytes(body[4:6], "big") == endpoints[number].local_port:
                found.append(number.to_bytes(4, "little") + body[_COOKIE] + info)
        return np.frombuffer(b"".join(found), TCP_INFO) if found else empty(TCP_INFO)

    def _info(self, body: bytes) -> bytes | None:
        if body[1] in _HAS_NO_INFO:
            return None
        index = self._offsets.get(len(body), 0)
        if not index or _ATTRIBUTE.unpack_from(body, index - _ATTRIBUTE.size)[1] != _INET_DIAG_INFO:
            index = self._offsets[len(body)] = _find_info(body)
        if index + _LEAST_INFO_BYTES > len(body):
            return None
        length = _ATTRIBUTE.unpack_from(body, index - _ATTRIBUTE.size)[0] - _ATTRIBUTE.size
        return body[index : index + min(length, _INFO_BYTES)].ljust(_INFO_BYTES, b"\xff")

    def close(self) -> None:
        self._kernel.close()


def _find_info(body: bytes) -> int:
    """Where tcp_info begins; past the end where there is none."""
    offset = _SOCKET_BYTES
    while offset + _ATTRIBUTE.size <= len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, offset)
        if kind == _INET_DIAG_INFO:
            return offset + _ATTRIBUTE.size
        offset += max(_ATTRIBUTE.size, length + 3 & ~3)
    return len(body)
