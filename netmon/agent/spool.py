# SPDX-License-Identifier: Apache-2.0
"""Batches that the collector has not acknowledged, on disk: they outlive a collector's absence and the agent itself.

A session is a directory: `hello`, and a file per batch named by its sequence number. What does not fit the bound
loses its buckets, oldest first, and keeps its place: the sequence has no gap, and the loss is counted.
"""

import contextlib
import fcntl
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from netmon.errors import DataError

log = logging.getLogger(__name__)

Hollow = Callable[[bytes], bytes]
"""A batch → the same batch without its buckets; counts them as lost."""


class Spool:
    """One session's batches. Thread-safe: one thread appends, another reads and acknowledges."""

    def __init__(self, directory: Path, session: str, limit_bytes: int, hollow: Hollow) -> None:
        """Makes DIRECTORY/SESSION and locks it. Raises DataError."""
        self.directory = directory / session
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._lock_file = open(self.directory / "lock", "w")  # noqa: SIM115 (held as long as the spool)
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise DataError(
                f"cannot use {self.directory} as a spool: {error.strerror}; give another --spool"
            ) from error
        self._limit_bytes = limit_bytes
        self._hollow = hollow
        self._changed = threading.Condition()
        self._sizes: dict[int, int] = {}  # by sequence, in order
        self._memory: dict[int, bytes] = {}  # what the disk would not take
        self._full_below = 1  # everything below has been hollowed already
        for path in sorted(self.directory.glob("*.batch")):
            self._sizes[int(path.stem)] = path.stat().st_size

    @property
    def size(self) -> int:
        """Bytes that wait."""
        with self._changed:
            return sum(self._sizes.values())

    @property
    def hello(self) -> bytes:
        """As written last; empty before."""
        path = self.directory / "hello"
        return path.read_bytes() if path.exists() else b""

    @hello.setter
    def hello(self, message: bytes) -> None:
        with contextlib.suppress(OSError):  # only a later session would miss it
            (self.directory / "hello").write_bytes(message)

    def append(self, sequence: int, message: bytes) -> None:
        """Keeps a batch until it is acknowledged."""
        self._write(sequence, message)
        with self._changed:
            self._sizes[sequence] = len(message)
            self._changed.notify_all()
        self._bound()

    def replace(self, sequence: int) -> None:
        """Takes a batch's buckets out, for good."""
        message = self._hollow(self._read(sequence))
        self._write(sequence, message)
        with self._changed:
            self._sizes[sequence] = len(message)

    def acknowledge(self, sequence: int) -> None:
        """Forgets all batches up to this one."""
        with self._changed:
            done = [s for s in self._sizes if s <= sequence]
            for s in done:
                del self._sizes[s]
            self._changed.notify_all()
        for s in done:
            self._memory.pop(s, None)
            self._path(s).unlink(missing_ok=True)

    def after(self, sequence: int, timeout_s: float) -> tuple[int, bytes] | None:
        """The first batch above this number, waiting for it at most so long."""
        with self._changed:
            self._changed.wait_for(lambda: self._first_after(sequence) is not None, timeout_s)
            found = self._first_after(sequence)
        return None if found is None else (found, self._read(found))

    def close(self) -> None:
        """Releases the session; removes it when nothing waits in it."""
        self._lock_file.close()
        if not self._sizes:
            for path in self.directory.iterdir():
                path.unlink()
            self.directory.rmdir()

    def _first_after(self, sequence: int) -> int | None:
        return next((s for s in self._sizes if s > sequence), None)

    def _path(self, sequence: int) -> Path:
        return self.directory / f"{sequence:012d}.batch"

    def _read(self, sequence: int) -> bytes:
        return self._memory[sequence] if sequence in self._memory else self._path(sequence).read_bytes()

    def _write(self, sequence: int, message: bytes) -> None:
        try:
            self._path(sequence).write_bytes(message)
        except OSError as error:
            if not self._memory:
                log.warning("cannot write %s: %s; batches wait in memory", self._path(sequence), error.strerror)
            self._path(sequence).unlink(missing_ok=True)
            self._memory[sequence] = message

    def _bound(self) -> None:
        with self._changed:
            waiting = [s for s in self._sizes if s >= self._full_below]
        for sequence in waiting[:-1]:
            if self.size <= self._limit_bytes:
                return
            self.replace(sequence)
            self._full_below = sequence + 1


def left_behind(directory: Path, limit_bytes: int) -> Iterator[Spool]:
    """The spools of sessions that ended with batches unacknowledged, locked; living sessions are passed over."""
    for path in sorted(directory.glob("*/")):
        with contextlib.suppress(DataError):  # locked: its agent is alive
            yield Spool(directory, path.name, limit_bytes, lambda message: message)
