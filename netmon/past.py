# SPDX-License-Identifier: Apache-2.0
"""What a viewer sees of the past: when iterations were, and frames of single moments. Plain types; UTC epoch, ns."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from netmon.records import Table
from netmon.views import GroupLine, RankTimes, Snapshot, Verdict

if TYPE_CHECKING:
    import pyarrow as pa

STEP_TIMES = np.dtype(
    [
        ("number", "<i8"),
        ("start_ns", "<i8"),  # of the first rank
        ("end_ns", "<i8"),  # of the last
        ("longest_ns", "<i8"),  # the slowest rank's duration
        ("usual_ns", "<i8"),  # how long it usually takes, as its verdict says; 0: not known
        ("relative", "?"),  # its number counts from when somebody began to look
        ("whole", "?"),  # every rank that the job had has a row
        ("shared", "?"),  # some rank's host carried foreign traffic, or it is not known yet
        ("changed", "?"),  # the job has changed its pace with it
    ]
)
"""One iteration of a job, all its ranks. Rows are in the order of their ends."""

HOUR_NS = 3_600_000_000_000


RECENT, DROPPED = ".netmon/recent", ".netmon/dropped"
"""Below a dataset's DIR. RECENT/TABLE/date=…/hour=…/ROLL/FILE: rows of the last minutes, in small files. Those of one
ROLL become TABLE/date=…/hour=…/ROLL.parquet, which never changes; from when it is there, it counts and they do not.
DROPPED/TABLE/date=…/hour=…/FILE: for ten minutes what is not to be kept any more."""

WRITER = ".collector.lock"
"""In a dataset's DIR: whoever writes the dataset has it locked."""


@dataclass(frozen=True)
class RankSpan:
    """One rank's iteration on the time axis."""

    rank: int
    host: str
    start_ns: int
    end_ns: int
    comm_start_ns: int = 0  # first gradient handed over; 0: unknown
    comm_end_ns: int = 0  # last one reduced; 0: unknown


@dataclass(frozen=True)
class PastSteps:
    """The iterations that can be gone back to."""

    jobs: Mapping[str, Table]  # by job, dtype STEP_TIMES
    verdicts: Sequence[Verdict] = ()  # on those that stood out, oldest first
    names: Mapping[str, str] = field(default_factory=dict)  # what people call the jobs
    written: bool = True  # by somebody still: more may come

    def newest_ns(self) -> int:
        """The end of the last iteration of any job; 0: there is none."""
        return max((end_ns for end_ns, _ in self.ends().values()), default=0)

    def go_on(self) -> dict[str, tuple[int, int]]:
        """`ends`, of jobs whose incidents may go on."""
        return self.ends() if self.written else {}

    def ends(self) -> dict[str, tuple[int, int]]:
        """By job, end and number of its last iteration."""
        return {job: (int(rows["end_ns"][-1]), int(rows["number"][-1])) for job, rows in self.jobs.items() if len(rows)}


@dataclass(frozen=True)
class Frame:
    """What was on the links in a span of time, as a snapshot at its end; links' rates are of columns in that span."""

    since_ns: int
    until_ns: int
    snapshot: Snapshot
    spans: tuple[RankSpan, ...] = ()  # of the job that was requested
    basis: str = ""  # what the rates rest on: "buckets of 10 µs, from the hosts' recorders"
    gaps: tuple[str, ...] = ()  # a sentence each on what is missing, and why


@dataclass(frozen=True)
class RowQuery:
    """Rows of one table of a dataset: those that touch [since, until), UTC. A table without times has all its rows."""

    table: str
    columns: Sequence[str] = ()  # those that the dataset lacks are left out; none: all
    since_ns: int = 0
    until_ns: int = 1 << 62
    among: Mapping[str, Sequence[str | int]] = field(default_factory=dict)  # by column, the values that count


TABLES = ("iterations", "verdicts", "buckets", "full", "flows", "ledger", "sessions", "collectives")
"""Those that can be wanted."""


class Rows(Protocol):
    """Where rows of a dataset can be had from."""

    name: str  # of the dataset, or of the collector that writes it

    def newest_ns(self) -> int:
        """When the newest of its iterations ended; blocks. Raises NetmonError where there is none."""

    def written(self) -> bool:
        """Whether somebody may still write more of them."""

    def batches(self, wanted: RowQuery) -> Iterator["pa.RecordBatch"]:
        """The rows; none where there is no such table. Blocks for each. Raises NetmonError."""

    def judged(self, since_ns: int) -> Sequence[Verdict]:
        """Verdicts made now on steps since then (UTC), where none are stored; some at most. Blocks."""

    def explained(self, job: str, iteration: int) -> Sequence[tuple[Verdict, Sequence[RankTimes]]]:
        """Where the time of that iteration went, of each of that number; none where nobody knows. Blocks."""


class Past(Protocol):
    """Where the past can be had from."""

    def steps(self) -> PastSteps:
        """The iterations of the last hour; blocks. Raises NetmonError."""

    def frame(self, job: str, number: int, since_ns: int, until_ns: int) -> Frame:
        """What happened around an iteration in a span of time, which lies within or around it; blocks.

        Raises NetmonError.
        """

    def times(self, job: str, number: int, end_ns: int) -> tuple[RankTimes, ...]:
        """Where the time of an iteration went that stood out, rank by rank; none where nobody knows. Blocks.

        end_ns: of the iteration, for a job may have begun anew. Raises NetmonError.
        """

    def groups(self, job: str) -> Sequence[GroupLine]:
        """What its groups of ranks were used for in its last minute; blocks. None where nobody tells of calls.

        Raises NetmonError.
        """
