# SPDX-License-Identifier: Apache-2.0
"""Steps that carry other bytes each time, as those of a mixture of experts do.

Tokens go where a router sends them: no step carries what another one did, and nothing repeats itself by its bytes. What
recurs is that one of a flow's exchanges stands out in each step: by what it carries, where that is the gradients that
all ranks share, or by the pause before it, where the optimizer runs and the next batch comes. These are landmarks.
Where about as many exchanges, and about as much time, lie from each to the next, and flows of three ranks or more
have them at the same time, they are the ends of steps.

Whatever else is regular, as requests and their answers, is kept out by what experts need: everybody sends to everybody,
four exchanges or more in a step, and bytes that differ, also those of a few steps together.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from netmon.dl.inference.beginnings import Start
from netmon.dl.inference.bursts import Bursts, Edge, pauses_before, together
from netmon.dl.inference.grouping import EXPERT
from netmon.dl.inference.job import Beginning, Job, Words
from netmon.dl.inference.repetition import Candidate, Repetition, nearest, one_differs
from netmon.dl.inference.topology import strongly_connected
from netmon.dl.inference.types import InferredIteration, TrafficGroup
from netmon.records import Table

_Numbers = npt.NDArray[np.int64]

_LEAST_STEPS, _MORE, _LEAST_SENDERS = 8, 3, 3  # steps by pauses; more of them by bytes; ranks whose flows agree
_MANY_STEPS = 24  # where they have about as many exchanges, and not exactly
_LEAST_EXCHANGES = 4  # of a step: a layer of experts makes so many, there and back in both passes
_MOST_EXCHANGES = 512
_REGULAR, _AS_LONG, _ABOUT = 0.85, 0.6, 0.3  # of the steps have as many exchanges, and last as long, but for so much
_FINER = 1.3  # times: from one pause that may part exchanges to the next
_CUTS, _STANDS_OUT = 4, 1.25  # gaps between exchanges' bytes, or pauses, that are tried; times, that one is wide
_PARTS = (2, 3, 4)  # of a step, that may be as regular as the step: one differs from the others
_FEW = 3  # steps that show that
_SHORT_PAUSES = 3  # × as short as most of those between exchanges: they may part a pass's exchanges, too
_HEAVIEST = 8  # flows whose landmarks are looked for
_AT_ONCE = 0.25  # of a step, that landmarks of two flows may be apart
_PHASES = 16  # of a step, from which exchanges are counted
_UNEVEN = 0.01  # of a step's bytes: so much more or less than the one before has it, in the median, at least
_TOGETHER = 8  # steps, that carry other bytes each time, too
_MOST_ROWS = 200_000  # looked at, of all flows
_SOONEST = 0.5  # of a step's exchanges: a landmark before is none
_LOST_NS, _LOST_PERIODS = 10_000_000_000, 24  # with traffic, but without a landmark: they are no such steps
_REVIEWED, _SHORTER = 16, 0.75  # steps; of their period: what is shorter is a part of one


@dataclass(frozen=True)
class Landmarks:
    """What stands out of a flow's exchanges: of what it sends between two pauses of at least pause_ns."""

    pause_ns: float
    by_pause: bool  # those before which it pauses for longer than `above` ns, else those of more than `above` bytes
    above: float
    exchanges: float  # of a step

    def next(self, rows: Table, now_ns: int) -> _Numbers | None:
        """Where rows begin with a step: the pause after it, begin and end; None: it is not over."""
        points, feature = _exchanges(rows, self.pause_ns, self.by_pause, now_ns)
        found = np.flatnonzero(feature > self.above) + (not self.by_pause)
        pauses = _pauses_before(rows, points, found[found >= _SOONEST * self.exchanges])
        return pauses[0] if len(pauses) else None


def _pauses_before(rows: Table, points: _Numbers, exchanges: _Numbers) -> _Numbers:
    """Begin and end of those before these exchanges."""
    begins = points[exchanges[(exchanges > 0) & (exchanges < len(points))]]
    return np.stack([rows["end_ns"][begins - 1], rows["start_ns"][begins]], axis=1)


