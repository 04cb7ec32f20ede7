# SPDX-License-Identifier: Apache-2.0
"""How far the hosts' clocks are from each other's and the collector's, and how what was measured corrects times."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from netmon.dl.timemap import STEP_NS
from netmon.records import ClockExchange, Table

_SHORTEST = 300_000_000  # of a feasible range whose bounds distinguish a slope from the jitter
_ROUNDING = 2e-3  # ns
_MOST_STEPS = 200  # far more than a few; a set that needs them has no feasible range

Numbers = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Lines = tuple[Numbers, Numbers]
"""Values at time 0, slopes; of shape (sets,)."""


@dataclass(frozen=True)
class Points:
    """Points of many sets, shape (sets, most points of one); where a set has fewer: time 0, value ± inf."""

    time: Numbers
    value: Numbers

    @classmethod
    def padded(
        cls,
        sets: npt.NDArray[np.int64],
        time: npt.NDArray[np.integer],
        value: npt.NDArray[np.integer],
        count: int,
        none: float,
    ) -> "Points":
        """Of `count` sets; sets: whose each point is, ascending; none: inf or −inf, the value where no point is."""
        first = np.searchsorted(sets, np.arange(count))
        within = np.arange(len(sets)) - first[sets]
        shape = count, int(within.max(initial=0)) + 1
        points = cls(np.zeros(shape), np.full(shape, none))
        points.time[sets, within], points.value[sets, within] = time, value
        return points

    @property
    def there(self) -> Flags:
        return np.isfinite(self.value)

    def first(self) -> Numbers:
        """Time of each set's first point; inf where it has none."""
        found: Numbers = np.where(self.there, self.time, np.inf).min(axis=1, initial=np.inf)
        return found

    def last(self) -> Numbers:
        """Time of each set's last point; −inf where it has none."""
        found: Numbers = np.where(self.there, self.time, -np.inf).max(axis=1, initial=-np.inf)
        return found

    def of(self, sets: Flags) -> "Points":
        return Points(self.time[sets], self.value[sets])

    def since(self, time: Numbers, none: float) -> "Points":
        """Without those that are older, each set's by its own time; none: inf or −inf, the value where no point is."""
        keep = self.time >= time[:, None]
        return Points(np.where(keep, self.time, 0.0), np.where(keep, self.value, none))


@dataclass(frozen=True)
class FeasibleOffsets:
    """What lies between `above` and `below`, where something does: each set of lines is convex."""

    above: Points  # padded with +inf
    below: Points  # negated, as `above`: padded with +inf
    there: Flags  # whether any line fits; where none does, the rest says nothing
    slopes: tuple[Numbers, Numbers]  # least and greatest
    values: tuple[Numbers, Numbers]  # least and greatest at time 0
    middle: Lines

    @classmethod
    def between(cls, above: Points, below: Points, steepest: float) -> "FeasibleOffsets":
        """Slopes within ± steepest; every set has points above and below, these padded with −inf.

        The middle is the mean of the two walls, each the line beyond none of its points that is nearest to them on
        average (Moon, Skelly and Towsley, "Estimation and removal of clock skew from network delay measurements",
        INFOCOM 1999).
        """
        count = len(above.time)
        below = Points(below.time, -below.value)
        outline = cls(above, below, *_slopes(above, below, steepest), *((np.zeros(count),) * 2,) * 2)
        least, greatest = outline.slopes
        highest = _upper(above, np.clip(_bridge(above, np.zeros(count))[1], least, greatest))[0]
        # The least value of a line above −points is the greatest of the mirrored line below them.
        lowest = -_upper(below, np.clip(_bridge(below, np.zeros(count))[1], -greatest, -least))[0]
        value, slope = (lowest + highest) / 2, np.zeros(count)
        begin, end = np.minimum(above.first(), below.first()), np.maximum(above.last(), below.last())
        (top, tilt), (bottom, lean) = (
            _bridge(points, (points.first() + points.last()) / 2) for points in (above, below)
        )
        long = np.isfinite(tilt) & np.isfinite(lean) & (end - begin > _SHORTEST)
        value[long], slope[long] = (top[long] - bottom[long]) / 2, (tilt[long] - lean[long]) / 2
        outline = replace(outline, values=(lowest, highest))
        return replace(outline, middle=outline._clipped((value, slope)))

    def reach(self, value: Numbers) -> Numbers:
        """How far from a value at time 0 a line may be there."""
        return np.maximum(self.values[1] - value, value - self.values[0])

    def nearest(self, lines: Lines, room: float = 0.0) -> Lines:
        """Each line if it fits, else the next that does: with its slope where one fits, else with the next slope.

        room: the line's distance from the bounds at time 0; in a too narrow range, the line is the middle.
        """
        half = (self.values[1] - self.values[0]) / 2
        wide = half > room
        kept = np.where(wide, 1 - room / np.where(wide, half, 1.0), 1.0)
        # The lines with room are the feasible range, shrunk towards its middle.
        (value, slope), (middle, lean) = lines, self.middle
        out = 1 / kept - 1
        fit, tilt = self._clipped((value + (value - middle) * out, slope + (slope - lean) * out))
        fit, tilt = fit + (middle - fit) * (1 - kept), tilt + (lean - tilt) * (1 - kept)
        return np.where(wide, fit, middle), np.where(wide, tilt, lean)

    def _clipped(self, lines: Lines) -> Lines:
        slope = np.minimum(np.maximum(lines[1], self.slopes[0]), self.slopes[1])
        lowest, highest = -_upper(self.below, -slope)[0], _upper(self.above, slope)[0]
        return np.minimum(np.maximum(lines[0], lowest), highest), slope


