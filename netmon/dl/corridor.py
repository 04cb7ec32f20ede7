# SPDX-License-Identifier: Apache-2.0
"""All lines between points that they may not exceed and points that they may not fall below."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Line = tuple[float, float]
"""Value at time 0, slope."""

_SHORTEST = 300_000_000  # of a corridor whose walls tell a slope from the jitter
_Points = npt.NDArray[np.float64]  # (points, 2): time, value


@dataclass(frozen=True)
class Corridor:
    """The set is convex: `corners` are its corners, `middle` is a line in it."""

    above: _Points
    below: _Points
    corners: _Points  # (value at time 0, slope)
    middle: Line

    @classmethod
    def between(cls, above: _Points, below: _Points, steepest: float) -> "Corridor | None":
        """Of points in any order, slopes within ± steepest; None where no line fits.

        The middle is the mean of the two walls, each the line beyond none of its points that is nearest to them on
        average (Moon, Skelly and Towsley, "Estimation and removal of clock skew from network delay measurements",
        INFOCOM 1999).
        """
        above, below = _hull(above), _hull(below * (1, -1)) * (1, -1)
        corners = _corners(above, below, steepest)
        if not len(corners):
            return None
        value, slope = float(corners[:, 0].min() + corners[:, 0].max()) / 2, 0.0
        walls = [wall for wall in (_wall(above), _wall(below)) if wall]
        times = np.concatenate([above[:, 0], below[:, 0]])
        if len(walls) == 2 and times.max() - times.min() > _SHORTEST:
            value, slope = (walls[0][0] + walls[1][0]) / 2, (walls[0][1] + walls[1][1]) / 2
        outline = cls(above, below, corners, (value, slope))
        return cls(above, below, corners, outline._clipped(outline.middle))

    @property
    def half_width(self) -> float:
        """Half of the range of values at time 0."""
        return float(np.ptp(self.corners[:, 0])) / 2

    def reach(self, value: float) -> float:
        """How far from a value at time 0 a line may be there."""
        values = self.corners[:, 0]
        return max(float(values.max()) - value, value - float(values.min()))

    def nearest(self, line: Line, room: float = 0.0) -> Line:
        """The line if it fits, else the next that does: with its slope where one fits, else with the next slope.

        room: it keeps so far away from the walls at time 0, or is the middle of a corridor that has not so much.
        """
        kept = 1 - room / self.half_width if self.half_width > room else 0.0
        if kept == 0:
            return self.middle
        # The lines with room are the corridor, shrunk towards its middle.
        (value, slope), (middle, lean) = line, self.middle
        fit, tilt = self._clipped((value + (value - middle) * (1 / kept - 1), slope + (slope - lean) * (1 / kept - 1)))
        return fit + (middle - fit) * (1 - kept), tilt + (lean - tilt) * (1 - kept)

    def _clipped(self, line: Line) -> Line:
        slope = float(np.clip(line[1], self.corners[:, 1].min(), self.corners[:, 1].max()))
        lowest = float((self.below[:, 1] - slope * self.below[:, 0]).max())
        highest = float((self.above[:, 1] - slope * self.above[:, 0]).min())
        return min(max(line[0], lowest), highest), slope


def _hull(points: _Points) -> _Points:
    """The points below which no other lies: the lower convex hull, by time (monotone chain)."""
    hull: list[tuple[float, float]] = []
    for t, v in points[np.lexsort((points[:, 1], points[:, 0]))].tolist():
        if hull and hull[-1][0] == t:
            continue
        while len(hull) > 1 and (hull[-1][1] - hull[-2][1]) * (t - hull[-2][0]) >= (v - hull[-2][1]) * (
            hull[-1][0] - hull[-2][0]
        ):
            hull.pop()
        hull.append((t, v))
    return np.array(hull)


def _wall(hull: _Points) -> Line | None:
    """The hull's edge in the middle of its time; None for a single point."""
    if len(hull) < 2:
        return None
    middle = (hull[0, 0] + hull[-1, 0]) / 2
    right = int(np.clip(np.searchsorted(hull[:, 0], middle), 1, len(hull) - 1))
    (t0, v0), (t1, v1) = hull[right - 1], hull[right]
    slope = (v1 - v0) / (t1 - t0)
    return float(v0 - slope * t0), float(slope)


def _corners(above: _Points, below: _Points, steepest: float) -> _Points:
    points = np.concatenate([above, below])
    times, values = points[:, 0], points[:, 1]
    first, second = np.triu_indices(len(points), 1)
    apart = times[first] != times[second]
    first, second = first[apart], second[apart]
    slopes = (values[second] - values[first]) / (times[second] - times[first])
    slopes = np.concatenate([slopes, np.repeat([steepest, -steepest], len(points))])
    through = np.concatenate([first, np.arange(len(points)), np.arange(len(points))])
    starts = values[through] - slopes * times[through]
    tolerance = 1e-3  # ns, of rounding
    inside = np.abs(slopes) <= steepest
    inside &= (starts + np.outer(above[:, 0], slopes) <= above[:, 1:] + tolerance).all(axis=0)
    inside &= (starts + np.outer(below[:, 0], slopes) >= below[:, 1:] - tolerance).all(axis=0)
    corners: _Points = np.column_stack([starts, slopes])[inside]
    return corners
