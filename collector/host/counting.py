# SPDX-License-Identifier: Apache-2.0
"""Iterations of a host's ranks under the numbers that all ranks of their job have in common."""

from collector.host.rank import Rank
from collector.jobs.common_numbers import Numbers
from netmon.dl.iterations import Iteration


class Counting:
    """What the common numbers say of ranks, asked again only when they have changed."""

    def __init__(self, numbers: Numbers, parameters: int) -> None:
        """parameters: of models that do not tell theirs."""
        self._numbers, self._parameters = numbers, parameters

    def of(self, rank: Rank) -> tuple[int, bool]:
        """What to add to the rank's own numbers, and whether they count only from when somebody began to look."""
        if rank.settled_count:
            return rank.settled_count
        changes = self._numbers.changes()
        if rank.counted_at != changes:
            whose = rank.name, rank.number
            rank.counted_at = changes
            rank.count = self._numbers.shift(*whose), self._numbers.relative(*whose)
        return rank.count

    def numbered(self, rank: Rank, iteration: Iteration) -> Iteration:
        """An iteration that has ended, as its job calls and counts it."""
        shift, relative = self.of(rank)
        relative &= iteration.relative
        if (rank.name, shift, relative) == (iteration.job, 0, iteration.relative):
            return iteration
        return iteration._replace(job=rank.name, number=iteration.number + shift, relative=relative)

    def whole(self, rank: Rank, iteration: Iteration) -> Iteration:
        """The same with all that is known of it, when its rows have settled."""
        first, last, wait = rank.tracker.communication(iteration.start_ns, iteration.end_ns)
        shift, relative = self.of(rank)
        return iteration._replace(
            job=rank.name,
            number=iteration.number + shift,
            relative=iteration.relative and relative,
            parameters=iteration.parameters or self._parameters,
            comm_start_ns=first,
            comm_end_ns=last,
            wait_start_ns=wait,
        )
