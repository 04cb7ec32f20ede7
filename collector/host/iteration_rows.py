# SPDX-License-Identifier: Apache-2.0
"""Iterations of ranks of many hosts as columns: there are thousands in a second, and few of them are looked at."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from netmon.dl.account import Tally
from netmon.dl.grouped import starts
from netmon.dl.iterations import Iteration
from netmon.records import Moment, Source, Table

_Numbers = npt.NDArray[np.int64]

TIMES = ("start_ns", "end_ns", "error_ns", "comm_start_ns", "comm_end_ns", "wait_start_ns")
_ENUMS = {"source": Source, "start_moment": Moment, "end_moment": Moment}
VARYING = ("number", *TIMES, *_ENUMS)
"""Fields of Iteration that are another one's in every row."""

_COLUMNS = ("session", "whose", *VARYING)


class Common:
    """What is the same for all iterations of a rank, of many ranks; never changed."""

    def __init__(self, ranks: Sequence[Iteration]) -> None:
        """Of each rank any iteration."""
        self._ranks = ranks
        self._columns: dict[str, npt.NDArray[Any]] = {}
        self._jobs: tuple[list[str], _Numbers] | None = None

    def __len__(self) -> int:
        return len(self._ranks)

    def __getitem__(self, which: int) -> Iteration:
        return self._ranks[which]

    def __iter__(self) -> Iterator[Iteration]:
        return iter(self._ranks)

    def column(self, name: str) -> npt.NDArray[Any]:
        if name not in self._columns:
            kind = np.bool_ if name == "relative" else np.int64
            self._columns[name] = np.array([getattr(one, name) for one in self._ranks], kind)
        return self._columns[name]

    @property
    def jobs(self) -> tuple[list[str], _Numbers]:
        """The names of their jobs, and which of them is each one's."""
        if self._jobs is None:
            numbers: dict[str, int] = {}
            of = [numbers.setdefault(one.job, len(numbers)) for one in self._ranks]
            self._jobs = list(numbers), np.array(of, np.int64)
        return self._jobs


@dataclass(frozen=True)
class IterationRows:
    """The arrays have one length. What is the same for all iterations of a rank stands in `about` once."""

    about: Common
    session: _Numbers  # of the session in the host stage
    whose: _Numbers  # index into about
    number: _Numbers
    start_ns: _Numbers  # these in the mono clock of the host, as in Iteration
    end_ns: _Numbers
    error_ns: _Numbers
    comm_start_ns: _Numbers
    comm_end_ns: _Numbers
    wait_start_ns: _Numbers
    source: _Numbers
    start_moment: _Numbers
    end_moment: _Numbers

    def __len__(self) -> int:
        return len(self.session)

    def take(self, rows: "npt.NDArray[np.integer[Any]] | npt.NDArray[np.bool_]") -> "IterationRows":
        if rows.dtype == np.bool_:
            rows = np.flatnonzero(rows)
        return IterationRows(self.about, *(getattr(self, name).take(rows) for name in _COLUMNS))

    def table(self, dtype: "np.dtype[np.void]", names: Iterable[str] = ()) -> Table:
        """These columns, or all of the dtype's, of what differs from row to row and what is the same for a rank."""
        table = np.zeros(len(self), dtype)
        for name in names or dtype.names or ():
            column = getattr(self, name, None)
            table[name] = self.each_of(name) if column is None else column
        return table

    def iteration(self, row: int) -> Iteration:
        values: dict[str, Any] = {name: int(getattr(self, name)[row]) for name in VARYING}
        values |= {name: kind(values[name]) for name, kind in _ENUMS.items()}
        return self.about[int(self.whose[row])]._replace(**values)

    def each(self) -> list[Iteration]:
        return [self.iteration(row) for row in range(len(self))]

    @property
    def duration_ns(self) -> _Numbers:
        return self.end_ns - self.start_ns

    @property
    def exposed_ns(self) -> _Numbers:
        known = (self.wait_start_ns > 0) & (self.comm_end_ns > 0)
        return np.where(known, np.maximum(self.comm_end_ns - self.wait_start_ns, 0), -1)

    def each_of(self, name: str) -> npt.NDArray[Any]:
        """A number in Iteration that is the same for all of a rank, of each row."""
        found: npt.NDArray[Any] = self.about.column(name)[self.whose]
        return found

    def numbers(self, number_of: Callable[[str], int]) -> _Numbers:
        """The number of each row's job, as reported by its name."""
        names, of = self.about.jobs
        found: _Numbers = np.array([number_of(name) for name in names], np.int64)[of[self.whose]]
        return found

    def by_job(self) -> Iterator[tuple[str, "npt.NDArray[np.intp]"]]:
        """The rows of each job, in their order."""
        if not len(self):
            return
        names, of = self.about.jobs
        job = of[self.whose]
        order = np.argsort(job, kind="stable")
        first = starts(job[order])
        spans = pairwise([*first.tolist(), len(order)])
        for one, (begin, end) in zip(job[order[first]].tolist(), spans, strict=True):
            yield names[one], order[begin:end]


