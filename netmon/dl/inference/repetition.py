# SPDX-License-Identifier: Apache-2.0
"""Whether a flow repeats itself.

That is found in its volume, not in its time. An iteration may take twice as long as the one before, because of cross
traffic, of a lost segment's timeout, or of a slow rank; but it always moves the same gradients, so a flow of the
training moves the same bytes per iteration (2·(N−1)/N·P·4 of a ring's, the thesis, equation 3.1), and before the first
of them it pauses while the ranks compute. So a flow is laid out along its cumulative volume. Each pause is a point
there, and the iterations are a chain of such points at intervals of V.

Pauses within the communication (between fused blocks, or because of a lost segment) are points, too, so that there
are many chains. Which one is it?
- Not one that may be chance. With n points on S bytes, a chain meets a point within ±ε·V of where it expects one with
  probability p = 2·ε·V·n/S; of m intervals the first is free, so of c candidates c·p^(m−1) get as far by chance.
- Not one whose pauses are short alongside those of another chain that reaches as far back: blocks of equal size, with
  short pauses between them, repeat as well, but the ranks do not compute in these.
- Of those left, the one that is least likely to be chance; what repeats after V also repeats after 2·V, but only half
  as often.

Where a step is many blocks of equal volume, as the layers of a deep model are, it is the pauses before them that repeat
themselves (`steps_of_blocks`).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from netmon.dl.inference.bursts import SEGMENT_BYTES, SHORT, Bursts, Edge, pauses_before
from netmon.records import Table

VOLUME_TOLERANCE = 0.01
"""ε, of V. Retransmitted segments are counted twice by the sender, and lost ones never come to the receiver."""
INTERVALS = 3
"""Equal volumes in a row that make a repetition."""
_TIGHT = 0.004  # of the volume
_STRAY = 0.001  # of V: less is no gradients
_CHANCE = 0.05  # likelier chains are no evidence
_POINTS = 64  # pauses looked at
_LAST, _SPAN = 3, 16  # V is the volume between one of the last 3 of them and one of the 16 before it
TYPICAL = 0.25
"""Quantile of a chain's pauses."""
_AS_FAR = 0.5  # as another chain reaches back
_MORE, _SURELY = 1.5, np.log(1e-4)  # times the bytes that recur; of a chain of more, how likely it is chance at most


_LOOKED_BACK, _LATER, _FROM = 256, 128, 4
"""Bursts that are compared with themselves; shifted by at most so many; candidates: the distances of the last ones."""
_JITTER = 3  # segments that a burst's end may be counted to the one or the other
_LEAST_STEPS = 4
_ALIKE, _AS_ALIKE = 0.33, 0.84
_CONTRAST = 0.75  # of the way from what other volumes reach to the best
_LONGEST = 0.98  # quantile: longer pauses count as this one


def recurring_volume(rows: Table) -> float:
    """Bytes after which a flow's pauses are the same again; 0: none is clear.

    All-gathers of single layers, or micro-batches, are of equal volumes as well, but not the pauses between
    them. The pauses are compared with themselves, shifted by so many bytes: what both have, of what either has, is 1
    where they are the same. It is highest at the bytes of a step and its multiples, and lower at those of a part.
    """
    rows = rows[-_LOOKED_BACK:]
    if len(rows) < 2 * _LEAST_STEPS:
        return 0.0
    level, pauses = rows["level"].astype(np.float64), pauses_before(rows).astype(np.float64)
    pauses[0] = 0
    pauses = np.minimum(pauses, np.sort(pauses)[int(_LONGEST * len(pauses))])
    ends = range(len(level) - _FROM, len(level))
    volumes = np.concatenate([level[end] - level[max(0, end - _LATER) : end] for end in ends])
    volumes = np.sort(volumes[(volumes > 0) & (_LEAST_STEPS * volumes <= level[-1] - level[0])])
    if not len(volumes):
        return 0.0
    volumes = volumes[np.append(True, np.diff(volumes) > SEGMENT_BYTES)]
    alike = _likeness(level, pauses, volumes)
    best = float(alike.max())
    others = np.quantile(alike[alike >= best / 4], 0.1)
    least = max(_AS_ALIKE * best, others + _CONTRAST * (best - others) if others < 0.8 * best else 0.0)
    return float(volumes[np.argmax(alike >= least)]) if best >= _ALIKE else 0.0


