# SPDX-License-Identifier: Apache-2.0
"""When ranks were stopped by a signal, as bpf/stops.c reports it in memory that is shared with it.

What stops a process otherwise (a debugger, the freezer of its control group) is not seen here.
"""

import numpy as np

from netmon.kernel.btf import KernelTypes
from netmon.kernel.meter.memory import mapped_array
from netmon.records import STOP, Table

PROGRAM, MAP, TRACEPOINT = "signal_sent", "stops", "signal_generate"
MOST_WATCHED = 64

_OFFSETS = {
    "NETMON_TASK_TGID": ("task_struct", "tgid"),
    "NETMON_TASK_SIGNAL": ("task_struct", "signal"),
    "NETMON_SIGNAL_PIDS": ("signal_struct", "pids"),
    "NETMON_PID_LEVEL": ("pid", "level"),
    "NETMON_PID_NUMBERS": ("pid", "numbers"),
    "NETMON_UPID_NR": ("upid", "nr"),
    "NETMON_UPID_NS": ("upid", "ns"),
    "NETMON_PIDNS_INUM": ("pid_namespace", "ns.inum"),
}
_TRIES = 3  # to read an entry that the program writes to

Stopped = tuple[int, int]
"""[begin, end) in ns of CLOCK_MONOTONIC."""


def definitions(types: KernelTypes) -> dict[str, int]:
    """What bpf/stops.c is compiled with. Raises UnsupportedError where the kernel does not describe a field."""
    return {name: types.offset(*index) for name, index in _OFFSETS.items()} | {"NETMON_WATCHED": MOST_WATCHED}


class RankStops:
    """Of at most MOST_WATCHED processes. Never blocks; needs no privilege."""

    def __init__(self, descriptor: int | None) -> None:
        """descriptor: of MAP (not kept); None: nobody tells."""
        watched = MOST_WATCHED if descriptor is not None else 0
        self._memory: Table = np.zeros(0, STOP)
        if descriptor is not None:
            self._memory = mapped_array(descriptor, STOP, watched, writable=True)
            self._memory["pid"] = 0
        self._words = self._memory.view("<u8").reshape(watched, 4)  # of a row of these it takes a tenth of the time
        self._slots: dict[int, int] = {}  # by pid
        self._totals: dict[int, int] = {}  # when it was last looked at, by pid

    def watch(self, pid: int) -> None:
        """From now on, if there is room. One that is stopped already counts from when it has gone on."""
        free = np.flatnonzero(self._memory["pid"] == 0)
        if pid in self._slots or not len(free):
            return
        index = int(free[0])
        for name in ("begin_ns", "end_ns", "total_ns", "pid"):  # from then on the program writes to it
            self._memory[name][index] = pid if name == "pid" else 0
        self._slots[pid], self._totals[pid] = index, 0

    def watches(self, pid: int) -> bool:
        return pid in self._slots

    def forget(self, pid: int) -> None:
        """No more of it."""
        if pid in self._slots:
            self._memory["pid"][self._slots.pop(pid)] = 0
            del self._totals[pid]

    def since(self, pid: int, begin_ns: int, now_ns: int) -> tuple[Stopped | None, int]:
        """The last stop within [begin, now), and what earlier ones in it sum up to (ns). begin: of the last look."""
        index = self._slots.get(pid)
        if index is None:
            return None, 0
        begun, ended, total = self._read(index)
        grown, self._totals[pid] = total - self._totals[pid], total
        last = max(begun, begin_ns), now_ns if begun > ended else ended
        if not begun or last[1] <= last[0]:
            return None, 0
        earlier = grown - (ended - begun) if begun <= ended else grown
        return last, min(max(0, earlier), last[0] - begin_ns)

    def _read(self, index: int) -> tuple[int, int, int]:
        for _ in range(_TRIES):
            values = self._words[index].tolist()
            if values == self._words[index].tolist():
                break
        begin_ns, end_ns, total_ns, _ = values
        return begin_ns, end_ns, total_ns
