# SPDX-License-Identifier: Apache-2.0
"""A flow as the bursts it consists of, which is all of it that the inference keeps; and whether it repeats itself.

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
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from netmon.dl.grouped import joined, sums_by_two
from netmon.records import Table

Edge = tuple[str, str]
"""From one address to another."""

BURST = np.dtype([("start_ns", "<i8"), ("end_ns", "<i8"), ("level", "<i8"), ("volume", "<i8")])
"""Traffic without a pause, [start, end). level: the flow's bytes before it, volume: its own."""

_END, _VOLUME, _COLUMNS = 1, 3, 4  # of BURST
_FIRST = 8  # bursts that there is room for at first
_TAIL = 64  # of the last bursts, that are kept as they are
_BLOCK = 64  # of those before, that are packed together
_PACKED = np.dtype([("start", "<u4"), ("length_ns", "<u4"), ("volume", "<u4")])
_PACK = np.dtype([("base_ns", "<i8"), ("rows", _PACKED, (_BLOCK,))])
"""A block. start: in units of the resolution since base_ns."""
_FITS = 1 << 32

_Column = npt.NDArray[np.int64]

SEGMENT_BYTES = 1448
"""Payload of a full segment. Gradients fill segments; negotiation and heartbeats are a few dozen bytes per ms."""
_PAUSE_BUCKETS = 2  # fewer empty buckets than this are no pause
_MOST = 2048  # bursts kept per flow
_LONGEST_PAUSES = 16  # of them: half as long as these are (median) one between iterations may be
_YOUNG_NS, _FEW = 30_000_000_000, 64  # of a flow that is spared and older, bursts that are kept beside the newest
_SPAN_NS, _WITHIN_NS = 60_000_000_000, 25_000_000  # where they cover so much time: any that is so long


