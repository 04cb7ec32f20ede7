# SPDX-License-Identifier: Apache-2.0
"""Where the steps of flows begin that pause more than once in each, and not all at the same time.

Each layer has an all-gather, micro-batches pass a pipeline: no pause shows by its length where a step begins, and there
may be no moment at which all flows are quiet. But each flow carries the same bytes in every step. So its steps are
counted from where it began: the first burst after which everything repeats itself is the first of the first step.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from netmon.dl.inference.bursts import SEGMENT_BYTES, levels_at, pauses_before, together
from netmon.dl.inference.repetition import INTERVALS, TYPICAL, VOLUME_TOLERANCE, Candidate, Repetition, nearest
from netmon.records import Table

Start = tuple[int, dict[int, int]]
"""When a step begins, and how many bytes each flow had sent before."""

_LEAST_STEPS = 4
_SAME_STEP = 0.05
MOST_PARTS = 16  # of a step, that may be taken for steps
_MET = 0.9  # of the steps begin with a burst
_SURE_OF_STEP = 3  # of the first ones, all do
_MANY_BURSTS, _SAME = 8, 0.35  # of the first step; of them, that are in another one
_SAME_BURSTS, _SAME_LEVEL = 8, 1e-4  # segments and share of the volume that they may be off
_MOSTLY = 0.5  # of the steps, in which a flow sends the same
_OFTEN, _AS_LONG = 2.5, 0.6  # pauses in each step that are about as long as the longest


def pauses_often(flows: Sequence[Candidate], whole: Repetition, resolution_ns: int) -> bool:
    """Whether all flows together pause more than once in each of their repetitions, about as long as before it."""
    rows = together([c.bursts.rows for c in flows], resolution_ns)
    since, until = np.searchsorted(rows["start_ns"], whole.onsets_ns[[0, -1]])
    long = int((pauses_before(rows)[since + 1 : until + 1] >= _AS_LONG * whole.pause_ns).sum())
    return long >= _OFTEN * (len(whole.onsets_ns) - 1)


def starts(flows: Sequence[Candidate]) -> list[Start]:
    """Of the steps that all flows have begun; empty where they are not clear, or a flow not known from its start."""
    if not all(c.repetition and c.whole for c in flows):
        return []
    periods = np.array([c.repetition.period_ns for c in flows if c.repetition])
    totals = np.array([c.bursts.total for c in flows])
    order = np.argsort(periods)
    period = float(periods[order][np.searchsorted(np.cumsum(totals[order]), totals.sum() / 2)])
    tables, begun = [], []
    for c in flows:
        rows, volume = c.bursts.rows, _of_step(c, period)
        found = beginnings(rows, volume) if volume else np.empty(0, np.int64)
        if len(found) < _LEAST_STEPS:
            return []
        tables.append(rows)
        begun.append(found)
    steps = min(map(len, begun))
    if max(map(len, begun)) > steps + _SURE_OF_STEP:
        return []
    begun = _in_step(tables, [found[:steps] for found in begun])
    times = np.array([rows["start_ns"][found] for rows, found in zip(tables, begun, strict=True)])
    levels = np.array([rows["level"][found] for rows, found in zip(tables, begun, strict=True)])
    numbers = [c.flow for c in flows]
    return [
        (int(times[:, k].min()), dict(zip(numbers, levels[:, k].tolist(), strict=True))) for k in range(times.shape[1])
    ]


def _in_step(tables: Sequence[Table], begun: Sequence[npt.NDArray[np.int64]]) -> list[npt.NDArray[np.int64]]:
    """Where flows begin their steps, each as many, once those that count other steps are counted anew.

    A step of many blocks may be counted a block too short or too long: its flow gets ahead of the others, or falls
    behind. What it has in a step is then what it sends in a step of the flow that is in the midst of all: if that is
    the same in most of them, or explains by how much the flow is ahead.
    """
    spans = [np.ptp(rows["start_ns"][found]) for rows, found in zip(tables, begun, strict=True)]
    middle = int(np.argsort(spans, kind="stable")[len(spans) // 2])
    times = tables[middle]["start_ns"][begun[middle]]
    again = []
    for rows, found, span in zip(tables, begun, spans, strict=True):
        sent = np.diff(levels_at(rows, times))
        own, volume = float(np.median(np.diff(rows["level"][found]))), float(np.median(sent))
        if abs(volume - own) > VOLUME_TOLERANCE * own and volume:
            same = (np.abs(sent / volume - 1) <= VOLUME_TOLERANCE / 2).mean()
            ahead, explained = span / spans[middle], own / volume
            if same > _MOSTLY or abs(ahead - explained) < abs(ahead - 1):
                anew = beginnings(rows, volume)
                found = anew if len(anew) >= _LEAST_STEPS else found
        again.append(found)
    steps = min(map(len, again))
    return [found[:steps] for found in again]


def _of_step(candidate: Candidate, period_ns: float) -> float:
    """Its bytes in a step, which may be a multiple of what it repeats itself in, or a part; 0: neither."""
    assert candidate.repetition is not None
    ratio = period_ns / candidate.repetition.period_ns
    times = max(1.0, round(ratio)) if ratio >= 1 else 1 / max(1.0, round(1 / ratio))
    fits = abs(ratio / times - 1) <= _SAME_STEP and 1 / MOST_PARTS <= times <= MOST_PARTS
    return candidate.repetition.volume * times if fits else 0.0


def from_the_beginning(flows: Sequence[Candidate], whole: Repetition, resolution_ns: int) -> Repetition | None:
    """The same steps, each from the burst with which the flows began; None: that is not clear, or they are so already.

    Where layers differ much, ranks compute for longest in the midst of a step.
    """
    if not all(c.whole for c in flows):
        return None
    rows = together([c.bursts.rows for c in flows], resolution_ns)
    if not _is_as_the_first(rows["level"], whole.volume):
        return None
    found = beginnings(rows, whole.volume, INTERVALS)
    if not len(found) or np.isin(whole.onsets_ns, rows["start_ns"][found]).any():
        return None
    pause_ns = float(np.quantile(pauses_before(rows)[found[1:]], TYPICAL))
    return Repetition(whole.volume, rows["start_ns"][found], rows["level"][found], pause_ns)


def _is_as_the_first(level: npt.NDArray[np.int64], volume: int) -> bool:
    """Whether one of the next steps consists of the same bursts as the first so many bytes, and these are many."""
    first, slack = level[level < volume], _SAME_BURSTS * SEGMENT_BYTES + _SAME_LEVEL * volume
    if len(first) < _MANY_BURSTS:
        return False
    for step in range(1, 1 + _SURE_OF_STEP):
        wanted = first + step * volume
        if (np.abs(level[nearest(level, wanted)] - wanted) <= slack).mean() >= _SAME:
            return True
    return False


def beginnings(rows: Table, volume: float, least: int = _LEAST_STEPS) -> npt.NDArray[np.int64]:
    """Bursts that begin steps of so many bytes, from the first one on that repeats itself all the time; ascending.

    least: steps.
    """
    level = rows["level"].astype(np.float64)
    slack = max(VOLUME_TOLERANCE / 2 * volume, SEGMENT_BYTES)
    last = level.searchsorted(level[-1] - least * volume, "right")
    for first in range(int(last)):
        found, met = _chain(level, first, volume, slack)
        if len(met) >= least and all(met[:_SURE_OF_STEP]) and sum(met) >= _MET * len(met):
            found[0] = int(level.searchsorted(level[first] + slack, side="right")) - 1
            return np.array(found, np.int64)
        if level[first] > level[0] + 2 * volume:
            break
    return np.empty(0, np.int64)


def _chain(level: npt.NDArray[np.float64], first: int, volume: float, slack: float) -> tuple[list[int], list[bool]]:
    found, met, at = [first], [], float(level[first])
    while at + volume <= level[-1] + slack:
        at += volume
        near = min(int(level.searchsorted(at)), len(level) - 1)
        if near and at - level[near - 1] < level[near] - at:
            near -= 1
        met.append(abs(level[near] - at) <= slack)
        if met[-1]:
            at = float(level[near])
        if len(met) == _SURE_OF_STEP and not all(met):
            break
        found.append(near)
    return found, met
