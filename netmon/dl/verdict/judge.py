# SPDX-License-Identifier: Apache-2.0
"""Why an iteration took as long as it did.

Its slowest rank is held against the same rank's usual iterations. What it did longer beside waiting for gradients is
its own (or everybody's: a pause). What it waited longer is first the wait for a rank whose first gradient came later
than it usually does, then the transfer; what held the transfer up is told by what the links carried at that very time
(see netmon.dl.verdict.held). Without the culprit's bytes the iteration would have taken its duration less what the
cells lost in which that culprit filled a link; the interval (90 %) is the usual iterations' own spread, and the clocks'
bounds. What else it was longer by, if that is within the spread, is anybody's, and without the culprit it would have
taken the usual time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from netmon.dl.account import JOB
from netmon.dl.verdict.evidence import CELL_NS, Carried, Link, Steps
from netmon.dl.verdict.held import PAUSED, Cells, Held, held
from netmon.dl.verdict.host_part import explains, waited_more
from netmon.dl.verdict.phases import Phases, phases
from netmon.dl.verdict.slow_link import lossy_link, slow_link
from netmon.dl.verdict.usual import FEWEST, Matrix, matrix, spread, usual_rows
from netmon.dl.verdict.window import UNCLASSIFIED, Window, around, window
from netmon.records import Table
from netmon.views import SHARES, Cause, Verdict

NOTABLE = 1.2
"""An iteration that takes so many times the usual stands out."""

_LEAST_SHARE = 0.3  # of the excess: what makes a cause the cause
_SECOND_SHARE = 0.2
_MORE = 1.05  # times the usual gradients: what makes it more to transfer
_AGAIN = 1.5  # the same on a link that was full with others' bytes: what was sent again is their doing
_MOST_HELD = 1.5  # times what bytes take on a link, which works without a break while it is full
_INTERVAL = 1.645  # standard deviations: 90 %
REFERENCES = 6
"""Usual iterations whose traffic is looked at, at most."""

_Floats = npt.NDArray[np.float64]


def standing_out(steps: Steps) -> list[int]:
    """Numbers of the iterations that took NOTABLE × the usual and that were whole, ascending; not the job's first."""
    if not len(steps.number):
        return []
    table = matrix(steps)
    rows = usual_rows(table)
    if not len(rows):
        return []
    usual = np.median(table.slowest[rows])
    found = np.flatnonzero((table.slowest >= NOTABLE * usual) & (np.arange(len(table.number)) > 0))
    return table.number[found].tolist()  # type: ignore[no-any-return]


def wanted_times(steps: Steps, numbers: "list[int]") -> list[tuple[int, int]]:
    """When rows are needed to judge these iterations: theirs, and those of usual ones; (since, until) in UTC ns."""
    table = matrix(steps)
    rows: set[int] = set()
    for number in numbers:
        row = int(np.searchsorted(table.number, number))
        rows |= {row, *_references(table, row)}
    begin, end = np.nanmin(table.start, axis=1), np.nanmax(table.end, axis=1)
    return [(int(begin[row]) + table.base_ns, int(end[row]) + table.base_ns) for row in sorted(rows)]


def _references(table: Matrix, row: int) -> list[int]:
    usual = usual_rows(table, row)
    near = usual[np.argsort(np.abs(usual - row), kind="stable")[:REFERENCES]]
    return sorted(near.tolist())


@dataclass(frozen=True)
class _Judged:
    """One iteration with all that is known of it."""

    table: Matrix
    row: int
    usual: npt.NDArray[np.intp]
    seen: Window | None
    references: Mapping[int, Window]
    waited: Table | None  # dtype WAITED


