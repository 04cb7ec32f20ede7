# SPDX-License-Identifier: Apache-2.0
"""The ranks of one host, as others ask for them."""

from collections.abc import Collection

from collector.host.rank import NEVER, Rank, Resumed, Scores, Steps
from collector.host.rejected_marks import Key
from collector.messages import Count
from netmon.dl.iterations import Iteration
from netmon.dl.numbering import Trust
from netmon.records import Moment, Source

# --- Iterations of a host's ranks under the numbers that all ranks of their job have in common.


class IterationNumbers:
    """What the job stage has said of the ranks' numbers."""

    def __init__(self, parameters: int) -> None:
        """parameters: of models that do not report theirs."""
        self._parameters = parameters

    @staticmethod
    def of(rank: Rank) -> Count:
        """How the rank is counted."""
        return rank.settled_count or rank.count

    def about(self, rank: Rank) -> Iteration:
        """What all iterations of a rank have in common whose only source is what it is."""
        tracker = rank.tracker
        return Iteration(
            *(rank.name, rank.number, tracker.size, 0, 0, 0, Moment.STEP_START, Moment.STEP_END),
            *(tracker.source or Source.HOOK, 0, tracker.relative and self.of(rank).relative),
            tracker.parameters or self._parameters,
            gradient_bytes=tracker.gradient_bytes,
            parameters_basis=tracker.parameters_basis or ("option" if self._parameters else ""),
            job_name=tracker.job_name,
        )

    def whole(self, rank: Rank, iteration: Iteration) -> Iteration:
        """An iteration that has ended, as its job calls and counts it, with all that is known of it now.

        Another source may tell more of its communication until its rows have settled.
        """
        one = iteration
        _, shift, relative = self.of(rank)
        return Iteration(  # thousands a second: _replace would take twice as long
            *(rank.name, one.rank, one.size, one.number + shift, one.start_ns, one.end_ns),
            *(one.start_moment, one.end_moment, one.source, one.error_ns, one.relative and relative),
            *(one.parameters or self._parameters, *rank.tracker.communication(one.start_ns, one.end_ns)),
            one.gradient_bytes,
            one.parameters_basis or ("option" if self._parameters else ""),
            one.job_name,
        )


# --- known ranks


LONGEST_NEED_NS = 30_000_000_000  # an older open iteration no longer holds back acknowledgements


class KnownRanks:
    """Those of one host and session; `Ranks` changes them."""

    def __init__(self, parameters: int) -> None:
        """Begin without ranks; parameters: of models that do not report theirs."""
        self._counting = IterationNumbers(parameters)
        self._ranks: dict[Key, Rank] = {}
        self._past: list[Rank] = []  # whose processes have joined as the same rank again; their rows have not settled
        self._gone: dict[Key, None] = {}
        self._left: dict[tuple[str, int], tuple[Resumed, Scores]] = {}  # of the last process that was it
        self._needed_ns = NEVER  # start of the earliest iteration that may still ask for the account

    def _all(self) -> Collection[Rank]:
        return [*self._past, *self._ranks.values()] if self._past else self._ranks.values()

    def _stepping(self) -> list[Rank]:
        return [rank for rank in self._all() if rank.name]

    def _loose(self) -> list[Rank]:
        """The ranks outside the rank table."""
        return [rank for rank in self._all() if rank.row < 0]

    @property
    def loose(self) -> bool:
        """Whether any rank is outside the rank table."""
        return any(rank.row < 0 for rank in self._all())

    def stepping_jobs(self) -> set[str]:
        """The jobs with a rank here that has not left."""
        hidden = self._hidden()
        return {rank.name for rank in self._stepping() if not (rank.leaving() or rank.serial in hidden)}

    def _hidden(self) -> set[int]:
        """Serials of those whose process has left: their traffic is understood late."""
        traffic = [rank for rank in self._stepping() if not rank.pid]
        left = {(job, number) for job, number, pid in self._gone if pid} if traffic else set()
        return {rank.serial for rank in traffic if (rank.name, rank.number) in left}

    def names(self) -> list[tuple[str, int]]:
        """(job, rank) of each rank."""
        return [(rank.name, rank.number) for rank in self._stepping()]

    def steps(self) -> list[Steps]:
        """What rows have to know of each rank outside the rank table."""
        hidden = self._hidden()
        return [
            Steps(
                *(rank.name, rank.number, rank.pid != 0, rank.serial in hidden),
                *(*rank.present(), self._counting.of(rank).shift, rank.tracker.spans()),
            )
            for rank in self._loose()
            if rank.name
        ]

    def scores(self) -> tuple[Scores, Scores]:
        """(job, score) of each rank and source that does not decide; the last ones of ranks that have gone."""
        past = [score for _, scores in self._left.values() for score in scores]
        return [score for rank in self._stepping() for score in rank.scores()], past

    @property
    def busy(self) -> bool:
        """Whether there is a rank, or was one whose rows have not settled."""
        return bool(self._ranks or self._past)

    def waiting_ns(self) -> tuple[int, int]:
        """As Rank.due_ns of the first one, and since when the account may be requested (mono); NEVER: not at all."""
        return min((rank.due_ns() for rank in self._loose()), default=NEVER), self._needed_ns

    def states(self) -> dict[tuple[str, int], tuple[Trust, int]]:
        """By job and rank, what its count is taken up again by."""
        return {(rank.name, rank.number): (rank.count.trust, rank.count.shift) for rank in self._stepping()}

    def needed_since(self, horizon_ns: int) -> int | None:
        """Start of the earliest iteration that is still open, unless it is too old to wait for (mono ns).

        Of ranks outside the rank table; for the others see RankTable.needed_ns. What only the traffic shows holds
        nothing back: it comes late, by a guess, and of whoever looks like a rank.
        """
        ranks = [rank for rank in self._loose() if rank.pid and rank.tracker.source != Source.INFERRED]
        times = [time for time in (rank.needed_since() for rank in ranks) if time is not None]
        return min((time for time in times if time > horizon_ns - LONGEST_NEED_NS), default=None)
