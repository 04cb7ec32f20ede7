# SPDX-License-Identifier: Apache-2.0
"""The settled rows of the last seconds, of all hosts, as the host stage made them: kept, not copied."""

import time
from collections import deque

import numpy as np
import numpy.typing as npt

from collector.host.batches import Settled
from collector.host.rows import ARRIVED
from netmon.columnar import Columns, joined

KEPT_S = 20.0
MOST_ROWS = 1_500_000
"""About 100 MB. Of many hosts, or very busy ones, less than KEPT_S is kept."""

_Numbers = npt.NDArray[np.int64]


class SettledRows:
    """Rows of ARRIVED with their links, oldest first."""

    def __init__(self) -> None:
        """Begin without rows."""
        self._parts: deque[tuple[float, Columns, _Numbers]] = deque()
        self._count = 0

    def add(self, settled: Settled) -> None:
        """Keep what a tick has made final; nothing is computed."""
        now = time.monotonic()
        for found in settled.final:
            if len(found.rows):
                self._parts.append((now, found.rows, found.link))
                self._count += len(found.rows)
        while self._parts and (self._count > MOST_ROWS or self._parts[0][0] < now - KEPT_S):
            self._count -= len(self._parts.popleft()[1])

    def parts(self) -> list[tuple[Columns, _Numbers]]:
        """All that is kept: tables that do not change, and the link of each row."""
        return [(rows, link) for _, rows, link in self._parts]


def of_sessions(parts: list[tuple[Columns, _Numbers]], places: list[int]) -> tuple[Columns, _Numbers]:
    """The rows of some sessions, with their links; may be a thread's work."""
    wanted = np.zeros(max(places, default=0) + 2, np.bool_)
    wanted[places] = True
    found, links = [Columns.zeros(0, ARRIVED)], [np.empty(0, np.int64)]
    for rows, link in parts:
        own = np.flatnonzero(wanted[np.minimum(rows["session"], len(wanted) - 1)])
        if len(own):
            found.append(rows.take(own))
            links.append(link[own])
    return joined(found), np.concatenate(links)
