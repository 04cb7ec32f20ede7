# SPDX-License-Identifier: Apache-2.0
"""What delayed a transfer, cell by cell, in ns of each cause, and whose bytes or which link it was.

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

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from netmon.dl.verdict.baseline import median
from netmon.dl.verdict.connections import known_throughout, sent_again, who_waited
from netmon.dl.verdict.evidence import CELL_NS, Link
from netmon.dl.verdict.phases import Blamed, Culprit, Judged, Phases
from netmon.dl.verdict.window import OWN_TRANSFER, UNCLASSIFIED, Window, around, around_each
from netmon.records import Direction

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


# --- Which link gave less than it usually does, with nobody else on it, or lost packets.
#
# A link that is shaped, or slow, carries gradients evenly, at a pace below the one that it usually reaches. A rank
# that is slow itself leaves gaps, between which its bytes go as fast as ever. A pace is that of a piece, so many
# bytes: a slow link takes as much longer for a packet as for all of them, so that what looks even depends on how slow
# it is.

_PIECES = 32  # of what a link carries in a transfer, or in what was left of the one before
_LEAST_PIECE, _MOST_PIECE = 1 << 16, 1 << 17  # bytes: some of the largest packets
_SLOWER = 0.8  # of the baseline pace
_EVEN = 0.1  # paces that are so much off are still one
_MOSTLY = 0.5  # of the pieces, or of the time
_FAST = 0.1  # of the pieces are faster than what a link reaches
_BREAK = 0.5  # of a piece's time
_FEWEST, _SOME = 4, 0.1  # pieces, and of all of them: fewer are alike by chance
_FEWEST_FLOORED, _FLOORED = 16, 0.25  # pieces without a faster one; of them, those at the pace of the fastest
_AS_LONG = 0.5  # of what a sender's link shows: where one receiver's link does, it was there
_DROPPED = 0.001  # of the bytes


def slow_link(
    seen: Window, times: Sequence[Cells], references: Mapping[int, Window], again: Mapping[int, float] | None = None
) -> tuple[int, float] | None:
    """The link (of seen.links) that delayed the transfer by itself, and for how long (ns); None where none shows it.

    times: the transfer, and what was left of the one before. again: as in lossy_link. Wide buckets show none: in them,
    a transfer that stops and resumes looks even. The link may be slow for a part of the transfer only, once or
    repeatedly.
    """
    if not seen.fine or not references:
        return None
    found: dict[Direction, list[tuple[float, int]]] = {Direction.RX: [], Direction.TX: []}
    for link, one in enumerate(seen.links):
        sends_to_many = len(seen.sends_to) > link and len(seen.sends_to[link]) > 1
        if one.direction == Direction.TX and not sends_to_many and _other_end(seen, link) is not None:
            continue  # a sender's bursts look fast: where its only receiver is watched, its link is judged instead
        found[one.direction].append((_longer(seen, times, link, references), link))
    received, sent = (max(found[way], default=(0.0, -1)) for way in (Direction.RX, Direction.TX))
    slowly = {seen.ends[link][0] for ns, link in found[Direction.RX] if ns >= max(_AS_LONG * sent[0], 1.0)}
    from_one = sent[0] > 0 and len(slowly) != 1 and slowly <= seen.sends_to[sent[1]]
    ns, link = sent if from_one else received
    return (_slow_end(seen, link, again or {}), ns) if ns > 0 else None


def _longer(seen: Window, times: Sequence[Cells], link: int, references: Mapping[int, Window]) -> float:
    """ns that a link took longer for bytes that crossed it slowly and evenly."""
    longer = 0.0
    for cells in times:
        span = slice(cells.begin, cells.begin + len(cells.kind))
        wire_bytes = _carried(seen, link)[span]
        piece = float(np.clip(wire_bytes.sum() / _PIECES, _LEAST_PIECE, _MOST_PIECE))
        edges = _edges(wire_bytes, piece)
        took = np.diff(edges)
        baseline = _baseline_pace(seen.links[link], references, piece) if len(took) >= _FEWEST else 0.0
        if not baseline:
            continue
        going = _longest_break(wire_bytes, edges) < _BREAK * took
        slow = (took * _SLOWER >= baseline) & (_between(edges, cells.kind == StallCause.FOREIGN) < 0.1 * took)
        for other in _senders(seen, link):  # who sends to others, too, as fast as ever, is not kept by this link
            fastest = _baseline_pace(seen.links[other], references, piece, _FAST)
            slow &= _between(edges, _carried(seen, other)[span]) * fastest < _SLOWER * took * piece
        took, slow = took[going], slow[going]
        for begin, end in _runs(slow):
            some = took[begin:end]
            if _even(some, _SOME * len(going)):
                longer += float(some.sum()) - len(some) * baseline
            elif floor := _floor(some):
                longer += len(some) * (floor - baseline)
    return longer * CELL_NS


def _carried(seen: Window, link: int) -> _Floats:
    """(cells,): bytes that a link carried; those that leave are counted before its queue, so where they came in."""
    return seen.arrived.get(link, seen.own[link])


def _between(edges: _Floats, values: npt.NDArray[Any]) -> _Floats:
    """Sums of the cells' values between two edges each."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    return np.diff(np.interp(edges, np.arange(len(sums)), sums))


