# SPDX-License-Identifier: Apache-2.0
"""Where the recorder keeps its blocks: chunks in memory, or files that no name points to once they are open."""

import contextlib
import os
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from netmon.errors import DataError
from netmon.kernel.stalling import StallingCalls

CHUNK_BYTES = 4 << 20
_ANSWERS_S = 0.5


class Chunk(Protocol):
    """Some blocks, one after the other; it is there as long as somebody holds it."""

    size: int

    def append(self, data: bytes) -> None:
        """Raises OSError; what was there before stays."""

    def read(self, offset: int, size: int) -> bytes:
        """Raises DataError."""


class Store:
    """The chunks of one recorder, newest last."""

    def __init__(self, make: Callable[[], Chunk], chunk_bytes: int = CHUNK_BYTES) -> None:
        """make: a new chunk; raises OSError. chunk_bytes: from which size on a chunk takes no more."""
        self._make, self._chunk_bytes = make, chunk_bytes
        self._chunks: list[Chunk] = []
        self.size = 0

    def append(self, data: bytes) -> tuple[Chunk, int]:
        """Where it is now: the chunk and the offset in it. Raises DataError."""
        try:
            if not self._chunks or self._chunks[-1].size >= self._chunk_bytes:
                self._chunks.append(self._make())
            chunk, offset = self._chunks[-1], self._chunks[-1].size
            chunk.append(data)
        except OSError as error:
            raise DataError(f"cannot write a record: {_reason(error)}") from None
        self.size += len(data)
        return chunk, offset

    def try_out(self) -> None:
        """Writes something that is not kept. Raises DataError."""
        try:
            self._make().append(b"?")
        except OSError as error:
            raise DataError(f"cannot write a record: {_reason(error)}") from None

    def drop(self, chunk: Chunk) -> None:
        """Gives its room back, as soon as nobody reads it any more."""
        self._chunks.remove(chunk)
        self.size -= chunk.size

    def close(self) -> None:
        """Gives all of it back."""
        self._chunks, self.size = [], 0


def in_memory(chunk_bytes: int) -> Store:
    """A store that takes memory."""
    return Store(_MemoryChunk, chunk_bytes)


def on_disk(directory: Path, chunk_bytes: int) -> Store:
    """A store of files in a directory. Nothing is left behind, however the process ends. Raises DataError.

    A disk that does not answer is one that fails: nobody waits for it for longer than half a second.
    """
    disk = _Disk(directory)
    try:
        disk.writing.call(None, lambda: directory.mkdir(parents=True, exist_ok=True), lambda late: None)
        _FileChunk(disk)
    except OSError as error:
        raise DataError(f"cannot record in {directory}: {_reason(error)}; give another --record") from None
    return Store(lambda: _FileChunk(disk), chunk_bytes)


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


class _MemoryChunk:
    def __init__(self) -> None:
        self._data = bytearray()
        self.size = 0

    def append(self, data: bytes) -> None:
        self._data += data
        self.size += len(data)

    def read(self, offset: int, size: int) -> bytes:
        return bytes(self._data[offset : offset + size])


class _Disk:
    """A directory, and who writes and reads there: one caller each."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.writing, self.reading = (StallingCalls(_ANSWERS_S, most=1) for _ in range(2))

    def close(self, descriptor: int) -> None:
        """Of one that does not answer a file stays open until the process ends."""
        with contextlib.suppress(OSError):
            self.writing.call(None, lambda: os.close(descriptor), lambda late: None)


def _close(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)


class _FileChunk:
    def __init__(self, disk: _Disk) -> None:
        def make() -> int:
            with tempfile.TemporaryFile(dir=disk.directory, buffering=0) as file:
                return os.dup(file.fileno())

        self._disk, self._descriptor = disk, disk.writing.call(None, make, _close)
        # Not when it is dropped from the ring: an answer may still read it.
        over = weakref.finalize(self, disk.close, self._descriptor)
        over.atexit = False
        self.size = 0

    def append(self, data: bytes) -> None:
        descriptor, offset = self._descriptor, self.size

        def write() -> None:
            written = 0
            while written < len(data):
                written += os.pwrite(descriptor, data[written:], offset + written)

        self._disk.writing.call(None, write, lambda late: None)
        self.size += len(data)

    def read(self, offset: int, size: int) -> bytes:
        descriptor = self._descriptor
        try:
            return self._disk.reading.call(None, lambda: os.pread(descriptor, size, offset), lambda late: None)
        except OSError as error:
            raise DataError(f"cannot read a record: {_reason(error)}") from None
