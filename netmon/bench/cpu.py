# SPDX-License-Identifier: Apache-2.0
"""CPU time used so far: by the whole machine, and by single processes."""

import os
from collections.abc import Iterable
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def machine_seconds() -> float:
    """Of all CPUs together, in seconds: user, nice, system, interrupts. Not idle, not stolen by a hypervisor."""
    user, nice, system, _idle, _iowait, irq, softirq = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + irq + softirq) * _TICK_S


def process_seconds(pids: Iterable[int]) -> float:
    """Of these processes and all their threads, in seconds. A process that has ended counts for nothing."""
    return sum(_ticks(pid) for pid in pids) * _TICK_S


def _ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])
