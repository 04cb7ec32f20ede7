# SPDX-License-Identifier: Apache-2.0
"""How much of something each stranger may have: so much at once, and so much a second from then on."""

from collections.abc import Hashable

_MOST_KEYS = 4096


class Budget:
    """By key, such as a process or a user. Who has not been heard of for longest is forgotten, and begins anew."""

    def __init__(self, per_second: float, at_once: int) -> None:
        """Everybody may have `at_once` at first."""
        self._per_ns, self._most = per_second / 1e9, float(at_once)
        self._left: dict[Hashable, tuple[float, int]] = {}  # what was left, and when

    def left(self, key: Hashable, now_ns: int) -> int:
        """How many it may have now."""
        left, then_ns = self._left.get(key, (self._most, now_ns))
        return int(min(self._most, left + max(0, now_ns - then_ns) * self._per_ns))

    def spend(self, key: Hashable, count: int, now_ns: int) -> None:
        """It has had so many, more than were left perhaps."""
        left, then_ns = self._left.pop(key, (self._most, now_ns))
        left = min(self._most, left + max(0, now_ns - then_ns) * self._per_ns)
        self._left[key] = left - count, max(now_ns, then_ns)
        if len(self._left) > _MOST_KEYS:
            del self._left[next(iter(self._left))]

    def take(self, key: Hashable, now_ns: int) -> bool:
        """One, if it may have one."""
        allowed = self.left(key, now_ns) > 0
        if allowed:
            self.spend(key, 1, now_ns)
        return allowed
