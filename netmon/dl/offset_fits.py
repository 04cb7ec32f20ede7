# SPDX-License-Identifier: Apache-2.0
"""The offsets of many clocks at once: as `netmon.dl.clocks.fit_offset`, at the cost of a few passes over all bounds."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from netmon.dl.clocks import MAX_SKEW, ROOM_NS, WANDER
from netmon.dl.corridors import Corridors, Flags, Lines, Numbers, Points
from netmon.dl.timemap import STEP_NS

_Times = npt.NDArray[np.int64]


@dataclass(frozen=True)
class OffsetFits:
    """OffsetFit of several clocks; all arrays have one entry each."""

    there: Flags  # whether there is one; where not, the rest says nothing
    offset_ns: _Times
    skew: Numbers
    error_ns: _Times
    since_ns: _Times


@dataclass(frozen=True)
class Present:
    """What is known of several clocks' offsets before: each a line, where `there` says so."""

    there: Flags
    offset_ns: _Times  # at the time that is asked for
    skew: Numbers


def fit_offsets(
    above: Points,
    below: Points,
    base_ns: _Times,
    at_ns: int | _Times,
    present: Present,
    share: Numbers,
    room_ns: int = ROOM_NS,
) -> OffsetFits:
    """The offsets of several clocks at at_ns (of all, or of each), by the bounds of a window, upper and lower ones.

    above, below: bounds minus base_ns, at times minus at_ns, padded with inf and −inf; share: of each clock. What is
    done with them, and with the present estimates, is what `fit_offset` does.
    """
    count = len(base_ns)
    fits = OffsetFits(
        np.zeros(count, np.bool_), base_ns.copy(), np.zeros(count), np.zeros(count, np.int64), np.zeros(count, np.int64)
    )
    known, at_ns = ((present.offset_ns - base_ns).astype(np.float64), present.skew), np.broadcast_to(at_ns, count)
    both = _both(above, below)
    left, jumped, above, below = np.flatnonzero(both), False, above.of(both), below.of(both)
    while len(left):
        corridors = Corridors.between(above, below, MAX_SKEW)
        newest, oldest = np.maximum(above.last(), below.last()), np.minimum(above.first(), below.first())
        whose = known[0][left], known[1][left]
        offset, skew = _estimate(corridors, whose, present.there[left], share[left], room_ns, jumped)
        error = corridors.reach(offset) + WANDER * np.maximum(0.0, -newest)
        good = corridors.there
        own = left[good]
        fits.there[own], fits.skew[own] = True, skew[good]
        fits.offset_ns[own] += np.round(offset[good]).astype(np.int64)
        fits.error_ns[own] = np.ceil(error[good]).astype(np.int64) + 1
        fits.since_ns[own] = at_ns[own] + oldest[good].astype(np.int64)
        again = ~good & (newest > oldest)
        left, jumped = left[again], True
        since = newest[again] - (newest - oldest)[again] // 2
        above, below = above.of(again).since(since, np.inf), below.of(again).since(since, -np.inf)
        both = _both(above, below)
        left, above, below = left[both], above.of(both), below.of(both)
    return fits


def _both(above: Points, below: Points) -> Flags:
    return np.logical_and(above.there.any(axis=1), below.there.any(axis=1), dtype=np.bool_)


def _estimate(
    corridors: Corridors, present: Lines, known: Flags, share: Numbers, room_ns: float, jumped: bool
) -> Lines:
    offset, skew = corridors.nearest(present)
    stays = known & ~(jumped & (np.abs(offset - present[0]) >= STEP_NS))
    wanted, lean = corridors.nearest((offset, skew), room_ns)
    moved = offset + share * (wanted - offset), skew + share * (lean - skew)
    anew = corridors.nearest((corridors.middle[0], np.zeros(len(offset))), room_ns)
    return np.where(stays, moved[0], anew[0]), np.where(stays, moved[1], anew[1])
