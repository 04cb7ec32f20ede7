# SPDX-License-Identifier: Apache-2.0
"""All lines between points that they may not exceed and points that they may not fall below, of many such sets at once.

A line v + s·t keeps below the points (t, u) while v ≤ U(s) = min(u − s·t), and above the points (t, l) while
v ≥ L(s) = max(l − s·t). U is concave and L convex in s, so that the slopes that leave room are one interval, which
Newton's method finds from outside in a few exact steps, and so is every other extreme: no hull has to be built. All
arrays have one row per set; each step costs as much as there are points.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

_SHORTEST = 300_000_000  # of a corridor whose walls tell a slope from the jitter
_ROUNDING = 2e-3  # ns
_MOST_STEPS = 200  # far more than a few; a set that needs them has no corridor

Numbers = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Lines = tuple[Numbers, Numbers]
"""Values at time 0, slopes; of shape (sets,)."""


@dataclass(frozen=True)
class Points:
    """Points of several sets, shape (sets, most points of one); where a set has fewer: time 0, value ± inf."""

    time: Numbers
    value: Numbers

    @classmethod
    def padded(
        cls,
        sets: npt.NDArray[np.int64],
        time: npt.NDArray[np.integer],
        value: npt.NDArray[np.integer],
        count: int,
        none: float,
    ) -> "Points":
        """Of `count` sets; sets: whose each point is, ascending; none: inf or −inf, the value where no point is."""
        first = np.searchsorted(sets, np.arange(count))
        within = np.arange(len(sets)) - first[sets]
        shape = count, int(within.max(initial=0)) + 1
        points = cls(np.zeros(shape), np.full(shape, none))
        points.time[sets, within], points.value[sets, within] = time, value
        return points

    @property
    def there(self) -> Flags:
        """Which are points."""
        return np.isfinite(self.value)

    def first(self) -> Numbers:
        """Time of each set's first point; inf where it has none."""
        found: Numbers = np.where(self.there, self.time, np.inf).min(axis=1, initial=np.inf)
        return found

    def last(self) -> Numbers:
        """Time of each set's last point; −inf where it has none."""
        found: Numbers = np.where(self.there, self.time, -np.inf).max(axis=1, initial=-np.inf)
        return found

    def of(self, sets: Flags) -> "Points":
        """Those of some of the sets."""
        return Points(self.time[sets], self.value[sets])

    def since(self, time: Numbers, none: float) -> "Points":
        """Without those that are older, each set's by its own time; none: inf or −inf, the value where no point is."""
        keep = self.time >= time[:, None]
        return Points(np.where(keep, self.time, 0.0), np.where(keep, self.value, none))


@dataclass(frozen=True)
class FeasibleOffsets:
    """What lies between `above` and `below`, where something does: each set of lines is convex."""

    above: Points  # padded with +inf
    below: Points  # negated, as `above`: padded with +inf
    there: Flags  # whether any line fits; where none does, the rest says nothing
    slopes: tuple[Numbers, Numbers]  # least and greatest
    values: tuple[Numbers, Numbers]  # least and greatest at time 0
    middle: Lines

    @classmethod
    def between(cls, above: Points, below: Points, steepest: float) -> "FeasibleOffsets":
        """Slopes within ± steepest; every set has points above and below, these padded with −inf.

        The middle is the mean of the two walls, each the line beyond none of its points that is nearest to them on
        average (Moon, Skelly and Towsley, "Estimation and removal of clock skew from network delay measurements",
        INFOCOM 1999).
        """
        count = len(above.time)
        below = Points(below.time, -below.value)
        outline = cls(above, below, *_slopes(above, below, steepest), *((np.zeros(count),) * 2,) * 2)
        least, greatest = outline.slopes
        highest = _upper(above, np.clip(_bridge(above, np.zeros(count))[1], least, greatest))[0]
        # The least value of a line above −points is the greatest of the mirrored line below them.
        lowest = -_upper(below, np.clip(_bridge(below, np.zeros(count))[1], -greatest, -least))[0]
        value, slope = (lowest + highest) / 2, np.zeros(count)
        begin, end = np.minimum(above.first(), below.first()), np.maximum(above.last(), below.last())
        (top, tilt), (bottom, lean) = (
            _bridge(points, (points.first() + points.last()) / 2) for points in (above, below)
        )
        long = np.isfinite(tilt) & np.isfinite(lean) & (end - begin > _SHORTEST)
        value[long], slope[long] = (top[long] - bottom[long]) / 2, (tilt[long] - lean[long]) / 2
        outline = replace(outline, values=(lowest, highest))
        return replace(outline, middle=outline._clipped((value, slope)))

    def reach(self, value: Numbers) -> Numbers:
        """How far from a value at time 0 a line may be there."""
        return np.maximum(self.values[1] - value, value - self.values[0])

    def nearest(self, lines: Lines, room: float = 0.0) -> Lines:
        """Each line if it fits, else the next that does: with its slope where one fits, else with the next slope.

        room: it keeps so far away from the walls at time 0, or is the middle of a corridor that has not so much.
        """
        half = (self.values[1] - self.values[0]) / 2
        wide = half > room
        kept = np.where(wide, 1 - room / np.where(wide, half, 1.0), 1.0)
        # The lines with room are the corridor, shrunk towards its middle.
        (value, slope), (middle, lean) = lines, self.middle
        out = 1 / kept - 1
        fit, tilt = self._clipped((value + (value - middle) * out, slope + (slope - lean) * out))
        fit, tilt = fit + (middle - fit) * (1 - kept), tilt + (lean - tilt) * (1 - kept)
        return np.where(wide, fit, middle), np.where(wide, tilt, lean)

    def _clipped(self, lines: Lines) -> Lines:
        slope = np.minimum(np.maximum(lines[1], self.slopes[0]), self.slopes[1])
        lowest, highest = -_upper(self.below, -slope)[0], _upper(self.above, slope)[0]
        return np.minimum(np.maximum(lines[0], lowest), highest), slope


