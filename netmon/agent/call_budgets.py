# SPDX-License-Identifier: Apache-2.0
"""How many calls of training libraries each process and user may have looked at: to look at one costs a microsecond.

Calls that make up a step cost nothing, so that training pays for what it calls between its steps only. Steps have a
budget of their own. What is beyond its process's budget costs its user nothing, and who trains does not depend on what
its user's other processes do.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from netmon.rate_limiter import RateLimiters

_CALLS_PER_SECOND, _CALLS_AT_ONCE = 2_500, 40_000  # of a process, that make up no step
_USER_CALLS_PER_SECOND, _USER_CALLS_AT_ONCE = 5_000, 60_000
_STEPS_PER_SECOND, _STEPS_AT_ONCE = 200, 2_000  # of a process
_USER_STEPS_PER_SECOND, _USER_STEPS_AT_ONCE = 1_000, 8_000
_TRAINS_NS = 60_000_000_000  # who has stepped so lately, trains


@dataclass
class _Pair:
    """The same for a process and for its user."""

    process: RateLimiters
    user: RateLimiters

    def spend(self, pid: int, uid: int, count: int, now_ns: int) -> None:
        self.process.spend(pid, count, now_ns)
        self.user.spend(uid, count, now_ns)


@dataclass
class _Unpaid:
    """Of a process: calls since its last step, and when that was; 0: it has made none."""

    calls: int = 0
    stepped_ns: int = 0


@dataclass
class CallBudgets:
    """Full at first."""

    _calls: _Pair = field(
        default_factory=lambda: _Pair(
            RateLimiters(_CALLS_PER_SECOND, _CALLS_AT_ONCE), RateLimiters(_USER_CALLS_PER_SECOND, _USER_CALLS_AT_ONCE)
        )
    )
    _steps: _Pair = field(
        default_factory=lambda: _Pair(
            RateLimiters(_STEPS_PER_SECOND, _STEPS_AT_ONCE), RateLimiters(_USER_STEPS_PER_SECOND, _USER_STEPS_AT_ONCE)
        )
    )
    _of_process: dict[int, _Unpaid] = field(default_factory=dict)

    def keep(self, pids: Collection[int]) -> None:
        """The others are gone."""
        self._of_process = {pid: unpaid for pid, unpaid in self._of_process.items() if pid in pids}

    def affords(self, pid: int, uid: int, now_ns: int) -> bool:
        """Whether what this process has called is to be looked at now."""
        if not all(pair.process.left(pid, now_ns) > 0 for pair in (self._calls, self._steps)):
            return False
        stepped_ns = self._of_process.get(pid, _Unpaid()).stepped_ns
        if stepped_ns and now_ns - stepped_ns < _TRAINS_NS:
            return True
        return all(pair.user.left(uid, now_ns) > 0 for pair in (self._calls, self._steps))

    def looked_at(self, pid: int, uid: int, calls: int, steps: int, now_ns: int) -> None:
        """So many calls were, and made so many steps."""
        unpaid = self._of_process.setdefault(pid, _Unpaid())
        self._calls.spend(pid, uid, calls, now_ns)
        unpaid.calls += calls
        if steps:
            self._calls.spend(pid, uid, -unpaid.calls, now_ns)
            self._steps.spend(pid, uid, steps, now_ns)
            unpaid.calls, unpaid.stepped_ns = 0, now_ns
