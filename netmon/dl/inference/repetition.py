# SPDX-License-Identifier: Apache-2.0
"""Does a flow repeat itself? Found in its volume, not in its time.

An iteration may take twice as long as the one before, because of cross traffic, of a lost segment's timeout, or of a
slow rank; but it always moves the same gradients, so a flow of the training moves the same bytes per iteration
(2·(N−1)/N·P·4 of a ring's, the thesis, equation 3.1), and before the first of them it pauses while the ranks
compute. So a flow is laid out along its cumulative volume. Each pause is a point there, and the iterations are a
chain of such points, V apart.

Pauses within the communication (between fused blocks, or because of a lost segment) are points, too, so that there
are many chains. Which one is it?
- Not one that may be chance. With n points on S bytes, a chain meets a point within ±ε·V of where it expects one with
  probability p = 2·ε·V·n/S; of m intervals the first is free, so of c candidates c·p^(m−1) get as far by chance.
- Not one whose pauses are short alongside those of another chain that reaches as far back: blocks of equal size, with
  short pauses between them, repeat as well, but the ranks do not compute in these.
- Of those left, the one that is least likely to be chance; what repeats after V also repeats after 2·V, but only half
  as often.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from netmon.dl.inference.bursts import pauses_before
from netmon.records import Table

VOLUME_TOLERANCE = 0.01
"""ε, of V. Retransmitted segments are counted twice by the sender, and lost ones never come to the receiver."""
INTERVALS = 3
"""Equal volumes in a row that make a repetition."""
_STRAY = 0.001  # of V: less is no gradients
_CHANCE = 0.05  # likelier chains are no evidence
_POINTS = 64  # pauses looked at
_LAST, _SPAN = 3, 16  # V is the volume between one of the last 3 of them and one of the 16 before it
_TYPICAL = 25  # percentile of a chain's pauses
SHORT = 0.5
"""Of the usual pause before an iteration, or of another chain's: what is less is no such pause."""
_AS_FAR = 0.5  # as another chain reaches back


@dataclass(frozen=True)
class Repetition:
    """The beginnings of a flow's last iterations, as far back as they are in one chain."""

    volume: int  # V, bytes
    onsets_ns: npt.NDArray[np.int64]  # ascending; of the bursts with which iterations begin
    levels: npt.NDArray[np.int64]  # bytes of the flow before each
    pause_ns: float  # typical quiet before an iteration

    @property
    def period_ns(self) -> float:
        """Median time from one beginning to the next."""
        return float(np.median(np.diff(self.onsets_ns)))


@dataclass(frozen=True)
class _Chain:
    points: npt.NDArray[np.int64]  # indices of pauses, ascending
    reach: int  # bytes from its first point to its last
    pause_ns: float
    log_chance: float


def repetition(rows: Table, now_ns: int) -> Repetition | None:
    """How a flow, dtype BURST, repeats itself up to now; None if it does not.

    The pause that lasts now is a point like the others.
    """
    if len(rows) < INTERVALS:
        return None
    total = int(rows["level"][-1] + rows["volume"][-1])
    levels = np.append(rows["level"], total)
    pauses = np.append(pauses_before(rows), now_ns - rows["end_ns"][-1])
    chain = _best([chain for points in _points(pauses) for chain in _chains(levels, pauses, points)])
    if chain is None:
        return None
    volume = int(np.median(np.diff(levels[chain.points])))
    baseline = SHORT * chain.pause_ns
    met = levels[chain.points[chain.points < len(rows)]].tolist()
    points = np.unique([beginning(rows, pauses, (level, level, level), volume, baseline) for level in met])
    if len(points) < INTERVALS:
        return None
    return Repetition(volume, rows["start_ns"][points], levels[points], chain.pause_ns)


