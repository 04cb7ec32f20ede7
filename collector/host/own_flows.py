# SPDX-License-Identifier: Apache-2.0
"""The flows of one session among those of all."""

from collections.abc import Iterator, Sequence

from netmon.records import Flow


class OwnFlows(Sequence[Flow]):
    """The flows of one session: by an index into all sessions' flows, or one after the other."""

    def __init__(self, everything: Sequence[Flow | None], index: dict[int, int]) -> None:
        """everything: by index; index: by flow id."""
        self._all, self._index = everything, index

    def __len__(self) -> int:
        """How many they are."""
        return len(self._index)

    def __getitem__(self, index: int) -> Flow:  # type: ignore[override]
        """The flow with an index."""
        flow = self._all[index]
        if flow is None:
            raise IndexError(index)
        return flow

    def __iter__(self) -> Iterator[Flow]:
        """All of them, in the order of their appearance."""
        return (self[index] for index in self._index.values())
