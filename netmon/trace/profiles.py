# SPDX-License-Identifier: Apache-2.0
"""Traces that profilers wrote of one rank: PyTorch's (Kineto), Horovod's Timeline, NCCL's inspector, JSON or gzipped.

They are read as they lie, event by event: a trace may be of gigabytes, and cut in the middle.
"""

import json
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ijson

from netmon.errors import DataError
from netmon.trace.unzipped import BoundedJson, Progress, Unzipped, silent
from netmon.trace.writer import Detail

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


# --- profiles


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
    """One file."""

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
    apart: dict[tuple[tuple[str, str], str, str], tuple[float, str, Mapping[str, Detail]]] = {}
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
        elif kind == "b" and len(apart) < _MOST_UNENDED:
            apart[thread, _word(event.get("cat")), _word(event.get("id"))] = time, name, details
        elif kind == "e" and (unended := apart.pop((thread, _word(event.get("cat")), _word(event.get("id"))), None)):
            begun, name, details = unended
            yield Happening(thread, _ns(profile, begun), round(max(0, time - begun) * 1000), name, details)
        elif kind == "B" and len(begun_there := open_.setdefault(thread, [])) < _MOST_OPEN:
            begun_there.append((time, name, details))
        elif kind == "E" and open_.get(thread):
            begun, name, details = open_[thread].pop()
            yield Happening(thread, _ns(profile, begun), round(max(0, time - begun) * 1000), name, details)
    never = [(thread, one) for thread, begun_there in open_.items() for one in begun_there]
    never += [(thread, one) for (thread, _, _), one in apart.items()]
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
