# SPDX-License-Identifier: Apache-2.0
"""The account of the link, with what was captured in the place of the NIC's counters."""

import numpy as np

from netmon.records import Direction, LedgerSample
from netmon.replay.frames import DIRECTION_SHIFT, Frames
from netmon.replay.host import INTERFACE

_INTERVAL_NS = 1_000_000_000


class CaptureLedger:
    """Cumulative samples of the capture, an interval apart in its own time."""

    def __init__(self, start_ns: int) -> None:
        """The account begins with nothing."""
        self._packets, self._bytes = np.zeros(2, np.int64), np.zeros(2, np.int64)
        self._due_ns = start_ns + _INTERVAL_NS
        self._first = self._samples(start_ns)

    def add(self, frames: Frames) -> None:
        """Take in frames whose direction is known."""
        direction = (frames.words[:, 4] >> DIRECTION_SHIFT & np.uint64(1)).astype(np.intp)
        self._packets += np.bincount(direction, minlength=2)
        self._bytes += np.bincount(direction, weights=frames.wire_bytes, minlength=2).astype(np.int64)

    def due(self, now_ns: int, last: bool) -> list[LedgerSample]:
        """A sample per direction if it is time; the first ones at the first call. All frames before now are in."""
        samples, self._first = self._first, []
        if now_ns >= self._due_ns or last:
            self._due_ns = now_ns + _INTERVAL_NS
            samples = samples + self._samples(now_ns)
        return samples

    def _samples(self, now_ns: int) -> list[LedgerSample]:
        nothing = [0] * 9
        return [
            LedgerSample(INTERFACE, way, now_ns, size, packets, 0, packets, packets, size, size, *nothing)
            for way in Direction
            for packets, size in [(int(self._packets[way]), int(self._bytes[way]))]
        ]
