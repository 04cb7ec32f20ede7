# SPDX-License-Identifier: Apache-2.0
"""Which flow held a slot in which generation, of the latest changes."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class SlotHolders:
    """Three columns."""

    slots: npt.NDArray[np.uint32]
    generations: npt.NDArray[np.uint16]
    flow_ids: npt.NDArray[np.uint32]

    @staticmethod
    def none() -> "SlotHolders":
        """No rows."""
        return SlotHolders(np.zeros(0, np.uint32), np.zeros(0, np.uint16), np.zeros(0, np.uint32))

    def __len__(self) -> int:
        """Rows."""
        return len(self.slots)

    def and_also(self, other: "SlotHolders") -> "SlotHolders":
        """Both."""
        return SlotHolders(
            np.concatenate([self.slots, other.slots]),
            np.concatenate([self.generations, other.generations]),
            np.concatenate([self.flow_ids, other.flow_ids]),
        )

    def renamed(self, flow_ids: Mapping[int, int]) -> "SlotHolders":
        """With other ids in the place of some."""
        ids = [flow_ids.get(i, i) for i in self.flow_ids.tolist()]
        return SlotHolders(self.slots, self.generations, np.array(ids, np.uint32))

    def find(self, slots: npt.NDArray[np.intp], generations: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint32]:
        """The flows of these (slot, generation); 0: of one that is not here."""
        if not len(self):
            return np.zeros(len(slots), np.uint32)
        known, wanted = _joined(self.slots, self.generations), _joined(slots, generations)
        order = np.argsort(known)
        at = order[np.minimum(np.searchsorted(known[order], wanted), len(self) - 1)]
        return np.where(known[at] == wanted, self.flow_ids[at], np.uint32(0))


def _joined(slots: npt.NDArray[np.integer], generations: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint64]:
    return slots.astype(np.uint64) << np.uint64(16) | generations
