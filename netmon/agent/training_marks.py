# SPDX-License-Identifier: Apache-2.0
"""What the ranks on this host say and show of their steps: training scripts, calls of their libraries, timelines."""

import logging
from collections.abc import Iterable
from typing import Any

from netmon.agent.collectives import Collectives
from netmon.agent.counting import Counting
from netmon.agent.exchange import Clock
from netmon.agent.flow_owners import FlowOwners
from netmon.agent.markers import MarkSocket
from netmon.agent.steps import StepMarks
from netmon.agent.timeline import TimelineMarks
from netmon.agent.waits import Active
from netmon.dl.iterations import HostIterations
from netmon.kernel.training.timelines import Opened
from netmon.records import Mark, Training

log = logging.getLogger(__name__)

_EXPECTED_NS = 1_000_000_000  # after a mark, others are for so long


class TrainingMarks:
    """What of it waits for a batch, as iterations. One per agent."""

    def __init__(self, socket: MarkSocket, counting: Counting, owners: FlowOwners, clock: Clock) -> None:
        """socket: of training scripts; owners: told of marks before the flows that come with them."""
        self._socket, self._counting, self._owners, self._clock = socket, counting, owners, clock
        self._steps, self._timelines = StepMarks(), TimelineMarks()
        self.collectives: Collectives | None = None  # nobody asks
        self._iterations = HostIterations()
        self._waiting: list[Mark] = []
        self._marked_ns = 0
        self._said: set[str] = set()  # why marks have led to nothing

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
        if self.collectives and len(calls):
            self.collectives.add(calls)

    def look(self, ranks: list[dict[str, Any]], timelines: Iterable[Opened], now_ns: int) -> None:
        """All processes that are ranks now, as StepMarks.ranks takes them, and the timelines that they have opened."""
        self.receive(now_ns)  # what those have called that have gone since it was last asked for
        self._waiting += self._steps.ranks(ranks, now_ns)
        identities = self._steps.identities()
        self._waiting += self._timelines.retain(identities, now_ns)
        for opened in timelines:
            self._waiting += self._timelines.follow(opened, identities.get(opened.pid), now_ns)
        self._waiting += self._timelines.read(now_ns, self._clock.sample().offset_ns)

    def take(self) -> tuple[Training, list[Mark]]:
        """What a batch carries of it, and the marks that it was made of."""
        marks, self._waiting = self._waiting, []
        self._iterations.add(marks)
        training = self._iterations.take()
        for reason in self._iterations.unusable.keys() - self._said:
            self._said.add(reason)
            log.warning("marks %s lead to nothing; further ones are only counted", reason)
        return training, marks

    def active(self) -> list[Active]:
        """The ranks, and what their libraries are in the midst of."""
        return self._steps.active()

    def present(self) -> Training:
        """Of what was taken, who is there and the iterations under way: for whoever hears of them first."""
        return self._iterations.present()

    @property
    def refused(self) -> int:
        """Marks, calls and timelines that led to nothing, since the start."""
        of_socket_and_calls = self._socket.refused + self._steps.refused + self._counting.steps_lost
        return of_socket_and_calls + self._timelines.refused + self._iterations.unusable.total()

    def finish(self, now_ns: int) -> None:
        """The last ones of all ranks."""
        self._waiting += [*self._steps.finish(), *self._timelines.finish(now_ns, self._clock.sample().offset_ns)]

    def close(self) -> None:
        self._socket.close()
