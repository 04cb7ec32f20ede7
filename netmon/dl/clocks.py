# SPDX-License-Identifier: Apache-2.0
"""The offset and skew between two clocks, from messages whose delay is not known but cannot be negative.

What A sends at t (A's clock) and B receives bounds the offset θ(t) = B − A from above by `received − sent`; what B
sends bounds it from below. A line θ(t) = offset + skew·t that keeps all bounds of a while lies in a corridor, as wide
as the smallest delay there and back (Duda et al., "Estimating global time in distributed systems", ICDCS 1987). Delays
that grow under load only make single bounds loose, and where all are loose the corridor is wide and says little: an
estimate that still lies in it has no reason to move.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from netmon.dl.corridor import Corridor, Line
from netmon.dl.timemap import STEP_NS
from netmon.records import ClockExchange

MAX_SKEW = 1e-3
"""Two clocks that NTP each slews by no more than the kernel's 500 ppm."""

WANDER = 1e-6
"""How much a skew may change in the second after the newest bound: temperature, and slewing by small steps."""

AGEING = 5e-6
"""How much the skew before a window may differ from the one in it."""

ROOM_NS = 500_000
"""A corridor that is narrower, either way, has a middle that is a better estimate than any other line in it."""

_Times = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Bounds:
    """Bounds of an offset in ns, arrays of one length per side, times in A's clock, in any order."""

    upper_at: _Times
    upper: _Times
    lower_at: _Times
    lower: _Times

    def since(self, time_ns: int) -> "Bounds":
        """Those that are not older."""
        above, below = self.upper_at >= time_ns, self.lower_at >= time_ns
        return Bounds(self.upper_at[above], self.upper[above], self.lower_at[below], self.lower[below])

    def aged(self, time_ns: int) -> "Bounds":
        """All of them, those that are older loosened by AGEING: what they still say of a line that holds since then."""
        above, below = (
            np.ceil(np.maximum(time_ns - at, 0) * AGEING).astype(np.int64) for at in (self.upper_at, self.lower_at)
        )
        return replace(self, upper=self.upper + above, lower=self.lower - below)

    @property
    def newest_ns(self) -> int:
        """Time of the last bound."""
        return max(int(self.upper_at.max()), int(self.lower_at.max()))

    @property
    def oldest_ns(self) -> int:
        """Time of the first bound."""
        return min(int(self.upper_at.min()), int(self.lower_at.min()))


@dataclass(frozen=True)
class OffsetFit:
    """B = A + offset_ns + skew·(A − at_ns), within error_ns at at_ns."""

    at_ns: int
    offset_ns: int
    skew: float
    error_ns: int
    since_ns: int  # the oldest bound that agrees with the newest ones

    def offset_at(self, time_ns: int) -> int:
        """The offset at another time of A's clock."""
        return self.offset_ns + round(self.skew * (time_ns - self.at_ns))

    def moved(self, time_ns: int) -> "OffsetFit":
        """The same line later, when nothing new was heard: right to as much more as a clock's rate may change by."""
        error = self.error_ns + int(np.ceil(AGEING * max(0, time_ns - self.at_ns)))
        return replace(self, at_ns=time_ns, offset_ns=self.offset_at(time_ns), error_ns=error)


def exchange_bounds(exchanges: Sequence[ClockExchange]) -> Bounds:
    """What exchanges tell of (collector − agent). Those whose own order is impossible are left out."""
    times = np.array([list(vars(exchange).values()) for exchange in exchanges], np.int64).reshape(-1, 4)
    sent, collector_received, collector_sent, received = times[
        (times[:, 3] >= times[:, 0]) & (times[:, 2] >= times[:, 1])
    ].T
    return Bounds(sent, collector_received - sent, received, collector_sent - received)


def refutes(exchange: ClockExchange, fit: OffsetFit) -> bool:
    """Whether an exchange says that a line is not the offset."""
    most = exchange.collector_received_ns - exchange.agent_sent_ns
    least = exchange.collector_sent_ns - exchange.agent_received_ns
    return fit.offset_at(exchange.agent_sent_ns) > most or fit.offset_at(exchange.agent_received_ns) < least


def fit_offset(
    bounds: Bounds, at_ns: int, present: OffsetFit | None = None, share: float = 1.0, room_ns: int = ROOM_NS
) -> OffsetFit | None:
    """The offset at at_ns by the bounds of a window; None where one side has no bound.

    The present estimate stays where the bounds allow it and moves to the nearest that they allow where they refute it,
    which cannot take it away from the truth: the corridor is convex. From there it goes `share` of the way to where it
    has room_ns to the walls: in a narrow corridor the middle. Without a present one, a skew of 0 is tried.
    error_ns is how far the furthest line in the corridor is from the estimate.

    Where no line keeps all bounds, a clock has jumped or changed its rate: older bounds are then left out, half of
    the span at a time, until the rest agree; a present estimate that is STEP_NS off then counts for nothing.
    """
    everything = bounds
    while len(bounds.upper) and len(bounds.lower):
        base = int(bounds.upper[0])
        above = np.column_stack([bounds.upper_at - at_ns, bounds.upper - base]).astype(np.float64)
        below = np.column_stack([bounds.lower_at - at_ns, bounds.lower - base]).astype(np.float64)
        corridor = Corridor.between(above, below, MAX_SKEW)
        if corridor:
            known = (float(present.offset_at(at_ns) - base), present.skew) if present else None
            offset, skew = _estimate(corridor, known, share, room_ns, jumped=bounds is not everything)
            error = corridor.reach(offset) + WANDER * max(0, at_ns - bounds.newest_ns)
            return OffsetFit(at_ns, base + round(offset), skew, int(np.ceil(error)) + 1, bounds.oldest_ns)
        span = bounds.newest_ns - bounds.oldest_ns
        if span == 0:
            return None
        bounds = bounds.since(bounds.newest_ns - span // 2)
    return None


def _estimate(corridor: Corridor, present: Line | None, share: float, room_ns: float, jumped: bool) -> Line:
    if present:
        offset, skew = corridor.nearest(present)
        if not (jumped and abs(offset - present[0]) >= STEP_NS):
            wanted, lean = corridor.nearest((offset, skew), room_ns)
            return offset + share * (wanted - offset), skew + share * (lean - skew)
    return corridor.nearest((corridor.middle[0], 0.0), room_ns)
