# SPDX-License-Identifier: Apache-2.0
"""How a process got on with the CPUs: for how long it ran, wanted to run and could not, and was throttled by a quota.

Needs no privilege.
"""

import contextlib
import os
import re
import time
from pathlib import Path
from typing import NamedTuple

from netmon.kernel.host_load import PRESSURES, UNKNOWN, Pressure, grown
from netmon.kernel.open_files import OpenFiles
from netmon.kernel.processes import PROC, read_bounded

_MOST_THREADS, _MOST_LISTED = 16, 512
_LIST_NS, _FIRST_LIST_NS = 30_000_000_000, 3_000_000_000
_MOST_BYTES = 64 << 10
_LEVELS = 16  # of control groups
_THROTTLED = re.compile(rb"^throttled_(usec|time) (\d+)", re.MULTILINE)
_NS = {b"usec": 1000, b"time": 1}  # cgroup v2, v1
_MOUNT = re.compile(rb"^\d+ \d+ \S+ (\S+) (\S+) [^\n]* - (cgroup2?) \S+ (\S+)$", re.MULTILINE)


class Load(NamedTuple):
    """ns since the last look; UNKNOWN where it cannot be told."""

    cpu_ns: int  # of all its threads
    run_delay_ns: int  # of the thread that waited most for a CPU
    throttled_ns: int  # of its control group or one above, by their CPU quota, summed over CPUs
    pressure_ns: tuple[int, ...]  # of its control group, by PRESSURES
    stopped: bool  # now, by a signal or a debugger


class _Groups(NamedTuple):
    """A process's control groups. known: whether it can be told which of them limit its CPU time."""

    known: bool
    quotas: tuple[str, ...]  # files that tell of throttling: of its group, and of those above
    pressures: tuple[str, ...]  # files of PRESSURES


class ProcessLoad:
    """One process. The first look begins; each one tells of the time since the last."""

    def __init__(self, pid: int) -> None:
        """Looks for its control group."""
        self._pid, self._files = pid, OpenFiles()
        self._clock = ~pid << 3 | 2  # clock_getcpuclockid(3)
        self._threads: dict[int, tuple[int, int]] = {}  # ns that it ran, and waited, by its number
        self._list_ns, self._listed_now = 0, False  # threads and control groups are looked for now and then
        self._groups = _control_groups(pid)
        self._pressure = Pressure(self._files, self._groups.pressures)
        self._cpu, self._throttled = self._cpu_ns(), self._throttled_ns()
        self._look_at_threads()

    def look(self) -> Load | None:
        """None where the process is gone."""
        cpu, throttled = self._cpu_ns(), self._throttled_ns()
        if cpu < self._cpu:
            return None
        unquoted = 0 if self._groups.known else UNKNOWN  # there is none above a group of no quota
        throttled_ns = max((grown(n, b) for n, b in zip(throttled, self._throttled, strict=True)), default=unquoted)
        waited_ns = self._look_at_threads()
        load = Load(grown(cpu, self._cpu), waited_ns, throttled_ns, self._pressure.read(), self._is_stopped())
        self._cpu, self._throttled = cpu, throttled
        if self._listed_now:
            self._follow_groups()
        return load

    def _follow_groups(self) -> None:
        """A launcher may put the process into another control group when it runs already."""
        groups = _control_groups(self._pid)
        if groups != self._groups:
            self._files.close((*self._groups.quotas, *self._groups.pressures))
            self._groups = groups
            self._pressure, self._throttled = Pressure(self._files, groups.pressures), self._throttled_ns()

    def _is_stopped(self) -> bool:
        """Its first thread: signals stop all of them."""
        text = self._files.read(f"{PROC}/{self._pid}/task/{self._pid}/stat")
        return text[text.rfind(b")") + 2 :][:1] in (b"T", b"t")

    def _cpu_ns(self) -> int:
        try:
            return time.clock_gettime_ns(self._clock)
        except OSError:
            return UNKNOWN

    def _throttled_ns(self) -> list[int]:
        """Of each control group with a quota that it may have, from its own upwards."""
        texts = [self._files.read(path) for path in self._groups.quotas]
        found = [_THROTTLED.search(text) for text in texts]
        return [int(f[2]) * _NS[f[1]] if f else (0 if text else UNKNOWN) for f, text in zip(found, texts, strict=True)]

    def _look_at_threads(self) -> int:
        """ns that a thread has waited since the last look, at the most; UNKNOWN where none was there before."""
        now = time.monotonic_ns()
        self._listed_now = now >= self._list_ns
        if self._listed_now:
            self._list_ns = now + (_LIST_NS if self._threads else _FIRST_LIST_NS)
            self._choose_threads()
        waited = UNKNOWN
        for thread, before in list(self._threads.items()):
            told = self._told(thread)
            if told is None:
                del self._threads[thread]
                continue
            self._threads[thread] = told
            waited = max(waited, grown(told[1], before[1]))
        return waited

    def _choose_threads(self) -> None:
        """The first one, which trains as a rule, and those that ran and waited most since they began."""
        with contextlib.suppress(OSError):
            there = sorted(int(name) for name in os.listdir(f"{PROC}/{self._pid}/task"))[:_MOST_LISTED]
            told = {thread: found for thread in there if (found := self._told(thread))}
            most = sorted(told, key=lambda thread: (thread != self._pid, -sum(told[thread])))[:_MOST_THREADS]
            self._files.close(self._path(thread) for thread in told.keys() - set(most))
            # What a thread that is new here has waited before is nothing of this look.
            self._threads = {thread: self._threads.get(thread, told[thread]) for thread in most}

    def _told(self, thread: int) -> tuple[int, int] | None:
        fields = self._files.read(self._path(thread)).split()
        return (int(fields[0]), int(fields[1])) if len(fields) > 1 else None

    def _path(self, thread: int) -> str:
        return f"{PROC}/{self._pid}/task/{thread}/schedstat"

    def close(self) -> None:
        """Closes its files."""
        self._files.close()


def _control_groups(pid: int) -> _Groups:
    known, quotas, pressures = False, list[str](), tuple[str, ...]()
    mounts = _mounts()
    for line in read_bounded(f"{PROC}/{pid}/cgroup", _MOST_BYTES).decode(errors="replace").splitlines():
        _, controllers, path = line.split(":", 2)
        mount = mounts.get("cpu" if "cpu" in controllers.split(",") else "" if not controllers else "-")
        if mount is None:
            continue
        root, folder = mount
        inside = os.path.relpath(path, root)
        levels = [] if inside == "." or inside.startswith("..") else inside.split("/")
        folders = [folder.joinpath(*levels[:depth]) for depth in range(len(levels), 0, -1)]
        known |= bool(levels) or path == root == "/"
        quotas += [str(group / "cpu.stat") for group in folders[:_LEVELS]]
        if not controllers and folders:
            pressures = tuple(f"{folders[0]}/{name}.pressure" for name in PRESSURES)
    return _Groups(known, tuple(quotas), pressures)


def _mounts() -> dict[str, tuple[str, Path]]:
    """(path of a control group, where it is mounted): of the controller "cpu", and of cgroup v2 by an empty name."""
    found = {}
    for root, place, kind, options in _MOUNT.findall(read_bounded(f"{PROC}/self/mountinfo", 1 << 20)):
        if kind == b"cgroup2":
            found[""] = root.decode(), Path(place.decode())
        elif b"cpu" in options.split(b","):
            found["cpu"] = root.decode(), Path(place.decode())
    return found
