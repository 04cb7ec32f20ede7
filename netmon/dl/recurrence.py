# SPDX-License-Identifier: Apache-2.0
"""Which names recur once per training step, out of calls of which nothing is known yet."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from netmon.records import STEP_DONE, STEP_ENQUEUE, STEP_WAIT_BEGIN

_FEW = 4  # tensors: so many metrics may be reduced together, again and again
_TIMES_MANY, _TIMES_FEW = 3, 16  # a name must come, for its set to be looked at: where not most others have come twice
_MOST_PENDING = 50_000
_WALKS, _WALKS_AT_ONCE = 8, 4_000_000  # events that may be looked at again for each that comes; and at first


class Event(NamedTuple):
    """One row of dtype STEP, of one process and library."""

    time_ns: int
    name: int
    kind: int
    tensors: int
    size: int = 0


@dataclass(frozen=True)
class RecurringSet:
    """The names that each step has once."""

    names: frozenset[int]
    tensors: int  # that are handed over in a step
    one_run: bool  # a step's calls have no wait between them
    events: list[Event]  # to be walked again, now that the names are known


class PendingEvents:
    """The events since the last step that was recognised."""

    def __init__(self, late: bool = False) -> None:
        """late: the first of them may be in the middle of a step."""
        self._late = late
        self._events: list[Event] = []
        self._calls: Counter[int] = Counter()  # by name
        self._twice = 0  # names that have come twice
        self._walks = _WALKS_AT_ONCE
        self._unordered = False  # nobody waits: what comes in another order in each step is not kept together by a wait

    def __len__(self) -> int:
        """How many are held."""
        return len(self._events)

    def forget(self, until_ns: int = -1) -> None:
        """They have led to a step; until_ns: those until then, if any came after it."""
        self._events = [event for event in self._events if 0 <= until_ns < event.time_ns]
        self._calls = Counter(event.name for event in self._events if event.kind == STEP_ENQUEUE and event.name)
        self._twice = sum(times == 2 for times in self._calls.values())

    def add(self, event: Event, known: Collection[int], known_tensors: int) -> RecurringSet | None:
        """Takes one in; returns a set if this one makes it visible, and forgets everything then.

        known: the names of the set in force, which has so many tensors. One that has nothing to do with it must be
        of its size: metrics are reduced again and again while a model is evaluated.
        """
        self._events.append(event)
        self._walks = min(self._walks + _WALKS, _WALKS_AT_ONCE)
        if event.kind in (STEP_DONE, STEP_WAIT_BEGIN):
            self._unordered = event.kind == STEP_DONE
        if event.kind != STEP_ENQUEUE or not event.name:
            return None
        self._calls[event.name] += 1
        if len(self._events) > _MOST_PENDING:
            self.forget()
        elif names := self._recurring(event.name):
            calls = self._numbered_calls(names)
            tensors = sum({call.name: call.tensors for call, _ in calls}.values())
            least = _FEW if self._calls[event.name] < _TIMES_FEW else 1
            if known and not names & set(known):
                least = max(_FEW, known_tensors // 2)
            if tensors >= least:
                return self._found(names, tensors)
        return None

    def _recurring(self, name: int) -> set[int]:
        times = self._calls[name]
        self._twice += (times == 2) - (times == 3)
        if self._walks < 0:  # names that were chosen so that each of them looks like the last one of a step
            return set()
        if times == 2 and 2 * self._twice >= len(self._calls) and not self._unordered:
            return self._recurring_once()
        if times in (_TIMES_MANY, _TIMES_FEW):
            return self._recurring_with(name)
        return set()

    def _recurring_once(self) -> set[int]:
        """The names of a step of which most are there again: all of them came once before any came twice."""
        first: dict[int, int] = {}
        second: dict[int, int] = {}
        runs: dict[int, int] = {}  # in which a name came first
        for event, run in self._numbered_calls(self._calls):
            if event.name in first:
                second.setdefault(event.name, event.time_ns)
            else:
                first[event.name], runs[event.name] = event.time_ns, run
        twice = {name for name, calls in self._calls.items() if calls == 2}
        all_came_ns = max(first[name] for name in twice)
        twice = {name for name in twice if second[name] > all_came_ns}
        begin, run = min(((first[name], runs[name]) for name in twice), default=(0, -1))
        end = min((second[name] for name in twice), default=0)
        waits = sum(event.kind == STEP_WAIT_BEGIN for event in self._events)
        once = {
            name
            for name, calls in self._calls.items()
            if calls == 1 and first[name] < end and (first[name] >= begin or runs[name] == run < waits)
        }
        return twice | once if len(twice) >= len(once) else set()

    def _recurring_with(self, name: int) -> set[int]:
        """The names that came as often as this one, which is the first to come again; none where others are more."""
        times = self._calls[name]
        calls = [event for event, _ in self._numbered_calls(self._calls)]
        first_ns = next(event.time_ns for event in calls if event.name == name)
        current = {event.name for event in calls if event.time_ns > first_ns}
        names = {other for other in current if times - 1 <= self._calls[other] <= times}
        return names if 2 * len(names) >= len(current) else set()

    def _numbered_calls(self, names: Collection[int]) -> list[tuple[Event, int]]:
        """The calls of these names, each with how many waits came before it."""
        self._walks -= len(self._events)
        run, numbered = 0, []
        for event in self._events:
            run += event.kind == STEP_WAIT_BEGIN
            if event.kind == STEP_ENQUEUE and event.name in names:
                numbered.append((event, run))
        return numbered

    def _found(self, names: set[int], tensors: int) -> RecurringSet:
        calls = self._numbered_calls(names)
        runs: dict[int, set[int]] = {}
        for event, run in calls:
            runs.setdefault(run, set()).add(event.name)
        largest = max(runs.values(), key=len)
        one_run = len(runs) > 1 and 2 * len(largest) >= len(names)
        if one_run:
            names = set().union(*(run for run in runs.values() if 2 * len(run & largest) >= len(largest)))
        begin_ns = self._whole_step(calls, one_run) if self._late else 0
        events = [event for event in self._events if event.time_ns >= begin_ns]
        self._late = False
        self.forget()
        return RecurringSet(frozenset(names), tensors, one_run, events)

    @staticmethod
    def _whole_step(calls: list[tuple[Event, int]], one_run: bool) -> int:
        """When the first whole step begins: after the first wait, or the longest pause, which is the computation."""
        if one_run:
            return next(event.time_ns for event, run in calls if run > calls[0][1])
        return max((later.time_ns - event.time_ns, later.time_ns) for (event, _), (later, _) in pairwise(calls))[1]
