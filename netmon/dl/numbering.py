# SPDX-License-Identifier: Apache-2.0
"""One count of iterations for all ranks of a job, and for all sources of a rank.

A source that began to look in the middle of the training counts from another zero than the rank beside it. But
synchronous training gives the ranks of a job a common beat: none leaves the all-reduce of iteration k before all
have entered it, so their last waits of k lie closer together than those of k and k+1. What happens at the same time
is the same iteration, and the difference of the two numbers is the shift between the two counts.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from netmon.records import Moment

_EVIDENCE = 32  # events of a rank that are compared
_SURE = 3  # votes that may move a number that was already used


class Beat(Enum):
    """Which moments of two counts may be held against each other; the value: what stands for it, best first.

    The end comes first: the last wait is a barrier, and the update that follows it takes little.
    """

    END = (Moment.LAST_WAIT, Moment.STEP_END)
    BEGIN = (Moment.FIRST_ENQUEUE,)
    START = (Moment.STEP_START,)


class Events(NamedTuple):
    """Numbers of iterations and times of one beat of each, both (events,), ascending in time."""

    number: npt.NDArray[np.int64]
    time_ns: npt.NDArray[np.int64]

    @classmethod
    def none(cls) -> "Events":
        """No events."""
        return cls(np.empty(0, np.int64), np.empty(0, np.int64))


class Shift(NamedTuple):
    """What to add to a count's numbers, and how many of its events say so, of how many."""

    shift: int
    votes: int
    of: int


def period(events: Events) -> float:
    """Median time from one iteration to the next (ns); inf where fewer than two are known."""
    steps, times = np.diff(events.number), np.diff(events.time_ns)
    known = steps > 0
    return float(np.median(times[known] / steps[known])) if known.any() else float("inf")


