# SPDX-License-Identifier: Apache-2.0
"""What held a transfer up, in ns of each cause, and whose bytes or which link it was."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from netmon.dl.verdict.baseline import median
from netmon.dl.verdict.connections import sent_again
from netmon.dl.verdict.evidence import CELL_NS, Link
from netmon.dl.verdict.judged import Blamed, Culprit, Judged
from netmon.dl.verdict.phases import Phases
from netmon.dl.verdict.transfer_stalls import (
    PAUSED,
    Cells,
    StallCause,
    Stop,
    together,
    transfer_stalls,
    where_contested,
    who_went_on,
)
from netmon.dl.verdict.window import OWN_TRANSFER, UNCLASSIFIED, Window, around
from netmon.records import Direction

# --- Which link gave less than it usually does, with nobody else on it, or lost packets.
#
# A link that is shaped, or slow, carries gradients evenly, at a pace below the one that it usually reaches. A rank
# that is slow itself leaves gaps, between which its bytes go as fast as ever. A pace is that of a piece, so many
# bytes: a slow link takes as much longer for a packet as for all of them, so that what looks even depends on how slow
# it is.

_PIECES = 32  # of what a link carries in a transfer, or in what was left of the one before
_LEAST_PIECE, _MOST_PIECE = 1 << 16, 1 << 17  # bytes: some of the largest packets
_SLOWER = 0.8  # of the baseline pace
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
        baseline = _baseline_pace(seen.links[link], references, piece) if len(took) >= _FEWEST else 0.0
        if not baseline:
            continue
        foreign = np.concatenate([[0.0], np.cumsum(cells.kind == StallCause.FOREIGN)])
        beside = np.diff(np.interp(edges, np.arange(len(foreign)), foreign))
        going = _longest_break(seen.own[link, span], edges) < _BREAK * took
        took, slow = took[going], ((took * _SLOWER >= baseline) & (beside < 0.1 * took))[going]
        off = _EVEN_LOSSY if (cells.kind == StallCause.LOST).any() else _EVEN
        for begin, end in _runs(slow):
            some = took[begin:end]
            if _even(some, off):
                longer += float(some.sum()) - len(some) * baseline
    return longer * CELL_NS


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


def _even(took: _Floats, off: float) -> bool:
    """Whether the link kept one pace for most pieces, alongside breaks, or most of the time: TCP takes a while to be
    fast again."""
    ordered = np.sort(took)
    first, last = np.searchsorted(ordered, ordered * (1 - off)), np.searchsorted(ordered, ordered * (1 + off), "right")
    total = np.concatenate([[0.0], np.cumsum(ordered)])
    pieces, time = last - first, total[last] - total[first]
    return bool(((pieces >= _FEWEST) & ((pieces >= _MOSTLY * len(took)) | (time >= _MOSTLY * took.sum()))).any())


def _baseline_pace(link: Link, references: Mapping[int, Window], piece: float) -> float:
    """Cells that a piece takes on a link in baseline iterations (median of medians); 0: not known."""
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
_PACED = 0.5  # of what was lost where packets were dropped: TCP is slow for a while after that, too, but not evenly
_BUSY = 0.5  # of a time without a byte
_MOST_STALLED = 1.5  # times what bytes take on a link, which works without a break while it is full

SILENT = "silent"
"""What is called so is a pause only if something else says that all ranks stood still by themselves."""


def blame_shares(one: Judged, phases: Phases, transfer: float) -> tuple[dict[str, float], Blamed]:
    """The transfer's excess by what delayed it; what is missing to it is not known."""
    seen = one.seen
    assert seen is not None
    capacity = _capacity(seen)
    full = where_contested(seen, capacity)
    judged = transfer_stalls(seen, phases.since_ns, phases.until_ns, phases.baseline_transfer_ns, full)
    left = transfer_stalls(seen, *phases.left, 0.0, full, phases.until_ns) if phases.left[1] > phases.left[0] else None
    base = [
        transfer_stalls(
            found, *phases.baseline_spans[row], phases.baseline_transfer_ns, where_contested(found, _capacity(found))
        )
        for row, found in one.references.items()
        if row in phases.baseline_spans
    ]

    def beyond(kind: StallCause) -> float:
        baseline = median([cells.sum(kind) for cells in base]) if base else 0.0
        return judged.sum(kind) - baseline + (left.sum(kind) if left else 0.0)

    parts: dict[str, float] = {}
    baseline_moved = median([w.moved.sum() for w in one.references.values()]) if one.references else 0.0
    cells = judged if left is None else together(left, judged)
    culprits = _culprits(seen, cells, capacity, list(one.references.values()))
    moved = float(seen.moved[seen.cell(phases.left[1]) if left else 0 :].sum())
    if baseline_moved and moved > (_AGAIN if culprits else _MORE) * baseline_moved:
        parts["transfer"] = (moved / baseline_moved - 1.0) * phases.baseline_transfer_ns
    for each in culprits:
        parts[each.cause] = parts.get(each.cause, 0.0) + each.ns
    stopped = max(0.0, beyond(StallCause.STOPPED))
    stops = sum(stop.end - stop.begin for stop in judged.stops) or 1
    for stop in judged.stops:
        key, ns = _whose(stop, one, phases), stopped * (stop.end - stop.begin) / stops
        parts[key] = parts.get(key, 0.0) + ns
    gaps = parts.pop("", 0.0)
    lost, slow = max(0.0, beyond(StallCause.LOST)), beyond(StallCause.SLOW)
    unclear = lost + slow + gaps
    links: list[int] = []
    if unclear > 0.1 * transfer:
        found = slow_link(seen, [judged] if left is None else [judged, left], one.references)
        if found is not None and (lost <= 0 or found[1] >= _PACED * unclear):
            parts["slow_link"] = min(found[1], unclear)  # packets that take long leave gaps, too
            links = [found[0]]
        elif lost > 0:
            parts["loss"] = lost
            again = sent_again(seen.said, phases.left[0] if left else phases.since_ns, phases.until_ns)
            links = [lossy] if (lossy := lossy_link(seen, judged.waits, again)) is not None else []
    parts = {name: ns for name, ns in parts.items() if ns > 0}
    total = sum(parts.values())
    if total > transfer:
        parts = {name: ns * transfer / total for name, ns in parts.items()}
    return parts, Blamed(tuple(culprits), tuple(links))


