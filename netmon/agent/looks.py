# SPDX-License-Identifier: Apache-2.0
"""When to look around among the processes: often while ranks are there or processes begin, seldom on a quiet host."""

from pathlib import Path

_OFTEN_NS = 300_000_000
_SELDOM_NS = 300_000_000  # a process is known by what it was at the last look: seldom would be late
_SETTLED_NS = 5_000_000_000  # so long after a process began, whoever it is has its environment and its libraries
_LOAD = Path("/proc/loadavg")


class Looks:
    """A look costs as much as there are processes; what the kernel says of the newest one costs nothing."""

    def __init__(self, load: Path = _LOAD) -> None:
        """load: the kernel's file, whose last word is the newest process of the caller's PID namespace."""
        self._load = load
        self._newest = ""
        self._began_ns = 0  # when the newest process was noticed
        self._due_ns = 0
        self._ranks = False

    def due(self, now_ns: int) -> bool:
        """Whether it is time; then the next one is put off."""
        if now_ns < self._due_ns:
            return False
        newest = self._load.read_text().rpartition(" ")[2]
        if newest != self._newest:
            self._newest, self._began_ns = newest, now_ns
        quiet = not self._ranks and now_ns - self._began_ns > _SETTLED_NS
        self._due_ns = now_ns + (_SELDOM_NS if quiet else _OFTEN_NS)
        return True

    def seen(self, ranks: bool) -> None:
        """Whether the last look found ranks."""
        self._ranks = ranks
