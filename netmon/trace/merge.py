# SPDX-License-Identifier: Apache-2.0
"""Profilers' traces of multiple ranks on the dataset's one clock, each shifted by what netmon measured of its host's.

PyTorch's (Kineto), Horovod's Timeline, NCCL's inspector, JSON or gzipped. They are read as they lie, event by event: a
trace may be of gigabytes, and cut in the middle.
"""

import gzip
import io
import json
import re
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import ijson
import numpy as np
import numpy.typing as npt
import pandas as pd

from netmon.errors import DataError
from netmon.trace.writer import Detail, Instant, Slice, TraceWriter
from netmon.units import format_duration

# --- A file that may be zipped, read from its beginning, and how much of it has been read.

_MOST_DEPTH = 128  # of JSON; a profiler's events are a tenth as deep
_MOST_VALUE = 1 << 22  # bytes of an event, or of a word
_MOST_RATIO, _RATIO_FROM = 200, 1 << 26  # a trace shrinks to a twentieth; so small a one may do as it likes
_DEEPER = np.zeros(256, np.int8)
_DEEPER[list(b"[{")], _DEEPER[list(b"]}")] = 1, -1

Progress = Callable[[float], None]
"""Called with the part that is done, 0 to 1."""


def silent(part: float) -> None:
    """Reports nothing."""


class Unzipped:
    """Raises OSError, EOFError (zipped, and cut), zlib.error."""

    def __init__(self, path: Path, progress: Progress = silent) -> None:
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
        return self

    def __exit__(self, *exception: object) -> None:
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


# --- What NCCL's inspector wrote of one process: JSON objects one after the other, one for each collective.
#
# Its `header` has the rank, `coll_perf` the collective with its time, and `event_trace_ts`, in verbose files, when it
# began and ended; else the time of the dump, which comes at or after the end, stands for the end.

_DETAILS = ("coll_sn", "coll_msg_size_bytes", "coll_algobw_gbs", "coll_busbw_gbs", "coll_timing_source")
_PIECE = 1 << 16
_MOST_CHARACTERS = 1 << 22  # characters of one object
_MOST_US = 4e15  # of the epoch, in the year 2096


def objects(file: Unzipped) -> Iterator[dict[str, Any]]:
    """One after the other, in memory for one of them. Raises EOFError where the last is cut, ValueError for no JSON."""
    decoder, text = json.JSONDecoder(), ""
    while True:
        more = file.read(_PIECE).decode(errors="replace")
        text += more
        while text := text.lstrip():
            try:
                found, end = decoder.raw_decode(text)
            except ValueError:
                if len(text) > _MOST_CHARACTERS:
                    raise
                break
            if isinstance(found, dict):
                yield found
            text = text[end:]
        if not more:
            if text:
                raise EOFError
            return


def is_inspectors(head: bytes) -> bool:
    """Whether a file that begins so is one."""
    return b'"coll_perf"' in head and b'"header"' in head


def collective(event: Mapping[str, Any]) -> tuple[str, int, int, str, dict[str, Detail]] | None:
    """Communicator, start and length (ns, UTC of the host), name and details; None where it has no time."""
    about, perf, dump = (event.get(name) for name in ("header", "coll_perf", "metadata"))
    if not isinstance(about, dict) or not isinstance(perf, dict):
        return None
    traced = perf.get("event_trace_ts")
    begun = traced.get("coll_start_ts") if isinstance(traced, dict) else None
    length = perf.get("coll_exec_time_us")
    if not isinstance(length, int | float) or not 0 <= length < _MOST_US:
        return None
    if not isinstance(begun, int | float):
        ended = dump.get("dump_timestamp_us") if isinstance(dump, dict) else None
        if not isinstance(ended, int | float):
            return None
        begun = ended - length
    if not abs(begun) < _MOST_US:
        return None
    details = {name: perf[name] for name in _DETAILS if isinstance(perf.get(name), str | int | float)}
    if not isinstance(traced, dict):
        details["time"] = "of the dump: the collective ended at this time or earlier"
    of, name = (
        str(word)[:200].encode(errors="replace").decode() for word in (about.get("id", ""), perf.get("coll", ""))
    )
    return of, round(begun * 1000), round(length * 1000), name, details


# --- Traces that profilers wrote of one rank.


_HEAD_BYTES, _PIECE_BYTES = 1 << 20, 1 << 16
_EPOCH_US = 10**15  # a time in µs that is larger counts from the epoch, not from some start
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(-?\d{1,19})\b')
_RANK = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}]*?"rank"\s*:\s*(\d{1,9})\b')
_SIZE = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}]*?"world_size"\s*:\s*(\d{1,9})\b')
_TIMELINE = re.compile(rb'"start_time_since_epoch_in_micros"\s*:\s*(\d{1,16})')
_INSPECTED_RANK = re.compile(rb'"header"\s*:\s*\{[^{}]*?"rank"\s*:\s*(\d{1,9})\b')
_INSPECTED_SIZE = re.compile(rb'"header"\s*:\s*\{[^{}]*?"n_ranks"\s*:\s*(\d{1,9})\b')
_RANK_IN_NAME = re.compile(r"rank[-_.]?(\d{1,9})", re.IGNORECASE)
_MOST_DETAILS, _LONGEST = 12, 200
_MOST_OPEN = 10_000  # of a thread, that have begun ("B") and not ended
_MOST_UNENDED = 100_000  # that have begun by themselves ("b", as of NCCL's profiler) and not ended


