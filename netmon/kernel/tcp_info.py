# SPDX-License-Identifier: Apache-2.0
"""What TCP itself says of a connection (struct tcp_info of linux/tcp.h), asked socket by socket."""

import struct
from collections.abc import Sequence

import numpy as np

from netmon.kernel.owners.endpoint import Endpoint
from netmon.kernel.sock_diag import INFO, LISTEN, DiagnosisSocket
from netmon.records import Table, empty

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
}
_INFO_BYTES = 232
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
        return body[index : index + _INFO_BYTES] if index + _INFO_BYTES <= len(body) else None

    def close(self) -> None:
        """Not to be used any more."""
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