def _upper(above: Points, slope: Numbers) -> tuple[Numbers, npt.NDArray[np.intp]]:
    """U(slope), and the place of the point that makes it."""
    values = above.value - slope[:, None] * above.time
    index = values.argmin(axis=1)
    return values[np.arange(len(values)), index], index


def _slopes(above: Points, below: Points, steepest: float) -> tuple[Flags, tuple[Numbers, Numbers]]:
    """Where a line fits, and between which slopes: from each end, along tangents of U − L, which lies below them."""
    rows = np.arange(len(above.time))
    there = np.ones(len(rows), np.bool_)
    ends = []
    for sign in (1.0, -1.0):
        slope = np.full(len(rows), -sign * steepest)
        for _ in range(_MOST_STEPS):
            (highest, i), (lowest, j) = _upper(above, slope), _upper(below, -slope)
            gap = highest + lowest
            short = there & (gap < -_ROUNDING)
            if not short.any():
                break
            growth = sign * (below.time[rows, j] - above.time[rows, i])
            there &= ~(short & (growth <= 0))
            short &= there
            slope = np.where(short, slope - sign * gap / np.where(growth > 0, growth, 1.0), slope)
            there &= np.abs(slope) <= steepest
            slope = np.clip(slope, -steepest, steepest)
        else:
            there &= ~short
        ends.append(slope)
    return there, (np.minimum(ends[0], ends[1]), ends[1])


def _bridge(above: Points, time: Numbers) -> Lines:
    """The line below all points of a set that is highest at a time: the edge of their hull that spans it.

    Where the time is after all points its slope is inf, before all −inf, and its value says nothing.
    """
    rows, there = np.arange(len(time)), above.there
    first, last = above.first(), above.last()
    left = np.where(there & (above.time == first[:, None]), above.value, np.inf).argmin(axis=1)
    right = np.where(there & (above.time == last[:, None]), above.value, np.inf).argmin(axis=1)
    inside = (time > first) & (time <= last)
    slope = np.where(time > last, np.inf, -np.inf)
    value = np.zeros(len(rows))
    open_ = inside.copy()
    for _ in range(above.time.shape[1] + 1):
        if not open_.any():
            break
        span = np.where(open_, above.time[rows, right] - above.time[rows, left], 1.0)
        steep = np.where(open_, (above.value[rows, right] - above.value[rows, left]) / span, 0.0)
        start = above.value[rows, left] - steep * above.time[rows, left]
        lowest, index = _upper(above, steep)
        found = open_ & ((lowest >= start - _ROUNDING) | (index == left) | (index == right))
        slope, value = np.where(found, steep, slope), np.where(found, np.minimum(start, lowest), value)
        open_ &= ~found
        early = above.time[rows, index] < time
        left, right = np.where(open_ & early, index, left), np.where(open_ & ~early, index, right)
    return value, slope


