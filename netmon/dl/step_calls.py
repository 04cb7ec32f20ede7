# SPDX-License-Identifier: Apache-2.0
"""What a rank has called in each of its steps, added up by group, operation and other rank: how often, how many bytes,
and for how long its training thread waited for it. Rows of netmon.evidence.COLLECTIVE.

A call is open from its beginning until it is over, and waited for from when a thread begins to wait for it; of
concurrent calls the time counts once. While calls come they are only kept; they are looked through when a step is over,
and the next one has begun: what a rank sends may be over later.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from netmon.dl.grouped import joined, numbered, order_by, starts
from netmon.dl.operations import (
    BEGINS,
    IS_ANY_TRANSFER,
    IS_AWAITED,
    NOTHING,
    ROLES,
    GroupNames,
    Operation,
    Works,
    byte_sizes,
    waits_for_gradients,
)
from netmon.dl.rank_activity import UNNAMED
from netmon.evidence import COLLECTIVE, UNKNOWN
from netmon.records import STEP_BACKWARD, STEP_GROUP, STEP_GROUP_NAME, Table, empty

_CALL = np.dtype(
    [
        ("time_ns", "<i8"),
        ("work", "<u8"),
        ("size", "<i8"),  # bytes; −1: not known
        ("group", "<i8"),
        ("sequence", "<i8"),
        ("group_rank", "<i4"),
        ("group_size", "<i4"),
        ("peer", "<i4"),
        ("operation", "<i2"),
    ]
)
_PASS, _AWAITS_SUMS = IS_AWAITED + 1, IS_AWAITED + 2
"""Roles of calls that are of no work: a backward pass, DDP's wait for all sums that have been begun."""
_ROLES = ROLES.copy()
_ROLES[STEP_BACKWARD] = _PASS
_MOST_KEPT = 65_536  # calls and their events
_MOST_STEPS = 4_096  # that wait
_MOST_BYTES = 1 << 44  # of a call
_FOREVER = 1 << 62

_Numbers = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]
_Indices = npt.NDArray[np.intp]


@dataclass(frozen=True)
class _Calls:
    """In order of time. begun: dtype _CALL, of those that begin a work; the others: of all, one after the other."""

    time_ns: _Numbers
    work: npt.NDArray[np.uint64]
    role: npt.NDArray[np.uint8]
    begun: Table

    def __len__(self) -> int:
        return len(self.time_ns)

    def since(self, time_ns: int) -> "_Calls":
        """Those from then on."""
        first = int(np.searchsorted(self.time_ns, time_ns))
        begun = self.begun[np.count_nonzero(self.role[:first] == BEGINS) :]
        return _Calls(self.time_ns[first:], self.work[first:], self.role[first:], begun)


class _Step(NamedTuple):
    begin_ns: int  # of its first call
    end_ns: int