def judge(job: str, steps: Steps, carried: Carried, number: int) -> Verdict:
    """The verdict on one iteration, which need not stand out. Raises KeyError where there is no such iteration."""
    table = matrix(steps)
    row = int(np.searchsorted(table.number, number))
    if row == len(table.number) or table.number[row] != number:
        raise KeyError(number)
    usual = usual_rows(table, row)
    seen = _window(carried, job, table, row)
    references = {one: found for one in _references(table, row) if (found := _window(carried, job, table, one))}
    one = _Judged(table, row, usual, seen, references, carried.waited)
    slow = int(np.nanargmax(table.duration[row]))
    start, end = (int(column[row, slow]) + table.base_ns for column in (table.start, table.end))
    normal = int(np.median(table.slowest[usual])) if len(usual) else 0
    excess = end - start - normal if normal else 0
    verdict = Verdict(job, number, start, end, end - start, normal, excess, relative=steps.relative)
    if not normal or excess <= 0:
        return verdict if not normal else replace(verdict, unknown_ns=excess, confidence=1.0)
    return _weigh(verdict, one, steps, phases(table, row, usual, seen, references))


def _window(carried: Carried, job: str, table: Matrix, row: int) -> Window | None:
    begin, end = int(np.nanmin(table.start[row])), int(np.nanmax(table.end[row]))
    return window(carried, job, begin + table.base_ns, end + table.base_ns)


def _weigh(verdict: Verdict, one: _Judged, steps: Steps, told: Phases) -> Verdict:
    """Shares of the excess, the cause, and what would have been."""
    excess = float(verdict.excess_ns)
    shares = dict.fromkeys(SHARES, 0.0)
    late_of: dict[int, float] = {}
    left = excess
    if told.known:
        single = len(one.table.rank) == 1
        common = min(max(told.pause_ns, 0.0), left)
        shares["compute" if single else "pause"] = common
        left -= common
        for rank, ns in told.late:
            part = min(max(ns, 0.0), left)
            late_of[rank] = late_of.get(rank, 0.0) + part
            left -= part
    transfer = min(left, max(told.waited_ns, 0.0)) if told.known else 0.0
    noise_ns = told.error_ns
    blamed: _Blamed | None = None
    if transfer > 0 and one.seen is not None and told.timed:
        parts, blamed = _held_up(one, told, transfer)
        for name, ns in parts.items():
            if name.startswith("late "):
                rank = int(name.split()[1])
                late_of[rank] = late_of.get(rank, 0.0) + ns
            else:
                shares[name] += ns
    host_of = _hosts_part(verdict, one, late_of, excess - sum(shares.values()) - sum(late_of.values()))
    shares["host"] = sum(host_of.values())
    shares["late"] = sum(late_of.values())
    shares["unknown"] = max(0.0, excess - sum(shares.values()))
    return _conclude(verdict, shares, (late_of, host_of), blamed, noise_ns, one, steps)


def _hosts_part(verdict: Verdict, one: _Judged, late_of: dict[int, float], unknown: float) -> dict[int, float]:
    """By rank, what its host's CPUs cost, taken from what it was late by, and from what is not known."""
    if one.waited is None:
        return {}
    more = waited_more(one.waited, verdict.start_ns, verdict.end_ns)
    found = {
        rank: late_of.pop(rank) for rank in list(late_of) if explains({rank: more.get(rank, 0.0)}, late_of[rank]) >= 0
    }
    rank = explains(more, unknown) if unknown > 0.1 * verdict.excess_ns else -1
    if rank >= 0:
        found[rank] = found.get(rank, 0.0) + unknown
    return found


@dataclass(frozen=True)
class _Blamed:
    """Whose bytes and which link held the transfer up."""

    culprits: tuple[tuple[str, int, float, float], ...]  # name, link, ns, payload; most ns first
    links: tuple[int, ...]  # that were slow or dropped, by blame