def _whose(stop: Stop, one: Judged, phases: Phases) -> str:
    """Whose a time without a byte is: "late R", "pause", SILENT where the links and marks cannot tell, or, where it is
    too short for anybody to, "".

    A rank that did something else meanwhile says so by its marks: it did not wait. Where several did, all paused; where
    none did, all waited, and whoever is first to go on had stopped.
    """
    seen = one.seen
    assert seen is not None
    length = (stop.end - stop.begin) * CELL_NS
    busy = [rank for rank, ns in phases.own.items() if ns >= _BUSY * length]
    hosts = np.unique(one.table.host[one.row, np.isin(one.table.rank, busy)])
    if len(busy) > 1 and len(hosts) > 1 and 2 * len(busy) >= len(phases.own):
        return "pause" if stop.end - stop.begin >= PAUSED else ""
    rank = max(busy, key=lambda rank: phases.own[rank]) if busy else who_went_on(seen, stop)
    if rank >= 0:
        return f"late {rank}"
    return SILENT if stop.end - stop.begin >= PAUSED and seen.fine else ""


def _capacity(seen: Window) -> _Floats:
    """(links,): wire bytes of a cell that the link can carry; where nobody tells, the most it did in 10 ms."""
    known = np.isfinite(seen.capacity)
    if known.all():
        return seen.capacity
    reach = 20
    most = around(seen.own + seen.foreign.sum(axis=0), reach).max(axis=1) / (2 * reach + 1)
    return np.where(known, seen.capacity, most)


def _culprits(seen: Window, cells: Cells, capacity: _Floats, references: Sequence[Window]) -> list[Culprit]:
    """Who held the transfer up, the most first; only what is more than nothing.

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
