# SPDX-License-Identifier: Apache-2.0
"""What the collector and the process that receives for it tell each other.

Streams and calls are known by numbers that the receiving process gives. What has come on all streams goes over in one
frame.
"""

import asyncio
import pickle
import socket
import struct
from dataclasses import dataclass, field
from typing import Any

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
    """All that has come. allowance: in force from now on."""

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
_MOST_WAITING = 4 << 20  # bytes that nobody has asked for: of more than twice as many no more is read


class Pipe:
    """One end of it; lives on one event loop. What is sent waits in memory until the other end takes it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """`open` makes one."""
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, connected: socket.socket) -> "Pipe":
        """connected: a socket of two, from now on the pipe's."""
        return cls(*await asyncio.open_connection(sock=connected, limit=_MOST_WAITING))

    def send(self, frame: object) -> None:
        """Does not block. A frame for who is gone is lost."""
        pickled = pickle.dumps(frame, protocol=5)
        if not self._writer.is_closing():
            self._writer.write(_LENGTH.pack(len(pickled)))
            self._writer.write(pickled)

    async def drained(self) -> None:
        """Wait until not much waits any more. Raises OSError where the other end is gone."""
        await self._writer.drain()

    async def receive(self) -> Any:
        """The next frame. Raises EOFError where the other end is gone. Whoever cancels it receives no more."""
        (length,) = _LENGTH.unpack(await self._read(_LENGTH.size))
        return pickle.loads(await self._read(length))

    def close(self) -> None:
        """The other end sees that this one is gone."""
        self._writer.close()

    async def _read(self, length: int) -> bytes:
        try:
            return await self._reader.readexactly(length)
        except (OSError, EOFError) as error:
            self.close()
            raise EOFError("the other end is gone") from error
