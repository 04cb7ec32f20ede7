# SPDX-License-Identifier: Apache-2.0
"""Which link gave less than it usually does, with nobody else on it, or lost packets.

A link that is shaped, or slow, carries gradients evenly, at a pace below the one that it usually reaches. A rank that
is slow itself leaves gaps, between which its bytes go as fast as ever. A pace is that of a piece, so many bytes: a slow
link takes as much longer for a packet as for all of them, so that what looks even depends on how slow it is.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from netmon.dl.verdict.evidence import CELL_NS, Link
from netmon.dl.verdict.held import Cells, Held
from netmon.dl.verdict.usual import median
from netmon.dl.verdict.window import Window
from netmon.records import Direction

_PIECES = 16  # of what a link carries in a transfer, or in what was left of the one before
_LEAST_PIECE, _MOST_PIECE = 1 << 16, 1 << 18  # bytes: some of the largest packets
_SLOWER = 0.8  # of the usual pace
_EVEN = 0.2  # paces that are so much off are still one
_EVEN_LOSSY = 0.1  # the same where packets are lost: TCP is slow for a while after that, too, but not evenly
_MOSTLY = 0.5  # of the pieces, or of the time
_BREAK = 0.5  # of a piece's time
_FEWEST = 4  # pieces
_AS_LONG = 0.5  # of what a sender's link shows: whoever receives tells where it was
_DROPPED = 0.001  # of the bytes

_Floats = npt.NDArray[np.float64]


def slow_link(seen: Window, times: Sequence[Cells], references: Mapping[int, Window]) -> tuple[int, float] | None:
    """The link (of seen.links) that held the transfer up by itself, and for how long (ns); None where none shows it.

    times: the transfer, and what was left of the one before. In wide buckets whatever stops and goes looks even: they
    show none. For a while, which may be shorter than the transfer: the link may have been slow for a moment only, or
    again and again.
    """
    if not seen.fine or not references:
        return None
    found: dict[Direction, list[tuple[float, int]]] = {Direction.RX: [], Direction.TX: []}
    for link, one in enumerate(seen.links):
        if one.direction == Direction.TX and _other_end(seen, link) is not None:
            continue  # a sender's bursts look fast: where the receiver is watched, what comes in there tells
        found[one.direction].append((_longer(seen, times, link, references), link))
    received, sent = (max(found[way], default=(0.0, -1)) for way in (Direction.RX, Direction.TX))
    ns, link = (
        received if received[0] >= _AS_LONG * sent[0] else sent
    )  # what is sent here may be a part of what comes in
    return (_slow_end(seen, link), ns) if ns > 0 else None


def _longer(seen: Window, times: Sequence[Cells], link: int, references: Mapping[int, Window]) -> float:
    """ns that a link took longer for what it carried slowly and evenly."""
    longer = 0.0
    for cells in times:
        span = slice(cells.begin, cells.begin + len(cells.kind))
        piece = float(np.clip(seen.own[link, span].sum() / _PIECES, _LEAST_PIECE, _MOST_PIECE))
        edges = _edges(seen.own[link, span], piece)
        took = np.diff(edges)
        usual = _usual(seen.links[link], references, piece) if len(took) >= _FEWEST else 0.0
        if not usual:
            continue
        foreign = np.concatenate([[0.0], np.cumsum(cells.kind == Held.FOREIGN)])
        beside = np.diff(np.interp(edges, np.arange(len(foreign)), foreign))
        going = _longest_break(seen.own[link, span], edges) < _BREAK * took
        took, slow = took[going], ((took * _SLOWER >= usual) & (beside < 0.1 * took))[going]
        off = _EVEN_LOSSY if (cells.kind == Held.LOST).any() else _EVEN
        for begin, end in _runs(slow):
            some = took[begin:end]
            if _even(some, off):
                longer += float(some.sum()) - len(some) * usual
    return longer * CELL_NS


def _edges(carried: _Floats, piece: float) -> _Floats:
    """Between which moments (cells) pieces of so many bytes came."""
    busy = np.flatnonzero(carried)
    if not len(busy):
        return np.zeros(0)
    come = np.cumsum(carried[busy])
    moments = np.stack([busy, busy + 1], axis=1).ravel()
    total = np.stack([come - carried[busy], come], axis=1).ravel()
    return np.asarray(np.interp(np.arange(0.0, come[-1], piece), total, moments))


def _longest_break(carried: _Floats, edges: _Floats) -> _Floats:
    """Cells of the longest time without a byte in each piece: whoever had these bytes had not passed them on."""
    busy = np.flatnonzero(carried)
    longest = np.zeros(len(edges) - 1)
    piece = np.searchsorted(edges, busy[1:] - 0.5) - 1
    inside = piece < len(longest)
    np.maximum.at(longest, piece[inside], (np.diff(busy) - 1)[inside])
    return longest


def _even(took: _Floats, off: float) -> bool:
    """Whether the link kept one pace for most pieces, beside breaks, or most of the time: TCP takes a while to be fast
    again."""
    near = np.abs(took / took[:, None] - 1) <= off
    pieces, time = near.sum(axis=1), near @ took
    return bool(((pieces >= _FEWEST) & ((pieces >= _MOSTLY * len(took)) | (time >= _MOSTLY * took.sum()))).any())


def _usual(link: Link, references: Mapping[int, Window], piece: float) -> float:
    """Cells that a piece takes on a link in usual iterations (median of medians); 0: not known."""
    each = [np.diff(_edges(one.own[one.links.index(link)], piece)) for one in references.values() if link in one.links]
    return median([median(took) for took in each if len(took)] or [0.0])


def _runs(flags: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """[first, last) of the stretches that hold."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2).tolist()]


def _slow_end(seen: Window, link: int) -> int:
    """Of the way that ends with a link, the slow part: the sender's own link where nothing was dropped on the way.

    A host queues what its own link cannot take, and TCP waits for that queue; what a switch cannot take, it drops.
    """
    other = _other_end(seen, link) if seen.links[link].direction == Direction.RX else None
    if other is None:
        return link
    lost = seen.own[other].sum() - seen.own[link].sum()
    return other if lost <= _DROPPED * seen.own[link].sum() else link


def lossy_link(
    seen: Window, waits: Collection[tuple[int, int]] = (), again: Mapping[int, float] | None = None
) -> int | None:
    """The link (of seen.links) of the rank that most was sent again by or to; else the one that the most bytes left
    without arriving; else the one to a rank whose acknowledgement did not come; None where none of it is seen.

    waits: ranks, and whose acknowledgements they waited for; again: those that clearly sent more again than usual, and
    how much: what was under way at the edges of the window looks lost, too.
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
