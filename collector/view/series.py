# SPDX-License-Identifier: Apache-2.0
"""What viewers draw of the last seconds of a link: wire bytes per 100 ms and class, for all links at once."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from netmon.records import Class

_Numbers = npt.NDArray[np.int64]

# --- Equal keys as one group, without sorting where the keys lie close together.

_CLOSE = 64  # × as many places as there are keys


def groups(keys: _Numbers) -> tuple[_Numbers, _Numbers]:
    """(the distinct keys, ascending; the group of each key), as np.unique with return_inverse gives them."""
    if not len(keys):
        return keys, np.empty(0, np.int64)
    first = int(keys.min())
    width = int(keys.max()) - first + 1
    if width > _CLOSE * len(keys):
        distinct, of_key = np.unique(keys, return_inverse=True)
        return distinct, of_key.astype(np.int64, copy=False)
    place = keys - first
    present = np.zeros(width, np.bool_)
    present[place] = True
    distinct = np.flatnonzero(present)
    number = np.empty(width, np.int32)  # what is not written is not read
    number[distinct] = np.arange(len(distinct), dtype=np.int32)
    return distinct + first, number.take(place).astype(np.int64)


def summed(group: _Numbers, amount: npt.NDArray[np.generic], count: int) -> _Numbers:
    """The sum of amounts of each of `count` groups."""
    return np.bincount(group, weights=amount, minlength=count).astype(np.int64)


INTERVAL_NS = 100_000_000
COLUMNS = 100
_SPARE = 20  # columns beyond those that are shown


class LinkSeries:
    """Sums by link, column and class. Column k is [k·INTERVAL_NS, (k+1)·INTERVAL_NS) of the host's mono."""

    def __init__(self, lag_ns: int) -> None:
        """Begin without links; lag_ns: how far behind the present rows are added."""
        self._ring = COLUMNS + lag_ns // INTERVAL_NS + _SPARE
        self._sums: _Numbers = np.zeros((0, self._ring, len(Class)), np.int64)
        self._newest: _Numbers = np.empty(0, np.int64)  # column, per link
        self.totals: _Numbers = np.zeros((0, len(Class)), np.int64)
        """Of all rows since the link came, (links, class)."""

    def extend(self, links: int) -> None:
        more = links - len(self._newest)
        if more > 0:
            self._sums = np.concatenate([self._sums, np.zeros((more, *self._sums.shape[1:]), np.int64)])
            self._newest = np.concatenate([self._newest, np.full(more, -1, np.int64)])
            self.totals = np.concatenate([self.totals, np.zeros((more, len(Class)), np.int64)])

    def forget(self, links: npt.NDArray[np.integer]) -> None:
        """These links have gone; their numbers may be others' now."""
        known = links[links < len(self._newest)]
        self._sums[known], self._newest[known], self.totals[known] = 0, -1, 0

    def add(
        self,
        start_ns: _Numbers,
        link: npt.NDArray[np.integer],
        classes: npt.NDArray[np.uint8],
        wire_bytes: _Numbers,
    ) -> None:
        """Add rows, arrays of one length; those that are older than what is kept are in the totals only."""
        kind = link.astype(np.int64) * len(Class) + classes
        self.totals += np.bincount(kind, wire_bytes, self.totals.size).reshape(self.totals.shape).astype(np.int64)
        column = start_ns // INTERVAL_NS
        newest = self._newest.copy()
        np.maximum.at(newest, link, column)
        self._advance(newest)
        kept = column > self._newest[link] - self._ring
        cell = (link.astype(np.int64) * self._ring + column % self._ring) * len(Class) + classes
        np.add.at(self._sums.reshape(-1), cell[kept], wire_bytes[kept])

    def _advance(self, newest: _Numbers) -> None:
        """Zero the columns that come in place of the oldest ones."""
        shift = np.minimum(newest - self._newest, self._ring)
        self._sums[shift == self._ring] = 0
        moved = np.flatnonzero((shift > 0) & (shift < self._ring))
        for step in range(1, int(shift[moved].max(initial=0)) + 1):
            own = moved[shift[moved] >= step]
            self._sums[own, (self._newest[own] + step) % self._ring] = 0
        self._newest = np.maximum(newest, self._newest)

    def copy(self, end: _Numbers) -> "SeriesCopy":
        """As it is now; end: per link, the column after the last one that is shown."""
        newest = np.maximum(self._newest, end - 1)
        self._advance(newest)
        cell = (end[:, None] + np.arange(-COLUMNS, 0)) % self._ring
        cell += np.arange(len(end))[:, None] * self._ring
        # In a third of the time of an index by link and column.
        last = np.take(self._sums.reshape(-1, len(Class)), cell.ravel(), axis=0)
        return SeriesCopy(last.reshape(len(end), COLUMNS, len(Class)), end)


@dataclass(frozen=True)
class SeriesCopy:
    """Series that are not added to any more but by whoever has asked for them."""

    sums: _Numbers  # (links, COLUMNS, class), oldest first
    end: _Numbers  # (links,): the column after the last one

    def add(
        self,
        column: _Numbers,
        link: npt.NDArray[np.integer],
        classes: npt.NDArray[np.uint8],
        wire_bytes: _Numbers,
    ) -> None:
        """Add rows, arrays of one length; those of columns that are not shown are left out."""
        place = column - self.end[link] + COLUMNS
        kept = np.flatnonzero((place >= 0) & (place < COLUMNS))
        cell = (link[kept].astype(np.int64) * COLUMNS + place[kept]) * len(Class) + classes[kept]
        np.add.at(self.sums.reshape(-1), cell, wire_bytes[kept])

    def of(self, links: npt.NDArray[np.integer]) -> "SeriesCopy":
        return SeriesCopy(self.sums[links], self.end[links])
