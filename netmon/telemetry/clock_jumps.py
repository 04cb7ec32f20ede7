# SPDX-License-Identifier: Apache-2.0
"""This machine's clock is set by somebody: an hour, a year, either way."""

import time
from collections.abc import Callable

_JUMP_S = 1.0  # what is less is slewed, or not worth a line


def _set_s() -> float:
    """UTC against the time since the machine started, sleep included: it changes only where the clock is set."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


class ClockJumps:
    """Of one process. Costs two readings of clocks a look."""

    def __init__(self, set_s: Callable[[], float] = _set_s) -> None:
        self._set_s, self._before_s = set_s, set_s()
        self.count = 0
        """How often the clock was set by more than a second."""

    def check(self) -> float:
        """By how many seconds it was set since the last look; 0: it was not."""
        now_s = self._set_s()
        jump_s = now_s - self._before_s
        if abs(jump_s) < _JUMP_S:
            return 0.0
        self._before_s = now_s
        self.count += 1
        return jump_s


def jump_text(jump_s: float) -> str:
    """A jump in words, as "set by +3600 s (1 h 0 min)"."""
    hours, minutes = divmod(round(abs(jump_s) / 60), 60)
    days, hours = divmod(hours, 24)
    words = [f"{days} d"] if days else []
    return f"set by {jump_s:+.0f} s ({' '.join([*words, f'{hours} h', f'{minutes} min'])})"
