# SPDX-License-Identifier: Apache-2.0
"""Single key presses from the terminal."""

import os
import select
import sys
import termios
import time
import tty
from types import TracebackType
from typing import Any, TextIO

_PAGE_UP, _PAGE_DOWN = "\x1b[5~", "\x1b[6~"


class Keys:
    """While entered, a terminal hands over keys as they are pressed; it is always put back as it was.

    Where the stream is not a terminal there are no keys. Ctrl-C still interrupts; Ctrl-Z does nothing, for it
    would leave the shell a terminal in this state.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        """Keys of the stream, standard input unless told; nothing is changed before the context is entered."""
        stream = stream or sys.stdin
        self._descriptor = stream.fileno() if stream.isatty() else -1
        self._before: list[Any] = []

    def __enter__(self) -> "Keys":
        """Turn off line editing and echo."""
        if self._descriptor >= 0:
            self._before = termios.tcgetattr(self._descriptor)
            tty.setcbreak(self._descriptor)
            mode = termios.tcgetattr(self._descriptor)
            mode[6][termios.VSUSP] = b"\0"
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, mode)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put the terminal back as it was."""
        if self._before:
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)

    def read(self, timeout_s: float) -> str:
        """The keys pressed within the time, blocking no longer than until the first; empty where there was none."""
        if self._descriptor < 0:
            time.sleep(timeout_s)
            return ""
        ready, _, _ = select.select([self._descriptor], [], [], timeout_s)
        keys = os.read(self._descriptor, 64).decode(errors="ignore") if ready else ""
        return keys.replace(_PAGE_DOWN, "n").replace(_PAGE_UP, "p")
