# SPDX-License-Identifier: Apache-2.0
"""The index of each flow of all sessions, by its session and its id; several flows may have one."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

_Numbers = npt.NDArray[np.int64]
_ID_BITS = 32  # of a key: the session above the flow's own id


class FlowKeys:
    """Lives on one thread; what is added or removed counts from the next `find` on."""

    def __init__(self) -> None:
        """Begin without flows."""
        self._keys, self._index, self._asked_ns = (np.empty(0, np.int64) for _ in range(3))  # ascending by key
        self._new: list[tuple[int, int, int]] = []  # not in there yet
        self._gone: list[int] = []  # keys that are still in there

    def add(self, session: int, flow_id: int, index: int, at_ns: int) -> None:
        """A flow that is not known. at_ns: mono."""
        self._new.append((session << _ID_BITS | flow_id, index, at_ns))

    def remove(self, session: int, flow_ids: Iterable[int]) -> None:
        """Flows of a session."""
        self._gone += (session << _ID_BITS | flow_id for flow_id in flow_ids)

    def find(
        self, session: _Numbers, flow_id: npt.NDArray[np.integer], at_ns: _Numbers | None = None
    ) -> npt.NDArray[np.int64]:
        """Index of each flow, arrays of one length; −1 where it is not known. at_ns: when it had rows (mono)."""
        self._sort()
        key = session.astype(np.int64) << _ID_BITS | flow_id.astype(np.int64)
        place = np.searchsorted(self._keys, key)
        known = place < len(self._keys)
        known[known] = self._keys[place[known]] == key[known]
        found = np.full(len(key), -1, np.int64)
        found[known] = self._index[place[known]]
        if at_ns is not None:
            self._asked_ns[place[known]] = np.maximum(self._asked_ns[place[known]], at_ns[known])
        return found

    def silent(self, session: int, before_ns: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The flows of a session that were added, and had rows, only before (mono): their ids, their indices."""
        self._sort()
        first, end = np.searchsorted(self._keys, [session << _ID_BITS, (session + 1) << _ID_BITS])
        own = first + np.flatnonzero(self._asked_ns[first:end] < before_ns)
        return self._keys[own] & ((1 << _ID_BITS) - 1), self._index[own]

    def _sort(self) -> None:
        if self._gone:
            stay = ~np.isin(self._keys, np.array(self._gone, np.int64))
            self._keys, self._index, self._asked_ns = self._keys[stay], self._index[stay], self._asked_ns[stay]
            self._gone = []
        if self._new:
            key, index, asked = np.array(sorted(self._new), np.int64).T
            place = np.searchsorted(self._keys, key)
            self._keys, self._index = np.insert(self._keys, place, key), np.insert(self._index, place, index)
            self._asked_ns = np.insert(self._asked_ns, place, asked)
            self._new = []
