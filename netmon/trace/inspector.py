# SPDX-License-Identifier: Apache-2.0
"""What NCCL's inspector wrote of one process: JSON objects one after the other, one for each collective.

Its `header` has the rank, `coll_perf` the collective with its time, and `event_trace_ts`, in verbose files, when it
began and ended; else the time of the dump, which comes at or after the end, stands for the end.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from netmon.trace.unzipped import Unzipped
from netmon.trace.writer import Detail

_DETAILS = ("coll_sn", "coll_msg_size_bytes", "coll_algobw_gbs", "coll_busbw_gbs", "coll_timing_source")
_PIECE = 1 << 16
_LONGEST = 1 << 22  # characters of one object
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
                if len(text) > _LONGEST:
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


def collective(told: Mapping[str, Any]) -> tuple[str, int, int, str, dict[str, Detail]] | None:
    """Communicator, start and length (ns, UTC of the host), name and details; None where it has no time."""
    about, perf, dump = (told.get(name) for name in ("header", "coll_perf", "metadata"))
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
