# SPDX-License-Identifier: Apache-2.0
"""What a process's calls of PyTorch are (c10d::OpType), of which group, and which work they begin, await and end."""

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from netmon.dl.grouped import ascending, joined, order_by, starts
from netmon.native import compiled
from netmon.records import (
    LIBRARY_REDUCER,
    STEP_BEGIN,
    STEP_GROUP,
    STEP_GROUP_NAME,
    STEP_OVER,
    STEP_WAIT_BEGIN,
    STEP_WAIT_END,
    STEP_WORK_WAIT,
    Table,
)


class Operation(IntEnum):
    """In the kernel's calls: `tensors` of kind BEGIN."""

    BROADCAST = 0
    ALL_REDUCE = 1
    ALL_REDUCE_COALESCED = 2
    REDUCE = 3
    ALL_GATHER = 4
    ALL_GATHER_BASE = 5
    ALL_GATHER_COALESCED = 6
    GATHER = 7
    SCATTER = 8
    REDUCE_SCATTER = 9
    ALL_TO_ALL_BASE = 10
    ALL_TO_ALL = 11
    SEND = 12
    RECEIVE = 13
    RECEIVE_ANY = 14
    BARRIER = 15
    REDUCE_SCATTER_BASE = 16

    @property
    def word(self) -> str:
        """As people call it; of kinds that differ in their tensors only, the same."""
        return _WORDS.get(self, self.name.lower()).replace("_", "-")


_WORDS = {
    **dict.fromkeys((Operation.ALL_REDUCE, Operation.ALL_REDUCE_COALESCED), "all-reduce"),
    **dict.fromkeys((Operation.ALL_GATHER_BASE, Operation.ALL_GATHER_COALESCED), "all-gather"),
    **dict.fromkeys((Operation.REDUCE_SCATTER, Operation.REDUCE_SCATTER_BASE), "reduce-scatter"),
    **dict.fromkeys((Operation.ALL_TO_ALL, Operation.ALL_TO_ALL_BASE), "all-to-all"),
    Operation.RECEIVE_ANY: "receive",
}

TRANSFERS = (Operation.SEND, Operation.RECEIVE)
"""Between two ranks that are known from the call."""

ALL_TRANSFERS = (*TRANSFERS, Operation.RECEIVE_ANY)

GATHERS = (Operation.ALL_GATHER, Operation.ALL_GATHER_BASE, Operation.ALL_GATHER_COALESCED)

EXCHANGES = (Operation.ALL_TO_ALL_BASE, Operation.ALL_TO_ALL)

SUMS_FOR_ALL = (Operation.ALL_REDUCE, Operation.ALL_REDUCE_COALESCED)
"""Each rank gets the whole sum, as of gradients in data-parallel training."""

SUMS = (*SUMS_FOR_ALL, Operation.REDUCE, Operation.REDUCE_SCATTER, Operation.REDUCE_SCATTER_BASE)

FROM_OR_TO_ONE = (Operation.BROADCAST, Operation.REDUCE)

SIZED_BY_PART = (Operation.ALL_GATHER, Operation.ALL_GATHER_COALESCED)
"""The first tensor is one rank's part."""

SIZED_AS_WHOLE = (Operation.ALL_GATHER_BASE, Operation.GATHER, Operation.ALL_TO_ALL_BASE, Operation.ALL_TO_ALL)
"""The first tensor has all ranks' parts, or what this rank sends."""


# --- groups, and works, known by their address, which another one has later

_NAME_MASK = (1 << 62) - 1
_MOST_ADDRESSES, _MOST_MAKING = 1_024, 256
_HEAD = 8  # bytes: a context begins there, or after a pointer to its methods


class Group(NamedTuple):
    """name: a hash of it; rank: the process' own in it."""

    name: int
    rank: int
    size: int


