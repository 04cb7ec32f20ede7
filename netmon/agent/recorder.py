# SPDX-License-Identifier: Apache-2.0
"""The flight recorder: full resolution of the last minutes, in a bounded ring on this host.

It serves a living agent and survives nothing: files are not synced, and a new agent begins anew. Rows are kept as they
travel (netmon.wire.buckets), a block of about a second at a time, so that an answer is a copy.
"""

import contextlib
import logging
import os
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from netmon.agent.settings import Settings
from netmon.errors import DataError, NetmonError
from netmon.kernel.stalling import StallingCalls
from netmon.records import BUCKET, Table
from netmon.wire import netmon_pb2
from netmon.wire.buckets import decode_buckets, encode_buckets

log = logging.getLogger(__name__)

# --- Where the recorder keeps its blocks: chunks in memory, or files that no name points to once they are open.

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


# --- recorder


_Words = npt.NDArray[np.uint64]
_BLOCK_ROWS = 1 << 16
_BLOCK_NS = 1_000_000_000
_AGAIN_NS = 10_000_000_000  # after a disk has failed


@dataclass(frozen=True)
class _Block:
    begin_ns: int  # mono, of its first bucket
    end_ns: int  # of its last one
    chunk: Chunk
    offset: int
    size: int


class Recorder:
    """Thread-safe: one thread adds, another reads. While its disk fails nothing is recorded; then it begins anew."""

    def __init__(self, store: Store, bucket_ns: int, time_ns: int, limit_bytes: int, since_ns: int) -> None:
        """bucket_ns: of the rows; time_ns, limit_bytes: what is kept, whichever is less; since_ns: now (mono)."""
        self._store, self._bucket_ns, self._time_ns, self._limit = store, bucket_ns, time_ns, limit_bytes
        self._lock = threading.Lock()
        self._blocks: deque[_Block] = deque()
        self._waiting: list[_Words] = []
        self._waiting_rows, self._block_due_ns = 0, since_ns + _BLOCK_NS
        self._since_ns = since_ns  # what began before is not here
        self._until_ns = since_ns  # what ended before is here
        self._again_ns = 0
        self.trouble = ""
        """Why it records nothing now; empty: it does."""
        self.lost_rows = 0
        """Rows that came after that."""

    def add(self, rows: Table, until_ns: int) -> None:
        """Take in rows of BUCKET (copied). until_ns: nothing that ended before is to come."""
        with self._lock:
            if self.trouble and not self._begins_anew(until_ns):
                self.lost_rows += len(rows)
                return
            if len(rows):
                self._waiting.append(_words(rows).copy())
                self._waiting_rows += len(rows)
            self._until_ns = until_ns
            if self._waiting_rows >= _BLOCK_ROWS or until_ns >= self._block_due_ns:
                self._write()
                self._block_due_ns = until_ns + _BLOCK_NS
            self._forget(before_ns=until_ns - self._time_ns)

    def read(self, since_ns: int, until_ns: int) -> Iterator[netmon_pb2.Buckets]:
        """The rows whose buckets begin in [since_ns, until_ns), in messages of about a second. Raises DataError."""
        with self._lock:
            self._write()
            blocks = [b for b in self._blocks if b.end_ns >= since_ns and b.begin_ns < until_ns]
        for block in blocks:
            message = netmon_pb2.Buckets.FromString(block.chunk.read(block.offset, block.size))
            if block.begin_ns >= since_ns and block.end_ns < until_ns:
                yield message
                continue
            rows = decode_buckets(message)
            start = rows["bucket_start_ns"]
            rows = rows[(start >= np.uint64(max(0, since_ns))) & (start < np.uint64(max(0, until_ns)))]
            if len(rows):
                yield encode_buckets(rows, self._bucket_ns, netmon_pb2.Buckets(), deflate=False)

    def gap(self, since_ns: int, until_ns: int) -> str:
        """What of the window it does not have, and why; empty: nothing is missing."""
        with self._lock:
            begin, end = self._since_ns, self._until_ns
        missing = []
        if since_ns < begin:
            missing.append(f"the first {(min(begin, until_ns) - since_ns) / 1e9:.3f} s are not recorded any more")
        if until_ns > end:
            why = self.trouble or "are not over yet"
            missing.append(f"the last {(until_ns - max(end, since_ns)) / 1e9:.3f} s {why}")
        return "; ".join(missing)

    def depth(self) -> tuple[int, float]:
        """Bytes that are kept, and of how many seconds."""
        with self._lock:
            return self._store.size, max(0, self._until_ns - self._since_ns) / 1e9

    def adjust(self, options: Mapping[str, int]) -> list[str]:
        """record_time_ns and record_bytes, where they are among them, hold from now on; returns which were."""
        with self._lock:
            self._time_ns = options.get("record_time_ns", self._time_ns)
            self._limit = options.get("record_bytes", self._limit)
        return [name for name in ("record_time_ns", "record_bytes") if name in options]

    def close(self) -> None:
        """Removes what was recorded."""
        with self._lock:
            self._blocks.clear()
            self._store.close()

    def _write(self) -> None:
        if not self._waiting:
            return
        rows: Table = np.concatenate(self._waiting).view(BUCKET)
        self._waiting, self._waiting_rows = [], 0
        for first in range(0, len(rows), _BLOCK_ROWS):
            block = rows[first : first + _BLOCK_ROWS]
            try:
                self._append(block)
            except DataError as error:
                self.trouble, self._again_ns = f"are not recorded: {error}", self._until_ns + _AGAIN_NS
                self.lost_rows += len(rows) - first
                self._until_ns = min(self._until_ns, int(rows["bucket_start_ns"][first:].min()))
                log.warning("nothing is recorded for the time being: %s", error)
                return

    def _begins_anew(self, now_ns: int) -> bool:
        """Whether the disk takes something again: what was recorded before is given up then."""
        if now_ns < self._again_ns:
            return False
        self._again_ns = now_ns + _AGAIN_NS
        try:
            self._store.try_out()
        except DataError:
            return False
        self._blocks.clear()
        self._store.close()
        self._since_ns = self._until_ns = now_ns
        self.trouble = ""
        log.warning("full resolution is recorded again")
        return True

    def _append(self, rows: Table) -> None:
        start = rows["bucket_start_ns"]
        data = encode_buckets(rows, self._bucket_ns, netmon_pb2.Buckets(), deflate=False).SerializeToString()
        while self._blocks and self._store.size + len(data) > self._limit:
            self._forget(before_ns=0, chunk=self._blocks[0].chunk)
        chunk, offset = self._store.append(data)
        self._blocks.append(_Block(int(start.min()), int(start.max()), chunk, offset, len(data)))

    def _forget(self, before_ns: int, chunk: Chunk | None = None) -> None:
        """The oldest blocks that end before, and all of a chunk: its room is given back as a whole."""
        while self._blocks and (self._blocks[0].chunk is chunk or self._blocks[0].end_ns < before_ns):
            gone = self._blocks.popleft()
            self._since_ns = max(self._since_ns, gone.end_ns + self._bucket_ns)
            if not self._blocks or self._blocks[0].chunk is not gone.chunk:
                self._store.drop(gone.chunk)


