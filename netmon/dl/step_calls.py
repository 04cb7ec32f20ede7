# SPDX-License-Identifier: Apache-2.0
"""What a rank has called in each of its steps, added up by group, operation and other rank: how often, how many bytes,
and for how long its training thread waited for it. Rows of netmon.evidence.COLLECTIVE.

A call is open from its beginning until it is over, and waited for from when a thread begins to wait for it; of
concurrent calls the time counts once. While calls come they are only kept; they are looked through when a step is over,
and the next one has begun: what a rank sends may be over later.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from netmon.dl.grouped import joined, order_by, starts
from netmon.dl.operations import (
    ALL_TRANSFERS,
    ENDS,
    OF_WORKS,
    WAITS,
    GroupNames,
    Operation,
    Works,
    byte_sizes,
    waits_for_gradients,
)
from netmon.dl.rank_activity import UNNAMED
from netmon.evidence import COLLECTIVE, UNKNOWN
from netmon.records import STEP_BACKWARD, STEP_BEGIN, STEP_GROUP, STEP_GROUP_NAME, STEP_WAIT_BEGIN, Table, empty

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
        ("kind", "u1"),
    ]
)
_KEPT = OF_WORKS.copy()
_KEPT[STEP_BACKWARD] = True
_MOST_KEPT = 65_536  # calls and their events
_MOST_STEPS = 4_096  # that wait
_MOST_BYTES = 1 << 44  # of a call
_FOREVER = 1 << 62

_Numbers = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]
_Indices = npt.NDArray[np.intp]


class _Step(NamedTuple):
    begin_ns: int  # of its first call
    end_ns: int


class StepCalls:
    """Of one process. Times are mono."""

    def __init__(self) -> None:
        self.last_ns = 0
        """The last call."""
        self._names = GroupNames()
        self._kept: list[Table] = []  # dtype _CALL, in order
        self._count = 0
        self._since_ns = 0  # calls before are not there
        self._end_ns = 0  # of the last step that was reported
        self._steps: list[_Step] = []

    def add(self, table: Table) -> None:
        """table: dtype STEP, in order of time."""
        kind = table["kind"]
        made = (kind == STEP_GROUP) | (kind == STEP_GROUP_NAME)
        if made.any():
            self._names.take(table[made])
        table = table.compress(_KEPT[kind])
        if len(table):
            self._kept.append(self._calls(table))
            self.last_ns, self._count = int(table["time_ns"][-1]), self._count + len(table)
        while self._count > _MOST_KEPT and len(self._kept) > 1:
            gone = self._kept.pop(0)
            self._count, self._since_ns = self._count - len(gone), int(gone["time_ns"][-1]) + 1

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
        calls = joined([empty(_CALL), *self._kept])
        begin = np.array([step.begin_ns for step in (*steps, *following[:1])] + ([] if following else [_FOREVER]))
        end = np.array([step.end_ns for step in steps])
        before = np.concatenate([[self._end_ns or begin[0]], end[:-1]])
        first = np.minimum(begin[:-1], before + 1)  # its calls begin then
        until = np.minimum(begin[1:], end + 1)
        whole = begin[:-1] >= self._since_ns
        rows = _add_up(calls, first[whole], until[whole], before[whole], end[whole])
        self._end_ns = int(end[-1])
        kept = calls.compress(calls["time_ns"] >= until[-1])
        self._kept, self._count = [kept] if len(kept) else [], len(kept)
        self._since_ns = max(self._since_ns, int(until[-1]))
        two, whole = _of_two(rows["operation"]), rows["group_size"] == size
        unnamed = (rows["group"] == UNKNOWN) & np.where(two, (whole | two).all(), whole)  # else it may be another group
        rows["group_rank"][unnamed & two] = rank
        rows["group"][unnamed], rows["group_size"][unnamed] = UNNAMED, size
        return rows

    def _calls(self, table: Table) -> Table:
        rows = np.zeros(len(table), _CALL)
        rows["time_ns"], rows["work"], rows["kind"] = table["time_ns"], table["work"], table["kind"]
        rows["operation"] = waits_for_gradients(table)  # of what is no beginning
        at = np.flatnonzero(table["kind"] == STEP_BEGIN)
        begun, two = table.take(at), _of_two(table["tensors"][at])
        unknown = np.where(begun["tensors"] == Operation.BARRIER, 0, UNKNOWN)
        sizes = np.where(begun["size"] > 0, np.minimum(byte_sizes(begun["size"]), _MOST_BYTES), unknown)
        addresses, place = np.unique(begun["name_hash"], return_inverse=True)
        known = [self._names.by_address.get(one) for one in addresses.tolist()]
        named = np.array([one or (UNKNOWN, UNKNOWN, UNKNOWN) for one in known], np.int64).reshape(-1, 3)[place]
        unnamed = (named[:, 0] == UNKNOWN) & ~two
        rows["group"][at] = named[:, 0]
        rows["group_rank"][at] = np.where(unnamed, begun["group_rank"], named[:, 1])
        rows["group_size"][at] = np.where(unnamed, begun["group_size"], named[:, 2])
        sequence = begun["sequence"].astype(np.int64)
        rows["peer"][at] = np.where(two & (sequence <= 0xFFFF), sequence, UNKNOWN)
        rows["sequence"][at] = np.where(two, UNKNOWN, sequence)
        rows["operation"][at], rows["size"][at] = np.minimum(begun["tensors"], 0x7FFF), sizes
        return rows


def _of_two(operation: npt.NDArray[np.integer]) -> _Flags:
    found: _Flags = np.isin(operation, ALL_TRANSFERS)
    return found


def _add_up(calls: Table, first: _Numbers, until: _Numbers, start: _Numbers, end: _Numbers) -> Table:
    """Rows of the steps whose calls begin from `first` on and before `until`; they last from `start` to `end`."""
    at, over, wait = _paired(calls)
    begun = calls.take(at)
    step = np.searchsorted(first, begun["time_ns"], "right") - 1
    inside = (step >= 0) & (begun["time_ns"] < until[np.maximum(step, 0)]) if len(first) else np.zeros(len(at), bool)
    begun, over, wait, step = begun.compress(inside), over[inside], wait[inside], step[inside]
    if not len(begun):
        return empty(COLLECTIVE)
    distance = UNKNOWN - 1 - (begun["group_size"].astype(np.int64) << 17) - begun["group_rank"]
    group = np.unique(np.where(begun["group"] == UNKNOWN, distance, begun["group"]), return_inverse=True)[1]
    order = order_by(step, group, begun["operation"], begun["peer"] + 1, begun["time_ns"])
    begun, over, wait, step, group = begun.take(order), over[order], wait[order], step[order], group[order]
    run_first = starts(step, group, begun["operation"], begun["peer"])
    run = np.cumsum(np.bincount(run_first, minlength=len(begun))) - 1
    over = np.where(over > 0, over, np.maximum(end[step], begun["time_ns"]))
    waited = np.where(wait > 0, over - wait, 0)
    rows = np.full(len(run_first), UNKNOWN, COLLECTIVE)
    of = step[run_first]
    rows["start_ns"], rows["end_ns"] = start[of], end[of]
    for name in ("group", "group_rank", "group_size", "operation", "peer"):
        rows[name] = begun[name][run_first]
    rows["calls"] = np.diff(np.append(run_first, len(begun)))
    rows["bytes"] = _sums(begun["size"], run_first)
    passes = np.sort(calls["time_ns"][calls["kind"] == STEP_BACKWARD])
    passed = np.append(passes, _FOREVER)[np.searchsorted(passes, first)]  # of each step the first backward pass
    forward = begun["time_ns"] < passed[step]
    known = passed[of] < until[of]
    rows["forward_calls"] = np.where(known, np.add.reduceat(forward.astype(np.int64), run_first), UNKNOWN)
    rows["forward_bytes"] = np.where(known, _sums(np.where(forward, begun["size"], 0), run_first), UNKNOWN)
    rows["open_ns"] = _union(begun["time_ns"], over, run, run_first)
    since = np.where(wait > 0, wait, over)
    by_wait = np.lexsort((since, run))
    rows["waited_ns"] = _union(since[by_wait], over[by_wait], run, run_first)
    rows["first_at_ns"] = np.maximum(0, begun["time_ns"][run_first] - start[of])
    rows["last_at_ns"] = np.maximum(0, np.maximum.reduceat(over, run_first) - start[of])
    longest = _largest(waited, run, run_first)
    rows["longest_ns"], rows["longest_sequence"] = waited[longest], begun["sequence"][longest]
    rows["longest_at_ns"] = np.maximum(0, begun["time_ns"][longest] - start[of])
    own = _own_time(begun["time_ns"], np.concatenate([begun["time_ns"], over[wait > 0], start]))
    late = _largest(own, run, run_first)
    rows["late_ns"], rows["late_sequence"] = own[late], begun["sequence"][late]
    rows["late_at_ns"] = np.maximum(0, begun["time_ns"][late] - start[of])
    return rows


def _paired(calls: Table) -> tuple[_Indices, _Numbers, _Numbers]:
    """Which calls are beginnings, in order of time; when each is over, and since when a thread waits for it. 0: it is
    not, nobody does."""
    kind, time_ns = calls["kind"], calls["time_ns"]
    works = Works(calls["work"], kind)
    end, first = works.first(ENDS[kind]), works.first(WAITS[kind])
    over = np.where(end >= 0, time_ns[end], 0)
    wait = np.where((first >= 0) & ((end < 0) | (first < end)), time_ns[first], 0)
    reducer = np.sort(time_ns[(kind == STEP_WAIT_BEGIN) & (calls["operation"] == 1)])
    if len(reducer):  # DDP waits for all that has been begun
        since = np.append(reducer, _FOREVER)[np.searchsorted(reducer, time_ns[works.begun])]
        is_sum = calls["operation"][works.begun] == Operation.ALL_REDUCE
        waited = is_sum & (wait == 0) & ((since < over) | (end < 0)) & (since < _FOREVER)
        wait = np.where(waited, since, wait)
    return works.begun, over, wait


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
    """Of each run the place of its largest value."""
    order = np.lexsort((value, run))
    found: _Indices = order[np.append(first[1:], len(value)) - 1]
    return found


def _own_time(begun: _Numbers, events: _Numbers) -> _Numbers:
    """Before each call the time since anything else had happened."""
    events = np.sort(events, kind="stable")  # of runs that are in order
    place = np.searchsorted(events, begun)
    found: _Numbers = np.where(place > 0, begun - events[np.maximum(place, 1) - 1], 0)
    return found
