# SPDX-License-Identifier: Apache-2.0
"""One count of iterations for all ranks of a job, and for all sources of a rank.

A source that began to look in the middle of the training counts from another zero than the rank alongside it. But
synchronous training gives the ranks of a job a common beat: none leaves the all-reduce of iteration k before all
have entered it, so their last waits of k lie closer together than those of k and k+1. What happens at the same time
is the same iteration, and the difference of the two numbers is the shift between the two counts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from heapq import heappop, heappush
from itertools import count as counting
from typing import NamedTuple

from netmon.dl.step_alignment import Events, Shift, StepMoment, best_shifts, periods

EVIDENCE = 32  # events of a rank that are compared
_SURE = 3  # votes that may move a number that was already used
_NEVER = 1 << 62
_VERSIONS = counting(1)


class Trust(IntEnum):
    """Where a count's zero comes from, best first."""

    NUMBERED = 0  # the training script numbers its steps
    COUNTED = 1  # from the process' beginning, as far as it was seen: a number may be too low, never too high
    RELATIVE = 2  # from when the agent began to look


@dataclass
class _Count:
    trust: Trust
    shift: int = 0
    decided: bool = False
    order: int = 0  # of its rank in the order of their first reports
    aligned_at: int = _NEVER  # since how many were forgotten it is aligned with the leader's, on evidence
    goes_on: bool = False  # it was used before, with this shift
    events: dict[StepMoment, Events] = field(default_factory=dict)


class _Ranked(NamedTuple):
    """A count in the order of who leads: by trust, then by index."""

    trust: Trust
    order: int
    serial: int  # a later count of the same rank comes after it
    rank: int
    whose: _Count


class CountEvidence(NamedTuple):
    """A count whose latest events are there, and the one that it follows."""

    whose: _Count
    events: Mapping[StepMoment, Events]
    error_ns: int
    leader: _Count | None  # None: there is nothing to follow
    reference: Mapping[StepMoment, Events]  # the leader's, by its own numbers
    first: bool


class RankEvents(NamedTuple):
    """What a rank tells for the common count: its latest events in UTC, right to error_ns."""

    rank: int
    trust: Trust
    events: Mapping[StepMoment, Events]  # by the rank's own numbers
    error_ns: int


class Decided(NamedTuple):
    """What has become of a rank that has reported something."""

    moved: bool  # whether numbers that were used have
    shift: int  # what to add to the rank's own numbers


