# SPDX-License-Identifier: Apache-2.0
"""Several clocks, each known to some bound, and comparisons of them in pairs: what to add to each."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from netmon.dl.clocks import OffsetFit


@dataclass(frozen=True)
class Comparison:
    """Two clocks' errors as the traffic between them tells: (first's − second's) = difference_ns ± error_ns.

    It grows by `skew` ns per ns.
    """

    first: int
    second: int
    difference_ns: int
    skew: float
    error_ns: int


@dataclass(frozen=True)
class Correction:
    """What to add to a clock at at_ns: ns, within error_ns, and `skew` more for each ns that passes."""

    at_ns: int
    ns: int
    skew: float
    error_ns: int

    def ns_at(self, utc_ns: int) -> int:
        """What to add at another time."""
        return self.ns + round(self.skew * (utc_ns - self.at_ns))

    def of(self, fit: OffsetFit) -> OffsetFit:
        """An offset to UTC with the correction added; at_ns is UTC."""
        ns = self.ns_at(fit.at_ns + fit.offset_ns)
        return replace(fit, offset_ns=fit.offset_ns + ns, skew=fit.skew + self.skew, error_ns=self.error_ns)


def combine(errors_ns: Sequence[int], comparisons: Sequence[Comparison], at_ns: int) -> list[Correction]:
    """Corrections of clocks known to ± errors_ns each, by comparisons of them in pairs at at_ns.

    The correction is the least squares of all that is known, each weighted by its bound. The error is a bound too:
    the tightest that all bounds together allow (difference constraints, by shortest paths), from the correction.
    Comparisons that contradict the errors are left out.
    """
    usable = [c for c in comparisons if abs(c.difference_ns) <= c.error_ns + errors_ns[c.first] + errors_ns[c.second]]
    reach = _reach(errors_ns, usable)
    if not errors_ns or np.diagonal(reach).min() < 0:  # comparisons that contradict each other
        return [Correction(at_ns, 0, 0.0, error) for error in errors_ns]
    values = _least_squares(errors_ns, usable, [float(c.difference_ns) for c in usable])
    skews = _least_squares(errors_ns, usable, [c.skew for c in usable])
    errors = np.maximum(reach[-1, :-1] - values, values + reach[:-1, -1])
    columns = zip(values.tolist(), skews.tolist(), errors.tolist(), strict=True)
    return [Correction(at_ns, round(value), skew, int(np.ceil(error))) for value, skew, error in columns]


def _reach(errors_ns: Sequence[int], comparisons: Sequence[Comparison]) -> npt.NDArray[np.float64]:
    """[i, j]: at most so much is j's correction above i's; last row and column: the clock they are set by."""
    count = len(errors_ns)
    reach = np.full((count + 1, count + 1), np.inf)
    np.fill_diagonal(reach, 0.0)
    reach[count, :count] = reach[:count, count] = errors_ns
    for c in comparisons:
        reach[c.second, c.first] = min(reach[c.second, c.first], c.difference_ns + c.error_ns)
        reach[c.first, c.second] = min(reach[c.first, c.second], c.error_ns - c.difference_ns)
    for through in range(count + 1):
        np.minimum(reach, reach[:, through, None] + reach[None, through], out=reach)
    return reach


def _least_squares(
    errors_ns: Sequence[int], comparisons: Sequence[Comparison], differences: Sequence[float]
) -> npt.NDArray[np.float64]:
    """The values near 0, by errors_ns, whose differences are near those given, by their errors."""
    weights, wanted = np.diag([1 / max(1, error) ** 2 for error in errors_ns]), np.zeros(len(errors_ns))
    for c, difference in zip(comparisons, differences, strict=True):
        weight = 1 / max(1, c.error_ns) ** 2
        weights[[c.first, c.second], [c.first, c.second]] += weight
        weights[[c.first, c.second], [c.second, c.first]] -= weight
        wanted[c.first] += weight * difference
        wanted[c.second] -= weight * difference
    values: npt.NDArray[np.float64] = np.linalg.solve(weights, wanted).astype(np.float64)
    return values
