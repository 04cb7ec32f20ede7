# SPDX-License-Identifier: Apache-2.0
"""What each rank spent beyond its baseline alongside the transfer, who came late, and when the transfer was.

It also defines what is known of one iteration, and what is found about it, for all modules that judge it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from netmon.dl.verdict.baseline import Matrix, median, middle, spread
from netmon.dl.verdict.by_transfers import Sent, no_transfers
from netmon.dl.verdict.evidence import CELL_NS
from netmon.dl.verdict.host_part import Counted, nobody_counts
from netmon.dl.verdict.window import Window
from netmon.records import Table

_FEWEST = 3  # baseline iterations of which it is known what the slowest rank did besides waiting
_ALIKE = 0.7  # of the latest rank's lateness
_CLEAR = 0.1  # of the lateness: clocks that err more are not used

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Phases:
    """Times in ns; parts are beyond the baseline and may be below 0."""

    known: bool = False  # it is known what every rank did besides waiting
    timed: bool = False  # it is known when the transfer was
    pause_ns: float = 0.0  # what all ranks did longer besides waiting
    late: tuple[tuple[int, float], ...] = ()  # (rank, what the slowest rank lost by it)
    own: Mapping[int, float] = field(default_factory=dict)  # by rank: what else it did longer, besides being late
    waited_ns: float = 0.0  # by the slowest rank for gradients when everybody was there
    since_ns: float = 0.0  # of the transfer, UTC: everybody is there
    until_ns: float = 0.0
    left: tuple[float, float] = (0.0, 0.0)  # UTC: when the last rank's transfer before this one kept it, and no other
    baseline_transfer_ns: float = 0.0
    error_ns: float = 0.0
    baseline_spans: Mapping[int, tuple[float, float]] = field(default_factory=dict)  # of baseline transfers, by row


@dataclass(frozen=True)
class StepTimes:
    """Arrays (iterations, ranks), ns since base, nan: unknown."""

    arrive: _Floats  # the first gradient is handed over
    done: _Floats  # the last one has been reduced
    exposed: _Floats  # how long the rank only waited


def phases(
    table: Matrix,
    row: int,
    baseline: npt.NDArray[np.intp],
    times: StepTimes,
    seen: Window | None,
    references: Mapping[int, Window],
) -> Phases:
    """What the iteration of `row` was like alongside its baseline. times: by marks and traffic."""
    slow = int(np.nanargmax(table.duration[row]))
    error = float(np.nanmax(table.error[row])) + (2 * CELL_NS * seen.clock_cells if seen else 0.0)
    found = _transfer(table, row, baseline, times, references, error)
    rest = table.duration - times.exposed
    if np.isfinite(rest[baseline, slow]).sum() < _FEWEST:
        return found
    more_rest = rest[row] - middle(rest[baseline])
    more_wait = float(times.exposed[row, slow] - middle(times.exposed[baseline])[slow])
    if not np.isfinite(more_rest[slow]) or not np.isfinite(more_wait):
        return found
    if len(table.rank) == 1:
        return replace(found, known=True, pause_ns=float(more_rest[slow]), waited_ns=more_wait)
    whole = bool(np.isfinite(more_rest).all())
    pause = max(0.0, float(more_rest.min())) if whole else 0.0
    own = float(more_rest[slow]) - pause
    together = min(max(own, 0.0), _stuck(times.done, row, baseline, slow))
    pause, own = pause + together, own - together
    late = [(int(table.rank[slow]), own)]
    last, gaps = _latest(times.arrive, row, baseline, slow, more_rest, error)
    # What it did itself made it late, now or at the end of the iteration before; the rest is what that one's transfer
    # left behind, which did not end everywhere at once.
    itself = sum(max(0.0, float(more[last] - more[slow])) for more in (more_rest, _more_before(rest, row, baseline)))
    waited_for = float(np.clip(min(gaps, itself), 0.0, max(more_wait, 0.0)))
    if waited_for > 0 and _many_late(table, row, more_rest, last, slow):
        pause += waited_for
    elif waited_for > 0:
        late.append((int(table.rank[last]), waited_for))
    within = times.exposed - table.waited  # what ranks did between two waits
    more_within = np.nan_to_num(within[row] - middle(within[baseline]))
    remaining = dict(zip(table.rank.tolist(), (more_rest - pause + more_within).tolist(), strict=True)) if whole else {}
    if remaining and waited_for > 0:
        remaining[int(table.rank[last])] -= waited_for
    left = _left_behind(times.done, row, slow, last, max(0.0, gaps - waited_for))
    return replace(
        found,
        known=True,
        pause_ns=pause,
        late=tuple(late),
        own=remaining,
        waited_ns=more_wait - waited_for,
        left=(table.base_ns + left[0], table.base_ns + left[1]),
    )


def _left_behind(done: _Floats, row: int, slow: int, last: int, length: float) -> tuple[float, float]:
    """When the transfer before went on for the last rank, and was over for the slowest one; at most `length`."""
    if row == 0 or length <= 0 or not np.isfinite(done[row - 1, [slow, last]]).all():
        return 0.0, 0.0
    end = float(done[row - 1, last])
    return max(float(done[row - 1, slow]), end - length), end


def _stuck(done: _Floats, row: int, baseline: npt.NDArray[np.intp], slow: int) -> float:
    """How long all other ranks were kept in a transfer that the slowest rank had behind it, now or just before.

    They did not wait for it, so whatever kept it kept them, too.
    """
    gaps = done - done[:, [slow]]
    later = np.delete(gaps - middle(gaps[baseline]), slow, axis=1)[max(0, row - 1) : row + 1]
    kept = later.min(axis=1)
    return float(np.max(kept, initial=0.0, where=np.isfinite(kept)))


def _many_late(table: Matrix, row: int, more_rest: _Floats, last: int, slow: int) -> bool:
    """Whether ranks of more than one host, half of all or more, were about as late as the latest: no straggler."""
    late = np.flatnonzero(more_rest >= _ALIKE * more_rest[last]) if more_rest[last] > 0 else np.empty(0, np.intp)
    hosts = len(np.unique(table.host[row, late]))
    return hosts >= 2 and 2 * len(late) >= len(more_rest)


def _more_before(rest: _Floats, row: int, baseline: npt.NDArray[np.intp]) -> _Floats:
    """(ranks,): what each rank did longer besides waiting in the iteration before; 0 where that is not known."""
    if row == 0:
        return np.zeros(rest.shape[1])
    return np.asarray(np.nan_to_num(rest[row - 1] - middle(rest[baseline])))


def moments(table: Matrix, row: int, seen: Window | None, references: Mapping[int, Window]) -> StepTimes:
    """By the marks; what these lack, by the traffic where it is known."""
    arrive, done, exposed = table.comm_start.copy(), table.comm_end.copy(), table.exposed.copy()
    windows = dict(references) | ({row: seen} if seen else {})
    for one, found in windows.items():
        for column, rank in enumerate(table.rank.tolist()):
            index = np.flatnonzero(found.ranks == rank)
            if not len(index) or (np.isfinite(arrive[one, column]) and np.isfinite(done[one, column])):
                continue
            begin, end = table.start[one, column], table.end[one, column]
            base = found.first * CELL_NS - table.base_ns
            at = base + CELL_NS * np.arange(found.cells)
            inside = (at + CELL_NS > begin) & (at < end) if np.isfinite(begin) else np.ones(found.cells, np.bool_)
            sent = np.flatnonzero((found.sent[index[0]] > 0) & inside)
            both = np.flatnonzero((found.sent[index[0]] + found.taken[index[0]] > 0) & inside)
            if len(sent) and not np.isfinite(arrive[one, column]):
                arrive[one, column] = max(at[sent[0]], begin) if np.isfinite(begin) else at[sent[0]]
            if len(both) and not np.isfinite(done[one, column]):
                done[one, column] = min(at[both[-1]] + CELL_NS, end) if np.isfinite(end) else at[both[-1]] + CELL_NS
    unknown = ~np.isfinite(exposed)
    exposed[unknown] = (done - arrive)[unknown]
    return StepTimes(arrive, done, exposed)


def _transfer(
    table: Matrix,
    row: int,
    baseline: npt.NDArray[np.intp],
    times: StepTimes,
    references: Mapping[int, Window],
    error_ns: float,
) -> Phases:
    """When the transfer was and how long it usually is, as far as that is known of every rank."""
    begin = np.where(np.isfinite(times.arrive).all(axis=1), times.arrive.max(axis=1), np.nan)
    end = np.fmax.reduce(times.done, axis=1)
    lengths = (end - begin)[baseline]
    lengths = lengths[np.isfinite(lengths)]
    error = error_ns + spread(table.slowest[baseline]) / max(1.0, float(np.sqrt(len(baseline))))
    if not np.isfinite(begin[row] + end[row]) or not len(lengths) or end[row] <= begin[row]:
        return Phases(error_ns=error)
    spans = {
        one: (table.base_ns + float(begin[one]), table.base_ns + float(end[one]))
        for one in references
        if np.isfinite(begin[one] + end[one])
    }
    return Phases(
        timed=True,
        since_ns=table.base_ns + float(begin[row]),
        until_ns=table.base_ns + float(end[row]),
        baseline_transfer_ns=median(lengths),
        error_ns=error,
        baseline_spans=spans,
    )


def _latest(
    arrive: _Floats, row: int, baseline: npt.NDArray[np.intp], slow: int, more_rest: _Floats, error_ns: float
) -> tuple[int, float]:
    """The rank whose first gradient came latest alongside the slowest rank's, compared with baseline, and by how much.

    By the clocks of their hosts; where these err too much, by what each did longer since its own start.
    """
    gaps = arrive - arrive[:, [slow]]
    later = gaps[row] - middle(gaps[baseline])
    longer = more_rest - more_rest[slow]
    clear = np.isfinite(later).all() and error_ns <= _CLEAR * max(float(np.nanmax(longer)), float(np.nanmax(later)))
    found = later if clear else longer
    if not np.isfinite(found).any():
        return slow, 0.0
    last = int(np.nanargmax(found))
    return (last, float(found[last])) if last != slow else (slow, 0.0)


@dataclass(frozen=True)
class Judged:
    """One iteration with all that is known of it."""

    job: str
    table: Matrix
    row: int
    baseline: npt.NDArray[np.intp]
    seen: Window | None
    references: Mapping[int, Window]
    waited: Table | None  # dtype WAITED
    transfers: Sent = no_transfers  # called where nothing else shows the cause
    counted: Counted = nobody_counts

    @cached_property
    def moments(self) -> StepTimes:
        """When which rank did what, by marks and traffic."""
        return moments(self.table, self.row, self.seen, self.references)


class Culprit(NamedTuple):
    """Whose bytes delayed a transfer."""

    cause: str  # as in SHARES
    name: str
    link: int  # of the window's, where most of it was
    ns: float
    most_ns: float  # that it may have been: not compared with what its bytes take on the link
    payload: float  # there


@dataclass(frozen=True)
class Blamed:
    """Whose bytes and which link delayed the transfer."""

    culprits: tuple[Culprit, ...]  # most ns first
    links: tuple[int, ...]  # that were slow or dropped, by blame
