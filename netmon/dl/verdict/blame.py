# SPDX-License-Identifier: Apache-2.0
"""What of an iteration was delayed by what, in ns, and whose bytes or which link it was."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from netmon.dl.verdict.baseline import median
from netmon.dl.verdict.cells import (
    PAUSED,
    Cells,
    StallCause,
    Stop,
    together,
    transfer_stalls,
    where_contested,
    who_resumed,
)
from netmon.dl.verdict.connections import known_throughout, sent_again
from netmon.dl.verdict.evidence import CELL_NS
from netmon.dl.verdict.links import lossy_link, slow_link
from netmon.dl.verdict.phases import Blamed, Culprit, Judged, Phases
from netmon.dl.verdict.window import OWN_TRANSFER, UNCLASSIFIED, Window, around

_MORE = 1.05  # times the baseline gradients: what makes it more to transfer
_AGAIN = 1.5  # the same on a link that was full with others' bytes: what was sent again is their doing
_VARIES = 1.1  # the most that moves in a baseline iteration, times the least
_PACED = 0.5  # of what was lost where packets were dropped: TCP is slow for a while after that, too, but not evenly
_BUSY = 0.5  # of a time without a byte
_MOST_STALLED = 1.5  # times what bytes take on a link, which works without a break while it is full

_Floats = npt.NDArray[np.float64]

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
