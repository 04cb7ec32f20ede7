# SPDX-License-Identifier: Apache-2.0
"""Where the recorder keeps its blocks: chunks in memory, or files that no name points to once they are open."""

import os
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from netmon.errors import DataError

CHUNK_BYTES = 4 << 20


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
            raise DataError(f"cannot write a record: {error.strerror}") from None
        self.size += len(data)
        return chunk, offset

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
    """A store of files in a directory. Nothing is left behind, however the process ends. Raises DataError."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _FileChunk(directory)
    except OSError as error:
        raise DataError(f"cannot record in {directory}: {error.strerror}; give another --record") from None
    return Store(lambda: _FileChunk(directory), chunk_bytes)


class _MemoryChunk:
    def __init__(self) -> None:
        self._data = bytearray()
        self.size = 0

    def append(self, data: bytes) -> None:
        self._data += data
        self.size += len(data)

    def read(self, offset: int, size: int) -> bytes:
        return bytes(self._data[offset : offset + size])


class _FileChunk:
    def __init__(self, directory: Path) -> None:
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            self._descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._descriptor)  # an answer may still read what the ring has dropped
        self.size = 0

    def append(self, data: bytes) -> None:
        written = 0
        while written < len(data):
            written += os.pwrite(self._descriptor, data[written:], self.size + written)
        self.size += len(data)

    def read(self, offset: int, size: int) -> bytes:
        try:
            return os.pread(self._descriptor, size, offset)
        except OSError as error:
            raise DataError(f"cannot read a record: {error.strerror}") from None
