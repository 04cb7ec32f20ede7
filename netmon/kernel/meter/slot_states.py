# SPDX-License-Identifier: Apache-2.0
"""Which slots have an open bucket that nobody has delivered, and what was delivered out of slots.

A slot is LIVE from when a flow takes it, or from the record of a bucket (which says that the next one was opened),
until its bucket is taken out because it went quiet. Only live slots are ever looked at: what a look costs grows
with the flows that are active, not with slots, CPUs or flows that are quiet.

A slot whose bucket was TAKEN sends that bucket's record all the same when its next packet comes. `add_records` keeps of
it what came after the taking. If the ring was full, there is no such record, and the slot would be forgotten: its CPU's
count of losses says where to look, and the slot's own one which slots these are. Losses are counted after the
closing they belong to and after every record before it. So where a slot's count has changed since the taking, and
the rings that are looked at after that have no record of what was taken, there will be none.
"""

import numpy as np
import numpy.typing as npt

from netmon.kernel.meter.memory import Fence, MeterMemory
from netmon.records import SLOT, Table

COUNTS = ("packets", "wire_bytes", "payload_bytes")

_LIVE, _TAKEN = 1, 2  # 0: never used
_NAMES = ("bucket_start_ns", "generation", "losses", *COUNTS)
_TAKEN_OUT = np.dtype(
    [
        ("bucket_start_ns", "<u8"),
        ("wire_bytes", "<u4"),
        ("payload_bytes", "<u4"),
        ("losses", "<u4"),
        ("packets", "<u2"),
        ("generation", "<u2"),
        ("link", "<u4"),
    ]
)

Slots = npt.NDArray[np.intp]
_NONE: Slots = np.zeros(0, np.intp)


class SlotStates:
    """Of every slot. What was never used costs no memory."""

    def __init__(self, memory: MeterMemory, fence: Fence) -> None:
        self._fence = fence
        self._words = memory.slots.view(np.uint64).reshape(len(memory.slots), -1)
        self._times, self._losses = memory.slots["bucket_start_ns"], memory.slots["losses"]
        self._link_protocols = memory.slots["key"]["link_protocol"]
        self._cpu_losses = memory.producers["losses"]
        self._losses_seen = self._cpu_losses.copy()
        self._per_cpu = len(memory.slots) // len(memory.producers)
        self._states = np.zeros(len(memory.slots), np.uint8)
        self._taken = np.zeros(len(memory.slots), _TAKEN_OUT)
        self._live: Slots = _NONE
        self._newly_live: list[Slots] = []
        self.recovered = np.zeros((memory.ledger.shape[1], len(COUNTS)), np.int64)
        """By link: what was delivered, though the kernel counts it as lost; what was not is taken off."""

    @property
    def live(self) -> int:
        """Slots that the next look goes over."""
        return len(self._live) + sum(map(len, self._newly_live))

    @property
    def lost(self) -> bool:
        """Whether buckets have been lost since `unrecorded` was called."""
        return bool((self._cpu_losses != self._losses_seen).any())

    def open_slots(self, slots: Slots) -> None:
        """Flows have taken these slots. To be called before the records that were found with them."""
        self._enliven(np.unique(slots[self._states[slots] == 0]))

    def _enliven(self, slots: Slots) -> None:
        self._states[slots] = _LIVE
        self._newly_live.append(slots)

    def unrecorded(self) -> Slots:
        """Taken slots that have lost a bucket since. To be called before the rings are looked at."""
        losses = self._cpu_losses.copy()
        cpus = np.flatnonzero(losses != self._losses_seen)
        if not len(cpus):
            return _NONE
        self._losses_seen = losses
        self._fence()
        found = []
        for begin in (cpus * self._per_cpu).tolist():
            taken = begin + np.flatnonzero(self._states[begin : begin + self._per_cpu] == _TAKEN)
            found.append(taken[self._losses[taken] != self._taken["losses"][taken]])
        return np.concatenate(found)

    def add_records(self, rows: Table, slots: Slots, generations: npt.NDArray[np.uint16]) -> Slots:
        """Records of closed buckets, those of a CPU in order. Returns the rows in which nothing is left."""
        others = np.flatnonzero(self._states[slots] != _LIVE)
        if len(others):
            others = others[~self._earlier(rows[others], slots[others], generations[others])]
        if not len(others):
            return _NONE
        first, at = np.unique(slots[others], return_index=True)
        at = others[at]
        taken = self._states[first] == _TAKEN
        same = taken & (self._taken["bucket_start_ns"][first] == rows["bucket_start_ns"][at])
        same &= self._taken["generation"][first] == generations[at]
        again, delivered = at[same], self._taken[first[same]]
        for name in COUNTS:
            rows[name][again] -= delivered[name]
        self._recover(first[taken & ~same])  # a later record: there will be none of what was taken
        self._enliven(first)
        empty: Slots = again[~np.any([rows[name][again] for name in COUNTS], axis=0)]
        return empty

    def _earlier(self, rows: Table, slots: Slots, generations: npt.NDArray[np.uint16]) -> npt.NDArray[np.bool_]:
        """Which are of buckets before the one that was taken: they say nothing of it.

        A program reads the clock first. Where the machine stands still then, a bucket is old as soon as it is open: it
        may be taken before the record of the one before it is published.
        """
        taken = self._taken[slots]
        turn = (generations - taken["generation"]).view(np.int16)
        before: npt.NDArray[np.bool_] = self._states[slots] == _TAKEN
        before &= (turn < 0) | ((turn == 0) & (rows["bucket_start_ns"] < taken["bucket_start_ns"]))
        return before

    def give_up(self, rows: Table, slots: Slots) -> None:
        """Records of which nobody knows the flow: they are lost, on the link of the flow that has the slot now."""
        links = self._link_protocols[slots] >> 8
        for i, name in enumerate(COUNTS):
            np.subtract.at(self.recovered[:, i], links, rows[name])

    def recover(self, slots: Slots) -> None:
        """Of these, those whose taken bucket has had no record meanwhile: the kernel has counted it as lost."""
        slots = slots[self._states[slots] == _TAKEN]
        self._recover(slots)
        self._enliven(slots)

    def _recover(self, slots: Slots) -> None:
        taken = self._taken[slots]
        for i, name in enumerate(COUNTS):
            np.add.at(self.recovered[:, i], taken["link"], taken[name])

    def take_quiet(self, before_ns: int, generations: npt.NDArray[np.uint16]) -> tuple[Slots, Table]:
        """The buckets of live slots that began before then: slots, and their values (SLOT).

        generations: of every slot, as far as its openings are known.
        """
        self._live, self._newly_live = np.concatenate([self._live, *self._newly_live]), []
        quiet = self._live[self._times[self._live] < before_ns]
        if not len(quiet):
            return quiet, np.zeros(0, SLOT)
        first = self._words[quiet]
        self._fence()
        # A slot that a program is just rewriting reads differently twice (bpf/meter.c, open_bucket).
        steady = (first == self._words[quiet]).all(axis=1)
        values: Table = first.view(SLOT)[:, 0]
        steady &= values["generation"] == generations[quiet]
        quiet, values = quiet[steady], values[steady]
        for name in _NAMES:
            self._taken[name][quiet] = values[name]
        self._taken["link"][quiet] = values["key"]["link_protocol"] >> 8
        self._states[quiet] = _TAKEN
        self._live = self._live[self._states[self._live] == _LIVE]
        return quiet, values