class GroupNames:
    """Of one process."""

    def __init__(self) -> None:
        self.by_address: dict[int, Group] = {}
        self._making: list[tuple[int, int, int]] = []  # address, rank and size of groups that have no name yet

    def take(self, table: Table) -> list[tuple[int, int]]:
        """table: its calls STEP_GROUP and STEP_GROUP_NAME, dtype STEP, in order → addresses of groups that are made,
        and their names."""
        made = list[tuple[int, int]]()
        for kind, name, rank, size in table[["kind", "name_hash", "group_rank", "group_size"]].tolist():
            if kind == STEP_GROUP:
                self._making.append((name, rank, size))
            elif kind == STEP_GROUP_NAME:
                for address, group_rank, group_size in self._making:
                    for at in (address, address + _HEAD):
                        self.by_address.pop(at, None)
                        self.by_address[at] = Group(name & _NAME_MASK, group_rank, group_size)
                        made.append((at, name & _NAME_MASK))
                self._making = []
        self._making = self._making[-_MOST_MAKING:]
        for address in list(self.by_address)[: max(0, len(self.by_address) - _MOST_ADDRESSES)]:
            del self.by_address[address]
        return made


# --- works

Indices = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]


def by_kind(*kinds: int) -> Flags:
    """To be indexed with kinds of calls: whether each is one of these."""
    found = np.zeros(256, np.bool_)
    found[list(kinds)] = True
    return found


def by_operation(*operations: int) -> Flags:
    """To be indexed with operations: whether each is one of these. np.isin takes ten times as long."""
    found = np.zeros(1 << 16, np.bool_)
    found[list(operations)] = True
    return found


IS_TRANSFER, IS_ANY_TRANSFER = by_operation(*TRANSFERS), by_operation(*ALL_TRANSFERS)
"""By operation."""

ENDS = by_kind(STEP_OVER, STEP_WAIT_END)
"""Of works, by kind of call."""
WAITS = by_kind(STEP_WAIT_BEGIN, STEP_WORK_WAIT)
"""A thread begins to wait for a work."""
OF_WORKS = by_kind(STEP_BEGIN) | ENDS | WAITS

NOTHING, BEGINS, IS_OVER, IS_AWAITED = range(4)
"""What a call does to a work."""
ROLES = (BEGINS * by_kind(STEP_BEGIN) + IS_OVER * ENDS + IS_AWAITED * WAITS).astype(np.uint8)
"""By kind of call."""


def in_order(table: Table) -> Table:
    """table: dtype STEP → the calls of one process after those of another one, each in order of time."""
    if ascending(table["pid"], table["time_ns"]):
        return table
    ordered: Table = table.take(order_by(table["pid"].astype(np.int64), table["time_ns"].astype(np.int64)))
    return ordered


def by_process(table: Table) -> list[Table]:
    """table: as in_order has it → the calls of each process. Who keeps those of one does not keep all the others'."""
    parts = np.split(table, starts(table["pid"])[1:]) if len(table) else []
    return [part if 2 * len(part) > len(table) else joined([part]) for part in parts]


def waits_for_gradients(table: Table) -> Flags:
    """table: dtype STEP. DDP waits for all sums that have been begun."""
    found: Flags = (table["kind"] == STEP_WAIT_BEGIN) & (table["library"] == LIBRARY_REDUCER) & (table["work"] == 0)
    return found


_NO_WORKS = np.zeros(0, np.uint64)


class Works:
    """The works that a process begins, in order of time. A call is of the last one that was begun at its address."""

    def __init__(
        self, work: npt.NDArray[np.uint64], role: npt.NDArray[np.uint8], before: npt.NDArray[np.uint64] = _NO_WORKS
    ) -> None:
        """work, role: of its calls in order of time, as dtype STEP and ROLES have them; before: works that were begun
        before these, and come first in what is numbered."""
        if len(before):
            work = np.concatenate([before, work])
            role = np.concatenate([np.full(len(before), BEGINS, np.uint8), role])
        self.begun: Indices = np.flatnonzero(role == BEGINS)
        """Where they begin."""
        if compiled:
            count = len(self.begun)
            over, awaited, again = np.empty(count, np.intp), np.empty(count, np.intp), np.empty(count, np.bool_)
            compiled.pair_works(np.ascontiguousarray(work), role, over, awaited, again.view(np.uint8))
        else:
            over, awaited, again = _pair_works(work, role, self.begun)
        self.over: Indices = over
        """Of each the first call that says that it is; −1: there is none."""
        self.awaited: Indices = awaited
        """Of each the first call that waits for it; −1: there is none."""
        self.again: Flags = again
        """Whether another one has its address later."""


