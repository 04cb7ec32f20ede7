# SPDX-License-Identifier: Apache-2.0
"""The iterations of a job as a matrix of iterations and ranks, and the baseline among them.

`baseline_durations` defines the baseline duration of an iteration for all of netmon.

A job may change its pace itself: with another batch size, say, every rank computes longer from then on. Iterations
before such a change are no baseline for those after it. Traffic, a slow link, a late rank and a pause make iterations
longer, too, but they do not make all ranks compute longer, equally, in many iterations.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from netmon.dl.verdict.evidence import Steps
from netmon.views import JobView

_SAME_NS = 1_000_000  # two times of one moment may differ by the clocks' comparison

FEWEST = 5
"""Fewest iterations of a baseline."""

# --- Where the job itself changes its pace.

LASTS = 5
"""Iterations by which a change is distinguished from a pause."""

CHANGED = 1.15
"""Times as long, or as short, as before: what a rank computes in an iteration, at least."""

_BEFORE = 10  # iterations that it is compared with, or FEWEST of them
_ALIKE = 1.25  # times: the longest of LASTS iterations alongside the shortest;
_ALIKE_SHARE = 0.6  # or a share of the change
_TAKES = 1.1  # times: the iterations as a whole

_Floats = npt.NDArray[np.float64]


def changes(computed: _Floats, took: _Floats) -> list[int]:
    """Rows that are the first ones after a change, ascending.

    computed: (iterations, ranks), ns without waiting for gradients, nan: not known; took: (iterations,), ns, of the
    slowest rank. Iterations that are not known of all ranks are skipped.
    """
    known = np.flatnonzero(np.isfinite(computed).all(axis=1) & (computed > 0).all(axis=1))
    log, duration = np.log(computed[known]), np.log(took[known])
    found: list[int] = []
    begin = 0
    while (index := _first(log[begin:], duration[begin:])) is not None:
        begin += index
        found.append(int(known[begin]))
    return found


def _first(log: _Floats, duration: _Floats) -> int | None:
    count = len(log) - LASTS + 1
    if count <= FEWEST:
        return None
    rows = np.arange(FEWEST, count)
    # Most jobs never change: the whole iteration and one rank rule most rows out before all ranks are compared.
    for values, least in ((duration, _TAKES), (log[:, 0], CHANGED)):
        column = values[:, None]
        later = np.median(_after(column, rows), axis=2) - _medians_before(column, rows)
        rows = rows[np.abs(later[:, 0]) >= np.log(least)]
    if not len(rows):
        return None
    before = _medians_before(np.column_stack([log, duration]), rows)
    more = _after(log, rows) - before[:, :-1, None]  # (rows, ranks, LASTS)
    of_ranks = np.median(more, axis=2)
    side = np.sign(of_ranks[:, 0])
    all_of_them = (side[:, None] * of_ranks >= np.log(CHANGED)).all(axis=1)
    each = np.median(more, axis=1)
    tolerance = np.maximum(np.log(_ALIKE), _ALIKE_SHARE * np.abs(np.median(each, axis=1)))
    alike = ((side[:, None] * each) >= np.log(CHANGED)).all(axis=1) & (np.ptp(each, axis=1) <= tolerance)
    takes = np.median(_after(duration[:, None], rows)[:, 0], axis=1) - before[:, -1]
    found = np.flatnonzero(all_of_them & alike & (side * takes >= np.log(_TAKES)))
    if not len(found):
        return None
    index, level, base = int(rows[found[0]]), of_ranks[found[0]], before[found[0], :-1]
    while index > FEWEST and np.median((log[index - 1] - base) / level) > 0.5:  # changed, and not alike yet
        index -= 1
    return index


def _after(values: _Floats, rows: npt.NDArray[np.intp]) -> _Floats:
    """(rows, columns, LASTS): of each of these rows itself and those after it."""
    return np.asarray(np.lib.stride_tricks.sliding_window_view(values, LASTS, axis=0)[rows])


def _medians_before(values: _Floats, rows: npt.NDArray[np.intp]) -> _Floats:
    """(rows, columns): the median of each column over up to _BEFORE rows before each of these; none is the first."""
    index = rows[:, None] - np.arange(1, _BEFORE + 1)
    ordered = np.sort(np.where(index[..., None] >= 0, values[index], np.nan), axis=1)  # nan is last
    count, each = np.minimum(rows, _BEFORE), np.arange(len(rows))
    return np.asarray((ordered[each, (count - 1) // 2] + ordered[each, count // 2]) / 2)


# --- The matrix, and the baseline of each of its iterations.

MOST = 200
"""Most iterations of a baseline: the nearest."""

_AT_ONCE = 4_096  # iterations whose baselines are in memory together
_VARIES = 1.1  # times as many bytes: what is sent again may arrive twice


@dataclass(frozen=True)
class Durations:
    """The input of baselines: the distinct iterations of one job, in order. Arrays (iterations,)."""

    slowest: _Floats  # ns, of the slowest rank
    whole: npt.NDArray[np.bool_]  # every rank that the job had has a row
    shared: npt.NDArray[np.bool_]  # some rank's host had foreign traffic, or it is not known yet
    pace: npt.NDArray[np.int64]  # how often the job had changed its pace until then

    def __len__(self) -> int:
        return len(self.slowest)


@dataclass(frozen=True)
class Matrix:
    """Arrays (iterations, ranks), nan where a rank has no row or does not report; moments in ns since `base_ns`."""

    base_ns: int
    number: npt.NDArray[np.int64]  # (iterations,), ascending
    rank: npt.NDArray[np.int64]  # (ranks,)
    host: npt.NDArray[np.int64]  # (iterations, ranks), −1: no row
    start: _Floats
    end: _Floats
    comm_start: _Floats
    comm_end: _Floats
    exposed: _Floats
    error: _Floats
    shared: npt.NDArray[np.bool_]
    waited: _Floats  # in calls anywhere in the iteration
    received: _Floats  # (iterations,): bytes of the rank that received most

    @cached_property
    def duration(self) -> _Floats:
        """(iterations, ranks): ns."""
        return self.end - self.start

    @cached_property
    def whole(self) -> npt.NDArray[np.bool_]:
        """(iterations,): every rank that the job had has a row."""
        return np.asarray((self.host >= 0).all(axis=1))

    @cached_property
    def slowest(self) -> _Floats:
        """(iterations,): duration of the slowest rank."""
        return np.asarray(np.fmax.reduce(self.duration, axis=1))

    @cached_property
    def changes(self) -> list[int]:
        """Rows from which on the job itself takes longer, or shorter, than before."""
        indices = np.flatnonzero(self.whole)
        found: list[int] = indices[changes((self.duration - self.exposed)[indices], self.slowest[indices])].tolist()
        return found

    @cached_property
    def pace(self) -> npt.NDArray[np.int64]:
        """(iterations,): how many changes there were until then."""
        return np.searchsorted(self.changes, np.arange(len(self.number)), "right")

    @cached_property
    def durations(self) -> Durations:
        return Durations(self.slowest, self.whole, np.asarray(self.shared.any(axis=1)), self.pace)


def matrix(steps: Steps) -> Matrix:
    """The iterations of a job, at least one; of ranks that the job has by its size, where that is known."""
    ranks = np.unique(steps.rank)
    if steps.size:
        ranks = np.arange(steps.size) if steps.size <= 2 * len(ranks) + 8 else ranks
    kept = np.flatnonzero(np.isin(steps.rank, ranks))
    numbers, row = np.unique(steps.number[kept], return_inverse=True)
    column = np.searchsorted(ranks, steps.rank[kept])
    base = int(steps.start_ns[kept].min(initial=np.iinfo(np.int64).max))
    shape = len(numbers), len(ranks)

    def filled(values: npt.NDArray[np.int64], known: npt.NDArray[np.bool_] | None = None) -> _Floats:
        cells = np.full(shape, np.nan)
        chosen = values[kept].astype(np.float64)
        cells[row, column] = chosen if known is None else np.where(known[kept], chosen, np.nan)
        return cells

    host = np.full(shape, -1, np.int64)
    host[row, column] = steps.host[kept]
    shared = np.zeros(shape, np.bool_)
    shared[row, column] = steps.shared[kept]
    waited_ns = np.full(len(steps.number), -1) if steps.waited_ns is None else steps.waited_ns
    comm_start = filled(steps.comm_start_ns - base, steps.comm_start_ns > 0)
    comm_end = filled(steps.comm_end_ns - base, steps.comm_end_ns > 0)
    start, end = filled(steps.start_ns - base), filled(steps.end_ns - base)
    following = np.full(shape, np.nan)
    following[:-1] = np.where(numbers[1:, None] == numbers[:-1, None] + 1, comm_start[1:], np.nan)
    alone = _wait_alone(start, end, comm_start, comm_end)
    received = np.full(len(steps.number), -1) if steps.received_bytes is None else steps.received_bytes
    return Matrix(
        *(base, numbers, ranks, host, np.where(alone, comm_start, start), np.where(alone, following, end)),
        comm_start=comm_start,
        comm_end=np.where(alone, np.nan, comm_end),
        exposed=np.where(alone, np.nan, filled(steps.exposed_ns, steps.exposed_ns >= 0)),
        error=filled(steps.error_ns),
        shared=shared,
        waited=np.where(alone, np.nan, filled(waited_ns, waited_ns >= 0)),
        received=np.maximum.reduce(filled(received, received >= 0), axis=1),
    )


def _wait_alone(start: _Floats, end: _Floats, comm_start: _Floats, comm_end: _Floats) -> npt.NDArray[np.bool_]:
    """Which ranks are seen to wait for their GPUs in an iteration in which others are not, as one that prints the loss.

    By its waits an iteration begins and ends at other moments than by first enqueues, so that a pause between two steps
    would be in one iteration of some ranks and in the next one of the others. So first enqueues count for all.
    """
    by_wait = np.abs(end - comm_end) < _SAME_NS
    by_enqueue = np.isnan(comm_end) & (np.abs(start - comm_start) < _SAME_NS)
    found: npt.NDArray[np.bool_] = by_wait & by_enqueue.any(axis=1, keepdims=True)
    return found


def baseline_rows(of: Durations, row: int) -> npt.NDArray[np.intp]:
    """The iterations that one is compared with, ascending: the nearest MOST of its pace that are whole, not the job's
    first, and met no foreign traffic if there are enough of these; of one with which the job changes its pace, of the
    pace before. None where there are fewer than FEWEST."""
    (found,) = _baselines(of, np.array([row]))
    return np.asarray(found[found >= 0])


def ns_per_byte(table: Matrix, rows: npt.NDArray[np.intp]) -> float:
    """How much longer these took for each byte that they received more, by Tukey's resistant line through the thirds
    that received least and most; 0 where that is not known, or all received about as much.

    Tukey, "Exploratory Data Analysis", 1977, chapter 10.
    """
    took, received = table.slowest[rows], table.received[rows]
    if not len(rows) or not np.isfinite(received).all():
        return 0.0
    order, third = np.argsort(received, kind="stable"), -(-len(rows) // 3)
    (less, sooner), (more, later) = (
        (median(received[some]), median(took[some])) for some in (order[:third], order[-third:])
    )
    return max(0.0, later - sooner) / (more - less) if more > _VARIES * less else 0.0


def baseline_durations(of: Durations, rows: npt.NDArray[np.intp] | None = None) -> npt.NDArray[np.int64]:
    """Baseline of each (of these rows), ns: the median of the iterations that it is compared with; 0: not known."""
    rows = np.arange(len(of)) if rows is None else rows
    pieces = (rows[first : first + _AT_ONCE] for first in range(0, len(rows), _AT_ONCE))
    return np.concatenate([np.empty(0, np.int64), *(_medians(of, piece) for piece in pieces)])


def baseline_by(of: Durations, compared: npt.NDArray[np.intp]) -> int:
    """The same of one iteration. compared: its baseline_rows."""
    return int(median(of.slowest[compared])) if len(compared) else 0


def of_durations(slowest_ns: npt.ArrayLike) -> Durations:
    """Durations of iterations of which nothing else is known: each may be in a baseline."""
    slowest = np.asarray(slowest_ns, np.float64)
    every, none = np.ones(len(slowest), np.bool_), np.zeros(len(slowest), np.bool_)
    return Durations(slowest, every, none, none.astype(np.int64))


def baseline_of_last(of: Durations) -> int:
    """Baseline of the last of these iterations, ns; 0: not known."""
    return baseline_by(of, baseline_rows(of, len(of) - 1)) if len(of) else 0


def baseline_of_job(job: JobView) -> int:
    """Baseline of a job's last iteration, ns; where the collector reports none, by the recent durations."""
    return job.baseline_ns or baseline_of_last(of_durations(job.durations_ns))


