# SPDX-License-Identifier: Apache-2.0
"""A file that may be zipped, read from its beginning, and how much of it has been read."""

import gzip
import io
from collections.abc import Callable
from pathlib import Path
from typing import IO, cast

Progress = Callable[[float], None]
"""Is told which part of something is done, 0 to 1."""


def silent(part: float) -> None:
    """Tell nobody."""


class Unzipped:
    """Raises OSError, EOFError (zipped, and cut), zlib.error."""

    def __init__(self, path: Path, progress: Progress = silent) -> None:
        """Opens it."""
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
        return self._plain.read(most)

    def last(self, most: int) -> bytes:
        """The last bytes, of a file that is not zipped."""
        self._lies.seek(max(0, self._lies.seek(0, io.SEEK_END) - most))
        return self._lies.read(most)
