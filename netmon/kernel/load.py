# SPDX-License-Identifier: Apache-2.0
"""What holds a host and its ranks up: dropped packets, pressure, and waits for a CPU. Needs no privilege."""

import contextlib
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from netmon.evidence import UNKNOWN
from netmon.kernel.processes import PROC, read_bounded


class OpenFiles:
    """By their paths. What cannot be opened or read is empty."""

    def __init__(self) -> None:
        self._open: dict[str, int] = {}

    def read(self, path: str, most: int = 4096) -> bytes:
        """The first bytes of a file; empty where it is gone, or is not ours to read."""
        try:
            if path not in self._open:
                self._open[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            return os.pread(self._open[path], most, 0)
        except OSError:
            self.close([path])
            return b""

    def descriptor(self, path: str) -> int:
        """Of a file that has been read, and is open; −1: it is not."""
        return self._open.get(path, -1)

    def close(self, paths: Iterable[str] | None = None) -> None:
        for path in list(self._open) if paths is None else paths:
            descriptor = self._open.pop(path, -1)
            if descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.close(descriptor)


# --- What holds packets up inside a host, alongside its NICs: the stack's own drops and squeezes, and pressure (PSI).
#
# Needs no privilege. All counters are the machine's, whatever network namespace or container asks.

_MOST_CPUS = 4096
_SOFTNET_LINE_BYTES = 256  # of a CPU in softnet_stat
_DROPPED, _SQUEEZED = slice(9, 17), slice(18, 26)  # the second and third number, eight hexadecimal digits each
_SOME = re.compile(rb"^some .* total=(\d+)", re.MULTILINE)
PRESSURES = ("cpu", "memory", "io")


class Softnet:
    """What the kernel's network threads could not do (/proc/net/softnet_stat)."""

    def __init__(self, files: OpenFiles) -> None:
        """files: through which it reads."""
        self._files, self._path = files, f"{PROC}/self/net/softnet_stat"
        self._before: list[tuple[int, int]] = []
        self.read()

    def read(self) -> tuple[int, int]:
        """(packets dropped for a full backlog, rounds ended with packets left) of all CPUs since the last call."""
        lines = self._files.read(self._path, _MOST_CPUS * _SOFTNET_LINE_BYTES).splitlines()
        try:
            now = [(int(line[_DROPPED], 16), int(line[_SQUEEZED], 16)) for line in lines]
        except ValueError:
            now = []
        before, self._before = self._before, now
        if not now or len(now) != len(before):  # unreadable, or a CPU has come or gone
            return UNKNOWN, UNKNOWN
        pairs = list(zip(now, before, strict=True))
        dropped, squeezed = (sum(n[which] - b[which] & 0xFFFFFFFF for n, b in pairs) for which in (0, 1))
        return dropped, squeezed


class Pressure:
    """For how long some task had to wait for a resource (pressure stall information), of the machine or a cgroup."""

    def __init__(self, files: OpenFiles, paths: tuple[str, ...]) -> None:
        """paths: the files of PRESSURES, in their order; empty: there is none."""
        self._files, self._paths = files, paths
        self._before = [self._total(path) for path in paths]

    @classmethod
    def of_machine(cls, files: OpenFiles) -> "Pressure":
        return cls(files, tuple(f"{PROC}/pressure/{name}" for name in PRESSURES))

    def read(self) -> tuple[int, ...]:
        """ns of each of PRESSURES since the last call."""
        now = [self._total(path) for path in self._paths]
        before, self._before = self._before, now
        return tuple(grown(n, b) for n, b in zip(now, before, strict=True)) or (UNKNOWN,) * len(PRESSURES)

    def _total(self, path: str) -> int:
        found = _SOME.search(self._files.read(path))
        return int(found[1]) * 1000 if found else UNKNOWN


def grown(now: int, before: int) -> int:
    """By how much a counter has grown; UNKNOWN where either is, or it was set back."""
    return now - before if now >= before >= 0 else UNKNOWN


# --- For how long a process ran, wanted to run and could not, and was throttled by a quota.

_MOST_THREADS, _MOST_LISTED = 16, 512
_LIST_NS, _FIRST_LIST_NS = 30_000_000_000, 3_000_000_000
_MOST_BYTES, _MOST_GROUPS = 64 << 10, 16 << 10  # of a file; of the names of control groups that are compared
_LEVELS = 16  # of control groups
_LINE_BYTES = 64  # of schedstat: three numbers
_STILL = 10  # looks
_WAITS_NS = 2_000_000  # of a thread between two looks, from which on a quota may be why
_RESTS_NS = 1_000_000  # of CPU time between two looks, below which the process may be stopped
_THROTTLED = re.compile(rb"^throttled_(usec|time) (\d+)", re.MULTILINE)
_NS = {b"usec": 1000, b"time": 1}  # cgroup v2, v1
_PERIODS = re.compile(rb"^nr_periods (\d+)", re.MULTILINE)
_MOUNT = re.compile(rb"^\d+ \d+ \S+ (\S+) (\S+) [^\n]* - (cgroup2?) \S+ (\S+)$", re.MULTILINE)


class Load(NamedTuple):
    """ns since the last look; UNKNOWN where it is not known."""

    cpu_ns: int  # of all its threads
    run_delay_ns: int  # of the thread that waited most for a CPU
    throttled_ns: int  # of its control group or one above, by their CPU quota, summed over CPUs
    stopped: bool  # now, by a signal or a debugger


class _Thread:
    """What was reported it last."""

    __slots__ = ("descriptor", "still", "text", "waited_ns")

    def __init__(self, descriptor: int, text: bytes) -> None:
        """descriptor: of its schedstat (not kept open by this); text: what stands there."""
        self.descriptor, self.text, self.waited_ns = descriptor, text, int(text.split()[1])
        self.still = 0  # looks in which it did not run


class _Groups(NamedTuple):
    """A process's control groups. known: whether it can be known which of them limit its CPU time."""

    known: bool
    quotas: tuple[str, ...]  # files that report throttling: of its group, and of those above
    pressures: tuple[str, ...]  # files of PRESSURES


class ProcessLoad:
    """One process. The first look begins; each one reports the time since the last."""

    def __init__(self, pid: int) -> None:
        self._pid, self._files = pid, OpenFiles()
        self._clock = ~pid << 3 | 2  # clock_getcpuclockid(3)
        self._threads: dict[int, _Thread] = {}  # by its number
        self._list_ns = 0  # threads are looked for now and then
        self._in, self._followed_ns = self._names_of_groups(), time.monotonic_ns()
        self._groups = _control_groups(pid)
        self._pressure = Pressure(self._files, self._groups.pressures)
        self._cpu, self._throttled = self._cpu_ns(), self._throttled_ns()
        self._look_at_threads()

    def sample(self, thorough: bool = True) -> Load | None:
        """None where the process is gone.

        thorough: False reads less. Throttling is then reported by a later look unless a thread had to wait, that of
        control groups which the process has been put into meanwhile in any case, and a process that ran counts as not
        stopped.
        """
        cpu = self._cpu_ns()
        if cpu < self._cpu:
            return None
        ran_ns, self._cpu = grown(cpu, self._cpu), cpu
        waited_ns = self._look_at_threads(ran_ns, thorough)
        throttled_ns = 0 if self._groups.known else UNKNOWN  # there is none above a group of no quota
        if thorough or not 0 <= waited_ns < _WAITS_NS:
            before, self._throttled = self._throttled, self._throttled_ns()
            grew = (grown(n, b) for n, b in zip(self._throttled, before, strict=True))
            throttled_ns = max(grew, default=throttled_ns)
        if thorough:
            throttled_ns = max(throttled_ns, self._follow_groups())
        stopped = (thorough or ran_ns < _RESTS_NS) and self._is_stopped()
        return Load(ran_ns, waited_ns, throttled_ns, stopped)

    def pressure_ns(self) -> tuple[int, ...]:
        """Of its control group, by PRESSURES, since the last call."""
        return self._pressure.read()

    def _follow_groups(self) -> int:
        """A process that runs already may be put into other control groups. For how long these have throttled since
        this was looked at last (ns), UNKNOWN if it is in the same ones.

        A group that may be older than that starts at what it tells now, of which some may be of before.
        """
        names, before_ns, self._followed_ns = self._names_of_groups(), self._followed_ns, time.monotonic_ns()
        if names == self._in or not names:
            return UNKNOWN
        self._in, groups = names, _control_groups(self._pid)
        if groups == self._groups:
            return UNKNOWN
        throttled = dict(zip(self._groups.quotas, self._throttled, strict=True))
        self._files.close({*throttled, *self._groups.pressures} - {*groups.quotas})
        self._groups, self._pressure = groups, Pressure(self._files, groups.pressures)
        self._throttled = self._throttled_ns()
        new = [
            ns
            for path, ns in zip(groups.quotas, self._throttled, strict=True)
            if path not in throttled and 0 <= self._periods_ns(path) <= self._followed_ns - before_ns
        ]
        return max(new, default=UNKNOWN)

    def _periods_ns(self, path: str) -> int:
        """For how long a group has had something to limit; UNKNOWN: it has no quota. path: its cpu.stat."""
        count = _PERIODS.search(self._files.read(path))
        group = os.path.dirname(path)
        limit = read_bounded(f"{group}/cpu.max", _LINE_BYTES).split()  # cgroup v2: quota, period
        period = limit[1] if len(limit) > 1 else read_bounded(f"{group}/cpu.cfs_period_us", _LINE_BYTES)
        return int(count[1]) * int(period) * 1000 if count and period else UNKNOWN

    def _names_of_groups(self) -> bytes:
        return self._files.read(f"{PROC}/{self._pid}/cgroup", _MOST_GROUPS)

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

    def _look_at_threads(self, ran_ns: int = UNKNOWN, thorough: bool = True) -> int:
        """ns that a thread has waited since the last look, at the most; UNKNOWN where none was there before.

        ran_ns: of all of them since then. While none runs, no wait is over, and only what is over is counted. thorough:
        also at those that have not run for a while.
        """
        now = time.monotonic_ns()
        if now >= self._list_ns:
            self._list_ns = now + (_LIST_NS if self._threads else _FIRST_LIST_NS)
            self._choose_threads()
        elif ran_ns == 0 and self._threads:
            return 0
        waited, gone = UNKNOWN, list[int]()
        for number, thread in self._threads.items():
            if thread.still > _STILL and not thorough and number != self._pid:
                waited = max(waited, 0)
                continue
            try:
                text = os.pread(thread.descriptor, _LINE_BYTES, 0)
            except OSError:
                gone.append(number)
                continue
            if text == thread.text:
                thread.still, waited = thread.still + 1, max(waited, 0)
                continue
            thread.still = 0
            before, thread.text, thread.waited_ns = thread.waited_ns, text, int(text.split()[1])
            waited = max(waited, grown(thread.waited_ns, before))
        for number in gone:
            del self._threads[number]
        self._files.close(self._path(number) for number in gone)
        return waited

    def _choose_threads(self) -> None:
        """The first one, which trains as a rule, and those that ran and waited most since they began."""
        with contextlib.suppress(OSError):
            there = sorted(int(name) for name in os.listdir(f"{PROC}/{self._pid}/task"))[:_MOST_LISTED]
            texts = {thread: text for thread in there if len((text := self._read_schedstat(thread)).split()) > 1}
            work = {thread: sum(map(int, text.split()[:2])) for thread, text in texts.items()}
            most = sorted(texts, key=lambda thread: (thread != self._pid, -work[thread]))[:_MOST_THREADS]
            self._files.close(self._path(thread) for thread in texts.keys() - set(most))
            # What a thread that is new here has waited before is nothing of this look.
            self._threads = {
                thread: self._threads.get(thread) or _Thread(self._files.descriptor(self._path(thread)), texts[thread])
                for thread in most
            }

    def _read_schedstat(self, thread: int) -> bytes:
        return self._files.read(self._path(thread), _LINE_BYTES)

    def _path(self, thread: int) -> str:
        return f"{PROC}/{self._pid}/task/{thread}/schedstat"

    def close(self) -> None:
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
    for root, index, kind, options in _MOUNT.findall(read_bounded(f"{PROC}/self/mountinfo", 1 << 20)):
        if kind == b"cgroup2":
            found[""] = root.decode(), Path(index.decode())
        elif b"cpu" in options.split(b","):
            found["cpu"] = root.decode(), Path(index.decode())
    return found