def _exchanges(rows: Table, pause_ns: float, by_pause: bool, now_ns: int) -> tuple[_Numbers, _Numbers]:
    """The bursts with which exchanges begin; and the pause before each, or the bytes of each that is over."""
    pauses = pauses_before(rows)
    points = np.flatnonzero(pauses >= pause_ns)
    if by_pause:
        before = pauses[points]
        before[:1] = 0  # it is not known
        return points, before
    total = int(rows["level"][-1] + rows["volume"][-1])
    volume = np.diff(np.append(rows["level"][points], total))
    return points, volume if now_ns - rows["end_ns"][-1] >= pause_ns else volume[:-1]


@dataclass(frozen=True)
class _Found:
    landmarks: Landmarks
    pauses: _Numbers  # between steps
    regular: float  # share of the steps

    @property
    def order(self) -> tuple[bool, float]:
        """Pauses are where steps end; bytes tell it where no pause does."""
        return self.landmarks.by_pause, round(20 * self.regular)


def _landmarks(rows: Table, now_ns: int) -> _Found | None:
    """Of one flow, dtype BURST; None: it has none, or not for long enough, or what they part may be parts of steps."""
    least = _LEAST_STEPS * _LEAST_EXCHANGES
    if len(rows) < least:
        return None
    pauses = np.sort(pauses_before(rows)[1:])
    best: _Found | None = None
    count, pause_ns = 0, float(pauses[-min(least, len(pauses))])
    while pause_ns >= pauses[0] / _FINER:
        longer = len(pauses) - int(pauses.searchsorted(pause_ns))
        if longer > count:
            count = longer
            for by_pause in (True, False):
                for found in _of_exchanges(rows, pause_ns, by_pause, now_ns):
                    if best is None or found.order >= best.order:
                        best = found
        pause_ns /= _FINER
    return best


def _of_exchanges(rows: Table, pause_ns: float, by_pause: bool, now_ns: int) -> Iterator[_Found]:
    points, feature = _exchanges(rows, pause_ns, by_pause, now_ns)
    other = _exchanges(rows, pause_ns, not by_pause, now_ns)[1]
    for above in _cuts(feature):
        marks = np.flatnonzero(feature > above)
        marks = marks[marks < len(other)]
        if len(marks) <= _LEAST_STEPS + (0 if by_pause else _MORE):
            continue
        counts, lasts = np.diff(marks), np.diff(rows["start_ns"][points[marks]])
        if not _LEAST_EXCHANGES <= float(np.median(counts)) <= _MOST_EXCHANGES:
            continue
        exactly = float((counts == np.bincount(counts).argmax()).mean())
        regular = _usual(counts) if exactly >= _REGULAR or len(marks) > _MANY_STEPS else 0.0
        if regular < _REGULAR or _usual(lasts) < _AS_LONG or not _differ(np.diff(rows["level"][points[marks]])):
            continue
        longer = (one_differs(each[marks], parts, _FEW) for each in (feature, other) for parts in _PARTS)
        if not any(longer) and (by_pause or not _are_many(rows, points, marks)):
            landmarks = Landmarks(pause_ns, by_pause, above, float(np.median(counts)))
            yield _Found(landmarks, _pauses_before(rows, points, marks + (not by_pause)), regular)


def _are_many(rows: Table, points: _Numbers, marks: _Numbers) -> bool:
    """Whether what carries most is a whole forward pass: its pauses are shorter than most, and part no exchanges."""
    pauses = pauses_before(rows)
    finer = np.flatnonzero(pauses >= np.median(pauses[points]) / _SHORT_PAUSES)
    counts = np.diff(finer.searchsorted(np.append(points, len(rows))))
    return bool(np.median(counts[marks]) >= max(_LEAST_EXCHANGES, _SHORT_PAUSES * np.median(counts)))


def _usual(values: _Numbers) -> float:
    """The share that is about as high as the median."""
    return float((np.abs(values - np.median(values)) <= _ABOUT * np.median(values)).mean())