def _held_up(one: _Judged, told: Phases, transfer: float) -> tuple[dict[str, float], _Blamed]:
    """The transfer's excess by what held it up; what is missing to it is not known."""
    seen = one.seen
    assert seen is not None
    capacity = _capacity(seen, one.references)
    judged = held(seen, told.since_ns, told.until_ns, told.usual_transfer_ns, capacity)
    base = [
        held(found, *told.usual_spans[row], told.usual_transfer_ns, _capacity(found, one.references))
        for row, found in one.references.items()
        if row in told.usual_spans
    ]

    def beyond(kind: Held) -> float:
        return judged.sum(kind) - (float(np.median([cells.sum(kind) for cells in base])) if base else 0.0)

    parts: dict[str, float] = {}
    usual_moved = float(np.median([w.moved.sum() for w in one.references.values()])) if one.references else 0.0
    culprits = _culprits(seen, judged, capacity)
    if usual_moved and seen.moved.sum() > (_AGAIN if culprits else _MORE) * usual_moved:
        parts["transfer"] = (seen.moved.sum() / usual_moved - 1.0) * told.usual_transfer_ns
    for name, _, ns, _ in culprits:
        key = "other_job" if name.startswith(JOB) else "cross"
        parts[key] = parts.get(key, 0.0) + ns
    stopped = max(0.0, beyond(Held.STOPPED))
    stops = sum(stop.end - stop.begin for stop in judged.stops) or 1
    for stop in judged.stops:
        if stop.rank < 0 and stop.end - stop.begin < PAUSED:
            continue  # a gap says nothing
        key = "pause" if stop.rank < 0 else f"late {stop.rank}"
        parts[key] = parts.get(key, 0.0) + stopped * (stop.end - stop.begin) / stops
    lost, slow = max(0.0, beyond(Held.LOST)), beyond(Held.SLOW)
    links: list[int] = []
    if lost + slow > 0.1 * transfer:
        found = slow_link(seen, judged, one.references)
        if found is not None:
            parts["slow_link"] = min(found[1], max(0.0, lost + slow))
            links = [found[0]]
        elif lost > 0:
            parts["loss"] = lost
            links = [lossy] if (lossy := lossy_link(seen)) is not None else []
    parts = {name: ns for name, ns in parts.items() if ns > 0}
    total = sum(parts.values())
    if total > transfer:
        parts = {name: ns * transfer / total for name, ns in parts.items()}
    return parts, _Blamed(tuple(culprits), tuple(links))


def _capacity(seen: Window, references: Mapping[int, Window]) -> _Floats:
    """(links,): wire bytes of a cell that the link can carry; where nobody tells, the most it did in 10 ms."""
    reach = 20
    most = around(seen.own + seen.foreign.sum(axis=0), reach).max(axis=1) / (2 * reach + 1)
    return np.where(np.isfinite(seen.capacity), seen.capacity, most)


def _culprits(seen: Window, cells: Cells, capacity: _Floats) -> list[tuple[str, int, float, float]]:
    """(name, link, ns, payload) of who held the transfer up, the most first; only what is more than nothing.

    Nobody held it up for longer than his bytes can: about what they take on the link.
    """
    found = []
    foreign = cells.kind == Held.FOREIGN
    pairs = {(int(p), int(k)) for p, k in zip(cells.party[foreign], cells.link[foreign], strict=True)}
    by_name: dict[str, list[tuple[int, float, float]]] = {}
    for party, link in pairs:
        own = foreign & (cells.party == party) & (cells.link == link)
        payload = float(seen.foreign_payload[party, link].sum())
        most_ns = _MOST_HELD * payload * CELL_NS / max(float(capacity[link]), 1.0)
        ns = min(float(cells.lost_ns[own].sum()), most_ns)
        by_name.setdefault(seen.names[party], []).append((link, ns, payload))
    for name, rows in by_name.items():
        ns = sum(row[1] for row in rows)
        link, _, payload = max(rows, key=lambda row: row[1])
        if ns > 0:
            found.append((name, link, ns, payload))
    return sorted(found, key=lambda row: (row[0] == UNCLASSIFIED, -row[2]))


_CAUSES = {
    "compute": Cause.COMPUTE,
    "late": Cause.STRAGGLER,
    "cross": Cause.CROSS,
    "other_job": Cause.OTHER_JOB,
    "loss": Cause.LOSS,
    "slow_link": Cause.SLOW_LINK,
    "host": Cause.HOST,
    "pause": Cause.PAUSE,
}


