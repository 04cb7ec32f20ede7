# SPDX-License-Identifier: Apache-2.0
"""Payload of one host over the last seconds, by whose it is, kept so that any span can be asked for."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from netmon.dl.segments import with_cut
from netmon.dl.sums import sums_by_two

GRAIN_NS = 1_000_000
"""Rows of one grain that no cut separates become one."""

_KEPT_NS = 30_000_000_000  # for so long every grain is kept, then only what lies between two cuts


class Sums(NamedTuple):
    """Payload per key, both (keys,); a key is what the caller added it under."""

    key: npt.NDArray[np.int64]
    payload_bytes: npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Block:
    """Rows of about the same time, sorted by label; a label is the beginning of a row's grain or, if later, its cut."""

    label_ns: npt.NDArray[np.int64]
    key: npt.NDArray[np.int64]
    payload_bytes: npt.NDArray[np.int64]


class PayloadHistory:
    """Sums between any two times: exact between cuts that were made before the rows came, else to the grain (1 ms)."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._cuts: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._blocks: list[_Block] = []

    def cut(self, time_ns: int, added_until_ns: int) -> bool:
        """Separate rows before time_ns from those after; False where rows from there on may have been added already."""
        cuts = with_cut(self._cuts, time_ns, added_until_ns)
        if cuts is None:
            return False
        self._cuts = cuts
        return True

    def add(
        self, time_ns: npt.NDArray[np.int64], key: npt.NDArray[np.int64], payload_bytes: npt.NDArray[np.int64]
    ) -> None:
        """Add rows: three arrays of one length; those without payload change nothing."""
        some = payload_bytes > 0
        if some.any():
            label = np.maximum(time_ns[some] // GRAIN_NS * GRAIN_NS, self._last_cut(time_ns[some]))
            self._blocks.append(_Block(*sums_by_two(label, key[some], payload_bytes[some])))

    def between(self, start_ns: int, end_ns: int) -> Sums:
        """Payload of [start, end) by key."""
        slices = []
        for block in self._blocks:
            first, last = np.searchsorted(block.label_ns, (start_ns, end_ns))
            if last > first:
                slices.append((block.key[first:last], block.payload_bytes[first:last]))
        if not slices:
            return Sums(np.empty(0, np.int64), np.empty(0, np.int64))
        keys, of_row = np.unique(np.concatenate([one[0] for one in slices]), return_inverse=True)
        payload = np.bincount(of_row, weights=np.concatenate([one[1] for one in slices]), minlength=len(keys))
        return Sums(keys, payload.astype(np.int64))

    def forget(self, before_ns: int, now_ns: int) -> None:
        """Drop what lies before before_ns unless it is young; of what is old keep only the sums between cuts."""
        old = now_ns - _KEPT_NS
        first = max(0, int(np.searchsorted(self._cuts, min(before_ns, old), side="right")) - 1)
        self._cuts = self._cuts[first:]
        self._blocks = [block for block in self._blocks if block.label_ns[-1] >= min(before_ns, old)]
        aged = [block for block in self._blocks if block.label_ns[-1] < old]
        if len(aged) > 1:
            label = np.concatenate([block.label_ns for block in aged])
            label = np.maximum(self._last_cut(label), int(label.min()))
            key, payload = (np.concatenate([getattr(b, name) for b in aged]) for name in ("key", "payload_bytes"))
            self._blocks = [
                _Block(*sums_by_two(label, key, payload)),
                *(b for b in self._blocks if b.label_ns[-1] >= old),
            ]

    def _last_cut(self, time_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        if not len(self._cuts):
            return np.full(len(time_ns), np.iinfo(np.int64).min)
        place = np.searchsorted(self._cuts, time_ns, side="right")
        return np.where(place > 0, self._cuts[place - 1], np.iinfo(np.int64).min)
