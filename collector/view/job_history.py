# SPDX-License-Identifier: Apache-2.0
"""The recent iterations of one job's ranks, in tables of bounded length."""

from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt

from collector.host.iteration_rows import IterationRows
from collector.view.groups import groups
from netmon.records import Table
from netmon.views import STEP

_ENDED = np.dtype([("number", "<i8"), ("rank", "<i8"), ("duration_ns", "<i8")])
_MOMENTS = ("start_ns", "comm_start_ns", "wait_start_ns", "comm_end_ns", "end_ns")
_STEP = np.dtype([*((name, _ENDED[name].str) for name in _ENDED.names or ()), *((name, "<i8") for name in _MOMENTS)])
_FIRST = 64  # rows
_MOST = 16_384  # rows: of a job with many ranks fewer iterations are kept
_NOBODY = -1


class _Ring:
    """The last rows; oldest ones give way once there are `per_rank` of each rank, or _MOST."""

    def __init__(self, dtype: "np.dtype[np.void]", per_rank: int) -> None:
        self._per_rank = per_rank
        self._rows = np.zeros(_FIRST, dtype)
        self._next, self.count = 0, 0

    @property
    def rows(self) -> Table:
        """In no order."""
        return self._rows[: self.count]

    def add(self, rows: Table, ranks: int) -> None:
        """Put them in, in their order."""
        limit = min(self._per_rank * max(ranks, 1), _MOST)
        while len(rows):
            if self._next == len(self._rows) and self.count < limit:
                self._rows = np.concatenate([self._rows, np.zeros(len(self._rows), self._rows.dtype)])
            elif self._next >= min(limit, len(self._rows)):
                self._next = 0
            count = min(len(rows), min(limit, len(self._rows)) - self._next)
            self._rows[self._next : self._next + count] = rows[:count]
            self._next += count
            self.count, rows = max(self.count, self._next), rows[count:]

    def drop(self, rank: int) -> None:
        """The rows of a rank are nobody's."""
        self.rows["rank"][self.rows["rank"] == rank] = _NOBODY


class JobHistory:
    """What a job's ranks have done lately."""

    def __init__(self, recent: int, accounted: int) -> None:
        """Begin empty; recent, accounted: iterations of each rank whose durations are kept, as they end and settle."""
        self._ended, self._steps = _Ring(_STEP, recent), _Ring(_ENDED, accounted)

    def end(self, rows: IterationRows, ranks: int) -> None:
        """Iterations have ended."""
        rows_ended = np.empty(len(rows), _STEP)
        rows_ended["number"], rows_ended["rank"], rows_ended["duration_ns"] = (
            rows.number,
            rows.each_of("rank"),
            rows.duration_ns,
        )
        for name in _MOMENTS:
            rows_ended[name] = getattr(rows, name)
        self._ended.add(rows_ended, ranks)

    def account(self, rows: IterationRows, ranks: int) -> None:
        """The rows of iterations have settled."""
        rows_accounted = np.empty(len(rows), _ENDED)
        rows_accounted["number"], rows_accounted["rank"], rows_accounted["duration_ns"] = (
            rows.number,
            rows.each_of("rank"),
            rows.duration_ns,
        )
        self._steps.add(rows_accounted, ranks)

    def drop(self, rank: int) -> None:
        """A rank has begun anew: what it was is no measure of what it is."""
        self._ended.drop(rank)
        self._steps.drop(rank)

    def durations(self, size: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Of ranks below `size`: (all durations, the numbers of their iterations ascending, the slowest of each)."""
        rows = self._ended.rows
        members = self._members(rows, size)
        durations = rows["duration_ns"][members]
        numbers, of_row = groups(rows["number"][members])
        slowest = np.zeros(len(numbers), np.int64)
        np.maximum.at(slowest, of_row, durations)
        return durations, numbers, slowest

    def steps(self, since_ns: int, offsets_ns: Mapping[int, int]) -> Table:
        """Iterations, dtype netmon.views.STEP, that have ended since then (UTC).

        offsets_ns: UTC − mono of each rank's host; those of other ranks are left out.
        """
        ranks = np.array(sorted(offsets_ns), np.int64)
        offset = np.array([offsets_ns[rank] for rank in ranks.tolist()], np.int64)
        rows = self._ended.rows
        rows = rows[np.isin(rows["rank"], ranks)]
        utc = offset[np.searchsorted(ranks, rows["rank"])]
        late = rows["end_ns"] + utc >= since_ns
        rows, utc = rows[late], utc[late]
        steps = np.zeros(len(rows), STEP)
        steps["rank"], steps["number"] = rows["rank"], rows["number"]
        for name in _MOMENTS:
            known = (rows[name] > 0) | (name in ("start_ns", "end_ns"))
            steps[name] = np.where(known, rows[name] + utc, 0)
        return steps

    def baseline_ns(self, size: int, ranks: Collection[int], fewest: int) -> float:
        """Median duration of iterations that are accounted for; nan where there are fewer of one of these ranks."""
        rows = self._steps.rows
        members = self._members(rows, size)
        known, count = np.unique(rows["rank"][members], return_counts=True)
        if not members.any() or not np.isin(list(ranks), known[count >= fewest]).all():
            return float("nan")
        return float(np.median(rows["duration_ns"][members]))

    @staticmethod
    def _members(rows: Table, size: int) -> npt.NDArray[np.bool_]:
        members: npt.NDArray[np.bool_] = (rows["rank"] >= 0) & (rows["rank"] < size)
        return members