@dataclass(frozen=True)
class Happening:
    """Something that a profiler saw. length_ns None: a moment."""

    thread: tuple[str, str]  # process and thread, as the trace numbers them
    start_ns: int  # UTC as the rank's host had it
    length_ns: int | None
    name: str
    details: Mapping[str, Detail]


@dataclass
class Profile:
    path: Path
    rank: int | None  # None: it does not say
    size: int | None  # of its job
    base_ns: int  # UTC of the host: what its times count from
    list: bool  # the document is a list of events, not an object that holds one
    inspected: bool = False  # it is of NCCL's inspector
    threads: dict[tuple[str, str], str] = field(default_factory=dict)  # names
    cut: str = ""  # why its end is missing; empty: it is whole, as far as it has been read


def open_profile(path: Path) -> Profile:
    """What the file says of itself. Raises DataError where it is no trace, or has no clock that could be compared."""
    try:
        head, tail = _ends(path)
    except (OSError, zlib.error) as error:
        raise DataError(f"cannot read {path}: {error}") from None
    first = head.lstrip()[:1]
    if first not in (b"{", b"["):
        raise DataError(f"cannot read {path}: it is no trace in JSON")
    if is_inspectors(head):
        return Profile(
            path, _number(_INSPECTED_RANK, head), _number(_INSPECTED_SIZE, head), 0, first == b"[", inspected=True
        )
    rank, size = _number(_RANK, head, tail), _number(_SIZE, head, tail)
    if rank is None and (named := _RANK_IN_NAME.search(path.name)):
        rank = int(named[1])
    started = _number(_TIMELINE, head, tail)
    if started is not None and started < _MOST_US:
        return Profile(path, 0 if rank is None else rank, size, started * 1000, first == b"[")
    base = _number(_BASE, head, tail)
    known = base is not None and abs(base) < _MOST_US * 1000
    profile = Profile(path, rank, size, base if base is not None and known else 0, first == b"[")
    if not known:
        times = (_us(event.get("ts")) for event in _items(profile))
        first_us = next((time for time in times if time is not None and time > 0), None)
        if first_us is None:
            raise DataError(f"cannot read {path}: it holds no trace events (traceEvents, each with its ts)")
        if first_us < _EPOCH_US:
            raise DataError(
                f"cannot place {path}: it has no clock that could be compared (neither baseTimeNanoseconds, as PyTorch "
                "2.4 and later write it, nor times since the epoch, nor the start of a Horovod Timeline)"
            )
    return profile


def happenings(profile: Profile, progress: Progress = silent) -> Iterator[Happening]:
    """Everything that took time, and every moment, as they lie in the file; names of threads are noted on the way.

    What began and never ended comes last, as moments. profile.cut is set where the file ends too early. progress:
    called with the part of the file that was read. Raises DataError where it is damaged otherwise.
    """
    if profile.inspected:
        yield from _inspected(profile, progress)
        return
    open_: dict[tuple[str, str], list[tuple[float, str, Mapping[str, Detail]]]] = {}
    async_open: dict[tuple[tuple[str, str], str, str], tuple[float, str, Mapping[str, Detail]]] = {}
    for event in _items(profile, progress):
        kind, time = event.get("ph"), _us(event.get("ts"))
        thread = _word(event.get("pid", "")), _word(event.get("tid", ""))
        if kind == "M":
            _note(profile, thread, event)
            continue
        if time is None:
            continue
        name = _word(event.get("name", ""))
        details = _details(event.get("args"))
        if kind == "X":
            length = _us(event.get("dur", 0))
            if length is not None and length >= 0:
                yield Happening(thread, _ns(profile, time), round(length * 1000), name, details)
        elif kind in ("i", "I"):
            yield Happening(thread, _ns(profile, time), None, name, details)
        elif kind == "b" and len(async_open) < _MOST_UNENDED:
            async_open[thread, _word(event.get("cat")), _word(event.get("id"))] = time, name, details
        elif kind == "e" and (
            unended := async_open.pop((thread, _word(event.get("cat")), _word(event.get("id"))), None)
        ):
            begun, name, details = unended
            yield Happening(thread, _ns(profile, begun), round(max(0, time - begun) * 1000), name, details)
        elif kind == "B" and len(begun_there := open_.setdefault(thread, [])) < _MOST_OPEN:
            begun_there.append((time, name, details))
        elif kind == "E" and open_.get(thread):
            begun, name, details = open_[thread].pop()
            yield Happening(thread, _ns(profile, begun), round(max(0, time - begun) * 1000), name, details)
    never = [(thread, one) for thread, begun_there in open_.items() for one in begun_there]
    never += [(thread, one) for (thread, _, _), one in async_open.items()]
    for thread, (begun, name, details) in never:
        yield Happening(thread, _ns(profile, begun), None, f"{name} (never ends)", details)