def _medians(of: Durations, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.int64]:
    compared = _baselines(of, rows)
    count = (compared >= 0).sum(axis=1)
    took = np.sort(np.where(compared >= 0, of.slowest[compared], np.inf), axis=1)
    each, upper = np.arange(len(rows)), count // 2
    both = took[each, upper - (count % 2 == 0)], took[each, np.minimum(upper, took.shape[1] - 1)]
    return np.where(count > 0, (both[0] + both[1]) / 2, 0).astype(np.int64)


def _baselines(of: Durations, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """(rows, MOST + 1): the iterations that each is compared with, ascending, and −1 where there are no more."""
    found = np.full((len(rows), MOST + 1), -1, np.intp)
    changed = np.diff(of.pace, prepend=of.pace[:1]) > 0
    paces = (of.pace - changed)[rows]
    for pace in set(paces.tolist()):
        wanted = np.flatnonzero(paces == pace)
        others = of.whole & (of.pace == pace)
        begun = others.copy()
        begun[0] = False  # connections begin slowly
        many = others.sum() - others[rows[wanted]] > FEWEST
        for some, some_others in ((wanted[many], begun), (wanted[~many], others)):
            if not len(some):
                continue
            quiet = some_others & ~of.shared
            enough = quiet.sum() - quiet[rows[some]] >= FEWEST
            for into, measure in ((some[enough], quiet), (some[~enough], some_others)):
                if len(into):
                    _nearest(found, into, rows[into], measure)
    return found


def _nearest(
    found: npt.NDArray[np.intp], into: npt.NDArray[np.intp], rows: npt.NDArray[np.intp], measure: npt.NDArray[np.bool_]
) -> None:
    """Write into `found` the newest measures before each row; where these are too few, the nearest ones except the row
    itself, if there are enough. So what is reported live stays true afterwards."""
    members = np.flatnonzero(measure)
    before = np.searchsorted(members, rows)
    late = before >= FEWEST
    if late.any():
        place = before[late, None] - np.arange(MOST, 0, -1)
        found[into[late], :MOST] = np.where(place >= 0, members[np.maximum(place, 0)], -1)
    into, rows = into[~late], rows[~late]
    for own in (np.flatnonzero(measure[rows]), np.flatnonzero(~measure[rows])):
        if not len(own):
            continue
        width = min(MOST + int(measure[rows[own[0]]]), len(members))  # itself is among the nearest
        # The window of the members up to which the one before it is further away than the one after it.
        first = np.searchsorted(members[: len(members) - width] + members[width:], 2 * rows[own])
        window = members[first[:, None] + np.arange(width)]
        window[window == rows[own, None]] = -1
        window[(window >= 0).sum(axis=1) < FEWEST] = -1
        found[into[own], :width] = window


def median(values: npt.ArrayLike) -> float:
    """Of at least one number, all of them known; of a few, where numpy's takes longer to begin than to do it."""
    ordered = np.sort(np.asarray(values, np.float64), axis=None)
    upper = len(ordered) // 2
    return float(ordered[upper] if len(ordered) % 2 else (ordered[upper - 1] + ordered[upper]) / 2)


def spread(values: _Floats) -> float:
    """A robust standard deviation: 1.4826 × the median distance from the median."""
    known = values[np.isfinite(values)]
    return 1.4826 * median(np.abs(known - median(known))) if len(known) else 0.0


def middle(values: _Floats) -> _Floats:
    """The median of each column, nan where nothing is known."""
    if not len(values):
        return np.full(values.shape[1], np.nan)
    known = np.isfinite(values)
    ordered = np.sort(np.where(known, values, np.nan), axis=0)  # nan is last
    count = known.sum(axis=0)
    columns = np.arange(values.shape[1])
    low, high = ordered[np.maximum(count - 1, 0) // 2, columns], ordered[count // 2, columns]
    return np.asarray(np.where(count % 2 > 0, low, (low + high) / 2))