NONE = IterationRows(Common(()), *(np.empty(0, np.int64) for _ in _COLUMNS))


def joined(tables: Sequence[IterationRows]) -> IterationRows:
    tables = [table for table in tables if len(table)]
    if len(tables) < 2:
        return tables[0] if tables else NONE
    columns = {name: np.concatenate([getattr(table, name) for table in tables]) for name in _COLUMNS}
    shifts = np.cumsum([0, *(len(table.about) for table in tables[:-1])])
    columns["whose"] += np.repeat(shifts, [len(table) for table in tables])
    return IterationRows(Common(list(chain.from_iterable(table.about for table in tables))), **columns)


def goes_on(rows: IterationRows, rank: _Numbers, last: Mapping[int, int]) -> bool:
    """Whether iterations of one job follow each other, and those before; last: number of each rank that is known."""
    order = np.argsort(rank, kind="stable")
    first = starts(rank[order])
    number = rows.number[order]
    ascends = np.diff(number) > 0
    ascends[first[1:] - 1] = True
    begins = zip(rank[order][first].tolist(), number[first].tolist(), strict=True)
    return bool(ascends.all()) and all(one in last and now > last[one] for one, now in begins)


class Ring:
    """The last rows of iterations, in a table of bounded length whose columns include `rank`."""

    def __init__(self, dtype: "np.dtype[np.void]", per_rank: int, most: int) -> None:
        """The oldest rows give way once there are `per_rank` of each rank, or `most`."""
        self._per_rank, self._most = per_rank, most
        self._rows = np.zeros(64, dtype)
        self._next, self.count = 0, 0

    @property
    def rows(self) -> Table:
        """In no order."""
        return self._rows[: self.count]

    def add(self, rows: Table, ranks: int) -> None:
        """Put them in, in their order."""
        limit = min(self._per_rank * max(ranks, 1), self._most)
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
        """The rows of a rank are nobody's: rank −1."""
        self.rows["rank"][self.rows["rank"] == rank] = -1


@dataclass(frozen=True)
class Accounted:
    """Iterations with the account of their bytes, as columns of one length by the fields of Tally."""

    rows: IterationRows
    tallies: Mapping[str, npt.NDArray[Any]]

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: "npt.NDArray[np.integer[Any]] | npt.NDArray[np.bool_]") -> "Accounted":
        return Accounted(self.rows.take(rows), {name: column[rows] for name, column in self.tallies.items()})

    def tally(self, row: int) -> Tally:
        return Tally(
            *(
                self.tallies[name][row].item() if name != "cross_top" else self.tallies[name][row]
                for name in Tally._fields
            )
        )

    def each(self) -> list[tuple[Iteration, Tally]]:
        return [(self.rows.iteration(row), self.tally(row)) for row in range(len(self))]


def all_accounted(tables: Sequence[Accounted]) -> Accounted:
    """One after the other; at least one."""
    if len(tables) == 1:
        return tables[0]
    names = tables[0].tallies
    columns = {name: np.concatenate([table.tallies[name] for table in tables]) for name in names}
    return Accounted(joined([table.rows for table in tables]), columns)