def _inspected(profile: Profile, progress: Progress) -> Iterator[Happening]:
    try:
        with Unzipped(profile.path, progress) as file:
            for event in objects(file):
                if (found := collective(event)) is not None:
                    of, start_ns, length_ns, name, details = found
                    thread = ("NCCL", of)
                    profile.threads.setdefault(thread, f"NCCL communicator {of}")
                    yield Happening(thread, start_ns, length_ns, name, details)
    except EOFError:
        profile.cut = "its end is missing"
    except (OSError, zlib.error, ValueError) as error:
        raise DataError(f"cannot read {profile.path}: {error}") from None


def _items(profile: Profile, progress: Progress = silent) -> Iterator[dict[str, Any]]:
    where = "item" if profile.list else "traceEvents.item"
    try:
        with Unzipped(profile.path, progress) as file:
            bounded = BoundedJson(file, profile.path, level=1 if profile.list else 2)
            for event in ijson.items(bounded, where, use_float=True):
                if isinstance(event, dict):
                    yield event
    except (ijson.IncompleteJSONError, EOFError):
        # A Timeline of a job that was killed ends so; and so does what was copied while it was written.
        profile.cut = "its end is missing"
    except (ijson.JSONError, OSError, zlib.error, ValueError) as error:
        raise DataError(f"cannot read {profile.path}: {error}") from None


def _note(profile: Profile, thread: tuple[str, str], event: dict[str, Any]) -> None:
    arguments = event.get("args")
    name = _word(arguments.get("name", "")) if isinstance(arguments, dict) else ""
    if event.get("name") == "thread_name" and name:
        profile.threads[thread] = name
    elif event.get("name") == "process_name" and name:
        profile.threads[(thread[0], "")] = name


def _word(value: object) -> str:
    return str(value)[:_LONGEST]


def _details(given: object) -> Mapping[str, Detail]:
    if not isinstance(given, dict):
        return {}
    found: dict[str, Detail] = {}
    for name, value in given.items():
        if len(found) == _MOST_DETAILS:
            break
        if isinstance(value, str):
            found[str(name)[:_LONGEST]] = value[:_LONGEST]
        elif isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 1 << 63):
            found[str(name)[:_LONGEST]] = value
    return found


def _ns(profile: Profile, time_us: float) -> int:
    return profile.base_ns + round(time_us * 1000)


def _number(pattern: "re.Pattern[bytes]", *texts: bytes) -> int | None:
    found = next((match for text in texts if (match := pattern.search(text))), None)
    return int(found[1]) if found else None


def _us(value: object) -> float | None:
    """A time or a length in µs; None for what is none."""
    return value if isinstance(value, int | float) and abs(value) < _MOST_US else None


def _ends(path: Path) -> tuple[bytes, bytes]:
    """The first bytes and the last ones, not zipped. Raises OSError, zlib.error."""
    head = tail = b""
    with Unzipped(path) as file:
        if file.zipped:
            try:
                while more := file.read(_PIECE_BYTES):
                    head = head + more if len(head) < _HEAD_BYTES else head
                    tail = (tail + more)[-_PIECE_BYTES:]
            except EOFError:  # it was cut
                pass
            return head, tail
        return file.read(_HEAD_BYTES), file.last(_PIECE_BYTES)


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
        return self

    def __exit__(self, *exception: object) -> None:
        self._database.close()

    def add(self, each: Happening, start_ns: int) -> None:
        """start_ns: on the dataset's clock. Raises DataError where there is no room on disk."""
        thread = self._threads.setdefault(each.thread, len(self._threads))
        details = json.dumps(dict(each.details)) if each.details else ""
        self._new.append((thread, start_ns, each.length_ns, each.name, details))
        if len(self._new) >= _ROWS_AT_ONCE:
            self._put()

    def threads(self) -> Iterator[tuple[tuple[str, str], Iterator[Happening]]]:
        """Each thread with what happened there, what lasts longest first where more than one begins at once.

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
    paths: Sequence[Path], iterations: pd.DataFrame, clocks: pd.DataFrame, job: str | None, names: Mapping[str, str]
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
        raise DataError(f"the rank of the trace {path} is unknown: it names no rank; give it a name such as rank3.json")
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
        raise DataError(f"the job of {path} is ambiguous: {', '.join(jobs)} have a rank {profile.rank}; give --job")
    host = str(own.sort_values("end_ns")["host"].iloc[-1])
    clock = clocks[(clocks["host"] == host) & clocks["clock_offset_ns"].notna()].sort_values("time_ns")
    if clock.empty:
        raise DataError(f"cannot place {path}: the dataset does not say how {host}'s clock went")
    times, offsets, errors = (
        clock[name].to_numpy(np.int64) for name in ("time_ns", "clock_offset_ns", "clock_error_ns")
    )
    waits = own["comm_end_ns"].dropna().sort_values().to_numpy(np.int64)
    return Placed(profile, jobs[0], profile.rank, host, times, offsets, errors, waits)