# --- The offset and skew between two clocks, from messages whose delay is not known but cannot be negative.
#
# What A sends at t (A's clock) and B receives bounds the offset θ(t) = B − A from above by `received − sent`; what B
# sends bounds it from below. A line θ(t) = offset + skew·t that keeps all bounds of a while lies in the feasible range,
# as wide as the smallest delay there and back (Duda et al., "Estimating global time in distributed systems", ICDCS
# 1987). Delays that grow under load only make single bounds loose, and where all are loose the range is wide and says
# little: an estimate that still lies in it has no reason to move.

MAX_SKEW = 1e-3
"""Two clocks that NTP each slews by no more than the kernel's 500 ppm."""

WANDER = 1e-6
"""How much a skew may change in the second after the newest bound: temperature, and slewing by small steps."""

AGEING = 5e-6
"""How much the skew before a window may differ from the one in it."""

ROOM_NS = 500_000
"""The middle of a narrower feasible range, either way, is a better estimate than any other line in it."""

_Times = npt.NDArray[np.int64]


@dataclass(frozen=True)
class OffsetFit:
    """B = A + offset_ns + skew·(A − at_ns), within error_ns at at_ns."""

    at_ns: int
    offset_ns: int
    skew: float
    error_ns: int
    since_ns: int  # the oldest bound that agrees with the newest ones

    def offset_at(self, time_ns: int) -> int:
        """The offset at another time of A's clock."""
        return self.offset_ns + round(self.skew * (time_ns - self.at_ns))

    def moved(self, time_ns: int) -> "OffsetFit":
        """The same line later, without anything new received: right to as much more as a clock's rate may change by."""
        error = self.error_ns + int(np.ceil(AGEING * max(0, time_ns - self.at_ns)))
        return replace(self, at_ns=time_ns, offset_ns=self.offset_at(time_ns), error_ns=error)


def refutes(exchange: ClockExchange, fit: OffsetFit) -> bool:
    """Whether an exchange says that a line is not the offset."""
    most = exchange.collector_received_ns - exchange.agent_sent_ns
    least = exchange.collector_sent_ns - exchange.agent_received_ns
    return fit.offset_at(exchange.agent_sent_ns) > most or fit.offset_at(exchange.agent_received_ns) < least


@dataclass(frozen=True)
class OffsetFits:
    """OffsetFit of many clocks; all arrays have one entry each."""

    there: Flags  # whether there is one; where not, the rest says nothing
    offset_ns: _Times
    skew: Numbers
    error_ns: _Times
    since_ns: _Times