def _words(rows: Table) -> _Words:
    """Rows of BUCKET, to be copied in a fraction of the time."""
    return rows.view(np.uint64)


def start_recorder(settings: Settings) -> Recorder | None:
    """Where there is no room for it, the agent works without, and says so."""
    if settings.record == "off" or not settings.record_time_ns:
        return None
    chunk_bytes = min(CHUNK_BYTES, max(1, settings.record_bytes // 8))
    try:
        store = on_disk(settings.record_folder, chunk_bytes) if settings.record_folder else in_memory(chunk_bytes)
    except DataError as error:
        log.warning("nothing is recorded: %s", error)
        return None
    return Recorder(store, settings.bucket_ns, settings.record_time_ns, settings.record_bytes, time.monotonic_ns())


# --- Answers to the collector's requests, behind the live batches and no faster than a given rate.

MOST_REQUESTS = 16
"""Requests that are answered at a time, in turn; one beyond them is refused."""

ANSWER_RATE = 4_000_000
"""Bytes per second, of all answers together."""


class Pulls:
    """One per agent. Thread-safe: one thread asks, another takes the answers."""

    def __init__(self, recorder: Recorder | None) -> None:
        """recorder: None where the agent has none."""
        self._recorder = recorder
        self._lock = threading.Lock()
        self._answers: deque[Iterator[netmon_pb2.FullAnswer]] = deque()
        self._due_s = 0.0

    def add_request(self, request: netmon_pb2.FullRequest) -> None:
        with self._lock:
            busy = len(self._answers) >= MOST_REQUESTS
            self._answers.append(iter((_end(request, "the agent answers others"),)) if busy else self._answer(request))

    def take(self) -> bytes | None:
        """The next answer, an AgentMessage; None where none is due."""
        with self._lock:
            while self._answers and time.monotonic() >= self._due_s:
                answer = next(self._answers[0], None)
                if answer is None:
                    self._answers.popleft()
                    continue
                self._answers.rotate(-1)
                message: bytes = netmon_pb2.AgentMessage(full=answer).SerializeToString()
                self._due_s = time.monotonic() + len(message) / ANSWER_RATE
                return message
        return None

    def patience(self) -> float | None:
        """For how many seconds one may wait for other things until an answer is due; None: nothing was requested."""
        with self._lock:
            return max(0.0, self._due_s - time.monotonic()) if self._answers else None

    def clear(self) -> None:
        """The connection has ended, and with it every request."""
        with self._lock:
            self._answers.clear()

    def _answer(self, request: netmon_pb2.FullRequest) -> Iterator[netmon_pb2.FullAnswer]:
        if self._recorder is None:
            yield _end(request, "the agent records nothing (--record off)")
            return
        since_ns, until_ns, rows = request.since_ns, request.until_ns, 0
        # What the recorder forgets meanwhile is still sent: this list keeps it.
        gap = self._recorder.gap(since_ns, until_ns)
        try:
            for buckets in self._recorder.read(since_ns, until_ns):
                rows += buckets.rows
                if rows > request.most_rows:
                    yield _end(request, _joined(gap, f"there are more than {request.most_rows} rows"))
                    return
                yield netmon_pb2.FullAnswer(number=request.number, buckets=buckets)
        except NetmonError as error:
            gap = _joined(gap, str(error))
        yield _end(request, gap)


def _end(request: netmon_pb2.FullRequest, gap: str) -> netmon_pb2.FullAnswer:
    return netmon_pb2.FullAnswer(number=request.number, last=True, gap=gap)


def _joined(*gaps: str) -> str:
    return "; ".join(filter(None, gaps))
