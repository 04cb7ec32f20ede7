# SPDX-License-Identifier: Apache-2.0
"""The steps of one rank. Two detectors look for them; one of them reports.

`CycleDetector` knows steps by the gradients that are summed, from the first one on. `RecurringCalls` knows them by the
sequence of all calls, once it has come often. Sums report where they explain what the rank sends; the sequence reports
once it is found. Until it is known which one is right, nothing is reported, and the steps by sums are kept.
"""

from enum import Enum, auto

import numpy as np

from netmon.dl.cycles import Boundary, CycleDetector, GpuWaits, calls_from_works
from netmon.dl.grouped import joined
from netmon.dl.operations import GradientSize
from netmon.dl.recurrence import RecurringCalls
from netmon.dl.understanding import StepAccount, Understanding
from netmon.records import (
    LIBRARY_CUDA,
    LIBRARY_HOROVOD,
    LIBRARY_REDUCER,
    OF_ONE,
    STEP_BACKWARD,
    STEP_BEGIN,
    STEP_TRANSFER,
    Moment,
    Table,
)

_NAMES_GRADIENTS = np.zeros(256, np.bool_)  # by library
_NAMES_GRADIENTS[[LIBRARY_HOROVOD, LIBRARY_REDUCER]] = True
_MOST_PENDING = 1_000  # boundaries
_MOST_UNREAD = 4_000  # calls


class Basis(Enum):
    """By what the steps are reported."""

    SUMS = auto()
    CALLS = auto()
    UNDECIDED = auto()
    NOTHING = auto()


