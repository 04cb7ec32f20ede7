# SPDX-License-Identifier: Apache-2.0
"""The offset and skew between two clocks, from messages whose delay is not known but cannot be negative.

What A sends at t (A's clock) and B receives bounds the offset θ(t) = B − A from above by `received − sent`; what B
sends bounds it from below. A line θ(t) = offset + skew·t that keeps all bounds of a while lies in a corridor, as wide
as the smallest delay there and back (Duda et al., "Estimating global time in distributed systems", ICDCS 1987). Delays
that grow under load only make single bounds loose, and where all are loose the corridor is wide and says little: an
estimate that still lies in it has no reason to move.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from netmon.dl.feasible_offsets import FeasibleOffsets, Flags, Lines, Numbers, Points
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


def refutes(exchange: ClockExchange, fit: OffsetFit) -> bool:
    """Whether an exchange says that a line is not the offset."""
    most = exchange.collector_received_ns - exchange.agent_sent_ns
    least = exchange.collector_sent_ns - exchange.agent_received_ns
    return fit.offset_at(exchange.agent_sent_ns) > most or fit.offset_at(exchange.agent_received_ns) < least


@dataclass(frozen=True)
class OffsetFits:
    """OffsetFit of several clocks; all arrays have one entry each."""

    there: Flags  # whether there is one; where not, the rest says nothing
    offset_ns: _Times
    skew: Numbers
    error_ns: _Times
    since_ns: _Times


@dataclass(frozen=True)
class Present:
    """What is known of several clocks' offsets before: each a line, where `there` says so."""

    there: Flags
    offset_ns: _Times  # at the time that is requested
    skew: Numbers


def fit_offsets(
    above: Points,
    below: Points,
    base_ns: _Times,
    at_ns: int | _Times,
    present: Present,
    share: Numbers,
    room_ns: int = ROOM_NS,
) -> OffsetFits:
    """The offsets of several clocks at at_ns (of all, or of each), by the upper and lower bounds of a window.

    There is none where one side has no bound. It costs a few passes over all bounds.
    above, below: bounds minus base_ns, at times minus at_ns, padded with inf and −inf; share: of each clock.

    The present estimate stays where the bounds allow it and moves to the nearest that they allow where they refute it,
    which cannot take it away from the truth: the corridor is convex. From there it goes `share` of the way to where it
    has room_ns to the walls: in a narrow corridor the middle. Without a present one, a skew of 0 is tried.
    error_ns is how far the furthest line in the corridor is from the estimate.

    Where no line keeps all bounds, a clock has jumped or changed its rate: older bounds are then left out, half of
    the span at a time, until the rest agree; a present estimate that is STEP_NS off then counts for nothing.
    """
    count = len(base_ns)
    fits = OffsetFits(
        np.zeros(count, np.bool_), base_ns.copy(), np.zeros(count), np.zeros(count, np.int64), np.zeros(count, np.int64)
    )
    known, at_ns = ((present.offset_ns - base_ns).astype(np.float64), present.skew), np.broadcast_to(at_ns, count)
    both = _both(above, below)
    left, jumped, above, below = np.flatnonzero(both), False, above.of(both), below.of(both)
    while len(left):
        feasible = FeasibleOffsets.between(above, below, MAX_SKEW)
        newest, oldest = np.maximum(above.last(), below.last()), np.minimum(above.first(), below.first())
        whose = known[0][left], known[1][left]
        offset, skew = _estimate(feasible, whose, present.there[left], share[left], room_ns, jumped)
        error = feasible.reach(offset) + WANDER * np.maximum(0.0, -newest)
        good = feasible.there
        own = left[good]
        fits.there[own], fits.skew[own] = True, skew[good]
        fits.offset_ns[own] += np.round(offset[good]).astype(np.int64)
        fits.error_ns[own] = np.ceil(error[good]).astype(np.int64) + 1
        fits.since_ns[own] = at_ns[own] + oldest[good].astype(np.int64)
        again = ~good & (newest > oldest)
        left, jumped = left[again], True
        since = newest[again] - (newest - oldest)[again] // 2
        above, below = above.of(again).since(since, np.inf), below.of(again).since(since, -np.inf)
        both = _both(above, below)
        left, above, below = left[both], above.of(both), below.of(both)
    return fits


def _both(above: Points, below: Points) -> Flags:
    return np.logical_and(above.there.any(axis=1), below.there.any(axis=1), dtype=np.bool_)


def _estimate(
    feasible: FeasibleOffsets, present: Lines, known: Flags, share: Numbers, room_ns: float, jumped: bool
) -> Lines:
    offset, skew = feasible.nearest(present)
    stays = known & ~(jumped & (np.abs(offset - present[0]) >= STEP_NS))
    wanted, lean = feasible.nearest((offset, skew), room_ns)
    moved = offset + share * (wanted - offset), skew + share * (lean - skew)
    anew = feasible.nearest((feasible.middle[0], np.zeros(len(offset))), room_ns)
    return np.where(stays, moved[0], anew[0]), np.where(stays, moved[1], anew[1])
