# SPDX-License-Identifier: Apache-2.0
"""Training steps out of all that a rank calls: collectives of every kind, transfers between two ranks, backward passes.

Where ranks exchange more than sums of gradients (sharded data, tensor, pipeline, expert parallel), no single call is
the step. But every step makes the same calls in the same order, each known by its operation, its group and the other
rank; sizes may differ. So a step is one period of that sequence.

A sequence that has come more than once may still be a part of a step, as micro-batches are: it counts once it has come
often, or for long; and a longer one that explains more of what was called takes its place. Where a step begins is a
question of its own. What was called before the first backward pass of all is the first forward pass, and a step begins
with as much of it; where that is inconclusive, it begins after the longest pause. A rank of a pipeline may make the
same few calls for each micro-batch, and nothing else: then its steps are what lies between the longest pauses, if these
come at regular intervals.

Once it is known, a step is reported when all its calls are over; where a library does not report that (NCCL), when they
are called, without its end. What departs from it (an evaluation, a checkpoint) is no
step.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from netmon.dl.grouped import joined
from netmon.dl.operations import (
    IS_TRANSFER,
    NOTHING,
    ROLES,
    SUMS,
    UNKNOWN_SIZE,
    Operation,
    Works,
    by_kind,
    by_operation,
    summed_size,
)
from netmon.records import (
    LIBRARY_GLOO,
    LIBRARY_XLA,
    STEP_BACKWARD,
    STEP_BEGIN,
    STEP_CALL,
    STEP_ENQUEUE,
    STEP_GROUP,
    STEP_GROUP_NAME,
    STEP_OTHER,
    STEP_OVER,
    STEP_SIZE,
    STEP_TRANSFER,
    STEP_WAIT_END,
    Moment,
    Table,
    distinct,
    empty,
)

Boundary = tuple[int, Moment, int]
"""(iteration, moment, time_ns)"""

_Words = npt.NDArray[np.uint64]
_Times = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]
_Places = npt.NDArray[np.intp]
_Floats = npt.NDArray[np.float64]

_BACKWARD, _IDLE = np.uint64(1), np.uint64(0x9E3779B185EBCA87)
_MOST_CALLS = 20_000  # that are remembered
_LEAST_GROWTH = 1.1  # of the calls, before they are looked through again
_LOOK_NS = 1_000_000_000  # from one time to the next
_LEAST_NS = 2_000_000  # of a step
_PERIODS, _MANY_PERIODS, _LONG_NS = 3, 16, 60_000_000_000  # that it must have come at least; or many, or for so long
_CERTAIN = 256  # times without anything else between, that it must have come if it is one call
_PATIENCE_NS = 90_000_000_000
_MOST_MICRO_BATCHES = 64
_MUCH_LONGER = 3  # a pause between steps than one between micro-batches
_NEARLY_ALWAYS = 10  # per cent of the steps may be otherwise
_PASSES_OF_SUM = 16  # micro-batches whose gradients are summed together, at most
_MOST_OF = 0.8
_LOOKS, _MOST_RUNS = 9, 16  # for runs, at different ends; and periods of theirs that are looked at
_COMPARED, _MOST_TRIED = 16, 64  # calls, before all of them are; and so many periods of each run
_FACTORS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)


_SUMS = by_operation(*SUMS)
_CALLS = by_kind(STEP_BEGIN, STEP_BACKWARD, STEP_ENQUEUE, STEP_TRANSFER, STEP_OTHER)
_BEGUN_ONLY = ~by_kind(STEP_CALL, STEP_ENQUEUE, STEP_TRANSFER, STEP_OTHER, STEP_SIZE)  # others are begun, too, in Gloo


class RecurringCalls:
    """Of one process. Feed it in order of time; it numbers steps from 0."""

    def __init__(self, late: bool = False, last: int = -1) -> None:
        """late: the first calls may be within a step; last: the number before the first one to be given."""
        self.iteration = last
        self.size = UNKNOWN_SIZE
        """What the last step summed."""
        self._late = late
        self._calls = _Calls()
        self._cycle: _Cycle | None = None
        self._at = 0  # calls before it belong to steps that were reported, or to none
        self._looked = self._looked_ns = 0  # so many calls there were when they were looked through, and when

    @property
    def known(self) -> bool:
        """Whether its steps are found."""
        return self._cycle is not None

    @property
    def hopeless(self) -> bool:
        """Whether no cycle is to be expected: nothing was called, or so much, or for so long."""
        times = self._calls.rows["time_ns"]
        long = not len(times) or int(times[-1] - times[0]) > _PATIENCE_NS
        return not self.known and (long or len(times) >= _MOST_CALLS // 2)

    @property
    def handed_over(self) -> int:
        """The step after whose calls there have been no others; −1: there is none."""
        return self.iteration if self.known and not self.pending else -1

    @property
    def pending(self) -> int:
        """Calls that are remembered and have led to no step yet."""
        return len(self._calls) - self._at

    def forget(self) -> None:
        """Those calls: there are too many."""
        self._calls, self._at, self._looked, self._late = _Calls(), 0, 0, True

    def feed(self, table: Table) -> list[Boundary]:
        """table: dtype STEP, of one process → the boundaries that are known now: begin and end of whole steps."""
        self._calls.add(table)
        boundaries = self._follow()
        if self._departed() and self._learn(_MANY_PERIODS):
            boundaries += self._follow()
        self._trim()
        return boundaries

    def finish(self) -> list[Boundary]:
        """The process makes no more calls: what has come a few times is a step."""
        boundaries = self._follow(last=True)
        return boundaries + self._follow(last=True) if not self.known and self._learn(_PERIODS) else boundaries

    def restart(self) -> list[Boundary]:
        """As finish, but the process goes on, with its job set up anew. The numbers go on with the steps completed."""
        boundaries = self.finish()
        self._calls, self._cycle, self._at, self._looked, self._late = _Calls(), None, 0, 0, False
        return boundaries

    def _departed(self) -> bool:
        """Whether so much has been called that is no step that all is to be looked through."""
        if self.pending < (self._cycle.length if self._cycle else _PERIODS):
            return False
        grown = len(self._calls) >= self._looked * _LEAST_GROWTH
        return grown and int(self._calls.rows["time_ns"][-1]) >= self._looked_ns + _LOOK_NS

    def _learn(self, many: int) -> bool:
        """Whether there is a cycle that was not there before."""
        calls = self._calls
        self._looked, self._looked_ns = len(calls), int(calls.rows["time_ns"][-1]) if len(calls) else 0
        found = self._best(self._at if self._cycle else 0, many)
        if found is None or (self._cycle and self._cycle.recurs_as(found)):
            return False
        if self._cycle is None:
            self._begin(found)
        self._cycle = found
        return True

    def _best(self, since: int, many: int) -> "_Cycle | None":
        """The shortest cycle that explains most of what was called from there on; or one that is longer, and comes as
        often: that is all of the step, of which the short one is what steps of every length have in common."""
        calls, best, most = self._calls, None, 0
        for run in _recurring(calls.words[since:]):
            run = _Run(run.begin + since, run.end + since, run.period)
            found = _cut(calls, run, cold=not self._late and not since)
            if found.may_be_part or _rounds_ns(calls, run) < _LEAST_NS:
                continue
            comes = found.all(calls, since)
            times_ns = calls.rows["time_ns"][comes]
            often = len(comes) >= many or (len(comes) > _PERIODS and int(times_ns[-1] - times_ns[0]) > _LONG_NS)
            if (
                often
                and len(comes) + 1 >= most  # the last one may not be over
                and _explains(found, calls.rows[since:], calls.rows[run.begin : run.begin + run.period], len(comes))
            ):
                best, most = found, max(most, len(comes))
        return best

    def _begin(self, cycle: "_Cycle") -> None:
        """What comes before the first whole one is a step, too, if it has as many backward passes."""
        begin = cycle.find(self._calls, self._at, cycle.words)
        before, within = (int((words == _BACKWARD).sum()) for words in (self._calls.words[:begin], cycle.words))
        if not self._late and begin > 0 and within and before == within:
            cycle.first = begin
        else:
            self._at = begin

    def _follow(self, last: bool = False) -> list[Boundary]:
        """The whole steps that have come since. last: nothing that is not over yet will be."""
        boundaries: list[Boundary] = []
        cycle, calls = self._cycle, self._calls
        while cycle is not None:
            if not cycle.first and (times := cycle.times(calls, self._at)):
                begin = self._at + (times - 1) * cycle.length
                boundaries += self._repeat(cycle, times)
                end = self._at
            step = (0, cycle.first) if cycle.first else cycle.next(calls, self._at, last)
            end_ns = calls.over_ns(*step, last) if step else 0
            if not step or not end_ns:
                break
            begin, end = step
            self.iteration += 1
            boundaries.append((self.iteration, Moment.FIRST_ENQUEUE, calls.begun_ns(begin, end)))
            if calls.rows["ends"][begin:end].all():
                boundaries.append((self.iteration, Moment.LAST_WAIT, end_ns))
            self._at, cycle.first = end, 0
        if boundaries:
            self.size = summed_size(calls.rows["size"][begin:end][calls.rows["sums"][begin:end]])
        return boundaries

    def _repeat(self, cycle: "_Cycle", times: int) -> list[Boundary]:
        """The next steps, so many, which are the cycle's calls one after the other: as following them one by one."""
        rows = self._calls.rows[self._at : self._at + times * cycle.length].reshape(times, cycle.length)
        called = np.flatnonzero(cycle.words != _BACKWARD)
        over_ns = rows["over_ns"].max(axis=1)
        if len(called):
            over_ns = np.maximum(rows["over_ns"][:, called].max(axis=1), rows["time_ns"][:, called[-1]])
        begun_ns = rows["time_ns"][:, called[0] if len(called) else 0]
        boundaries = list[Boundary]()
        ends = np.all(rows["ends"], axis=1).tolist()
        for begin_ns, end_ns, is_end in zip(begun_ns.tolist(), over_ns.tolist(), ends, strict=True):
            self.iteration += 1
            boundaries.append((self.iteration, Moment.FIRST_ENQUEUE, begin_ns))
            if is_end:
                boundaries.append((self.iteration, Moment.LAST_WAIT, end_ns))
        self._at += times * cycle.length
        return boundaries

    def _trim(self) -> None:
        most = min(_MOST_CALLS, 2 * _MANY_PERIODS * self._cycle.length) if self._cycle else _MOST_CALLS
        gone = len(self._calls) - most
        if gone > most // 4:
            self._late |= gone > self._at
            self._calls.drop(gone)
            self._at, self._looked = max(0, self._at - gone), max(0, self._looked - gone)