class JobNumbers:
    """The common count of one job: that of the most trusted rank, of equals of the one that reported first."""

    def __init__(self) -> None:
        self._counts: dict[int, _Count] = {}
        self._orders: dict[int, int] = {}  # of their ranks, in the order of their first reports
        self._added = self._serial = 0
        self._decided: list[_Ranked] = []  # a heap of those that are, the leader first; some are out of date
        self._updating: list[_Ranked] = []  # the same, of those that have events
        self._forgotten = 0
        self._known_until = 0  # who was aligned before so many were forgotten is known to count from the beginning
        self._elastic = False  # it is: processes join later, and what they number counts from then
        self.version = next(
            _VERSIONS
        )  # another one, that no job has had, where what is said of a rank may have changed

    def __len__(self) -> int:
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

    def compared(self, rank: int) -> bool:
        """Whether the rank's numbers stay as they are, as far as is known: until then others may move them."""
        count = self._counts.get(rank)
        if count is None:
            return False
        numbered = count.trust == Trust.NUMBERED and not self._elastic
        return numbered or count.goes_on or count.aligned_at != _NEVER or count is self._leader(self._decided)

    def state(self, rank: int) -> tuple[Trust, int]:
        count = self._counts.get(rank)
        return (count.trust, count.shift) if count else (Trust.RELATIVE, 0)

    def shift(self, rank: int) -> int:
        """What to add to the rank's own numbers."""
        count = self._counts.get(rank)
        return count.shift if count else 0

    def resume(self, rank: int, trust: Trust, shift: int) -> None:
        """Take up a rank of which iterations are stored with this shift."""
        self._take_up(rank, trust, shift)

    def take_over(self, rank: int, trust: Trust, shift: int) -> None:
        """A process of the job is this rank now, and counts on, as after an elastic reset."""
        self._elastic = True
        self._take_up(rank, trust, shift)

    def forget(self, rank: int) -> None:
        """The rank is gone; its process' successor counts anew. The common count goes on with the others."""
        self.version = next(_VERSIONS)
        leader = self._leader(self._decided)
        before, self._forgotten = self._forgotten, self._forgotten + 1
        if leader and self._from_the_beginning(leader):
            self._known_until = before + 1
        self._counts.pop(rank, None)
        self._orders.pop(rank, None)

    def _take_up(self, rank: int, trust: Trust, shift: int) -> None:
        count = self._begin(rank, trust)
        count.shift, count.decided, count.goes_on = shift, True, True
        count.aligned_at = self._forgotten if shift else _NEVER
        self._push(self._decided, rank, count)

    def _begin(self, rank: int, trust: Trust) -> _Count:
        self._added += 1
        self.version = next(_VERSIONS)
        count = self._counts[rank] = _Count(trust, order=self._orders.setdefault(rank, self._added))
        return count

    def begins(self, events: RankEvents) -> bool:
        """Whether the rank counts anew with this."""
        count = self._counts.get(events.rank)
        return count is None or events.trust < count.trust

    def add_events(self, new_events: RankEvents) -> CountEvidence | None:
        """Take in a rank's events; None: there are none. Nothing in here depends on a shift."""
        rank, trust, events, error_ns = new_events
        count = self._begin(rank, trust) if self.begins(new_events) else self._counts[rank]
        new = not count.events
        count.events = {step_moment: one.latest(EVIDENCE) for step_moment, one in events.items()}
        if not any(len(one.number) for one in count.events.values()):
            return None
        if new and count.decided:
            self._push(self._updating, rank, count)
        leader, first = self._leader(self._updating), not count.decided
        if first:
            count.decided = True
            for heap in (self._decided, self._updating):
                self._push(heap, rank, count)
        if leader is None or leader is count:
            return CountEvidence(count, count.events, error_ns, None, {}, first)
        return CountEvidence(count, count.events, error_ns, leader, leader.events, first)

    def follow(self, evidence: CountEvidence, shift: Shift | None) -> bool:
        """Decide about the shift of a count by its evidence; True where used numbers moved."""
        count, leader, before = evidence.whose, evidence.leader, evidence.whose.shift
        first = count.aligned_at == _NEVER
        # A count that may be true is not moved on the strength of one moment, one that was used not on that of two.
        needed = _SURE if not first else 1 if count.trust == Trust.RELATIVE else 2
        if shift and leader and shift.votes >= needed:
            if first:
                self.version = next(_VERSIONS)
            count.aligned_at = min(count.aligned_at, self._forgotten)
            self._decide(count, leader, shift._replace(shift=shift.shift + leader.shift), first)
            if count.shift != before:
                self.version = next(_VERSIONS)
        return not evidence.first and count.shift != before

    def _push(self, heap: "list[_Ranked]", rank: int, count: _Count) -> None:
        self._serial += 1
        self.version = next(_VERSIONS)
        heappush(heap, _Ranked(count.trust, count.order, self._serial, rank, count))

    def _leader(self, among: "list[_Ranked]") -> _Count | None:
        """Who all others follow: of the most trusted counts the first one."""
        while among and self._counts.get(among[0].rank) is not among[0].whose:
            heappop(among)
        return among[0].whose if among else None

    def _decide(self, count: _Count, leader: _Count, shift: Shift, first: bool) -> None:
        if count.trust < leader.trust:
            if first:
                self._move(-shift.shift, count)
            return
        if shift.shift == count.shift or 2 * shift.votes <= shift.of:
            return
        if count.trust == Trust.NUMBERED and not self._elastic:
            return
        if count.trust == leader.trust != Trust.RELATIVE and shift.shift < 0:
            self._move(-shift.shift, count)  # the others have missed as many: the highest number is the true one
            count.shift = 0
        else:
            count.shift = shift.shift

    def _move(self, by: int, but: _Count) -> None:
        self.version = next(_VERSIONS)
        for count in self._counts.values():
            if count is not but:
                count.shift += by


def number_jobs(updates: Sequence[tuple[JobNumbers, RankEvents]]) -> list[Decided]:
    """As JobNumbers.align of each in turn, but what can be is compared together."""
    decided = [Decided(False, 0)] * len(updates)
    waiting: dict[int, list[int]] = {}  # by job
    for index, (numbers, _) in enumerate(updates):
        waiting.setdefault(id(numbers), []).append(index)
    while waiting:
        together: list[int] = []
        for job, indices in list(waiting.items()):
            # A count that begins has no part in what those before it decide.
            begins = (n for n, index in enumerate(indices) if n and updates[index][0].begins(updates[index][1]))
            end = next(begins, len(indices))
            together += indices[:end]
            waiting[job] = indices[end:]
            if not waiting[job]:
                del waiting[job]
        for index, one in zip(together, _align_together([updates[index] for index in together]), strict=True):
            decided[index] = one
    return decided


def _align_together(updates: Sequence[tuple[JobNumbers, RankEvents]]) -> Iterator[Decided]:
    evidence = [numbers.add_events(events) for numbers, events in updates]
    following = [one for one in evidence if one and one.leader]
    # Clocks that differ by a good part of a period prove nothing.
    step_events = list(StepMoment)
    of_each = periods([one.events.get(step_moment, Events.none()) for one in following for step_moment in step_events])
    shortest = of_each.reshape(-1, len(step_events)).min(axis=1)
    clear = [one for one, period in zip(following, shortest.tolist(), strict=True) if one.error_ns < period / 4]
    shifts = best_shifts([one.reference for one in clear], [one.events for one in clear])
    found = dict(zip(map(id, clear), shifts, strict=True))
    for (numbers, events), one in zip(updates, evidence, strict=True):
        moved = one is not None and numbers.follow(one, found.get(id(one)))
        yield Decided(moved, numbers.shift(events.rank))
