# SPDX-License-Identifier: Apache-2.0
"""Iterations of a host's ranks under the numbers that all ranks of their job have in common."""

from collector.host.rank import Rank
from collector.tick_messages import Count
from netmon.dl.iterations import Iteration


class Counting:
    """What the job stage has said of the ranks' numbers."""

    def __init__(self, parameters: int) -> None:
        """parameters: of models that do not tell theirs."""
        self._parameters = parameters

    @staticmethod
    def of(rank: Rank) -> Count:
        """How the rank is counted."""
        return rank.settled_count or rank.count

    def whole(self, rank: Rank, iteration: Iteration) -> Iteration:
        """An iteration that has ended, as its job calls and counts it, with all that is known of it now.

        Another source may tell more of its communication until its rows have settled.
        """
        first, last, wait = rank.tracker.communication(iteration.start_ns, iteration.end_ns)
        _, shift, relative = self.of(rank)
        return iteration._replace(
            job=rank.name,
            number=iteration.number + shift,
            relative=iteration.relative and relative,
            parameters=iteration.parameters or self._parameters,
            parameters_basis=iteration.parameters_basis or ("option" if self._parameters else ""),
            comm_start_ns=first,
            comm_end_ns=last,
            wait_start_ns=wait,
        )
