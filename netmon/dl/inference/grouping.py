# SPDX-License-Identifier: Apache-2.0
"""Which flows that repeat themselves make a job together, which are of different ones, and a job's pattern."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from netmon.dl.inference.beginnings import Start, starts
from netmon.dl.inference.bursts import SEGMENT_BYTES, SHORT, Bursts, Edge, levels_at, pauses_before, together
from netmon.dl.inference.repetition import (
    INTERVALS,
    VOLUME_TOLERANCE,
    Candidate,
    Repetition,
    recurring_volume,
    recurs,
    repetition,
    steps_of_blocks,
)
from netmon.dl.inference.topology import blocks, connected_pairs, numerically, pattern_of, strongly_connected
from netmon.dl.inference.types import TrafficGroup
from netmon.records import Table


def addresses(flows: Sequence[Candidate]) -> set[str]:
    return {address for c in flows for address in c.edge}


def connected(candidates: Sequence[Candidate]) -> Iterator[list[Candidate]]:
    """Those between hosts that can reach each other along them, together."""
    groups = strongly_connected({c.edge for c in candidates})
    group_of = {address: number for number, group in enumerate(groups) for address in group}
    flows: list[list[Candidate]] = [[] for _ in groups]
    for c in candidates:
        number = group_of.get(c.edge[0])
        if number is not None and number == group_of.get(c.edge[1]):
            flows[number].append(c)
    yield from flows


def common(flows: Sequence[Candidate], now_ns: int, resolution_ns: int) -> Repetition | None:
    """How they repeat themselves, all together, as far back as all of them are known."""
    known = [c.bursts.rows for c in flows]
    begins = (int(rows["start_ns"][0]) for rows, c in zip(known, flows, strict=True) if c.bursts.forgetful)
    since = max(begins, default=0)
    return repetition(together([rows[rows["start_ns"].searchsorted(since) :] for rows in known], resolution_ns), now_ns)


# --- Flows between hosts that can reach each other, parted into those of different jobs.

# --- Do two groups of flows that meet at one host belong to one job?
#
# Ranks that train together wait for each other, in every iteration. Two jobs on one host do not, but when their
# periods are near it takes some iterations to see that. There are three ways to see it:
#
# - What is reduced passes the host that they share. The sums that it sends into one group hold the gradients of the
#   other, so each of them leaves after those have come: what goes out to one side lags behind what comes in from the
#   other, either way. A star, a tree and a hierarchy show this at once; of two rings, at most one way is so. Two stars
#   around one host look like one as long as they happen to be in step, so they are looked at again later.
# - The number of their iterations. In the same time, the parts of one job begin as many.
# - The distance between the beginnings of these. In one job it is the same each time but for chance, since all begin
#   anew when the last has come. Between jobs every deviation stays, and adds up to a random walk, or to a drift where
#   the periods differ. Von Neumann's ratio tells one from the other: the mean square of the differences between
#   neighbours to the variance is 2 for independent values and goes to 0 for a walk (J. von Neumann, "Distribution of
#   the ratio of the mean square successive difference to the variance", 1941).

_LAG = 0.03  # of the time that an iteration's traffic takes: a clear lag
_LAG_BUCKETS = 2
_WALK, _CHANCE = 0.3, 1.2  # von Neumann's ratio: at most of a walk, at least of chance
_FEW, _MANY = 8, 40  # iterations to see a walk in, and to see that there is none
_LONG_WALK = 0.6  # the ratio of a walk of many iterations
_FEW_IN_ALL = 5  # of flows that have ended
_AHEAD = 2  # iterations that no part of a job is ahead of another
_SPREAD_BUCKETS, _SPREAD = 3, 0.5  # a walk gets farther than the buckets; chance not as far as half a period
_OVER_NS, _OVER_PERIODS = 2_000_000_000, 10  # silence after which nothing more is waited for


class Relation(Enum):
    """Of two groups of flows."""

    ONE_JOB = 1
    DIFFERENT = 2
    OPEN = 3


@dataclass(frozen=True)
class Side:
    """A group of flows as the other group sees it."""

    sends: Sequence[Bursts]  # to the shared host
    receives: Sequence[Bursts]  # from it
    repetition: Repetition | None  # of all its flows together


def relation(one: Side, other: Side, common: Iterable[Repetition | None], now_ns: int, resolution_ns: int) -> Relation:
    """What the two are to each other; common: how all their flows together repeat themselves, as it may be."""
    if any(_lags(one, other, each, now_ns, resolution_ns) for each in common if each):
        return Relation.ONE_JOB
    if one.repetition is None or other.repetition is None:
        return Relation.OPEN
    return _by_distance(one.repetition, other.repetition, now_ns, resolution_ns)


def _lags(one: Side, other: Side, common: Repetition, now_ns: int, resolution_ns: int) -> bool:
    """Whether, in each iteration, what goes out to one side lags behind what comes in from the other."""
    edges = np.append(common.onsets_ns, now_ns)
    middles = [_middles(flows, edges) for flows in (one.receives, other.sends, other.receives, one.sends)]
    whole = _whole_windows(one, other, common, edges)
    if whole.sum() < INTERVALS or any(m is None for m in middles):
        return False
    out, came, back, went = (m[whole] for m in middles if m is not None)
    margin = np.maximum(_LAG_BUCKETS * resolution_ns, _LAG * (common.period_ns - common.pause_ns))
    return bool((out - came > margin).all() and (back - went > margin).all())


def _whole_windows(one: Side, other: Side, common: Repetition, edges: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    flows = [*one.sends, *one.receives, *other.sends, *other.receives]
    volumes = np.diff(np.sum([levels_at(b.rows, edges) for b in flows], axis=0))
    baseline = float(np.median(volumes[:-1]))
    whole: npt.NDArray[np.bool_] = np.abs(volumes - baseline) <= 2 * VOLUME_TOLERANCE * baseline
    whole[:-1] = True
    return whole


def _middles(flows: Sequence[Bursts], edges: npt.NDArray[np.int64]) -> npt.NDArray[np.float64] | None:
    """When half of a window's bytes had passed, mean of the flows; None where one is silent in a window."""
    found = []
    for b in flows:
        rows = b.rows
        level = levels_at(rows, edges)
        if not (np.diff(level)[:-1] > 0).all():
            return None
        passed = np.stack([rows["level"], rows["level"] + rows["volume"]], axis=1).ravel()
        times = np.stack([rows["start_ns"], rows["end_ns"]], axis=1).ravel()
        found.append(np.interp((level[:-1] + level[1:]) / 2, passed, times - edges[0]))
    return np.mean(found, axis=0) if found else None


