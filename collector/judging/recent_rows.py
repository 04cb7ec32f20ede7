# SPDX-License-Identifier: Apache-2.0
"""The rows of the last seconds, of all hosts, as they came to the host stage: what a verdict needs of them."""

import time
from collections import deque

import numpy as np

from collector.host.batches import Settled
from netmon.columnar import Columns, joined

KEPT_S = 20.0
MOST_ROWS = 1_500_000
"""About 50 MB. Of many hosts, or very busy ones, less than KEPT_S is kept."""

RECENT = np.dtype(
    [("session", "<i4"), ("flow", "<i4"), ("start_ns", "<i8")]
    + [(name, "<u4") for name in ("bucket_ns", "wire_bytes", "payload_bytes")]
)
"""As in ARRIVED."""


class RecentRows:
    """Rows of RECENT, oldest first. They may still change their class; that is not asked here."""

    def __init__(self) -> None:
        """Begin without rows."""
        self._parts: deque[tuple[float, Columns]] = deque()
        self._count = 0

    def add(self, settled: Settled) -> None:
        """Keep what has come in a tick."""
        now = time.monotonic()
        for rows in settled.arrived:
            if len(rows):
                self._parts.append(
                    (now, Columns({name: rows[name].astype(RECENT[name]) for name in RECENT.names or ()}))
                )
                self._count += len(rows)
        while self._parts and (self._count > MOST_ROWS or self._parts[0][0] < now - KEPT_S):
            self._count -= len(self._parts.popleft()[1])

    def age_s(self) -> float:
        """For how long all that came has been kept."""
        return time.monotonic() - self._parts[0][0] if self._parts else 0.0

    def parts(self) -> list[Columns]:
        """All that is kept: tables that do not change."""
        return [rows for _, rows in self._parts]


def of_sessions(parts: list[Columns], places: list[int]) -> Columns:
    """The rows of some sessions; may be a thread's work."""
    wanted = np.zeros(max(places, default=0) + 2, np.bool_)
    wanted[places] = True
    found = [Columns.zeros(0, RECENT)]
    for rows in parts:
        own = np.flatnonzero(wanted[np.minimum(rows["session"], len(wanted) - 1)])
        if len(own):
            found.append(rows.take(own))
    return joined(found)
