# SPDX-License-Identifier: Apache-2.0
"""Marks as columns, of one rank in a batch or of many batches: there are thousands in a second."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from netmon.records import Mark, Moment, Source

_Numbers = npt.NDArray[np.int64]

whose = attrgetter("job", "rank", "size", "pid", "source", "parameters", "relative", "gradient_bytes", "job_name")
"""What a mark, as a record or as a message, has in common with the others of a run, in the order of MarkRun."""

Whose = tuple[str, int, int, int, Source, int, bool, int, str]
"""The same of a mark."""


class MarkRun(NamedTuple):
    """Marks that follow each other and differ in nothing but the sequences, which have an entry each; at least one."""

    job: str
    rank: int
    size: int
    pid: int
    source: Source
    parameters: int
    relative: bool
    gradient_bytes: int
    job_name: str
    moments: Sequence[int]  # of Moment
    iterations: Sequence[int]
    times_ns: Sequence[int]
    errors_ns: Sequence[int]

    @property
    def whose(self) -> Whose:
        return self[:9]

    def marks(self) -> list[Mark]:
        """One by one."""
        whose = self.job, self.rank, self.size, self.pid
        about = self.parameters, self.relative, self.gradient_bytes, self.job_name
        columns = zip(self.iterations, self.moments, self.times_ns, self.errors_ns, strict=True)
        return [
            Mark(*whose, iteration, Moment(moment), time_ns, self.source, error_ns, *about)
            for iteration, moment, time_ns, error_ns in columns
        ]


def mark_runs(marks: Iterable[Mark]) -> list[MarkRun]:
    """The reverse of MarkRun.marks, of marks of any ranks, in their order."""
    runs = []
    for who, own in groupby(marks, whose):
        rows = [(int(one.moment), one.iteration, one.time_ns, one.error_ns) for one in own]
        runs.append(MarkRun(*who, *(list(column) for column in zip(*rows, strict=True))))
    return runs


def marks_of(runs: Iterable[MarkRun]) -> list[Mark]:
    return [mark for run in runs for mark in run.marks()]


@dataclass(frozen=True)
class MarkTable:
    """Marks of many batches, in their order; the arrays have one length."""

    about: Sequence[Whose]
    batch: _Numbers  # ascending
    whose: _Numbers  # index into about
    moment: _Numbers
    iteration: _Numbers
    time_ns: _Numbers
    error_ns: _Numbers

    def __len__(self) -> int:
        return len(self.batch)

    @property
    def columns(self) -> tuple[_Numbers, ...]:
        """The arrays, in their order."""
        return self.batch, self.whose, self.moment, self.iteration, self.time_ns, self.error_ns

    def take(self, rows: npt.NDArray[np.integer] | npt.NDArray[np.bool_]) -> "MarkTable":
        """Some of them, in this order."""
        return MarkTable(self.about, *(column[rows] for column in self.columns))

    def starts(self) -> npt.NDArray[np.intp]:
        """Where another rank's marks begin, or another batch's."""
        if not len(self):
            return np.empty(0, np.intp)
        changes = (self.batch[1:] != self.batch[:-1]) | (self.whose[1:] != self.whose[:-1])
        return np.flatnonzero(np.append(True, changes))

    def runs(self) -> list[tuple[int, MarkRun]]:
        """Each batch's marks, rank by rank."""
        first = self.starts()
        batch, who = self.batch[first].tolist(), self.whose[first].tolist()
        columns = [column.tolist() for column in self.columns[2:]]
        spans = pairwise([*first.tolist(), len(self)])
        return [
            (one, MarkRun(*self.about[rank], *(column[begin:end] for column in columns)))
            for one, rank, (begin, end) in zip(batch, who, spans, strict=True)
        ]


def mark_table(runs: Iterable[tuple[int, MarkRun]]) -> MarkTable:
    """The reverse of MarkTable.runs."""
    known: dict[Whose, int] = {}
    rows = [
        (batch, known.setdefault(run.whose, len(known)), *one)
        for batch, run in runs
        for one in zip(run.moments, run.iterations, run.times_ns, run.errors_ns, strict=True)
    ]
    columns = np.array(rows, np.int64).reshape(-1, 6).T
    return MarkTable(list(known), *(np.ascontiguousarray(column) for column in columns))