class Bursts:
    """The last bursts of one flow, oldest first.

    Memory is bounded: with more than 2,048 bursts, the flow's shortest pauses are forgotten, but none that may be one
    between iterations; then its oldest bursts. Of a flow that is spared and no longer young the last hundred remain.
    All but the last ones are packed, in 12 bytes each.
    """

    __slots__ = (
        *("count", "first_ns", "forgetful", "last_ns", "pause_ns", "spared", "total"),
        *("_kept", "_packed", "_resolution_ns", "_table", "_unpackable"),
    )

    def __init__(self, resolution_ns: int) -> None:
        self.pause_ns = _PAUSE_BUCKETS * resolution_ns
        self._resolution_ns = resolution_ns
        self._packed: list[bytes] = []  # of _PACK, one or more each, oldest first
        self._unpackable = False  # a burst is too long, or too large
        self._table = np.zeros((_FIRST, _COLUMNS), np.int64)  # the others: the columns of BURST; with room for more
        self._kept = 0  # of those
        self.count = 0  # of all bursts that are kept
        self.total = 0  # bytes of all bursts, also of the forgotten ones
        self.first_ns = self.last_ns = 0  # when the first burst began and the last one ended
        self.forgetful = False  # the first burst that is kept was not the first
        self.spared = False  # what it is is known: it is looked at less often, and less of it is kept

    def __len__(self) -> int:
        return self.count

    @property
    def rows(self) -> Table:
        """dtype BURST, shape (bursts,); not to be written, nor kept."""
        tail = self._tail()
        if not self._packed:
            return tail
        blocks = np.frombuffer(b"".join(self._packed), _PACK)
        packed = blocks["rows"].ravel()
        rows: Table = np.empty(self.count, BURST)
        rows[len(packed) :] = tail
        begin = rows["start_ns"][: len(packed)]
        np.multiply(packed["start"], self._resolution_ns, out=begin, dtype=np.int64)
        begin += np.repeat(blocks["base_ns"], _BLOCK)
        rows["end_ns"][: len(packed)] = begin + packed["length_ns"]
        rows["volume"][: len(packed)] = packed["volume"]
        through = np.cumsum(packed["volume"], dtype=np.int64)
        through -= packed["volume"]
        rows["level"][: len(packed)] = through + (int(tail["level"][0]) - int(packed["volume"].sum(dtype=np.int64)))
        return rows

    def rows_around(self, level: float) -> Table:
        """As rows, from a burst on whose level is lower, or from the first one."""
        tail = self._tail()
        return tail if not self._packed or tail["level"][0] < level else self.rows

    @property
    def ended_ns(self) -> int:
        """When the traffic of the last burst was over."""
        return int(self._table[self._kept - 1, _END])

    def since(self, time_ns: int) -> int:
        """Bytes of the bursts that began at time_ns or later."""
        rows = self._tail()
        if self._packed and rows["start_ns"][0] >= time_ns:
            rows = self.rows
        index = int(rows["start_ns"].searchsorted(time_ns))
        return self.total - int(rows["level"][index]) if index < len(rows) else 0

    def add(self, time_ns: _Column, volume: _Column, resolution_ns: int) -> None:
        """Add buckets, each with gradient traffic, ascending in time, none earlier than those added before."""
        add_buckets([self], np.zeros(1, np.int64), time_ns, volume, resolution_ns)

    def extend(self, end_ns: int, volume: int) -> None:
        """The last burst does."""
        last = self._table[self._kept - 1]
        last[_END] = max(end_ns, last[_END])
        last[_VOLUME] += volume
        self.total += volume

    def append(self, new: npt.NDArray[np.int64], total: int) -> None:
        """New bursts, the columns of BURST, with their levels; total: the flow's bytes with them."""
        old = self.spared and self.last_ns - self.first_ns > _YOUNG_NS
        if old and self._kept > 2 * _FEW:
            self._keep_few()
        kept = self._kept + len(new)
        if kept > len(self._table):
            room = np.zeros((max(kept, 2 * len(self._table)), _COLUMNS), np.int64)
            room[: self._kept] = self._table[: self._kept]
            self._table = room
        self._table[self._kept : kept] = new
        self._kept, self.total = kept, total
        self.count += len(new)
        if self.count > _MOST:
            self._forget()
        elif not old and kept >= _TAIL + _BLOCK:
            self._pack()

    def _tail(self) -> Table:
        rows: Table = self._table[: self._kept].view(BURST)[:, 0]
        return rows

    def _pack(self) -> None:
        """All but the last ones, as far as they fit."""
        blocks = (self._kept - _TAIL) // _BLOCK
        if self._unpackable or blocks < 1:
            return
        rows = self._table[: blocks * _BLOCK].view(BURST).reshape(blocks, _BLOCK)
        packs = np.empty(blocks, _PACK)
        packs["base_ns"] = rows["start_ns"][:, 0]
        since_ns = rows["start_ns"] - rows["start_ns"][:, :1]
        columns = np.stack([since_ns // self._resolution_ns, rows["end_ns"] - rows["start_ns"], rows["volume"]])
        fits = (columns.view(np.uint64) < _FITS).all() and (columns[0] * self._resolution_ns == since_ns).all()
        if not fits:
            self._unpackable = True
            return
        for name, column in zip(_PACKED.names or (), columns, strict=True):
            packs["rows"][name] = column
        self._packed.append(packs.tobytes())
        self._table = self._table[blocks * _BLOCK : self._kept].copy()
        self._kept = len(self._table)

    def _keep_few(self) -> None:
        """The last ones, as they are: less is to be done for them."""
        self._packed = []
        self._table = self._table[self._kept - _FEW : self._kept].copy()
        self.count = self._kept = _FEW
        self.forgetful = True

    def _forget(self) -> None:
        rows = self.rows
        pauses = pauses_before(rows)
        self.pause_ns = max(self.pause_ns, int(min(np.median(pauses), self._forgettable_ns(rows, pauses))))
        first = np.flatnonzero(pauses >= self.pause_ns)
        merged: Table = rows.take(first)
        merged["end_ns"] = rows["end_ns"][np.append(first[1:] - 1, len(pauses) - 1)]
        merged["volume"] = np.add.reduceat(rows["volume"], first)
        kept = merged[-_MOST // 2 :]
        self._packed = []
        self._table = np.ascontiguousarray(kept).view(np.int64).reshape(-1, _COLUMNS)
        self.count = self._kept = len(kept)
        self._unpackable = False
        self.forgetful |= len(merged) > len(kept)
        self._pack()

    @staticmethod
    def _forgettable_ns(rows: Table, pauses: npt.NDArray[np.int64]) -> float:
        """Pauses of at least so long are kept: without half of those between iterations nobody could follow these."""
        longest = SHORT * float(np.median(np.sort(pauses[1:])[-_LONGEST_PAUSES:]))
        return longest if rows["end_ns"][-1] - rows["start_ns"][0] < _SPAN_NS else min(longest, _WITHIN_NS)


def add_buckets(
    flows: Sequence[Bursts], first: npt.NDArray[np.int64], time_ns: _Column, volume: _Column, resolution_ns: int
) -> None:
    """Add buckets of many flows, those of the k-th from index first[k] on; each as Bursts.add."""
    count = np.diff(np.append(first, len(time_ns)))
    last, pause, total, kept = (
        np.fromiter(column, np.int64, len(flows))
        for column in zip(*[(b.last_ns, b.pause_ns, b.total, b.count) for b in flows], strict=True)
    )
    last = np.where(kept > 0, last, time_ns[first] - pause)
    ends = time_ns + resolution_ns
    before = np.concatenate((ends[:1], ends[:-1]))
    before[first] = last
    begins = time_ns - before >= np.repeat(pause, count)
    last = np.maximum(last, ends[first + count - 1])
    ends = _over(ends, volume, begins, first, resolution_ns)
    parts = begins.copy()
    parts[first] = True
    starts = np.flatnonzero(parts)
    new = np.empty(len(starts), BURST)
    new["start_ns"], new["end_ns"] = time_ns[starts], ends[np.append(starts[1:] - 1, len(ends) - 1)]
    new["volume"] = np.add.reduceat(volume, starts)
    where = np.searchsorted(starts, first)
    through = np.cumsum(new["volume"])
    # Of bytes, all that came before in the flow: of all flows together, less what there was before its first burst.
    offset = total - (through[where] - new["volume"][where])
    new["level"] = through - new["volume"] + np.repeat(offset, np.diff(np.append(where, len(starts))))
    goes_on = ~begins[first]
    plain = new.view(np.int64).reshape(-1, _COLUMNS)
    until = np.append(where[1:], len(starts))
    totals = new["level"][until - 1] + new["volume"][until - 1]
    columns = (where, until, goes_on, last, new["start_ns"][where], new["end_ns"][where], new["volume"][where], totals)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for bursts, (begin, end, more, last_ns, start_ns, end_ns, added, now) in zip(flows, rows, strict=True):
        if not bursts.count:
            bursts.first_ns = start_ns
        bursts.last_ns = last_ns
        if more:
            bursts.extend(end_ns, added)
            begin += 1
        if begin < end:
            bursts.append(plain[begin:end], now)


def _over(
    ends: _Column, volume: _Column, begins: npt.NDArray[np.bool_], first: npt.NDArray[np.int64], resolution_ns: int
) -> _Column:
    """When the traffic of each bucket was over: as soon as at the rate of the bucket before, unless a burst begins."""
    before = np.concatenate((volume[:1], volume[:-1]))
    before[first] = volume[first]
    filled = np.where(begins, 1.0, np.minimum(1.0, volume / before))
    return ends - np.round((1 - filled) * resolution_ns).astype(np.int64)


def pauses_before(rows: Table) -> npt.NDArray[np.int64]:
    """ns of quiet before each burst; the one before the first is not known and counts as very long."""
    before = np.empty(len(rows), np.int64)
    before[:1] = np.iinfo(np.int64).max // 4
    before[1:] = rows["start_ns"][1:] - rows["end_ns"][:-1]
    return before


def together(flows: Iterable[Table], resolution_ns: int) -> Table:
    """Many flows as one: bursts are parted where all of them pause. Shape (bursts,), levels from 0 on."""
    rows = joined([np.empty(0, BURST), *flows])
    rows = rows.take(np.argsort(rows["start_ns"], kind="stable"))
    if not len(rows):
        return rows
    ends = np.maximum.accumulate(rows["end_ns"])
    parted = rows["start_ns"][1:] - ends[:-1] >= _PAUSE_BUCKETS * resolution_ns
    first = np.flatnonzero(np.concatenate(([True], parted)))
    merged: Table = rows.take(first)
    merged["end_ns"] = ends[np.append(first[1:] - 1, len(rows) - 1)]
    merged["volume"] = np.add.reduceat(rows["volume"], first)
    merged["level"] = np.cumsum(merged["volume"]) - merged["volume"]
    return merged


def summed(rows: Table, resolution_ns: int) -> tuple[npt.NDArray[np.int64], ...]:
    """Flow, time and bytes per bucket of resolution_ns, ordered by flow, then time. rows: dtype TRAFFIC."""
    flow, index, volume = sums_by_two(rows["flow"], rows["time_ns"] // resolution_ns, rows["payload_bytes"])
    return flow, index * resolution_ns, volume


def are_gradients(volume: npt.NDArray[np.int64], resolution_ns: int) -> npt.NDArray[np.bool_]:
    """Which buckets hold at least a full segment per ms."""
    full: npt.NDArray[np.bool_] = volume >= SEGMENT_BYTES * max(1.0, resolution_ns / 1e6)
    return full


VOLUME_TOLERANCE = 0.01
"""ε, of V. Retransmitted segments are counted twice by the sender, and lost ones never come to the receiver."""
INTERVALS = 3
"""Equal volumes in a row that make a repetition."""
_TIGHT = 0.004  # of the volume
_STRAY = 0.001  # of V: less is no gradients
_CHANCE = 0.05  # likelier chains are no evidence
_POINTS = 64  # pauses looked at
_LAST, _SPAN = 3, 16  # V is the volume between one of the last 3 of them and one of the 16 before it
_TYPICAL = 0.25  # quantile of a chain's pauses
SHORT = 0.5
"""Of the typical pause before an iteration, or of another chain's: what is less is no such pause."""
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


def one_differs(periods: npt.NDArray[np.int64], parts: int) -> bool:
    """Whether, of so many that follow each other, one always takes longer than all the others do, or always less."""
    rounds = len(periods) // parts
    if parts < 2 or rounds < _ROUNDS:
        return False
    table = periods[len(periods) - rounds * parts :].reshape(rounds, parts)
    least, most = table.min(axis=0), table.max(axis=0)
    return bool(least.max() > np.sort(most)[-2] or most.min() < np.sort(least)[1])


def _likeness(
    level: npt.NDArray[np.float64], pauses: npt.NDArray[np.float64], volumes: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Of each volume."""
    bursts = volumes * (len(level) / (level[-1] - level[0]))
    slack = np.minimum(_TIGHT * volumes, _JITTER * SEGMENT_BYTES * np.sqrt(bursts + 1))[:, None]
    slack = np.maximum(slack, SEGMENT_BYTES)
    wanted = level + volumes[:, None]
    after = np.minimum(np.maximum(level.searchsorted(wanted), 1), len(level) - 1)
    near = after - (wanted - level[after - 1] < level[after] - wanted)
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
    typical = _quantiles(np.where(path[kept] >= 0, pauses[points[path[kept]]], np.inf), intervals[kept], _TYPICAL)
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
