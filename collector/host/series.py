# SPDX-License-Identifier: Apache-2.0
"""What viewers draw of the last seconds: rates per link and class, and per flow."""

from collections import deque

import numpy as np
import numpy.typing as npt

from netmon.dl.classify import NS_PER_S
from netmon.records import Class, Table

INTERVAL_NS = 100_000_000
COLUMNS = 100
RATE_SPAN_NS = NS_PER_S


_Numbers = npt.NDArray[np.int64]


class AllSeries:
    """Wire bytes per 100 ms, link and class, of rows whose class is final, of all sessions' links."""

    def __init__(self, lag_ns: int) -> None:
        """Begin without links; lag_ns: how far behind the viewer's present rows are added."""
        self._columns = COLUMNS + lag_ns // INTERVAL_NS + 20
        self._newest: _Numbers = np.zeros(0, np.int64)  # column of each link
        self._sums: npt.NDArray[np.int64] = np.zeros(
            (0, self._columns, len(Class)), np.int64
        )  # column k at k mod columns

    def open(self, first: int, links: int) -> None:
        """Links begin, with zeros."""
        more = first + links - len(self._newest)
        if more > 0:
            grown = max(more, len(self._newest))
            self._newest = np.append(self._newest, np.zeros(grown, np.int64))
            self._sums = np.concatenate([self._sums, np.zeros((grown, *self._sums.shape[1:]), np.int64)])
        self._newest[first : first + links] = 0
        self._sums[first : first + links] = 0

    def add(self, start_ns: _Numbers, link: _Numbers, classes: npt.NDArray[np.uint8], wire_bytes: _Numbers) -> None:
        """Add rows, arrays of one length."""
        if not len(start_ns):
            return
        column = start_ns // INTERVAL_NS
        self._advance(link, column)
        near = np.flatnonzero(column > self._newest[link] - self._columns)
        link, column = link[near], column[near]
        cell = (link * self._columns + column % self._columns) * len(Class) + classes[near]
        wire_bytes = wire_bytes[near]
        sums = self._sums.reshape(-1)
        if 4 * len(cell) > len(sums):
            sums += np.bincount(cell, weights=wire_bytes, minlength=len(sums)).astype(np.int64)
        else:
            np.add.at(sums, cell, wire_bytes)

    def _advance(self, link: _Numbers, column: _Numbers) -> None:
        newest = self._newest.copy()
        np.maximum.at(newest, link, column)
        shift = np.minimum(newest - self._newest, self._columns)
        links = np.flatnonzero(shift)
        of = np.repeat(links, shift[links])
        back = np.arange(len(of)) - np.repeat(np.cumsum(shift[links]) - shift[links], shift[links])
        self._sums[of, (newest[of] - back) % self._columns] = 0
        self._newest = newest

    def whole(self, links: range, end: int) -> npt.NDArray[np.int64]:
        """The sums of the COLUMNS columns before `end` of some links: (COLUMNS, links, class)."""
        own = slice(links.start, links.stop)
        column = np.arange(end - COLUMNS, end)
        found = self._sums[own][:, column % self._columns]
        newest = self._newest[own, None]
        found[(column > newest) | (column <= newest - self._columns)] = 0
        return found.transpose(1, 0, 2)


class LinkSeries:
    """One session's part of it."""

    def __init__(self, series: AllSeries, first: int, links: int) -> None:
        """first, links: its links among all sessions'."""
        self._series, self._links = series, range(first, first + links)

    def rates(
        self,
        horizon_ns: int,
        start_ns: npt.NDArray[np.int64],
        link: npt.NDArray[np.int64],
        classes: npt.NDArray[np.uint8],
        wire_bytes: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.float64]:
        """Bit/s, (COLUMNS, links, class), of the whole columns before horizon_ns; the rows have a provisional class."""
        end = horizon_ns // INTERVAL_NS
        total = bin_rows((COLUMNS, len(self._links), len(Class)), end - COLUMNS, start_ns, link, classes, wire_bytes)
        total += self._series.whole(self._links, end)
        rates: npt.NDArray[np.float64] = total.astype(np.float64) * (8 * NS_PER_S / INTERVAL_NS)
        return rates


def bin_rows(
    shape: tuple[int, ...],
    first: int,
    start_ns: npt.NDArray[np.int64],
    link: npt.NDArray[np.int64],
    classes: npt.NDArray[np.uint8],
    wire_bytes: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """Sum rows into (column, link, class), column 0 beginning at first·INTERVAL_NS; rows outside are left out."""
    column = start_ns // INTERVAL_NS - first
    inside = (column >= 0) & (column < shape[0])
    cell = (column[inside] * shape[1] + link[inside]) * shape[2] + classes[inside]
    sums = np.bincount(cell, weights=wire_bytes[inside], minlength=int(np.prod(shape)))
    return sums.astype(np.int64).reshape(shape)


class FlowRates:
    """Wire bytes per flow of one session over the last second of arrivals."""

    def __init__(self) -> None:
        """Begin with nothing seen."""
        self._recent: deque[tuple[int, Table]] = deque()
        self._since_ns: int | None = None  # horizon before the oldest entry

    def add(self, horizon_ns: int, rows: Table) -> None:
        """Add what has arrived: rows with flow and wire_bytes; they are kept, not copied."""
        self._recent.append((horizon_ns, rows))
        while len(self._recent) > 1 and self._recent[0][0] <= horizon_ns - RATE_SPAN_NS:
            self._since_ns = self._recent.popleft()[0]

    def largest(self, count: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Index and bit/s of the flows with the highest rates, highest first."""
        if not self._recent or count <= 0:
            return np.empty(0, np.int64), np.empty(0)
        flow, wire = (np.concatenate([rows[name] for _, rows in self._recent]) for name in ("flow", "wire_bytes"))
        flows, of_row = np.unique(flow, return_inverse=True)
        sums = np.bincount(of_row, weights=wire, minlength=len(flows))
        span = self._recent[-1][0] - self._since_ns if self._since_ns is not None else RATE_SPAN_NS
        best = np.argsort(-sums, kind="stable")[:count]
        rates: npt.NDArray[np.float64] = sums[best].astype(np.float64) * (8 * NS_PER_S / max(span, INTERVAL_NS))
        return flows[best].astype(np.int64), rates
