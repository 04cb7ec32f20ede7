# SPDX-License-Identifier: Apache-2.0
"""What a profiler saw of a thread, on as many lanes as it takes for slices to lie within one another.

A viewer nests the slices of a lane by their beginnings and ends alone, in the order of time. Traces have them in any
order, and some overlap: operations that begin and end by themselves, streams that share a number.
"""

import json
import sqlite3
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from netmon.errors import DataError
from netmon.trace.profiles import Happening
from netmon.trace.writer import Instant, Slice, TraceWriter

_MOST_LANES = 32  # of a thread
_ROUNDED_NS = 1_000
"""By so much a slice may end after the one that it lies in: profilers round to µs."""
_CACHE_KIB = 32 << 10
_AT_ONCE = 10_000  # rows


class InOrder:
    """Happenings in the order of thread and time. They wait on disk: memory does not grow with their number."""

    def __init__(self) -> None:
        """A database of its own, in a temporary file that nobody else sees."""
        self._database = sqlite3.connect("", isolation_level=None)
        for setting in ("journal_mode=OFF", "synchronous=OFF", f"cache_size=-{_CACHE_KIB}"):
            self._database.execute(f"PRAGMA {setting}")
        self._database.execute("CREATE TABLE happening (thread INTEGER, start INTEGER, length INTEGER, name, details)")
        self._database.execute("BEGIN")
        self._threads: dict[tuple[str, str], int] = {}
        self._new: list[tuple[int, int, int | None, str, str]] = []

    def __enter__(self) -> "InOrder":
        """Itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Forget all."""
        self._database.close()

    def add(self, each: Happening, start_ns: int) -> None:
        """start_ns: on the dataset's clock. Raises DataError where there is no room on disk."""
        thread = self._threads.setdefault(each.thread, len(self._threads))
        details = json.dumps(dict(each.details)) if each.details else ""
        self._new.append((thread, start_ns, each.length_ns, each.name, details))
        if len(self._new) >= _AT_ONCE:
            self._put()

    def threads(self) -> Iterator[tuple[tuple[str, str], Iterator[Happening]]]:
        """Each thread with what happened there, what lasts longest first where several begin together.

        Raises DataError where there is no room on disk.
        """
        self._put()
        names = list(self._threads)
        order = "SELECT * FROM happening ORDER BY thread, start, length DESC, rowid"
        try:
            for thread, rows in groupby(self._database.execute(order), itemgetter(0)):
                yield names[thread], (_happening(names[thread], row) for row in rows)
        except sqlite3.Error as error:
            raise _no_room(error) from None

    def _put(self) -> None:
        try:
            self._database.executemany("INSERT INTO happening VALUES (?, ?, ?, ?, ?)", self._new)
        except sqlite3.Error as error:
            raise _no_room(error) from None
        self._new.clear()


def _happening(thread: tuple[str, str], row: tuple[int, int, int | None, str, str]) -> Happening:
    _, start, length, name, details = row
    return Happening(thread, start, length, name, json.loads(details) if details else {})


def _no_room(error: sqlite3.Error) -> DataError:
    return DataError(f"cannot put a profiler's trace in order in a temporary file: {error}; TMPDIR names another place")


class _Lane(NamedTuple):
    number: int
    open: list[Slice]  # each within the one before


class Thread:
    """One thread's lanes."""

    def __init__(self, out: TraceWriter, process: int, name: str) -> None:
        """name: of its first lane."""
        self._out, self._process, self._name = out, process, name
        self._lanes = [_Lane(out.lane(process, name), [])]
        self.left_out = 0  # slices that overlap with too many others

    def write(self, happenings: Iterable[Happening]) -> None:
        """happenings: by beginning, longer ones first."""
        for each in happenings:
            if each.length_ns is None:
                self._out.instants(self._lanes[0].number, [Instant(each.start_ns, each.name, each.details)])
            else:
                self._add_slice(Slice(each.start_ns, each.start_ns + each.length_ns, each.name, each.details))
        for lane in self._lanes:
            self._end(lane)

    def _add_slice(self, each: Slice) -> None:
        for lane in self._lanes:
            self._end(lane, each.start_ns)
            around = lane.open[-1] if lane.open else None
            if around is None or each.end_ns <= around.end_ns + _ROUNDED_NS:
                break
        else:
            if len(self._lanes) == _MOST_LANES:
                self.left_out += 1
                return
            lane, around = _Lane(self._out.lane(self._process, f"{self._name} ({len(self._lanes) + 1})"), []), None
            self._lanes.append(lane)
        end_ns = min(each.end_ns, around.end_ns) if around else each.end_ns
        placed = Slice(each.start_ns, end_ns, each.name, each.details)
        self._out.begin(lane.number, placed)
        lane.open.append(placed)

    def _end(self, lane: _Lane, until_ns: int | None = None) -> None:
        while lane.open and (until_ns is None or lane.open[-1].end_ns <= until_ns):
            self._out.end(lane.number, lane.open.pop())
