# SPDX-License-Identifier: Apache-2.0
"""Rows that have come and are not final yet: looked at when somebody looks, each once, with a provisional class."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from collector.view.sessions import ARRIVED
from netmon.dl.classify import NS_PER_S, crosses
from netmon.dl.grouped import numbered
from netmon.records import Class, Columns, Table, joined

# --- What viewers draw of the last seconds of a link: wire bytes per 100 ms and class, for all links at once.

_Numbers = npt.NDArray[np.int64]


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
    """Series to which only their reader still adds."""

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


# --- Rows that have come and are not final yet.

# --- Hysteresis for what people look at, over all links and jobs at once. What is stored is never smoothed.

_MOST_JOBS = 1 << 20  # numbers of jobs on a link
_EMPTY: _Numbers = np.empty(0, np.int64)


class ShareHysteresis:
    """Whether a job's traffic is shared on a link: it changes when `hold` windows in which it sends say so in a row."""

    def __init__(self, hold: int) -> None:
        self._hold = hold
        self._pairs = _EMPTY  # link and job, ascending
        self._state = np.zeros(0, np.bool_)
        self._run = _EMPTY  # windows in a row, up to the last one, that contradict the state
        self._next = _EMPTY  # number of the window after the last one

    def flags(
        self,
        link: npt.NDArray[np.integer],
        job: npt.NDArray[np.integer],
        window: _Numbers,
        shared: npt.NDArray[np.bool_],
    ) -> npt.NDArray[np.bool_]:
        """Per row of a DL flow, whether it is shown as shared; window: the number of its window on the link.

        shared: whether the window is, exactly. Windows up to the last one that came before are shown as the state is.
        """
        if not len(link):
            return np.zeros(0, np.bool_)
        jobs = int(job.max()) + 1  # keys that lie close together are grouped without sorting
        distinct, of_row = numbered(link.astype(np.int64) * jobs + job)
        pairs = self._positions(distinct // jobs * _MOST_JOBS + distinct % jobs)
        first = int(window.min())
        span = int(window.max()) - first + 1
        cells, of_cell = numbered(of_row * span + (window - first))
        on = np.zeros(len(cells), np.bool_)
        on[of_cell[shared]] = True
        return self._walk(pairs[cells // span], cells % span + first, on)[of_cell]

    def copy(self) -> "ShareHysteresis":
        """Another one in the same state."""
        other = ShareHysteresis(self._hold)
        other._pairs, other._state = self._pairs.copy(), self._state.copy()
        other._run, other._next = self._run.copy(), self._next.copy()
        return other

    def forget(self, links: npt.NDArray[np.integer]) -> None:
        keep = ~np.isin(self._pairs // _MOST_JOBS, links)
        for name in ("_pairs", "_state", "_run", "_next"):
            setattr(self, name, getattr(self, name)[keep])

    def _positions(self, pairs: _Numbers) -> _Numbers:
        new = pairs[~np.isin(pairs, self._pairs)]
        if len(new):
            at = np.searchsorted(self._pairs, new)
            self._pairs = np.insert(self._pairs, at, new)
            self._state = np.insert(self._state, at, False)
            self._run, self._next = np.insert(self._run, at, 0), np.insert(self._next, at, 0)
        return np.searchsorted(self._pairs, pairs)

    def _walk(self, pair: _Numbers, window: _Numbers, on: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """The state in each cell; cells ascend by pair, then by window. One step is one window of every pair."""
        flags = self._state[pair]
        fresh = np.flatnonzero(window >= self._next[pair])
        begins = np.flatnonzero(np.diff(pair[fresh], prepend=-1))
        length = np.diff(begins, append=len(fresh))
        for step in range(int(length.max(initial=0))):
            cell = fresh[begins[length > step] + step]
            own = pair[cell]
            run = np.where(on[cell] != self._state[own], self._run[own] + 1, 0)
            changes = run >= self._hold
            self._state[own] ^= changes
            self._run[own] = np.where(changes, 0, run)
            self._next[own] = window[cell] + 1
            flags[cell] = self._state[own]
        return flags


RATE_SPAN_NS = NS_PER_S
_MOST_TABLES = 256  # that nobody has looked at
_MOST_ROWS = 1 << 20


class Seen(NamedTuple):
    """Rows of one flow and share window as one; arrays of one length."""

    flow: _Numbers
    link: _Numbers
    classes: npt.NDArray[np.uint8]
    start_ns: _Numbers  # of the window
    wire_bytes: _Numbers

    def take(self, rows: npt.NDArray[np.intp]) -> "Seen":
        return Seen(*(column.take(rows) for column in self))  # type: ignore[arg-type]

    def __add__(self, other: tuple[Any, ...]) -> "Seen":
        return Seen(*(np.concatenate(both) for both in zip(self, other, strict=True)))  # type: ignore[arg-type]


_NO_NUMBERS = np.empty(0, np.int64)
_NONE = Seen(_NO_NUMBERS, _NO_NUMBERS, np.empty(0, np.uint8), _NO_NUMBERS, _NO_NUMBERS)


@dataclass(frozen=True)
class Present:
    """What a look needs to know of the links and flows, by their numbers; a link that is not shown has horizon −1."""

    horizon_ns: _Numbers
    settled_ns: _Numbers
    window_ns: _Numbers
    enough: npt.NDArray[np.float64]  # bytes of foreign payload from which a window is shared
    flows: Table  # dtype FLOW


class Arrivals:
    """Rows of the last second and more."""

    def __init__(self, hold: int) -> None:
        """Begin without rows; hold: windows, see ShareHysteresis."""
        self._fresh: list[Columns] = []
        self._fresh_rows = 0
        self._most_rows = _MOST_ROWS
        self._seen = _NONE
        self._hysteresis = ShareHysteresis(hold)
        self._mostly_shared = np.zeros(0, np.bool_)  # by flow, as it was shown last

    def add(self, rows: Columns) -> bool:
        """Take in rows, of ARRIVED; whether so many wait that somebody should look."""
        self._fresh.append(rows)
        self._fresh_rows += len(rows)
        return len(self._fresh) >= _MOST_TABLES or self._fresh_rows >= self._most_rows

    def forget(self, links: npt.NDArray[np.integer]) -> None:
        self._fresh = [rows[~np.isin(rows["link"], links)] for rows in self._fresh]
        self._seen = self._seen.take(np.flatnonzero(~np.isin(self._seen.link, links)))
        self._hysteresis.forget(links)

    def prune(self, present: Present) -> None:
        """Nobody looks: keep only what somebody who began to look would need."""
        rows = self._take_fresh(present)
        self._fresh, self._fresh_rows = [rows], len(rows)
        self._most_rows = max(_MOST_ROWS, 2 * len(rows))

    def classify(self, present: Present, final: ShareHysteresis | None = None) -> None:
        """Classify what has come since the last look, and drop what is not needed any more.

        final: where nobody has looked for a while, the state of the last final rows, from which this goes on.
        """
        if final:
            self._hysteresis = final.copy()
        rows = self._classified(self._take_fresh(present), present)
        kept = self._seen.take(np.flatnonzero(self._seen.start_ns >= _needed_since(present).take(self._seen.link)))
        self._seen = kept + rows

    def _take_fresh(self, present: Present) -> Columns:
        rows = joined([Columns.zeros(0, ARRIVED), *self._fresh])
        self._fresh, self._fresh_rows = [], 0
        since = np.where(present.horizon_ns >= 0, _needed_since(present), np.iinfo(np.int64).max)
        needed = rows["start_ns"] >= since.take(rows["link"])
        return rows if needed.all() else rows[needed]

    def _classified(self, rows: Columns, present: Present) -> Seen:
        """Rows of ARRIVED, each flow and window as one."""
        flow, link_of = rows["flow"], rows["link"]
        start: _Numbers = rows["start_ns"]
        width = present.window_ns.take(link_of)
        # Alike on all hosts, whatever their clocks say.
        number = start // width
        behind: _Numbers = (present.horizon_ns // np.maximum(present.window_ns, 1)).take(link_of) - number
        nearest = int(behind.min(initial=0))
        span = int(behind.max(initial=0)) - nearest + 1
        keys, of_row = numbered(flow * span + (behind - nearest))
        link, begins = np.empty(len(keys), np.int64), np.empty(len(keys), np.int64)
        link[of_row], begins[of_row] = link_of, number * width
        payload = summed(of_row, rows["payload_bytes"], len(keys))
        numbers = keys // span
        state = present.flows.take(numbers)
        dl = np.flatnonzero(state["class"] == Class.DL_ONLY)
        shared = _shared(link, keys % span, span, payload, state, present.enough)[dl]
        window = begins[dl] // present.window_ns[link[dl]]
        flags = self._hysteresis.flags(link[dl], state["job"][dl], window, shared)
        classes = state["class"].copy()
        classes[dl[flags]] = Class.DL_SHARED
        return Seen(numbers, link, classes, begins, summed(of_row, rows["wire_bytes"], len(keys)))

    def add_to(self, series: SeriesCopy, present: Present) -> None:
        """Add what is not final to a copy of what is."""
        seen = self._seen
        rows = seen.take(np.flatnonzero(seen.start_ns >= present.settled_ns.take(seen.link)))
        series.add(rows.start_ns // INTERVAL_NS, rows.link, rows.classes, rows.wire_bytes)

    def flow_rates(self, present: Present, begin_ns: _Numbers) -> tuple[Seen, npt.NDArray[np.float64]]:
        """(one row of each flow of the last second of its link, with the class to show; its bit/s).

        begin_ns: by link; before it there was no agent.
        """
        since = np.maximum(present.horizon_ns - RATE_SPAN_NS, begin_ns)
        start, of_link = self._seen.start_ns, self._seen.link
        rows = self._seen.take(
            np.flatnonzero((start >= since.take(of_link)) & (start < present.horizon_ns.take(of_link)))
        )
        numbers, of_row = numbered(rows.flow)
        wire = summed(of_row, rows.wire_bytes, len(numbers))
        of_shared = summed(of_row, np.where(rows.classes == Class.DL_SHARED, rows.wire_bytes, 0), len(numbers))
        link = np.empty(len(numbers), np.int64)
        link[of_row] = rows.link
        own = present.flows["class"][numbers]
        shared = self._shown_shared(numbers, of_shared, wire) & (own == Class.DL_ONLY)
        classes = np.where(shared, np.uint8(Class.DL_SHARED), own)
        span = np.maximum((present.horizon_ns - since)[link], INTERVAL_NS)
        rates: npt.NDArray[np.float64] = wire * (8 * NS_PER_S) / span
        return Seen(numbers, link, classes, since[link], wire), rates

    def _shown_shared(self, flow: _Numbers, shared: _Numbers, wire: _Numbers) -> npt.NDArray[np.bool_]:
        """Whether most of a flow's bytes are shared; it changes where two thirds of them say so."""
        more = int(flow.max(initial=-1)) + 1 - len(self._mostly_shared)
        if more > 0:
            self._mostly_shared = np.concatenate([self._mostly_shared, np.zeros(more, np.bool_)])
        was = self._mostly_shared[flow]
        now: npt.NDArray[np.bool_] = np.where(was, 3 * shared >= wire, 3 * shared > 2 * wire)
        self._mostly_shared[:] = False
        self._mostly_shared[flow] = now
        return now


def _needed_since(present: Present) -> _Numbers:
    return np.minimum(present.settled_ns, present.horizon_ns - RATE_SPAN_NS - INTERVAL_NS)


def _shared(
    link: _Numbers,
    window: _Numbers,
    span: int,
    payload: _Numbers,
    flows: Table,
    enough: npt.NDArray[np.float64],
) -> npt.NDArray[np.bool_]:
    """Per row, whether its link carries enough foreign payload in its window, cross or other jobs' gradients.

    It is the rule of netmon.dl.classify.Windows.shared; window: alike for rows of one link and window, < span.
    """
    cells, of_row = numbered(link * span + window)
    gradient = np.where(flows["gradient"], payload, 0)
    foreign = summed(of_row, gradient + np.where(crosses(flows["class"]), payload, 0), len(cells))
    jobs = int(flows["job"].max(initial=0)) + 1
    own, of_own = numbered(of_row * jobs + flows["job"])
    others = foreign.take(of_row) - summed(of_own, gradient, len(own)).take(of_own)
    shared: npt.NDArray[np.bool_] = (others > 0) & (others >= enough.take(link))
    return shared
