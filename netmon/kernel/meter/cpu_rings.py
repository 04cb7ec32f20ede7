# SPDX-License-Identifier: Apache-2.0
"""Rings of records, one per CPU, as bpf/meter.c fills them: contiguous in mapped memory, without headers."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.uint64]


class CpuRings:
    """The only reader of one kind of records. A look at idle rings costs one comparison of two columns."""

    def __init__(self, records: npt.NDArray[Any], produced: Positions, consumed: Positions) -> None:
        """records: (cpus, size, …), size a power of two; produced, consumed: (cpus,), live, of their positions."""
        self._records, self._produced, self._consumed = records, produced, consumed
        self._size = records.shape[1]
        self._begin, self._end = consumed.copy(), consumed.copy()
        self.waiting = 0
        """Records that the last look found."""

    def look(self) -> None:
        """Takes in how far the programs are. A fence belongs between this and reading the records."""
        self._end = self._produced.copy()
        counts = self._end - self._begin
        self.waiting = int(counts.sum())

    def parts(self, most: int) -> Iterator[npt.NDArray[Any]]:
        """The records found, in the mapped memory: at most so many at a time, of one CPU, its oldest first."""
        for cpu in np.flatnonzero(self._begin != self._end).tolist():
            position, end = int(self._begin[cpu]), int(self._end[cpu])
            while position < end:
                at = position & (self._size - 1)
                count = min(end - position, self._size - at, most)
                yield self._records[cpu, at : at + count]
                position += count

    def release(self) -> None:
        """Gives the room of the records found back to the programs. A fence belongs before this, too."""
        if self.waiting:
            self._begin = self._end
            self._consumed[:] = self._end
