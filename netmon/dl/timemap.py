# SPDX-License-Identifier: Apache-2.0
"""One clock on another's axis: a continuous line of pieces, so that what is in order on one is so on the other."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

_Times = npt.NDArray[np.int64]

MAX_SLEW = 1e-3
"""How fast a map may approach a better one, in ns per ns: two adjacent buckets of 1 ms then overlap by 1 µs at most."""

STEP_NS = 5_000_000
"""A map that is further off has not drifted: the clock has jumped, and the map follows at once."""

_LEAST_SLEW_NS = 500_000_000
_MOST_KNOTS = 4096
_STORED_KNOTS = 64


@dataclass(frozen=True)
class TimeMap:
    """mono → UTC. Between knots the offset is a line, before the first it is constant, after the last it has a slope.

    Two knots at one time are a step, the second one holds from there on.
    """

    knots_ns: _Times  # mono, ascending
    offsets_ns: _Times  # UTC − mono there
    slope: float = 0.0  # ns per ns

    @classmethod
    def constant(cls, offset_ns: int, at_ns: int = 0) -> "TimeMap":
        return cls(np.array([at_ns], np.int64), np.array([offset_ns], np.int64))

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> "TimeMap":
        """The reverse of document. Raises KeyError, TypeError, ValueError."""
        knots = np.array(document["knots"], np.int64).reshape(-1, 2)
        if not len(knots):
            raise ValueError("a clock without knots")
        return cls(knots[:, 0], knots[:, 1], float(document["slope"]))

    @cached_property
    def text(self) -> str:
        """The document as JSON."""
        return json.dumps(self.document(), separators=(",", ":"))

    def document(self) -> dict[str, Any]:
        """Its last 64 pieces, for JSON."""
        knots = np.column_stack([self.knots_ns, self.offsets_ns])[-_STORED_KNOTS:]
        return {"knots": knots.tolist(), "slope": self.slope}

    @cached_property
    def _last(self) -> tuple[int, int]:
        return int(self.knots_ns[-1]), int(self.offsets_ns[-1])

    def offset(self, mono_ns: int) -> int:
        """UTC − mono at a mono time."""
        knot_ns, offset_ns = self._last
        since = mono_ns - knot_ns
        if since >= 0:
            return offset_ns + round(since * self.slope)
        return int(self.offsets(np.array([mono_ns], np.int64))[0])

    def offsets(self, mono_ns: _Times) -> _Times:
        """UTC − mono at mono times, an array of the same shape."""
        if len(self.knots_ns) == 1 and not self.slope:
            return np.full(mono_ns.shape, self.offsets_ns[0])
        # Differences to the last knot are exact in a float; nanoseconds since 1970 are not.
        base, last = self.offsets_ns[-1], self.knots_ns[-1]
        index = np.searchsorted(self.knots_ns, mono_ns, side="right")
        before, after = np.maximum(index - 1, 0), np.minimum(index, len(self.knots_ns) - 1)
        span = np.maximum(self.knots_ns[after] - self.knots_ns[before], 1)
        rise = self.offsets_ns[after] - self.offsets_ns[before]
        inside = np.round((mono_ns - self.knots_ns[before]) * (rise / span)).astype(np.int64)
        beyond = np.round(np.maximum(mono_ns - last, 0) * self.slope).astype(np.int64)
        offsets: _Times = np.where(mono_ns >= last, base + beyond, self.offsets_ns[before] + inside)
        return offsets

    def utc(self, mono_ns: int) -> int:
        """A mono time in UTC."""
        return mono_ns + self.offset(mono_ns)

    def utcs(self, mono_ns: _Times) -> _Times:
        """Mono times in UTC."""
        return mono_ns + self.offsets(mono_ns)

    def mono(self, utc_ns: int) -> int:
        """The reverse of utc, to a nanosecond; of a time that a step back made occur twice, the later."""
        guess = utc_ns - int(self.offsets_ns[-1])
        for _ in range(4):  # converges by the slope, at most 1e-3, each time; by a step in one
            guess = utc_ns - self.offset(guess)
        return guess

    def steered(self, since_ns: int, offset_ns: int, slope: float) -> "TimeMap":
        """The map that keeps all times before since_ns and approaches a line; offset_ns: of the line at since_ns.

        It slews, at MAX_SLEW or more gently, or steps where STEP_NS or more separate it from the line.
        """
        kept = self.knots_ns < since_ns
        knots, offsets = self.knots_ns[kept][-_MOST_KNOTS:].tolist(), self.offsets_ns[kept][-_MOST_KNOTS:].tolist()
        here = self.offset(since_ns)
        gap = offset_ns - here
        if abs(gap) >= STEP_NS:
            more = [(since_ns, here), (since_ns, offset_ns)]
        else:
            slew = max(_LEAST_SLEW_NS, round(abs(gap) / MAX_SLEW))
            more = [(since_ns, here), (since_ns + slew, offset_ns + round(slope * slew))]
        knots, offsets = knots + [knot for knot, _ in more], offsets + [offset for _, offset in more]
        return TimeMap(np.array(knots, np.int64), np.array(offsets, np.int64), slope)


_RECENT_KNOTS = 8  # of a map; earlier times are looked up in the map itself


class TimeMaps:
    """Many clocks' maps, applied to many times at once."""

    def __init__(self, maps: Sequence[TimeMap]) -> None:
        """maps: known by their indices."""
        self._maps = maps
        knots = [one.knots_ns[-_RECENT_KNOTS:] for one in maps]
        self._end = np.cumsum([len(own) for own in knots])  # of each map's knots
        self._first = self._end - [len(own) for own in knots]
        self._whole = np.array([len(one.knots_ns) <= _RECENT_KNOTS for one in maps], np.bool_)
        self._knots = np.concatenate(knots)
        self._offsets = np.concatenate([one.offsets_ns[-_RECENT_KNOTS:] for one in maps])
        self._slope = np.array([one.slope for one in maps], np.float64)

    def utcs(self, of: npt.NDArray[np.integer], mono_ns: _Times) -> _Times:
        """Mono times in UTC, each by the map at a place; arrays of one shape."""
        last = self._end - 1
        since = mono_ns - self._knots[last][of]
        offsets = self._offsets[last][of] + np.round(np.maximum(since, 0) * self._slope[of]).astype(np.int64)
        earlier = np.flatnonzero(since < 0)
        if len(earlier):
            offsets[earlier] = self._between_knots(of[earlier], mono_ns[earlier])
        found: _Times = mono_ns + offsets
        return found

    def _between_knots(self, of: npt.NDArray[np.integer], mono_ns: _Times) -> _Times:
        """The offsets at times before the last knots."""
        first = self._first[of]
        after = first.copy()
        for step in range(_RECENT_KNOTS):  # the first knot that is later
            at = first + step
            after += (at < self._end[of]) & (self._knots[np.minimum(at, len(self._knots) - 1)] <= mono_ns)
        before = np.maximum(after - 1, first)
        span = np.maximum(self._knots[after] - self._knots[before], 1)
        rise = self._offsets[after] - self._offsets[before]
        offsets: _Times = self._offsets[before] + np.round((mono_ns - self._knots[before]) * (rise / span)).astype(
            np.int64
        )
        older = np.flatnonzero((after == first) & ~self._whole[of])
        for index in np.unique(of[older]).tolist():
            own = older[of[older] == index]
            offsets[own] = self._maps[index].offsets(mono_ns[own])
        return offsets