_CALL = np.dtype(
    [
        ("word", "u8"),
        ("time_ns", "i8"),
        ("over_ns", "i8"),  # 0: not yet, −1: never known; of what does not report its end: it was called
        ("quiet_ns", "i8"),  # for so long nothing had happened before
        ("size", "u8"),  # as STEP has it
        ("work", "u8"),
        ("peer", "u4"),  # of a transfer between two ranks
        ("way", "i1"),  # of such a one: 1: to this rank, −1: from it
        ("sums", "?"),  # what is sent is summed
        ("ends", "?"),  # its end is reported
        ("idle", "?"),  # nothing is under way between this rank and another one
    ]
)


class _Calls:
    """The calls of a process, in order."""

    def __init__(self) -> None:
        self.rows: Table = empty(_CALL)
        self._open: _Places = np.zeros(0, np.intp)  # those that are not over
        self._under_way = 0  # transfers between two ranks
        self._last_ns = 0

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def words(self) -> _Words:
        words: _Words = self.rows["word"]
        return words

    def add(self, table: Table) -> None:
        """table: dtype STEP. What was called while groups were being made is forgotten."""
        tells = _tells(table)
        table = table if tells.all() else table.compress(tells)
        kind = table["kind"]
        made = np.flatnonzero((kind == STEP_GROUP) | (kind == STEP_GROUP_NAME))
        if len(made) and len(self) < _PERIODS:
            self.drop(len(self))
            table, kind = table[made[-1] + 1 :], kind[made[-1] + 1 :]
        if not len(table):
            return
        times = table["time_ns"].astype(np.int64)
        quiet = np.empty(len(times), np.int64)
        quiet[0] = times[0] - (self._last_ns or times[0])
        np.subtract(times[1:], times[:-1], out=quiet[1:])
        self._last_ns = int(times[-1])
        at = np.flatnonzero(_CALLS.take(kind))
        calls = table.take(at)
        operation, called = calls["tensors"], kind[at]
        begun = called == STEP_BEGIN
        rows = np.zeros(len(calls), _CALL)
        rows["time_ns"], rows["quiet_ns"] = times[at], quiet[at]
        rows["size"], rows["work"] = calls["size"], calls["work"]
        rows["over_ns"], rows["ends"] = np.where(begun, 0, times[at]), begun | (called == STEP_BACKWARD)
        rows["sums"] = begun & _SUMS[operation]
        two = begun & IS_TRANSFER[operation]
        if self._under_way or two.any():
            step = np.negative(kind == STEP_OVER, dtype=np.int64)
            step[at] += two
            under_way = self._under_way + np.cumsum(step)
            under_way -= np.minimum(np.minimum.accumulate(under_way), 0)  # begun before it was watched
            self._under_way = int(under_way[-1])
            rows["idle"] = two & (under_way[at] <= 1)
            rows["peer"] = np.where(two, calls["sequence"], 0)
            rows["way"] = np.where(two, np.where(operation == Operation.RECEIVE, 1, -1), 0)
        rows["word"] = _words(calls, rows)
        work, role = table["work"], ROLES.take(kind)
        role[(kind == STEP_WAIT_END) & (work == 0)] = NOTHING
        self._pair(work, role, times, len(self) + np.flatnonzero(begun), rows)

    def _pair(self, work: _Words, role: npt.NDArray[np.uint8], times: _Times, begun: _Places, rows: Table) -> None:
        """Takes in these calls, whose works are begun there, and what is over of all that is open."""
        before = self._open
        works = Works(work, role, self.rows["work"][before])
        self._open, self.rows = np.concatenate([before, begun]), joined([self.rows, rows])
        ended_ns = np.concatenate([np.zeros(len(before), np.int64), times])[works.over]
        over_ns = np.where(works.over >= 0, ended_ns, np.where(works.again, -1, 0))
        self.rows["over_ns"][self._open] = over_ns
        self._open = self._open[over_ns == 0]

    def begun_ns(self, begin: int, end: int) -> int:
        """When the first of these calls began, which is no backward pass."""
        calls = np.flatnonzero(self.words[begin:end] != _BACKWARD)
        return int(self.rows["time_ns"][begin + (calls[0] if len(calls) else 0)])

    def over_ns(self, begin: int, end: int, last: bool) -> int:
        """When these calls were over, but for backward passes; 0: they are not yet.

        What goes on when the next call begins is not waited for.
        """
        over = self.rows["over_ns"][begin:end]
        if end >= len(self.words) and not last and (over == 0).any():
            return 0
        calls = np.flatnonzero(self.words[begin:end] != _BACKWARD)
        if not len(calls):
            return int(over.max())
        return int(max(over[calls].max(), self.rows["time_ns"][begin + calls[-1]]))

    def drop(self, count: int) -> None:
        """The first ones."""
        self.rows = joined([self.rows[count:]])
        self._open = self._open[self._open >= count] - count


