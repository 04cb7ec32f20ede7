# SPDX-License-Identifier: Apache-2.0
"""Flow keys → flow ids, which are never used twice in a session."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from netmon.records import FLOW_KEY, Table

_RAW = np.dtype("V40")


class FlowNumbers:
    """Ids from 1, in the order of first sight. A flow that was forgotten and comes back is a new one."""

    def __init__(self) -> None:
        """Nothing is known."""
        self._ids: dict[bytes, int] = {}
        self.next_id = 1

    def __len__(self) -> int:
        """Flows remembered."""
        return len(self._ids)

    def number(self, keys: Table) -> tuple[npt.NDArray[np.uint32], Table]:
        """keys: (n,) FLOW_KEY → their ids (n,), and the keys among them that are new, in the order of their ids.

        This walks flows that took a slot, one by one, not records.
        """
        new: list[bytes] = []
        ids = np.empty(len(keys), np.uint32)
        for i, key in enumerate(np.ascontiguousarray(keys).view(_RAW).tolist()):
            known = self._ids.get(key)
            if known is None:
                known = self._ids[key] = self.next_id
                self.next_id += 1
                new.append(key)
            ids[i] = known
        return ids, np.array(new, _RAW).view(FLOW_KEY)

    def keep(self, ids: Iterable[int]) -> None:
        """Forgets every flow but these."""
        live = set(ids)
        self._ids = {key: number for key, number in self._ids.items() if number in live}
