# SPDX-License-Identifier: Apache-2.0
"""Iterations of a host's ranks under the numbers that all ranks of their job have in common."""

from collector.host.rank import Rank
from collector.tick_messages import Count
from netmon.dl.iterations import Iteration
from netmon.records import Moment, Source


class Counting:
    """What the job stage has said of the ranks' numbers."""

    def __init__(self, parameters: int) -> None:
        """parameters: of models that do not tell theirs."""
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
