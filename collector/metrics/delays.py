# SPDX-License-Identifier: Apache-2.0
"""How long agents wait for the word that a batch is stored: one batch of each session at a time is timed."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

DELAY_BOUNDS_S = (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 30.0, 60.0)
"""Upper bounds of the histogram; what is longer has a class of its own."""


@dataclass(frozen=True)
class Delays:
    """A histogram since the collector's start."""

    counts: Sequence[int] = (0,) * (len(DELAY_BOUNDS_S) + 1)  # by DELAY_BOUNDS_S
    seconds: float = 0.0


NO_DELAYS = Delays()


class DelayCounts:
    """What `Delays` is made of."""

    def __init__(self) -> None:
        self._counts = [0] * (len(DELAY_BOUNDS_S) + 1)
        self._seconds = 0.0

    def add(self, seconds: float) -> None:
        """One batch is stored."""
        self._counts[bisect_left(DELAY_BOUNDS_S, seconds)] += 1
        self._seconds += seconds

    def copy(self) -> Delays:
        """As it is now."""
        return Delays(tuple(self._counts), self._seconds)