@dataclass(frozen=True)
class Present:
    """What is known of the clocks' offsets before: each a line, where `there` says so."""

    there: Flags
    offset_ns: _Times  # at the time that is requested
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
    """The offsets of many clocks at at_ns (of all, or of each), by the upper and lower bounds of a window.

    There is none where one side has no bound. It costs a few passes over all bounds.
    above, below: bounds minus base_ns, at times minus at_ns, padded with inf and −inf; share: of each clock.

    The present estimate stays where the bounds allow it and moves to the nearest that they allow where they refute it,
    which cannot take it away from the truth: the feasible range is convex. From there it goes `share` of the way to
    where it has room_ns to the bounds: in a narrow range the middle. Without a present one, a skew of 0 is tried.
    error_ns is how far the furthest line in the range is from the estimate.

    Where no line keeps all bounds, a clock has jumped or changed its rate: older bounds are then left out, half of
    the span at a time, until the rest agree; a present estimate that is STEP_NS off then counts for nothing.
    """
    count = len(base_ns)
    fits = OffsetFits(
        np.zeros(count, np.bool_), base_ns.copy(), np.zeros(count), np.zeros(count, np.int64), np.zeros(count, np.int64)
    )
    known, at_ns = ((present.offset_ns - base_ns).astype(np.float64), present.skew), np.broadcast_to(at_ns, count)
    both = _both(above, below)
    left, jumped, above, below = np.flatnonzero(both), False, above.of(both), below.of(both)
    while len(left):
        feasible = FeasibleOffsets.between(above, below, MAX_SKEW)
        newest, oldest = np.maximum(above.last(), below.last()), np.minimum(above.first(), below.first())
        whose = known[0][left], known[1][left]
        offset, skew = _estimate(feasible, whose, present.there[left], share[left], room_ns, jumped)
        error = feasible.reach(offset) + WANDER * np.maximum(0.0, -newest)
        good = feasible.there
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
    feasible: FeasibleOffsets, present: Lines, known: Flags, share: Numbers, room_ns: float, jumped: bool
) -> Lines:
    offset, skew = feasible.nearest(present)
    stays = known & ~(jumped & (np.abs(offset - present[0]) >= STEP_NS))
    wanted, lean = feasible.nearest((offset, skew), room_ns)
    moved = offset + share * (wanted - offset), skew + share * (lean - skew)
    anew = feasible.nearest((feasible.middle[0], np.zeros(len(offset))), room_ns)
    return np.where(stays, moved[0], anew[0]), np.where(stays, moved[1], anew[1])


# --- Many clocks, each known to some bound, and comparisons of them in pairs: what to add to each.

_EXACT = 1e-12  # of the squared residual that there was at first
_MOST_CORRECTIONS = 500  # whatever is left of it then, the bounds are true to the values

_Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Comparison:
    """Two clocks' errors as the traffic between them tells: (first's − second's) = difference_ns ± error_ns.

    It grows by `skew` ns per ns.
    """

    first: int
    second: int
    difference_ns: int
    skew: float
    error_ns: int


@dataclass(frozen=True)
class Correction:
    """What to add to a clock at at_ns: ns, within error_ns, and `skew` more for each ns that passes."""

    at_ns: int
    ns: int
    skew: float
    error_ns: int

    def ns_at(self, utc_ns: int) -> int:
        """What to add at another time."""
        return self.ns + round(self.skew * (utc_ns - self.at_ns))

    def of(self, fit: OffsetFit) -> OffsetFit:
        """An offset to UTC with the correction added; at_ns is UTC."""
        ns = self.ns_at(fit.at_ns + fit.offset_ns)
        return replace(fit, offset_ns=fit.offset_ns + ns, skew=fit.skew + self.skew, error_ns=self.error_ns)


def combine(errors_ns: Sequence[int], comparisons: Sequence[Comparison], at_ns: int) -> list[Correction]:
    """Corrections of clocks known to ± errors_ns each, by comparisons of them in pairs at at_ns.

    The correction is the least squares of all that is known, each weighted by its bound. The error is a bound too:
    the tightest that all bounds together allow (difference constraints, by shortest paths), from the correction.
    Comparisons that contradict the errors are left out, and so are all of those clocks whose comparisons, directly or
    over others, contradict each other. The cost grows with the comparisons, not with pairs of clocks.
    """
    errors = np.array(errors_ns, np.float64)
    pairs = _Pairs.of([c for c in comparisons if c.first != c.second])
    pairs = pairs.only(np.abs(pairs.difference) <= pairs.error + errors[pairs.first] + errors[pairs.second])
    lowest, highest, sound = _reach(errors, pairs)
    pairs = pairs.only(sound[pairs.first])  # and so of the second
    values = _least_squares(errors, pairs)
    bounds = np.where(sound, np.maximum(highest - values[0], values[0] - lowest), errors)
    columns = zip(*values.tolist(), bounds.tolist(), strict=True)
    return [Correction(at_ns, round(value), skew, int(np.ceil(error))) for value, skew, error in columns]


