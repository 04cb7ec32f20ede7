# SPDX-License-Identifier: Apache-2.0
"""A Horovod Timeline, read as it grows.

It is a JSON array of chrome-trace events without line breaks: every event takes the place of the closing bracket of the
one before. Times are microseconds since Horovod began, which was at a time of UTC that the first record tells.
"""

import os
import re
from dataclasses import dataclass

import numpy as np

from netmon.records import LIBRARY_HOROVOD, STEP, STEP_DONE, STEP_ENQUEUE, STEP_OTHER, Table

_HEAD_BYTES = 4096
MOST_READ = 512 << 10
"""Bytes at a time, of one file."""

_MOST_BEHIND = 8 << 20  # of a file that is longer when it is found, only what is appended is read
_REMEMBERED = 64  # bytes, which hold a time in µs
_NOT_A_TIMELINE = 64 << 10  # bytes without an event

# Numbers of so many digits at most that their sum, in ns, is one of 64 bits: what is longer is no time and no tensor.
_START = re.compile(rb'"start_time_since_epoch_in_micros":\s*(\d{1,16})\s*\}')
_EVENT = re.compile(
    rb'\{"ph": "([A-Za-z])"(?:, "name": "([^"]*)")?, "ts": (\d{1,15})(?:, "pid": (\d{1,18}))?'
    rb'(?:, "[^{}]*)?(\{[^{}]*\})?\}'
)

_Row = tuple[int, int, int, int, int, int, int]
"""of dtype STEP"""


@dataclass
class TimelineFile:
    """What has been read of one file."""

    descriptor: int
    partial: bool = False  # it does not hold all steps from the first on
    start_us: int = 0  # UTC
    offset: int = 0  # of what comes next
    last: bytes = b""  # what stands before it
    advanced: bool = False  # the last read has found something

    def read(self, most: int = MOST_READ) -> Table | None:
        """What was appended, dtype STEP but times in µs of UTC and names by number; None: it has begun anew.

        most: bytes to read. Raises ValueError for what is not a timeline, OSError.
        """
        self.advanced = True
        if not self._continues():
            self.start_us, self.offset, self.last, self.partial = 0, 0, b"", True
            return None
        size = os.fstat(self.descriptor).st_size
        if not self.start_us:
            self._begin(size)
        text = os.pread(self.descriptor, most, self.offset)
        end = 0
        rows: list[_Row] = []
        for event in _EVENT.finditer(text):
            end = event.end()
            rows += _rows(event, self.start_us)
        if not end and (len(text) == most or (not self.start_us and size > _NOT_A_TIMELINE)):
            raise ValueError("no events of Horovod's are in it")
        self._pass(self.last + text[:end], self.offset + end)
        self.advanced = end > 0
        return np.array(rows, STEP)

    def _continues(self) -> bool:
        """Whether it is the text that was read; it may have been emptied, and have grown beyond that since."""
        return os.pread(self.descriptor, len(self.last), self.offset - len(self.last)) == self.last

    def _pass(self, text: bytes, offset: int) -> None:
        """text: what stands before the offset, from somewhere on."""
        self.offset, self.last = offset, text[-_REMEMBERED:]

    def _begin(self, size: int) -> None:
        """Looks for the first record, which stands before the first event."""
        head = os.pread(self.descriptor, _HEAD_BYTES, 0)
        start = _START.search(head)
        if start:
            self.start_us = int(start[1])
            if size > _MOST_BEHIND:
                self.partial = True
                end = size - 1  # the bracket will be overwritten
                self._pass(os.pread(self.descriptor, _REMEMBERED, end - _REMEMBERED), end)
        elif _EVENT.search(head) or len(head) == _HEAD_BYTES:
            raise ValueError("it does not say when it began, as Horovod's do")


def _rows(event: "re.Match[bytes]", start_us: int) -> list[_Row]:
    """One, or none where the event is of no interest."""
    phase, name, time_us, number, arguments = event.groups()
    kind = 0
    if phase == b"B" and name == b"NEGOTIATE_ALLREDUCE":
        kind = STEP_ENQUEUE
    elif phase == b"B" and name and name.startswith(b"NEGOTIATE_"):
        kind = STEP_OTHER
    elif phase == b"E" and arguments:  # the last one of a tensor tells its type and shape
        kind = STEP_DONE
    return [(start_us + int(time_us), int(number), 0, kind, LIBRARY_HOROVOD, 1, 0)] if kind and number else []
