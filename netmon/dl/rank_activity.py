# SPDX-License-Identifier: Apache-2.0
"""What one rank is in the midst of, by the calls of its training library: which collectives it has begun and which of
them are over, which it waits for, and when it last called anything.

While calls come they are only kept; they are looked through when somebody asks, or when they become many.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from netmon.dl.grouped import distinct, joined, numbered
from netmon.dl.operations import (
    IS_TRANSFER,
    NOTHING,
    OF_WORKS,
    ROLES,
    TRANSFERS,
    Group,
    GroupNames,
    Operation,
    Works,
    gradient_size,
    waits_for_gradients,
)
from netmon.evidence import UNKNOWN
from netmon.records import (
    LIBRARY_HOROVOD,
    OF_EACH,
    OF_ONE,
    STEP,
    STEP_BEGIN,
    STEP_ENQUEUE,
    STEP_GROUP,
    STEP_TRANSFER,
    STEP_WAIT_BEGIN,
    Table,
    empty,
)

QUIET_NS = 1_000_000_000
"""A rank that has called nothing for so long is quiet."""

UNNAMED, HOROVOD = 1, 2
"""Groups: the one of all ranks where its name has not been seen, and Horovod's, which has no name."""

OVER, OPEN, WAITED = range(3)
"""A collective or transfer of a rank: it is over; it is not; a thread waits for it."""

_CALL = np.dtype([*STEP.descr, ("position", "<i8"), ("waited", "?")])
"""position: as of Work; waited: a thread waits for it."""

_HOROVODS = {OF_ONE: Operation.BROADCAST, OF_EACH: Operation.ALL_GATHER}  # others are not distinguished

_MOST_CALLS = 4_096  # before they are looked through
_MOST_OPEN, _MOST_GROUPS, _MOST_REPORTED = 256, 256, 16


def _as_bytes(table: Table) -> npt.NDArray[np.uint8]:
    """(rows, bytes of one); a view."""
    return table.view(np.uint8).reshape(len(table), table.itemsize)


def _put(rows: Table, calls: Table, position: npt.NDArray[np.int64]) -> None:
    """rows: dtype _CALL, of these calls. Column by column takes thrice as long."""
    _as_bytes(rows)[:, : STEP.itemsize] = _as_bytes(calls)
    rows["position"] = position


class Work(NamedTuple):
    """A collective of a group, or a transfer to or from one of its ranks. UNKNOWN: as far as it is not known."""

    group: int  # the same on all ranks of the job
    group_rank: int
    group_size: int
    operation: int
    sequence: int  # as PyTorch counts it: transfers count, too, but on the two ranks only
    position: int  # among the group's collectives, the same on all ranks
    peer: int  # of a transfer: the other rank, of the group
    bytes: int
    begun_ns: int
    state: int  # OVER, OPEN or WAITED