def _by_distance(one: Repetition, other: Repetition, now_ns: int, resolution_ns: int) -> Relation:
    enough = min(len(one.onsets_ns), len(other.onsets_ns)) >= _FEW
    if _in_number(one.onsets_ns, other.onsets_ns) >= _AHEAD:
        return Relation.DIFFERENT if enough else Relation.OPEN
    a, b = _paired(one.onsets_ns, other.onsets_ns)
    period = float(np.median(np.diff(a))) if len(a) > 1 else 0.0
    over = now_ns - max(int(one.onsets_ns[-1]), int(other.onsets_ns[-1])) > max(_OVER_NS, _OVER_PERIODS * period)
    if len(a) < _FEW_IN_ALL:
        return Relation.OPEN
    distance = (b - a).astype(np.float64)
    spread, ratio = float(np.ptp(distance)), _von_neumann(distance)
    if (
        len(a) >= _FEW
        and spread > _SPREAD_BUCKETS * resolution_ns
        and ratio <= (_LONG_WALK if len(a) >= _MANY else _WALK)
    ):
        return Relation.DIFFERENT
    if (len(a) >= _MANY or over) and spread < _SPREAD * period and ratio >= _CHANCE:
        return Relation.ONE_JOB
    return Relation.OPEN


def _in_number(a: npt.NDArray[np.int64], b: npt.NDArray[np.int64]) -> int:
    """How many more begin of one than of the other, in the time that both cover."""
    slack = int(min(np.median(np.diff(a)), np.median(np.diff(b)))) // 2
    first, last = max(a[0], b[0]) - slack, min(a[-1], b[-1]) + slack
    here, there = (int(((times >= first) & (times <= last)).sum()) for times in (a, b))
    return abs(here - there)


