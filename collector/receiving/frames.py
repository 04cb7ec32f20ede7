# SPDX-License-Identifier: Apache-2.0
"""What the collector and the process that receives for it send each other.

Streams and calls are known by numbers that the receiving process gives. What has come on all streams goes over in one
frame.
"""

import asyncio
import os
import pickle
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np

from collector.agent_checks import End
from collector.settings import DEFAULT_RATES, ListenConfig, Rates
from netmon.records import Hello, Table
from netmon.wire.batch_fields import ManyBatches
from netmon.wire.security import Identity

STREAM_STATE = np.dtype(
    [
        ("stream", "<i8"),
        ("sequence", "<u8"),
        ("bucket_ns", "<u8"),
        ("batch_ns", "<u8"),
        ("within_ns", "<u8"),
        ("rows_per_s", "<f8"),
    ]
)
"""What an agent is sent; rows_per_s: no more are read of it, 0: as they come."""

# --- to the receiving process


@dataclass(frozen=True)
class Listen:
    """The first frame. streams: agents may connect, and do not come by the bus."""

    address: str
    listen_config: ListenConfig
    streams: bool


@dataclass(frozen=True)
class Give:
    """All that has come. rates: in force from now on."""

    rates: Rates = DEFAULT_RATES


@dataclass(frozen=True)
class Opened:
    """A stream's session is there; place: of it in the host stage."""

    stream: int
    session: int


@dataclass(frozen=True)
class StreamStates:
    """To the agents of many streams; dtype STREAM_STATE."""

    streams: Table


@dataclass(frozen=True)
class AgentRequest:
    """An acknowledgement with a request, as it goes to the agent of one stream."""

    stream: int
    data: bytes


@dataclass(frozen=True)
class Ended:
    """A stream or call ends; how: the status for gRPC, None: in order."""

    number: int
    how: End | None = None


@dataclass(frozen=True)
class Answer:
    """A message for whoever has called."""

    call: int
    data: bytes


@dataclass(frozen=True)
class Serves:
    """Whether rows are taken in; leaving: and will not be any more."""

    why_not: str
    leaving: bool = False


@dataclass(frozen=True)
class Stop:
    """Whoever is still connected is cut off after so long."""

    grace_s: float


# --- from the receiving process


@dataclass(frozen=True)
class Listening:
    """It does; trouble: why it does not, and as which NetmonError."""

    trouble: str = ""
    kind: str = ""


@dataclass(frozen=True)
class Introduced:
    """An agent has said hello on a stream."""

    stream: int
    hello: Hello


@dataclass(frozen=True)
class Received:
    """What has come since the last time, by session index, each session in its own order. Sequences of one length."""

    many: ManyBatches
    streams: list[int]  # of each batch
    sequences: list[int]
    raw: list[bytes]  # the messages
    failed: list[tuple[int, bytes, str]] = field(default_factory=list)  # stream, message, at which reading fails
    left: list[int] = field(default_factory=list)  # streams that have said their last word


@dataclass(frozen=True)
class CutOff:
    """A stream is gone before its agent had said its last word."""

    stream: int


@dataclass(frozen=True)
class Full:
    """An agent's FullAnswer."""

    stream: int
    data: bytes


@dataclass(frozen=True)
class Called:
    """Somebody calls a method that the collector answers."""

    call: int
    method: str
    data: bytes
    identity: Identity | None


@dataclass(frozen=True)
class Written:
    """The last answer of a call is on its way: the next one may follow."""

    call: int


@dataclass(frozen=True)
class HungUp:
    """Who has called has gone."""

    call: int


# --- Objects between two processes of ours: pickled, each behind its length, over a stream of asyncio.


_LENGTH = struct.Struct("<Q")
_MOST_WAITING = 4 << 20  # bytes that nobody has requested: of more than twice as many no more is read
_AT_ONCE = 1_000  # arrays, of 1,024 that the kernel takes (IOV_MAX)
_KEPT = 64 << 20  # bytes of memory that is not given back


class Large(NamedTuple):
    """A frame that is in the memory that both ends have: pickled without its arrays, and behind it these."""

    sizes: list[int]


class Pipe:
    """One end of it; lives on one event loop. What is sent waits in memory until the other end takes it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, memory: int) -> None:
        """`open` makes one."""
        self._reader, self._writer, self._memory = reader, writer, memory

    @classmethod
    async def open(cls, connected: socket.socket, memory: int = -1) -> "Pipe":
        """connected: of a pair; memory: a memfd that both ends have, −1: there is none. Both are the pipe's now."""
        return cls(*await asyncio.open_connection(sock=connected, limit=_MOST_WAITING), memory)

    def send(self, frame: object) -> None:
        """Does not block. A frame for who is gone is lost."""
        pickled = pickle.dumps(frame, protocol=5)
        if not self._writer.is_closing():
            self._writer.write(_LENGTH.pack(len(pickled)))
            self._writer.write(pickled)

    def send_large(self, frame: object) -> None:
        """The same of a frame that the other end has received before the next large one is sent.

        Arrays of some MB go over at once, and not by what a socket takes at a time.
        """
        if self._memory < 0:
            self.send(frame)
            return
        buffers: list[pickle.PickleBuffer] = []
        pickled = pickle.dumps(frame, protocol=5, buffer_callback=buffers.append)
        parts = [memoryview(pickled), *(buffer.raw() for buffer in buffers)]
        offset = 0
        for some in _slices(parts):
            offset += os.pwritev(self._memory, some, offset)
        sizes = [len(part) for part in parts]
        if offset != sum(sizes):
            raise OSError("there is no memory for what agents have sent")
        self.send(Large(sizes))

    async def drained(self) -> None:
        """Wait until not much waits any more. Raises OSError where the other end is gone."""
        await self._writer.drain()

    async def receive(self) -> Any:
        """The next frame. Raises EOFError where the other end is gone. Whoever cancels it receives no more."""
        (length,) = _LENGTH.unpack(await self._read(_LENGTH.size))
        frame = pickle.loads(await self._read(length))
        return self._receive_large(frame) if isinstance(frame, Large) else frame

    def close(self) -> None:
        """The other end sees that this one is gone."""
        self._writer.close()
        memory, self._memory = self._memory, -1
        if memory >= 0:
            os.close(memory)

    def _receive_large(self, large: Large) -> Any:
        parts = [np.empty(size, np.uint8).data for size in large.sizes]
        offset = 0
        for some in _slices(parts):
            offset += os.preadv(self._memory, some, offset)
        if offset > _KEPT:
            os.ftruncate(self._memory, 0)
        return pickle.loads(parts[0], buffers=parts[1:])

    async def _read(self, length: int) -> bytes:
        try:
            return await self._reader.readexactly(length)
        except (OSError, EOFError) as error:
            self.close()
            raise EOFError("the other end is gone") from error


_T = TypeVar("_T")


def _slices(some: Sequence[_T]) -> Iterator[Sequence[_T]]:
    for begin in range(0, len(some), _AT_ONCE):
        yield some[begin : begin + _AT_ONCE]
