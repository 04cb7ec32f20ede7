# SPDX-License-Identifier: Apache-2.0
"""Whether two jobs drift together or apart by themselves."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_Times = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Drift:
    """How the beginnings of one job move within another one's iterations.

    phase_ns: of the last, after the beginning of the other's iteration. per_iteration_ns: how much later each begins
    than the one before, median; what sharing the link does to it is in it (MLTCP, HotNets'24, has it as the shift per
    iteration). spread_ns: median distance from that.
    """

    phase_ns: float
    per_iteration_ns: float
    spread_ns: float

    def lasts(self, tolerance_ns: float) -> float:
        """Iterations for which a phase holds to within a tolerance; inf where it does not move."""
        return tolerance_ns / abs(self.per_iteration_ns) if self.per_iteration_ns else float("inf")


@dataclass(frozen=True)
class Phases:
    """Of each beginning (UTC) that lies within another job's iteration: how long after that one's beginning it is."""

    time_ns: _Times
    phase_ns: npt.NDArray[np.float64]
    period_ns: float  # usual duration of the other job's iterations

    @property
    def moves_ns(self) -> npt.NDArray[np.float64]:
        """From each to the next, (beginnings − 1,), the way round that is shorter."""
        half = self.period_ns / 2
        return np.asarray((np.diff(self.phase_ns) + half) % self.period_ns - half)


def relative_phases(of_ns: _Times, beside_ns: _Times) -> Phases | None:
    """Of the beginnings of one job's iterations alongside another's, both ascending. None where there are too few."""
    if len(of_ns) < 3 or len(beside_ns) < 3:
        return None
    number = np.searchsorted(beside_ns, of_ns, "right") - 1
    inside = (number >= 0) & (number < len(beside_ns) - 1)
    if inside.sum() < 3:
        return None
    phase = (of_ns[inside] - beside_ns[number[inside]]).astype(np.float64)
    return Phases(of_ns[inside], phase, float(np.median(np.diff(beside_ns))))


def drift(of_ns: _Times, beside_ns: _Times) -> Drift | None:
    """Of the same."""
    found = relative_phases(of_ns, beside_ns)
    if found is None:
        return None
    middle = float(np.median(found.moves_ns))
    return Drift(float(found.phase_ns[-1]), middle, float(np.median(np.abs(found.moves_ns - middle))))
