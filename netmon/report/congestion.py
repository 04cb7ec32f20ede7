# SPDX-License-Identifier: Apache-2.0
"""Where cross traffic begins to slow training: the congestion point, measured and in theory.

The cross traffic BW and the capacity C appear as shares of C: `level` is BW / C, from 0 to below 1.
"""

import itertools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
_GRID = 200  # corners that are tried between two levels' rescaled values


@dataclass(frozen=True)
class CongestionPoint:
    """A flat line and a rising one, meeting at `level`. See congestion_point."""

    level: float  # share of C; nan: no rise, or nothing flat
    flat_s: float  # iteration time below the corner
    slope_s: float  # rise in seconds per unit of 1 / (1 − level)
    error: float  # root mean square distance of the medians from the two lines, as a share of each median
    reason: str = ""  # why there is no point

    def at(self, level: npt.ArrayLike) -> Floats:
        """The two lines' time in seconds at these levels."""
        corner = rescaled(self.level) if math.isfinite(self.level) else math.inf
        rise: Floats = np.maximum(rescaled(level) - corner, 0.0)
        with np.errstate(invalid="ignore"):
            time: Floats = self.flat_s + np.where(rise > 0, self.slope_s * rise, 0.0)
        return time


def rescaled(level: npt.ArrayLike) -> Floats:
    """1 / (1 − level): the hyperbola rescaling of equation 3.2, time against 1 / (C − BW), in units of 1 / C.

    Where the cross traffic takes what it offers, a transfer of D bytes takes 8·D / (C − BW): a straight line here.
    """
    x: Floats = np.asarray(1.0 / (1.0 - np.asarray(level, float)), float)
    return x


def congestion_theory(bytes_per_iteration: float, quiet_s: float, capacity_bps: float) -> float:
    """1 − 8·D / (t₀·C): the level up to which the capacity left over carries the training at its quiet pace.

    D: bytes that a rank sends per iteration (equation 3.1), t₀: iteration time without cross traffic, C: capacity of
    its link. nan where one of them is unknown.
    """
    if not (bytes_per_iteration > 0 and quiet_s > 0 and capacity_bps > 0):
        return math.nan
    return 1 - 8 * bytes_per_iteration / (quiet_s * capacity_bps)


def training_share(level: float, bytes_per_iteration: float, quiet_s: float, capacity_bps: float) -> float:
    """Mean rate of a rank's training traffic under cross traffic, as a share of C: min(8·D / t₀, C − BW) / C.

    What the thesis compares in equations 3.1–3.7, in our form; arguments as those of congestion_theory.
    """
    return min(8 * bytes_per_iteration / (quiet_s * capacity_bps), 1 - level)


def spare_capacity(level: float, bytes_per_iteration: float, quiet_s: float, capacity_bps: float) -> float:
    """What training and cross traffic leave unused, as a share of C: max(0, C − BW − 8·D / t₀) / C.

    Equation 3.8 of the thesis, in our form; arguments as those of congestion_theory.
    """
    return max(0.0, 1 - level - 8 * bytes_per_iteration / (quiet_s * capacity_bps))


def congestion_point(level: npt.ArrayLike, time_s: npt.ArrayLike, tolerance: float = 0.05) -> CongestionPoint:
    """The method of the thesis' appendix A.2 without the eye: two straight lines in the rescaled picture.

    level, time_s: one median iteration time per level. In coordinates 1 / (1 − level) the time is constant up to the
    congestion point (at the median of the levels below it) and rises along a straight line from there. The corner is
    the one, of a fine grid, with the least sum of squared relative distances: long iterations vary more. Our
    automation; the thesis draws the lines by hand. `tolerance`: a rise that stays within this share of the flat time is
    none. A corner at or below the lowest level means that nothing is flat.
    """
    x, y = np.asarray(level, float), np.asarray(time_s, float)
    known = np.isfinite(x) & np.isfinite(y) & (x < 1) & (y > 0)
    order = np.argsort(x[known])
    x, y = x[known][order], y[known][order]
    if len(np.unique(x)) < 4:
        return _none(y, f"{len(np.unique(x))} levels of cross traffic; two lines take four")
    flat_all = float(np.median(y))
    if y[-1] <= y[0] * (1 + tolerance):
        return _none(y, f"no rise: the highest level takes {y[-1] / y[0]:.2f} × the lowest")
    u = rescaled(x)
    corners = np.concatenate([np.linspace(a, b, _GRID, endpoint=False) for a, b in itertools.pairwise(u)])
    best = min((_two_lines(u, y, corner) for corner in corners), key=lambda point: point.error)
    straight = _straight(u, y)
    if best.level <= x[0] or (straight <= best.error * 1.05 and best.level < x[1]):
        return CongestionPoint(math.nan, flat_all, math.nan, straight, "nothing is flat: it rises from the start")
    return best


def _two_lines(u: Floats, y: Floats, corner: float) -> CongestionPoint:
    below = u <= corner
    flat = float(np.median(y[below]))
    rise, weight = (u - corner)[~below], 1 / y[~below] ** 2
    slope = max(0.0, float((weight * rise) @ (y[~below] - flat) / ((weight * rise) @ rise)))
    fitted = np.where(below, flat, flat + slope * (u - corner))
    return CongestionPoint(1 - 1 / corner, flat, slope, _distance(y, fitted))


def _straight(u: Floats, y: Floats) -> float:
    line: Floats = np.polyval(np.polyfit(u, y, 1, w=1 / y), u).astype(float)
    return _distance(y, line)


def _distance(y: Floats, fitted: Floats) -> float:
    return float(np.sqrt(np.mean((fitted / y - 1) ** 2)))


def _none(y: Floats, reason: str) -> CongestionPoint:
    return CongestionPoint(math.nan, float(np.median(y)) if y.size else math.nan, math.nan, math.nan, reason)