def _pair_works(
    work: npt.NDArray[np.uint64], role: npt.NDArray[np.uint8], begun: Indices
) -> tuple[Indices, Indices, Flags]:
    """As pair_works in netmon/native."""
    order = order_by(work)
    last = len(order) - 1
    positions = np.empty(len(order), np.intp)
    positions[order] = np.arange(len(order))
    at, work, role = positions[begun], work[order], role[order]

    def after(which: int) -> Indices:
        """Of each work the place of the first of these calls that comes after its beginning."""
        found: Indices = np.append(np.flatnonzero(role == which), len(role))[np.cumsum(role == which)[at]]
        return found

    def is_same(places: Indices) -> Flags:
        """Whether what stands there is of the same address."""
        found: Flags = (places <= last) & (work[np.minimum(places, last)] == work[at])
        return found

    following = after(BEGINS)
    firsts = [after(IS_OVER), after(IS_AWAITED)]
    over, awaited = (
        np.where((first < following) & is_same(first), order[np.minimum(first, last)], -1) for first in firsts
    )
    return over, awaited, is_same(following)


# --- How large the gradients of a step are, by the calls that hand them over.

_WIDTH_BITS = 4  # of the field `size` of dtype STEP, for the bytes of a value
_MOST_NAMES = 50_000


class GradientSize(NamedTuple):
    """What one step reduces; zeros: not known."""

    values: int = 0
    bytes: int = 0


UNKNOWN_SIZE = GradientSize()


def gradient_size(encoded: int) -> GradientSize:
    """encoded: the field `size` of dtype STEP."""
    values, width = encoded >> _WIDTH_BITS, encoded & ((1 << _WIDTH_BITS) - 1)
    return GradientSize(values, values * width) if values and width else UNKNOWN_SIZE


def byte_sizes(encoded: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """encoded: as of gradient_size; the bytes of each, 0: not known."""
    values, width = encoded >> np.uint64(_WIDTH_BITS), encoded & np.uint64((1 << _WIDTH_BITS) - 1)
    return values.astype(np.float64) * width.astype(np.float64)


def total_size(sizes: Iterable[GradientSize]) -> GradientSize:
    """Of all together: unknown where one of them is, or there is none."""
    known = list(sizes)
    if UNKNOWN_SIZE in known:
        return UNKNOWN_SIZE
    return GradientSize(sum(size.values for size in known), sum(size.bytes for size in known))


def summed_size(encoded: npt.NDArray[np.uint64]) -> GradientSize:
    """encoded: as of gradient_size; of all together: unknown where one of them is, or there is none."""
    values, width = encoded >> np.uint64(_WIDTH_BITS), encoded & np.uint64((1 << _WIDTH_BITS) - 1)
    sizes = values * width
    return GradientSize(int(values.sum()), int(sizes.sum())) if len(sizes) and sizes.all() else UNKNOWN_SIZE


class NamedSizes:
    """The sizes of what is handed over by name."""

    def __init__(self) -> None:
        self._sizes: dict[int, GradientSize] = {}

    def learn(self, name: int, encoded: int) -> bool:
        """encoded: the field `size` of dtype STEP; whether it is new."""
        if not encoded or not name or self._sizes.get(name) == (size := gradient_size(encoded)):
            return False
        if len(self._sizes) >= _MOST_NAMES:
            self._sizes.clear()
        self._sizes[name] = size
        return True

    def total(self, names: Iterable[int]) -> GradientSize:
        """Of what is handed over by these names."""
        return total_size(self._sizes.get(name, UNKNOWN_SIZE) for name in names)