class StepCalls:
    """Of one process. Times are mono."""

    def __init__(self) -> None:
        self.last_ns = 0
        """The last call."""
        self._names = GroupNames()
        self._kept: list[_Calls] = []  # in order
        self._count = 0
        self._since_ns = 0  # calls before are not there
        self._end_ns = 0  # of the last step that was reported
        self._steps: list[_Step] = []

    def add(self, table: Table) -> None:
        """table: dtype STEP, in order of time."""
        kind = table["kind"]
        if (made := (kind == STEP_GROUP) | (kind == STEP_GROUP_NAME)).any():
            self._names.take(table[made])
        calls = self._calls(table)
        if len(calls):
            self._kept.append(calls)
            self.last_ns, self._count = int(calls.time_ns[-1]), self._count + len(calls)
        while self._count > _MOST_KEPT and len(self._kept) > 1:
            gone = self._kept.pop(0)
            self._count, self._since_ns = self._count - len(gone), int(gone.time_ns[-1]) + 1

    def forget(self) -> None:
        """Calls have been missed."""
        self._kept, self._count, self._since_ns = [], 0, self.last_ns + 1

    def step(self, begin_ns: int, end_ns: int) -> None:
        """A step is over; begin_ns: of its first call. One that does not come after those before is none."""
        before_ns = self._steps[-1].end_ns if self._steps else self._end_ns
        if not before_ns < end_ns or begin_ns > end_ns:
            return
        self._steps.append(_Step(begin_ns, end_ns))
        if len(self._steps) > _MOST_STEPS:
            self._end_ns = self._steps.pop(0).end_ns

    def take(self, rank: int, size: int, last: bool = False) -> Table:
        """dtype COLLECTIVE, without the job, rank, pid and size: of the steps after which another one has begun.

        rank, size: of the process in its job. last: no more steps will come.
        """
        ready = len(self._steps) if last else len(self._steps) - 1
        if ready <= 0:
            return empty(COLLECTIVE)
        steps, following = self._steps[:ready], self._steps[ready:]
        self._steps = following
        calls = _joined(self._kept)
        begin = np.array([step.begin_ns for step in (*steps, *following[:1])] + ([] if following else [_FOREVER]))
        end = np.array([step.end_ns for step in steps])
        before = np.concatenate([[self._end_ns or begin[0]], end[:-1]])
        first = np.minimum(begin[:-1], before + 1)  # its calls begin then
        until = np.minimum(begin[1:], end + 1)
        whole = begin[:-1] >= self._since_ns
        rows = _add_up(calls, first[whole], until[whole], before[whole], end[whole])
        self._end_ns = int(end[-1])
        kept = calls.since(int(until[-1]))
        self._kept, self._count = [kept] if len(kept) else [], len(kept)
        self._since_ns = max(self._since_ns, int(until[-1]))
        two, whole = IS_ANY_TRANSFER[rows["operation"]], rows["group_size"] == size
        unnamed = (rows["group"] == UNKNOWN) & np.where(two, (whole | two).all(), whole)  # else it may be another group
        rows["group_rank"][unnamed & two] = rank
        rows["group"][unnamed], rows["group_size"][unnamed] = UNNAMED, size
        return rows

    def _calls(self, table: Table) -> _Calls:
        role = _ROLES.take(table["kind"])
        role[waits_for_gradients(table)] = _AWAITS_SUMS
        if not (kept := role != NOTHING).all():
            table, role = table.compress(kept), role[kept]
        begun = table.take(np.flatnonzero(role == BEGINS))
        rows, operation, two = np.zeros(len(begun), _CALL), begun["tensors"], IS_ANY_TRANSFER[begun["tensors"]]
        unknown = np.where(operation == Operation.BARRIER, 0, UNKNOWN)
        addresses, place = numbered(begun["name_hash"])
        known = [self._names.by_address.get(one) for one in addresses.tolist()]
        named = np.array([one or (UNKNOWN, UNKNOWN, UNKNOWN) for one in known], np.int64).reshape(-1, 3)[place]
        unnamed = (named[:, 0] == UNKNOWN) & ~two
        sequence = begun["sequence"].astype(np.int64)
        rows["time_ns"], rows["operation"] = begun["time_ns"], np.minimum(operation, 0x7FFF)
        rows["size"] = np.where(begun["size"] > 0, np.minimum(byte_sizes(begun["size"]), _MOST_BYTES), unknown)
        rows["group"] = named[:, 0]
        rows["group_rank"] = np.where(unnamed, begun["group_rank"], named[:, 1])
        rows["group_size"] = np.where(unnamed, begun["group_size"], named[:, 2])
        rows["peer"] = np.where(two & (sequence <= 0xFFFF), sequence, UNKNOWN)
        rows["sequence"] = np.where(two, UNKNOWN, sequence)
        return _Calls(table["time_ns"].astype(np.int64), table["work"].copy(), role, rows)


def _joined(calls: list[_Calls]) -> _Calls:
    if len(calls) == 1:
        return calls[0]
    return _Calls(
        np.concatenate([np.zeros(0, np.int64), *(one.time_ns for one in calls)]),
        np.concatenate([np.zeros(0, np.uint64), *(one.work for one in calls)]),
        np.concatenate([np.zeros(0, np.uint8), *(one.role for one in calls)]),
        joined([empty(_CALL), *(one.begun for one in calls)]),
    )


