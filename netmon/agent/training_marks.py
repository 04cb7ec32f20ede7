# SPDX-License-Identifier: Apache-2.0
"""What the ranks on this host say and show of their steps: training scripts, calls of their libraries, timelines."""

from collections.abc import Iterable
from typing import Any

from netmon.agent.clock import Clock
from netmon.agent.counting import Counting
from netmon.agent.flow_owners import FlowOwners
from netmon.agent.flows import RecentMarks
from netmon.agent.markers import MarkSocket
from netmon.agent.steps import StepMarks
from netmon.agent.timeline import TimelineMarks
from netmon.kernel.training.timelines import Opened
from netmon.records import Mark

_EXPECTED_NS = 1_000_000_000  # after a mark, others are for so long


class TrainingMarks:
    """Marks that wait for a batch. One per agent."""

    def __init__(self, socket: MarkSocket, counting: Counting, owners: FlowOwners, clock: Clock) -> None:
        """socket: of training scripts; owners: told of marks before the flows that come with them."""
        self._socket, self._counting, self._owners, self._clock = socket, counting, owners, clock
        self._steps, self._timelines, self._recent = StepMarks(), TimelineMarks(), RecentMarks()
        self._waiting: list[Mark] = []
        self._marked_ns = 0

    def expected(self, now_ns: int) -> bool:
        """Whether there was one lately."""
        return now_ns - self._marked_ns < _EXPECTED_NS

    @property
    def waits(self) -> bool:
        """Whether there is something to take or to send."""
        return bool(self._waiting or len(self._counting.steps))

    def receive(self, now_ns: int) -> None:
        """Takes what scripts and libraries have told."""
        hooked, calls = self._socket.take(), self._counting.steps.take()
        marks = [*hooked, *self._steps.rename(hooked), *(self._steps.steps(calls) if len(calls) else ())]
        if hooked or len(calls):
            self._marked_ns = now_ns
        self._owners.marks(marks)
        self._waiting += marks

    def look(self, ranks: list[dict[str, Any]], timelines: Iterable[Opened], now_ns: int) -> None:
        """All processes that are ranks now, as StepMarks.ranks takes them, and the timelines that they have opened."""
        self._waiting += self._steps.ranks(ranks, now_ns)
        identities = self._steps.identities()
        self._waiting += self._timelines.retain(identities, now_ns)
        for opened in timelines:
            self._waiting += self._timelines.follow(opened, identities.get(opened.pid), now_ns)
        self._waiting += self._timelines.read(now_ns, self._clock.sample().offset_ns)

    def take(self) -> list[Mark]:
        """Those that wait: a batch carries them."""
        marks, self._waiting = self._waiting, []
        self._recent.add(marks)
        return marks

    def recent(self) -> tuple[Mark, ...]:
        """Of what was taken, that ranks have joined, and their steps under way: for whoever hears of them first."""
        return self._recent.all()

    @property
    def refused(self) -> int:
        """Marks, calls and timelines that led to nothing, since the start."""
        of_socket_and_calls = self._socket.refused + self._steps.refused + self._counting.steps_lost
        return of_socket_and_calls + self._timelines.refused

    def finish(self, now_ns: int) -> None:
        """The last ones of all ranks."""
        self._waiting += [*self._steps.finish(), *self._timelines.finish(now_ns, self._clock.sample().offset_ns)]

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()
