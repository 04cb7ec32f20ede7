# SPDX-License-Identifier: Apache-2.0
"""Which link gave less than it usually does, with nobody else on it, or lost packets.

A link that is shaped, or slow, carries gradients all the time, evenly, at a pace below the one that it usually
reaches. A rank that is slow itself leaves gaps, between which its bytes go as fast as ever.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from netmon.dl.verdict.evidence import CELL_NS, Link
from netmon.dl.verdict.held import PAUSED, Cells, Held
from netmon.dl.verdict.usual import median
from netmon.dl.verdict.window import Window
from netmon.records import Direction

_PARTS = 10  # of a window, over which a pace is taken
_LONGEST_PART = 2_000_000 // CELL_NS  # cells
_WINDOWS = 12  # of a transfer, at least
_FAST = 0.85  # of the usual pace
_SLOWER = 0.75  # of the usual pace
_EVEN = 0.35  # paces that lie within so much of each other are one
_MOSTLY = 0.6  # of the windows
_BUSY = 0.9  # of the parts of a window
_FEWEST = 3  # windows
_AS_LONG = 0.5  # of what a sender's link shows: whoever receives tells where it was
_DROPPED = 0.001  # of the bytes

_Floats = npt.NDArray[np.float64]


def slow_link(seen: Window, times: Sequence[Cells], references: Mapping[int, Window]) -> tuple[int, float] | None:
    """The link (of seen.links) that held the transfer up by itself, and for how long (ns); None where none shows it.

    times: the transfer, and what was left of the one before. In wide buckets whatever stops and goes looks even: they
    show none. For a while, which may be shorter than the transfer: the link may have been slow for a moment only, or
    again and again, at one pace.
    """
    if not seen.fine or not references:
        return None
    found: dict[Direction, list[tuple[float, int]]] = {Direction.RX: [], Direction.TX: []}
    for link, one in enumerate(seen.links):
        if one.direction == Direction.TX and _other_end(seen, link) is not None:
            continue  # a sender's bursts look fast: where the receiver is watched, what comes in there tells
        stretches = [stretch for cells in times for stretch in _slow_stretches(seen, cells, link, references)]
        _, main = max(stretches, default=(0.0, 0.0))
        ns = sum(ns for ns, pace in stretches if abs(pace - main) <= _EVEN / 2 * main)
        found[one.direction].append((ns, link))
    received, sent = (max(found[way], default=(0.0, -1)) for way in (Direction.RX, Direction.TX))
    ns, link = (
        received if received[0] >= _AS_LONG * sent[0] else sent
    )  # what is sent here may be a part of what comes in
    return (_slow_end(seen, link), ns) if ns > 0 else None


def _slow_stretches(
    seen: Window, cells: Cells, link: int, references: Mapping[int, Window]
) -> Iterator[tuple[float, float]]:
    """In which a link was slow: what the transfer lost in each (ns), and its pace, as a share of the usual one."""
    part = int(np.clip(len(cells.kind) // (_WINDOWS * _PARTS), 1, _LONGEST_PART))
    width = _PARTS * part
    whole, span = len(cells.kind) // width, len(cells.kind) // part
    usual = _usual_pace(seen.links[link], references, width) if whole >= _FEWEST else 0.0
    if not usual:
        return
    plain = (cells.kind != Held.FOREIGN)[: whole * width].reshape(whole, width).mean(axis=1) > 0.9
    carried = seen.own[link, cells.begin : cells.begin + span * part]
    every = carried.reshape(span, part).sum(axis=1) / part / usual
    parts = every[: whole * _PARTS].reshape(whole, _PARTS)
    pace = parts.mean(axis=1)
    slow = plain & ((parts > 0).mean(axis=1) > _BUSY) & (pace <= _SLOWER)
    if not slow.any():
        return
    slow &= np.quantile(parts, 0.9, axis=1) <= _FAST  # it does not go as fast as ever, now and then
    over = 0
    for begin, end in _runs(slow):
        middle = median(pace[begin:end])
        if _even(pace[begin:end], middle) and begin * _PARTS >= over:
            first, last = _as_slow(every, begin * _PARTS, end * _PARTS, middle, PAUSED // part)
            yield float(cells.lost_ns[max(first, over) * part : last * part].sum()), middle
            over = last


def _even(pace: _Floats, middle: float) -> bool:
    """Whether the windows keep one pace for most of the time without a break. TCP takes a while to be fast again."""
    near = np.abs(pace - middle) <= _EVEN / 2 * middle
    longest = max((end - begin for begin, end in _runs(near)), default=0)
    return longest >= max(_FEWEST, _MOSTLY * len(pace))


def _runs(flags: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """[first, last) of the stretches that hold."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2).tolist()]


def _as_slow(parts: _Floats, first: int, last: int, pace: float, longest_break: int) -> tuple[int, int]:
    """The stretch [first, last) of parts, as far as the link went on at about this pace on both sides.

    With breaks in which it carried nothing: whoever had its bytes passed them on, and a pause of all is longer.
    """
    slow, fast = (parts > 0) & (parts <= pace * (1 + _EVEN)), parts > pace * (1 + _EVEN)
    for step in (-1, 1):
        place, edge = (first - 1, first) if step < 0 else (last, last - 1)
        while 0 <= place < len(parts) and not fast[place] and abs(place - edge) <= longest_break:
            edge = place if slow[place] else edge
            place += step
        first, last = (min(first, edge), last) if step < 0 else (first, max(last, edge + 1))
    return first, last


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


def _usual_pace(link: Link, references: Mapping[int, Window], width: int) -> float:
    """The most that the link carries of the job's bytes over so many cells in usual iterations (median)."""
    most = []
    for window in references.values():
        if link in window.links and window.cells >= width:
            sums = np.cumsum(np.concatenate([[0.0], window.own[window.links.index(link)]]))
            most.append(float((sums[width:] - sums[:-width]).max()) / width)
    return median(most) if most else 0.0
