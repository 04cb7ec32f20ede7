# SPDX-License-Identifier: Apache-2.0
"""Profilers' traces of several ranks on the dataset's one clock, each shifted by what netmon measured of its host's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from netmon.errors import DataError
from netmon.trace.profiles import Profile, happenings, open_profile
from netmon.trace.writer import Instant, Slice, TraceWriter
from netmon.units import format_duration

_Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Placed:
    """A profile and the clock of its rank's host over time."""

    profile: Profile
    job: str
    rank: int
    host: str
    times_ns: _Numbers  # UTC of the dataset, ascending
    offsets_ns: _Numbers  # the host's own UTC minus the dataset's then
    errors_ns: _Numbers  # bounds of these
    waits_ns: _Numbers  # when the last gradient of each iteration of the rank had come

    def on_the_clock(self, host_ns: int) -> int:
        """A time of the host's UTC → of the dataset's."""
        return host_ns - int(np.interp(host_ns, self.times_ns + self.offsets_ns, self.offsets_ns))

    @property
    def shift_ns(self) -> int:
        """By how much it is moved, in the median."""
        return -int(np.median(self.offsets_ns))

    @property
    def error_ns(self) -> int:
        """The worst bound of the offsets."""
        return int(self.errors_ns.max())


def place(paths: Sequence[Path], iterations: pd.DataFrame, clocks: pd.DataFrame, job: str | None) -> list[Placed]:
    """Whose traces these are. Raises DataError for one that cannot be placed.

    iterations: of the dataset. clocks: host, time_ns, clock_offset_ns, clock_error_ns of the dataset.
    """
    profiles = [open_profile(path) for path in paths]
    placed = [_place(profile, iterations, clocks, job) for profile in profiles]
    seen: dict[tuple[str, int], Path] = {}
    for each in placed:
        other = seen.setdefault((each.job, each.rank), each.profile.path)
        if other is not each.profile.path:
            raise DataError(f"cannot merge {other} and {each.profile.path}: both are of rank {each.rank} of {each.job}")
    return placed


def write(
    placed: Sequence[Placed], processes: Mapping[str, int], out: TraceWriter, begin_ns: int, end_ns: int
) -> list[str]:
    """All that lies between begin and end (UTC) → sentences on each. processes: of hosts, by name."""
    return [_write(one, processes[one.host], out, begin_ns, end_ns) for one in placed]


def _write(one: Placed, process: int, out: TraceWriter, begin_ns: int, end_ns: int) -> str:
    bound = format_duration(one.error_ns)
    clock = out.lane(process, f"{one.job}/{one.rank} last gradient ± clock")
    errors = np.interp(one.waits_ns, one.times_ns, one.errors_ns).astype(np.int64)
    spans = zip(one.waits_ns.tolist(), errors.tolist(), strict=True)
    bounds = [Slice(wait - error, wait + error, f"± {format_duration(error)}") for wait, error in spans]
    out.slices(clock, (each for each in bounds if begin_ns <= each.start_ns < end_ns))
    lanes: dict[tuple[str, str], int] = {}
    count = 0
    for each in happenings(one.profile):
        start = one.on_the_clock(each.start_ns)
        if not begin_ns <= start < end_ns:
            continue
        if each.thread not in lanes:
            lanes[each.thread] = out.lane(process, _name(one, each.thread))
        count += 1
        if each.length_ns is None:
            out.instants(lanes[each.thread], [Instant(start, each.name, each.details)])
        else:
            out.slices(lanes[each.thread], [Slice(start, start + each.length_ns, each.name, each.details)])
    cut = f"; {one.profile.cut}" if one.profile.cut else ""
    return (
        f"{one.profile.path}: rank {one.rank} of {one.job} on {one.host}, shifted by {format_duration(one.shift_ns)}, "
        f"right to {bound}; {count} events{cut}"
    )


def _name(one: Placed, thread: tuple[str, str]) -> str:
    names = one.profile.threads
    known = names.get(thread) or names.get((thread[0], "")) or f"{thread[0]}/{thread[1]}"
    return f"{one.job}/{one.rank} {known}"


def _place(profile: Profile, iterations: pd.DataFrame, clocks: pd.DataFrame, job: str | None) -> Placed:
    path = profile.path
    if profile.rank is None:
        raise DataError(f"cannot tell whose trace {path} is: it names no rank; give it a name such as rank3.json")
    own = iterations[iterations["rank"] == profile.rank]
    if job is not None:
        own = own[own["job"] == job]
    if own.empty:
        of = f" of job {job}" if job else ""
        known = ", ".join(map(str, sorted(set(iterations["rank"])))) or "none"
        raise DataError(
            f"cannot place {path}: the dataset has no iteration of rank {profile.rank}{of}; it has ranks {known}"
        )
    if len(jobs := sorted(set(own["job"]))) > 1:
        raise DataError(f"cannot tell which job {path} is of: {', '.join(jobs)} have a rank {profile.rank}; give --job")
    host = str(own.sort_values("end_ns")["host"].iloc[-1])
    clock = clocks[(clocks["host"] == host) & clocks["clock_offset_ns"].notna()].sort_values("time_ns")
    if clock.empty:
        raise DataError(
            f"cannot place {path}: the dataset, of an earlier version, does not say how {host}'s clock went"
        )
    times, offsets, errors = (
        clock[name].to_numpy(np.int64) for name in ("time_ns", "clock_offset_ns", "clock_error_ns")
    )
    waits = own["comm_end_ns"].dropna().sort_values().to_numpy(np.int64)
    return Placed(profile, jobs[0], profile.rank, host, times, offsets, errors, waits)