def _paired(a: npt.NDArray[np.int64], b: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Beginnings of both, one of one with one of the other, from where both are known on.

    If they are of one job, there is one of each in every iteration.
    """
    half = int(np.median(np.diff(a))) // 2
    first = max(int(a[0]), int(b[0])) - half
    a, b = a[a >= first], b[b >= first]
    count = min(len(a), len(b))
    return a[:count], b[:count]


def _von_neumann(values: npt.NDArray[np.float64]) -> float:
    variance = float(np.var(values))
    return float(np.mean(np.diff(values) ** 2)) / variance if variance else 2.0


# --- splitting into jobs


_MOST_BLOCKS = 128  # that are compared with each other


def parted(flows: Sequence[Candidate], now_ns: int, resolution_ns: int) -> list[tuple[list[Candidate], bool]]:
    """Flows split where they may be more than one job, and whether it is sure of each part that it is one.

    Whoever may belong together stays together.
    """
    units = _units(flows)
    whole = common(flows, now_ns, resolution_ns) if len(units) > 1 else None
    parts: list[tuple[list[list[Candidate]], bool]] = []
    for unit in units:
        sure, together = True, [unit]
        separate = []
        for part, known in parts:
            relations = [_relation(unit, each, whole, now_ns, resolution_ns) for each in part if _meet(unit, each)]
            if all(r is Relation.DIFFERENT for r in relations):
                separate.append((part, known))
                continue
            together += part
            sure &= known and all(r is Relation.ONE_JOB for r in relations)
        parts = [*separate, (together, sure)]
    return [([c for unit in part for c in unit], sure) for part, sure in parts]


def _units(flows: Sequence[Candidate]) -> list[list[Candidate]]:
    """The flows of each block; of very many blocks, those of the ones that carry most."""
    found = blocks({c.edge for c in flows})
    block_of = {edge: number for number, block in enumerate(found) for edge in block}
    units: list[list[Candidate]] = [[] for _ in found]
    for c in flows:
        units[block_of[c.edge]].append(c)
    if len(units) > _MOST_BLOCKS:
        units = sorted(units, key=lambda unit: -sum(c.bursts.total for c in unit))[:_MOST_BLOCKS]
    return units


def _meet(one: Sequence[Candidate], other: Sequence[Candidate]) -> bool:
    return not addresses(one).isdisjoint(addresses(other))


def _relation(
    one: Sequence[Candidate], other: Sequence[Candidate], whole: Repetition | None, now_ns: int, resolution_ns: int
) -> Relation:
    """whole: how they repeat themselves together with all that they may make a job with."""
    shared = addresses(one) & addresses(other)
    a, b = (_side(flows, shared, now_ns, resolution_ns) for flows in (one, other))
    return relation(a, b, (whole, common([*one, *other], now_ns, resolution_ns)), now_ns, resolution_ns)


def _side(flows: Sequence[Candidate], shared: set[str], now_ns: int, resolution_ns: int) -> Side:
    sends = [c.bursts for c in flows if c.edge[1] in shared]
    receives = [c.bursts for c in flows if c.edge[0] in shared]
    return Side(sends, receives, _counted(starts(flows)) or common(flows, now_ns, resolution_ns))


def are_split(flows: Sequence[Candidate], now_ns: int, resolution_ns: int) -> bool:
    """Whether flows that were taken for one job turn out to belong to more than one job."""
    return len(parted(flows, now_ns, resolution_ns)) > 1


def one_with(core: Sequence[Candidate], flows: Sequence[Candidate], now_ns: int, resolution_ns: int) -> list[Candidate]:
    """Those of the flows that are of one job with the core, which is one; empty as long as that is not sure."""
    for part, sure in parted(flows, now_ns, resolution_ns):
        if addresses(core) <= addresses(part):
            return part if sure else []
    return []


# --- Which flows that repeat themselves do so together, and so make a job.

_SAME_VOLUME = 0.03  # of a flow's bytes per iteration
_AS_MUCH = 0.1  # of the bytes of the core's least flow
_LEAST_BUCKETS = 10  # of an iteration: in a shorter one neither pauses nor beginnings are to be seen
_SURE = 3 * INTERVALS  # iterations
_SAME_PERIOD = 0.75
_MOST_COMPARED = 256  # flows that are distinguished by their period, each against each
_SAME_TIME = 0.15  # of the period: how much the distance of two flows' onsets may vary
_LATE = 0.15  # of the onsets, at either end


@dataclass(frozen=True)
class Group:
    """Flows that make a job, and how they repeat themselves together."""

    flows: dict[int, Edge]
    repetition: Repetition
    starts: Sequence[Start] = ()  # of its steps, where its flows begin them at times of their own


def groups(candidates: Sequence[Candidate], now_ns: int, resolution_ns: int) -> list[Group]:
    """The jobs among the candidates.

    Who can reach each other along flows that repeat themselves may be one job. It is one if all those flows together
    repeat themselves, too: if the ranks compute all at the same time. If they do not, there may be more than one job
    on one host: then flows are distinguished by their period. Where only one host connects two parts, they have to
    show that they wait for each other; as long as that is open, nothing is reported.
    """
    repeating = [c for c in candidates if c.repetition]
    at_hosts = _AtHosts(candidates)
    found: list[Group] = []
    for flows in connected(repeating):
        parts = parted(flows, now_ns, resolution_ns)
        for part in [part for part, sure in parts if sure]:
            separate = {c.flow for other, _ in parts if other is not part for c in other}
            found += _of_part(part, at_hosts, separate, now_ns, resolution_ns)
    return found


class _AtHosts:
    """Candidates by the addresses between which they are, so that a part looks at its own and at no others."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self._candidates = candidates
        self._indices: dict[str, list[int]] = {}
        for index, candidate in enumerate(candidates):
            for address in candidate.edge:
                self._indices.setdefault(address, []).append(index)

    def around(self, members: Iterable[str], separate: Collection[int]) -> list[Candidate]:
        """Those from or to the members, in their order, except for the separate flows."""
        indices = sorted({index for member in members for index in self._indices.get(member, ())})
        found = [self._candidates[index] for index in indices]
        return [candidate for candidate in found if candidate.flow not in separate] if separate else found


def _of_part(
    part: Sequence[Candidate], at_hosts: _AtHosts, separate: Collection[int], now_ns: int, resolution_ns: int
) -> list[Group]:
    whole = _group(part, at_hosts, separate, now_ns, resolution_ns)
    if whole is None and len(part) <= _MOST_COMPARED:
        whole = _staggered(part)
    if whole or len(part) > _MOST_COMPARED:
        return [group for group in [whole] if group and not _may_be_part(group, part, now_ns, resolution_ns)]
    alike = (flows for by_period in _by_period(part) for flows in connected(by_period))
    found = (_group(flows, at_hosts, separate, now_ns, resolution_ns) for flows in alike)
    return [group for group in found if group and not _may_be_part(group, part, now_ns, resolution_ns)]


def _staggered(flows: Sequence[Candidate]) -> Group | None:
    """The flows as one group, if they count the same steps, though at no moment all of them pause."""
    begun = starts(flows)
    own = _counted(begun)
    return Group({c.flow: c.edge for c in flows}, own, begun) if own else None


def _counted(begun: Sequence[Start]) -> Repetition | None:
    """Steps of several flows, as counted from where they began."""
    if not begun:
        return None
    onsets = np.array([time_ns for time_ns, _ in begun])
    levels = np.array([sum(before.values()) for _, before in begun])
    return Repetition(int(np.median(np.diff(levels))), onsets, levels, 0.0)


SHORT_NS, _LONG_ENOUGH_NS = 150_000_000, 400_000_000  # of what may be a layer's or a micro-batch's; seen for so long
_LAYER_NS, _STEP_SEEN_NS = 50_000_000, 5_000_000_000  # what is shorter is mostly a layer; by then a step's end was seen
_LONGER = 3.5  # times the bytes: in less, equal steps may seem to recur by chance
_UNEVEN = 2.2  # times the shortest pause
_IRREGULAR = 3.5  # times the shortest
_MANY_PARTS = 100
_RARE = 0.1  # of the pauses: long ones that a busy host may have made
_ALL_ALONG, _MISSED = 0.75, 2  # of all bytes known, what has repeated itself at least; beginnings one after the other
_OVER, _UNBROKEN = 3, 64  # without a long pause: times the longest way between two of them, and repetitions, at least
_RECURS, _TO_TELL, _MOST_LONG = 0.6, 5, 256  # of the long pauses; so many of them at least, and at most


def _may_be_part(group: Group, flows: Sequence[Candidate], now_ns: int, resolution_ns: int) -> bool:
    """Whether its repetitions may be parts of longer ones, as a model's layers are of steps.

    They are short and have not been seen for so long that the end of a step should be among them; the pauses before
    them differ, or do not recur; or the longest pauses of all do, or are too few to tell, unless there has been none
    for long.
    """
    own = group.repetition
    if group.starts and (now_ns - own.onsets_ns[0] < _STEP_SEEN_NS or _counts_parts(group, flows)):
        return True
    if len(own.onsets_ns) > _MANY_PARTS:
        return False
    intervals = np.diff(own.onsets_ns)
    if not group.starts and len(intervals) < _SURE and intervals.max() > _IRREGULAR * intervals.min():
        return True
    if own.period_ns >= SHORT_NS:
        return False
    known = [c.bursts.rows for c in flows if c.flow in group.flows]
    whole = together(known, resolution_ns)
    rows = whole[whole["start_ns"].searchsorted(max(each["start_ns"][0] for each in known)) :]
    if now_ns - rows["start_ns"][0] < (_LONG_ENOUGH_NS if own.period_ns >= _LAYER_NS else _STEP_SEEN_NS):
        return True
    if group.starts:
        return not recurs(whole, own.volume)
    pauses, level = pauses_before(rows), rows["level"]
    before = pauses[np.searchsorted(rows["start_ns"], own.onsets_ns[1:])]
    if steps_of_blocks(rows, own.volume, 2) or _reach(rows, pauses, own) < _ALL_ALONG * (level[-1] - level[0]):
        return True
    long = 1 + np.flatnonzero(pauses[1:] > _UNEVEN * int(before.min()))
    if not len(long):
        return False
    if len(long) * own.volume > _RARE * (level[-1] - level[0]) or not recurs(whole, own.volume):
        return True
    long = long[pauses[long] >= SHORT * pauses[long].max()]
    passed = np.diff(np.concatenate((level[:1], level[long], level[-1:])))
    if passed[-1] > max(_OVER * passed[:-1].max(), _UNBROKEN * own.volume):
        return False
    return _may_be_regular(level[long], own.volume)


def _counts_parts(group: Group, flows: Sequence[Candidate]) -> bool:
    """Whether a step that was counted is less than what a flow repeats itself in."""
    for c in flows:
        if c.flow in group.flows:
            share = float(np.median(np.diff([levels[c.flow] for _, levels in group.starts])))
            if recurring_volume(c.bursts.rows) > _LONGER * share:
                return True
    return False


def _reach(rows: Table, pauses: npt.NDArray[np.int64], own: Repetition) -> int:
    """Bytes from the last beginning back to the first one after which all has repeated itself; one may be missing."""
    level, volume = rows["level"], own.volume
    slack, baseline_ns = max(VOLUME_TOLERANCE * volume, SEGMENT_BYTES), SHORT * own.pause_ns
    at = last = int(own.levels[-1])
    missed = 0
    while missed < _MISSED and at - volume * (missed + 1) >= level[0] - slack:
        near = slice(*level.searchsorted((at - volume * (missed + 1) - slack, at - volume * (missed + 1) + slack)))
        met = near.start + np.flatnonzero(pauses[near] >= baseline_ns)
        if len(met):
            at, missed = int(level[met[0]]), 0
        else:
            missed += 1
    return last - at


def _may_be_regular(levels: npt.NDArray[np.int64], volume: int) -> bool:
    """Whether long pauses, before which so many bytes had passed, come back after as many repetitions each time, or are
    too few to tell: those between steps do, those of a busy host do not."""
    place = np.unique(np.round((levels - levels[:1]) / volume).astype(np.int64))[-_MOST_LONG:]
    if len(place) < _TO_TELL:
        return True
    apart = (place[None, :] - place[:, None]).ravel()
    by, often = np.unique(apart[apart > 1], return_counts=True)
    could = place.searchsorted(place[-1] - by, "right")  # those after which there is room for another one
    return bool(((often >= _RECURS * could) & (2 * could > len(place))).any())


def joined(group: Sequence[Candidate], job: Sequence[Candidate], now_ns: int, resolution_ns: int) -> Group | None:
    """A group and a job on one of its hosts as one group, if all their flows have one period."""
    both = [*group, *job]
    whole = _group(both, _AtHosts(both), (), now_ns, resolution_ns)
    if whole is None or len(whole.flows) < len(both):
        return None
    return whole if len(one_with(both, both, now_ns, resolution_ns)) == len(both) else None


def _group(
    core: Sequence[Candidate], at_hosts: _AtHosts, separate: Collection[int], now_ns: int, resolution_ns: int
) -> Group | None:
    """The core, if it repeats itself together, with the other flows that have its period.

    Where hosts of the core exchange as much in another period, it may be a part of a job, at a part of its iteration.
    Then it takes more iterations to be sure.
    """
    own_period = common(core, now_ns, resolution_ns)
    if own_period is None or own_period.period_ns < _LEAST_BUCKETS * resolution_ns:
        return None
    members = addresses(core)
    around = at_hosts.around(members, separate)
    near = [c for c in around if _keeps(c, own_period)]
    keeping = {c.flow for c in near}
    begun = int(own_period.onsets_ns[0])
    least = min(c.bursts.since(begun) for c in core)
    others = [c for c in around if c.flow not in keeping and c.bursts.since(begun) > _AS_MUCH * least]
    if others and len(own_period.onsets_ns) <= _SURE:
        return None
    for flows in connected(near):
        if members.issubset(addresses(flows)):
            return _whole(core, flows, now_ns, resolution_ns)
    return None


def _whole(core: Sequence[Candidate], flows: Sequence[Candidate], now_ns: int, resolution_ns: int) -> Group | None:
    """The flows as one group; they are the core and what has its period, maybe also with hosts beyond the core's."""
    if addresses(flows) != addresses(core):
        flows = one_with(core, flows, now_ns, resolution_ns)
    own_period = common(flows, now_ns, resolution_ns) if flows else None
    return Group({c.flow: c.edge for c in flows}, own_period) if own_period else None


def _keeps(candidate: Candidate, common: Repetition) -> bool:
    """Whether a flow is silent when the iterations begin, and sends the same bytes in each.

    It may not repeat itself more than once meanwhile: that is how two jobs look of which one makes three iterations in
    the time of the other's two.
    """
    rows, onsets, own = candidate.bursts.rows, common.onsets_ns, candidate.repetition
    if own and own.period_ns < _SAME_PERIOD * common.period_ns:
        return False
    index = np.searchsorted(rows["start_ns"], onsets)
    if index[-1] == len(rows) or index[0] == index[1]:
        return False
    before = index[index > 0]
    if (rows["end_ns"][before - 1] > onsets[index > 0]).any():
        return False
    volumes = np.diff(rows["level"][index])
    return bool((np.abs(volumes - np.median(volumes)) <= _SAME_VOLUME * np.median(volumes)).all())


def _by_period(candidates: Sequence[Candidate]) -> list[list[Candidate]]:
    """Candidates parted so that those of one part begin their iterations at a constant distance from each other."""
    parts: list[list[Candidate]] = []
    for candidate in candidates:
        alike = [part for part in parts if any(_same_period(candidate, other) for other in part)]
        parts = [part for part in parts if part not in alike]
        parts.append([candidate, *(c for part in alike for c in part)])
    return parts


def _same_period(one: Candidate, other: Candidate) -> bool:
    if one.repetition is None or other.repetition is None:
        return False
    a, b = one.repetition.onsets_ns, other.repetition.onsets_ns
    a, b = _overlapping(a, b), _overlapping(b, a)
    if min(len(a), len(b)) < 2 or abs(len(a) - len(b)) > 1:
        return False
    a, b = (a, b) if len(a) <= len(b) else (b, a)
    after = np.clip(np.searchsorted(b, a), 1, len(b) - 1)
    nearest = np.where(a - b[after - 1] <= b[after] - a, after - 1, after)
    distances = a - b[nearest]
    period = min(one.repetition.period_ns, other.repetition.period_ns)
    # Where a flow has to wait for another job's, a beginning now and then is late: of many, that counts for nothing.
    late = _LATE if len(a) > _SURE else 0
    least, most = np.quantile(distances, (late, 1 - late))
    return len(set(nearest.tolist())) == len(a) and float(most - least) <= _SAME_TIME * period


def _overlapping(a: npt.NDArray[np.int64], b: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    half = int(np.median(np.diff(a))) // 2 if len(a) > 1 else 0
    within: npt.NDArray[np.int64] = a[(a >= b[0] - half) & (a <= b[-1] + half)]
    return within


# --- The groups of a job's ranks, as far as its traffic tells them, and what they are for.
#
# Who sends as much per step is of one kind of group, and those of them that are connected are one group, if they make a
# ring, a chain or a clique. Its purpose is known where only one kind does so; else it is UNKNOWN.

DATA, SHARDED_DATA, PIPELINE, EXPERT, UNKNOWN = "data", "sharded data", "pipeline", "expert", "unknown"

_AS_MUCH_EACH = 0.03  # of the bytes per step
_TWICE = 0.1  # that the one way carries what the other does, or twice as much
_AT_ONCE, _IN_TURN = 0.5, 0.2  # of the time in which either sends, both do

Pair = frozenset[str]


def groups_of(
    flows: Mapping[int, Edge],
    volumes: Mapping[int, float],
    bursts: Mapping[int, Bursts],
    since_ns: int,
    one_phase: bool,
) -> tuple[TrafficGroup, ...]:
    """volumes: of each flow per step; since_ns: of what they have sent since then; one_phase: all pause together once
    in each step, and no more.
    """
    ways: dict[Edge, float] = {}
    rows: dict[Edge, list[Table]] = {}
    for flow, edge in flows.items():
        if volumes.get(flow, 0) > 0 and flow in bursts:
            ways[edge] = ways.get(edge, 0.0) + volumes[flow]
            rows.setdefault(edge, []).append(bursts[flow].rows)
    if one_phase and ways:
        members = {address for edge in ways for address in edge}
        purpose = DATA if _all_at_once(ways, rows, since_ns, len(members)) else UNKNOWN
        return (_parallel_group(purpose, sorted(members, key=numerically), ways),)
    pairs: dict[Pair, float] = {}
    for edge, volume in ways.items():
        pairs[frozenset(edge)] = max(volume, pairs.get(frozenset(edge), 0.0))
    found = []
    for alike in _alike(pairs):
        for members in connected_pairs(alike):
            own = {edge: volume for edge, volume in ways.items() if set(edge) <= members and frozenset(edge) in alike}
            kind = _kind(own, rows, since_ns, len(members))
            if kind is not None:
                found.append(_parallel_group(kind, _in_order(kind, members, own, rows, since_ns), own))
    return tuple(sorted(found, key=lambda group: (group.kind, group.members)))


def _parallel_group(kind: str, members: Sequence[str], ways: Mapping[Edge, float]) -> TrafficGroup:
    return TrafficGroup(kind, tuple(members), int(sum(ways.values()) / len(members)))


def _alike(pairs: Mapping[Pair, float]) -> list[list[Pair]]:
    """Pairs parted by what they carry."""
    parts: list[list[Pair]] = []
    last = 0.0
    for pair in sorted(pairs, key=lambda pair: pairs[pair]):
        if not parts or pairs[pair] > (1 + _AS_MUCH_EACH) * last:
            parts.append([])
        parts[-1].append(pair)
        last = pairs[pair]
    return parts


def _kind(ways: Mapping[Edge, float], rows: Mapping[Edge, Sequence[Table]], since_ns: int, size: int) -> str | None:
    """None: it is no shape that one group has."""
    around = {(a, b) for a, b in ways} | {(b, a) for a, b in ways}
    degrees = [sum(edge[0] == member for edge in around) for member in {a for a, _ in around}]
    both = [(ways[a, b], ways[b, a]) for a, b in ways if a < b and (b, a) in ways]
    even = all(abs(one - other) <= _TWICE * max(one, other) for one, other in both)
    if size == 2:
        if len(both) != 1 or not even:
            return UNKNOWN
        (a, b) = next(iter(ways))
        return PIPELINE if _both_at_once(rows[a, b], rows[b, a], since_ns) <= _IN_TURN else UNKNOWN
    is_chain = len(around) == 2 * (size - 1) and max(degrees) == 2
    is_ring = max(degrees) == min(degrees) == 2
    if is_chain:
        return PIPELINE if even and len(ways) == len(around) else None
    if is_ring and len(ways) == len(around):
        twice = all(abs(max(pair) / min(pair) - 2) <= 2 * _TWICE for pair in both)
        return SHARDED_DATA if twice else UNKNOWN
    return UNKNOWN if is_ring or pattern_of([*ways]) == "clique" else None


def _all_at_once(ways: Mapping[Edge, float], rows: Mapping[Edge, Sequence[Table]], since_ns: int, size: int) -> bool:
    """Whether it is no chain, along which the one may wait for the other."""
    pairs = {frozenset(edge) for edge in ways}
    if size == 2 and len(ways) == 2:
        one, other = ways
        return _both_at_once(rows[one], rows[other], since_ns) >= _AT_ONCE
    return len(pairs) != size - 1 or max(sum(member in pair for pair in pairs) for pair in pairs for member in pair) > 2


def _both_at_once(one: Sequence[Table], other: Sequence[Table], since_ns: int) -> float:
    """Of the time in which either sends, the share in which both do."""
    edges = []
    for number, tables in enumerate((one, other)):
        for rows in tables:
            own = rows[rows["start_ns"] >= since_ns]
            for name, sign in (("start_ns", 1), ("end_ns", -1)):
                edges.append(np.stack([own[name], np.full(len(own), number), np.full(len(own), sign)], axis=1))
    moments = np.concatenate(edges)
    moments = moments[np.argsort(moments[:, 0], kind="stable")]
    lasts = np.diff(moments[:, 0])
    busy = [np.cumsum(np.where(moments[:, 1] == number, moments[:, 2], 0))[:-1] > 0 for number in (0, 1)]
    either = float(lasts[busy[0] | busy[1]].sum())
    return float(lasts[busy[0] & busy[1]].sum()) / either if either else 1.0


def _in_order(
    kind: str, members: set[str], ways: Mapping[Edge, float], rows: Mapping[Edge, Sequence[Table]], since_ns: int
) -> list[str]:
    """Of a pipeline the stages, the first one sends first; else sorted."""
    ascending = sorted(members, key=numerically)
    if kind != PIPELINE:
        return ascending
    following = {member: [b for a, b in ways if a == member] for member in ascending}
    ends = [member for member in ascending if len(following[member]) == 1]

    def begins(end: str) -> int:
        return min(
            int(table["start_ns"][table["start_ns"].searchsorted(since_ns)])
            for table in rows[end, following[end][0]]
            if table["start_ns"][-1] >= since_ns
        )

    order = [min(ends, key=begins)]
    while len(order) < len(members):
        order.append(next(member for member in following[order[-1]] if member not in order))
    return order
