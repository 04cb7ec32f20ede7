# SPDX-License-Identifier: Apache-2.0
"""Who is at the other end of a flow: the rank that owns the same 5-tuple in the opposite direction."""

from collections.abc import Iterable, Iterator

from collector.messages import BY_TRAFFIC
from collector.tick_messages import BY_PEER, PeerTold
from netmon.records import Flow

_Key = tuple[int, str, str, int, int, int]
_Owner = tuple[str, int]  # job and rank

_NOBODY: _Owner = ("", -1)
_OTHERS = (BY_PEER, BY_TRAFFIC)  # what they say of a flow says nothing of its other end


class RemoteEnds:
    """The flows of all hosts whose other end is asked for, or is a rank's, by 5-tuple and direction."""

    def __init__(self) -> None:
        """Begin without flows."""
        self._at: dict[
            _Key, dict[int, _Owner]
        ] = {}  # flows by number, and whose they are: several where links are stacked
        self._keys: dict[int, _Key] = {}  # by flow
        self._told: dict[int, _Owner] = {}  # what was said of each flow's other end, but nobody

    def __len__(self) -> int:
        """Flows."""
        return len(self._keys)

    def hear(self, over: Iterable[int], flows: Iterable[tuple[int, Flow]]) -> list[PeerTold]:
        """Forget some flows, take in others or what is new of them; gives what has changed."""
        changed: dict[_Key, None] = {}  # whose owners may have
        asking: dict[int, _Key] = {}
        for number in over:
            key = self._forget(number)
            if key:
                changed[key] = None
        for number, flow in flows:
            key = asking[number] = _key(flow)
            if self._keys.get(number, key) != key:  # an agent should not do that
                changed[self._keys[number]] = None
                self._forget(number)
            self._keys[number] = key
            owner = flow.owner
            owned = bool(owner.job) and owner.source not in _OTHERS
            at = self._at.setdefault(key, {})
            at.pop(number, None)  # the latest to be told is the last
            at[number] = (owner.job, owner.rank) if owned else _NOBODY
            changed[key] = None
        for key in changed:
            asking |= dict.fromkeys(self._at.get(_opposite(key), ()), _opposite(key))
        return list(self._say(asking))

    def _say(self, asking: dict[int, _Key]) -> Iterator[PeerTold]:
        for number, key in asking.items():
            owner = self._owner(_opposite(key))
            if owner != self._told.get(number, _NOBODY) and number in self._keys:
                self._told[number] = owner
                if owner == _NOBODY:
                    del self._told[number]
                yield PeerTold(number, *owner)

    def _owner(self, key: _Key) -> _Owner:
        return next((owner for owner in reversed(self._at.get(key, {}).values()) if owner != _NOBODY), _NOBODY)

    def _forget(self, number: int) -> _Key | None:
        key = self._keys.pop(number, None)
        if key:
            self._told.pop(number, None)
            del self._at[key][number]
            if not self._at[key]:
                del self._at[key]
        return key


def _key(flow: Flow) -> _Key:
    return (flow.direction, flow.src, flow.dst, flow.src_port, flow.dst_port, flow.protocol)


def _opposite(key: _Key) -> _Key:
    return (1 - key[0], *key[1:])
