# SPDX-License-Identifier: Apache-2.0
"""Which link gave less than it usually does, with nobody else on it, or lost packets.

A link that is shaped, or slow, carries gradients evenly, at a pace below the one that it usually reaches. A rank that
is slow itself leaves gaps, between which its bytes go as fast as ever. A pace is that of a piece, so many bytes: a slow
link takes as much longer for a packet as for all of them, so that what looks even depends on how slow it is.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from netmon.dl.verdict.baseline import median
from netmon.dl.verdict.cells import Cells, StallCause
from netmon.dl.verdict.evidence import CELL_NS, Link
from netmon.dl.verdict.window import Window
from netmon.records import Direction

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

_Floats = npt.NDArray[np.float64]


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
    # Where several receive slowly what one of them sends, his link is slow; where only one does, that one's is.
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
