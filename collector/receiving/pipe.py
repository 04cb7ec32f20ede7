# SPDX-License-Identifier: Apache-2.0
"""A pipe of objects between two processes of ours: what is large is read into its place, and not copied again."""

import asyncio
import pickle
import socket
import struct
from collections import deque
from typing import Any, cast

_COUNT = struct.Struct("<Q")
_LARGE = 64 << 10  # columns from here on go beside the pickled frame
_MOST_WAITING = 8 << 20  # bytes of frames that nobody has asked for: no more is read


class Pipe(asyncio.BufferedProtocol):
    """One end of it; lives on one event loop. What is sent waits in memory until the other end takes it.

    A frame is the number of its parts, their lengths, and the parts: the pickled object, then the memory of its arrays.
    """

    def __init__(self) -> None:
        """`open` makes one."""
        self._transport: asyncio.Transport | None = None
        self._frames: deque[list[bytearray]] = deque()
        self._waiting = 0  # bytes of frames that nobody has asked for
        self._parts: list[bytearray] = []  # of the frame that comes
        self._lengths: list[int] = []  # of its parts that have not begun; the last one first
        self._counted = self._measured = False  # what is read is a count of parts, their lengths, or a part
        self._expect(_COUNT.size)
        self._came, self._room = asyncio.Event(), asyncio.Event()
        self._room.set()
        self._lost = False

    @classmethod
    async def open(cls, connected: socket.socket) -> "Pipe":
        """connected: a socket of two, from now on the pipe's."""
        _, pipe = await asyncio.get_running_loop().create_connection(cls, sock=connected)
        return pipe

    def send(self, frame: object) -> None:
        """Does not block. A frame for who is gone is lost."""
        aside: list[pickle.PickleBuffer] = []

        def keep(part: pickle.PickleBuffer) -> bool:
            large = part.raw().nbytes >= _LARGE
            if large:
                aside.append(part)
            return not large

        pickled = pickle.dumps(frame, protocol=5, buffer_callback=keep)
        parts = [memoryview(pickled), *(part.raw() for part in aside)]
        head = struct.pack(f"<{1 + len(parts)}Q", len(parts), *(part.nbytes for part in parts))
        if self._transport and not self._transport.is_closing():
            self._transport.write(b"".join((head, *parts)))

    async def drained(self) -> None:
        """Wait until not much waits any more. Raises OSError where the other end is gone."""
        await self._room.wait()
        if self._lost:
            raise ConnectionResetError("the other end is gone")

    async def receive(self) -> Any:
        """The next frame. Raises EOFError where the other end is gone."""
        while not self._frames:
            if self._lost:
                raise EOFError("the other end is gone")
            self._came.clear()
            await self._came.wait()
        pickled, *aside = self._frames.popleft()
        self._waiting -= len(pickled) + sum(map(len, aside))
        if self._transport and not self._lost and self._waiting <= _MOST_WAITING:
            self._transport.resume_reading()
        return pickle.loads(pickled, buffers=aside)

    def close(self) -> None:
        """The other end sees that this one is gone."""
        if self._transport:
            self._transport.close()

    # --- what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The pipe is open."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """One of the two has closed it."""
        self._lost = True
        self._came.set()
        self._room.set()

    def pause_writing(self) -> None:
        """Much waits for the other end."""
        self._room.clear()

    def resume_writing(self) -> None:
        """Not much waits any more."""
        self._room.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where what comes next is put."""
        return memoryview(self._part)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes of it have come."""
        self._filled += nbytes
        if self._filled < len(self._part):
            return
        if not self._counted:
            self._counted = True
            self._expect(_COUNT.size * _COUNT.unpack(self._part)[0])
            return
        if not self._measured:
            self._measured = True
            self._lengths = [length for (length,) in _COUNT.iter_unpack(self._part)][::-1]
        else:
            self._parts.append(self._part)
        if self._lengths:
            self._expect(self._lengths.pop())
            return
        self._frames.append(self._parts)
        self._waiting += sum(map(len, self._parts))
        self._parts, self._counted, self._measured = [], False, False
        self._expect(_COUNT.size)
        self._came.set()
        if self._waiting > _MOST_WAITING and self._transport:
            self._transport.pause_reading()

    def _expect(self, length: int) -> None:
        self._part, self._filled = bytearray(length), 0
