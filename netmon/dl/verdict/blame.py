# SPDX-License-Identifier: Apache-2.0
"""What held a transfer up, in ns of each cause, and whose bytes or which link it was."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from netmon.dl.verdict.connections import sent_again
from netmon.dl.verdict.evidence import CELL_NS
from netmon.dl.verdict.held import PAUSED, Cells, Held, Stop, held, together, where_contested, who_went_on
from netmon.dl.verdict.judged import Blamed, Culprit, Judged
from netmon.dl.verdict.phases import Phases
from netmon.dl.verdict.slow_link import lossy_link, slow_link
from netmon.dl.verdict.usual import median
from netmon.dl.verdict.window import OWN_TRANSFER, UNCLASSIFIED, Window, around

_MORE = 1.05  # times the usual gradients: what makes it more to transfer
_AGAIN = 1.5  # the same on a link that was full with others' bytes: what was sent again is their doing
_PACED = 0.5  # of what was lost where packets were dropped: TCP is slow for a while after that, too, but not evenly
_BUSY = 0.5  # of a time without a byte
_MOST_HELD = 1.5  # times what bytes take on a link, which works without a break while it is full

SILENT = "silent"
"""What is called so is a pause only if something else says that all ranks stood still by themselves."""

_Floats = npt.NDArray[np.float64]


def held_up(one: Judged, told: Phases, transfer: float) -> tuple[dict[str, float], Blamed]:
    """The transfer's excess by what held it up; what is missing to it is not known."""
    seen = one.seen
    assert seen is not None
    capacity = _capacity(seen)
    full = where_contested(seen, capacity)
    judged = held(seen, told.since_ns, told.until_ns, told.usual_transfer_ns, full)
    left = held(seen, *told.left, 0.0, full, told.until_ns) if told.left[1] > told.left[0] else None
    base = [
        held(found, *told.usual_spans[row], told.usual_transfer_ns, where_contested(found, _capacity(found)))
        for row, found in one.references.items()
        if row in told.usual_spans
    ]

    def beyond(kind: Held) -> float:
        usual = median([cells.sum(kind) for cells in base]) if base else 0.0
        return judged.sum(kind) - usual + (left.sum(kind) if left else 0.0)

    parts: dict[str, float] = {}
    usual_moved = median([w.moved.sum() for w in one.references.values()]) if one.references else 0.0
    cells = judged if left is None else together(left, judged)
    culprits = _culprits(seen, cells, capacity, list(one.references.values()))
    moved = float(seen.moved[seen.cell(told.left[1]) if left else 0 :].sum())
    if usual_moved and moved > (_AGAIN if culprits else _MORE) * usual_moved:
        parts["transfer"] = (moved / usual_moved - 1.0) * told.usual_transfer_ns
    for each in culprits:
        parts[each.cause] = parts.get(each.cause, 0.0) + each.ns
    stopped = max(0.0, beyond(Held.STOPPED))
    stops = sum(stop.end - stop.begin for stop in judged.stops) or 1
    for stop in judged.stops:
        key, ns = _whose(stop, one, told), stopped * (stop.end - stop.begin) / stops
        parts[key] = parts.get(key, 0.0) + ns
    gaps = parts.pop("", 0.0)
    lost, slow = max(0.0, beyond(Held.LOST)), beyond(Held.SLOW)
    unclear = lost + slow + gaps
    links: list[int] = []
    if unclear > 0.1 * transfer:
        found = slow_link(seen, [judged] if left is None else [judged, left], one.references)
        if found is not None and (lost <= 0 or found[1] >= _PACED * unclear):
            parts["slow_link"] = min(found[1], unclear)  # packets that take long leave gaps, too
            links = [found[0]]
        elif lost > 0:
            parts["loss"] = lost
            again = sent_again(seen.said, told.left[0] if left else told.since_ns, told.until_ns)
            links = [lossy] if (lossy := lossy_link(seen, judged.waits, again)) is not None else []
    parts = {name: ns for name, ns in parts.items() if ns > 0}
    total = sum(parts.values())
    if total > transfer:
        parts = {name: ns * transfer / total for name, ns in parts.items()}
    return parts, Blamed(tuple(culprits), tuple(links))


def _whose(stop: Stop, one: Judged, told: Phases) -> str:
    """Whose a time without a byte is: "late R", "pause", SILENT where the links and marks cannot tell, or, where it is
    too short for anybody to, "".

    A rank that did something else meanwhile says so by its marks: it did not wait. Where several did, all paused; where
    none did, all waited, and whoever is first to go on had stopped.
    """
    seen = one.seen
    assert seen is not None
    length = (stop.end - stop.begin) * CELL_NS
    busy = [rank for rank, ns in told.own.items() if ns >= _BUSY * length]
    hosts = np.unique(one.table.host[one.row, np.isin(one.table.rank, busy)])
    if len(busy) > 1 and len(hosts) > 1 and 2 * len(busy) >= len(told.own):
        return "pause" if stop.end - stop.begin >= PAUSED else ""
    rank = max(busy, key=lambda rank: told.own[rank]) if busy else who_went_on(seen, stop)
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

    Nobody held it up for longer than his bytes can: about what they take on the link. Of a rank's own transfers only
    what is more than in usual iterations counts: what comes in each of them is a part of the job.
    """
    found = []
    foreign = cells.kind == Held.FOREIGN
    pairs = {(int(p), int(k)) for p, k in zip(cells.party[foreign], cells.link[foreign], strict=True)}
    by_party: dict[int, list[tuple[int, float, float, float]]] = {}
    for party, link in pairs:
        own = foreign & (cells.party == party) & (cells.link == link)
        payload = float(seen.foreign_payload[party, link].sum())
        more = payload - _usual_payload(seen, party, link, references)
        most_ns = _MOST_HELD * max(0.0, more) * CELL_NS / max(float(capacity[link]), 1.0)
        lost = float(cells.lost_ns[own].sum())
        by_party.setdefault(party, []).append((link, min(lost, most_ns), lost, payload))
    for party, rows in by_party.items():
        ns = sum(row[1] for row in rows)
        link, *_, payload = max(rows, key=lambda row: row[1])
        if ns > 0:
            most_ns = max(ns, sum(row[2] for row in rows))
            found.append(Culprit(seen.causes[party], seen.names[party], link, ns, most_ns, payload))
    return sorted(found, key=lambda each: (each.name == UNCLASSIFIED, -each.ns))


def _usual_payload(seen: Window, party: int, link: int, references: Sequence[Window]) -> float:
    """Of a rank's own transfers on a link, in as long a time of usual iterations; 0 of others."""
    if seen.causes[party] != OWN_TRANSFER:
        return 0.0
    one = seen.links[link]
    paces = [each.foreign_payload[party, each.links.index(one)].mean() for each in references if one in each.links]
    return seen.cells * median(paces) if paces else 0.0