def nearest(times_ns: npt.NDArray[np.int64], to_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    """Index of the nearest of times_ns (ascending, not empty) to each of to_ns."""
    right = np.searchsorted(times_ns, to_ns).clip(0, len(times_ns) - 1)
    left = (right - 1).clip(0)
    return np.where(np.abs(times_ns[left] - to_ns) <= np.abs(times_ns[right] - to_ns), left, right)


def shift_between(reference: Events, other: Events) -> Shift | None:
    """The shift that makes simultaneous events of the two counts one iteration; None where nothing tells.

    Each event of `other` votes with the nearest of `reference`, if that is nearer than half a period.
    """
    if not len(reference.time_ns) or not len(other.time_ns):
        return None
    place = nearest(reference.time_ns, other.time_ns)
    near = np.abs(reference.time_ns[place] - other.time_ns) < min(period(reference), period(other)) / 2
    if not near.any():
        return None
    shifts, votes = np.unique((reference.number[place] - other.number)[near], return_counts=True)
    best = int(votes.argmax())
    return Shift(int(shifts[best]), int(votes[best]), int(votes.sum()))


def best_shift(reference: Mapping[Beat, Events], other: Mapping[Beat, Events]) -> Shift | None:
    """The shift by the first beat that both have."""
    for beat in Beat:
        found = shift_between(reference.get(beat, Events.none()), other.get(beat, Events.none()))
        if found:
            return found
    return None


class Trust(IntEnum):
    """Where a count's zero comes from, best first."""

    TOLD = 0  # the training script numbers its steps
    COUNTED = 1  # from the process' beginning, as far as it was seen: a number may be too low, never too high
    RELATIVE = 2  # from when the agent began to look


@dataclass
class _Count:
    trust: Trust
    shift: int = 0
    decided: bool = False
    aligned: bool = False  # with the leader's, on evidence
    known: bool = False  # was aligned with a count from the beginning that has gone since
    events: dict[Beat, Events] = field(default_factory=dict)

    def shifted(self) -> dict[Beat, Events]:
        return {beat: Events(one.number + self.shift, one.time_ns) for beat, one in self.events.items()}

    def from_the_beginning(self) -> bool:
        return self.known or self.trust != Trust.RELATIVE


class JobNumbers:
    """The common count of one job: that of the most trusted rank, of equals of the one that was heard first."""

    def __init__(self) -> None:
        """Begin without ranks."""
        self._counts: dict[int, _Count] = {}  # in the order in which they were heard
        self._elastic = False  # it is: processes join later, and what they number counts from then

    def __len__(self) -> int:
        """Ranks that count."""
        return len(self._counts)

    def relative(self, rank: int) -> bool:
        """Whether the rank's numbers count only from when somebody began to look."""
        count, leader = self._counts.get(rank), self._leader(self._counts.values())
        if count is None or leader is None:
            return True
        return not count.from_the_beginning() and not (count.aligned and leader.from_the_beginning())

    def state(self, rank: int) -> tuple[Trust, int]:
        """Trust and shift of the rank, for resume."""
        count = self._counts.get(rank)
        return (count.trust, count.shift) if count else (Trust.RELATIVE, 0)

    def shift(self, rank: int) -> int:
        """What to add to the rank's own numbers."""
        count = self._counts.get(rank)
        return count.shift if count else 0

    def resume(self, rank: int, trust: Trust, shift: int) -> None:
        """Take up a rank of which iterations are stored with this shift."""
        self._counts[rank] = _Count(trust, shift, decided=True, aligned=shift != 0)

    def go_on(self, rank: int, trust: Trust, shift: int) -> None:
        """A process of the job is this rank now, and counts on, as after an elastic reset."""
        self._elastic = True
        self._counts[rank] = _Count(trust, shift, decided=True, aligned=shift != 0)

    def forget(self, rank: int) -> None:
        """The rank is gone; its process' successor counts anew. The common count goes on with the others."""
        for other, count in self._counts.items():
            count.known = not self.relative(other)
        self._counts.pop(rank, None)

    def tell(self, rank: int, trust: Trust, events: Mapping[Beat, Events], error_ns: int) -> bool:
        """A rank's latest events in UTC, right to error_ns: decide about its shift. True where used numbers moved."""
        count = self._counts.get(rank)
        if count is None or trust < count.trust:
            count = self._counts[rank] = _Count(trust)
        count.events = {beat: Events(*(column[-_EVIDENCE:] for column in one)) for beat, one in events.items()}
        if not any(len(one.number) for one in count.events.values()):
            return False
        heard = [one for one in self._counts.values() if one.events]
        leader, before, first = self._leader(heard), count.shift, not count.decided
        count.decided = True
        if leader is None or leader is count:
            return False
        # Clocks that differ by a good part of a period prove nothing.
        clear = all(error_ns < period(one) / 4 for one in count.events.values())
        told = best_shift(leader.shifted(), count.events) if clear else None
        if told:
            count.aligned = True
            self._decide(count, leader, told, first)
        return not first and count.shift != before

    def _leader(self, among: Iterable[_Count]) -> _Count | None:
        """Who all others follow: of the most trusted counts the first heard."""
        return min((c for c in among if c.decided), key=lambda count: count.trust, default=None)

    def _decide(self, count: _Count, leader: _Count, told: Shift, first: bool) -> None:
        if count.trust < leader.trust:
            if first:
                self._move(-told.shift, count)
            return
        # A count that may be true is not moved on the strength of one moment, one that was used not on that of two.
        needed = _SURE if not first else 1 if count.trust == Trust.RELATIVE else 2
        if told.shift == count.shift or told.votes < needed or 2 * told.votes <= told.of:
            return
        if count.trust == Trust.TOLD and not self._elastic:
            return
        if count.trust == leader.trust != Trust.RELATIVE and told.shift < 0:
            self._move(-told.shift, count)  # the others have missed as many: the highest number is the true one
            count.shift = 0
        else:
            count.shift = told.shift

    def _move(self, by: int, but: _Count) -> None:
        for count in self._counts.values():
            if count is not but:
                count.shift += by
