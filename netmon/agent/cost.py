# SPDX-License-Identifier: Apache-2.0
"""What the agent itself costs the host."""

import os
import time
from collections.abc import Sequence

from netmon.kernel.meter.memory import PAGE_BYTES
from netmon.kernel.processes import PROC, read_bounded
from netmon.records import AgentCost

_MOST_BYTES = 4096
_INTERVAL_S = 2.0
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class CostMeter:
    """CPU time and memory of the agent's processes."""

    def __init__(self, pids: Sequence[int]) -> None:
        """pids: of all of the agent's processes."""
        self._pids = pids
        self._ticks: dict[int, int] = {}  # of each as it was last seen: one that has ended has not given them back
        self._last = (time.monotonic(), self._cpu_seconds())
        self._cost = AgentCost()

    def measure(self, spool_bytes: int, warnings: int) -> AgentCost:
        """The cost over the last seconds: /proc counts in steps of 10 ms."""
        now = time.monotonic()
        if now - self._last[0] >= _INTERVAL_S:
            used = self._cpu_seconds()
            self._cost = AgentCost((used - self._last[1]) / (now - self._last[0]), self._rss_bytes())
            self._last = now, used
        return AgentCost(self._cost.cpu_fraction, self._cost.rss_bytes, spool_bytes, warnings)

    def _cpu_seconds(self) -> float:
        for pid in self._pids:
            if fields := _read(pid, "stat").rpartition(b")")[2].split():
                self._ticks[pid] = int(fields[11]) + int(fields[12])
        return sum(self._ticks.values()) * _TICK_S

    def _rss_bytes(self) -> int:
        pages = (_read(pid, "statm").split() for pid in self._pids)
        return sum(int(fields[1]) for fields in pages if fields) * PAGE_BYTES


def _read(pid: int, name: str) -> bytes:
    return read_bounded(f"{PROC}/{pid}/{name}", _MOST_BYTES)
