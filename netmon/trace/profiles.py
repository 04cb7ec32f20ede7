# SPDX-License-Identifier: Apache-2.0
"""Traces that profilers wrote of one rank: PyTorch's (Kineto), Horovod's Timeline, NCCL's inspector, JSON or gzipped.

They are read as they lie, event by event: a trace may be of gigabytes, and cut in the middle.
"""

import gzip
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

import ijson

from netmon.errors import DataError
from netmon.trace.inspector import collective, is_inspectors, objects
from netmon.trace.writer import Detail

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
_MOST_APART = 100_000  # that have begun by themselves ("b", as of NCCL's profiler) and not ended


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
    head = tail = b""
    try:
        with _bytes(path) as file:
            while more := file.read(_PIECE_BYTES):
                head = head + more if len(head) < _HEAD_BYTES else head
                tail = (tail + more)[-_PIECE_BYTES:]
    except EOFError:  # zipped, and cut
        pass
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
    if started is not None:
        return Profile(path, 0 if rank is None else rank, size, started * 1000, first == b"[")
    base = _number(_BASE, head, tail)
    profile = Profile(path, rank, size, base or 0, first == b"[")
    if base is None:
        event = next(
            (each for each in _items(profile) if isinstance(each.get("ts"), int | float) and each["ts"] > 0), {}
        )
        if event.get("ts", 0) < _EPOCH_US:
            raise DataError(
                f"cannot place {path}: it has no clock that could be compared (neither baseTimeNanoseconds, as PyTorch "
                "2.4 and later write it, nor times since the epoch, nor the start of a Horovod Timeline)"
            )
    return profile


def happenings(profile: Profile) -> Iterator[Happening]:
    """Everything that took time, and every moment, as they lie in the file; names of threads are noted on the way.

    profile.cut is set where the file ends too early. Raises DataError where it is damaged otherwise.
    """
    if profile.inspected:
        yield from _inspected(profile)
        return
    open_: dict[tuple[str, str], list[tuple[float, str, Mapping[str, Detail]]]] = {}
    apart: dict[tuple[tuple[str, str], str, str], tuple[float, str, Mapping[str, Detail]]] = {}
    for event in _items(profile):
        kind, time = event.get("ph"), event.get("ts")
        thread = str(event.get("pid", "")), str(event.get("tid", ""))
        if kind == "M":
            _note(profile, thread, event)
            continue
        if not isinstance(time, int | float):
            continue
        name = str(event.get("name", ""))[:_LONGEST]
        details = _details(event.get("args"))
        if kind == "X":
            length = event.get("dur", 0)
            if isinstance(length, int | float) and length >= 0:
                yield Happening(thread, _ns(profile, time), round(length * 1000), name, details)
        elif kind in ("i", "I"):
            yield Happening(thread, _ns(profile, time), None, name, details)
        elif kind == "b" and len(apart) < _MOST_APART:
            apart[thread, str(event.get("cat")), str(event.get("id"))] = time, name, details
        elif kind == "e" and (begun_apart := apart.pop((thread, str(event.get("cat")), str(event.get("id"))), None)):
            begun, name, details = begun_apart
            yield Happening(thread, _ns(profile, begun), round(max(0, time - begun) * 1000), name, details)
        elif kind == "B":
            open_.setdefault(thread, []).append((time, name, details))
        elif kind == "E" and open_.get(thread):
            begun, name, details = open_[thread].pop()
            yield Happening(thread, _ns(profile, begun), round(max(0, time - begun) * 1000), name, details)


def _inspected(profile: Profile) -> Iterator[Happening]:
    try:
        with _bytes(profile.path) as file:
            for told in objects(file):
                if (found := collective(told)) is not None:
                    of, start_ns, length_ns, name, details = found
                    thread = ("NCCL", of)
                    profile.threads.setdefault(thread, f"NCCL communicator {of}")
                    yield Happening(thread, start_ns, length_ns, name, details)
    except EOFError:
        profile.cut = "its end is missing"
    except (OSError, zlib.error, ValueError) as error:
        raise DataError(f"cannot read {profile.path}: {error}") from None


def _items(profile: Profile) -> Iterator[dict[str, Any]]:
    where = "item" if profile.list else "traceEvents.item"
    try:
        with _bytes(profile.path) as file:
            for event in ijson.items(file, where, use_float=True):
                if isinstance(event, dict):
                    yield event
    except (ijson.IncompleteJSONError, EOFError):
        # A Timeline of a job that was killed ends so; and so does what was copied while it was written.
        profile.cut = "its end is missing"
    except (ijson.JSONError, OSError, zlib.error, ValueError) as error:
        raise DataError(f"cannot read {profile.path}: {error}") from None


def _note(profile: Profile, thread: tuple[str, str], event: dict[str, Any]) -> None:
    told = event.get("args")
    name = str(told.get("name", ""))[:_LONGEST] if isinstance(told, dict) else ""
    if event.get("name") == "thread_name" and name:
        profile.threads[thread] = name
    elif event.get("name") == "process_name" and name:
        profile.threads[(thread[0], "")] = name


def _details(told: object) -> Mapping[str, Detail]:
    if not isinstance(told, dict):
        return {}
    found: dict[str, Detail] = {}
    for name, value in told.items():
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


def _bytes(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    return cast(IO[bytes], gzip.open(path)) if zipped else path.open("rb")
