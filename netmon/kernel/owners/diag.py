# SPDX-License-Identifier: Apache-2.0
"""The sockets of the caller's network namespace, one by one, as the kernel itself would find them (sock_diag).

A question names both ends, and the kernel looks in its own hash tables: the cost does not grow with the number
of connections, and connected before bound, specific before wildcard is decided as for a packet. pyroute2 offers
only the listing of all sockets.
"""

import contextlib
import errno
import socket
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from netmon.kernel.owners.endpoint import Endpoint, packed_address

LISTEN = 10  # TCP_LISTEN
_SOCK_DIAG = 4  # NETLINK_SOCK_DIAG
_BY_FAMILY, _REQUEST, _ERROR = 20, 1, 2
_HEADER = struct.Struct("=IHHII")
_QUESTION = struct.Struct("=BBBBI2s2s16s16sIII")  # struct inet_diag_req_v2
_ANSWER = struct.Struct("=BBBB2s2s16s16sIIIIIIII")  # struct inet_diag_msg
_ANY_COOKIE = 0xFFFFFFFF
_ALL_STATES = 0xFFFFFFFF
_AT_A_TIME = 32  # the answers have to fit into the socket's buffer
_RECEIVE_BYTES = 1 << 16


class Found(NamedTuple):
    """A socket. inode 0: no process has it (any more, or not yet)."""

    inode: int
    listening: bool = False
    connected: bool = True


class SocketDiagnosis:
    """Asks the kernel. A question takes some 10 µs; blocks only for as long as the kernel takes."""

    def __init__(self) -> None:
        """Raises OSError where the kernel has no sock_diag."""
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG)
        self._socket.settimeout(1.0)

    def find(self, endpoints: Sequence[Endpoint]) -> list[Found | None]:
        """The socket of each endpoint, None where there is none."""
        found: list[Found | None] = [None] * len(endpoints)
        for begin in range(0, len(endpoints), _AT_A_TIME):
            for number, answer in self._ask(endpoints[begin : begin + _AT_A_TIME]):
                found[begin + number] = answer
        return found

    def _ask(self, endpoints: Sequence[Endpoint]) -> Iterator[tuple[int, Found]]:
        self._socket.send(b"".join(_question(number, endpoint) for number, endpoint in enumerate(endpoints)))
        waiting = len(endpoints)
        while waiting:
            try:
                packet = self._socket.recv(_RECEIVE_BYTES)
            except OSError as error:  # answers lost, or none: unknown, to be asked again
                if error.errno not in (errno.ENOBUFS, None):
                    raise
                self._discard()
                return
            for number, kind, body in _messages(packet):
                waiting -= 1
                found = _found(endpoints[number], body) if kind == _BY_FAMILY else None
                if found:
                    yield number, found

    def _discard(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._socket.recv(_RECEIVE_BYTES, socket.MSG_DONTWAIT):
                pass

    def close(self) -> None:
        """Not to be used any more."""
        self._socket.close()


def _question(number: int, endpoint: Endpoint) -> bytes:
    ends = [_end(endpoint.local, endpoint.local_port), _end(endpoint.remote, endpoint.remote_port)]
    if endpoint.protocol == socket.IPPROTO_UDP:  # net/ipv4/udp_diag.c: "src and dst are swapped for historical reasons"
        ends.reverse()
    (source, source_port), (destination, destination_port) = ends
    family = socket.AF_INET6 if ":" in endpoint.local else socket.AF_INET
    body = _QUESTION.pack(
        *(family, endpoint.protocol, 0, 0, _ALL_STATES, source_port, destination_port, source, destination),
        *(0, _ANY_COOKIE, _ANY_COOKIE),
    )
    return _HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, _REQUEST, number, 0) + body


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


def _found(endpoint: Endpoint, body: bytes) -> Found | None:
    _, state, _, _, port, remote_port, *_, inode = _ANSWER.unpack_from(body)
    if int.from_bytes(port, "big") != endpoint.local_port:
        return None
    listening = endpoint.protocol == socket.IPPROTO_TCP and state == LISTEN
    return Found(inode, listening, connected=any(remote_port) and not listening)
