# SPDX-License-Identifier: Apache-2.0
"""Whose bytes went over a host's links during each iteration of a rank."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from netmon.dl.classify import NS_PER_S, Windows
from netmon.dl.segments import Segments
from netmon.records import Class, Direction

CATEGORIES = 2 * len(Class)


@dataclass(frozen=True)
class Tally:
    """Payload bytes of one iteration by class and direction, and what its windows saw."""

    dl_tx_bytes: int  # the rank's own flows, shared or not
    dl_rx_bytes: int
    dl_shared_tx_bytes: int  # the part of them in shared windows
    dl_shared_rx_bytes: int
    cross_tx_bytes: int  # on all links of the host
    cross_rx_bytes: int
    unclassified_tx_bytes: int
    unclassified_rx_bytes: int
    peak_bps: int  # largest wire rate of all classes on any link in any share window
    node_shared: bool  # some link carried a shared window


class RankAccount:
    """Payload by class and direction between the marks of one rank; exact for marks that come before their rows."""

    def __init__(self) -> None:
        """Begin with nothing counted."""
        self._sums = Segments(CATEGORIES)

    def cut(self, time_ns: int, settled_ns: int) -> bool:
        """A mark's time: an iteration may begin or end there. False where it came after its rows."""
        return self._sums.cut(time_ns, settled_ns)

    def add(
        self,
        start_ns: npt.NDArray[np.int64],
        classes: npt.NDArray[np.uint8],
        direction: npt.NDArray[np.int64],
        payload_bytes: npt.NDArray[np.int64],
    ) -> None:
        """Add settled rows (arrays of one length): the rank's own DL rows and all rows of the other classes."""
        self._sums.add(start_ns, classes.astype(np.int64) * 2 + direction, payload_bytes)

    def tally(self, start_ns: int, end_ns: int, history: "WindowHistory") -> Tally:
        """The account of [start, end)."""
        sums = self._sums.between(start_ns, end_ns).reshape(len(Class), 2).tolist()
        only, shared = sums[Class.DL_ONLY], sums[Class.DL_SHARED]
        cross, unclassified = sums[Class.CROSS], sums[Class.UNCLASSIFIED]
        tx, rx = Direction.TX, Direction.RX
        return Tally(
            *(only[tx] + shared[tx], only[rx] + shared[rx], shared[tx], shared[rx]),
            *(cross[tx], cross[rx], unclassified[tx], unclassified[rx]),
            *(history.peak_bps(start_ns, end_ns), history.any_shared(start_ns, end_ns)),
        )

    def forget(self, before_ns: int) -> None:
        """Drop what concerns only the time before before_ns."""
        self._sums.forget(before_ns)


class WindowHistory:
    """The share windows of one host's links while an iteration may still ask for them."""

    def __init__(self, window_ns: int) -> None:
        """Begin without windows."""
        self._width = window_ns
        self._number: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._wire_bytes: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._shared: npt.NDArray[np.bool_] = np.empty(0, np.bool_)

    def add(self, windows: Windows) -> None:
        """Add the windows of settled rows."""
        self._number = np.concatenate([self._number, windows.number])
        self._wire_bytes = np.concatenate([self._wire_bytes, windows.wire_bytes])
        self._shared = np.concatenate([self._shared, windows.shared])

    def peak_bps(self, start_ns: int, end_ns: int) -> int:
        """Largest wire rate of any link in any window that overlaps [start, end)."""
        most = int(self._wire_bytes[self._overlap(start_ns, end_ns)].max(initial=0))
        return most * 8 * NS_PER_S // self._width

    def any_shared(self, start_ns: int, end_ns: int) -> bool:
        """Whether any window that overlaps [start, end) is shared on any link."""
        return bool(self._shared[self._overlap(start_ns, end_ns)].any())

    def forget(self, before_ns: int) -> None:
        """Drop the windows that end at or before before_ns."""
        keep = (self._number + 1) * self._width > before_ns
        self._number, self._wire_bytes, self._shared = self._number[keep], self._wire_bytes[keep], self._shared[keep]

    def _overlap(self, start_ns: int, end_ns: int) -> npt.NDArray[np.bool_]:
        first, last = start_ns // self._width, (end_ns - 1) // self._width
        overlap: npt.NDArray[np.bool_] = (self._number >= first) & (self._number <= last)
        return overlap
