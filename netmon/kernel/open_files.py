# SPDX-License-Identifier: Apache-2.0
"""Small files of /proc and /sys that are read again and again.

They stay open: finding them takes most of the time of reading them.
"""

import contextlib
import os
from collections.abc import Iterable


class OpenFiles:
    """By their paths. What cannot be opened or read is empty."""

    def __init__(self) -> None:
        """None is open."""
        self._open: dict[str, int] = {}

    def read(self, path: str, most: int = 4096) -> bytes:
        """The first bytes of a file; empty where it is gone, or is not ours to read."""
        try:
            if path not in self._open:
                self._open[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            return os.pread(self._open[path], most, 0)
        except OSError:
            self.close([path])
            return b""

    def descriptor(self, path: str) -> int:
        """Of a file that has been read, and is open; −1: it is not."""
        return self._open.get(path, -1)

    def close(self, paths: Iterable[str] | None = None) -> None:
        """Closes some, or all."""
        for path in list(self._open) if paths is None else paths:
            descriptor = self._open.pop(path, -1)
            if descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
