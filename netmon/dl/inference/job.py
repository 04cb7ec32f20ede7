# SPDX-License-Identifier: Apache-2.0
"""One job, followed from iteration to iteration."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
import numpy.typing as npt

from netmon.dl.inference.beginnings import MOST_PARTS, Start
from netmon.dl.inference.bursts import NEVER, SEGMENT_BYTES, SHORT, Bursts, Edge, pauses_before, together
from netmon.dl.inference.grouping import PIPELINE, SHORT_NS, groups_of
from netmon.dl.inference.repetition import INTERVALS, Repetition, beginning, one_differs, recurs, repetition
from netmon.dl.inference.topology import ordered, pattern_of
from netmon.dl.inference.types import InferredIteration, InferredJob, TrafficGroup
from netmon.records import Table

_MOST = 8192  # moments kept per pair


class Words:
    """The last moments in which one host sent another some bytes that fill no segment; at most 8,192 of each pair.

    Ranks agree on what comes next in such messages. While gradients are under way they are silent, in Horovod and
    whatever else does both in one thread. So the first one after its last gradient shows that a rank is through with
    the iteration: that it has taken over what came last, and got rid of what it had to pass on.
    """

    def __init__(self, resolution_ns: int) -> None:
        self._resolution_ns = resolution_ns
        self._moments: dict[Edge, npt.NDArray[np.int64]] = {}

    def add(self, pairs: Iterable[tuple[Edge, npt.NDArray[np.int64]]]) -> None:
        """Times of one pair's messages, none much earlier than those added before; any order, repeats do no harm."""
        for pair, time_ns in pairs:
            before = self._moments.get(pair, np.empty(0, np.int64))
            self._moments[pair] = np.unique(np.concatenate((before, time_ns)))[-_MOST:]

    def forget(self, before_ns: int) -> None:
        """Pairs that have been silent since are of no interest any more."""
        self._moments = {pair: moments for pair, moments in self._moments.items() if moments[-1] >= before_ns}

    def first(self, sender: str, others: Iterable[str], since_ns: int, before_ns: int) -> int | None:
        """When the sender spoke to one of the others first, in [since, before); to half the resolution."""
        found = []
        for other in others:
            moments = self._moments.get((sender, other))
            if moments is not None:
                index = int(np.searchsorted(moments, since_ns))
                found += moments[index : index + 1].tolist()
        first = min(found, default=before_ns)
        return first + self._resolution_ns // 2 if first < before_ns else None


_PATIENCE = 2  # periods that some flows of a staggered job may be behind
_LOST, _GIVEN_UP = 4, 24  # iterations' bytes without a beginning: they are not what they were; this is no job
_REMEMBERED = 16  # iterations
_LONGER = 1.5  # times the bytes: other iterations
_EARLY = 64  # iterations
_SOON = 0.1  # of the period
_END_PERIODS, _END_NS = 10, 10_000_000_000  # silence, after which a job has ended


@dataclass(frozen=True)
class Beginning:
    """Of an iteration: its first gradient traffic, and how long all of the job had paused before."""

    time_ns: int
    pause_ns: int
    spread_ns: int  # until half of the flows have begun
    levels: dict[int, int]  # bytes of each flow before
    starts: dict[int, int]  # when each flow begins its own
    ends: dict[int, int]  # when the last burst of each flow before ended


