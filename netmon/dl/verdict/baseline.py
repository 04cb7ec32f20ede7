# SPDX-License-Identifier: Apache-2.0
"""The iterations of a job as a matrix of iterations and ranks, and the baseline among them."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from netmon.dl.verdict.change import changes
from netmon.dl.verdict.evidence import Steps

FEWEST = 5
"""Iterations from which on there is a baseline."""

_MOST = 200  # iterations that make it: the nearest

_Floats = npt.NDArray[np.float64]


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

    @cached_property
    def duration(self) -> _Floats:
        """Of each rank."""
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
    return Matrix(
        *(base, numbers, ranks, host, filled(steps.start_ns - base), filled(steps.end_ns - base)),
        comm_start=filled(steps.comm_start_ns - base, steps.comm_start_ns > 0),
        comm_end=filled(steps.comm_end_ns - base, steps.comm_end_ns > 0),
        exposed=filled(steps.exposed_ns, steps.exposed_ns >= 0),
        error=filled(steps.error_ns),
        shared=shared,
    )


def baseline_rows(table: Matrix, row: int) -> npt.NDArray[np.intp]:
    """The iterations that one is compared with: the nearest 200 of those that are a measure at its time; of one with
    which the job changes its pace, before it. None where there are too few."""
    chosen = measure(table, int(table.pace[row]) - (row in table.changes), row)
    return np.sort(chosen[np.argsort(np.abs(chosen - row), kind="stable")[:_MOST]])


def measure(table: Matrix, pace: int, but: int | None = None) -> npt.NDArray[np.intp]:
    """The iterations of one pace that are a measure: whole, not the job's first, those that met no foreign traffic if
    there are enough of them. None where there are too few. but: one that is left out."""
    others = table.whole & (table.pace == pace)
    if but is not None:
        others[but] = False
    if others.sum() > FEWEST:
        others[0] = False  # connections begin slowly
    quiet = others & ~table.shared.any(axis=1)
    chosen = np.flatnonzero(quiet if quiet.sum() >= FEWEST else others)
    return chosen if len(chosen) >= FEWEST else chosen[:0]


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