class RankSteps:
    """Feed it all calls of a process in order of time. It numbers the steps from 0."""

    def __init__(self, late: bool = False) -> None:
        """late: the first calls may be within a step."""
        self.basis = Basis.SUMS
        self._sums = CycleDetector(late)
        self._calls = RecurringCalls(late)
        self._gpu = GpuWaits()
        self._account = StepAccount()
        self._unread: list[Table] = []  # calls in which no sequence has been looked for: sums explain them
        self._pending: list[Boundary] = []  # of sums, until the basis is known
        self._reported_ns = 0  # the last boundary by sums; 0: none since the calls report
        self._not_only_sums = False  # more than sums has been seen

    @property
    def understanding(self) -> Understanding:
        if self.basis in (Basis.SUMS, Basis.CALLS):
            return Understanding.UNDERSTOOD
        return Understanding.NOT_UNDERSTOOD if self.basis is Basis.NOTHING else Understanding.UNDECIDED

    @property
    def iteration(self) -> int:
        """The last step, reported or not; −1: none."""
        return self._sums.iteration if self.basis in (Basis.SUMS, Basis.UNDECIDED) else self._calls.iteration

    @property
    def size(self) -> GradientSize:
        """What a step sums."""
        return self._calls.size if self.basis is Basis.CALLS else self._sums.size

    @property
    def pending(self) -> int:
        """Calls that are remembered and have led to no step by sums yet."""
        return self._sums.pending

    def forget(self) -> None:
        self._sums.forget()

    def feed(self, table: Table, ranks: int) -> list[Boundary]:
        """table: dtype STEP; ranks: of the job → the boundaries that are known now."""
        gpu, boundaries = table["library"] == LIBRARY_CUDA, list[Boundary]()
        if not gpu.any():
            return self._feed(table, ranks)
        for part in np.split(table, np.flatnonzero(gpu[1:] != gpu[:-1]) + 1):
            if part["library"][0] != LIBRARY_CUDA:
                boundaries += self._feed(part, ranks)
                continue
            for kind, time_ns in part[["kind", "time_ns"]].tolist():
                boundaries += self._gpu.feed(kind, time_ns, self._handed_over)
        return boundaries

    @property
    def _handed_over(self) -> int:
        """The step that has been reported and whose calls may be waited for now; −1: there is none."""
        if self.basis is Basis.SUMS:
            return self._sums.handed_over
        return self._calls.handed_over if self.basis is Basis.CALLS else -1

    def _feed(self, table: Table, ranks: int) -> list[Boundary]:
        if self.basis is Basis.CALLS:
            named = table.compress(_NAMES_GRADIENTS.take(table["library"]))
            if len(named) and not self._names_gradients:
                self._sums = CycleDetector(last=self._calls.iteration)
            by_sums = self._sums.feed(named)
        else:
            complete = _with_calls_from_works(table)
            by_sums = self._sums.feed(complete)
            begun_ns = [time_ns for _, moment, time_ns in by_sums if moment is Moment.FIRST_ENQUEUE]
            self._account.add(complete, begun_ns, self._sums.size.bytes, ranks)
        self._not_only_sums = self._not_only_sums or _not_only_sums(table)
        by_calls = self._feed_calls(table)
        self.basis = self._choose()
        if self.basis is Basis.CALLS:
            self._pending = []
            self._sums.forget()
            return by_calls
        self._pending += by_sums
        if self.basis is Basis.SUMS:
            return self._report_sums()
        judged = self._account.state is not Understanding.UNDERSTOOD and not self._account.waits
        self._pending = [] if judged else self._pending[-_MOST_PENDING:]
        return []

    def finish(self) -> list[Boundary]:
        """The process makes no more calls → the last boundaries."""
        by_calls = self._after_sums(self._calls.finish()) if self.basis is not Basis.SUMS else []
        return self._last(by_calls, self._sums.finish())

    def restart(self) -> list[Boundary]:
        """The job is set up anew → the last boundaries before that. Numbers go on."""
        by_calls = self._after_sums(self._calls.restart()) if self.basis is not Basis.SUMS else []
        boundaries = self._last(by_calls, self._sums.restart())
        if self.basis is Basis.CALLS:
            self._sums = CycleDetector(last=self._calls.iteration)
        self._account, self._gpu, self._pending = StepAccount(), GpuWaits(), []
        self.basis = self._choose()
        return boundaries

    def _choose(self) -> Basis:
        if self._sums.library == LIBRARY_REDUCER:
            return Basis.SUMS
        if self._calls.known:
            return Basis.CALLS
        understood = self._account.state is Understanding.UNDERSTOOD
        sums_suffice = understood and (self._names_gradients or not self._not_only_sums or self._reported_ns > 0)
        if not sums_suffice and not self._calls.hopeless:
            return Basis.UNDECIDED
        if understood:
            return Basis.SUMS
        return Basis.NOTHING if self._account.state is Understanding.NOT_UNDERSTOOD else Basis.UNDECIDED

    @property
    def _names_gradients(self) -> bool:
        """Whether the library tells gradients from other sums."""
        return bool(_NAMES_GRADIENTS[self._sums.library])

    def _feed_calls(self, table: Table) -> list[Boundary]:
        """Boundaries by the sequence of calls. It is not looked for while sums explain everything."""
        if self._sums.library == LIBRARY_REDUCER:
            return []
        only_sums = self._names_gradients or (self._sums.iteration >= 0 and not self._not_only_sums)
        self._unread.append(table)
        if only_sums and self._choose() is Basis.SUMS:
            while sum(map(len, self._unread)) > max(_MOST_UNREAD, len(table)):
                self._unread.pop(0)
                self._calls.forget()
            return []
        tables, self._unread = self._unread, []
        return self._after_sums([boundary for unread in tables for boundary in self._calls.feed(unread)])

    def _after_sums(self, by_calls: list[Boundary]) -> list[Boundary]:
        """The first boundaries by calls follow those that sums have reported, with the next number."""
        if not self._reported_ns or not by_calls:
            return by_calls
        after = [boundary for boundary in by_calls if boundary[2] > self._reported_ns]
        whole = after[len(after) % 2 :]
        on = self._sums.iteration + 1 - whole[0][0] if whole else 0
        self._reported_ns, self._calls.iteration = 0, self._calls.iteration + on
        return [(number + on, moment, time_ns) for number, moment, time_ns in whole]

    def _report_sums(self) -> list[Boundary]:
        boundaries, self._pending = self._pending, []
        if boundaries:
            self._reported_ns = boundaries[-1][2]
        return boundaries

    def _last(self, by_calls: list[Boundary], by_sums: list[Boundary]) -> list[Boundary]:
        if by_calls or self.basis is Basis.CALLS:
            self.basis = Basis.CALLS
            return by_calls
        if self.basis is Basis.SUMS or self._account.state is Understanding.UNDERSTOOD:
            self.basis = Basis.SUMS
            self._pending += by_sums
            return self._report_sums()
        self.basis = Basis.NOTHING
        return []


def _with_calls_from_works(table: Table) -> Table:
    of_works = calls_from_works(table)
    if not len(of_works):
        return table
    table = joined([table, of_works])
    return table[np.argsort(table["time_ns"], kind="stable")]


def _not_only_sums(table: Table) -> bool:
    """Whether these calls show more of steps than sums do."""
    kind = table["kind"]
    transfers = (kind == STEP_TRANSFER) & (table["name_hash"] != OF_ONE)
    return bool((transfers | (kind == STEP_BEGIN) | (kind == STEP_BACKWARD)).any())