def _senders(seen: Window, link: int) -> list[int]:
    """The links from which what comes in on this one is sent."""
    if seen.links[link].direction != Direction.RX:
        return []
    return [other for other, sends_to in enumerate(seen.sends_to) if seen.ends[link][0] in sends_to]


def _edges(wire_bytes: _Floats, piece: float) -> _Floats:
    """Between which moments (cells) pieces of so many bytes came."""
    busy = np.flatnonzero(wire_bytes)
    if not len(busy):
        return np.zeros(0)
    come = np.cumsum(wire_bytes[busy])
    moments = np.stack([busy, busy + 1], axis=1).ravel()
    total = np.stack([come - wire_bytes[busy], come], axis=1).ravel()
    return np.asarray(np.interp(np.arange(0.0, come[-1], piece), total, moments))


def _longest_break(wire_bytes: _Floats, edges: _Floats) -> _Floats:
    """Cells of the longest time without a byte in each piece: whoever had these bytes had not passed them on."""
    busy = np.flatnonzero(wire_bytes)
    longest = np.zeros(len(edges) - 1)
    piece = np.searchsorted(edges, busy[1:] - 0.5) - 1
    inside = piece < len(longest)
    np.maximum.at(longest, piece[inside], (np.diff(busy) - 1)[inside])
    return longest


def _even(took: _Floats, least: float) -> bool:
    """Whether the link kept one pace for most pieces, alongside breaks, or most of the time, and hardly any came faster
    until it was over: TCP takes a while to be fast again. least: pieces that have that pace."""
    ordered = np.sort(took)
    first = np.searchsorted(ordered, ordered * (1 - _EVEN))
    last = np.searchsorted(ordered, ordered * (1 + _EVEN), "right")
    total = np.concatenate([[0.0], np.cumsum(ordered)])
    pieces, time = last - first, total[last] - total[first]
    if not ((pieces >= max(_FEWEST, least)) & ((pieces >= _MOSTLY * len(took)) | (time >= _MOSTLY * took.sum()))).any():
        return False
    pace = ordered[int(pieces.argmax())]
    at_pace = np.flatnonzero((took >= (1 - _EVEN) * pace) & (took <= (1 + _EVEN) * pace))
    meanwhile = took[at_pace[0] : at_pace[-1] + 1]
    return bool((meanwhile < (1 - 2 * _EVEN) * pace).mean() <= _FAST)


def _floor(took: _Floats) -> float:
    """Cells of the pace than which no piece came faster, if many came at it, as on a slow link that senders do not
    always keep busy; else 0."""
    if len(took) < _FEWEST_FLOORED:
        return 0.0
    floor = float(np.quantile(took, _FAST))
    at_floor = (took >= (1 - _EVEN) * floor) & (took <= (1 + _EVEN) * floor)
    return floor if at_floor.mean() >= _FLOORED else 0.0


def _baseline_pace(link: Link, references: Mapping[int, Window], piece: float, share: float = 0.5) -> float:
    """Cells that a piece takes on a link in baseline iterations (median of medians); 0: not known."""
    each = [_going(_carried(one, one.links.index(link)), piece) for one in references.values() if link in one.links]
    return median([float(np.quantile(took, share)) for took in each if len(took)] or [0.0])