def _tells(table: Table) -> _Flags:
    """What is of interest. A call that is reported by more than one name counts once."""
    tells: _Flags = _BEGUN_ONLY.take(table["kind"])
    return tells if tells.all() else tells | (table["library"] != LIBRARY_GLOO)


def _words(table: Table, rows: Table) -> _Words:
    """Of calls: one number each, the same for the same operation in the same group with the same rank.

    For a transfer it counts, too, whether all that was sent before has been waited for, as at the end of a step; in a
    compiled program, whose shapes never change, how much is sent.
    """
    kind, backward, compiled = table["kind"], table["kind"] == STEP_BACKWARD, table["library"] == LIBRARY_XLA
    what = table["tensors"].astype(np.uint64)
    if not (begun := kind == STEP_BEGIN).all():
        other = kind.astype(np.uint64) << np.uint64(8) | table["library"].astype(np.uint64) << np.uint64(16)
        what = np.where(begun, what, other)
    words: _Words = table["name_hash"] * _FACTORS[0] ^ what * _FACTORS[1]
    if (two := rows["way"] != 0).any():
        words ^= np.where(two, rows["peer"].astype(np.uint64) + np.uint64(1), np.uint64(0)) * _FACTORS[2]
    words[backward] = _BACKWARD
    words[rows["idle"]] ^= _IDLE
    if compiled.any():
        words[compiled] ^= table["size"][compiled] * _FACTORS[2]
    return words


