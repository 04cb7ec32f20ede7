# SPDX-License-Identifier: Apache-2.0
"""How much of something may be had: a token bucket (Turner, "New directions in communications", 1986), one per key,
and the same for time spent on a kind of work.
"""

import time
from collections.abc import Hashable
from types import TracebackType

_SECOND_NS = 1_000_000_000


class RateLimiter:
    """So much at once, and so much a second in the long run. Full at first; times are of any one clock, in ns."""

    def __init__(self, per_s: float, burst: float) -> None:
        """Both in the same unit."""
        self._per_ns, self._burst = per_s / _SECOND_NS, burst
        self._left = float(burst)
        self._counted_ns: int | None = None  # when it was last counted what is left

    def left(self, now_ns: int) -> float:
        """How much may be had now; below 0 after more was spent than there was."""
        passed_ns = 0 if self._counted_ns is None else max(0, now_ns - self._counted_ns)
        self._left = min(self._burst, self._left + passed_ns * self._per_ns)
        self._counted_ns = now_ns if self._counted_ns is None else max(self._counted_ns, now_ns)
        return self._left

    def spend(self, amount: float) -> None:
        """So much was had; below 0: given back."""
        self._left -= amount

    def take(self, wanted: int, now_ns: int) -> int:
        """How many of the wanted ones may be had; they are then spent."""
        taken = max(0, min(wanted, int(self.left(now_ns))))
        self.spend(taken)
        return taken


class RateLimiters:
    """One per key, such as a process, a user or a host. Whoever has spent nothing for longest begins anew."""

    def __init__(self, per_s: float, burst: float, most_keys: int = 4096) -> None:
        """per_s, burst: of each key."""
        self._each, self._most_keys = (per_s, burst), most_keys
        self._limiters: dict[Hashable, RateLimiter] = {}

    def __len__(self) -> int:
        return len(self._limiters)

    def left(self, key: Hashable, now_ns: int) -> float:
        limiter = self._limiters.get(key)
        return limiter.left(now_ns) if limiter else self._each[1]

    def spend(self, key: Hashable, amount: float, now_ns: int) -> None:
        limiter = self._limiters.pop(key, None) or RateLimiter(*self._each)
        limiter.left(now_ns)
        limiter.spend(amount)
        self._limiters[key] = limiter
        if len(self._limiters) > self._most_keys:
            del self._limiters[next(iter(self._limiters))]

    def take_one(self, key: Hashable, now_ns: int) -> bool:
        """Whether one may be had; it is then spent."""
        allowed = self.left(key, now_ns) >= 1
        if allowed:
            self.spend(key, 1, now_ns)
        return allowed


class TimeLimiter:
    """Work that may take a share of one core in the long run, and a burst of time at once.

    Done inside a `with` block the work is timed by the wall clock; whoever knows better what it took says `spend`.
    """

    def __init__(self, share: float, burst_ns: int) -> None:
        """share: of a core."""
        self._limiter = RateLimiter(share * _SECOND_NS, burst_ns)
        self._begin_ns = 0

    def allows(self) -> bool:
        return self._limiter.left(time.monotonic_ns()) > 0

    def __enter__(self) -> None:
        self._begin_ns = time.monotonic_ns()

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.spend(time.monotonic_ns() - self._begin_ns)

    def spend(self, time_ns: int) -> None:
        self._limiter.spend(time_ns)
