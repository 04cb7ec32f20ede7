# SPDX-License-Identifier: Apache-2.0
"""Rows that have come and are not final yet: looked at when somebody looks, each once, with a provisional class."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collector.view.groups import groups, summed
from collector.view.series import COLUMNS, INTERVAL_NS
from collector.view.state import ARRIVED
from collector.view.steady import SteadyShares
from netmon.dl.classify import NS_PER_S
from netmon.records import Class, Table, empty

RATE_SPAN_NS = NS_PER_S
_MOST_TABLES = 256  # that nobody has looked at
_MOST_ROWS = 1 << 20
_SEEN = np.dtype([("flow", "<i4"), ("link", "<i4"), ("class", "u1"), ("start_ns", "<i8"), ("wire_bytes", "<i8")])
"""Rows of one flow and share window, as one; start_ns is the window's."""


@dataclass(frozen=True)
class Present:
    """What a look needs to know of the links and flows, by their numbers; a link that is not shown has horizon −1."""

    horizon_ns: npt.NDArray[np.int64]
    settled_ns: npt.NDArray[np.int64]
    window_ns: npt.NDArray[np.int64]
    enough: npt.NDArray[np.float64]  # bytes of foreign payload from which a window is shared
    flows: Table  # dtype FLOW


class Arrivals:
    """Rows of the last second and more."""

    def __init__(self, hold: int) -> None:
        """Begin without rows; hold: see SteadyShares."""
        self._fresh: list[Table] = []
        self._fresh_rows = 0
        self._seen = empty(_SEEN)
        self._steady = SteadyShares(hold)
        self._mostly_shared = np.zeros(0, np.bool_)  # by flow, as it was shown last

    def add(self, rows: Table) -> bool:
        """Take in rows, dtype ARRIVED; whether so many wait that somebody should look."""
        self._fresh.append(rows)
        self._fresh_rows += len(rows)
        return len(self._fresh) >= _MOST_TABLES or self._fresh_rows >= _MOST_ROWS

    def forget(self, links: npt.NDArray[np.integer]) -> None:
        """These links have gone."""
        self._fresh = [rows[~np.isin(rows["link"], links)] for rows in self._fresh]
        self._seen = self._seen[~np.isin(self._seen["link"], links)]
        self._steady.forget(links)

    def prune(self, present: Present) -> None:
        """Nobody looks: keep only what somebody who began to look would need."""
        rows = self._take_fresh(present)
        self._fresh, self._fresh_rows = [rows], len(rows)

    def look(self, present: Present) -> None:
        """Classify what has come since the last look, and drop what is not needed any more."""
        rows = self._classified(self._take_fresh(present), present)
        seen = np.concatenate([self._seen, rows])
        self._seen = seen[seen["start_ns"] >= _needed_since(present)[seen["link"]]]

    def _take_fresh(self, present: Present) -> Table:
        rows = np.concatenate([empty(ARRIVED), *self._fresh])
        self._fresh, self._fresh_rows = [], 0
        link = rows["link"]
        kept: Table = rows[(rows["start_ns"] >= _needed_since(present)[link]) & (present.horizon_ns[link] >= 0)]
        return kept

    def _classified(self, rows: Table, present: Present) -> Table:
        """Rows of ARRIVED → rows of _SEEN."""
        width = present.window_ns[rows["link"]]
        number = rows["start_ns"] // width
        behind = present.horizon_ns[rows["link"]] // width - number  # alike on all hosts, whatever their clocks say
        nearest = int(behind.min(initial=0))
        span = int(behind.max(initial=0)) - nearest + 1
        keys, of_row = groups(rows["flow"].astype(np.int64) * span + (behind - nearest))
        seen = np.empty(len(keys), _SEEN)
        seen["flow"] = keys // span
        for name, value in (("link", rows["link"]), ("start_ns", number * width)):
            seen[name][of_row] = value
        seen["wire_bytes"] = summed(of_row, rows["wire_bytes"], len(keys))
        payload = summed(of_row, rows["payload_bytes"], len(keys))
        flows = present.flows[seen["flow"]]
        seen["class"] = flows["class"]
        dl = np.flatnonzero(flows["class"] == Class.DL_ONLY)
        shared = _shared(seen, keys % span, span, payload, flows, present.enough)[dl]
        window = seen["start_ns"][dl] // present.window_ns[seen["link"][dl]]
        flags = self._steady.flags(seen["link"][dl], flows["job"][dl], window, shared)
        seen["class"][dl[flags]] = Class.DL_SHARED
        return seen

    def add_to(self, sums: npt.NDArray[np.int64], present: Present) -> None:
        """Add what is not final to the sums of the columns before the horizon, (links, COLUMNS, class)."""
        rows = self._seen[self._seen["start_ns"] >= present.settled_ns[self._seen["link"]]]
        link = rows["link"]
        column = rows["start_ns"] // INTERVAL_NS - present.horizon_ns[link] // INTERVAL_NS + COLUMNS
        inside = (column >= 0) & (column < COLUMNS) & (present.horizon_ns[link] >= 0)
        cell = (link.astype(np.int64) * COLUMNS + column) * len(Class) + rows["class"]
        np.add.at(sums.reshape(-1), cell[inside], rows["wire_bytes"][inside])

    def flow_rates(self, present: Present, begin_ns: npt.NDArray[np.int64]) -> tuple[Table, npt.NDArray[np.float64]]:
        """(rows of _SEEN: one of each flow of the last second of its link, with the class to show; its bit/s).

        begin_ns: by link; before it there was no agent.
        """
        link = self._seen["link"]
        since = np.maximum(present.horizon_ns - RATE_SPAN_NS, begin_ns)
        horizon = present.horizon_ns[link]
        rows = self._seen[(self._seen["start_ns"] >= since[link]) & (self._seen["start_ns"] < horizon)]
        numbers, of_row = groups(rows["flow"].astype(np.int64))
        wire = summed(of_row, rows["wire_bytes"], len(numbers))
        of_shared = np.where(rows["class"] == Class.DL_SHARED, rows["wire_bytes"], 0)
        flows = np.empty(len(numbers), _SEEN)
        flows["flow"], flows["wire_bytes"] = numbers, wire
        flows["link"][of_row], flows["start_ns"][of_row] = rows["link"], rows["start_ns"]
        own = present.flows["class"][numbers]
        shared = self._shown_shared(numbers, summed(of_row, of_shared, len(numbers)), wire) & (own == Class.DL_ONLY)
        flows["class"] = np.where(shared, Class.DL_SHARED, own)
        span = np.maximum((present.horizon_ns - since)[flows["link"]], INTERVAL_NS)
        rates: npt.NDArray[np.float64] = wire * (8 * NS_PER_S) / span
        return flows, rates

    def _shown_shared(
        self, flow: npt.NDArray[np.int64], shared: npt.NDArray[np.int64], wire: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """Whether most of a flow's bytes are shared; it changes where two thirds of them say so."""
        more = int(flow.max(initial=-1)) + 1 - len(self._mostly_shared)
        if more > 0:
            self._mostly_shared = np.concatenate([self._mostly_shared, np.zeros(more, np.bool_)])
        was = self._mostly_shared[flow]
        now: npt.NDArray[np.bool_] = np.where(was, 3 * shared >= wire, 3 * shared > 2 * wire)
        self._mostly_shared[:] = False
        self._mostly_shared[flow] = now
        return now


def _needed_since(present: Present) -> npt.NDArray[np.int64]:
    return np.minimum(present.settled_ns, present.horizon_ns - RATE_SPAN_NS - INTERVAL_NS)


def _shared(
    seen: Table,
    window: npt.NDArray[np.int64],
    span: int,
    payload: npt.NDArray[np.int64],
    flows: Table,
    enough: npt.NDArray[np.float64],
) -> npt.NDArray[np.bool_]:
    """Per row of _SEEN, whether its link carries enough foreign payload in its window, cross or other jobs' gradients.

    It is the rule of netmon.dl.classify.Windows.shared; window: alike for rows of one link and window, < span.
    """
    link = seen["link"].astype(np.int64)
    cells, of_row = groups(link * span + window)
    gradient = np.where(flows["gradient"], payload, 0)
    foreign = summed(of_row, gradient + np.where(flows["class"] == Class.CROSS, payload, 0), len(cells))
    jobs = int(flows["job"].max(initial=0)) + 1
    own, of_own = groups(of_row * jobs + flows["job"])
    others = foreign[of_row] - summed(of_own, gradient, len(own))[of_own]
    shared: npt.NDArray[np.bool_] = (others > 0) & (others >= enough[link])
    return shared