@dataclass
class _Cycle:
    """The calls of a step, in order. pause_ns: before its first one, or in it; 0: it is known by its calls alone."""

    words: _Words
    pause_ns: int = 0
    waits: bool = False
    may_be_part: bool = False
    first: int = 0  # calls of the first step of all, which are others

    @property
    def length(self) -> int:
        return len(self.words)

    def recurs_as(self, other: "_Cycle") -> bool:
        """Whether both are the same calls one after the other, wherever they are taken to begin."""
        if self.length != other.length:
            return False
        shifts = np.flatnonzero(other.words == self.words[0]).tolist()
        return any(np.array_equal(np.roll(other.words, -shift), self.words) for shift in shifts)

    def all(self, calls: _Calls, at: int) -> list[int]:
        """Where it comes, one after the other, from there on."""
        found = list[int]()
        while (step := self.next(calls, at)) is not None:
            found.append(step[0])
            at = step[1]
        return found

    def times(self, calls: _Calls, at: int) -> int:
        """How often its calls come from there on with nothing else between, and with another call after them."""
        most = (len(calls) - 1 - at) // self.length
        if self.pause_ns or most <= 0:
            return 0
        same = (calls.words[at : at + most * self.length].reshape(most, self.length) == self.words).all(axis=1)
        return most if same.all() else int(same.argmin())

    def next(self, calls: _Calls, at: int, last: bool = False) -> tuple[int, int] | None:
        """From where to where the next one is, once it is whole. last: no more calls will come.

        Its first calls may be fewer than normal, as they are after an evaluation which has left parameters in place.
        """
        forward = self.forward if not self.pause_ns else 0
        forward_words, rest = self.words[:forward][::-1], self.words[forward:]
        begin = at + forward  # mostly
        if self.pause_ns or not np.array_equal(calls.words[at : at + self.length], self.words):
            begin = self.find(calls, at, rest)
        while begin >= 0:
            before = calls.words[max(at, begin - forward) : begin][::-1]
            differ = np.flatnonzero(before != forward_words[: len(before)])
            same = int(differ[0]) if len(differ) else len(before)
            step = begin - same, begin + len(rest)
            if 2 * same >= forward and not self._within_longer(calls, at, step, last):
                return self._bordered(calls, at, begin - same, last) or step
            begin = self.find(calls, begin + 1, rest)
        return self._bordered(calls, at, len(calls), last)

    @cached_property
    def _has_border(self) -> bool:
        """Whether its last call and its first one come after each other between two steps alone."""
        border = (self.words == self.words[0]) & (np.roll(self.words, 1) == self.words[-1])
        return not self.pause_ns and int(border.sum()) == 1 and self.words[0] != _BACKWARD

    def _within_longer(self, calls: _Calls, at: int, step: tuple[int, int], ended: bool) -> bool:
        """Whether these calls are a part of a step that begins before and ends after them, as with more micro-batches;
        or may be, as long as the next call is not there."""
        begin, end = step
        if not self._has_border or begin == at or not self._inside(calls.words[begin - 1], self.words[-1]):
            return False
        return self._inside(calls.words[end], self.words[0]) if end < len(calls) else not ended

    def _inside(self, word: np.uint64, at_border: np.uint64) -> bool:
        return bool(word != at_border and (self.words == word).any())

    def _bordered(self, calls: _Calls, at: int, before: int, ended: bool) -> tuple[int, int] | None:
        """A step of another length, as with fewer micro-batches: from one border to the next, the same calls within.

        before: where one of the normal length begins; ended: no more calls will come.
        """
        if not self._has_border:
            return None
        last, first = self.words[-1], self.words[0]
        words = calls.words[at : before + 1]
        after = 1 + np.flatnonzero(words[:-1] == last)
        if len(after):
            after = after[(words[after] == first) | ~np.isin(words[after], self.words)]
        borders = [0, *after.tolist()]
        if ended and len(words) and words[-1] == last:
            borders.append(len(words))
        for begin, end in pairwise(borders):
            part = words[begin:end]
            same_kinds = np.isin(part, self.words).all() and np.isin(self.words, part).all()
            if part[0] == first and same_kinds:
                return at + begin, at + end
        return None

    @cached_property
    def forward(self) -> int:
        """So many calls come before the first backward pass; 0: there is none."""
        passes = np.flatnonzero(self.words == _BACKWARD)
        return int(passes[0]) if len(passes) else 0

    def find(self, calls: _Calls, at: int, wanted: _Words) -> int:
        """Where these calls come next, from there on; −1: nowhere. Mostly that is near."""
        last, near = len(calls) - len(wanted), 4 * len(wanted)
        while at <= last:
            until = min(at + near, last + 1)
            if (found := self._within(calls, at, until, wanted)) >= 0:
                return found
            at, near = until, 2 * near
        return -1

    def _within(self, calls: _Calls, at: int, until: int, wanted: _Words) -> int:
        words, rows, few = calls.words, calls.rows[at:until], min(_COMPARED, len(wanted))
        fits = (rows["over_ns"] - rows["time_ns"] if self.waits else rows["quiet_ns"]) >= self.pause_ns
        for place in range(few):
            fits &= words[at + place : until + place] == wanted[place]
        for begin in (at + np.flatnonzero(fits)).tolist():
            if np.array_equal(words[begin + few : begin + len(wanted)], wanted[few:]):
                return int(begin)
        return -1


