# SPDX-License-Identifier: Apache-2.0
"""The offset and skew between two clocks, from messages whose delay is not known but cannot be negative.

What A sends at t (A's clock) and B receives bounds the offset θ(t) = B − A from above by `received − sent`; what B
sends bounds it from below. A line θ(t) = offset + skew·t that keeps all bounds of a while lies in a corridor, as wide
as the smallest delay there and back (Duda et al., "Estimating global time in distributed systems", ICDCS 1987). Delays
that grow under load only make single bounds loose: they move neither the corridor nor the estimate.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from netmon.records import ClockExchange

MAX_SKEW = 1e-3
"""Two clocks that NTP each slews by no more than the kernel's 500 ppm."""

WANDER = 1e-6
"""How much a skew may change in the second after the newest bound: temperature, and slewing by small steps."""

_SHORTEST_NS = 300_000_000  # of a window that tells a skew from the jitter

_Times = npt.NDArray[np.int64]
_Line = tuple[float, float]  # value at time 0, slope


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


def exchange_bounds(exchanges: Sequence[ClockExchange]) -> Bounds:
    """What exchanges tell of (collector − agent). Those whose own order is impossible are left out."""
    times = np.array([list(vars(exchange).values()) for exchange in exchanges], np.int64).reshape(-1, 4)
    sent, collector_received, collector_sent, received = times[
        (times[:, 3] >= times[:, 0]) & (times[:, 2] >= times[:, 1])
    ].T
    return Bounds(sent, collector_received - sent, received, collector_sent - received)


def fit_offset(bounds: Bounds, at_ns: int) -> OffsetFit | None:
    """The offset at at_ns by the bounds of a window; None where one side has no bound.

    Where no line keeps all bounds, a clock has jumped or changed its rate: older bounds are then left out, half of
    the span at a time, until the rest agree. The estimate is the mean of the corridor's two walls, each the line
    beyond none of its bounds that is nearest to them on average (Moon, Skelly and Towsley, "Estimation and removal
    of clock skew from network delay measurements", INFOCOM 1999); the error, how far the furthest line in the
    corridor is from it.
    """
    while len(bounds.upper) and len(bounds.lower):
        fit = _fit(bounds, at_ns)
        if fit:
            return fit
        span = bounds.newest_ns - bounds.oldest_ns
        if span == 0:
            return None
        bounds = bounds.since(bounds.newest_ns - span // 2)
    return None


def _fit(bounds: Bounds, at_ns: int) -> OffsetFit | None:
    base = int(bounds.upper[0])
    above = _hull(bounds.upper_at - at_ns, bounds.upper - base)
    below = _hull(bounds.lower_at - at_ns, base - bounds.lower) * (1, -1)
    corners = _corners(above, below)
    if not len(corners):
        return None
    (low, least), (high, most) = corners.min(axis=0), corners.max(axis=0)
    offset, skew = (low + high) / 2, 0.0
    walls = [wall for wall in (_wall(above), _wall(below)) if wall]
    if len(walls) == 2 and bounds.newest_ns - bounds.oldest_ns > _SHORTEST_NS:
        offset, skew = (walls[0][0] + walls[1][0]) / 2, (walls[0][1] + walls[1][1]) / 2
    offset, skew = np.clip(offset, low, high), np.clip(skew, least, most)
    error = max(high - offset, offset - low) + WANDER * max(0, at_ns - bounds.newest_ns)
    return OffsetFit(at_ns, base + round(offset), float(skew), int(np.ceil(error)) + 1, bounds.oldest_ns)


def _hull(times: _Times, values: _Times) -> npt.NDArray[np.float64]:
    """The points below which no other lies: the lower convex hull, (points, 2), by time (monotone chain)."""
    hull: list[tuple[float, float]] = []
    for index in np.lexsort((values, times)).tolist():
        t, v = float(times[index]), float(values[index])
        if hull and hull[-1][0] == t:
            continue
        while len(hull) > 1 and (hull[-1][1] - hull[-2][1]) * (t - hull[-2][0]) >= (v - hull[-2][1]) * (
            hull[-1][0] - hull[-2][0]
        ):
            hull.pop()
        hull.append((t, v))
    return np.array(hull)


def _wall(hull: npt.NDArray[np.float64]) -> _Line | None:
    """The hull's edge in the middle of its time: its value at time 0 and its slope; None for a single point."""
    if len(hull) < 2:
        return None
    middle = (hull[0, 0] + hull[-1, 0]) / 2
    right = int(np.clip(np.searchsorted(hull[:, 0], middle), 1, len(hull) - 1))
    (t0, v0), (t1, v1) = hull[right - 1], hull[right]
    slope = (v1 - v0) / (t1 - t0)
    return float(v0 - slope * t0), float(slope)


def _corners(above: npt.NDArray[np.float64], below: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The corners of the set of (value at time 0, slope) of all lines in the corridor; empty where there is none."""
    points = np.concatenate([above, below])
    times, values = points[:, 0], points[:, 1]
    first, second = np.triu_indices(len(points), 1)
    apart = times[first] != times[second]
    first, second = first[apart], second[apart]
    slopes = (values[second] - values[first]) / (times[second] - times[first])
    slopes = np.concatenate([slopes, np.repeat([MAX_SKEW, -MAX_SKEW], len(points))])
    through = np.concatenate([first, np.arange(len(points)), np.arange(len(points))])
    starts = values[through] - slopes * times[through]
    tolerance = 1e-3  # ns, of rounding
    inside = np.abs(slopes) <= MAX_SKEW
    inside &= (starts + np.outer(above[:, 0], slopes) <= above[:, 1:] + tolerance).all(axis=0)
    inside &= (starts + np.outer(below[:, 0], slopes) >= below[:, 1:] - tolerance).all(axis=0)
    corners: npt.NDArray[np.float64] = np.column_stack([starts, slopes])[inside]
    return corners
