# SPDX-License-Identifier: Apache-2.0
"""One process that trains: its marks, and what of its iterations still waits."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from netmon.dl.iterations import Iteration, IterationTracker
from netmon.records import Source


class Resumed(NamedTuple):
    """How far a rank has come."""

    size: int
    parameters: int
    end_ns: int  # of its last iteration, mono
    number: int  # of that iteration, as the rank counts


@dataclass
class Rank:
    """A process that was seen to join; it is a rank of a job from its first step on, when it gets its name."""

    tracker: IterationTracker  # of the job as the process calls it
    pid: int
    name: str = ""  # the job's, as claimed; empty: it has not stepped
    ended: list[Iteration] = field(default_factory=list)  # wait until their rows have settled
    joined: dict[Source, int] = field(default_factory=dict)  # when, mono
    left: dict[Source, int] = field(default_factory=dict)
    fresh: bool = False  # it has marks that its number in the job has not been checked with

    @property
    def number(self) -> int:
        """The rank."""
        return self.tracker.rank

    def leaving(self) -> bool:
        """Every source that saw it join has seen it leave."""
        return bool(self.left) and self.left.keys() >= self.joined.keys()

    def gone(self, settled_ns: int) -> bool:
        """It has left, and all its rows are accounted for."""
        return self.leaving() and not self.ended and max(self.left.values()) < settled_ns

    def trains(self, time_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether it had joined, and not yet left, at each of the times (mono)."""
        until = max(self.left.values()) if self.leaving() else np.iinfo(np.int64).max
        return (time_ns >= min(self.joined.values(), default=0)) & (time_ns < until)

    def stored(self) -> Resumed:
        """How far it has come."""
        tracker = self.tracker
        return Resumed(tracker.size, tracker.parameters, tracker.finished_ns, tracker.last_number)

    def needed_since(self) -> int | None:
        """Start of the earliest iteration that is open or waits for its rows (mono ns)."""
        times = [iteration.start_ns for iteration in self.ended]
        open_since = self.tracker.open_since()
        if open_since is not None:
            times.append(open_since)
        elif self.name and self.tracker.finished_ns < 0:
            times += self.joined.values()
        return min(times, default=None)
