# SPDX-License-Identifier: Apache-2.0
"""Alignment of the step events of two counts of a training's iterations; many pairs at once."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from netmon.dl.grouped import GroupedValues, starts
from netmon.records import Moment, Source
from netmon.views import SourceScore

_Numbers = npt.NDArray[np.int64]


class StepMoment(Enum):
    """Which moments of two counts may be compared with each other; the value: what stands for it, best first.

    The end comes first: the last wait is a barrier, and the update that follows it takes little.
    """

    END = (Moment.LAST_WAIT, Moment.STEP_END)
    BEGIN = (Moment.FIRST_ENQUEUE,)
    START = (Moment.STEP_START,)


class Events(NamedTuple):
    """Numbers of iterations and times of one beat of each, both (events,), ascending in time."""

    number: _Numbers
    time_ns: _Numbers

    @classmethod
    def none(cls) -> "Events":
        return _NONE

    def latest(self, most: int) -> "Events":
        return self if len(self.number) <= most else Events(self.number[-most:], self.time_ns[-most:])


_NONE = Events(np.empty(0, np.int64), np.empty(0, np.int64))


class Shift(NamedTuple):
    """What to add to a count's numbers, and how many of its events say so, of how many."""

    shift: int
    votes: int
    of: int


class _Flat:
    """Events of many counts, one behind the other."""

    def __init__(self, counts: Sequence[Events]) -> None:
        self.lengths = np.array([len(one.time_ns) for one in counts], np.intp)
        self.first = np.cumsum(self.lengths) - self.lengths
        self.row = np.repeat(np.arange(len(counts)), self.lengths)
        self.number = np.concatenate([_NONE.number, *(one.number for one in counts)])
        self.time_ns = np.concatenate([_NONE.time_ns, *(one.time_ns for one in counts)])

    def periods(self) -> npt.NDArray[np.float64]:
        steps, times = np.diff(self.number), np.diff(self.time_ns)
        known = np.flatnonzero((steps > 0) & (self.row[1:] == self.row[:-1]))
        row, each = self.row[known], times[known] / steps[known]
        each = each[np.lexsort((each, row))]
        count = np.bincount(row, minlength=len(self.lengths))
        first, some = np.cumsum(count) - count, np.flatnonzero(count)
        found = np.full(len(self.lengths), np.inf)
        low, high = (each[(first + index)[some]] for index in ((count - 1) // 2, count // 2))
        found[some] = (low + high) / 2
        return found


def periods(counts: Sequence[Events]) -> npt.NDArray[np.float64]:
    """Of each count the median time from one iteration to the next (ns); inf where fewer than two are known."""
    return _Flat(counts).periods()


def period(events: Events) -> float:
    return float(periods([events])[0])


def best_shifts(
    reference: Sequence[Mapping[StepMoment, Events]], other: Sequence[Mapping[StepMoment, Events]]
) -> list[Shift | None]:
    """Of each pair the shift by the first beat that both have; None where nothing tells."""
    found: list[Shift | None] = [None] * len(other)
    for step_moment in StepMoment:
        rest = [index for index, shift in enumerate(found) if shift is None]
        pairs = [
            (index, reference[index].get(step_moment, _NONE), other[index].get(step_moment, _NONE)) for index in rest
        ]
        both = [pair for pair in pairs if len(pair[1].time_ns) and len(pair[2].time_ns)]
        shifts = _shifts([pair[1] for pair in both], [pair[2] for pair in both]) if both else ()
        for (index, _, _), shift in zip(both, shifts, strict=True):
            found[index] = shift
    return found


def _shifts(reference: Sequence[Events], other: Sequence[Events]) -> Iterator[Shift | None]:
    """Each event of `other` votes with the nearest of `reference`, if that is nearer than half a period; where neither
    has a period, nothing tells."""
    known = {id(one): one for one in reference}  # many have one reference
    number_of = {one: number for number, one in enumerate(known)}
    theirs, ours = _Flat(list(known.values())), _Flat(other)
    whose = np.array([number_of[id(one)] for one in reference], np.intp)
    half = np.minimum(theirs.periods()[whose], ours.periods()) / 2
    group = whose[ours.row]
    first, last = theirs.first[group], (theirs.first + theirs.lengths - 1)[group]
    grouped = GroupedValues(theirs.row, theirs.time_ns, len(known))
    right = np.minimum(grouped.positions(group, ours.time_ns, "left"), last)
    left = np.maximum(right - 1, first)
    before, after = (np.abs(theirs.time_ns[index] - ours.time_ns) for index in (left, right))
    near = np.flatnonzero((np.minimum(before, after) < half[ours.row]) & np.isfinite(half[ours.row]))
    shift = (theirs.number[np.where(before <= after, left, right)] - ours.number)[near]
    row, of = ours.row[near], np.bincount(ours.row[near], minlength=len(other))
    order = np.lexsort((shift, row))
    shift, row = shift[order], row[order]
    run = starts(row, shift)
    votes, shift, row = np.diff(np.append(run, len(row))), shift[run], row[run]
    order = np.lexsort((shift, -votes, row))  # of each row the most votes first, of as many the least shift
    best = order[starts(row[order])]
    found = iter(zip(shift[best].tolist(), votes[best].tolist(), strict=True))
    for count in of.tolist():
        yield Shift(*next(found), count) if count else None


def nearest(times_ns: _Numbers, to_ns: _Numbers) -> npt.NDArray[np.intp]:
    """Index of the nearest of times_ns (ascending, not empty) to each of to_ns."""
    right = np.searchsorted(times_ns, to_ns).clip(0, len(times_ns) - 1)
    left = (right - 1).clip(0)
    return np.where(np.abs(times_ns[left] - to_ns) <= np.abs(times_ns[right] - to_ns), left, right)


# --- How well one source of iterations does, compared with another: precision and recall, and the distance in time.


def matched(
    reference_ns: npt.NDArray[np.int64], found_ns: npt.NDArray[np.int64], within_ns: float
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Pairs of indices into the two (ascending times) that are each other's nearest and not farther than within_ns."""
    if not len(reference_ns) or not len(found_ns):
        return np.empty(0, np.intp), np.empty(0, np.intp)
    to_found, to_reference = nearest(found_ns, reference_ns), nearest(reference_ns, found_ns)
    own = np.arange(len(reference_ns))
    mutual = (to_reference[to_found] == own) & (np.abs(found_ns[to_found] - reference_ns) <= within_ns)
    return own[mutual], to_found[mutual]


def score(
    source: Source, reference: Source, found: Mapping[StepMoment, Events], true: Mapping[StepMoment, Events]
) -> SourceScore | None:
    """The source's iterations against the reference's, by the first kind of event of both; None where there is none.

    A pair is the same iteration when the two are each other's nearest, within half a period. What lies more than
    half a period outside of the time that both cover does not count, so that a source which lags is not blamed.
    """
    for step_moment in StepMoment:
        ours, theirs = found[step_moment].time_ns, true[step_moment].time_ns
        if len(ours) and len(theirs):
            half = min(period(true[step_moment]), period(found[step_moment])) / 2
            first, last = max(ours[0], theirs[0]) - half, min(ours[-1], theirs[-1]) + half
            ours, theirs = (times[(times >= first) & (times <= last)] for times in (ours, theirs))
            one, other = matched(theirs, ours, half)
            error = int(np.median(np.abs(theirs[one] - ours[other]))) if len(one) else 0
            return SourceScore(source, reference, len(theirs), len(ours), len(one), error)
    return None


def combined(scores: Iterable[SourceScore]) -> tuple[SourceScore, ...]:
    """One score per source and reference: of all ranks together, best source first."""
    groups: dict[tuple[Source, Source], list[SourceScore]] = {}
    for one in scores:
        groups.setdefault((one.source, one.reference), []).append(one)
    return tuple(_sum(groups[key]) for key in sorted(groups))


def _sum(scores: list[SourceScore]) -> SourceScore:
    iterations, found, pairs = (sum(getattr(s, name) for s in scores) for name in ("iterations", "found", "matched"))
    error = int(np.median([one.error_ns for one in scores if one.matched] or [0]))
    return SourceScore(scores[0].source, scores[0].reference, iterations, found, pairs, error)
