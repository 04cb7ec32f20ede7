# SPDX-License-Identifier: Apache-2.0
"""CPU time used so far, by the whole machine and by single processes, and the memory of processes."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

_PRECISE = Path("/proc/self/schedstat").exists()
_KB = 1024
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def machine_seconds() -> float:
    """Of all CPUs together, in seconds: user, nice, system, interrupts. Not idle, not stolen by a hypervisor."""
    user, nice, system, _idle, _iowait, irq, softirq = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + irq + softirq) * _TICK_S


def process_seconds(pids: Iterable[int]) -> float:
    """Of these processes and all their threads, in seconds. A process that has ended counts for nothing.

    From the scheduler's account, in ns, where the kernel keeps one (it leaves threads out that have ended); else from
    /proc/PID/stat, in steps of 10 ms.
    """
    return sum(_scheduled(pid) if _PRECISE else _ticks(pid) * _TICK_S for pid in pids)


def memory_bytes(pids: Iterable[int], name: str) -> int:
    """name: "Rss", in which pages that are shared or mapped twice count each time, or "Pss", in which they are shared.

    A process that has ended counts for nothing.
    """
    return sum(_memory_of(pid, name) for pid in pids)


def children(pid: int) -> list[int]:
    """The processes that this one has started and that run."""
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if _parent(entry) == pid]


def command_line(pid: int) -> list[str]:
    """What a process was started with; nothing of one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return []


def _parent(entry: Path) -> int:
    try:
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _scheduled(pid: int) -> float:
    spent_ns = 0
    for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):
            spent_ns += int(file.read_text().split()[0])
    return spent_ns / 1e9


def _ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


def _memory_of(pid: int, name: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * _KB for line in lines if line.startswith(f"{name}:"))
