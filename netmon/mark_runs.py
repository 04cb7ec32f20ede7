# SPDX-License-Identifier: Apache-2.0
"""The marks of one rank in a batch as columns: there are thousands in a second, and nobody asks for each one."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from netmon.records import Mark, Moment, Source

whose = attrgetter("job", "rank", "size", "pid", "source", "parameters", "relative", "gradient_bytes", "job_name")
"""What a mark, as a record or as a message, has in common with the others of a run, in the order of MarkRun."""


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

    def marks(self) -> list[Mark]:
        """One by one."""
        whose = self.job, self.rank, self.size, self.pid
        about = self.parameters, self.relative, self.gradient_bytes, self.job_name
        told = zip(self.iterations, self.moments, self.times_ns, self.errors_ns, strict=True)
        return [
            Mark(*whose, iteration, Moment(moment), time_ns, self.source, error_ns, *about)
            for iteration, moment, time_ns, error_ns in told
        ]


def mark_runs(marks: Iterable[Mark]) -> list[MarkRun]:
    """The reverse of MarkRun.marks, of marks of any ranks, in their order."""
    runs = []
    for who, own in groupby(marks, whose):
        told = [(int(one.moment), one.iteration, one.time_ns, one.error_ns) for one in own]
        runs.append(MarkRun(*who, *(list(column) for column in zip(*told, strict=True))))
    return runs


def marks_of(runs: Iterable[MarkRun]) -> list[Mark]:
    """All marks of several runs."""
    return [mark for run in runs for mark in run.marks()]
