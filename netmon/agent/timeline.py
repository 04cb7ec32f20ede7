# SPDX-License-Identifier: Apache-2.0
"""The steps that a Horovod Timeline shows, as marks, while it is being written.

Horovod's rank 0 writes a JSON array of chrome-trace events without line breaks: every event takes the place of the
closing bracket of the one before. Times are microseconds since Horovod began, which was at a time of UTC that the
first record tells. What is seen of a tensor is its negotiation, which begins in the cycle (of 1 ms unless told) after
it was handed over, and the end of its reduction.
"""

import logging
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from netmon.dl.cycles import CycleDetector
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
)

log = logging.getLogger(__name__)

ERROR_NS = 40_000_000
"""All ranks take part in a cycle, so that it lasts as long as the slowest needs to be given a processor."""

_MOST_READ = 512 << 10  # at a time, of one file
_MOST_BEHIND = 8 << 20  # of a file that is longer when it is found, only what is appended is read
_NOT_A_TIMELINE = 64 << 10  # bytes without an event
_AHEAD_NS = 50_000_000  # of now: the clock that Horovod began with has been set since

_START = re.compile(rb'"start_time_since_epoch_in_micros":\s*(\d+)\s*\}')
_EVENT = re.compile(
    rb'\{"ph": "([A-Za-z])"(?:, "name": "([^"]*)")?, "ts": (\d+)(?:, "pid": (\d+))?(?:, "[^{}]*)?(\{[^{}]*\})?\}'
)


_Row = tuple[int, int, int, int, int, int]
"""of dtype STEP"""


@dataclass
class TimelineFile:
    """What has been read of one file."""

    descriptor: int
    start_us: int = 0  # UTC
    offset: int = 0  # of what comes next
    partial: bool = False  # it does not hold all steps from the first on

    def read(self) -> Table | None:
        """What was appended, dtype STEP but times in µs of UTC and names by number; None: it has begun anew.

        Reads a bounded number of bytes. Raises ValueError for what is not a timeline, OSError.
        """
        size = os.fstat(self.descriptor).st_size
        if size < self.offset:
            self.start_us, self.offset, self.partial = 0, 0, True
            return None
        if not self.start_us:
            self._begin(size)
        text = os.pread(self.descriptor, _MOST_READ, self.offset)
        end = 0
        rows: list[_Row] = []
        for event in _EVENT.finditer(text):
            end = event.end()
            rows += _rows(event, self.start_us)
        if not end and (len(text) == _MOST_READ or (not self.start_us and size > _NOT_A_TIMELINE)):
            raise ValueError("no events of Horovod's are in it")
        self.offset += end
        return np.array(rows, STEP)

    def _begin(self, size: int) -> None:
        """Looks for the first record, which stands before the first event."""
        head = os.pread(self.descriptor, 4096, 0)
        start = _START.search(head)
        if start:
            self.start_us = int(start[1])
            if size > _MOST_BEHIND:
                self.offset, self.partial = size, True
        elif _EVENT.search(head) or len(head) == 4096:
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
    return [(start_us + int(time_us), int(number), 0, kind, LIBRARY_HOROVOD, 1)] if kind and number else []


@dataclass
class _Followed:
    identity: RankIdentity
    file: TimelineFile
    detector: CycleDetector = field(default_factory=CycleDetector)
    last_ns: int = 0


class TimelineMarks:
    """All timelines that ranks on this host write."""

    def __init__(self) -> None:
        """None is known."""
        self._followed: dict[int, _Followed] = {}  # by pid
        self.refused = 0  # files and events that could not be used

    def follow(self, pid: int, identity: RankIdentity | None, descriptor: int, now_ns: int) -> list[Mark]:
        """A process writes this file, whose descriptor is ours from now on. identity: None: it is no rank after all."""
        marks = self._leave(pid)
        if identity is None:
            os.close(descriptor)
            return marks
        followed = self._followed[pid] = _Followed(identity, TimelineFile(descriptor), last_ns=now_ns)
        return [*marks, _mark(pid, followed, 0, Moment.JOIN, now_ns)]

    def keep(self, pids: Iterable[int]) -> list[Mark]:
        """These ranks are alive → the last marks of the others."""
        gone = self._followed.keys() - set(pids)
        return [mark for pid in gone for mark in self._leave(pid)]

    def read(self, now_ns: int, utc_minus_mono_ns: int) -> list[Mark]:
        """What has been written since the last call, as far as a bounded number of bytes goes."""
        marks: list[Mark] = []
        for pid, followed in list(self._followed.items()):
            try:
                marks += self._read(pid, followed, now_ns, utc_minus_mono_ns)
            except (OSError, ValueError) as error:
                self._refuse(f"the timeline of process {pid} is not followed: {error}")
                marks += self._leave(pid)
        return marks

    def finish(self) -> list[Mark]:
        """The last marks of all."""
        return self.keep(())

    def _read(self, pid: int, followed: _Followed, now_ns: int, utc_minus_mono_ns: int) -> list[Mark]:
        steps = followed.file.read()
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
        return [_mark(pid, followed, *boundary) for boundary in followed.detector.feed(steps[usable])]

    def _refuse(self, reason: str) -> None:
        if not self.refused:
            log.warning("%s; further ones are only counted", reason)
        self.refused += 1

    def _leave(self, pid: int) -> list[Mark]:
        followed = self._followed.pop(pid, None)
        if followed is None:
            return []
        os.close(followed.file.descriptor)
        last = (max(followed.detector.iteration, 0), Moment.LEAVE, followed.last_ns)
        return [_mark(pid, followed, *boundary) for boundary in (*followed.detector.finish(), last)]


def _mark(pid: int, followed: _Followed, iteration: int, moment: Moment, time_ns: int) -> Mark:
    where = (*followed.identity, pid, iteration, moment, time_ns, Source.TIMELINE, ERROR_NS)
    return Mark(*where, relative=followed.file.partial)
