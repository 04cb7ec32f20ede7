# SPDX-License-Identifier: Apache-2.0
"""Several clocks, each known to some bound, and comparisons of them in pairs: what to add to each."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from netmon.dl.clocks import OffsetFit

_EXACT = 1e-12  # of the squared residual that there was at first
_MOST_STEPS = 500  # whatever is left of it then, the bounds are true to the values

_Numbers = npt.NDArray[np.float64]


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
    Comparisons that contradict the errors are left out, and so are all of those clocks whose comparisons, directly or
    over others, contradict each other. The cost grows with the comparisons, not with pairs of clocks.
    """
    errors = np.array(errors_ns, np.float64)
    pairs = _Pairs.of([c for c in comparisons if c.first != c.second])
    pairs = pairs.only(np.abs(pairs.difference) <= pairs.error + errors[pairs.first] + errors[pairs.second])
    lowest, highest, sound = _reach(errors, pairs)
    pairs = pairs.only(sound[pairs.first])  # and so of the second
    values = _least_squares(errors, pairs)
    bounds = np.where(sound, np.maximum(highest - values[0], values[0] - lowest), errors)
    columns = zip(*values.tolist(), bounds.tolist(), strict=True)
    return [Correction(at_ns, round(value), skew, int(np.ceil(error))) for value, skew, error in columns]


@dataclass(frozen=True)
class _Pairs:
    """Comparisons by column."""

    first: npt.NDArray[np.int64]
    second: npt.NDArray[np.int64]
    difference: _Numbers
    skew: _Numbers
    error: _Numbers

    @classmethod
    def of(cls, comparisons: Sequence[Comparison]) -> "_Pairs":
        ends = np.array([(c.first, c.second) for c in comparisons], np.int64).reshape(-1, 2)
        rest = np.array([(c.difference_ns, c.skew, c.error_ns) for c in comparisons], np.float64).reshape(-1, 3)
        return cls(ends[:, 0], ends[:, 1], rest[:, 0], rest[:, 1], rest[:, 2])

    def only(self, which: npt.NDArray[np.bool_]) -> "_Pairs":
        return _Pairs(*(column[which] for column in vars(self).values()))


def _reach(errors: _Numbers, pairs: _Pairs) -> tuple[_Numbers, _Numbers, npt.NDArray[np.bool_]]:
    """The least and the greatest correction that all bounds together allow each clock, and where they allow one.

    Bounds are passed on from clock to clock until none gets tighter (Bellman and Ford's shortest paths, from the clock
    that all were set by and back to it). Where that leaves no value between the two, or has no end, there is none.
    """
    low, high, sound = -errors, errors.copy(), np.ones(len(errors), np.bool_)
    for step in range(len(errors) + 2):
        greatest, least = high.copy(), low.copy()
        np.minimum.at(greatest, pairs.first, high[pairs.second] + pairs.difference + pairs.error)
        np.minimum.at(greatest, pairs.second, high[pairs.first] - pairs.difference + pairs.error)
        np.maximum.at(least, pairs.first, low[pairs.second] + pairs.difference - pairs.error)
        np.maximum.at(least, pairs.second, low[pairs.first] - pairs.difference - pairs.error)
        tighter = (greatest < high) | (least > low)
        low, high = least, greatest
        impossible = (low > high) | (tighter if step > len(errors) else False)
        if impossible.any():
            impossible = _spread(impossible, pairs)
            sound &= ~impossible
            low[impossible], high[impossible] = -errors[impossible], errors[impossible]
            pairs = pairs.only(~impossible[pairs.first])
        if not tighter[sound].any():
            break
    return low, high, sound


def _spread(flags: npt.NDArray[np.bool_], pairs: _Pairs) -> npt.NDArray[np.bool_]:
    """To all clocks that are connected with those."""
    while True:
        either = flags[pairs.first] | flags[pairs.second]
        if (flags[pairs.first] & flags[pairs.second])[either].all():
            return flags
        flags = flags.copy()
        flags[pairs.first[either]] = flags[pairs.second[either]] = True


def _least_squares(errors: _Numbers, pairs: _Pairs) -> _Numbers:
    """Differences and skews, (2, clocks), near 0 by the errors, whose differences are near the pairs', by theirs.

    By conjugate gradients, scaled by the diagonal (Hestenes and Stiefel 1952): the matrix is as sparse as the pairs.
    """
    count, own = len(errors), 1 / np.maximum(1.0, errors) ** 2
    weight = 1 / np.maximum(1.0, pairs.error) ** 2
    ends = np.concatenate([pairs.first, pairs.second])

    def summed(of_pairs: _Numbers) -> _Numbers:
        both = np.concatenate([of_pairs, -of_pairs], axis=1)
        return np.stack([np.bincount(ends, row, count) for row in both])

    def times(values: _Numbers) -> _Numbers:
        return own * values + summed(weight * (values.take(pairs.first, axis=1) - values.take(pairs.second, axis=1)))

    diagonal = own + np.bincount(ends, np.tile(weight, 2), count)
    values = np.zeros((2, count))
    rest = summed(weight * np.stack([pairs.difference, pairs.skew]))
    ahead = scaled = rest / diagonal
    size = begun = (rest * scaled).sum(axis=1)
    for _ in range(min(2 * count, _MOST_STEPS)):
        going = size > _EXACT * begun
        if not going.any():
            break
        image = times(ahead)
        step = np.where(going, size / np.where(going, (ahead * image).sum(axis=1), 1.0), 0.0)[:, None]
        values, rest = values + step * ahead, rest - step * image
        scaled = rest / diagonal
        size, before = (rest * scaled).sum(axis=1), size
        ahead = scaled + np.where(going, size / np.where(going, before, 1.0), 0.0)[:, None] * ahead
    return values
