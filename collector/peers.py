# SPDX-License-Identifier: Apache-2.0
"""Who is at the other end of a rank's flow: the rank that owns the same 5-tuple in the opposite direction."""

from netmon.records import Direction, Flow

_Key = tuple[int, str, str, int, int, int]


class Peers:
    """The DL flows of all hosts by 5-tuple and direction."""

    def __init__(self) -> None:
        """Begin without flows."""
        self._ranks: dict[_Key, int] = {}

    def add(self, flow: Flow) -> None:
        """Take in a flow, if a rank owns it."""
        if flow.owner.job:
            self._ranks[self._key(flow, flow.direction)] = flow.owner.rank

    def rank(self, flow: Flow) -> int:
        """Rank of the peer; −1 where it is not known."""
        opposite = Direction.RX if flow.direction == Direction.TX else Direction.TX
        return self._ranks.get(self._key(flow, opposite), -1) if flow.owner.job else -1

    def forget(self, flow: Flow) -> None:
        """Drop a flow whose session is over."""
        self._ranks.pop(self._key(flow, flow.direction), None)

    @staticmethod
    def _key(flow: Flow, direction: Direction) -> _Key:
        ports = flow.src_port, flow.dst_port
        return (direction, flow.src, flow.dst, *ports, flow.protocol)
