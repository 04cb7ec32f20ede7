# SPDX-License-Identifier: Apache-2.0
"""What delayed a transfer, cell by cell, in ns of each cause.

The model: undisturbed, all of the job's gradients take `baseline_ns`, without the times in which ranks compute between
them. In a cell of width dt in which the share p of the iteration's gradients arrived, the transfer therefore lost
dt − baseline_ns · p. Summed over the transfer that is its length less the baseline, whatever the cells are called, so
the parts always add up. A cell is called by what it shows:

* foreign: alongside the job's own bytes a link that still had gradients to carry was full with somebody else's;
* lost: packets had just been dropped (bytes that left a host and did not arrive), or TCP says that it sent some again
  or that it waited for acknowledgements that did not come, and nobody else was there;
* stopped: no rank sent anything, and nothing had been dropped that TCP's timer could have waited for;
* slow: none of these.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from netmon.dl.verdict.connections import sent_again, who_waited
from netmon.dl.verdict.evidence import CELL_NS
from netmon.dl.verdict.window import Window, around, around_each

_MS = 1_000_000 // CELL_NS  # cells
_FULL = 0.75  # of a link's capacity
_FULL_OVER = (_MS, 5 * _MS)  # on both sides
_FOREIGN = 0.05  # of it: less delays nobody
_REACH = 5 * _MS  # a queue that was full delays what follows
_AFTER_LOSS = 30 * _MS
_STOPPED = 5 * _MS  # without a byte
PAUSED = 60 * _MS
"""A shorter gap has many possible causes, such as a crowded link or a busy CPU."""

_BEFORE_GAP, _BEFORE_TIMEOUT = 20 * _MS, 50 * _MS
_TIMER_NS = 180_000_000  # TCP's shortest timeout is 200 ms
_TIMER_ROUNDS_NS = (198_000_000, 398_000_000, 798_000_000)  # it doubles
_TIMER_LATE = 1.12  # of it: by what it may be later
_ONE_WINDOW = 6_000  # bytes: what TCP sends first after a timeout
_LOST_LEAST = 4_500  # bytes
_SLOWLY, _AT_PACE = 0.75, 0.9  # of the pace that a rank reaches; where that is among its paces
_GONE_ON, _RECEIVED, _BOTH = 0.8, 0.6, 2.6  # pieces
_SMALL_PIECE = 1 << 16  # bytes

_Floats = npt.NDArray[np.float64]


class StallCause(IntEnum):
    """What delayed the transfer in a cell."""

    SLOW = 0
    FOREIGN = 1
    LOST = 2
    STOPPED = 3


@dataclass(frozen=True)
class Stop:
    """A time without a byte."""

    begin: int  # cells
    end: int


@dataclass(frozen=True)
class Cells:
    """What the cells of a transfer, from `begin` on, are called, and what each of them lost (ns)."""

    begin: int
    kind: npt.NDArray[np.uint8]  # StallCause
    lost_ns: _Floats
    link: npt.NDArray[np.int64]  # of a foreign cell: the link
    traffic_owner: npt.NDArray[np.int64]  # of a foreign cell: who had most bytes there
    stops: tuple[Stop, ...]
    waits: tuple[tuple[int, int], ...] = ()  # in silences, as TCP says: a rank for another one's acknowledgement

    def sum(self, kind: StallCause) -> float:
        """ns; may be below 0."""
        return float(self.lost_ns[self.kind == kind].sum())


def together(one: Cells, other: Cells) -> Cells:
    """The cells of two times; its `begin` has no meaning."""
    names = ("kind", "lost_ns", "link", "traffic_owner")
    kind, lost_ns, link, traffic_owner = (np.concatenate([getattr(one, name), getattr(other, name)]) for name in names)
    stops, waits = (*one.stops, *other.stops), (*one.waits, *other.waits)
    return Cells(one.begin, kind, lost_ns, link, traffic_owner, stops, waits)


@dataclass(frozen=True)
class Contested:
    """Where a link that has gradients to carry is full with others' bytes; arrays over a window's cells."""

    cells: npt.NDArray[np.bool_]
    link: npt.NDArray[np.int64]  # −1 elsewhere
    traffic_owner: npt.NDArray[np.int64]  # who had most bytes there


def transfer_stalls(
    seen: Window, since_ns: float, until_ns: float, baseline_ns: float, full: Contested, over_ns: float = 0.0
) -> Cells:
    """Classify the cells of the transfer [since, until) (UTC), which takes baseline_ns undisturbed.

    over_ns: where it is the end of the transfer before, whose beginning is not seen: the end (UTC) of the next one.
    full: of the same window.
    """
    begin, end = seen.cell(since_ns), max(seen.cell(until_ns), seen.cell(since_ns) + 1)
    span = slice(begin, min(end, seen.cells))
    total = seen.moved.sum()
    count = span.stop - span.start
    lost_ns = np.full(count, float(CELL_NS)) - baseline_ns * seen.moved[span] / max(total, 1.0)
    kind = np.zeros(count, np.uint8)
    contested, link, traffic_owner = full.cells, full.link, full.traffic_owner
    dropped = _dropped(seen, seen.cell(max(until_ns, over_ns)))
    after_loss = _spread_forward(dropped > 0, _AFTER_LOSS)
    if not contested.any():  # TCP goes on slowly for long after
        if dropped.any() or over_ns:
            after_loss |= bool(sent_again(seen.said, since_ns, until_ns))
    elif again := sent_again(seen.said, since_ns, until_ns):  # so it does after what somebody else's bytes made it lose
        since = int(np.flatnonzero(contested)[0])
        after = _recovering(seen, again) & ~contested
        after[:since] = False
        index = np.maximum.accumulate(np.where(contested, np.arange(seen.cells), 0))
        link, traffic_owner = np.where(after, link[index], link), np.where(after, traffic_owner[index], traffic_owner)
        contested = contested | after
    kind[after_loss[span]] = StallCause.LOST
    kind[contested[span]] = StallCause.FOREIGN
    stops, waits = [], set[tuple[int, int]]()
    for first, last in _silences(seen, span):
        inside = slice(first - span.start, last - span.start)
        waiting = _waiting(seen, first, last)
        timeout = _is_timeout(seen, dropped, first, last) or bool(waiting)
        recent = slice(max(0, first - (_BEFORE_TIMEOUT if timeout else _BEFORE_GAP)), first)
        if contested[recent].any() and (timeout or last - first < PAUSED):
            kind[inside] = StallCause.FOREIGN
            near = recent.start + int(np.flatnonzero(contested[recent])[-1])
            link, traffic_owner = link.copy(), traffic_owner.copy()  # they may be the window's
            link[first:last], traffic_owner[first:last] = link[near], traffic_owner[near]
        elif not timeout:
            kind[inside] = StallCause.STOPPED
            stops.append(Stop(first, last))
        else:
            kind[inside] = StallCause.LOST
            waits |= waiting
    return Cells(span.start, kind, lost_ns, link[span], traffic_owner[span], tuple(stops), tuple(sorted(waits)))


def where_contested(seen: Window, capacity: _Floats) -> Contested:
    """Where the links of a window are full with others' bytes.

    capacity: (links,) wire bytes per cell, as far as known, else the most that was ever seen.
    """
    foreign = seen.foreign.sum(axis=0)
    least = _FOREIGN * (capacity * (2 * min(_FULL_OVER) + 1))
    if not len(seen.names) or (foreign.sum(axis=1) < least).all():  # it is not enough, whenever it was
        return _nowhere(seen)
    full = np.zeros(foreign.shape, np.bool_)
    of_others, of_all = (around_each(wire_bytes, _FULL_OVER) for wire_bytes in (foreign, foreign + seen.own))
    for reach, others, everybody in zip(_FULL_OVER, of_others, of_all, strict=True):
        room = capacity[:, None] * (2 * reach + 1)
        full |= (others >= _FOREIGN * room) & (everybody >= _FULL * room)
    if not full.any():
        return _nowhere(seen)
    to_come = np.cumsum(seen.own[:, ::-1], axis=1)[:, ::-1] > 0.002 * seen.own.sum(axis=1, keepdims=True)
    near = around(full.astype(np.float64), _REACH) > 0
    near &= to_come
    weight = np.where(near, around(foreign, _REACH) / np.maximum(capacity[:, None], 1.0), 0.0)
    link = weight.argmax(axis=0)
    found = weight.max(axis=0) > 0
    traffic_owner = around(seen.foreign, _REACH)[:, link, np.arange(seen.cells)].argmax(axis=0)
    return Contested(found, np.where(found, link, -1), np.where(found, traffic_owner, -1))


def _nowhere(seen: Window) -> Contested:
    nobody = np.full(seen.cells, -1, np.int64)
    return Contested(np.zeros(seen.cells, np.bool_), nobody, nobody)


def _dropped(seen: Window, over: int) -> _Floats:
    """(cells,): payload that left some host before the cell `over` and never arrived, as far as both ends are seen.

    What had left until then less what had arrived is what is lost and what is under way: the least of it from then on
    is the most that can have been lost. What leaves when the transfer is over is the next iteration's, and may be under
    way when the window ends.
    """
    under_way = np.cumsum(seen.left_cells) - np.cumsum(seen.arrived_cells)
    if not seen.fine or under_way[-1] < _LOST_LEAST or (seen.sent.any(axis=1) != seen.taken.any(axis=1)).any():
        return np.zeros(seen.cells)
    least = np.minimum.accumulate(under_way[::-1])[::-1]
    least = np.minimum(least, least[min(over, seen.cells - 1)])
    if least[-1] < _LOST_LEAST:
        return np.zeros(seen.cells)
    dropped: _Floats = np.maximum(np.diff(least, prepend=min(least[0], 0.0)), 0.0)
    return dropped


def _recovering(seen: Window, ranks: Collection[int]) -> npt.NDArray[np.bool_]:
    """(cells,): in which one of these ranks sent, but slowly."""
    found = np.zeros(seen.cells, np.bool_)
    for sent in seen.sent[np.isin(seen.ranks, list(ranks))]:
        near, pace = around(sent, 2 * _MS) > 0, around(sent, 5 * _MS)
        found |= near & (pace < _SLOWLY * np.quantile(pace[near], _AT_PACE)) if near.any() else False
    return found


def _spread_forward(flags: npt.NDArray[np.bool_], reach: int) -> npt.NDArray[np.bool_]:
    index = np.where(flags, np.arange(len(flags)), -reach - 1)
    return np.arange(len(flags)) - np.maximum.accumulate(index) <= reach


def _silences(seen: Window, span: slice) -> list[tuple[int, int]]:
    """Cells [first, last) within the span in which no rank sent or received, of at least 5 ms."""
    quiet = (seen.left_cells + seen.arrived_cells)[span] == 0
    edge = np.flatnonzero(np.diff(np.concatenate([[False], quiet, [False]]).astype(np.int8)))
    runs = edge.reshape(-1, 2) + span.start
    return [(int(a), int(b)) for a, b in runs.tolist() if b - a >= _STOPPED]


def _is_timeout(seen: Window, dropped: _Floats, first: int, last: int) -> bool:
    """Whether TCP waited for its timer: something was dropped, and whoever began again did so when it runs out.

    He had sent nothing for as long as the timer takes; the others may have gone on for a while. Or he began with a
    packet or two, or much had been dropped, and nobody sent for as long. Or he had sent to others meanwhile, and what
    was dropped was dropped as long before.
    """
    if last - first >= PAUSED:
        times = [[last - int(late * ns) // CELL_NS for late in (_TIMER_LATE, 1.0)] for ns in _TIMER_ROUNDS_NS]
        if any(dropped[max(0, begin) : max(0, end)].any() for begin, end in times):
            return True
    resumed = seen.sent[:, last : last + 2].sum(axis=1)
    before = np.flatnonzero(seen.sent[resumed.argmax(), :first])
    since = int(before[-1]) if len(before) else first
    gone = dropped[max(0, min(since, first) - _AFTER_LOSS) : first].sum()
    if gone < 1:
        return False
    waited_ns = (last - since) * CELL_NS
    if any(round_ns <= waited_ns <= _TIMER_LATE * round_ns for round_ns in _TIMER_ROUNDS_NS):
        return True
    long = (last - first) * CELL_NS >= _TIMER_NS
    return bool(long and (gone >= _LOST_LEAST or resumed.sum() <= _ONE_WINDOW))


def _waiting(seen: Window, first: int, last: int) -> set[tuple[int, int]]:
    """Who waited for whose acknowledgement, as TCP says, in a silence that is long enough to show it. One of the two
    had sent nothing for as long as TCP's timer takes; if it was the other one, that one resumed first."""
    if last - first < PAUSED:
        return set()
    begin, end = ((seen.first + cell) * CELL_NS for cell in (first, last))
    after = seen.sent[:, last : last + 2].sum(axis=1)
    resumed = int(seen.ranks[after.argmax()]) if after.any() else -1
    sent = seen.sent[:, max(0, last - _TIMER_NS // CELL_NS) : last].any(axis=1)
    silent = set(seen.ranks[~sent].tolist())
    waited = who_waited(seen.said, begin, end, resumed)
    return {(one, other) for one, other in waited if one in silent or (other == resumed and other in silent)}


def who_resumed(seen: Window, stop: Stop) -> int:
    """The rank that had stopped alone; −1: more than one had, or it is not known.

    Where one rank stops, the others continue until they lack its data; when it resumes, the next one sends only after
    it has received a whole piece. Where all stop, none continues for long, and each rank that has its data sends at
    once. A piece is what a rank sends between two waits.
    """
    first, last = stop.begin, stop.end
    if not seen.fine or last >= seen.cells:
        return -1
    after = seen.sent[:, last : last + 400 * _MS] > 0
    active = np.asarray(after.any(axis=1))
    begins = np.where(active, after.argmax(axis=1), after.shape[1])
    order = np.argsort(begins, kind="stable")
    if len(begins) < 2 or not active[order[0]] or begins[order[1]] - begins[order[0]] <= 1 + 2 * seen.clock_cells:
        return -1
    one, second = int(order[0]), int(order[1])
    before = np.flatnonzero(seen.sent[one, :first])
    gone_on = np.delete(seen.sent[:, (before[-1] + 1 if len(before) else 0) : first], one, axis=0).sum()
    received = seen.taken[second, last : last + begins[second]].sum()
    piece = _piece(seen)
    enough = gone_on >= _GONE_ON * piece and received >= _RECEIVED * piece and gone_on + received >= _BOTH * piece
    return int(seen.ranks[one]) if enough else -1


def _piece(seen: Window) -> float:
    """Payload that a rank typically sends between two waits; 0 where nobody waits."""
    sizes = []
    for sent in seen.sent:
        busy = np.flatnonzero(sent)
        cuts = np.flatnonzero(np.diff(busy) > _MS) + 1
        ends = zip(np.concatenate([[0], cuts]), np.concatenate([cuts, [len(busy)]]), strict=True)
        sizes += [sent[busy[a] : busy[b - 1] + 1].sum() for a, b in ends if b > a]
    sizes = [size for size in sizes if size >= _SMALL_PIECE]
    return float(np.quantile(sizes, 0.25)) if len(sizes) > 4 * len(seen.sent) else 0.0
