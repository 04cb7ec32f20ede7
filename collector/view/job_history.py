# SPDX-License-Identifier: Apache-2.0
"""The recent iterations of one job's ranks, in tables of bounded length."""

import numpy as np
import numpy.typing as npt

from collector.view.groups import groups
from netmon.dl.account import Tally
from netmon.dl.iterations import Iteration
from netmon.dl.verdict import RankSteps
from netmon.records import Table

_ENDED = np.dtype([("number", "<i8"), ("rank", "<i8"), ("duration_ns", "<i8")])
_ACCOUNTED = "exposed_ns", "communication_ns", "dl_bytes", "other_tx_bytes", "other_rx_bytes"
_STEP = np.dtype([*_ENDED.descr, *((name, "<i8") for name in _ACCOUNTED)])
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

    def add(self, row: tuple[object, ...], ranks: int) -> int:
        """Put it in; returns its place."""
        limit = min(self._per_rank * max(ranks, 1), _MOST)
        if self._next == len(self._rows):
            if self.count < limit:
                self._rows = np.concatenate([self._rows, np.zeros(len(self._rows), self._rows.dtype)])
            else:
                self._next = 0
        elif self._next >= limit and self.count >= limit:
            self._next = 0
        place = self._next
        self._rows[place] = row
        self._next, self.count = place + 1, max(self.count, place + 1)
        return place

    def drop(self, rank: int) -> None:
        """The rows of a rank are nobody's."""
        self.rows["rank"][self.rows["rank"] == rank] = _NOBODY


class JobHistory:
    """What a job's ranks have done lately."""

    def __init__(self, recent: int, explained: int) -> None:
        """Begin empty; recent, explained: iterations of each rank whose durations, and whose accounts, are kept."""
        self._ended, self._steps = _Ring(_ENDED, recent), _Ring(_STEP, explained)
        self._others: list[str] = []  # whose cross traffic was the most, by place in _steps
        self._hosts: list[str] = []

    def end(self, iteration: Iteration, ranks: int) -> None:
        """An iteration has ended."""
        self._ended.add((iteration.number, iteration.rank, iteration.end_ns - iteration.start_ns), ranks)

    def account(self, host: str, iteration: Iteration, tally: Tally, ranks: int) -> None:
        """An iteration's rows have settled."""
        ended = iteration.number, iteration.rank, iteration.end_ns - iteration.start_ns
        waited = iteration.exposed_ns, iteration.communication_ns
        moved = max(tally.dl_tx_bytes, tally.dl_rx_bytes), tally.cross_top_tx_bytes, tally.cross_top_rx_bytes
        place = self._steps.add((*ended, *waited, *moved), ranks)
        if place == len(self._others):
            self._others.append("")
            self._hosts.append("")
        self._others[place], self._hosts[place] = tally.cross_top, host

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

    def usual_ns(self, size: int, fewest: int) -> float:
        """Median duration of iterations that are accounted for; nan below `fewest`."""
        rows = self._steps.rows
        durations = rows["duration_ns"][self._members(rows, size)]
        return float(np.median(durations)) if len(durations) >= fewest else float("nan")

    def slowest(self, size: int) -> tuple[int, int]:
        """(the iteration that took the longest of those that are accounted for, of how many ranks it is)."""
        rows = self._steps.rows
        members = self._members(rows, size)
        if not members.any():
            return -1, 0
        number = int(rows["number"][np.where(members, rows["duration_ns"], -1).argmax()])
        return number, int(np.count_nonzero(members & (rows["number"] == number)))

    def steps(self, size: int) -> RankSteps:
        """Those that are accounted for, of ranks below `size`."""
        members = self._members(self._steps.rows, size)
        inside, rows = np.flatnonzero(members), self._steps.rows[members]
        everybody = len(inside) == len(members)
        return RankSteps(
            **{name: rows[name] for name in _STEP.names or ()},
            other=self._others if everybody else [self._others[place] for place in inside.tolist()],
            host=self._hosts if everybody else [self._hosts[place] for place in inside.tolist()],
        )

    @staticmethod
    def _members(rows: Table, size: int) -> npt.NDArray[np.bool_]:
        members: npt.NDArray[np.bool_] = (rows["rank"] >= 0) & (rows["rank"] < size)
        return members