def _cuts(feature: _Numbers) -> list[float]:
    """Values that part what stands out from the rest: in the widest gaps of the upper half."""
    ordered = np.sort(np.maximum(feature, 1)).astype(np.float64)
    upper = ordered[len(ordered) // 2 : len(ordered) - _LEAST_STEPS + 1]
    if len(upper) < 2:
        return []
    times = upper[1:] / upper[:-1]
    widest = np.argsort(times)[::-1][:_CUTS]
    return [float(upper[k] * np.sqrt(times[k])) for k in widest if times[k] >= _STANDS_OUT]


def _differ(volumes: _Numbers) -> bool:
    """Whether steps carry other bytes each time, also a few of them together."""
    mean = float(volumes.mean())
    for steps in range(1, min(_TOGETHER, len(volumes) // _FEW) + 1):
        whole = volumes[: len(volumes) // steps * steps].reshape(-1, steps).sum(axis=1)
        if float(np.median(np.abs(np.diff(whole)))) < _UNEVEN * mean * np.sqrt(steps):
            return False
    return True


# --- Flows that exchange so.


@dataclass(frozen=True)
class UnevenSteps:
    """Flows of which each of their hosts sends to each other one, and how their steps are told."""

    flows: dict[int, Edge]
    landmarks: dict[int, Landmarks]  # of some of them
    repetition: Repetition
    starts: list[Start]


def uneven_steps(candidates: Sequence[Candidate], now_ns: int) -> UnevenSteps | None:
    """Of flows between hosts that reach each other, those that are a job of uneven steps; None: there is none."""
    for flows in _all_to_all(candidates):
        tables = _known(flows)
        edges = {c.flow: c.edge for c in flows if c.flow in tables}
        told = _told_by(edges, tables, now_ns)
        if told is None:
            continue
        starts = [_start(edges, tables, dict(zip(told.landmarks, each, strict=True))) for each in told.pauses]
        onsets_ns = np.array([time_ns for time_ns, _ in starts])
        if not _most_differ([*tables.values()], onsets_ns):
            continue
        first = {flow: int(rows["level"][0]) for flow, rows in tables.items()}
        level = np.array([sum(levels.values()) for _, levels in starts])
        volume, pause_ns = int(np.median(np.diff(level))), float(np.median(np.diff(told.pauses, axis=-1)))
        if level[0] - sum(first.values()) > _SOONEST * volume:  # what came before is a step, too
            starts = [(min(int(rows["start_ns"][0]) for rows in tables.values()), first), *starts]
        return UnevenSteps(edges, told.landmarks, Repetition(volume, onsets_ns, level, pause_ns), starts)
    return None


def _start(edges: Mapping[int, Edge], tables: Mapping[int, Table], pauses: Mapping[int, _Numbers]) -> Start:
    """Of the step before which some flows pause then: each rank's first exchange is begun with by all that it sends."""
    by_sender: dict[str, list[_Numbers]] = {}
    for flow, pause in pauses.items():
        by_sender.setdefault(edges[flow][0], []).append(pause)
    of_all = _within([*pauses.values()])
    moments = {sender: _within(own) for sender, own in by_sender.items()}
    levels, begins = {}, []
    for flow, rows in tables.items():
        index = int(rows["start_ns"].searchsorted(moments.get(edges[flow][0], of_all)))
        if index < len(rows):
            levels[flow] = int(rows["level"][index])
            begins.append(int(rows["start_ns"][index]))
        else:
            levels[flow] = int(rows["level"][-1] + rows["volume"][-1])
    return min(begins), levels


def _within(pauses: Sequence[_Numbers]) -> int:
    """A moment in all of these pauses, or else as near to it as can be."""
    begins, ends = zip(*(pause.tolist() for pause in pauses), strict=True)
    return int(max(begins) + min(ends)) // 2


@dataclass(frozen=True)
class _Told:
    landmarks: dict[int, Landmarks]  # by flow
    pauses: _Numbers  # between steps, shape (steps, flows, 2)

    @property
    def period_ns(self) -> float:
        return float(np.median(np.diff(self.pauses[:, 0, 1])))


def _told_by(edges: Mapping[int, Edge], tables: Mapping[int, Table], now_ns: int) -> _Told | None:
    """Flows whose landmarks tell the steps; None: those of too few ranks agree."""
    heaviest = sorted(tables, key=lambda flow: int(tables[flow]["volume"].sum()), reverse=True)[:_HEAVIEST]
    agreed = _agreed({flow: each for flow in heaviest if (each := _landmarks(tables[flow], now_ns))})
    senders = {edges[flow][0] for flow in agreed.landmarks} if agreed else ()
    return agreed if len(senders) >= _LEAST_SENDERS else None


def _agreed(found: Mapping[int, _Found]) -> _Told | None:
    """The flows whose steps end when most others' do, and the steps that do for most of these."""
    best: _Told | None = None
    middles = {flow: each.pauses.mean(axis=1) for flow, each in found.items()}
    for lead in middles.values():
        index = {flow: nearest(each, lead) for flow, each in middles.items()}
        within = _AT_ONCE * float(np.median(np.diff(lead)))
        at_once = {flow: np.abs(each[index[flow]] - lead) <= within for flow, each in middles.items()}
        agreed = [flow for flow, each in at_once.items() if each.mean() >= _REGULAR]
        if agreed and (best is None or len(agreed) > len(best.landmarks)):
            most = np.mean([at_once[flow] for flow in agreed], axis=0) > 0.5
            most[1:] &= np.diff(lead) >= _SOONEST * np.median(np.diff(lead))
            pauses = np.stack([found[flow].pauses[index[flow]] for flow in agreed], axis=1)[most]
            if len(pauses) < _LEAST_STEPS:
                continue
            best = _Told({flow: found[flow].landmarks for flow in agreed}, pauses)
    return best


def companions(candidates: Sequence[Candidate], onsets_ns: _Numbers, resolution_ns: int) -> list[list[Candidate]]:
    """Of flows between members of a job whose last steps began then, those that exchange as often in each of them."""
    found: list[list[Candidate]] = []
    if len(onsets_ns) <= _LEAST_STEPS:
        return found
    for flows in _all_to_all(candidates):
        tables = [*_known(flows).values()]
        if _keep_step(together(tables, resolution_ns), onsets_ns) and _most_differ(tables, onsets_ns):
            found.append(flows)
    return found


def _known(flows: Sequence[Candidate]) -> dict[int, Table]:
    """What all of them have sent since the same time, as much as may be looked at; those that have."""
    tables = {c.flow: c.bursts.rows[-_MOST_ROWS // len(flows) :] for c in flows}
    cut = [tables[c.flow] for c in flows if c.bursts.forgetful or len(tables[c.flow]) < len(c.bursts)]
    since = max((int(rows["start_ns"][0]) for rows in cut), default=0)
    return {
        flow: rows[rows["start_ns"].searchsorted(since) :]
        for flow, rows in tables.items()
        if rows["start_ns"][-1] >= since
    }


def _most_differ(tables: Sequence[Table], onsets_ns: _Numbers) -> bool:
    """Whether what most flows carry in a step is not the same in each."""
    through = [np.append(0, np.cumsum(rows["volume"]))[rows["start_ns"].searchsorted(onsets_ns)] for rows in tables]
    return sum(_differ(np.diff(levels)) for levels in through) > len(tables) / 2


def _keep_step(rows: Table, onsets_ns: _Numbers) -> bool:
    """Whether flows together make as many exchanges in each step, wherever in a step that is counted from."""
    if len(rows) < _LEAST_STEPS * _LEAST_EXCHANGES:
        return False
    pauses, period_ns = pauses_before(rows), float(np.median(np.diff(onsets_ns)))
    for power in range(int(pauses[1:].max()).bit_length() - 1, int(pauses[1:].min()).bit_length() - 2, -1):
        begun = rows["start_ns"][pauses >= 1 << power]
        for phase in range(_PHASES):
            counts = np.diff(begun.searchsorted(onsets_ns + phase * period_ns / _PHASES))[:-1]
            most = int(np.bincount(counts).argmax())
            if _LEAST_EXCHANGES <= most <= _MOST_EXCHANGES and (counts == most).mean() >= _REGULAR:
                return True
    return False


def _all_to_all(candidates: Sequence[Candidate]) -> list[list[Candidate]]:
    """Those between hosts of which each sends to each, by the sets of such hosts, none of which is in two."""
    pairs = {c.edge for c in candidates}
    pairs = {(a, b) for a, b in pairs if (b, a) in pairs}
    found = []
    for members in strongly_connected(pairs):
        others: dict[str, set[str]] = {member: set() for member in sorted(members)}
        for a, b in pairs:
            if a in members:
                others[a].add(b)
        while len(others) > 1:
            least = min(others, key=lambda member: len(others[member]))
            if len(others[least]) == len(others) - 1:
                found.append([c for c in candidates if c.edge[0] in others and c.edge[1] in others])
                break
            for other in others.pop(least):
                others[other].remove(least)
    return found


# --- A job of such steps.


def _followed(landmarks: Mapping[int, Landmarks]) -> dict[int, Landmarks]:
    """Those by bytes, if there are two: pauses last longer where something slows all down, bytes do not."""
    by_bytes = {flow: each for flow, each in landmarks.items() if not each.by_pause}
    return by_bytes if len(by_bytes) > 1 else {**landmarks}


class UnevenJob(Job):
    """Follows the flows of one job whose steps are told by landmarks."""

    tolerance = 0.5

    def __init__(
        self, name: str, found: UnevenSteps, hosts: Mapping[str, str], words: Words, resolution_ns: int, after_ns: int
    ) -> None:
        super().__init__(name, found.flows, hosts, words, resolution_ns, after_ns)
        self._landmarks = _followed(found.landmarks)
        self._looked = 0  # steps when the landmarks were looked for last

    def follow(self, bursts: Mapping[int, Bursts], now_ns: int) -> list[InferredIteration]:
        """As Job.follow; no pause between exchanges is forgotten."""
        for flow, each in self._landmarks.items():
            if flow in bursts:
                bursts[flow].kept_ns = int(each.pause_ns)
        ended: list[InferredIteration] = []
        while self._open:
            tables = self._each_since(self._open, bursts)
            pauses = self._pauses_after(tables, now_ns)
            if not pauses:
                break
            time_ns, levels = _start(self.flows, tables, pauses)
            iteration = self._next(time_ns, self._open.levels | levels, bursts)
            ended += [iteration] if iteration else []
        rows = self._since(bursts)
        lost_ns = max(_LOST_NS, _LOST_PERIODS * self.period_ns)
        self.given_up = bool(len(rows)) and rows["end_ns"][-1] - rows["start_ns"][0] > lost_ns
        if not self.found.ended and (self.given_up or self._silent(rows, now_ns)):
            ended += self.end(bursts)
        return ended

    def _pauses_after(self, tables: Mapping[int, Table], now_ns: int) -> dict[int, _Numbers]:
        """Of half of the flows with landmarks or more, after the open step; none: it goes on."""
        found = {}
        for flow, each in self._landmarks.items():
            pause = each.next(tables[flow], now_ns) if flow in tables else None
            if pause is not None:
                found[flow] = pause
        flows = self._landmarks.keys() & self.flows.keys()
        for first in sorted(int(pause[1]) for pause in found.values()):
            near = {flow: each for flow, each in found.items() if 0 <= each[1] - first <= _AT_ONCE * self.period_ns}
            if 2 * len(near) >= len(flows):
                return near
        return {}

    def review(self, bursts: Mapping[int, Bursts], now_ns: int) -> None:
        """Look for the landmarks of the last steps, now and then: what is sent changes."""
        if self._number - self._looked < max(_REVIEWED, self._looked):
            return
        self._looked = self._number
        tables = {flow: rows[rows["start_ns"] >= self._begun[0]] for flow, b in self._kept(bursts) for rows in [b.rows]}
        told = _told_by(self.flows, tables, now_ns)
        if told and told.period_ns > _SHORTER * self.period_ns:
            self._landmarks = _followed(told.landmarks)

    def _received(self, begun: Beginning, end_ns: int, ends: Mapping[int, int]) -> tuple[int, ...]:
        """Per member, the end of the last burst that came to it in the step."""
        last = dict.fromkeys(self.found.members, begun.time_ns)
        for flow, flow_end_ns in ends.items():
            receiver = self.flows[flow][1]
            last[receiver] = max(last[receiver], flow_end_ns)
        return tuple(last.values())

    def find_groups(self, bursts: Mapping[int, Bursts]) -> None:
        """All members are one group."""
        if self._number and not self.found.groups:
            volume = int(self.volume / len(self.found.members))
            self.found = replace(self.found, groups=(TrafficGroup(EXPERT, self.found.members, volume),))
