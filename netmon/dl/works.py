# SPDX-License-Identifier: Apache-2.0
"""Which of a process's calls belong together: what is begun, waited for and over is told by its address, which another
work has later."""

import numpy as np
import numpy.typing as npt

from netmon.records import (
    LIBRARY_REDUCER,
    STEP_BEGIN,
    STEP_OVER,
    STEP_WAIT_BEGIN,
    STEP_WAIT_END,
    STEP_WORK_WAIT,
    Table,
)

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
        self._order = np.argsort(work, kind="stable")
        self._work = work[self._order]
        begins = kind[self._order] == STEP_BEGIN
        at = np.flatnonzero(begins)
        self._at = at[np.argsort(self._order[at])]
        self.begun: Indices = self._order[self._at]
        """Where they begin."""
        self._next = _following(begins)[self._at + 1]
        self.again = self._is_same(self._next)
        """Whether another work has its address later."""

    def first(self, which: Flags) -> Indices:
        """Of each work the first of these calls (in order of time) that is of it; −1: there is none."""
        found = _following(which[self._order])[self._at]
        own = (found < self._next) & self._is_same(found)
        return np.where(own, self._order[np.minimum(found, len(self._order) - 1)], -1)

    def _is_same(self, places: Indices) -> Flags:
        """Whether what stands there is of the same address."""
        last = len(self._work) - 1
        found: Flags = (places <= last) & (self._work[np.minimum(places, last)] == self._work[self._at])
        return found


def _following(which: Flags) -> Indices:
    """From each place on the first of these, and from behind the last one; their number: there is none."""
    indices = np.append(np.where(which, np.arange(len(which)), len(which)), len(which))
    found: Indices = np.minimum.accumulate(indices[::-1])[::-1]
    return found
