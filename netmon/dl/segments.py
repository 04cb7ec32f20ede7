# SPDX-License-Identifier: Apache-2.0
"""Sums of rows over the spans between known moments, kept as the rows come by."""

import numpy as np
import numpy.typing as npt


def with_cut(cuts: npt.NDArray[np.int64], time_ns: int, added_until_ns: int) -> npt.NDArray[np.int64] | None:
    """Ascending cuts with time_ns among them; None where rows from there on may have been added already."""
    place = int(np.searchsorted(cuts, time_ns))
    if place < len(cuts) and cuts[place] == time_ns:
        return cuts
    return None if time_ns < added_until_ns else np.insert(cuts, place, time_ns)


class Segments:
    """Time, cut at moments; each segment holds one sum per category.

    A row belongs to the segment in which its time lies. A cut must be made before rows at or after it are added,
    then the sums between any two cuts are exact although no row is kept.
    """

    def __init__(self, categories: int) -> None:
        """Begin with one segment, all of time, that holds 0 in each of the categories."""
        self._categories = categories
        self._cuts: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._sums: npt.NDArray[np.int64] = np.zeros((1, categories), np.int64)

    def cut(self, time_ns: int, added_until_ns: int) -> bool:
        """Cut at time_ns; False, and no cut, where rows from there on may have been added already."""
        cuts = with_cut(self._cuts, time_ns, added_until_ns)
        if cuts is None:
            return False
        if len(cuts) > len(self._cuts):
            self._sums = np.insert(self._sums, int(np.searchsorted(cuts, time_ns)) + 1, 0, axis=0)
        self._cuts = cuts
        return True

    def add(
        self, time_ns: npt.NDArray[np.int64], category: npt.NDArray[np.int64], amount: npt.NDArray[np.int64]
    ) -> None:
        """Add rows: three arrays of one length. Sums are exact below 2^53 per call."""
        cell = np.searchsorted(self._cuts, time_ns, side="right") * self._categories + category
        added = np.bincount(cell, weights=amount, minlength=self._sums.size)
        self._sums += added.astype(np.int64).reshape(self._sums.shape)

    def between(self, start_ns: int, end_ns: int) -> npt.NDArray[np.int64]:
        """Sums over [start, end), one per category; both should be cuts."""
        first, last = np.searchsorted(self._cuts, (start_ns, end_ns), side="right")
        total: npt.NDArray[np.int64] = self._sums[first:last].sum(axis=0)
        return total

    def forget(self, before_ns: int) -> None:
        """Drop the segments that end at or before before_ns."""
        first = int(np.searchsorted(self._cuts, before_ns, side="right"))
        self._cuts, self._sums = self._cuts[max(0, first - 1) :], self._sums[max(0, first - 1) :]