class Job:
    """Follows the flows of one job, all together: an iteration begins after a pause of all of them, V bytes after
    the last one did.
    """

    tolerance = 0.02  # of an iteration's bytes

    def __init__(
        self,
        name: str,
        flows: Mapping[int, Edge],
        hosts: Mapping[str, str],
        words: Words,
        resolution_ns: int,
        after_ns: int = -1,
    ) -> None:
        """flows: those that carry gradients, each 5-tuple once, with sender and receiver; hosts: by address.

        after_ns: iterations that begin before are another's.
        """
        self.name = name
        self._words, self._after_ns = words, after_ns
        self.found = InferredJob(name, (), (), "", 0, 0)
        self.take(flows, hosts)
        self._resolution_ns = resolution_ns
        self._volumes: deque[int] = deque(maxlen=_REMEMBERED)
        self._periods: deque[int] = deque(maxlen=_REMEMBERED)
        self._pauses: deque[int] = deque(maxlen=_REMEMBERED)
        self._open: Beginning | None = None  # of the iteration that has not ended
        self.given_up = False  # its flows do what they did no more
        self._reported = False  # of the open iteration, that it has ended
        self._ended_ns = 0  # when the traffic of the iteration before the open one ended; 0: it had none, or long ago
        self._number = 0
        self._staggered = False  # its flows begin and end at times of their own
        self.one_phase = False  # all its flows pause once in each iteration, and no more
        self.pauses_within = False  # for longer in the midst of an iteration than before it
        self._begun: deque[int] = deque(maxlen=_REMEMBERED)  # when the last iterations did
        self._grouped = 0  # iterations when its groups are to be looked for next
        self._reviewed = 0  # iterations when it was last checked whether it is one job
        self._shares: dict[int, float] = {}  # bytes of each flow per iteration
        self.companions: dict[int, Edge] = {}  # flows between its members that carry other bytes in each iteration
        self._their_groups: tuple[TrafficGroup, ...] = ()

    def take(self, flows: Mapping[int, Edge], hosts: Mapping[str, str]) -> None:
        """These are the job's flows; begin() has to follow."""
        self.flows = dict(flows)
        edges = set(flows.values())
        members = ordered({address for edge in edges for address in edge}, edges)
        names = tuple(hosts.get(member, "") for member in members)
        self.found = replace(self.found, members=members, hosts=names, pattern=pattern_of(edges))

    def forget(self, flows: Iterable[int]) -> None:
        for flow in flows:
            self.flows.pop(flow, None)
            self.companions.pop(flow, None)

    def join(self, flows: Mapping[int, Edge], group: TrafficGroup) -> None:
        """These flows are its, too, for all that they carry other bytes each time."""
        self.companions |= flows
        self._their_groups += (group,)
        self.found = replace(self.found, groups=(*self.found.groups, group))

    @property
    def all_flows(self) -> dict[int, Edge]:
        """Also those that do not repeat themselves."""
        return {**self.flows, **self.companions}

    @property
    def begun_ns(self) -> npt.NDArray[np.int64]:
        """When its last iterations did, sixteen at most."""
        return np.array(self._begun, np.int64)

    def review(self, bursts: Mapping[int, Bursts], now_ns: int) -> list[InferredIteration] | None:
        """Look back over all that is kept, now and then: what was taken for iterations may be parts of longer ones.

        Gives iterations that have ended, if so; None while it is not time. A job whose flows begin at times of their
        own is given up then: they are counted anew.
        """
        if self._number - self._reviewed < min(_REMEMBERED, max(INTERVALS, self._reviewed)):
            return None
        self._reviewed = self._number
        if self._staggered:
            return self._recount(bursts, now_ns)
        rows, found = self._longer(bursts, now_ns)
        if found is None:
            return []
        seldom = found.volume > MOST_PARTS * self.volume and self.period_ns >= SHORT_NS  # it writes a checkpoint, say
        after_longer_pauses = self._baseline_ns < SHORT**2 * found.pause_ns and not seldom
        if not ((after_longer_pauses and not self.pauses_within) or self._are_parts(rows, found)):
            return []
        self._after_ns, self._open = self.last_ns, None
        return self.begin(found, bursts)

    def _recount(self, bursts: Mapping[int, Bursts], now_ns: int) -> list[InferredIteration] | None:
        """Give up a job whose iterations are parts of longer ones, while its flows still know where they began."""
        if self._number > _EARLY or any(b.forgetful for _, b in self._kept(bursts)):
            return None
        rows, found = self._longer(bursts, now_ns)
        if found is None or not self._are_parts(rows, found):
            return None
        self.give_up()
        return []

    def _longer(self, bursts: Mapping[int, Bursts], now_ns: int) -> tuple[Table, Repetition | None]:
        """All flows together, and how they repeat themselves, where that takes longer than its iterations."""
        rows = together([b.rows for _, b in self._kept(bursts)], self._resolution_ns)
        found = repetition(rows, now_ns)
        return rows, found if found and found.volume > _LONGER * self.volume else None

    def _are_parts(self, rows: Table, found: Repetition) -> bool:
        """Whether they are a step's blocks; or differ in turn, and all recurs only after as many as the repetition has.

        The latter shows early. Later it would be so by chance at some time.
        """
        if found.of_blocks:
            return True
        parts = round(found.volume / self.volume)
        early = self._number <= _EARLY
        return early and one_differs(np.array(self._periods), parts) and recurs(rows, found.volume)

    @property
    def last_ns(self) -> int:
        """When the open iteration began; −1: there is none."""
        return self._open.time_ns if self._open else -1

    @property
    def volume(self) -> float:
        """Bytes of all flows per iteration."""
        return float(median(self._volumes))

    @property
    def period_ns(self) -> float:
        """Median of the last iterations."""
        return float(median(self._periods))

    @property
    def _baseline_ns(self) -> float:
        """A pause of at least so long may be one in which the ranks compute."""
        return SHORT * float(median(self._pauses))

    def begin(
        self, found: Repetition, bursts: Mapping[int, Bursts], starts: Sequence[Start] = ()
    ) -> list[InferredIteration]:
        """Take a repetition of the flows together for this job's iterations; gives those that have ended.

        starts: of the iterations, where the flows begin them at times of their own.
        """
        self._staggered = bool(starts)
        for remembered in (self._volumes, self._pauses, self._periods):
            remembered.clear()
        self._pauses.append(int(found.pause_ns))
        self._periods.append(int(found.period_ns))
        onsets = list(starts) or [self._all_at(onset, bursts) for onset in found.onsets_ns.tolist()]
        begun = [levels for _, levels in onsets]
        self._shares = {
            flow: float(np.median(np.diff([levels[flow] for levels in begun]))) for flow, _ in self._kept(bursts)
        }
        self._volumes.append(round(sum(self._shares.values())) if starts else found.volume)
        last_ns = self._open.time_ns if self._open else self._after_ns
        if not starts:
            onsets = [*self._earlier(*onsets[0], bursts), *onsets]
        new = [onset for onset in onsets if onset[0] > last_ns]
        onsets = new if new or self._open else onsets[-1:]
        return [i for onset in onsets if (i := self._next(*onset, bursts))]

    def follow(self, bursts: Mapping[int, Bursts], now_ns: int) -> list[InferredIteration]:
        """Iterations that have ended since; every row before now_ns has been added to the bursts."""
        ended: list[InferredIteration] = []
        while True:
            if self._open and self._goes_on(self._open, bursts, now_ns):
                self.given_up = False
                return ended
            start = self._find_next(bursts, now_ns)
            if not (start and self._open and start[0] > self._open.time_ns):
                break
            iteration = self._next(*start, bursts)
            ended += [iteration] if iteration else []
        rows = self._since(bursts)
        lost = len(rows) and rows["volume"].sum() > _LOST * self.volume
        if lost and not self._staggered and (found := repetition(rows, now_ns)):
            return ended + self.begin(found, bursts)
        self.given_up = bool(lost) and (self._staggered or rows["volume"].sum() > _GIVEN_UP * self.volume)
        if not self.found.ended and (self.given_up or self._silent(rows, now_ns)):
            ended += self.end(bursts)
        return ended

    def _goes_on(self, begun: Beginning, bursts: Mapping[int, Bursts], now_ns: int) -> bool:
        """Whether the open iteration does: it has not all its bytes yet, and the job is not over."""
        if self._sent_since(begun, bursts) > (1 + self.tolerance) * self.volume:
            return False
        kept, levels = self._kept(bursts), begun.levels
        last_ns = max((b.last_ns for flow, b in kept if b.total > levels.get(flow, b.total)), default=begun.time_ns)
        return self.found.ended or not self._is_over(last_ns, now_ns)

    def end(self, bursts: Mapping[int, Bursts]) -> list[InferredIteration]:
        """The job is over: its last iteration, if that was a whole one, ends with its traffic."""
        rows = self._since(bursts)
        last: list[InferredIteration] = []
        begun = self._open if len(rows) and not self._reported else None
        if begun and abs(self._sent_since(begun, bursts) - self.volume) <= self.tolerance * self.volume:
            ends = {flow: b.ended_ns for flow, b in self._kept(bursts)}
            last = [self._iteration(begun, int(rows["end_ns"][-1]), ends)]
            self._reported = True
        self.found = replace(self._described(), ended=True)
        return last

    def give_up(self) -> None:
        """This is no job."""
        self.given_up = True
        self.found = replace(self._described(), ended=True)

    def _silent(self, rows: Table, now_ns: int) -> bool:
        last_ns = int(rows["end_ns"][-1]) if len(rows) else self._open.time_ns if self._open else now_ns
        return self._is_over(last_ns, now_ns)

    def _is_over(self, last_ns: int, now_ns: int) -> bool:
        return now_ns - last_ns > max(_END_NS, _END_PERIODS * self.period_ns)

    def _kept(self, bursts: Mapping[int, Bursts]) -> list[tuple[int, Bursts]]:
        return [(flow, bursts[flow]) for flow in self.flows if flow in bursts]

    def _since(self, bursts: Mapping[int, Bursts]) -> Table:
        """What the flows did together since the open iteration began."""
        if self._open is None:
            return together([], self._resolution_ns)
        return together(self._each_since(self._open, bursts).values(), self._resolution_ns)

    def _sent_since(self, begun: Beginning, bursts: Mapping[int, Bursts]) -> int:
        """Bytes since an iteration began, which may be within a burst."""
        return sum(b.total - begun.levels.get(flow, b.total) for flow, b in self._kept(bursts))

    def _each_since(self, begun: Beginning, bursts: Mapping[int, Bursts]) -> dict[int, Table]:
        """What each flow did since an iteration began; those that have gone on."""
        found = {}
        for flow, b in self._kept(bursts):
            level = begun.levels.get(flow, b.total)
            if b.total > level:
                rows = b.rows_around(level)
                found[flow] = rows[rows["level"].searchsorted(level) :]
        return found

    def _find_next(self, bursts: Mapping[int, Bursts], now_ns: int) -> Start | None:
        """Where the next iteration begins, and the bytes of every flow before it; None if that is not known yet."""
        rows = self._since(bursts)
        if self._open is None or not len(rows):
            return None
        total = int(rows["level"][-1] + rows["volume"][-1])
        if total <= (1 + self.tolerance) * self.volume:
            return None
        if self._staggered:
            onsets, waiting = self._each(self._open.levels, 1, bursts)
            late = bool(onsets) and now_ns - min(onsets.values())[0] > _PATIENCE * self.period_ns
            return None if not onsets or (waiting and not late) else self._agreed(onsets, bursts)
        pauses, levels = pauses_before(rows), rows["level"]
        index = self._boundary(rows, self.volume, self.volume)
        if index is not None and pauses[index] >= self._baseline_ns:
            return self._all_at(int(rows["start_ns"][index]), bursts)
        onsets, waiting = self._each(self._open.levels, 1, bursts)
        late = bool(onsets) and now_ns - min(onsets.values())[0] > self.period_ns
        if 2 * len(onsets) >= len(self.flows) and (late or len(onsets) > waiting):
            return self._agreed(onsets, bursts)
        if waiting and total <= (1 + SHORT) * self.volume:
            return None
        return self._recover(rows, pauses, levels, bursts)

    def _each(
        self, levels: Mapping[int, int], iterations: int, bursts: Mapping[int, Bursts]
    ) -> tuple[dict[int, tuple[int, int]], int]:
        """Where each flow by itself begins an iteration later, or −1 earlier: (time, its level then).

        Also how many flows have not come so far. Where a slow rank or a lost segment keeps some flows busy, the
        others may begin the next iteration already, so that there is no moment at which all pause.
        """
        onsets, waiting = {}, 0
        for flow, b in self._kept(bursts):
            expected = levels.get(flow, b.total) + iterations * self._shares[flow]
            if iterations > 0 and b.total <= expected + self.tolerance * self._shares[flow]:
                waiting += 1
                continue
            rows = b.rows_around(expected - self.tolerance * self._shares[flow])
            near = self._nearest if self._staggered else self._boundary
            index = near(rows, expected, self._shares[flow])
            if index is not None:
                onsets[flow] = int(rows["start_ns"][index]), int(rows["level"][index])
        return onsets, waiting

    def _boundary(self, rows: Table, level: float, volume: float) -> int | None:
        slack = self.tolerance * volume
        return beginning(rows, pauses_before(rows), (level - slack, level, level + slack), volume, self._baseline_ns)

    def _nearest(self, rows: Table, level: float, volume: float) -> int | None:
        separate = np.abs(rows["level"] - level)
        index = int(np.argmin(separate))
        return index if separate[index] <= max(self.tolerance * volume, SEGMENT_BYTES) else None

    def _agreed(self, onsets: Mapping[int, tuple[int, int]], bursts: Mapping[int, Bursts]) -> Start:
        """The first of the flows' own beginnings, but for those too far from most."""
        middle = float(np.median([time_ns for time_ns, _ in onsets.values()]))
        difference_ns = (_PATIENCE if self._staggered else SHORT) * self.period_ns
        time_ns = min(t for t, _ in onsets.values() if t >= middle - difference_ns)
        levels = {flow: b.total - b.since(time_ns) for flow, b in self._kept(bursts)}
        if self._staggered and 2 * len(onsets) > len(levels):
            levels |= self._due(bursts)
        return time_ns, levels | {flow: level for flow, (_, level) in onsets.items()}

    def _all_at(self, time_ns: int, bursts: Mapping[int, Bursts]) -> Start:
        return time_ns, {flow: b.total - b.since(time_ns) for flow, b in self._kept(bursts)}

    def _due(self, bursts: Mapping[int, Bursts]) -> dict[int, int]:
        """Levels an iteration after the open one began, of flows that have come so far: be it in the midst of a burst,
        as where a busy host sends one block right after another.
        """
        begun = self._open.levels if self._open else {}
        due = {flow: round(begun[flow] + self._shares[flow]) for flow, _ in self._kept(bursts) if flow in begun}
        return {flow: level for flow, level in due.items() if bursts[flow].total >= level}

    def _earlier(self, time_ns: int, levels: Mapping[int, int], bursts: Mapping[int, Bursts]) -> list[Start]:
        """Beginnings of the iterations before, as far back as most flows by themselves have them."""
        found: list[Start] = []
        while True:
            onsets, _ = self._each(levels, -1, bursts)
            if 2 * len(onsets) <= len(self.flows):
                return found[::-1]
            earlier, levels = self._agreed(onsets, bursts)
            if earlier >= time_ns:
                return found[::-1]
            time_ns = earlier
            found.append((time_ns, dict(levels)))

    def _recover(
        self, rows: Table, pauses: npt.NDArray[np.int64], levels: npt.NDArray[np.int64], bursts: Mapping[int, Bursts]
    ) -> Start | None:
        """An iteration of other bytes than in the baseline: it ends where a normal one begins."""
        long = np.flatnonzero(pauses[1:] >= self._baseline_ns) + 1
        volume = self.volume
        for index in long:
            following = np.abs(levels[long] - levels[index] - volume) <= self.tolerance * volume
            if following.any():
                return self._all_at(int(rows["start_ns"][index]), bursts)
        return None

    def _next(self, time_ns: int, levels: Mapping[int, int], bursts: Mapping[int, Bursts]) -> InferredIteration | None:
        """An iteration begins; gives the one that ends thereby, if it is known when that began."""
        before, self._open = self._open, self._beginning(time_ns, levels, bursts)
        self._begun.append(time_ns)
        if self.found.ended:
            self.found = replace(self.found, ended=False)
        reported, self._reported = self._reported, False
        self._ended_ns = 0 if reported or before is None else self._ended_ns
        if before is None:
            return None
        volume = sum(level - before.levels.get(flow, level) for flow, level in levels.items())
        if abs(volume - self.volume) <= self.tolerance * self.volume:
            self._volumes.append(volume)
        if not reported:
            self._periods.append(time_ns - before.time_ns)
        self._pauses.append(self._open.pause_ns)
        return None if reported else self._iteration(before, time_ns - self._open.pause_ns, self._open.ends)

    def _beginning(self, time_ns: int, levels: Mapping[int, int], bursts: Mapping[int, Bursts]) -> Beginning:
        ends, starts = {}, {}
        for flow, b in self._kept(bursts):
            rows = b.rows_around(levels[flow])
            index = int(rows["level"].searchsorted(levels[flow]))
            if index:
                ends[flow] = int(rows["end_ns"][index - 1])
            if index < len(rows):
                starts[flow] = int(rows["start_ns"][index])
        pause_ns = max(0, time_ns - max(ends.values())) if ends else 0
        spread_ns = max(0, int(np.median([*starts.values()])) - time_ns) if starts else 0
        return Beginning(time_ns, pause_ns, spread_ns, dict(levels), starts, ends)

    def _iteration(self, begun: Beginning, end_ns: int, ends: Mapping[int, int]) -> InferredIteration:
        """The iteration that begun; its traffic ended at end_ns, that of each flow at ends."""
        error = self._resolution_ns + begun.spread_ns
        number, self._number = self._number, self._number + 1
        end_ns = max(end_ns, begun.time_ns)
        start_ns = self._ended_ns or begun.time_ns
        received = self._received(begun, end_ns, ends)
        self._ended_ns = end_ns = max(received)
        return InferredIteration(self.name, number, start_ns, end_ns, begun.time_ns, end_ns, error, received)

    def _received(self, begun: Beginning, end_ns: int, ends: Mapping[int, int]) -> tuple[int, ...]:
        """Per member, the end of the last burst that came to it after the iteration began and before the next did.

        Or when it spoke again, where that was soon after.
        """
        if self._staggered:
            return self._through_by_themselves(ends)
        last = dict.fromkeys(self.found.members, begun.time_ns)
        for flow, flow_end_ns in ends.items():
            receiver = self.flows[flow][1]
            if receiver in last:
                last[receiver] = max(last[receiver], flow_end_ns)
        next_ns = self._open.time_ns if self._open and self._open is not begun else NEVER
        return tuple(self._through(member, min(time_ns, end_ns), next_ns) for member, time_ns in last.items())

    def _through_by_themselves(self, ends: Mapping[int, int]) -> tuple[int, ...]:
        """The same where each member begins the next iteration at a time of its own: the end of all its bursts."""
        through = []
        begun = self._open.starts if self._open else {}
        for member in self.found.members:
            own = [flow for flow, edge in self.flows.items() if member in edge]
            last_ns = max((ends[flow] for flow in own if flow in ends), default=0)
            next_ns = min((begun[flow] for flow in own if begun.get(flow, 0) > last_ns), default=NEVER)
            through.append(self._through(member, last_ns, next_ns))
        return tuple(through)

    def _through(self, member: str, received_ns: int, next_ns: int) -> int:
        """When a member spoke again, if that was soon after it had received its last gradient; else when it had."""
        soon_ns = received_ns + int(_SOON * self.period_ns)
        spoke_ns = self._words.first(member, self.found.members, received_ns, min(soon_ns, next_ns))
        return min(spoke_ns, next_ns) if spoke_ns else received_ns

    def find_groups(self, bursts: Mapping[int, Bursts]) -> None:
        """Now and then: which groups of its members exchange something among themselves."""
        if self._open is None or self._grouped > self._number:
            return
        self._grouped = 2 * self._number + INTERVALS
        groups = groups_of(self.flows, self._shares, bursts, self._begun[0], self.one_phase)
        pattern = PIPELINE if [group.kind for group in groups] == [PIPELINE] else self.found.pattern
        self.found = replace(self.found, groups=(*groups, *self._their_groups), pattern=pattern)

    def _described(self) -> InferredJob:
        senders = len({sender for sender, _ in self.flows.values()})
        volume = int(self.volume / senders) if senders else self.found.bytes_per_iteration
        return replace(self.found, period_ns=int(self.period_ns), bytes_per_iteration=volume)

    def describe(self) -> InferredJob:
        """The job as it is now."""
        self.found = self._described()
        return self.found