def recurs(rows: Table, volume: int) -> bool:
    """Whether the pauses are the same again after so many bytes, and not after others only."""
    return abs(recurring_volume(rows) / volume - 1) <= VOLUME_TOLERANCE


_ROUNDS = 4  # at least: that one of two parts is longer in as many by chance has a probability of 1 in 35


def one_differs(periods: npt.NDArray[np.int64], parts: int, least_rounds: int = _ROUNDS) -> bool:
    """Whether, of so many that follow each other, one always takes longer than all the others do, or always less."""
    rounds = len(periods) // parts
    if parts < 2 or rounds < least_rounds:
        return False
    table = periods[len(periods) - rounds * parts :].reshape(rounds, parts)
    least, most = table.min(axis=0), table.max(axis=0)
    return bool(least.max() > np.sort(most)[-2] or most.min() < np.sort(least)[1])


def nearest(level: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Index of the level that is nearest to each. level: ascending, two or more."""
    after = np.minimum(np.maximum(level.searchsorted(wanted), 1), len(level) - 1)  # np.clip takes far longer
    found: npt.NDArray[np.int64] = after - (wanted - level[after - 1] < level[after] - wanted)
    return found


def _likeness(
    level: npt.NDArray[np.float64], pauses: npt.NDArray[np.float64], volumes: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Of each volume."""
    bursts = volumes * (len(level) / (level[-1] - level[0]))
    slack = np.minimum(_TIGHT * volumes, _JITTER * SEGMENT_BYTES * np.sqrt(bursts + 1))[:, None]
    slack = np.maximum(slack, SEGMENT_BYTES)
    wanted = level + volumes[:, None]
    near = nearest(level, wanted)
    met = np.abs(level[near] - wanted) <= slack
    known = wanted <= level[-1] + slack
    one, other = np.where(known, pauses, 0.0), np.where(met, pauses[near], 0.0)
    later = np.where(level >= level[0] + volumes[:, None] - slack, pauses, 0.0).sum(axis=1)
    unmet = np.maximum(0.0, later - other.sum(axis=1))
    either = np.maximum(one, other).sum(axis=1) + unmet
    found: npt.NDArray[np.float64] = np.minimum(one, other).sum(axis=1) / np.maximum(either, 1.0)
    return found


@dataclass(frozen=True)
class Repetition:
    """The beginnings of a flow's last iterations, as far back as they are in one chain."""

    volume: int  # V, bytes
    onsets_ns: npt.NDArray[np.int64]  # ascending; of the bursts with which iterations begin
    levels: npt.NDArray[np.int64]  # bytes of the flow before each
    pause_ns: float  # typical quiet before an iteration
    of_blocks: bool = False  # by how the pauses between many equal blocks recur

    @property
    def period_ns(self) -> float:
        """Median time from one beginning to the next."""
        return float(np.median(np.diff(self.onsets_ns)))


@dataclass(frozen=True)
class _Chain:
    points: npt.NDArray[np.int64]  # indices of pauses, ascending
    reach: int  # bytes from its first point to its last
    volume: float
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
    chains = [chain for points in _points(pauses) for chain in _chains(levels, pauses, points)]
    step = recurring_volume(rows) if chains else 0.0
    if step and (longer := steps_of_blocks(rows, step)):
        return longer
    if step:
        alike = [chain for chain in chains if abs(chain.volume - step) <= VOLUME_TOLERANCE * step]
        chains = [*alike, *_longer(chains, alike, step)]
    chain = _best(chains)
    if chain is None:
        return None
    volume = int(np.median(np.diff(levels[chain.points])))
    baseline = SHORT * chain.pause_ns
    met = levels[chain.points[chain.points < len(rows)]].tolist()
    points = np.unique([beginning(rows, pauses, (level, level, level), volume, baseline) for level in met])
    if len(points) < INTERVALS:
        return None
    return Repetition(volume, rows["start_ns"][points], levels[points], chain.pause_ns)


_MOST_BLOCKS, _MOST_VOLUMES = 4096, 256  # looked at
_COMMON = 0.9  # quantile: longer pauses count as this one; those between steps, or of a checkpoint, are not the pattern
_LOW, _HIGH = 0.3, 0.6  # of the correlation of the pauses with those one or two blocks later: between, and after a step
_SIGMAS = 6  # of the correlation of as many numbers by chance, that it is at least after a step
_LEAST_BLOCKS = 4  # of a step
_EDGE = 0.1  # of a block, that its beginning may be off
_MORE_AND_MORE = 8, 64, 512
_ABOUT = 1.5  # blocks that a step may be longer or shorter: not all blocks of it are equal
_AS_HIGH = 0.75  # as the highest correlation: after twice as many blocks it is as high


def steps_of_blocks(rows: Table, volume: float, least: int = _LEAST_STEPS) -> Repetition | None:
    """Steps of many blocks of equal volume, as the all-gathers of a model's layers; None: they are no such.

    How long ranks compute before each block is the same again a step later, and not in between: passes forward and
    backward differ. So the pauses, block by block, correlate with themselves, less and less the more blocks later, and
    best a step later. least: steps.
    """
    if len(rows) < least * _LEAST_BLOCKS:
        return None
    pauses, level = pauses_before(rows), rows["level"]
    of_last = int(level.searchsorted(level[-1] - volume, "right"))
    last = of_last + int(np.argmax(pauses[of_last:]))  # the one with which the last block begins, or the one before
    volume = _exactly(level, last, volume)
    block = np.floor((level - level[last]) / volume + _EDGE).astype(np.int64)
    block -= block[0]
    since = block.searchsorted(block[-1] - _MOST_BLOCKS, "right")
    block, first = block[since:] - block[since], int(since)
    count = int(block[-1]) + 1
    if count < least * _LEAST_BLOCKS:
        return None
    longest = np.zeros(count)
    np.maximum.at(longest, block[1:], pauses[first + 1 :].astype(np.float64))
    common = np.minimum(longest, np.quantile(longest, _COMMON))
    alike = _autocorrelation(common)[: count // least + 1]
    least_scale = _SIGMAS / _HIGH / np.sqrt(count)
    scale = max(float(alike[1:3].max()), least_scale)  # the rest is chance: each pause by itself
    low = np.flatnonzero(alike < _LOW * scale)
    if not len(low):
        return None
    alike[: low[0]] = 0.0
    high = np.flatnonzero(alike >= max(_HIGH * scale, _AS_HIGH * alike.max()))
    if not len(high):
        return None
    peak = high[: 1 + int(np.argmax(np.append(np.diff(high) > 1, True)))]
    later = int(peak[np.argmax(alike[peak])])
    if later < _LEAST_BLOCKS:
        return None
    return _chain_of_blocks(rows, pauses, later * volume, volume)


def _chain_of_blocks(rows: Table, pauses: npt.NDArray[np.int64], roughly: float, block: float) -> Repetition | None:
    """Steps of about so many bytes, each of which begins after the pause that is the longest in most of them."""
    level, lasted = rows["level"].astype(np.float64), pauses.astype(np.float64)
    lasted[0] = 0
    ends = range(len(level) - _FROM, len(level))
    volumes = np.unique(np.concatenate([level[end] - level for end in ends]))
    volumes = volumes[np.abs(volumes - roughly) <= _ABOUT * block]
    volumes = volumes[:: 1 + len(volumes) // _MOST_VOLUMES]
    if not len(volumes):
        return None
    alike = _likeness(level, np.minimum(lasted, np.quantile(lasted, _COMMON)), volumes)
    volume = float(volumes[np.argmax(alike)])
    steps = int((level[-1] - level[0]) / volume)
    wanted = level[level > level[-1] - volume][:, None] - volume * np.arange(steps)
    near = nearest(level, wanted)
    met = np.abs(level[near] - wanted) <= max(VOLUME_TOLERANCE * block, SEGMENT_BYTES)
    chosen = int(np.argmax(np.median(np.where(met, lasted[near], 0.0), axis=1)))
    points = near[chosen][met[chosen]][::-1]
    if len(points) < 2:
        return None
    pause = float(np.quantile(pauses[points], TYPICAL))
    return Repetition(round(volume), rows["start_ns"][points], rows["level"][points], pause, True)


def _exactly(level: npt.NDArray[np.int64], last: int, volume: float) -> float:
    """The volume of a block, by that of more and more of them before the burst `last`."""
    for blocks in _MORE_AND_MORE:
        wanted = level[last] - blocks * volume
        if wanted <= level[0]:
            break
        near = level[nearest(level, wanted)]
        if abs(near - wanted) < _EDGE * volume:
            volume = float(level[last] - near) / blocks
    return volume


def _autocorrelation(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """From no shift on."""
    count = len(values)
    centred = values - values.mean()
    spectrum = np.fft.rfft(centred, 2 * count)
    products = np.fft.irfft(spectrum * spectrum.conj())[:count]
    found: npt.NDArray[np.float64] = products / np.arange(count, 0, -1) / max(float(products[0]) / count, 1e-9)
    return found


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


def _longer(chains: list[_Chain], alike: list[_Chain], step: float) -> list[_Chain]:
    """Chains of more bytes, before whose points all pause for longer than before those of the chains that are alike.

    The last bursts may all be blocks of one step, as the all-gathers of a model's many layers: then these recur.
    """
    pause, reach = (max((getattr(chain, name) for chain in alike), default=0) for name in ("pause_ns", "reach"))
    return [
        chain
        for chain in chains
        if chain.volume > _MORE * step
        and SHORT * chain.pause_ns > pause
        and chain.reach >= _AS_FAR * reach
        and chain.log_chance < _SURELY
    ]


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
    kept = np.flatnonzero((intervals >= INTERVALS) & (log_chance < np.log(_CHANCE)))
    typical = _quantiles(np.where(path[kept] >= 0, pauses[points[path[kept]]], np.inf), intervals[kept], TYPICAL)
    found = []
    for k, pause in zip(kept.tolist(), typical.tolist(), strict=True):
        steps = path[k, : intervals[k] + 1][::-1]
        reach = int(level[steps[-1]] - level[steps[0]])
        found.append(_Chain(points[steps], reach, float(volumes[k]), pause, float(log_chance[k])))
    return found


def _quantiles(values: npt.NDArray[np.float64], last: npt.NDArray[np.int64], share: float) -> npt.NDArray[np.float64]:
    """As np.quantile interpolates it, of each row's values, of which there are last + 1; the others are infinite."""
    ordered, row = np.sort(values, axis=1), np.arange(len(values))
    below = (share * last).astype(np.int64)
    least, next_one = ordered[row, below], ordered[row, np.minimum(below + 1, last)]
    found: npt.NDArray[np.float64] = least + (next_one - least) * (share * last - below)
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
    height, here, going, path = level.astype(np.float64), ends, np.arange(len(ends)), [ends]
    while len(going) and len(path) < len(level):
        wanted = height[here] - volumes
        after = np.minimum(np.maximum(height.searchsorted(wanted), 1), len(level) - 1)  # np.clip takes far longer
        nearest = after - (wanted - height[after - 1] <= height[after] - wanted)
        goes_on = (np.abs(height[nearest] - wanted) <= VOLUME_TOLERANCE * volumes) & (nearest < here)
        going, here, volumes = going[goes_on], nearest[goes_on], volumes[goes_on]
        met = np.full(len(ends), -1)
        met[going] = here
        path.append(met)
    return np.array(path).T


@dataclass(frozen=True)
class Candidate:
    """A flow, each 5-tuple once, that belongs to no job."""

    flow: int
    edge: Edge
    bursts: Bursts
    repetition: Repetition | None
    fresh: bool = False  # it is known from its beginning

    @property
    def whole(self) -> bool:
        """All that it ever sent is known still."""
        return self.fresh and not self.bursts.forgetful
