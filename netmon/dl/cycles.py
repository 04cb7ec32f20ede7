# SPDX-License-Identifier: Apache-2.0
"""Training steps out of the calls that a process makes into its training library.

Every step hands the same gradients over, in whatever order, so a step begins where a name comes that the current
one has had already. The first step found may begin too early, with names that never come again (a metric averaged
before training); so it is told only when the second begins, from the first call with that second step's first name.
"""

from dataclasses import dataclass, field

from netmon.records import STEP_ENQUEUE, Moment, Table

Boundary = tuple[int, Moment, int]
"""(iteration, moment, time_ns)"""


@dataclass
class CycleDetector:
    """The steps of one process. Feed it in order of time; it numbers them from 0."""

    iteration: int = -1
    _first_seen_ns: dict[int, int] = field(default_factory=dict)  # name → when, in the current cycle
    _last_wait_ns: int = 0

    def feed(self, steps: Table) -> list[Boundary]:
        """steps: dtype STEP, of one process → the boundaries that are known now.

        LAST_WAIT of an iteration is known when the next one begins, or at `finish`. This walks calls per tensor.
        """
        boundaries: list[Boundary] = []
        for time_ns, name, _, kind in steps.tolist():
            if kind != STEP_ENQUEUE:
                self._last_wait_ns = time_ns
            elif name not in self._first_seen_ns:
                self._first_seen_ns[name] = time_ns
            else:
                boundaries += self._begin(name, time_ns)
        return boundaries

    def _begin(self, name: int, time_ns: int) -> list[Boundary]:
        boundaries: list[Boundary] = []
        if self.iteration < 0:
            self.iteration = 0
            boundaries.append((0, Moment.FIRST_ENQUEUE, self._first_seen_ns[name]))
        boundaries += self.finish()
        self.iteration += 1
        self._first_seen_ns = {name: time_ns}
        return [*boundaries, (self.iteration, Moment.FIRST_ENQUEUE, time_ns)]

    def finish(self) -> list[Boundary]:
        """The end of the communication of the current iteration, as far as it is known."""
        last, self._last_wait_ns = self._last_wait_ns, 0
        return [(self.iteration, Moment.LAST_WAIT, last)] if last and self.iteration >= 0 else []
