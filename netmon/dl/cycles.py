# SPDX-License-Identifier: Apache-2.0
"""Training steps out of the calls that a process makes into its training library.

Every step hands the same gradients over, in whatever order, so steps are reported by the names that recur once in each
(the markers). What else is reduced, such as metrics, comes at another rate, or on its own between two waits. So
nothing is reported until most names have recurred; then the calls kept until then are walked again, and the first step
gets its true beginning. A set that changes in the middle of training is learned in the same way.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import pairwise, starmap
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from netmon.dl.grouped import joined, starts
from netmon.dl.operations import (
    FROM_OR_TO_ONE,
    SIZED_AS_WHOLE,
    SIZED_BY_PART,
    SUMS_FOR_ALL,
    UNKNOWN_SIZE,
    GradientSize,
    NamedSizes,
    byte_sizes,
    gradient_size,
    total_size,
)
from netmon.records import (
    LIBRARY_GLOO,
    LIBRARY_NCCL,
    LIBRARY_REDUCER,
    LIBRARY_XLA,
    OF_ALL,
    OF_EACH,
    OF_ONE,
    STEP,
    STEP_BEGIN,
    STEP_CALL,
    STEP_DONE,
    STEP_ENQUEUE,
    STEP_OTHER,
    STEP_SIZE,
    STEP_TRANSFER,
    STEP_WAIT_BEGIN,
    STEP_WAIT_END,
    Moment,
    Table,
    empty,
)

_Words = npt.NDArray[np.uint64]
_Numbers = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]
_Indices = npt.NDArray[np.intp]

_FEW, _LARGE = 4, 1 << 20  # tensors, bytes: so many metrics may be reduced together, again and again
_TIMES_MANY, _TIMES_FEW = 3, 16  # a name must come, for its set to be looked at: where not most others have come twice
_MOST_PENDING_EVENTS = 50_000
_WALKS, _WALKS_AT_ONCE = 8, 4_000_000  # events that may be looked at again for each that comes; and at first


class Event(NamedTuple):
    """One row of dtype STEP, of one process and library."""

    time_ns: int
    name: int
    kind: int
    tensors: int
    size: int = 0


def _events(table: Table) -> Iterator[Event]:
    """table: dtype STEP."""
    return starmap(Event, table[["time_ns", "name_hash", "kind", "tensors", "size"]].tolist())


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
        if len(self._events) > _MOST_PENDING_EVENTS:
            self.forget()
        elif names := self._recurring(event.name):
            calls = self._numbered_calls(names)
            latest = {call.name: call for call, _ in calls}.values()
            tensors, size = sum(call.tensors for call in latest), sum(gradient_size(call.size).bytes for call in latest)
            surely = _TIMES_MANY if size >= _LARGE else _TIMES_FEW
            least = _FEW if self._calls[event.name] < surely else 1
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
        """When the first whole step begins: after the first wait, or the longest pause of the first calls, as many as a
        step has, which is the computation."""
        if one_run:
            return next(event.time_ns for event, run in calls if run > calls[0][1])
        times = [event.time_ns for event, _ in calls[: len({event.name for event, _ in calls}) + 1]]
        return max((later - time_ns, later) for time_ns, later in pairwise(times))[1]


# --- What PyTorch begins as a work is a sum, or something else that is sent.

_SEED, _HASH_PRIME = np.uint64(0xCBF29CE484222325), 0x100000001B3  # FNV-1a
_LEAST_BYTES = 1024  # what is smaller is a metric that is averaged, not a gradient


def calls_from_works(table: Table) -> Table:
    """table: dtype STEP → for its collectives the rows that libraries without works have, at the same times."""
    of_works = (*SUMS_FOR_ALL, *FROM_OR_TO_ONE, *SIZED_BY_PART, *SIZED_AS_WHOLE)
    calls: Table = table[(table["kind"] == STEP_BEGIN) & np.isin(table["tensors"], of_works)].copy()
    operation, sizes = calls["tensors"].copy(), byte_sizes(calls["size"])
    sums = np.isin(operation, SUMS_FOR_ALL)
    calls["kind"] = np.where(sums, np.where(sizes < _LEAST_BYTES, STEP_OTHER, STEP_ENQUEUE), STEP_TRANSFER)
    of = np.select([np.isin(operation, FROM_OR_TO_ONE), np.isin(operation, SIZED_BY_PART)], [OF_ONE, OF_EACH], OF_ALL)
    calls["name_hash"] = np.where(sums, (sizes.astype(np.uint64) ^ _SEED) * np.uint64(_HASH_PRIME), of)
    calls["tensors"], calls["work"], calls["sequence"], calls["group_rank"], calls["group_size"] = 1, 0, 0, 0, 0
    return calls[sums | (sizes > 0)]


# --- All-reduces of a library that tells no names: put in order, and named by their size and place.
#
# A training script that reduces its gradients itself hands them over in the same order in every step, and computes
# for much longer between two passes over them than between two calls of one. So a call is the k-th of its size in a
# pass.

_RECENT = 512  # calls, whose pauses show what a pause between passes is
_SETTLED = 64  # calls, after which that is found anew only now and then
_LEAST_PAUSE_NS = 1_000_000
_MOST_PENDING = 10_000  # events after a call of which no size is reported
_MOST_SIZES = 10_000  # in a pass


class Passes:
    """The calls of one process. Feed it in order of time."""

    def __init__(self) -> None:
        self._pending = empty(STEP)  # from the first call on whose size is not known
        self._pauses = np.zeros(0, np.int64)  # before the last calls
        self._calls = 0
        self._limit_ns = _LEAST_PAUSE_NS
        self._last_ns = 0
        self._of_size: dict[int, int] = {}  # calls in this pass

    def feed(self, table: Table) -> Table:
        """table: dtype STEP → what is complete now, in order of time, each at its call and by its name."""
        parts = [self._sized(table[at : at + _MOST_PENDING]) for at in range(0, len(table), _MOST_PENDING)]
        return self._named(joined([empty(STEP), *parts]))

    def _sized(self, table: Table) -> Table:
        """Each size at the call that it belongs to: the first one that has none."""
        table = joined([self._pending, table]) if len(self._pending) else table
        called = table["kind"] == STEP_CALL
        calls = np.flatnonzero(called)
        if not len(calls):
            return table
        has_size = np.isin(table["kind"], (STEP_ENQUEUE, STEP_OTHER))
        without = np.cumsum(called.astype(np.int64) - has_size)
        without -= np.minimum(np.minimum.accumulate(without), 0)
        sizes = np.flatnonzero(has_size & (np.append(0, without[:-1]) > 0))
        calls, unsized = calls[: len(sizes)], calls[len(sizes) :]
        sized = table.copy()
        sized[calls] = table[sizes]
        sized["time_ns"][calls] = table["time_ns"][calls]
        kept = np.ones(len(table), np.bool_)
        kept[sizes] = False
        if len(unsized) and kept[unsized[0] :].sum() > _MOST_PENDING:
            given_up = unsized < np.flatnonzero(kept)[-_MOST_PENDING]
            kept[unsized[given_up]], unsized = False, unsized[~given_up]
        until = unsized[0] if len(unsized) else len(table)
        self._pending = sized[until:][kept[until:]]
        return sized[:until][kept[:until]]

    def _named(self, table: Table) -> Table:
        timed = np.flatnonzero(table["kind"] != STEP_OTHER)  # metrics may be the last before a pass: its pause goes on
        if not len(timed):
            return table
        times = table["time_ns"][timed].astype(np.int64)
        pauses, self._last_ns = np.diff(times, prepend=self._last_ns), int(times[-1])
        calls = (table["kind"][timed] == STEP_ENQUEUE) & (table["name_hash"][timed] != 0)
        at, pauses = timed[calls], pauses[calls]
        if not len(at):
            return table
        named, begins = table.copy(), self._begins(pauses)
        named["name_hash"][at] = self._names(table["name_hash"][at], np.cumsum(begins))
        return named

    def _begins(self, pauses: _Numbers) -> _Flags:
        """Which calls begin a pass; pauses: before each."""
        first, before = max(0, 1 - self._calls), len(self._pauses)  # nothing comes before the first call of all
        known = np.concatenate([self._pauses, pauses[first:]])
        begins, at = np.zeros(len(pauses), np.bool_), 0
        while at < len(pauses):
            number = self._calls + at + 1
            if number < _SETTLED or number % _SETTLED == 0:
                self._limit_ns = self._find_limit(known[: before + at + 1 - first][-_RECENT:])
            until = at + 1 if number < _SETTLED else at + _SETTLED - number % _SETTLED
            begins[at:until] = pauses[at:until] >= self._limit_ns
            at = until
        self._calls, self._pauses = self._calls + len(pauses), known[-_RECENT:]
        return begins

    def _names(self, sizes: _Words, passes: _Numbers) -> _Words:
        """passes: how many have begun before each call, or with it."""
        order = np.lexsort((sizes, passes))
        first = starts(passes[order], sizes[order])
        counts = np.diff(np.append(first, len(order)))
        number = np.empty(len(order), np.uint64)
        number[order] = np.arange(1, len(order) + 1) - np.repeat(first, counts)
        if self._of_size and passes[0] == 0:
            number[passes == 0] += np.array([self._of_size.get(size, 0) for size in sizes[passes == 0].tolist()], "u8")
        if passes[-1] or len(self._of_size) > _MOST_SIZES:
            self._of_size = {}
        last = passes == passes[-1]
        self._of_size |= dict(zip(sizes[last].tolist(), number[last].tolist(), strict=True))
        return (sizes ^ number) * np.uint64(_HASH_PRIME)

    @staticmethod
    def _find_limit(pauses: _Numbers) -> int:
        """Half of what the computation usually takes: that is the longer one of two kinds of pauses.

        A single one that is much longer still, as of an evaluation or a checkpoint, does not count.
        """
        if not len(pauses):
            return _LEAST_PAUSE_NS
        pauses = np.sort(pauses).astype(np.float64)
        below, part = divmod((len(pauses) - 1) / 4, 1)  # the first quartile: of two calls in a pass, half are long
        short = pauses[int(below)] + part * (pauses[min(int(below) + 1, len(pauses) - 1)] - pauses[int(below)])
        between = math.sqrt(max(1.0, short) * max(0.0, pauses[-1]))
        long = pauses[np.searchsorted(pauses, min(between, pauses[-1])) :]
        return max(_LEAST_PAUSE_NS, int((long[(len(long) - 1) // 2] + long[len(long) // 2]) / 4))


# --- cycles


Boundary = tuple[int, Moment, int]
"""(iteration, moment, time_ns)"""

_OF_SUMS = np.zeros(256, np.bool_)  # by kind
_OF_SUMS[[STEP_ENQUEUE, STEP_WAIT_BEGIN, STEP_WAIT_END, STEP_DONE, STEP_OTHER, STEP_CALL, STEP_SIZE]] = True
_QUEUES = (LIBRARY_REDUCER, LIBRARY_NCCL)  # for a GPU, or may
_UNNAMED = (LIBRARY_NCCL, LIBRARY_GLOO, LIBRARY_XLA)  # they report the size of what is reduced, and no name
_FORGET = 8  # steps without a name, after which it is no marker any more
_MOST_STRANGERS = 20_000  # names that are no markers, since the last step
_REGULARLY = 3  # steps, one after the other, in each of which a thread has waited for its GPU
_TURNS = 3  # of other models, after which one that has taken none is not trained any more


@dataclass
class Waits:
    """From when the training thread had nothing left but to wait, and when it had waited; 0: not known.

    Where no thread waits, as in TensorFlow, whose executor goes on when a tensor has come: from when the last gradient
    was handed over, and when the last one had come.
    """

    first_ns: int = 0
    last_ns: int = 0

    def boundaries(self, iteration: int) -> list[Boundary]:
        known = ((Moment.FIRST_WAIT, self.first_ns), (Moment.LAST_WAIT, self.last_ns))
        return [(iteration, moment, time_ns) for moment, time_ns in known if time_ns and iteration >= 0]


class GpuWaits:
    """What a library only queues for a GPU, the training thread waits for there: in the first wait after all gradients
    of a step were handed over.

    Of a script that waits now and then, as for what it logs, some steps would end by their waits, others by the next
    one's beginning: the waits count where each step has one.
    """

    def __init__(self) -> None:
        self._begun_ns = 0
        self._last = -1  # the last step that had one
        self._in_a_row = 0

    def feed(self, kind: int, time_ns: int, step: int) -> list[Boundary]:
        """A wait begins or ends. step: as CycleDetector.handed_over."""
        if kind == STEP_WAIT_BEGIN:
            self._begun_ns = time_ns
        elif kind == STEP_WAIT_END and step >= 0 and step != self._last and self._begun_ns:
            self._in_a_row = self._in_a_row + 1 if step == self._last + 1 else 1
            self._last = step
            if self._in_a_row >= _REGULARLY:
                return Waits(self._begun_ns, time_ns).boundaries(step)
        return []


class BackwardSteps:
    """Steps of a library that says itself when a backward pass ends: DistributedDataParallel's reducer.

    The names are its reducers, one per model. Where models take turns, a step is one of the model that came first.
    """

    def __init__(self) -> None:
        self.iteration = -1
        self._leader = 0
        self._passes_without = 0  # of other models since the leader's last
        self._inside = False
        self._waits = Waits()
        self._handed_over: list[GradientSize] = []  # in this pass
        self._coming = 0  # of them, while they are waited for
        self.size = UNKNOWN_SIZE  # of what a pass hands over
        self.queued = False
        """The all-reduces are only queued, for a GPU: that nobody waits says nothing of when they are over."""

    @property
    def handed_over(self) -> int:
        """The step all of whose gradients are queued and may be waited for now; −1: there is none."""
        return self.iteration if self.queued and not self._inside else -1

    def feed(self, table: Table) -> list[Boundary]:
        """table: dtype STEP → the boundaries that are known now."""
        return [boundary for event in _events(table) for boundary in self._feed(event)]

    def _feed(self, event: Event) -> list[Boundary]:
        time_ns, name, kind, _, size = event
        if name != self._leader and kind == STEP_WAIT_BEGIN:
            self._passes_without += 1
        if not self._leader or self._passes_without > _TURNS:
            self._leader, self._inside = name, False
        if name != self._leader:
            return []
        self._passes_without = 0
        if kind == STEP_WAIT_BEGIN:
            self._inside, self._waits.first_ns, self._coming = False, time_ns, len(self._handed_over)
            self.size, self._handed_over = total_size(self._handed_over), []
        elif kind == STEP_WAIT_END:
            self._waits.last_ns = time_ns
            self._coming -= 1
            return [] if self._coming else self.finish()
        else:
            self._handed_over.append(gradient_size(size))
            if not self._inside:
                boundaries = self.finish()
                self.iteration, self._inside, self._handed_over = self.iteration + 1, True, self._handed_over[-1:]
                return [*boundaries, (self.iteration, Moment.FIRST_ENQUEUE, time_ns)]
        return []

    def finish(self) -> list[Boundary]:
        """The waits of the last step."""
        waits, self._waits = self._waits, Waits()
        return [] if self.queued else waits.boundaries(self.iteration)


@dataclass
class _Group:
    """Markers that came since the last one that began a group: a step, once enough of them have come."""

    seen: dict[int, int] = field(default_factory=dict)  # name → time
    coming: int = 0  # tensors that were handed over and have not come, where the library tells
    waited: int = 0  # waits that are over
    strangers: int = 0  # calls of others before the first wait, which may be waited for, too
    waits: Waits = field(default_factory=Waits)
    is_reported: bool = False  # its waits
    is_step: bool = False
    waiting: bool = False  # a wait has begun since the last marker
    foreign: bool = False  # what is waited for now may be something else

    def given_up(self) -> bool:
        """Whether it ended before all that was handed over had come: its rank died, or a peer of it."""
        return self.is_step and not self.foreign and self.coming > 0 and self.waited < len(self.seen)

    def boundaries(self, iteration: int, markers: int) -> list[Boundary]:
        """Its waits, if it has as many markers as a step has: what it has handed over has come. Else the next step
        reports them."""
        if not self.is_step or self.is_reported or len(self.seen) < markers:
            return []
        self.is_reported, waits = True, self.waits
        self.waits = Waits()
        return waits.boundaries(iteration)


class _Stranger(NamedTuple):
    calls: int
    run: int  # of the last
    time_ns: int


@dataclass(frozen=True)
class _SameGroups:
    """Groups, one after the other, that have each marker once, in whatever order, and waits, and nothing else."""

    rows: Table  # dtype STEP, up to where another group begins
    calls: _Indices  # (groups, markers): which of the rows
    waits: list[Waits]
    waited: int  # waits of the last group that were over before it was
    over: bool  # the last group has waited for all its markers
    waiting: bool  # a wait has begun after its last marker

    def runs(self) -> tuple[int, int]:
        """How often waits have followed calls: before the last call, and in all."""
        begins = np.flatnonzero(self.rows["kind"] == STEP_WAIT_BEGIN)
        after = np.searchsorted(self.calls.ravel(), begins)  # so many calls
        return len(starts(after[begins < self.calls[-1, -1]])), len(starts(after))


def _leading_groups(table: Table, calls: _Indices, markers: int, one_run: bool) -> _SameGroups | None:
    """Those with which a table begins, up to where another group does.

    calls: the rows of markers; one_run: no wait begins between those of a group.
    """
    groups = (len(calls) - 1) // markers
    begin, calls = calls[::markers][: groups + 1], calls[: groups * markers].reshape(groups, markers)
    names = table["name_hash"][calls]
    order = np.argsort(names, axis=1)
    names, sizes = np.take_along_axis(names, order, 1), np.take_along_axis(table["size"][calls], order, 1)
    begins, ends = (np.flatnonzero(table["kind"] == kind) for kind in (STEP_WAIT_BEGIN, STEP_WAIT_END))
    first_begin, first_end = np.searchsorted(begins, begin), np.searchsorted(ends, begin)
    next_begin, next_end = np.searchsorted(begins, calls[:, -1]), np.searchsorted(ends, calls[:, -1])
    same = (names[:, 1:] != names[:, :-1]).all(axis=1) & (sizes == sizes[0]).all(axis=1)
    same &= markers + np.diff(first_begin) + np.diff(first_end) == np.diff(begin)
    if one_run:
        same &= next_begin == first_begin[:-1]
    groups = groups if same.all() else int(same.argmin())
    if not groups:
        return None
    last_end = first_end[1:] - 1  # of the waits that are over in a group, the last one that is for a marker
    over_at = np.maximum(first_end[:-1] + markers - 1, next_end)
    over = over_at <= last_end
    last_end = np.where(over, over_at, last_end)
    waited = last_end + 1 - first_end[:-1]
    begins, ends = np.append(begins, len(table)), np.append(ends, len(table))
    times = np.append(table["time_ns"].astype(np.int64), 0)
    waiting = next_begin < first_begin[1:]
    first = np.where(waiting & ~(over & (begins[next_begin] > ends[last_end])), times[begins[next_begin]], 0)
    last = np.where(waited > 0, times[ends[last_end]], 0)
    waits = [Waits(*of_group) for of_group in zip(first[:groups].tolist(), last[:groups].tolist(), strict=True)]
    of_last = int(waited[groups - 1]), bool(over[groups - 1]), bool(waiting[groups - 1])
    return _SameGroups(table[: begin[groups]], calls[:groups], waits, *of_last)


class NamedSteps:
    """Steps by the names of what is handed over."""

    def __init__(self, late: bool = False) -> None:
        """late: the first events may be in the middle of a step."""
        self.iteration = -1
        self._markers: dict[int, int] = {}  # name → last iteration that it was seen in
        self._one_run = False  # the markers of a step come without a wait between them
        self._expected = self._tensors = 0  # markers of the last step; tensors of the whole set
        self._group = _Group()
        self._waits = Waits()  # of the last step, once another group has begun
        self._strangers: dict[int, _Stranger] = {}  # since the group began
        self._candidates: set[int] = set()  # strangers that came once in the last step
        self._run = self._group_run = 0  # how often waits have followed calls: now, and at the last marker
        self._called = False  # since the last wait began
        self._pending = PendingEvents(late)
        self._sizes = NamedSizes()
        self._size = UNKNOWN_SIZE
        self._resized = False  # a size or a marker is another one than when they were last added up

    @property
    def handed_over(self) -> int:
        """The step all of whose gradients are; −1: there is none."""
        whole = self._group.is_step and len(self._group.seen) >= self._expected
        return self.iteration if whole else -1

    @property
    def size(self) -> GradientSize:
        """Of what a step hands over."""
        if self._resized:
            self._size, self._resized = self._sizes.total(self._markers), False
        return self._size

    def feed(self, table: Table) -> list[Boundary]:
        """table: dtype STEP → the boundaries that are known now."""
        until = self._end_of_group(table)
        boundaries = self._feed_one_by_one(table[:until])
        if (groups := self._same_groups(table[until:])) is not None:
            boundaries += self._repeat(groups)
            until += len(groups.rows)
        return boundaries + self._feed_one_by_one(table[until:])

    def _feed_one_by_one(self, table: Table) -> list[Boundary]:
        return [boundary for event in _events(table) for boundary in self._feed(event)]

    def _feed(self, event: Event) -> list[Boundary]:
        self._resized |= self._sizes.learn(event.name, event.size)
        if event.kind == STEP_SIZE:
            return []
        boundaries = self._walk(event)
        if found := self._pending.add(event, self._markers, self._tensors):
            self._establish(found)
            boundaries += [boundary for earlier in found.events for boundary in self._walk(earlier)]
        return boundaries

    def _end_of_group(self, table: Table) -> int:
        """Where the next group begins if this one goes on as the last one; else how many rows there are."""
        lacking = len(self._markers) - len(self._group.seen)
        if not self._markers or len(table) < lacking + len(self._markers):
            return len(table)
        at = np.flatnonzero(self._are_markers(table))
        return int(at[lacking]) if len(at) > lacking else len(table)

    def _are_markers(self, table: Table) -> _Flags:
        markers = np.fromiter(self._markers, np.uint64, len(self._markers))
        found: _Flags = (table["kind"] == STEP_ENQUEUE) & np.isin(table["name_hash"], markers)
        return found

    def _same_groups(self, table: Table) -> _SameGroups | None:
        """Those with which it begins, up to where another one does, if this group is whole."""
        group, markers = self._group, len(self._markers)
        whole = group.is_step and len(group.seen) == self._expected == markers
        if not whole or self._strangers or self._candidates or not len(table):
            return None
        calls = np.flatnonzero(self._are_markers(table))
        if len(calls) <= markers or calls[0]:
            return None
        return _leading_groups(table, calls, markers, self._one_run)

    def _repeat(self, groups: _SameGroups) -> list[Boundary]:
        """As feeding their rows one by one does."""
        rows, calls = groups.rows, groups.calls
        for name, size in rows[["name_hash", "size"]][calls[0]].tolist():
            self._resized |= self._sizes.learn(name, size)
        boundaries, waits = [], self._group.waits
        for begun_ns, of_group in zip(rows["time_ns"][calls[:, 0]].tolist(), groups.waits, strict=True):
            boundaries += waits.boundaries(self.iteration)
            self.iteration, waits = self.iteration + 1, of_group
            boundaries.append((self.iteration, Moment.FIRST_ENQUEUE, begun_ns))
        if groups.over:
            boundaries, waits = boundaries + waits.boundaries(self.iteration), Waits()
        last = rows[calls[-1]]
        self._group = _Group(
            seen=dict(last[["name_hash", "time_ns"]].tolist()),
            coming=int(last["tensors"].sum()),
            waited=groups.waited,
            waits=waits,
            is_reported=groups.over,
            is_step=True,
            waiting=groups.waiting,
        )
        self._waits, self._markers = Waits(), dict.fromkeys(self._markers, self.iteration - 1)
        before_last_call, runs = groups.runs()
        self._run, self._group_run = self._run + runs, self._run + before_last_call
        self._called = not groups.waiting
        self._pending.forget()
        half = calls[-1, (calls.shape[1] + 1) // 2 - 1]
        for event in _events(rows[half:]):
            self._pending.add(event, self._markers, self._tensors)
        return boundaries

    def _establish(self, found: RecurringSet) -> None:
        if self._group.is_step:
            self._waits = self._group.waits
        self._markers, self._resized = dict.fromkeys(found.names, self.iteration), True
        self._expected, self._tensors, self._one_run = len(found.names), found.tensors, found.one_run
        self._group, self._strangers, self._candidates = _Group(), {}, set()

    def finish(self) -> list[Boundary]:
        """The waits of the last step, as far as they are known; nothing of one that was given up."""
        waits, self._waits = self._group.waits if self._group.is_step else self._waits, Waits()
        given_up, self._group.waits = self._group.given_up(), Waits()
        return [] if given_up else waits.boundaries(self.iteration)

    @property
    def pending(self) -> int:
        """Calls that are remembered and have led to no step yet."""
        return len(self._pending) + len(self._strangers)

    def forget(self) -> None:
        self._pending.forget()
        self._strangers, self._candidates = {}, set()

    def restart(self) -> list[Boundary]:
        """The library is set up anew: a step that was given up is none, the next one has its number."""
        boundaries = self.finish()
        self.iteration -= self._group.given_up()
        self._group, self._strangers, self._candidates = _Group(), {}, set()
        if self._markers:
            self._pending.forget()
        return boundaries

    def _walk(self, event: Event) -> list[Boundary]:
        time_ns, name, kind, tensors, _ = event
        group = self._group
        self._called |= kind in (STEP_ENQUEUE, STEP_OTHER)
        if kind == STEP_ENQUEUE and name in self._markers:
            return self._marker(name, time_ns, tensors)
        if kind in (STEP_ENQUEUE, STEP_OTHER):
            group.foreign |= group.waits.first_ns > 0 or group.is_reported
            group.strangers += 1
            if kind == STEP_ENQUEUE and name:
                self._stranger(name, time_ns)
        elif kind == STEP_WAIT_BEGIN:
            self._run += self._called
            self._called, group.waiting = False, True
            if not group.foreign and not group.is_reported and not group.waits.first_ns and group.seen:
                group.waits.first_ns = time_ns
        elif kind == STEP_WAIT_END:
            if not group.foreign and not group.is_reported and group.seen:
                group.waits.last_ns = time_ns
                group.waited += 1
                if group.waited >= len(group.seen) + group.strangers:
                    return group.boundaries(self.iteration, self._expected)
        elif kind == STEP_DONE and group.coming and name not in self._strangers:
            group.coming -= 1
            group.waits = Waits(max(group.seen.values()), time_ns)
            if not group.coming:
                return group.boundaries(self.iteration, self._expected)
        return []

    def _marker(self, name: int, time_ns: int, tensors: int) -> list[Boundary]:
        if name in self._group.seen or (self._one_run and self._group.waiting):
            self._next_group()
        group = self._group
        group.seen[name] = time_ns
        group.coming += tensors
        group.waits.first_ns, group.waiting, group.foreign = 0, False, False
        self._group_run = self._run
        if group.is_step or 2 * len(group.seen) < self._expected:
            return []
        group.is_step = True
        boundaries = self._waits.boundaries(self.iteration)
        self._waits = Waits()
        self.iteration += 1
        self._pending.forget()
        return [*boundaries, (self.iteration, Moment.FIRST_ENQUEUE, min(group.seen.values()))]

    def _next_group(self) -> None:
        if self._group.is_step:
            self._expected = len(self._group.seen)
            self._waits = self._group.waits
            self._markers |= dict.fromkeys(self._group.seen, self.iteration)
            oldest = self.iteration - _FORGET
            if any(last <= oldest for last in self._markers.values()):
                self._markers = {name: last for name, last in self._markers.items() if last > oldest}
                self._resized = True
            self._pending.forget(max(self._group.seen.values()))
        seen = self._admit()
        self._group = _Group(seen, coming=len(seen))

    def _stranger(self, name: int, time_ns: int) -> None:
        if len(self._strangers) == _MOST_STRANGERS:
            self._strangers, self._candidates = {}, set()
        known = self._strangers.get(name)
        self._strangers[name] = _Stranger(known.calls + 1 if known else 1, self._run, time_ns)

    def _admit(self) -> dict[int, int]:
        """Names that came once in each of two steps, in the run of the markers, become markers.

        Returns those that belong to the group which begins now, with their times.
        """
        runs = (self._group_run, self._run)
        once = {name for name, stranger in self._strangers.items() if stranger.calls == 1 and stranger.run in runs}
        admitted = {name: self._strangers[name] for name in once & self._candidates}
        self._markers |= dict.fromkeys(admitted, self.iteration)
        self._resized |= bool(admitted)
        self._candidates, self._strangers = once, {}
        return {name: call.time_ns for name, call in admitted.items() if self._one_run and call.run == self._run}


class CycleDetector:
    """The steps of one process. Feed it in order of time; it numbers them from 0.

    The library that knows most of the gradients decides: Horovod, the reducer, NCCL, Gloo.
    """

    def __init__(self, late: bool = False, last: int = -1) -> None:
        """late: the first events may be within a step; last: the number before the first one to be given."""
        self._late = late
        self._library = 0
        self._passes = Passes()  # of a library that tells no names
        self._steps: NamedSteps | BackwardSteps = NamedSteps(late)
        self._steps.iteration = last

    @property
    def library(self) -> int:
        """Which one tells, as bpf/netmon.h numbers them; 0: none yet."""
        return self._library

    @property
    def iteration(self) -> int:
        """The last one reported; −1: none."""
        return self._steps.iteration

    @property
    def handed_over(self) -> int:
        """The step all of whose gradients are queued for a GPU, and no other one's; −1: there is none."""
        return self._steps.handed_over if self._library in _QUEUES else -1

    @property
    def size(self) -> GradientSize:
        return self._steps.size

    @property
    def pending(self) -> int:
        """Calls that are remembered and have led to no step yet."""
        return self._steps.pending if isinstance(self._steps, NamedSteps) else 0

    def forget(self) -> None:
        """Those calls: there are too many."""
        if isinstance(self._steps, NamedSteps):
            self._steps.forget()

    def feed(self, steps: Table) -> list[Boundary]:
        """steps: dtype STEP, of one process → the boundaries that are known now. Of sums: other calls are passed over.

        The waits of an iteration are known when the next one begins, or at `finish`.
        """
        boundaries: list[Boundary] = []
        events = steps[_OF_SUMS[steps["kind"]]]
        while len(events):
            library = events["library"]
            switches = np.flatnonzero(library < self._library) if self._library else [0]
            until = int(switches[0]) if len(switches) else len(events)
            boundaries += self._feed(events[:until])
            if len(switches):
                boundaries += self._switch(int(library[until]))
            events = events[until:]
        return boundaries

    def _feed(self, events: Table) -> list[Boundary]:
        """None of them is of a library that knows more."""
        own = events["library"] == self._library
        if not own.all():
            if isinstance(self._steps, BackwardSteps) and (events["library"] == LIBRARY_NCCL).any():
                self._steps.queued = True  # the library that tells does its work by way of this one
            events = events[own]
        if not len(events):
            return []
        return self._steps.feed(self._passes.feed(events) if self._library in _UNNAMED else events)

    def _switch(self, library: int) -> list[Boundary]:
        """Another library has more to say; the numbers go on."""
        steps, self._library, self._passes = self._steps, library, Passes()
        self._steps = BackwardSteps() if library == LIBRARY_REDUCER else NamedSteps(self._late)
        self._steps.iteration = steps.iteration
        return steps.finish()

    def finish(self) -> list[Boundary]:
        """The end of the communication of the current iteration, as far as it is known."""
        return self._steps.finish()

    def restart(self) -> list[Boundary]:
        """As finish, but the process goes on, with its job set up anew. The numbers go on with the steps completed."""
        return self._steps.restart() if isinstance(self._steps, NamedSteps) else self._steps.finish()
