# SPDX-License-Identifier: Apache-2.0
"""Profilers' traces of several ranks on the dataset's one clock, each shifted by what netmon measured of its host's."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from netmon.errors import DataError
from netmon.trace.profiles import Happening, Profile, happenings, open_profile
from netmon.trace.threads import InOrder, Thread
from netmon.trace.unzipped import Progress, silent
from netmon.trace.writer import TraceWriter
from netmon.units import format_duration

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
        raise DataError(
            f"cannot place {path}: the dataset, of an earlier version, does not say how {host}'s clock went"
        )
    times, offsets, errors = (
        clock[name].to_numpy(np.int64) for name in ("time_ns", "clock_offset_ns", "clock_error_ns")
    )
    waits = own["comm_end_ns"].dropna().sort_values().to_numpy(np.int64)
    return Placed(profile, jobs[0], profile.rank, host, times, offsets, errors, waits)
