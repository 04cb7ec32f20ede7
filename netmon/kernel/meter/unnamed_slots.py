# SPDX-License-Identifier: Apache-2.0
"""Slots whose flow has no id of its own: how much each has carried, and which are to be given one.

Two kinds: members of an aggregate, which get an id once they are large; and flows that were forgotten while they held
their slot, which get one as soon as they go on. All arrays are as long as the slots are, and touched where used.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from netmon.kernel.meter.flow_numbers import FlowNumbers
from netmon.records import Table

LARGE_BYTES = 65_536
"""Wire bytes with which a flow of an aggregate gets an id of its own, for what follows."""

_NAMED, _MEMBER, _FORGOTTEN = range(3)

Slots = npt.NDArray[np.integer]
Generations = npt.NDArray[np.uint16]
Words = npt.NDArray[np.uint64]


class UnnamedSlots:
    """Beside a meter's own arrays, of which it changes flow_of_slot."""

    def __init__(
        self, numbers: FlowNumbers, slots: Table, flow_of_slot: npt.NDArray[np.uint32], generation: Generations
    ) -> None:
        """slots: as the kernel writes them; flow_of_slot, generation: (slots,) as the meter has them."""
        self._numbers, self._slots = numbers, slots
        self._flow_of_slot, self._generation = flow_of_slot, generation
        self._kind = np.zeros(len(slots), np.uint8)
        self._bytes = np.zeros(len(slots), np.uint64)
        self._large: set[int] = set()
        self._any = False
        self._slots_of: dict[int, set[int]] = {}  # of flows with an id of their own

    def open(self, slots: Slots, flow_ids: npt.NDArray[np.uint32]) -> None:
        """Flows have taken slots."""
        by_id = self._numbers.aggregates.by_id
        if by_id:
            members = np.isin(flow_ids, np.fromiter(by_id, np.uint32, len(by_id)))
            self._kind[slots] = np.where(members, _MEMBER, _NAMED)
            self._bytes[slots] = 0
            self._large.difference_update(slots.tolist() if self._large else ())
            self._any |= bool(members.any())
            slots, flow_ids = slots[~members], flow_ids[~members]
        for slot, flow_id in zip(slots.tolist(), flow_ids.tolist(), strict=True):
            self._slots_of.setdefault(flow_id, set()).add(slot)

    def carry(self, slots: Slots, generations: Generations, sizes: Words, now_ns: int) -> None:
        """Records of these slots, before they get their flows' ids. sizes: wire bytes."""
        if not self._any:
            return
        unnamed = np.flatnonzero(self._kind[slots])
        unnamed = unnamed[self._generation[slots[unnamed]] == generations[unnamed]]
        if not len(unnamed):
            return
        of = slots[unnamed]
        for slot in np.unique(of[self._kind[of] == _FORGOTTEN]).tolist():
            self._revive(slot, now_ns)
        np.add.at(self._bytes, of, sizes[unnamed])
        self._large.update(of[self._bytes[of] >= LARGE_BYTES].tolist())

    def promote(self, now_ns: int) -> None:
        """Gives ids to members that have become large, the largest first, as many as may be described."""
        for slot in sorted(self._large, key=lambda slot: -int(self._bytes[slot])):
            if self._kind[slot] == _MEMBER and (key := self._key(slot)):
                flow_id = self._numbers.promote(key, now_ns)
                if not flow_id:
                    return
                self._name(slot, flow_id)
            self._large.discard(slot)

    def forget(self, flow_ids: Iterable[int]) -> dict[int, int]:
        """As FlowNumbers.forget; slots that the flows hold are their aggregates' until they go on."""
        indices = self._numbers.forget(flow_ids)
        for flow_id, index in indices.items():
            for slot in self._slots_of.pop(flow_id, ()):
                if self._flow_of_slot[slot] == flow_id:
                    self._flow_of_slot[slot], self._kind[slot], self._bytes[slot] = index, _FORGOTTEN, 0
                    self._any = True
        return indices

    def _revive(self, slot: int, now_ns: int) -> None:
        self._kind[slot] = _MEMBER
        if key := self._key(slot):
            self._name(slot, self._numbers.revive(key, now_ns))

    def _name(self, slot: int, flow_id: int) -> None:
        self._flow_of_slot[slot] = flow_id
        if flow_id not in self._numbers.aggregates.by_id:
            self._kind[slot] = _NAMED
            self._slots_of.setdefault(flow_id, set()).add(slot)

    def _key(self, slot: int) -> bytes:
        """Of the flow that we know to hold it; empty where another has taken it, or takes it just now."""
        first, second = self._slots[slot].copy(), self._slots[slot].copy()
        if first["key"] != second["key"] or not first["generation"] == second["generation"] == self._generation[slot]:
            return b""
        key: bytes = first["key"].tobytes()
        return key
