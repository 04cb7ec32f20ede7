# SPDX-License-Identifier: Apache-2.0
"""Which groups a process has made: an address in it, until another group is made there, by a name that is the same on
all ranks of the job."""

from typing import NamedTuple

from netmon.records import STEP_GROUP, STEP_GROUP_NAME, Table

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