class RankActivity:
    """Of one process. Feed it all its calls in order of time. Times are mono."""

    def __init__(self) -> None:
        self.last_ns = 0
        """The last call; 0: there was none."""
        self.rested: tuple[int, int] = 0, 0
        """The last pause of QUIET_NS or more that is over: since when, until when."""
        self._calls: list[Table] = []  # dtype STEP
        self._count = 0
        self._looked = True  # `_calls` are what is left of a look
        self._groups = GroupNames()
        self._last: dict[int, np.void] = {}  # the last collective (of _CALL) that was begun, by address of its group
        self._transfers: dict[int, int] = {}  # that have been begun, by name of the group; UNKNOWN: of what has none
        self._open: Table = empty(_CALL)  # works that are not over, oldest first
        self._horovod_ns = self._reducer_ns = self._begun_ns = 0  # a wait for gradients began; a collective
        self._horovod_called = self._horovod_waits_for = int(Operation.ALL_REDUCE)  # last; when that wait began
        self._whole = True  # no call has been missed

    def add(self, table: Table) -> None:
        """table: dtype STEP, of this process."""
        if not len(table):
            return
        first_ns, last_ns = int(table["time_ns"][0]), int(table["time_ns"][-1])
        if self.last_ns and first_ns - self.last_ns >= QUIET_NS:
            self.rested = self.last_ns, first_ns
        self.last_ns = max(self.last_ns, last_ns)
        kind = table["kind"]
        if (kind >= STEP_GROUP).any():
            self._look()
            self._take_groups(table.compress(kind >= STEP_GROUP))
        self._note_horovod(table)
        self._calls.append(table)
        self._count, self._looked = self._count + len(table), False
        if self._count > _MOST_CALLS:
            self._look()

    def forget(self) -> None:
        """Calls have been missed: of what was begun nobody knows whether it is over."""
        self._calls, self._count, self._looked, self._whole = [], 0, True, False
        self._open, self._last = empty(_CALL), {}
        self._horovod_ns = self._reducer_ns = 0

    def works(self, rank: int, size: int) -> list[Work]:
        """What is not over, what is waited for first; then the last collective of each group that is.

        rank, size: of the process in its job. What belongs to a group that nobody can know again is left out.
        """
        self._look()
        waited = self._open["waited"] | (self._waits_for_gradients() & (self._open["time_ns"] < self._reducer_ns))
        states = np.where(waited, WAITED, OPEN).tolist()
        found = [self._work(row, state, rank, size) for row, state in zip(self._open, states, strict=True)]
        found.sort(key=lambda work: (work.state != WAITED, work.begun_ns))
        if since_ns := self._horovod_ns:
            found.insert(0, Work(HOROVOD, rank, size, self._horovod_waits_for, *4 * (UNKNOWN,), since_ns, WAITED))
        begun = {(work.group, work.begun_ns) for work in found}
        last = [self._work(row, OVER, rank, size) for row in self._last.values()]
        last.sort(key=lambda work: -work.begun_ns)
        found = (
            found[:_MOST_REPORTED] + [one for one in last if (one.group, one.begun_ns) not in begun][:_MOST_REPORTED]
        )
        return [work for work in found if work.group != UNKNOWN]

    def groups(self, rank: int, size: int) -> set[int]:
        """Those in which it has called something."""
        self._look()
        return {self._identity(address, row, rank, size).name for address, row in self._last.items()} - {UNKNOWN}

    def _note_horovod(self, table: Table) -> None:
        """Which operation its last wait is for: the one that was called last before it."""
        kind, is_horovod = table["kind"], table["library"] == LIBRARY_HOROVOD
        if not is_horovod.any():
            return
        calls = np.flatnonzero(is_horovod & ((kind == STEP_ENQUEUE) | (kind == STEP_TRANSFER)))
        waits = np.flatnonzero(is_horovod & (kind == STEP_WAIT_BEGIN))

        def last(rows: npt.NDArray[np.intp]) -> int:
            if not len(rows):
                return self._horovod_called
            call = table[rows[-1]]
            return int(
                Operation.ALL_REDUCE if call["kind"] == STEP_ENQUEUE else _HOROVODS.get(call["name_hash"], UNKNOWN)
            )

        if len(waits):
            self._horovod_waits_for = last(calls[calls < waits[-1]])
        self._horovod_called = last(calls)

    def _waits_for_gradients(self) -> bool:
        """Whether DDP waits for all that has been begun."""
        return self._reducer_ns > self._begun_ns

    def _take_groups(self, table: Table) -> None:
        for address, name in self._groups.take(table):
            self._last.pop(address, None)
            self._transfers[name] = 0

    def _look(self) -> None:
        """Takes in the calls that have been kept."""
        if self._looked:
            return
        calls = self._calls[0] if len(self._calls) == 1 else joined(self._calls)
        self._calls, self._count, self._looked = [], 0, True
        before, work, role = len(self._open), calls["work"], ROLES.take(calls["kind"])
        role[work == 0] = NOTHING
        works = Works(work, role, self._open["work"])
        opened = np.flatnonzero((works.over < 0) & ~works.again)[-_MOST_OPEN:]
        new = opened[opened >= before]
        position = self._take_begun(calls, works.begun[new] - before)
        self._take_waits(calls)
        rows = np.zeros(len(opened), _CALL)
        kept = len(opened) - len(new)
        rows[:kept] = self._open[opened[:kept]]
        _put(rows[kept:], calls.take(works.begun[new] - before), position)
        rows["waited"] |= works.awaited[opened] >= 0
        self._open = rows

    def _take_waits(self, calls: Table) -> None:
        """Waits for gradients, whichever these are."""
        horovod = np.flatnonzero((calls["work"] == 0) & (calls["library"] == LIBRARY_HOROVOD) & OF_WORKS[calls["kind"]])
        if len(horovod):
            last = calls[horovod[-1]]
            self._horovod_ns = int(last["time_ns"]) if last["kind"] == STEP_WAIT_BEGIN else 0
        reducer = np.flatnonzero(waits_for_gradients(calls))
        if len(reducer):
            self._reducer_ns = int(calls["time_ns"][reducer[-1]])

    def _take_begun(self, calls: Table, wanted: npt.NDArray[np.intp]) -> npt.NDArray[np.int64]:
        """Notes what is begun. The positions of these calls, which begin works."""
        rows = np.flatnonzero(calls["kind"] == STEP_BEGIN)
        if not len(rows):
            return np.zeros(0, np.int64)
        self._begun_ns = int(calls["time_ns"][rows[-1]])
        group, operation = calls["name_hash"][rows], calls["tensors"][rows]
        two = IS_TRANSFER[operation]
        addresses, of = numbered(group)
        last = np.zeros(len(addresses), np.intp)
        last[of[~two]] = np.flatnonzero(~two)  # of each group the last collective
        last = np.sort(last[distinct(of[~two])])
        asked = np.concatenate([np.searchsorted(rows, wanted), last])
        position = calls["sequence"][rows[asked]].astype(np.int64)
        known = self._groups.by_address
        names = [known[at].name if at in known else UNKNOWN for at in addresses.tolist()]
        for name in set(names):
            is_own = np.array([one == name for one in names])[of]
            before = self._transfers.get(name, 0) + np.cumsum(two & is_own)
            position -= np.where(is_own[asked], before[asked], 0)
            self._transfers[name] = int(before[-1])
        found = np.zeros(len(last), _CALL)
        _put(found, calls.take(rows[last]), position[len(wanted) :])
        for at, row in zip(group[last].tolist(), found, strict=True):
            self._last.pop(at, None)
            self._last[at] = row.copy()
        for at in list(self._last)[: max(0, len(self._last) - _MOST_GROUPS)]:
            del self._last[at]
        of_wanted: npt.NDArray[np.int64] = position[: len(wanted)]
        return of_wanted

    def _identity(self, address: int, row: np.void, rank: int, size: int) -> Group:
        known = self._groups.by_address.get(address)
        if known:
            return known
        two = row["tensors"] in TRANSFERS
        if two or row["group_size"] == size:
            return Group(UNNAMED, rank if two else int(row["group_rank"]), size)
        return Group(UNKNOWN, UNKNOWN, UNKNOWN)

    def _work(self, row: np.void, state: int, rank: int, size: int) -> Work:
        group = self._identity(int(row["name_hash"]), row, rank, size)
        operation, sequence = int(row["tensors"]), int(row["sequence"])
        begun_ns = int(row["time_ns"])
        own_bytes = gradient_size(int(row["size"])).bytes or UNKNOWN
        if operation in TRANSFERS:
            peer = sequence if sequence < group.size else UNKNOWN
            return Work(*group, operation, UNKNOWN, UNKNOWN, peer, own_bytes, begun_ns, state)
        known = self._whole and not (group.name == UNNAMED and self._transfers.get(UNKNOWN))
        position = int(row["position"]) if known else UNKNOWN
        return Work(*group, operation, sequence, position, UNKNOWN, own_bytes, begun_ns, state)
