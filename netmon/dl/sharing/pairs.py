# SPDX-License-Identifier: Apache-2.0
"""Pairs of ranks: how fast each moves its gradients, which one is slow, and what of its bandwidth is not needed.

C4 (Alibaba, HPCA'25) finds the slow pair of a job from the communication library's own times; here it is found from
what passes the links.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_Floats = npt.NDArray[np.float64]

_SLOW = 0.8  # of the median pace of the job's pairs
_GRADIENTS = 0.01  # of the bytes of the job's largest pair: a pair with less sends acknowledgements and control
_FEWEST = 3  # pairs, from which on there is a baseline
Ends = tuple[str, str, str]
"""Job, sender and receiver."""

_NEEDED = 0.9  # of the communication: a pair that is busy for so long has nothing to give


@dataclass(frozen=True)
class Pair:
    """One rank that sends to another one, over the job's recent iterations; medians."""

    job: str
    source: str  # "rank 1 (h1)"
    target: str
    bytes: float  # per iteration, wire
    pace_bps: float  # while it sends
    busy: float  # share of the job's communication in which it sends
    share: float  # share of the iteration in which it sends
    slow: bool

    @property
    def to_be_had_bps(self) -> float:
        """By how much it could be slowed without ending later, at most.

        The same bytes, spread over all of the job's communication. It is a bound: a rank that passes on what it gets
        can do so no earlier than it comes. 0 of a pair that is busy all the time: it makes the others wait.
        """
        return self.pace_bps * (1 - self.busy) if self.busy < _NEEDED else 0.0


@dataclass(frozen=True)
class Spare:
    """Of one link: what training sends there while it sends, and what would do for it to end no later."""

    link: int
    capacity_bps: float  # 0: unknown
    pace_bps: float  # of all pairs over it, if they sent at once: no more than the capacity
    to_be_had_bps: float  # of that, at most

    @property
    def enough_bps(self) -> float:
        """What would do."""
        return self.pace_bps - self.to_be_had_bps


def spares(found: Sequence[Pair], over: Mapping[Ends, Sequence[int]], capacity_bps: Mapping[int, float]) -> list[Spare]:
    """By link, the most to be had first. over: job, sender and receiver → the links that the pair goes over."""
    sums: dict[int, tuple[float, float]] = {}
    for pair in found:
        for link in over.get((pair.job, pair.source, pair.target), ()):
            pace, had = sums.get(link, (0.0, 0.0))
            sums[link] = pace + pair.pace_bps, had + pair.to_be_had_bps
    rows = []
    for link, (pace, had) in sums.items():
        capacity = capacity_bps.get(link, 0.0)
        most = capacity or pace  # several jobs do not always send at once
        rows.append(Spare(link, capacity, min(pace, most), max(0.0, min(pace, most) - min(pace - had, most))))
    return sorted(rows, key=lambda row: (-row.to_be_had_bps, row.link))


def pairs(
    job: str,
    ends: Sequence[tuple[str, str]],
    bytes_: _Floats,
    busy_ns: _Floats,
    communication_ns: _Floats,
    duration_ns: _Floats,
) -> list[Pair]:
    """The pairs of a job, the slowest first.

    ends: sender and receiver of each pair. bytes_, busy_ns: of each pair in each iteration, (pairs, iterations), the
    time in which it sent; communication_ns, duration_ns: of each iteration, (iterations,).
    """
    if not len(ends) or not bytes_.shape[1]:
        return []
    with np.errstate(divide="ignore", invalid="ignore"):
        pace = np.where(busy_ns > 0, bytes_ * 8e9 / busy_ns, np.nan)
        busy = busy_ns / np.maximum(communication_ns, 1)
        share = busy_ns / np.maximum(duration_ns, 1)
    typical_bytes = np.median(bytes_, axis=1)
    sent = (bytes_ > 0).sum(axis=1) * 2 >= bytes_.shape[1]  # of the others there is no usual iteration
    sent &= typical_bytes >= _GRADIENTS * typical_bytes.max()
    paces = np.array([np.nanmedian(row) if used else 0.0 for row, used in zip(pace, sent, strict=True)])
    baseline = float(np.median(paces[sent])) if sent.sum() >= _FEWEST else 0.0
    found = [
        Pair(
            job,
            *ends[index],
            float(typical_bytes[index]),
            float(paces[index]),
            min(1.0, float(np.median(busy[index]))),
            min(1.0, float(np.median(share[index]))),
            bool(paces[index] < _SLOW * baseline),
        )
        for index in np.flatnonzero(sent).tolist()
    ]
    return sorted(found, key=lambda pair: (pair.pace_bps, pair.source, pair.target))
