# SPDX-License-Identifier: Apache-2.0
"""How many flows are described one by one: a rate with a burst, and a number that is alive."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Allowance:
    """per_s: new flows a second in the long run; burst: at once after a rest; alive: together, at most."""

    per_s: float
    burst: int
    alive: int


ANY = Allowance(per_s=100, burst=5_000, alive=10_000)
"""Flows of whoever it is. A collector remembers each for ten minutes: these are then 65,000."""

EVERY = Allowance(per_s=1e9, burst=1 << 30, alive=1 << 30)
"""No bound: for those who measure and compare."""

TRAINING = Allowance(per_s=500, burst=10_000, alive=20_000)
"""Flows that look like a rank's, together with the others: who imitates ranks is bounded, too."""

LARGE = Allowance(per_s=100, burst=2_000, alive=15_000)
"""Flows of an aggregate that turned out to be large."""


@dataclass
class Budget:
    """What of an allowance is left. Full at first."""

    allowance: Allowance
    _left: float = field(init=False)
    _counted_ns: int = 0

    def __post_init__(self) -> None:
        """Full."""
        self._left = float(self.allowance.burst)

    def take(self, wanted: int, alive: int, now_ns: int) -> int:
        """How many of the wanted ones may be described, beside those that are alive; they are then spent."""
        allowance = self.allowance
        if self._counted_ns:
            earned = max(0, now_ns - self._counted_ns) / 1e9 * allowance.per_s
            self._left = min(allowance.burst, self._left + earned)
        self._counted_ns = now_ns
        taken = max(0, min(wanted, int(self._left), allowance.alive - alive))
        self._left -= taken
        return taken
