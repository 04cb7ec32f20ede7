# SPDX-License-Identifier: Apache-2.0
"""How long to wait before the next attempt."""

import random

_LEAST_S = 0.2


class Backoff:
    """Twice as long after each attempt, from 0.2 s to most_s, and each time between half of that and all of it."""

    def __init__(self, most_s: float) -> None:
        """No attempt yet."""
        self._most_s = most_s
        self._next_s = _LEAST_S

    def after_failure(self) -> float:
        """Seconds to wait now."""
        wait_s = self._next_s * random.uniform(0.5, 1)
        self._next_s = min(self._most_s, 2 * self._next_s)
        return wait_s

    def reset(self) -> None:
        """An attempt has led to something."""
        self._next_s = _LEAST_S