def _going(wire_bytes: _Floats, piece: float) -> _Floats:
    """Cells that pieces took in which it did not stop for long; of all where there are hardly any."""
    edges = _edges(wire_bytes, piece)
    took = np.diff(edges)
    going = took[_longest_break(wire_bytes, edges) < _BREAK * took] if len(took) else took
    return going if len(going) >= _FEWEST else took


def _runs(flags: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """[first, last) of the stretches that hold."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2).tolist()]


def _slow_end(seen: Window, link: int, again: Mapping[int, float]) -> int:
    """Of the way that ends with a link, the slow part: the sender's own link where nothing was dropped on the way.

    A host queues what its own link cannot take, and TCP waits for that queue; what a switch cannot take, it drops: less
    arrives than left, or, as far as what is under way hides that, the sender sends some of it again.
    """
    other = _other_end(seen, link) if seen.links[link].direction == Direction.RX else None
    if other is None:
        return link
    lost = max(seen.own[other].sum() - seen.own[link].sum(), again.get(seen.ends[other][0], 0.0))
    return other if lost <= _DROPPED * seen.own[link].sum() else link


def lossy_link(
    seen: Window, waits: Collection[tuple[int, int]] = (), again: Mapping[int, float] | None = None
) -> int | None:
    """The link (of seen.links) of the rank that most was sent again by or to; else the one that the most bytes left
    without arriving; else the one to a rank whose acknowledgement did not come; None where none of it is seen.

    waits: ranks, and whose acknowledgements they waited for; again: those that clearly sent more again than in the
    baseline, and how much: what was under way at the edges of the window looks lost, too.
    """
    there = {(ends[0], link.direction): at for at, (ends, link) in enumerate(zip(seen.ends, seen.links, strict=True))}
    if (link := _where_again(seen, again or {})) is not None:
        return link
    found = []
    for link, one in enumerate(seen.links):
        if one.direction == Direction.RX and (other := _other_end(seen, link)) is not None:
            found.append((float(seen.own[other].sum() - seen.own[link].sum()), other))
    lost, sender = max(found, default=(0.0, -1))
    if lost > 0:
        return sender
    ways = [(rank, Direction.RX) for _, rank in waits] + [(rank, Direction.TX) for rank, _ in waits]
    return next((there[way] for way in ways if way in there), None)


def _where_again(seen: Window, again: Mapping[int, float]) -> int | None:
    """The link of the rank that most was sent again by or to: where its acknowledgements are lost, others send again.

    Of two that are alike, the one that sent.
    """
    of_rank: dict[int, float] = {}
    ways = [(ends, at) for at, ends in enumerate(seen.ends) if seen.links[at].direction == Direction.TX]
    for (rank, peer), _ in ways:
        for end in {rank, peer} - {-1}:
            of_rank[end] = of_rank.get(end, 0.0) + again.get(rank, 0.0)
    most = max(of_rank.values(), default=0.0)
    senders = {rank: at for (rank, _), at in reversed(ways) if rank in again}
    receivers = {ends[0]: at for at, ends in enumerate(seen.ends) if seen.links[at].direction == Direction.RX}
    found = [links[rank] for links in (senders, receivers) for rank in links if of_rank.get(rank, 0.0) >= most > 0]
    return found[0] if found else None


def _other_end(seen: Window, link: int) -> int | None:
    """The link at the other end of one, which goes the other way."""
    rank, peer = seen.ends[link]
    for other, ends in enumerate(seen.ends):
        if seen.links[other].direction != seen.links[link].direction and peer >= 0 and ends == (peer, rank):
            return other
    return None


# --- blame


_MORE = 1.05  # times the baseline gradients: what makes it more to transfer
_AGAIN = 1.5  # the same on a link that was full with others' bytes: what was sent again is their doing
_VARIES = 1.1  # the most that moves in a baseline iteration, times the least
_PACED = 0.5  # of what was lost where packets were dropped: TCP is slow for a while after that, too, but not evenly
_BUSY = 0.5  # of a time without a byte
_MOST_STALLED = 1.5  # times what bytes take on a link, which works without a break while it is full

SILENT = "silent"
"""A silence: it is a pause only if something else shows that all ranks stopped by themselves."""


def blame_shares(one: Judged, phases: Phases, transfer: float) -> tuple[dict[str, float], Blamed]:
    """The transfer's excess by what delayed it; what is missing to it is not known."""
    seen = one.seen
    assert seen is not None
    capacity = _capacity(seen)
    full = where_contested(seen, capacity)
    left = transfer_stalls(seen, *phases.left, 0.0, full, phases.until_ns) if phases.left[1] > phases.left[0] else None
    base = _baseline_cells(one, phases)
    moving_ns = max(0.0, phases.baseline_transfer_ns - base.stopped_ns)
    moved = float(seen.moved[seen.cell(phases.left[1]) if left else 0 :].sum())
    more = _AGAIN if full.cells.any() else _MORE
    own = base.moved if base.moved < moved <= more * base.moved else moved  # without what was sent again
    judged = transfer_stalls(seen, phases.since_ns, phases.until_ns, own * base.pace or moving_ns, full)

    def beyond(kind: StallCause) -> float:
        baseline = median([cells.sum(kind) for cells in base.cells]) if base.cells else 0.0
        return judged.sum(kind) - baseline + (left.sum(kind) if left else 0.0)

    parts = {"transfer": moved * base.pace - moving_ns if moved * base.pace > more * moving_ns else 0.0}
    cells = judged if left is None else together(left, judged)
    culprits = _culprits(seen, cells, capacity, list(one.references.values()))
    for each in culprits:
        parts[each.cause] = parts.get(each.cause, 0.0) + each.ns
    stopped, busy_ns = max(0.0, beyond(StallCause.STOPPED)), dict(phases.own)
    for stop in sorted(judged.stops, key=lambda stop: stop.begin - stop.end):  # what is unusual is in the longest
        key, ns = _whose(stop, one, busy_ns), min(stopped, float(stop.end - stop.begin) * CELL_NS)
        parts[key], stopped = parts.get(key, 0.0) + ns, stopped - ns
    gaps = parts.pop("", 0.0)
    lost, slow = beyond(StallCause.LOST), beyond(StallCause.SLOW)
    if StallCause.SLOW not in judged.kind:  # all that moved is called lost here, and slow in the baseline
        lost, slow = lost + slow, 0.0
    lost = max(0.0, lost)
    unclear = lost + slow + gaps
    links: list[int] = []
    if unclear > 0.1 * transfer:
        span = (phases.left[0] if left else phases.since_ns, phases.until_ns)
        again = sent_again(seen.said, *span)
        found = slow_link(seen, [judged] if left is None else [judged, left], one.references, again)
        if found is not None and (lost <= 0 or found[1] >= _PACED * min(unclear, transfer)):
            parts["slow_link"] = min(found[1], unclear)  # packets that take long leave gaps, too
            links = [found[0]]
        elif lost > 0 and (again or cells.waits or not known_throughout(seen.said, *span)):
            parts["loss"] = lost  # else TCP lost what it always loses
            links = [lossy] if (lossy := lossy_link(seen, cells.waits, again)) is not None else []
    parts = {name: ns for name, ns in parts.items() if ns > 0}
    total = sum(parts.values())
    if total > transfer:
        parts = {name: ns * transfer / total for name, ns in parts.items()}
    return parts, Blamed(tuple(culprits), tuple(links))


@dataclass(frozen=True)
class _Baseline:
    """The transfers of baseline iterations: what delays them, too, and how long bytes take in them."""

    cells: tuple[Cells, ...]
    stopped_ns: float  # that nothing moved in one (median)
    moved: float  # bytes (median)
    pace: float  # ns a byte while something moved; 0: not known


def _baseline_cells(one: Judged, phases: Phases) -> _Baseline:
    """Each iteration's cells are compared with what its own bytes take at the pace of all."""
    windows = [
        (found, phases.baseline_spans[row]) for row, found in one.references.items() if row in phases.baseline_spans
    ]
    if not windows:
        return _Baseline((), 0.0, 0.0, 0.0)
    cells = [transfer_stalls(each, *span, 0.0, where_contested(each, _capacity(each))) for each, span in windows]
    moved = [float(each.moved.sum()) for each, _ in windows]
    stopped = [each.sum(StallCause.STOPPED) for each in cells]
    moving = [float(each.lost_ns.sum()) - ns for each, ns in zip(cells, stopped, strict=True)]
    paces = [ns / size for ns, size in zip(moving, moved, strict=True) if size] or [0.0]
    # Where they move different amounts, those that took as long as usual include small ones that a slow link delayed.
    pace = float(np.quantile(paces, 0.25)) if max(moved) > _VARIES * min(moved) else median(paces)
    own = tuple(
        replace(each, lost_ns=each.lost_ns - pace * window.moved[each.begin : each.begin + len(each.kind)])
        for each, (window, _) in zip(cells, windows, strict=True)
    )
    return _Baseline(own, median(stopped), median(moved), pace)


def _whose(stop: Stop, one: Judged, busy_ns: dict[int, float]) -> str:
    """Whose doing a time without a byte is: "late R", "pause", SILENT where links and marks do not show it, or "" where
    it is too short.

    The marks of a rank that did something else meanwhile show that it did not wait. Where more than one did, all
    paused; where none did, all waited, and the first to resume had stopped. busy_ns: by rank, for how long it did
    something else; this function subtracts its part.
    """
    seen = one.seen
    assert seen is not None
    length = (stop.end - stop.begin) * CELL_NS
    busy = [rank for rank, ns in busy_ns.items() if ns >= _BUSY * length]
    hosts = np.unique(one.table.host[one.row, np.isin(one.table.rank, busy)])
    for rank in busy:
        busy_ns[rank] -= length
    if len(busy) > 1 and len(hosts) > 1 and 2 * len(busy) >= len(busy_ns):
        return "pause" if stop.end - stop.begin >= PAUSED else ""
    rank = max(busy, key=lambda rank: busy_ns[rank]) if busy else who_resumed(seen, stop)
    if rank >= 0:
        return f"late {rank}"
    return SILENT if stop.end - stop.begin >= PAUSED and seen.fine else ""


def _capacity(seen: Window) -> _Floats:
    """(links,): wire bytes of a cell that the link can carry; where that is not known, the most it did in 10 ms."""
    known = np.isfinite(seen.capacity)
    if known.all():
        return seen.capacity
    reach = 20
    most = around(seen.own + seen.foreign.sum(axis=0), reach).max(axis=1) / (2 * reach + 1)
    return np.where(known, seen.capacity, most)


def _culprits(seen: Window, cells: Cells, capacity: _Floats, references: Sequence[Window]) -> list[Culprit]:
    """Who delayed the transfer, the most first; only what is more than nothing.

    Nobody delayed it for longer than his bytes can: about what they take on the link. Of a rank's own transfers only
    what is more than in baseline iterations counts: what comes in each of them is a part of the job.
    """
    found = []
    foreign = cells.kind == StallCause.FOREIGN
    pairs = {(int(p), int(k)) for p, k in zip(cells.traffic_owner[foreign], cells.link[foreign], strict=True)}
    by_owner: dict[int, list[tuple[int, float, float, float]]] = {}
    for traffic_owner, link in pairs:
        own = foreign & (cells.traffic_owner == traffic_owner) & (cells.link == link)
        payload = float(seen.foreign_payload[traffic_owner, link].sum())
        more = payload - _baseline_payload(seen, traffic_owner, link, references)
        most_ns = _MOST_STALLED * max(0.0, more) * CELL_NS / max(float(capacity[link]), 1.0)
        lost = float(cells.lost_ns[own].sum())
        by_owner.setdefault(traffic_owner, []).append((link, min(lost, most_ns), lost, payload))
    for traffic_owner, rows in by_owner.items():
        ns = sum(row[1] for row in rows)
        link, *_, payload = max(rows, key=lambda row: row[1])
        if ns > 0:
            most_ns = max(ns, sum(row[2] for row in rows))
            found.append(Culprit(seen.causes[traffic_owner], seen.names[traffic_owner], link, ns, most_ns, payload))
    return sorted(found, key=lambda each: (each.name == UNCLASSIFIED, -each.ns))


def _baseline_payload(seen: Window, traffic_owner: int, link: int, references: Sequence[Window]) -> float:
    """Of a rank's own transfers on a link, in as long a time of baseline iterations; 0 of others."""
    if seen.causes[traffic_owner] != OWN_TRANSFER:
        return 0.0
    one = seen.links[link]
    paces = [
        each.foreign_payload[traffic_owner, each.links.index(one)].mean() for each in references if one in each.links
    ]
    return seen.cells * median(paces) if paces else 0.0
