# SPDX-License-Identifier: Apache-2.0
"""The queue pairs that processes have on RDMA devices, as the kernel lists them (`rdma resource show qp`), by netlink.

It knows of all, however they are posted on; of bytes it knows nothing. Needs no privilege.
"""

import contextlib
import socket
import struct
import sys
from collections.abc import Iterator
from typing import NamedTuple

_NETLINK_RDMA, _NLDEV = 20, 5
_GET, _GET_QUEUES = 1, 10  # RDMA_NLDEV_CMD_GET, RDMA_NLDEV_CMD_RES_QP_GET
_REQUEST_DUMP = 1 | 0x300  # NLM_F_REQUEST | NLM_F_DUMP
_ERROR, _DONE = 2, 3
_DEVICE, _DEVICE_NAME = 1, 2  # RDMA_NLDEV_ATTR_…
_QUEUES, _QUEUE, _NUMBER, _REMOTE_NUMBER, _PID = 19, 20, 21, 22, 28
_HEAD = struct.Struct("=IHHII")  # length, type, flags, sequence, pid
_ATTRIBUTE = struct.Struct("=HH")  # length, type
_NESTED = 0x3FFF
_MOST_MESSAGES, _MESSAGE_BYTES = 4096, 1 << 16
_LIMIT_S = 0.5


class QueuePair(NamedTuple):
    """Of a process; a kernel's own are left out. remote: number of the other end's; 0: not known."""

    device: str
    number: int
    remote: int
    pid: int


def queue_pairs() -> list[QueuePair]:
    """Of all devices; empty where there are none, or the kernel does not tell."""
    found: list[QueuePair] = []
    with contextlib.suppress(OSError), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_RDMA) as own:
        own.settimeout(_LIMIT_S)
        devices = [_attributes(body) for body in _dump(own, _GET, b"")]
        for number in sorted({_u32(device.get(_DEVICE, b"")) for device in devices if _DEVICE in device}):
            for body in _dump(own, _GET_QUEUES, _ATTRIBUTE.pack(8, _DEVICE) + struct.pack("=I", number)):
                found += read_queues(body)
    return found


def read_queues(body: bytes) -> list[QueuePair]:
    """Of one message of the kernel's."""
    top = _attributes(body)
    name = top.get(_DEVICE_NAME, b"").rstrip(b"\0").decode(errors="replace")
    pairs = []
    for kind, value in _each(top.get(_QUEUES, b"")):
        own = _attributes(value) if kind == _QUEUE else {}
        if _PID in own and _NUMBER in own:
            pairs.append(QueuePair(name, _u32(own[_NUMBER]), _u32(own.get(_REMOTE_NUMBER, b"")), _u32(own[_PID])))
    return pairs


def _dump(own: socket.socket, command: int, attributes: bytes) -> Iterator[bytes]:
    """Bodies of the messages of an answer."""
    kind = _NLDEV << 10 | command
    own.send(_HEAD.pack(_HEAD.size + len(attributes), kind, _REQUEST_DUMP, 1, 0) + attributes)
    for _ in range(_MOST_MESSAGES):
        data = own.recv(_MESSAGE_BYTES)
        while len(data) >= _HEAD.size:
            length, got, *_ = _HEAD.unpack_from(data)
            if got in (_ERROR, _DONE) or not _HEAD.size <= length <= len(data):
                return
            yield data[_HEAD.size : length]
            data = data[length + 3 & ~3 :]
    raise OSError(f"more than {_MOST_MESSAGES} messages")


def _each(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        if not _ATTRIBUTE.size <= length <= len(data):
            return
        yield kind & _NESTED, data[_ATTRIBUTE.size : length]
        data = data[length + 3 & ~3 :]


def _attributes(data: bytes) -> dict[int, bytes]:
    return dict(_each(data))


def _u32(value: bytes) -> int:
    return int.from_bytes(value[:4], sys.byteorder)