class _Run(NamedTuple):
    """Calls that recur with a period, a few times or more."""

    begin: int
    end: int
    period: int


def _recurring(words: _Words) -> list[_Run]:
    """Runs within these calls, some of which may belong to none: one of each period, the shortest first."""
    count, found = len(words), dict[int, _Run]()
    for end in sorted({count, *np.linspace(count / 2, count, _LOOKS, dtype=int).tolist()}):
        for run in _runs_before(words[:end]):
            known = found.get(run.period)
            if known is None or run.end - run.begin > known.end - known.begin:
                found[run.period] = run
    return [found[period] for period in sorted(found)[:_MOST_RUNS]]


def _runs_before(words: _Words) -> Iterator[_Run]:
    """With which periods the last words recur, the shortest first; none that is a multiple of one before."""
    count = len(words)
    if count < _PERIODS:
        return
    window = min(_COMPARED, count // _PERIODS)
    same = (np.lib.stride_tricks.sliding_window_view(words, window) == words[count - window :]).all(axis=1)
    periods, begins = count - window - np.flatnonzero(same[:-1])[::-1], count
    for _ in range(_MOST_TRIED):
        if not len(periods) or _PERIODS * periods[0] > count:
            break
        period, periods = int(periods[0]), periods[1:]
        if not np.array_equal(words[count - 2 * period :], words[count - 3 * period : count - period]):
            continue
        differs = np.flatnonzero(words[:-period] != words[period:])
        begin = int(differs[-1]) + 1 if len(differs) else 0
        if begin < begins - period:
            yield _Run(begin, count, period)
            begins = begin
        if not begin:
            break
        again = begin - 1 + periods  # a longer run needs the word there that breaks this one
        periods = periods[(again >= count) | (words[np.minimum(again, count - 1)] == words[begin - 1])]


def _cut(calls: _Calls, run: _Run, cold: bool) -> _Cycle:
    """The cycle of this run, beginning where a step does. cold: the first call of all is in the first step."""
    begin, end, period = run
    rounds = (end - begin) // period
    whole = slice(begin, begin + rounds * period)
    rows = calls.rows[whole].reshape(rounds, period)
    quiet, sizes = rows["quiet_ns"], rows["size"]
    words = calls.words[begin : begin + period]
    two = (calls.rows["way"][begin : begin + period] != 0) | (words == _BACKWARD)
    if period == 1:
        return _Cycle(words, may_be_part=rounds < _CERTAIN)
    if two.all() and len(distinct(words)) == period:
        took = rows["over_ns"] - rows["time_ns"]
        return _by_pauses(words, quiet) or _by_pauses(words, took, waits=True) or _Cycle(words, may_be_part=True)
    shift = _first_forward(calls, words, np.where((sizes == sizes[0]).all(axis=0), sizes[0], 0)) if cold else -1
    if shift < 0:
        shift = _after_sums(words, calls.rows["sums"][begin : begin + period])
    if shift < 0:
        idle = calls.rows["idle"][begin : begin + period]
        same = np.where(idle, words ^ _IDLE, words)
        longer = _longer_than_median(same, quiet, not two.all())
        if two.all():
            longer = _where_idle(longer, idle, _balanced(calls, run))
        shift = int(longer.argmax())
        if not cold and not rows["way"].any():  # what a backward pass is followed by is of the same step
            before = np.flatnonzero(np.roll(words, -shift)[::-1] != _BACKWARD)
            shift -= int(before[0]) if len(before) else 0
    return _Cycle(np.roll(words, -shift))


def _after_sums(words: _Words, sums: _Flags) -> int:
    """Where in a cycle something else follows a sum that is not made again before the next backward pass; −1: nowhere,
    or at more than one position. Of these, the one that follows the only sum of its kind in the cycle."""
    found = []
    follows = np.roll(sums, 1) & (np.roll(words, 1) != words) & (words != _BACKWARD)
    for place in np.flatnonzero(follows).tolist():
        on = np.roll(words, -place)
        passes = np.flatnonzero(on == _BACKWARD)
        if not len(passes) or not (on[: passes[0]] == on[-1]).any():
            found.append(place)
    strict = [place for place in found if not sums[place]]
    if len(strict) == 1:
        return strict[0]
    only = [place for place in found if (words == words[place - 1]).sum() == 1]
    return only[0] if len(only) == 1 else -1


def _where_idle(longer: _Floats, idle: _Flags, balanced: _Flags) -> _Floats:
    """Of the stage of a pipeline: a step begins where nothing is under way, and where that says too little, as soon."""
    for fits in (idle & balanced, idle, balanced):
        found = np.where(fits, longer, -np.inf)
        if np.isfinite(found).any():
            second, best = np.sort(found)[-2:]
            soon = np.where(fits & ~np.roll(idle, 1), longer, -np.inf)
            return found if best > _MUCH_LONGER * max(second, 0) or not np.isfinite(soon).any() else soon
    return longer


def _balanced(calls: _Calls, run: _Run) -> _Flags:
    """Before which calls of a cycle nothing is under way between this rank and another one.

    What a stage of a pipeline takes from the one before, it sends back in the backward pass, and the other way round.
    """
    rows, balanced = calls.rows[run.begin : run.begin + run.period], np.ones(run.period, bool)
    for peer in distinct(rows["peer"][rows["way"] != 0]).tolist():
        step = np.where(rows["peer"] == peer, rows["way"], 0).astype(np.int64)
        sum_before = np.cumsum(step) - step
        balanced &= (sum_before == sum_before.min()) | (sum_before == sum_before.max())
    return balanced


def _rounds_ns(calls: _Calls, run: _Run) -> float:
    """How long a round of it takes."""
    begin, end = calls.rows["time_ns"][[run.begin, run.end - 1]].tolist()
    return float(end - begin) * run.period / (run.end - run.begin)


def _explains(cycle: _Cycle, rows: Table, of_round: Table, times: int) -> bool:
    """Whether a cycle that has come so often is most of what was called: of all, or of the backward passes, if there
    are any, and of the sums.

    of_round: the calls of one round, of which a cycle may have more.
    """
    passes, of_cycle = rows["word"] == _BACKWARD, cycle.words == _BACKWARD
    all_of, within = (passes.sum(), of_cycle.sum()) if passes.any() else (len(rows), cycle.length)
    sums, summed = rows["sums"].sum(), of_round["sums"].sum() * (cycle.length // len(of_round))
    few = _PASSES_OF_SUM * sums < passes.sum()  # as those of an evaluation are
    return bool(times * within >= _MOST_OF * all_of and (few or 2 * times * summed >= sums))


def _longer_than_median(words: _Words, quiet: _Times, backward: bool) -> _Floats:
    """By how much a pause is nearly always longer than before the same call elsewhere in the cycle, or any other one.

    What always follows the beginning of a backward pass belongs to it: the pause is computing. backward: whether a step
    may begin with one, as nothing is called before.
    """
    longer = np.empty(len(words))
    for place, word in enumerate(words.tolist()):
        others = words == word
        others[place] = False
        median = np.median(quiet[:, others] if others.any() else quiet, axis=1)
        longer[place] = np.percentile(quiet[:, place] - median, _NEARLY_ALWAYS)
    after = np.roll(words, 1) == _BACKWARD
    of_backward = np.array([after[words == word].all() for word in words.tolist()])
    if of_backward[words != _BACKWARD].all() or not backward:
        of_backward |= words == _BACKWARD
    longer[of_backward] = -np.inf
    return longer


def _first_forward(calls: _Calls, cycle: _Words, sizes: _Words) -> int:
    """Where in a cycle a step begins, by what was called before the first backward pass; −1: inconclusive.

    sizes: of its calls; 0: they differ.
    """
    passes = np.flatnonzero(calls.words == _BACKWARD)
    rows = calls.rows[: passes[0]] if len(passes) else calls.rows[:0]
    setting_up = np.flatnonzero(~np.isin(rows["word"], cycle))
    rows = rows[setting_up[-1] + 1 :] if len(setting_up) else rows
    first, before, sized = len(rows), rows["word"][::-1], rows["size"][::-1]
    most, shift = 0, -1
    for place in np.flatnonzero(cycle == _BACKWARD).tolist():
        theirs, their_sizes = (np.roll(column, -place)[::-1][:first] for column in (cycle, sizes))
        ours, our_sizes = before[: len(theirs)], sized[: len(theirs)]
        differ = np.flatnonzero((theirs != ours) | ((their_sizes != our_sizes) & (their_sizes > 0)))
        same = int(differ[0]) if len(differ) else len(theirs)
        if same > most:
            most, shift = same, (place - same) % len(cycle)
    if not most and len(passes) and not calls.rows["way"].any():  # nothing is called in it
        begins = (cycle == _BACKWARD) & (np.roll(cycle, 1) != _BACKWARD)
        return int(np.flatnonzero(begins)[0]) if begins.any() else -1
    return shift if most == first or most >= max(3, first / 2) else -1


def _by_pauses(cycle: _Words, pauses: _Times, waits: bool = False) -> _Cycle | None:
    """Of a cycle that may be a micro-batch: so many of them as there are from one long pause to the next.

    pauses: (rounds, calls); waits: they are in the calls, not before them.
    """
    for number in range(2, min(_MOST_MICRO_BATCHES, len(pauses) // _PERIODS) + 1):
        for shift in range(len(cycle)):
            column = pauses[1:, shift]
            for first in range(number if cycle[shift] != _BACKWARD else 0):
                long = np.zeros(len(column), bool)
                long[first::number] = True
                if long.sum() < _PERIODS - 1:
                    continue
                least, most = np.percentile(column[long], 10), max(1.0, np.percentile(column[~long], 90))
                if least > _MUCH_LONGER * most:
                    words = np.tile(np.roll(cycle, -shift), number)
                    return _Cycle(words, int(np.sqrt(least * most)), waits)
    return None