def beginning(
    rows: Table, pauses: npt.NDArray[np.int64], levels: tuple[float, float, float], volume: float, baseline_ns: float
) -> int | None:
    """Which burst begins an iteration that should begin at a level: (least, expected, most); None if none can.

    What little may be sent just before, a retransmission or a metric, has its pause behind it, not before it: the
    iteration begins after the last pause that is as long as in the baseline. After the expected level it is the first
    such. Where no pause is as long, the longest.
    """
    stray = volume * _STRAY
    first, middle, end = np.searchsorted(rows["level"], (levels[0], levels[1] + stray, levels[2] + stray), side="left")
    if first >= end:
        return None
    long = first + np.flatnonzero(pauses[first:end] >= baseline_ns)
    if not len(long):
        return int(first + np.argmax(pauses[first:end]))
    return int(long[long < middle][-1] if long[0] < middle else long[0])


def _points(pauses: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """The last pauses of at least a power of two, from the longest known pause to the shortest; each choice once."""
    known = pauses[1:]
    high, low = int(known.max()), max(1, int(known.min()))
    found: list[npt.NDArray[np.int64]] = []
    for power in range(high.bit_length() - 1, low.bit_length() - 2, -1):
        points = np.flatnonzero(pauses >= 1 << power)[-_POINTS:]
        if len(points) > INTERVALS and not (found and np.array_equal(points, found[-1])):
            found.append(points)
    return found


def _best(chains: list[_Chain]) -> _Chain | None:
    """The least likely to be chance, of those that no other refutes."""
    if not chains:
        return None
    reach = np.array([chain.reach for chain in chains])
    pause = np.array([chain.pause_ns for chain in chains])
    refuted = np.any((reach >= _AS_FAR * reach[:, None]) & (SHORT * pause > pause[:, None]), axis=1)
    left = [chains[k] for k in np.flatnonzero(~refuted).tolist()]
    return min(left, key=lambda chain: chain.log_chance)


def _chains(
    levels: npt.NDArray[np.int64], pauses: npt.NDArray[np.int64], points: npt.NDArray[np.int64]
) -> list[_Chain]:
    """Those through these pauses that are not chance."""
    level = levels[points]
    ends, volumes = _candidates(level, int(levels[-1]))
    if not len(ends):
        return []
    path = _follow_back(level, ends, volumes)
    intervals = (path >= 0).sum(axis=1) - 1
    meeting = np.minimum(1.0, 2 * VOLUME_TOLERANCE * volumes * len(points) / max(1, int(level[-1] - level[0])))
    log_chance = np.log(len(ends)) + (intervals - 1) * np.log(meeting)
    found = []
    for k in np.flatnonzero((intervals >= INTERVALS) & (log_chance < np.log(_CHANCE))).tolist():
        steps = path[k, : intervals[k] + 1][::-1]
        pause = float(np.percentile(pauses[points[steps]], _TYPICAL))
        found.append(_Chain(points[steps], int(level[steps[-1]] - level[steps[0]]), pause, float(log_chance[k])))
    return found


def _candidates(level: npt.NDArray[np.int64], total: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Where a chain may end, and its V: one that has not been left behind."""
    ends, volumes = [], []
    for end in range(max(1, len(level) - _LAST), len(level)):
        steps = (level[end] - level[max(0, end - _SPAN) : end]).astype(np.float64)
        steps = steps[(steps > 0) & (total - level[end] <= steps * (1 + VOLUME_TOLERANCE))]
        ends += [end] * len(steps)
        volumes += steps.tolist()
    return np.array(ends, np.int64), np.array(volumes, np.float64)


def _follow_back(
    level: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], volumes: npt.NDArray[np.float64]
) -> npt.NDArray[np.int64]:
    """The points of every candidate's chain, last first, −1 after its first; shape (candidates, steps)."""
    here, path = ends, [ends]
    going = np.ones(len(ends), bool)
    while going.any() and len(path) < len(level):
        wanted = level[here] - volumes
        after = np.minimum(np.maximum(np.searchsorted(level, wanted), 1), len(level) - 1)  # np.clip takes far longer
        nearest = np.where(wanted - level[after - 1] <= level[after] - wanted, after - 1, after)
        going = going & (np.abs(level[nearest] - wanted) <= VOLUME_TOLERANCE * volumes) & (nearest < here)
        here = np.where(going, nearest, here)
        path.append(np.where(going, nearest, -1))
    return np.array(path).T
