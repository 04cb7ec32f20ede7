# SPDX-License-Identifier: Apache-2.0
"""One count of iterations for all ranks of a job, and for all sources of a rank.

A source that began to look in the middle of the training counts from another zero than the rank beside it. But
synchronous training gives the ranks of a job a common beat: none leaves the all-reduce of iteration k before all
have entered it, so their last waits of k lie closer together than those of k and k+1. What happens at the same time
is the same iteration, and the difference of the two numbers is the shift between the two counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from netmon.records import Moment

_EVIDENCE = 32  # events of a rank that are compared
_SURE = 3  # votes that may move a number that was already used
_NEVER = 1 << 62


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
    place: int = 0  # of its rank in the order in which they were heard
    aligned_at: int = _NEVER  # since how many were forgotten it is aligned with the leader's, on evidence
    events: dict[Beat, Events] = field(default_factory=dict)

    def shifted(self) -> dict[Beat, Events]:
        return {beat: Events(one.number + self.shift, one.time_ns) for beat, one in self.events.items()}


class _Ranked(NamedTuple):
    """A count in the order of who leads: by trust, then by place."""

    trust: Trust
    place: int
    serial: int  # a later count of the same rank comes after it
    rank: int
    whose: _Count


class JobNumbers:
    """The common count of one job: that of the most trusted rank, of equals of the one that was heard first."""

    def __init__(self) -> None:
        """Begin without ranks."""
        self._counts: dict[int, _Count] = {}
        self._places: dict[int, int] = {}  # of their ranks, in the order in which they were heard
        self._heard = self._serial = 0
        self._decided: list[_Ranked] = []  # a heap of those that are, the leader first; some are out of date
        self._telling: list[_Ranked] = []  # the same, of those that have events
        self._forgotten = 0
        self._known_until = 0  # who was aligned before so many were forgotten is known to count from the beginning
        self._elastic = False  # it is: processes join later, and what they number counts from then

    def __len__(self) -> int:
        """Ranks that count."""
        return len(self._counts)

    def relative(self, rank: int) -> bool:
        """Whether the rank's numbers count only from when somebody began to look."""
        count, leader = self._counts.get(rank), self._leader(self._decided)
        if count is None or leader is None:
            return True
        aligned = count.aligned_at != _NEVER
        return not self._from_the_beginning(count) and not (aligned and self._from_the_beginning(leader))

    def _from_the_beginning(self, count: _Count) -> bool:
        """Whether it counts from there, or was aligned with one that did and has gone since."""
        return count.trust != Trust.RELATIVE or count.aligned_at < self._known_until

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
        self._take_up(rank, trust, shift)

    def go_on(self, rank: int, trust: Trust, shift: int) -> None:
        """A process of the job is this rank now, and counts on, as after an elastic reset."""
        self._elastic = True
        self._take_up(rank, trust, shift)

    def forget(self, rank: int) -> None:
        """The rank is gone; its process' successor counts anew. The common count goes on with the others."""
        leader = self._leader(self._decided)
        before, self._forgotten = self._forgotten, self._forgotten + 1
        if leader and self._from_the_beginning(leader):
            self._known_until = before + 1
        self._counts.pop(rank, None)
        self._places.pop(rank, None)

    def _take_up(self, rank: int, trust: Trust, shift: int) -> None:
        count = self._begin(rank, trust)
        count.shift, count.decided = shift, True
        count.aligned_at = self._forgotten if shift else _NEVER
        self._push(self._decided, rank, count)

    def _begin(self, rank: int, trust: Trust) -> _Count:
        self._heard += 1
        count = self._counts[rank] = _Count(trust, place=self._places.setdefault(rank, self._heard))
        return count

    def tell(self, rank: int, trust: Trust, events: Mapping[Beat, Events], error_ns: int) -> bool:
        """A rank's latest events in UTC, right to error_ns: decide about its shift. True where used numbers moved."""
        count = self._counts.get(rank)
        if count is None or trust < count.trust:
            count = self._begin(rank, trust)
        new = not count.events
        count.events = {beat: Events(*(column[-_EVIDENCE:] for column in one)) for beat, one in events.items()}
        if not any(len(one.number) for one in count.events.values()):
            return False
        if new and count.decided:
            self._push(self._telling, rank, count)
        leader, before, first = self._leader(self._telling), count.shift, not count.decided
        if first:
            count.decided = True
            for heap in (self._decided, self._telling):
                self._push(heap, rank, count)
        if leader is None or leader is count:
            return False
        # Clocks that differ by a good part of a period prove nothing.
        clear = all(error_ns < period(one) / 4 for one in count.events.values())
        told = best_shift(leader.shifted(), count.events) if clear else None
        if told:
            count.aligned_at = min(count.aligned_at, self._forgotten)
            self._decide(count, leader, told, first)
        return not first and count.shift != before

    def _push(self, heap: "list[_Ranked]", rank: int, count: _Count) -> None:
        self._serial += 1
        heappush(heap, _Ranked(count.trust, count.place, self._serial, rank, count))

    def _leader(self, among: "list[_Ranked]") -> _Count | None:
        """Who all others follow: of the most trusted counts the first heard."""
        while among and self._counts.get(among[0].rank) is not among[0].whose:
            heappop(among)
        return among[0].whose if among else None

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