@dataclass(frozen=True)
class _Pairs:
    """Comparisons by column."""

    first: npt.NDArray[np.int64]
    second: npt.NDArray[np.int64]
    difference: _Numbers
    skew: _Numbers
    error: _Numbers

    @classmethod
    def of(cls, comparisons: Sequence[Comparison]) -> "_Pairs":
        ends = np.array([(c.first, c.second) for c in comparisons], np.int64).reshape(-1, 2)
        rest = np.array([(c.difference_ns, c.skew, c.error_ns) for c in comparisons], np.float64).reshape(-1, 3)
        return cls(ends[:, 0], ends[:, 1], rest[:, 0], rest[:, 1], rest[:, 2])

    def only(self, which: npt.NDArray[np.bool_]) -> "_Pairs":
        return _Pairs(*(column[which] for column in vars(self).values()))


def _reach(errors: _Numbers, pairs: _Pairs) -> tuple[_Numbers, _Numbers, npt.NDArray[np.bool_]]:
    """The least and the greatest correction that all bounds together allow each clock, and where they allow one.

    Bounds are passed on from clock to clock until none gets tighter (Bellman and Ford's shortest paths, from the clock
    that all were set by and back to it). Where that leaves no value between the two, or has no end, there is none.
    """
    low, high, sound = -errors, errors.copy(), np.ones(len(errors), np.bool_)
    for step in range(len(errors) + 2):
        greatest, least = high.copy(), low.copy()
        np.minimum.at(greatest, pairs.first, high[pairs.second] + pairs.difference + pairs.error)
        np.minimum.at(greatest, pairs.second, high[pairs.first] - pairs.difference + pairs.error)
        np.maximum.at(least, pairs.first, low[pairs.second] + pairs.difference - pairs.error)
        np.maximum.at(least, pairs.second, low[pairs.first] - pairs.difference - pairs.error)
        tighter = (greatest < high) | (least > low)
        low, high = least, greatest
        impossible = (low > high) | (tighter if step > len(errors) else False)
        if impossible.any():
            impossible = _spread(impossible, pairs)
            sound &= ~impossible
            low[impossible], high[impossible] = -errors[impossible], errors[impossible]
            pairs = pairs.only(~impossible[pairs.first])
        if not tighter[sound].any():
            break
    return low, high, sound


def _spread(flags: npt.NDArray[np.bool_], pairs: _Pairs) -> npt.NDArray[np.bool_]:
    """To all clocks that are connected with those."""
    while True:
        either = flags[pairs.first] | flags[pairs.second]
        if (flags[pairs.first] & flags[pairs.second])[either].all():
            return flags
        flags = flags.copy()
        flags[pairs.first[either]] = flags[pairs.second[either]] = True


def _least_squares(errors: _Numbers, pairs: _Pairs) -> _Numbers:
    """Differences and skews, (2, clocks), near 0 by the errors, whose differences are near the pairs', by theirs.

    By conjugate gradients, scaled by the diagonal (Hestenes and Stiefel 1952): the matrix is as sparse as the pairs.
    """
    count, own = len(errors), 1 / np.maximum(1.0, errors) ** 2
    weight = 1 / np.maximum(1.0, pairs.error) ** 2
    ends = np.concatenate([pairs.first, pairs.second])

    def summed(of_pairs: _Numbers) -> _Numbers:
        both = np.concatenate([of_pairs, -of_pairs], axis=1)
        return np.stack([np.bincount(ends, row, count) for row in both])

    def times(values: _Numbers) -> _Numbers:
        return own * values + summed(weight * (values.take(pairs.first, axis=1) - values.take(pairs.second, axis=1)))

    diagonal = own + np.bincount(ends, np.tile(weight, 2), count)
    values = np.zeros((2, count))
    rest = summed(weight * np.stack([pairs.difference, pairs.skew]))
    ahead = scaled = rest / diagonal
    size = begun = (rest * scaled).sum(axis=1)
    for _ in range(min(2 * count, _MOST_CORRECTIONS)):
        going = size > _EXACT * begun
        if not going.any():
            break
        image = times(ahead)
        step = np.where(going, size / np.where(going, (ahead * image).sum(axis=1), 1.0), 0.0)[:, None]
        values, rest = values + step * ahead, rest - step * image
        scaled = rest / diagonal
        size, before = (rest * scaled).sum(axis=1), size
        ahead = scaled + np.where(going, size / np.where(going, before, 1.0), 0.0)[:, None] * ahead
    return values


