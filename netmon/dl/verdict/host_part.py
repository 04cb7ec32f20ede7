# SPDX-License-Identifier: Apache-2.0
"""The host's part: how long ranks waited for a CPU while the iteration went on, beyond what they usually wait."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from netmon.dl.verdict.usual import spread
from netmon.records import Table

WAITED = np.dtype([(name, "<i8") for name in ("rank", "start_ns", "end_ns", "waited_ns")])
"""How long the thread of a rank that waited most for a CPU did, or was throttled, in a time (UTC)."""

_FEWEST = 5  # rows of a rank, else nothing is usual
_CLEAR = 3.0  # standard deviations of them
_MOSTLY = 0.5  # of what is to be explained


def waited_more(rows: Table, begin_ns: int, end_ns: int) -> dict[int, float]:
    """By rank, ns that it waited longer in [begin, end) than it usually does; rows of WAITED; only what is clear."""
    found: dict[int, float] = {}
    length = np.maximum(rows["end_ns"] - rows["start_ns"], 1).astype(np.float64)
    rate = rows["waited_ns"] / length
    overlap = np.minimum(rows["end_ns"], end_ns) - np.maximum(rows["start_ns"], begin_ns)
    for rank in np.unique(rows["rank"]).tolist():
        own = rows["rank"] == rank
        others, inside = own & (overlap <= 0), own & (overlap > 0)
        if others.sum() < _FEWEST or not inside.any():
            continue
        usual, deviation = float(np.median(rate[others])), spread(rate[others])
        more = (rate[inside] - usual) * length[inside]
        clear = rate[inside] - usual > _CLEAR * deviation
        found[rank] = float(np.minimum(more, overlap[inside])[clear].sum())
    return {rank: ns for rank, ns in found.items() if ns > 0}


def explains(more_ns: Mapping[int, float], ns: float) -> int:
    """The rank whose wait for a CPU explains most of `ns`; −1: none does."""
    rank = max(more_ns, key=lambda one: more_ns[one], default=-1)
    return rank if rank >= 0 and ns > 0 and more_ns[rank] >= _MOSTLY * ns else -1


def nothing_waited() -> npt.NDArray[np.void]:
    """Where nobody tells."""
    return np.empty(0, WAITED)
