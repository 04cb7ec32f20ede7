# SPDX-License-Identifier: Apache-2.0
"""A file that may be zipped, read from its beginning, and how much of it has been read."""

import gzip
import io
from collections.abc import Callable
from pathlib import Path
from typing import IO, cast

import numpy as np

from netmon.errors import DataError

_MOST_DEPTH = 128  # of JSON; a profiler's events are a tenth as deep
_MOST_VALUE = 1 << 22  # bytes of an event, or of a word
_MOST_RATIO, _RATIO_FROM = 200, 1 << 26  # a trace shrinks to a twentieth; so small a one may do as it likes
_DEEPER = np.zeros(256, np.int8)
_DEEPER[list(b"[{")], _DEEPER[list(b"]}")] = 1, -1

Progress = Callable[[float], None]
"""Called with the part that is done, 0 to 1."""


def silent(part: float) -> None:
    """Tell nobody."""


class Unzipped:
    """Raises OSError, EOFError (zipped, and cut), zlib.error."""

    def __init__(self, path: Path, progress: Progress = silent) -> None:
        """Opens it."""
        if not path.is_file():  # opening a FIFO would wait for ever
            raise DataError(
                f"cannot read {path}: it is no regular file" if path.exists() else f"cannot read {path}: no such file"
            )
        self._path, self._plain_bytes = path, 0
        self._lies = path.open("rb")
        self._size, self._progress = max(1, path.stat().st_size), progress
        self.zipped = self._lies.read(2) == b"\x1f\x8b"
        self._lies.seek(0)
        self._plain = cast(IO[bytes], gzip.GzipFile(fileobj=self._lies)) if self.zipped else self._lies

    def __enter__(self) -> "Unzipped":
        """Itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close it."""
        self._lies.close()

    def read(self, most: int) -> bytes:
        """At most so many of the next bytes; none at the end."""
        self._progress(min(1.0, self._lies.tell() / self._size))
        more = self._plain.read(most)
        self._plain_bytes += len(more)
        if self.zipped and self._plain_bytes > max(_RATIO_FROM, _MOST_RATIO * self._size):
            raise DataError(f"cannot read {self._path}: unzipped it is more than {_MOST_RATIO} times as long")
        return more

    def last(self, most: int) -> bytes:
        """The last bytes, of a file that is not zipped."""
        self._lies.seek(max(0, self._lies.seek(0, io.SEEK_END) - most))
        return self._lies.read(most)


class BoundedJson:
    """Of a file with JSON: what is so deep or long that its parser would take much memory is a DataError."""

    def __init__(self, file: Unzipped, path: Path, level: int) -> None:
        """level: of brackets around each event."""
        self._file, self._path, self._level = file, path, level
        self._depth = self._value = 0
        self._in_word, self._word = 0, 0  # whether in one, and how many bytes of it there were
        self._escape = b""  # a backslash whose character is among the next bytes

    def read(self, most: int) -> bytes:
        """At most so many of the next bytes; none at the end."""
        more = self._file.read(most)
        text = (self._escape + more).replace(b"\\\\", b"").replace(b'\\"', b"")
        self._escape = b"\\" if text.endswith(b"\\") else b""
        parts = text.split(b'"')
        outside = b"".join(parts[self._in_word :: 2])
        if len(parts) > 1:
            self._word = 0
        self._in_word = (self._in_word + len(parts) - 1) % 2
        self._word = self._word + len(parts[-1]) if self._in_word else 0
        depths = self._depth + np.cumsum(_DEEPER[np.frombuffer(outside, np.uint8)], dtype=np.int64)
        if len(depths):
            between = np.flatnonzero(depths <= self._level)
            self._value = len(depths) - int(between[-1]) if len(between) else self._value + len(more)
            self._depth = int(depths[-1])
            if int(depths.max()) > _MOST_DEPTH:
                raise DataError(f"cannot read {self._path}: its JSON is more than {_MOST_DEPTH} levels deep")
        if self._word > _MOST_VALUE or self._value > _MOST_VALUE:
            raise DataError(f"cannot read {self._path}: a value in its JSON has more than {_MOST_VALUE >> 20} MiB")
        return more
