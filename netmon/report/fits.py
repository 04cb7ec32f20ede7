# SPDX-License-Identifier: Apache-2.0
"""The thesis' exponential families for the iteration time under cross traffic."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from netmon.report.estimates import Floats, r_squared

FAMILIES = (1.0, 0.5, 2.0)
"""Exponents n of the families that the thesis compares (equations 3.3, 3.5–3.7)."""


@dataclass(frozen=True)
class Fit:
    """t = A·exp(B / (C − BW)^n), with C − BW as a share of C."""

    n: float
    a_s: float
    b: float
    r_squared: float
    points: int

    def at(self, level: npt.ArrayLike) -> Floats:
        """Iteration time in seconds at these levels (BW / C)."""
        time: Floats = self.a_s * np.exp(self.b / (1.0 - np.asarray(level, float)) ** self.n)
        return time


def fit_exponential(level: npt.ArrayLike, time_s: npt.ArrayLike, n: float = 1.0) -> Fit:
    """Least squares of t = A·exp(B / (C − BW)^n) on median times by level (equations 3.3, 3.5–3.7).

    Starts from the straight line of log t, then minimises squared distances of t itself; R² is of t. Raises ValueError
    for fewer than three levels, whose R² would say nothing.
    """
    from scipy.optimize import least_squares  # type: ignore[import-untyped]

    x, y = np.asarray(level, float), np.asarray(time_s, float)
    known = np.isfinite(x) & np.isfinite(y) & (x < 1) & (y > 0)
    x, y = x[known], y[known]
    if len(np.unique(x)) < 3:
        raise ValueError(f"{len(np.unique(x))} levels of cross traffic; a fit of two parameters takes three")
    inverse = 1.0 / (1.0 - x) ** n
    b, log_a = np.polyfit(inverse, np.log(y), 1)
    # Centred: A and B would else be so correlated, for n = 2, that the steps lose their direction.
    centre = inverse.mean()
    found = least_squares(
        lambda p: np.exp(np.clip(p[0] + p[1] * (inverse - centre), -50, 50)) - y, [log_a + b * centre, b]
    )
    level_log, slope = float(found.x[0]), float(found.x[1])
    fitted = np.exp(level_log + slope * (inverse - centre))
    return Fit(n, math.exp(level_log - slope * centre), slope, r_squared(y, fitted), len(x))


def fit_families(level: npt.ArrayLike, time_s: npt.ArrayLike, families: Sequence[float] = FAMILIES) -> list[Fit]:
    """One fit per family, the best (by R²) first. Raises ValueError as fit_exponential does."""
    return sorted((fit_exponential(level, time_s, n) for n in families), key=lambda fit: -fit.r_squared)
