# SPDX-License-Identifier: Apache-2.0
"""What holds packets up inside a host, alongside its NICs: the stack's own drops and squeezes, and pressure (PSI).

Needs no privilege. All counters are the machine's, whatever network namespace or container asks.
"""

import re

from netmon.kernel.open_files import OpenFiles
from netmon.kernel.processes import PROC

_MOST_CPUS = 4096
_LINE_BYTES = 256  # of a CPU in softnet_stat
_DROPPED, _SQUEEZED = slice(9, 17), slice(18, 26)  # the second and third number, eight hexadecimal digits each
_SOME = re.compile(rb"^some .* total=(\d+)", re.MULTILINE)
PRESSURES = ("cpu", "memory", "io")

UNKNOWN = -1


class Softnet:
    """What the kernel's network threads could not do (/proc/net/softnet_stat)."""

    def __init__(self, files: OpenFiles) -> None:
        """files: through which it reads."""
        self._files, self._path = files, f"{PROC}/self/net/softnet_stat"
        self._before: list[tuple[int, int]] = []
        self.read()

    def read(self) -> tuple[int, int]:
        """(packets dropped for a full backlog, rounds ended with packets left) of all CPUs since the last call."""
        lines = self._files.read(self._path, _MOST_CPUS * _LINE_BYTES).splitlines()
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
        """Of everything that runs here."""
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