# --- The two ends of one flow as a common signal: when it begins to send after a rest.
#
# A rest makes a packet recognisable without looking into it: what a host sends first after one is what the other host
# receives first after one. It also meets empty queues, so its delay is the path's least. Correlating these moments is
# the cross-correlation of the two bucket series reduced to their edges, and costs nothing by comparison.

REST_NS = 20_000_000
"""Longer than the queues on a path: what was sent before the rest has been received before what follows."""

MOST_DELAY_NS = 8_000_000
"""A packet that took longer says nothing about clocks."""

ONSET = np.dtype([("key", "<i8"), ("host", "<i4"), ("time_ns", "<i8")])
"""A flow's first bucket after a rest. key: a number for the 5-tuple, the same at both ends."""

_BIN_NS = 1_000_000
_CLEAR = 1.3  # times as many coincidences as at any other lag

_Indices = npt.NDArray[np.int64]


def match_onsets(sent: Table, received: Table, early_ns: int | _Indices) -> tuple[_Indices, _Indices]:
    """Pairs of what is the same packet: indices in `sent` and in `received`, both with the columns of ONSET.

    Times of both are on one axis but for early_ns either way, one for all or one for each of `sent`; twice that and
    MOST_DELAY_NS have to be below REST_NS.
    """
    count = len(sent)
    early = np.broadcast_to(np.asarray(early_ns, np.int64), (count,))
    key = np.concatenate([sent["key"], received["key"]])
    time = np.concatenate([sent["time_ns"] - early, received["time_ns"]])
    is_received = np.arange(len(key)) >= count
    order = _by_key(key, 2 * time + is_received)  # of what is at the same time, the sent first
    following = np.where(is_received[order], np.arange(len(key)), len(key))
    following = np.minimum.accumulate(following[::-1])[::-1]
    followed = np.flatnonzero(~is_received[order] & (following < len(key)))
    i, j = order[followed], order[following[followed]]
    near = (key[i] == key[j]) & (time[j] - time[i] <= 2 * early[i] + MOST_DELAY_NS)
    return i[near], j[near] - count


def _by_key(key: _Indices, time: _Indices) -> _Indices:
    """The order by key, then time. Keys and times are mostly of a few seconds: then one sort does it."""
    base, bits = int(time.min()), (int(time.max()) - int(time.min())).bit_length()
    if int(key.min()) >= 0 and int(key.max()).bit_length() + bits < 63:
        return np.argsort((key << bits) + (time - base), kind="stable")
    return np.lexsort((time, key))


def coarse_lag(sent: Table, received: Table, most_ns: int) -> int | None:
    """How much later the received onsets are, to a millisecond, within ± most_ns; None where no lag stands out.

    The lag with the most coincidences of onsets of one flow: the peak of the cross-correlation of their trains.
    """
    lags = np.concatenate([np.empty(0, np.int64), *_differences(sent, received, most_ns)])
    if not len(lags):
        return None
    counts = np.bincount((lags + most_ns) // _BIN_NS)
    both = counts + np.append(counts[1:], 0)  # a lag may lie on the edge between two bins
    peak = int(both.argmax())
    rest = np.delete(both, np.arange(max(0, peak - 2), min(len(both), peak + 3)))
    if both[peak] < _CLEAR * rest.max(initial=1):
        return None
    near = np.abs(lags + most_ns - (peak + 1) * _BIN_NS) <= _BIN_NS
    return int(np.median(lags[near]))


def _differences(sent: Table, received: Table, most_ns: int) -> list[_Indices]:
    """Received − sent of all pairs of onsets of one flow."""
    found = []
    for key in np.intersect1d(sent["key"], received["key"]):
        here, there = sent["time_ns"][sent["key"] == key], received["time_ns"][received["key"] == key]
        lags = np.subtract.outer(there, here).ravel()
        found.append(lags[np.abs(lags) <= most_ns])
    return found
