# SPDX-License-Identifier: Apache-2.0
"""What viewers draw of the last seconds of a link: wire bytes per 100 ms and class, for all links at once."""

import numpy as np
import numpy.typing as npt

from netmon.records import Class

INTERVAL_NS = 100_000_000
COLUMNS = 100
_SPARE = 20  # columns beyond those that are shown


class LinkSeries:
    """Sums by link, column and class. Column k is [k·INTERVAL_NS, (k+1)·INTERVAL_NS) of the host's mono."""

    def __init__(self, lag_ns: int) -> None:
        """Begin without links; lag_ns: how far behind the present rows are added."""
        self._ring = COLUMNS + lag_ns // INTERVAL_NS + _SPARE
        self._sums: npt.NDArray[np.int64] = np.zeros((0, self._ring, len(Class)), np.int64)
        self._newest: npt.NDArray[np.int64] = np.empty(0, np.int64)  # column, per link

    def extend(self, links: int) -> None:
        """Have room for so many links."""
        more = links - len(self._newest)
        if more > 0:
            self._sums = np.concatenate([self._sums, np.zeros((more, *self._sums.shape[1:]), np.int64)])
            self._newest = np.concatenate([self._newest, np.full(more, -1, np.int64)])

    def forget(self, links: npt.NDArray[np.integer]) -> None:
        """These links have gone; their numbers may be others' now."""
        known = links[links < len(self._newest)]
        self._sums[known], self._newest[known] = 0, -1

    def add(
        self,
        start_ns: npt.NDArray[np.int64],
        link: npt.NDArray[np.integer],
        classes: npt.NDArray[np.uint8],
        wire_bytes: npt.NDArray[np.int64],
    ) -> None:
        """Add rows, arrays of one length; those that are older than what is kept are left out."""
        column = start_ns // INTERVAL_NS
        newest = self._newest.copy()
        np.maximum.at(newest, link, column)
        self._advance(newest)
        kept = column > self._newest[link] - self._ring
        cell = (link.astype(np.int64) * self._ring + column % self._ring) * len(Class) + classes
        np.add.at(self._sums.reshape(-1), cell[kept], wire_bytes[kept])

    def _advance(self, newest: npt.NDArray[np.int64]) -> None:
        """Zero the columns that come in place of the oldest ones."""
        shift = np.minimum(newest - self._newest, self._ring)
        self._sums[shift == self._ring] = 0
        moved = np.flatnonzero((shift > 0) & (shift < self._ring))
        for step in range(1, int(shift[moved].max(initial=0)) + 1):
            own = moved[shift[moved] >= step]
            self._sums[own, (self._newest[own] + step) % self._ring] = 0
        self._newest = np.maximum(newest, self._newest)

    def before(self, end: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """A copy of the COLUMNS columns before column end[link] of each link, (links, COLUMNS, class), oldest first."""
        column = end[:, None] + np.arange(-COLUMNS, 0)
        wanted: npt.NDArray[np.int64] = self._sums[np.arange(len(end))[:, None], column % self._ring]
        newest = self._newest[: len(end), None]
        wanted[(column > newest) | (column <= newest - self._ring)] = 0
        return wanted
