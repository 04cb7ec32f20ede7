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


def drift(of_ns: _Times, beside_ns: _Times) -> Drift | None:
    """Of the beginnings of one job's iterations beside another's, both ascending. None where there are too few."""
    if len(of_ns) < 3 or len(beside_ns) < 3:
        return None
    period = float(np.median(np.diff(beside_ns)))
    number = np.searchsorted(beside_ns, of_ns, "right") - 1
    inside = (number >= 0) & (number < len(beside_ns) - 1)
    if inside.sum() < 3:
        return None
    phase = (of_ns[inside] - beside_ns[number[inside]]).astype(np.float64)
    moves = (np.diff(phase) + period / 2) % period - period / 2  # the way round that is shorter
    middle = float(np.median(moves))
    return Drift(float(phase[-1]), middle, float(np.median(np.abs(moves - middle))))
