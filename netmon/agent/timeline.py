# SPDX-License-Identifier: Apache-2.0
"""The steps that a Horovod Timeline shows, as marks, while it is being written.

Only rank 0 writes one. What is seen of a tensor is its negotiation, which begins in the cycle (of 1 ms unless set)
after the first rank has handed it over, and the end of its reduction.
"""

import logging
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from netmon.dl.cycles import Boundary, CycleDetector
from netmon.kernel.stalling import StalledError, StallingCalls
from netmon.kernel.training.timelines import Opened
from netmon.marks import RankIdentity
from netmon.records import (
    LIBRARY_HOROVOD,
    STEP,
    STEP_DONE,
    STEP_ENQUEUE,
    STEP_OTHER,
    Mark,
    Moment,
    Source,
    Table,
    calls_of,
    empty,
)

# --- A Horovod Timeline, read as it grows.
#
# It is a JSON array of chrome-trace events without line breaks: every event takes the place of the closing bracket of
# the one before. Times are microseconds since Horovod began, which was at a time of UTC that the first record tells.

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
        return calls_of(rows)

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


# --- Reads a timeline without waiting for it: whose read does not come back in time is requested it at the next look.

_ANSWER_NS = 5_000_000_000  # who gives no answer for so long is on a file system that does not answer

_Outcome = tuple[Table | None, Exception | None]