def _upper(above: Points, slope: Numbers) -> tuple[Numbers, npt.NDArray[np.intp]]:
    """U(slope), and the place of the point that makes it."""
    values = above.value - slope[:, None] * above.time
    index = values.argmin(axis=1)
    return values[np.arange(len(values)), index], index


def _slopes(above: Points, below: Points, steepest: float) -> tuple[Flags, tuple[Numbers, Numbers]]:
    """Where a line fits, and between which slopes: from each end, along tangents of U − L, which lies below them."""
    rows = np.arange(len(above.time))
    there = np.ones(len(rows), np.bool_)
    ends = []
    for sign in (1.0, -1.0):
        slope = np.full(len(rows), -sign * steepest)
        for _ in range(_MOST_STEPS):
            (highest, i), (lowest, j) = _upper(above, slope), _upper(below, -slope)
            gap = highest + lowest
            short = there & (gap < -_ROUNDING)
            if not short.any():
                break
            growth = sign * (below.time[rows, j] - above.time[rows, i])
            there &= ~(short & (growth <= 0))
            short &= there
            slope = np.where(short, slope - sign * gap / np.where(growth > 0, growth, 1.0), slope)
            there &= np.abs(slope) <= steepest
            slope = np.clip(slope, -steepest, steepest)
        else:
            there &= ~short
        ends.append(slope)
    return there, (np.minimum(ends[0], ends[1]), ends[1])


def _bridge(above: Points, time: Numbers) -> Lines:
    """The line below all points of a set that is highest at a time: the edge of their hull that spans it.

    Where the time is after all points its slope is inf, before all −inf, and its value says nothing.
    """
    rows, there = np.arange(len(time)), above.there
    first, last = above.first(), above.last()
    left = np.where(there & (above.time == first[:, None]), above.value, np.inf).argmin(axis=1)
    right = np.where(there & (above.time == last[:, None]), above.value, np.inf).argmin(axis=1)
    inside = (time > first) & (time <= last)
    slope = np.where(time > last, np.inf, -np.inf)
    value = np.zeros(len(rows))
    open_ = inside.copy()
    for _ in range(above.time.shape[1] + 1):
        if not open_.any():
            break
        span = np.where(open_, above.time[rows, right] - above.time[rows, left], 1.0)
        steep = np.where(open_, (above.value[rows, right] - above.value[rows, left]) / span, 0.0)
        start = above.value[rows, left] - steep * above.time[rows, left]
        lowest, index = _upper(above, steep)
        found = open_ & ((lowest >= start - _ROUNDING) | (index == left) | (index == right))
        slope, value = np.where(found, steep, slope), np.where(found, np.minimum(start, lowest), value)
        open_ &= ~found
        early = above.time[rows, index] < time
        left, right = np.where(open_ & early, index, left), np.where(open_ & ~early, index, right)
    return value, slope
