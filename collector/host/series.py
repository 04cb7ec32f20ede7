# SPDX-License-Identifier: Apache-2.0
"""What viewers draw of the last seconds: rates per link and class, and per flow."""

from collections import deque

import numpy as np
import numpy.typing as npt

from netmon.dl.classify import NS_PER_S
from netmon.records import Class

INTERVAL_NS = 100_000_000
COLUMNS = 100
RATE_SPAN_NS = NS_PER_S


class LinkSeries:
    """Wire bytes per 100 ms, link and class, of rows whose class is final."""

    def __init__(self, links: int, lag_ns: int) -> None:
        """Begin with zeros; lag_ns: how far behind the viewer's present rows are added."""
        self._first = 0
        self._sums: npt.NDArray[np.int64] = np.zeros(
            (COLUMNS + lag_ns // INTERVAL_NS + 20, links, len(Class)), np.int64
        )

    def add(
        self,
        start_ns: npt.NDArray[np.int64],
        link: npt.NDArray[np.int64],
        classes: npt.NDArray[np.uint8],
        wire_bytes: npt.NDArray[np.int64],
    ) -> None:
        """Add rows, arrays of one length."""
        if not len(start_ns):
            return
        self._advance(int(start_ns.max()) // INTERVAL_NS)
        self._sums += bin_rows(self._sums.shape, self._first, start_ns, link, classes, wire_bytes)

    def _advance(self, newest: int) -> None:
        shift = newest - (self._first + len(self._sums) - 1)
        if shift > 0:
            self._sums = np.roll(self._sums, -min(shift, len(self._sums)), axis=0)
            self._sums[max(0, len(self._sums) - shift) :] = 0
            self._first += shift

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
        shape = (COLUMNS, *self._sums.shape[1:])
        total = bin_rows(shape, end - COLUMNS, start_ns, link, classes, wire_bytes)
        offset = end - COLUMNS - self._first
        source = self._sums[max(0, offset) : max(0, offset + COLUMNS)]
        at = max(0, -offset)
        total[at : at + len(source)] += source
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
    """Wire bytes per flow over the last second of arrivals."""

    def __init__(self) -> None:
        """Begin with nothing seen."""
        self._recent: deque[tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64]]] = deque()
        self._since_ns: int | None = None  # horizon before the oldest entry

    def add(self, horizon_ns: int, flow: npt.NDArray[np.int64], wire_bytes: npt.NDArray[np.int64]) -> None:
        """Add one batch: dense flow index and wire bytes per row."""
        flows, of_row = np.unique(flow, return_inverse=True)
        sums = np.bincount(of_row, weights=wire_bytes, minlength=len(flows)).astype(np.int64)
        self._recent.append((horizon_ns, flows, sums))
        while len(self._recent) > 1 and self._recent[0][0] <= horizon_ns - RATE_SPAN_NS:
            self._since_ns = self._recent.popleft()[0]

    def largest(self, count: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Dense index and bit/s of the flows with the highest rates, highest first."""
        if not self._recent or count <= 0:
            return np.empty(0, np.int64), np.empty(0)
        flows, of_entry = np.unique(np.concatenate([entry[1] for entry in self._recent]), return_inverse=True)
        sums = np.bincount(of_entry, weights=np.concatenate([e[2] for e in self._recent]), minlength=len(flows))
        span = self._recent[-1][0] - self._since_ns if self._since_ns is not None else RATE_SPAN_NS
        best = np.argsort(-sums, kind="stable")[:count]
        rates: npt.NDArray[np.float64] = sums[best].astype(np.float64) * (8 * NS_PER_S / max(span, INTERVAL_NS))
        return flows[best].astype(np.int64), rates