class _LateRead:
    """A read that has not come back in time."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._lock = descriptor, threading.Lock()
        self._outcome: _Outcome | None = None
        self._left = False

    def finish(self, outcome: _Outcome | None) -> None:
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

        What has not been read by then is reported by a later call: until then there is nothing, and more. Raises
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
            return self._calls.call(self._uid, lambda: self._read(most), late.finish, limit_s)
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


# --- timeline


log = logging.getLogger(__name__)

_BEGIN_ERROR_NS, _END_ERROR_NS = 150_000_000, 20_000_000
"""Of the moments. A negotiation begins when the first rank has handed a tensor over, not this one, and in a cycle that
lasts as long as the slowest rank needs to be given a processor; then the training thread needs one."""

_LEAST_READ = 16 << 10  # bytes of a file at a time, however many there are
_MOST_PENDING = 50_000  # events of one file that have led to no step
_READ_S = 0.02  # all files are waited for together, at one look; what takes longer is taken at the next
_GONE_NS = 30_000_000_000  # for so long the rest is read of who has gone; others may still write to it
_FAREWELL_S = 1.0
_AHEAD_NS = 50_000_000  # of now: the clock that Horovod began with has been set since


@dataclass
class _Followed:
    identity: RankIdentity
    uid: int
    reader: TimelineReader
    detector: CycleDetector
    last_ns: int
    gone_ns: int = 0  # when its process was found gone; 0: it is there


class TimelineMarks:
    """All timelines that ranks on this host write."""

    def __init__(self) -> None:
        self._followed: dict[int, _Followed] = {}  # by pid
        self._calls = StallingCalls(_READ_S)
        self.refused = 0  # files and events that could not be used

    def follow(self, opened: Opened, identity: RankIdentity | None, now_ns: int) -> list[Mark]:
        """A process writes this file, whose descriptor is ours from now on. identity: None: it is no rank after all."""
        marks = self._leave(opened.pid)
        if identity is None:
            os.close(opened.descriptor)
            return marks
        file = TimelineFile(opened.descriptor, partial=not opened.whole)
        reader = TimelineReader(file, opened.uid, self._calls, now_ns)
        detector = CycleDetector(late=file.partial)
        followed = self._followed[opened.pid] = _Followed(identity, opened.uid, reader, detector, now_ns)
        return [*marks, _mark(opened.pid, followed, 0, Moment.JOIN, now_ns)]

    def retain(self, identities: Mapping[int, RankIdentity], now_ns: int) -> list[Mark]:
        """Who trains as which rank now, by pid → the last marks of those that have been another rank.

        Those that are gone leave when what they have written has been read.
        """
        marks: list[Mark] = []
        for pid, followed in self._followed.items():
            identity = identities.get(pid)
            followed.gone_ns = 0 if identity else followed.gone_ns or now_ns
            if identity and identity != followed.identity:
                marks += [_mark(pid, followed, *boundary) for boundary in self._last(followed)]
                followed.identity = identity
                marks.append(_mark(pid, followed, 0, Moment.JOIN, followed.last_ns))
        return marks

    def read(self, now_ns: int, utc_minus_mono_ns: int) -> list[Mark]:
        """What has been written since the last call, as far as a bounded number of bytes goes: as many of each user.

        now_ns: CLOCK_MONOTONIC. Blocks for a moment at most; what could not be read in it comes with a later call.
        """
        marks: list[Mark] = []
        until_s = time.monotonic() + _READ_S
        of_user = Counter(followed.uid for followed in self._followed.values())
        for pid, followed in list(self._followed.items()):
            most = max(_LEAST_READ, MOST_READ // len(of_user) // of_user[followed.uid])
            try:
                more = True
                while more:
                    steps, more = followed.reader.read(most, max(0.0, until_s - time.monotonic()), now_ns)
                    marks += self._take(pid, followed, steps, now_ns, utc_minus_mono_ns)
                    if not (followed.gone_ns and time.monotonic() < until_s):
                        break
                if followed.gone_ns and more and now_ns - followed.gone_ns > _GONE_NS:
                    raise ValueError("it was not read to its end")
            except (OSError, ValueError, OverflowError) as error:
                self._refuse(f"the timeline of process {pid} is not followed: {error}")
                marks += self._leave(pid)
            else:
                marks += self._leave(pid) if followed.gone_ns and not more else []
        return marks

    def finish(self, now_ns: int, utc_minus_mono_ns: int) -> list[Mark]:
        """What can be read within a second, and the last marks of all; blocks for as long."""
        marks = self.retain({}, now_ns)
        until_s = time.monotonic() + _FAREWELL_S
        while self._followed and time.monotonic() < until_s:
            marks += self.read(now_ns, utc_minus_mono_ns)
            time.sleep(_READ_S if self._followed else 0)
        return marks + [mark for pid in list(self._followed) for mark in self._leave(pid)]

    def _take(
        self, pid: int, followed: _Followed, steps: Table | None, now_ns: int, utc_minus_mono_ns: int
    ) -> list[Mark]:
        """steps: as TimelineFile.read returns them."""
        if steps is None:
            ended = [_mark(pid, followed, *boundary) for boundary in followed.detector.finish()]
            followed.detector = CycleDetector(late=True, last=followed.detector.iteration)
            return ended
        steps["time_ns"] = steps["time_ns"] * np.uint64(1000) - np.uint64(utc_minus_mono_ns)
        usable = steps["time_ns"] <= now_ns + _AHEAD_NS
        if not usable.all():
            self._refuse(f"the timeline of process {pid} is ahead of the clock: UTC has been set since it began")
        if not usable.any():
            return []
        followed.last_ns = int(steps["time_ns"][usable][-1])
        boundaries = followed.detector.feed(steps[usable])
        if followed.detector.pending > _MOST_PENDING // len(self._followed):
            followed.detector.forget()
        return [_mark(pid, followed, *boundary) for boundary in boundaries]

    def _refuse(self, reason: str) -> None:
        if not self.refused:
            log.warning("%s; further ones are only counted", reason)
        self.refused += 1

    def _leave(self, pid: int) -> list[Mark]:
        followed = self._followed.pop(pid, None)
        if followed is None:
            return []
        followed.reader.close()
        return [_mark(pid, followed, *boundary) for boundary in self._last(followed)]

    @staticmethod
    def _last(followed: _Followed) -> list[Boundary]:
        last = max(followed.detector.iteration, 0), Moment.LEAVE, followed.last_ns
        return [*followed.detector.restart(), last]


def _mark(pid: int, followed: _Followed, iteration: int, moment: Moment, time_ns: int) -> Mark:
    error = _BEGIN_ERROR_NS if moment in (Moment.FIRST_ENQUEUE, Moment.FIRST_WAIT) else _END_ERROR_NS
    where = (*followed.identity, pid, iteration, moment, time_ns, Source.TIMELINE, error)
    return Mark(*where, relative=followed.reader.file.partial)