def _add_up(calls: _Calls, first: _Numbers, until: _Numbers, start: _Numbers, end: _Numbers) -> Table:
    """Rows of the steps whose calls begin from `first` on and before `until`; they last from `start` to `end`."""
    begun, time_ns = calls.begun, calls.begun["time_ns"].copy()
    over, wait = _paired(calls)
    step = np.searchsorted(first, time_ns, "right") - 1
    inside = (step >= 0) & (time_ns < until[np.maximum(step, 0)]) if len(first) else np.zeros(len(begun), bool)
    if not inside.all():
        begun, over, wait, step = begun.compress(inside), over[inside], wait[inside], step[inside]
    if not len(begun):
        return empty(COLLECTIVE)
    distance = UNKNOWN - 1 - (begun["group_size"].astype(np.int64) << 17) - begun["group_rank"]
    group = numbered(np.where(begun["group"] == UNKNOWN, distance, begun["group"]))[1]
    order = order_by(step, group, begun["operation"], begun["peer"] + 1, begun["time_ns"])
    begun, over, wait, step, group = begun.take(order), over[order], wait[order], step[order], group[order]
    time_ns, size = begun["time_ns"].copy(), begun["size"].copy()
    run_first = starts(step, group, begun["operation"], begun["peer"])
    run = np.cumsum(np.bincount(run_first, minlength=len(begun))) - 1
    over = np.where(over > 0, over, np.maximum(end[step], time_ns))
    waited = np.where(wait > 0, over - wait, 0)
    rows = np.full(len(run_first), UNKNOWN, COLLECTIVE)
    of = step[run_first]
    rows["start_ns"], rows["end_ns"] = start[of], end[of]
    for name in ("group", "group_rank", "group_size", "operation", "peer"):
        rows[name] = begun[name][run_first]
    rows["calls"] = np.diff(np.append(run_first, len(begun)))
    rows["bytes"] = _sums(size, run_first)
    passes = calls.time_ns[calls.role == _PASS]
    passed = np.append(passes, _FOREVER)[np.searchsorted(passes, first)]  # of each step the first backward pass
    forward = time_ns < passed[step]
    known = passed[of] < until[of]
    rows["forward_calls"] = np.where(known, np.add.reduceat(forward.astype(np.int64), run_first), UNKNOWN)
    rows["forward_bytes"] = np.where(known, _sums(np.where(forward, size, 0), run_first), UNKNOWN)
    rows["open_ns"] = _union(time_ns, over, run, run_first)
    since = np.where(wait > 0, wait, over)
    by_wait = order_by(run, since)
    rows["waited_ns"] = _union(since[by_wait], over[by_wait], run, run_first)
    rows["first_at_ns"] = np.maximum(0, time_ns[run_first] - start[of])
    rows["last_at_ns"] = np.maximum(0, np.maximum.reduceat(over, run_first) - start[of])
    longest = _largest(waited, run, run_first)
    rows["longest_ns"], rows["longest_sequence"] = waited[longest], begun["sequence"][longest]
    rows["longest_at_ns"] = np.maximum(0, time_ns[longest] - start[of])
    own = _own_time(time_ns, np.concatenate([time_ns, over[wait > 0], start]))
    late = _largest(own, run, run_first)
    rows["late_ns"], rows["late_sequence"] = own[late], begun["sequence"][late]
    rows["late_at_ns"] = np.maximum(0, time_ns[late] - start[of])
    return rows


def _paired(calls: _Calls) -> tuple[_Numbers, _Numbers]:
    """Of the works that are begun, in order, when each is over, and since when a thread waits for it. 0: it is not,
    nobody does."""
    time_ns, works = calls.time_ns, Works(calls.work, calls.role)
    end, first = works.over, works.awaited
    over = np.where(end >= 0, time_ns[end], 0)
    wait = np.where((first >= 0) & ((end < 0) | (first < end)), time_ns[first], 0)
    reducer = time_ns[calls.role == _AWAITS_SUMS]
    if len(reducer):
        since = np.append(reducer, _FOREVER)[np.searchsorted(reducer, time_ns[works.begun])]
        is_sum = calls.begun["operation"] == Operation.ALL_REDUCE
        waited = is_sum & (wait == 0) & ((since < over) | (end < 0)) & (since < _FOREVER)
        wait = np.where(waited, since, wait)
    return over, wait


def _sums(sizes: _Numbers, first: _Indices) -> _Numbers:
    """Unknown where one of them is."""
    known = np.minimum.reduceat(sizes, first) >= 0
    found: _Numbers = np.where(known, np.add.reduceat(sizes, first), UNKNOWN)
    return found


def _union(begin: _Numbers, end: _Numbers, run: _Numbers, first: _Indices) -> _Numbers:
    """How much of time the spans of each run cover; by run and begin."""
    zero, width = int(begin.min()), int(max(end.max(), begin.max()) - begin.min()) + 1
    if width * (len(first) + 1) >= _FOREVER:  # nobody's steps
        return np.zeros(len(first), np.int64)
    latest = np.maximum.accumulate(end - zero + run * width)
    before = np.concatenate([[0], latest[:-1]]) - run * width + zero
    before[first] = begin[first]
    found: _Numbers = np.add.reduceat(np.maximum(0, end - np.maximum(begin, before)), first)
    return found


def _largest(value: _Numbers, run: _Numbers, first: _Indices) -> _Indices:
    """Of each run the place of its largest value, of equal ones the last."""
    largest = np.flatnonzero(value == np.maximum.reduceat(value, first)[run])
    found = np.empty(len(first), np.intp)
    found[run[largest]] = largest
    return found


def _own_time(begun: _Numbers, events: _Numbers) -> _Numbers:
    """Before each call the time since anything else had happened."""
    events = np.sort(events, kind="stable")  # of runs that are in order
    place = np.searchsorted(events, begun)
    found: _Numbers = np.where(place > 0, begun - events[np.maximum(place, 1) - 1], 0)
    return found
