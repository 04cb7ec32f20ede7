# SPDX-License-Identifier: Apache-2.0
"""The last iterations of all hosts, as they were stored: what rows that are asked for later can be part of."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from netmon.columnar import Columns, joined
from netmon.dl.grouped import starts

MOST = 1_000
"""Iterations of a host that are kept, at least: there may be thousands of hosts, and four a second on each."""

_SPARE = 1.25  # × as many, before the oldest go
_MOST_PIECES = 256


class Over(NamedTuple):
    """An iteration that is over; times in its host's mono, job: its number."""

    start_ns: int
    end_ns: int
    job: int
    rank: int
    number: int


class OverIterations:
    """By place of the session, in the order in which they settled."""

    def __init__(self) -> None:
        """None."""
        self._pieces: list[Columns] = []
        self._count, self._limit = 0, 0

    def add(self, place: npt.NDArray[np.int64], **columns: npt.NDArray[np.int64]) -> None:
        """Iterations of any sessions; columns: the fields of Over."""
        if not len(place):
            return
        self._pieces.append(Columns({"place": place.astype(np.int32)} | columns))
        self._count += len(place)
        if self._count > self._limit or len(self._pieces) > _MOST_PIECES:
            self._tidy()

    def _tidy(self) -> None:
        rows = joined(self._pieces)
        order = np.argsort(rows["place"], kind="stable")
        first = starts(rows["place"][order])
        count = np.diff(np.append(first, len(order)))
        kept = np.arange(len(order)) - np.repeat(first + count, count) >= -MOST
        self._pieces = [rows.take(np.sort(order[kept]))]
        self._count, self._limit = int(kept.sum()), int(_SPARE * MOST * len(first))

    def within(self, place: int, first_ns: int, last_ns: int) -> Iterator[Over]:
        """Those of a session that share a moment with [first, last]."""
        for rows in self._pieces:
            own = (rows["place"] == place) & (rows["start_ns"] <= last_ns) & (rows["end_ns"] > first_ns)
            found = rows[own]
            yield from map(Over, *(found[name].tolist() for name in Over._fields))

    def drop(self, place: int) -> None:
        """The session is gone."""
        kept = (rows[rows["place"] != place] for rows in self._pieces)
        self._pieces = [rows for rows in kept if len(rows)]
        self._count = sum(map(len, self._pieces))
