# SPDX-License-Identifier: Apache-2.0
"""The beat of a training as two counts of its iterations hear it, held against each other; many pairs at once."""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from netmon.records import Moment

_Numbers = npt.NDArray[np.int64]

_LAST = np.iinfo(np.int64).max
_ROWS = 512  # pairs that are compared together: each takes the square of its events


class Beat(Enum):
    """Which moments of two counts may be held against each other; the value: what stands for it, best first.

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
        """No events."""
        return _NONE


_NONE = Events(np.empty(0, np.int64), np.empty(0, np.int64))


class Shift(NamedTuple):
    """What to add to a count's numbers, and how many of its events say so, of how many."""

    shift: int
    votes: int
    of: int


class _Stack(NamedTuple):
    """Events of several counts, a row each, (counts, most events)."""

    number: _Numbers
    time_ns: _Numbers  # behind the last event the largest int64
    there: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, counts: Sequence[Events]) -> "_Stack":
        """Two columns at least."""
        lengths = np.array([len(one.time_ns) for one in counts], np.intp)
        there = np.arange(max(2, int(lengths.max(initial=0)))) < lengths[:, None]
        number, time_ns = np.zeros(there.shape, np.int64), np.full(there.shape, _LAST)
        if len(counts):
            number[there] = np.concatenate([one.number for one in counts])
            time_ns[there] = np.concatenate([one.time_ns for one in counts])
        return cls(number, time_ns, there)

    def rows(self, rows: npt.NDArray[np.intp]) -> "_Stack":
        return _Stack(self.number[rows], self.time_ns[rows], self.there[rows])

    def periods(self) -> npt.NDArray[np.float64]:
        steps, times = np.diff(self.number, axis=1), np.diff(self.time_ns, axis=1)
        known = (steps > 0) & self.there[:, 1:]
        each = np.full(steps.shape, np.inf)
        np.divide(times, steps, out=each, where=known)
        each.sort(axis=1)
        count, row = known.sum(axis=1), np.arange(len(each))
        low, high = each[row, np.maximum(count - 1, 0) // 2], each[row, np.minimum(count // 2, steps.shape[1] - 1)]
        return np.where(count > 0, (low + high) / 2, np.inf)


def periods(counts: Sequence[Events]) -> npt.NDArray[np.float64]:
    """Of each count the median time from one iteration to the next (ns); inf where fewer than two are known."""
    return _Stack.of(counts).periods()


def period(events: Events) -> float:
    """The same of one count."""
    return float(periods([events])[0])


def best_shifts(
    reference: Sequence[Mapping[Beat, Events]], other: Sequence[Mapping[Beat, Events]]
) -> list[Shift | None]:
    """Of each pair the shift by the first beat that both have; None where nothing tells."""
    found: list[Shift | None] = [None] * len(other)
    for beat in Beat:
        rest = [place for place, shift in enumerate(found) if shift is None]
        pairs = [(place, reference[place].get(beat, _NONE), other[place].get(beat, _NONE)) for place in rest]
        both = [pair for pair in pairs if len(pair[1].time_ns) and len(pair[2].time_ns)]
        for first in range(0, len(both), _ROWS):
            places, references, others = zip(*both[first : first + _ROWS], strict=True)
            for place, shift in zip(places, _shifts(references, others), strict=True):
                found[place] = shift
    return found


def _shifts(reference: Sequence[Events], other: Sequence[Events]) -> Iterable[Shift | None]:
    """Each event of `other` votes with the nearest of `reference`, if that is nearer than half a period."""
    theirs = _distinct(reference)
    ours = _Stack.of(other)
    half = np.minimum(theirs.periods(), ours.periods()) / 2
    row, last = np.arange(len(other))[:, None], theirs.there.sum(axis=1)[:, None] - 1
    right = np.minimum((theirs.time_ns[:, None, :] < ours.time_ns[:, :, None]).sum(axis=2), last)
    left = np.maximum(right - 1, 0)
    before, after = (np.abs(theirs.time_ns[row, place] - ours.time_ns) for place in (left, right))
    place, distance = np.where(before <= after, left, right), np.minimum(before, after)
    near = (distance < half[:, None]) & ours.there
    shift = theirs.number[row, place] - ours.number
    votes = ((shift[:, :, None] == shift[:, None, :]) & near[:, None, :]).sum(axis=2) * near
    most = votes.max(axis=1)
    best = np.where(near & (votes == most[:, None]), shift, _LAST).min(axis=1)
    for one, count, of in zip(best.tolist(), most.tolist(), near.sum(axis=1).tolist(), strict=True):
        yield Shift(one, count, of) if of else None


def _distinct(counts: Sequence[Events]) -> _Stack:
    """As _Stack.of, of counts of which most are the same."""
    place: dict[int, int] = {}
    for one in counts:
        place.setdefault(id(one), len(place))
    distinct = list({id(one): one for one in counts}.values())
    return _Stack.of(distinct).rows(np.array([place[id(one)] for one in counts], np.intp))


def nearest(times_ns: _Numbers, to_ns: _Numbers) -> npt.NDArray[np.intp]:
    """Index of the nearest of times_ns (ascending, not empty) to each of to_ns."""
    right = np.searchsorted(times_ns, to_ns).clip(0, len(times_ns) - 1)
    left = (right - 1).clip(0)
    return np.where(np.abs(times_ns[left] - to_ns) <= np.abs(times_ns[right] - to_ns), left, right)