def _conclude(
    verdict: Verdict,
    shares: dict[str, float],
    of_ranks: tuple[dict[int, float], dict[int, float]],
    blamed: _Blamed | None,
    noise_ns: float,
    one: _Judged,
    steps: Steps,
) -> Verdict:
    excess = float(verdict.excess_ns)
    ranks = dict(zip(("late", "host"), of_ranks, strict=True))
    names = sorted(_CAUSES, key=lambda name: -shares[name])
    first, second = names[0], names[1]
    whole: dict[str, Any] = {f"{name}_ns": round(shares[name]) for name in SHARES}
    whole["unknown_ns"] += verdict.excess_ns - sum(whole.values())
    verdict = replace(verdict, **whole, error_ns=round(noise_ns))
    if shares[first] < max(_LEAST_SHARE * excess, noise_ns, shares["unknown"]):
        return replace(verdict, confidence=round(max(0.0, shares[first] / excess) / 2, 3))
    verdict = replace(verdict, cause=_CAUSES[first])
    if shares[second] >= max(_SECOND_SHARE * excess, noise_ns):
        verdict = replace(
            verdict,
            second_cause=_CAUSES[second],
            second_culprit=_who(second, ranks.get(second, {}), blamed),
        )
    sure = float(np.clip(shares[first] / max(excess - shares[second], 1.0), 0.0, 1.0))
    sure *= float(np.clip(1.0 - noise_ns / excess, 0.0, 1.0))
    return replace(_placed(verdict, first, ranks.get(first, {}), blamed, one, steps), confidence=round(sure, 3))


def _who(name: str, late_of: dict[int, float], blamed: _Blamed | None) -> str:
    if name in ("late", "host") and late_of:
        return f"rank {max(late_of, key=lambda rank: late_of[rank])}"
    if name in ("cross", "other_job") and blamed:
        own = [c for c in blamed.culprits if c[0].startswith(JOB) == (name == "other_job")]
        return own[0][0] if own else ""
    return ""


def _placed(
    verdict: Verdict, first: str, late_of: dict[int, float], blamed: _Blamed | None, one: _Judged, steps: Steps
) -> Verdict:
    """With who and where, and what would have been without his bytes."""
    table, row = one.table, one.row
    if first in ("late", "host") and late_of:
        rank = max(late_of, key=lambda rank: late_of[rank])
        column = int(np.searchsorted(table.rank, rank))
        place = int(table.host[row, column]) if column < len(table.rank) else -1
        host = steps.hosts[place] if place >= 0 else ""
        return replace(verdict, rank=rank, host=host, culprit=f"rank {rank}")
    if first in ("cross", "other_job") and blamed and one.seen:
        name, number, ns, payload = next(c for c in blamed.culprits if c[0].startswith(JOB) == (first == "other_job"))
        without = max(float(verdict.duration_ns - min(ns, getattr(verdict, f"{first}_ns"))), 0.0)
        half = _INTERVAL * (spread(table.slowest[one.usual]) + verdict.error_ns / 2)
        if without - verdict.usual_ns <= half:  # the usual iterations have as much of that: it is none of this one's
            without = float(verdict.usual_ns)
        return replace(
            _at(verdict, one.seen.links[number], one, steps),
            culprit=name,
            bytes=round(payload),
            counterfactual_ns=round(without),
            counterfactual_low_ns=round(max(0.0, without - half)),
            counterfactual_high_ns=round(min(float(verdict.duration_ns), without + half)),
        )
    if first in ("slow_link", "loss") and blamed and blamed.links and one.seen:
        return _at(verdict, one.seen.links[blamed.links[0]], one, steps)
    return verdict


def _at(verdict: Verdict, link: Link, one: _Judged, steps: Steps) -> Verdict:
    rank = _rank_at(one.table, one.row, steps, link.host)
    return replace(verdict, host=link.host, interface=link.interface, direction=link.direction, rank=rank)


def _rank_at(table: Matrix, row: int, steps: Steps, host: str) -> int:
    there = [int(table.rank[c]) for c, h in enumerate(table.host[row].tolist()) if h >= 0 and steps.hosts[h] == host]
    return there[0] if len(there) == 1 else -1


__all__ = ["CELL_NS", "FEWEST", "NOTABLE", "REFERENCES", "judge", "standing_out", "wanted_times"]
