# SPDX-License-Identifier: Apache-2.0
"""Profilers' traces of several ranks on the dataset's one clock, each shifted by what netmon measured of its host's."""

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from netmon.errors import DataError
from netmon.trace.profiles import Happening, Profile, happenings, open_profile
from netmon.trace.unzipped import Progress, silent
from netmon.trace.writer import Instant, Slice, TraceWriter
from netmon.units import format_duration

# --- What a profiler saw of a thread, on as many lanes as it takes for slices to lie within one another.

_MOST_LANES = 32  # of a thread
_ROUNDED_NS = 1_000
"""By so much a slice may end after the one that it lies in: profilers round to µs."""
_CACHE_KIB = 32 << 10
_ROWS_AT_ONCE = 10_000  # rows


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
        if len(self._new) >= _ROWS_AT_ONCE:
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


# --- merge

_Numbers = npt.NDArray[np.int64]
_AT_ONCE = 4096  # events


@dataclass(frozen=True)
class Placed:
    """A profile and the clock of its rank's host over time."""

    profile: Profile
    job: str  # as people call it
    rank: int
    host: str
    times_ns: _Numbers  # UTC of the dataset, ascending
    offsets_ns: _Numbers  # the host's own UTC minus the dataset's then
    errors_ns: _Numbers  # bounds of these
    waits_ns: _Numbers  # when the last gradient of each iteration of the rank had come

    def on_the_clock(self, host_ns: _Numbers) -> _Numbers:
        """Times of the host's UTC → of the dataset's."""
        offsets = np.interp(host_ns, self.times_ns + self.offsets_ns, self.offsets_ns)
        moved: _Numbers = host_ns - np.rint(offsets).astype(np.int64)
        return moved

    @property
    def shift_ns(self) -> int:
        """By how much it is moved, in the median."""
        return -int(np.median(self.offsets_ns))

    @property
    def error_ns(self) -> int:
        """The worst bound of the offsets."""
        return int(self.errors_ns.max())


def place(
    paths: Sequence[Path],
    iterations: pd.DataFrame,
    clocks: pd.DataFrame,
    job: str | None,
    names: Mapping[str, str],
) -> list[Placed]:
    """Whose traces these are. Raises DataError for one that cannot be placed.

    iterations: of the dataset. clocks: host, time_ns, clock_offset_ns, clock_error_ns of the dataset. job: by what its
    ranks have in common; names: what people call jobs.
    """
    profiles = [open_profile(path) for path in paths]
    placed = [_place(profile, iterations, clocks, job, names) for profile in profiles]
    seen: dict[tuple[str, int], Path] = {}
    for each in placed:
        other = seen.setdefault((each.job, each.rank), each.profile.path)
        if other is not each.profile.path:
            raise DataError(f"cannot merge {other} and {each.profile.path}: both are of rank {each.rank} of {each.job}")
    return placed


def write(
    placed: Sequence[Placed],
    processes: Mapping[str, int],
    out: TraceWriter,
    begin_ns: int,
    end_ns: int,
    progress: Callable[[Path], Progress] = lambda _: silent,
) -> list[str]:
    """All that lies between begin and end (UTC) → sentences on each. processes: of hosts, by name.

    progress: of the reading of each file. Raises DataError.
    """
    return [_write(one, processes[one.host], out, (begin_ns, end_ns), progress(one.profile.path)) for one in placed]


def _write(one: Placed, process: int, out: TraceWriter, within_ns: tuple[int, int], progress: Progress) -> str:
    begin_ns, end_ns = within_ns
    bounds = Thread(out, process, f"{one.job}/{one.rank} last gradient ± clock")
    errors = np.interp(one.waits_ns, one.times_ns, one.errors_ns).astype(np.int64)
    bounds.write(
        Happening(("", ""), wait - error, 2 * error, f"± {format_duration(error)}", {})
        for wait, error in zip(one.waits_ns.tolist(), errors.tolist(), strict=True)
        if begin_ns <= wait - error < end_ns
    )
    count = left_out = 0
    with InOrder() as kept:
        found = happenings(one.profile, progress)
        while some := list(islice(found, _AT_ONCE)):
            starts = one.on_the_clock(np.array([each.start_ns for each in some], np.int64))
            for each, start in zip(some, starts.tolist(), strict=True):
                if begin_ns <= start < end_ns:
                    count += 1
                    kept.add(each, start)
        for thread, own in kept.threads():
            lanes = Thread(out, process, _name(one, thread))
            lanes.write(own)
            left_out += lanes.left_out
    cut = f"; {one.profile.cut}" if one.profile.cut else ""
    without = f"; {left_out} left out, which overlap with too many others of their thread" if left_out else ""
    return (
        f"{one.profile.path}: rank {one.rank} of {one.job} on {one.host}, shifted by {format_duration(one.shift_ns)}, "
        f"right to {format_duration(one.error_ns)}; {count} events{without}{cut}"
    )


def _name(one: Placed, thread: tuple[str, str]) -> str:
    names = one.profile.threads
    known = names.get(thread) or names.get((thread[0], "")) or f"{thread[0]}/{thread[1]}"
    return f"{one.job}/{one.rank} {known}"


def _place(
    profile: Profile, iterations: pd.DataFrame, clocks: pd.DataFrame, job: str | None, names: Mapping[str, str]
) -> Placed:
    path = profile.path
    if profile.rank is None:
        raise DataError(f"cannot tell whose trace {path} is: it names no rank; give it a name such as rank3.json")
    own = iterations[iterations["rank"] == profile.rank]
    if job is not None:
        own = own[own["job"] == job]
    if own.empty:
        of = f" of job {names.get(job, job)}" if job else ""
        known = ", ".join(map(str, sorted(set(iterations["rank"])))) or "none"
        raise DataError(
            f"cannot place {path}: the dataset has no iteration of rank {profile.rank}{of}; it has ranks {known}"
        )
    if len(jobs := sorted({names.get(one, one) for one in set(own["job"])})) > 1:
        raise DataError(f"cannot tell which job {path} is of: {', '.join(jobs)} have a rank {profile.rank}; give --job")
    host = str(own.sort_values("end_ns")["host"].iloc[-1])
    clock = clocks[(clocks["host"] == host) & clocks["clock_offset_ns"].notna()].sort_values("time_ns")
    if clock.empty:
        raise DataError(f"cannot place {path}: the dataset does not say how {host}'s clock went")
    times, offsets, errors = (
        clock[name].to_numpy(np.int64) for name in ("time_ns", "clock_offset_ns", "clock_error_ns")
    )
    waits = own["comm_end_ns"].dropna().sort_values().to_numpy(np.int64)
    return Placed(profile, jobs[0], profile.rank, host, times, offsets, errors, waits)
