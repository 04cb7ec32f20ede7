# SPDX-License-Identifier: Apache-2.0
"""The rows of the last seconds, of all hosts, as they came to the host stage: what a verdict needs of them."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from collector.host.batches import Settled
from netmon.columnar import Columns, joined

KEPT_S = 20.0
MOST_ROWS = 1_500_000
"""About 50 MB. Of many hosts, or very busy ones, less than KEPT_S is kept."""

_AHEAD_NS = 2_000_000_000

RECENT = np.dtype(
    [("session", "<i4"), ("flow", "<i4"), ("start_ns", "<i8")]
    + [(name, "<u4") for name in ("bucket_ns", "wire_bytes", "payload_bytes")]
)
"""As in ARRIVED."""


Wanted = Callable[[npt.NDArray[np.int32], npt.NDArray[np.int64], npt.NDArray[np.uint32]], npt.NDArray[np.bool_]]


def _all(session: npt.NDArray[np.int32], *_: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
    return np.ones(len(session), np.bool_)


class Part(NamedTuple):
    """What came in one tick. It does not change."""

    arrived_ns: int  # UTC, by the collector's clock
    rows: Columns  # of RECENT


class RecentRows:
    """Rows of RECENT, oldest first. They may still change their class; that is not asked here."""

    def __init__(self) -> None:
        self._parts: deque[tuple[float, Part]] = deque()
        self._count = 0

    def add(self, settled: Settled) -> None:
        """Keep what has come in a tick."""
        now, utc_ns = time.monotonic(), time.time_ns()
        for rows in settled.arrived:
            if len(rows):
                own = Columns({name: rows[name].astype(RECENT[name]) for name in RECENT.names or ()})
                self._parts.append((now, Part(utc_ns, own)))
                self._count += len(rows)
        while self._parts and (self._count > MOST_ROWS or self._parts[0][0] < now - KEPT_S):
            self._count -= len(self._parts.popleft()[1].rows)

    def parts(self) -> list[Part]:
        """All that is kept."""
        return [part for _, part in self._parts]


def of_sessions(parts: Sequence[Part], session_indices: list[int], since_ns: int = 0, wanted: Wanted = _all) -> Columns:
    """The rows of some sessions, without most of those from before `since_ns` (UTC); may be a thread's work.

    Nothing arrives before it happens, by whatever clock: _AHEAD_NS is more than these are off by. wanted: which of some
    rows are to be returned, by their sessions, starts (mono) and widths.
    """
    theirs = np.zeros(max(session_indices, default=0) + 2, np.bool_)
    theirs[session_indices] = True
    chosen = []
    for rows in (part.rows for part in parts if part.arrived_ns >= since_ns - _AHEAD_NS):
        own = np.flatnonzero(theirs[np.minimum(rows["session"], len(theirs) - 1)])
        if len(own):
            chosen.append((rows, own))
    if not chosen:
        return Columns.zeros(0, RECENT)
    columns = (
        np.concatenate([rows[name][own] for rows, own in chosen]) for name in ("session", "start_ns", "bucket_ns")
    )
    good = np.split(wanted(*columns), np.cumsum([len(own) for _, own in chosen])[:-1])
    return joined(rows.take(own[kept]) for (rows, own), kept in zip(chosen, good, strict=True))
