# SPDX-License-Identifier: Apache-2.0
"""Reads a timeline without waiting for it: whose read does not come back in time is asked for it at the next look."""

import os
import threading

from netmon.agent.timeline_file import TimelineFile
from netmon.kernel.stalling import StalledError, StallingCalls
from netmon.records import STEP, Table, empty

_ANSWER_NS = 5_000_000_000  # who gives no answer for so long is on a file system that does not answer

_Outcome = tuple[Table | None, Exception | None]


class _LateRead:
    """A read that has not come back in time."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._lock = descriptor, threading.Lock()
        self._outcome: _Outcome | None = None
        self._left = False

    def come(self, outcome: _Outcome | None) -> None:
        """In the thread that reads."""
        with self._lock:
            self._outcome = outcome
            if self._left:
                os.close(self._descriptor)

    @property
    def outcome(self) -> _Outcome | None:
        """None while it is under way."""
        with self._lock:
            return self._outcome

    def leave(self) -> None:
        """Nobody asks for it any more: the file is closed when it is over."""
        with self._lock:
            self._left = True
            if self._outcome:
                os.close(self._descriptor)


class TimelineReader:
    """One file, and its descriptor."""

    def __init__(self, file: TimelineFile, uid: int, calls: StallingCalls, now_ns: int) -> None:
        """uid: whose file it is. now_ns: CLOCK_MONOTONIC."""
        self.file, self._uid, self._calls = file, uid, calls
        self._late: _LateRead | None = None
        self._answered_ns = now_ns

    def read(self, most: int, limit_s: float, now_ns: int) -> tuple[Table | None, bool]:
        """As TimelineFile.read, and whether there may be more; blocks for limit_s at most.

        What has not been read by then is told by a later call: until then there is nothing, and more. Raises
        ValueError and OverflowError as TimelineFile.read does, OSError also where the file does not answer for 5 s.
        """
        outcome = self._outcome(most, limit_s)
        if outcome is None:
            if now_ns - self._answered_ns > _ANSWER_NS:
                raise OSError(f"it has not answered for {_ANSWER_NS / 1e9:g} s")
            return empty(STEP), True
        self._answered_ns = now_ns
        steps, error = outcome
        if error:
            raise error
        return steps, self.file.advanced

    def _outcome(self, most: int, limit_s: float) -> _Outcome | None:
        if self._late:
            outcome = self._late.outcome
            if outcome:
                self._late = None
            return outcome
        late = _LateRead(self.file.descriptor)
        try:
            return self._calls.call(self._uid, lambda: self._read(most), late.come, limit_s)
        except StalledError as error:
            self._late = late if error.under_way else None
            return None

    def _read(self, most: int) -> _Outcome:
        try:
            return self.file.read(most), None
        except (OSError, ValueError, OverflowError) as error:
            return None, error

    def close(self) -> None:
        """The descriptor, now or when the read that is under way is over."""
        if self._late:
            self._late.leave()
        else:
            os.close(self.file.descriptor)
