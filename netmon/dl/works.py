# SPDX-License-Identifier: Apache-2.0
"""What a process's calls of PyTorch are of: the group, and the work that is begun, waited for and over. Both are known
by their address, which another one has later."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from netmon.dl.grouped import order_by
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

# --- groups

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


def _kinds(*kinds: int) -> Flags:
    found = np.zeros(256, np.bool_)
    found[list(kinds)] = True
    return found


ENDS = _kinds(STEP_OVER, STEP_WAIT_END)
"""Of works, by kind of call."""
WAITS = _kinds(STEP_WAIT_BEGIN, STEP_WORK_WAIT)
"""A thread begins to wait for a work."""
OF_WORKS = _kinds(STEP_BEGIN) | ENDS | WAITS


def waits_for_gradients(table: Table) -> Flags:
    """table: dtype STEP. DDP waits for all sums that have been begun."""
    found: Flags = (table["kind"] == STEP_WAIT_BEGIN) & (table["library"] == LIBRARY_REDUCER) & (table["work"] == 0)
    return found


class Works:
    """The works that a process begins, in order of time."""

    def __init__(self, work: npt.NDArray[np.uint64], kind: npt.NDArray[np.uint8]) -> None:
        """work, kind: of its calls in order of time, as dtype STEP has them."""
        self._order = order_by(work)
        self._work = work[self._order]
        begins = kind == STEP_BEGIN
        self.begun: Indices = np.flatnonzero(begins)
        """Where they begin."""
        places = np.empty(len(work), np.intp)
        places[self._order] = np.arange(len(work))
        self._at = places[self.begun]
        self._next = self._after(begins)
        self.again = self._is_same(self._next)
        """Whether another work has its address later."""

    def first(self, which: Flags) -> Indices:
        """Of each work the first of these calls, none a beginning, that is of it; −1: there is none."""
        found = self._after(which)
        own = (found < self._next) & self._is_same(found)
        return np.where(own, self._order[np.minimum(found, len(self._order) - 1)], -1)

    def _after(self, which: Flags) -> Indices:
        """Of each work the place of the first of these calls that comes after its beginning."""
        which = which[self._order]
        found: Indices = np.append(np.flatnonzero(which), len(which))[np.cumsum(which)[self._at]]
        return found

    def _is_same(self, places: Indices) -> Flags:
        """Whether what stands there is of the same address."""
        last = len(self._work) - 1
        found: Flags = (places <= last) & (self._work[np.minimum(places, last)] == self._work[self._at])
        return found
