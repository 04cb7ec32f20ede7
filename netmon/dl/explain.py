# SPDX-License-Identifier: Apache-2.0
"""Why the slowest iteration was slow, as far as the traffic tells."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from netmon.records import Direction
from netmon.units import format_bytes, format_duration
from netmon.views import SlowIteration

NOTABLE = 1.2
"""An iteration that takes so many times the median stands out."""

_FEWEST = 5  # iterations from which on there is a usual


@dataclass(frozen=True)
class RankSteps:
    """Finished iterations of the ranks of one job, one entry per rank and iteration, in any order."""

    number: npt.NDArray[np.int64]
    rank: npt.NDArray[np.int64]
    duration_ns: npt.NDArray[np.int64]
    waited_ns: npt.NDArray[np.int64]  # exposed communication, or communication where that is unknown; −1: unknown
    shared: npt.NDArray[np.bool_]  # DL-shared node
    cause: Sequence[str]  # whose cross traffic was the most
    cause_tx_bytes: npt.NDArray[np.int64]
    cause_rx_bytes: npt.NDArray[np.int64]
    host: Sequence[str]


def slowest(steps: RankSteps) -> SlowIteration:
    """The iteration whose slowest rank took longest, if it stands out (NOTABLE × the median of all, at least 5).

    Its cause is the party that moved the most cross payload over the links of one of the job's DL-shared nodes. A
    rank waited that lost at least half of the excess in (exposed) communication, compared with its own median.
    """
    numbers, of_step = np.unique(steps.number, return_inverse=True)
    if len(numbers) < _FEWEST:
        return SlowIteration()
    durations = np.zeros(len(numbers), np.int64)
    np.maximum.at(durations, of_step, steps.duration_ns)
    worst, median = int(durations.argmax()), float(np.median(durations))
    if durations[worst] < NOTABLE * median:
        return SlowIteration()
    of_worst = np.flatnonzero(of_step == worst)
    moved = np.where(steps.shared, np.maximum(steps.cause_tx_bytes, steps.cause_rx_bytes), 0)
    met = int(of_worst[moved[of_worst].argmax()])
    slow = SlowIteration(int(numbers[worst]), int(durations[worst]), int(median))
    if not moved[met]:
        return slow
    waited = _waited(steps, of_worst, float(durations[worst]) - median)
    return SlowIteration(
        *(slow.iteration, slow.duration_ns, slow.median_ns, steps.cause[met], int(moved[met])),
        Direction.RX if steps.cause_rx_bytes[met] >= steps.cause_tx_bytes[met] else Direction.TX,
        *(steps.host[met], int(steps.rank[met])),
        tuple(rank for rank in waited if rank != steps.rank[met]),
    )


def _waited(steps: RankSteps, of_worst: npt.NDArray[np.intp], excess_ns: float) -> list[int]:
    """Ranks that waited longer than usual in the worst iteration, by at least half of the excess; ascending."""
    waited = []
    for place in of_worst.tolist():
        usual = steps.waited_ns[(steps.rank == steps.rank[place]) & (steps.waited_ns >= 0)]
        if steps.waited_ns[place] >= 0 and steps.waited_ns[place] - np.median(usual) >= excess_ns / 2:
            waited.append(int(steps.rank[place]))
    return sorted(waited)


def sentence(job: str, slow: SlowIteration, relative: bool = False) -> str:
    """What an engineer wants to read; empty where no iteration stands out."""
    if slow.iteration < 0:
        return ""
    number = f"~{slow.iteration}" if relative else str(slow.iteration)
    factor = slow.duration_ns / slow.median_ns
    text = f"iteration {number} of job {job} took {factor:.1f} × its median ({format_duration(slow.median_ns)})"
    if not slow.cause:
        return f"{text}; no cross traffic met it"
    way = "entered" if slow.direction == Direction.RX else "left"
    text += f": {format_bytes(slow.cause_bytes)} of {slow.cause} {way} {slow.host} (rank {slow.rank})"
    return f"{text} while {_ranks(slow.waited)} waited" if slow.waited else text


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
