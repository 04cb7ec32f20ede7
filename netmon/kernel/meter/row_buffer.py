# SPDX-License-Identifier: Apache-2.0
"""A growing table of bucket rows whose memory is used again: fresh pages would cost more than the rows."""

import numpy as np
import numpy.typing as npt

from netmon.records import BUCKET, Table

_WORDS = BUCKET.itemsize // 8
_FIRST_CAPACITY = 1 << 16


class RowBuffer:
    """Rows of BUCKET, appended in place."""

    def __init__(self) -> None:
        """Empty, with room for 65,536 rows."""
        self._memory = np.zeros((_FIRST_CAPACITY, _WORDS), np.uint64)
        self._used = 0

    def __len__(self) -> int:
        """Rows held."""
        return self._used

    def grow(self, count: int) -> npt.NDArray[np.uint64]:
        """Room for `count` more rows, to be filled by the caller: (count, 3) words."""
        needed = self._used + count
        if needed > len(self._memory):
            larger = np.zeros((max(needed, 2 * len(self._memory)), _WORDS), np.uint64)
            larger[: self._used] = self._memory[: self._used]
            self._memory = larger
        start, self._used = self._used, needed
        return self._memory[start:needed]

    def shrink(self, length: int) -> None:
        """Gives up what lies beyond this length."""
        self._used = length

    def drop(self, rows: npt.NDArray[np.intp]) -> None:
        """Takes these rows out, given in ascending order; others move into their places."""
        left = self._used - len(rows)
        holes = rows[rows < left]
        movable = np.setdiff1d(np.arange(left, self._used), rows, assume_unique=True)
        self._memory[holes] = self._memory[movable]
        self._used = left

    def table(self, start: int = 0) -> Table:
        """The rows from `start` on, in place: valid until rows are given up."""
        rows: Table = self._memory[start : self._used].reshape(-1).view(BUCKET)
        return rows
