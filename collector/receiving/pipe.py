# SPDX-License-Identifier: Apache-2.0
"""Objects between two processes of ours: pickled, each behind its length, over a stream of asyncio."""

import asyncio
import pickle
import socket
import struct
from typing import Any

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
