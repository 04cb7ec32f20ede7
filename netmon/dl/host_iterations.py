# SPDX-License-Identifier: Apache-2.0
"""The ranks of one host and their iterations, from the marks of all that tells of them."""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from netmon.dl.iterations import Iteration, IterationTracker
from netmon.dl.understanding import Understanding
from netmon.records import ITERATION, SCORE, Mark, Moment, RankState, Source, Training

_REFINED_NS = 10_000_000_000  # what another source tells later of an iteration's communication is not waited for
_SCORED_NS = 2_000_000_000  # between two scores of a rank's sources
_MOST_GONE = 1_000  # processes remembered as gone
_FOREVER = 1 << 62

REPEATED, GONE, STRANGER = (
    "repeated, out of order or out of any iteration",
    "of a process that is gone",
    "of a process that never joined",
)
"""Why a mark is not used."""

_Key = tuple[str, int, int]
"""Job as the process calls it, rank, pid."""
_Row = tuple[int, ...]
"""Of ITERATION, without the rank's id."""


@dataclass
class _Rank:
    """A process as one rank, until all that told of it has seen it leave."""

    tracker: IterationTracker
    rank_id: int
    pid: int
    joined: dict[Source, int] = field(default_factory=dict)  # when, as the next one
    left: dict[Source, int] = field(default_factory=dict)
    understanding: Understanding = Understanding.UNDERSTOOD
    set_ups: int = 0
    ended: list[Iteration] = field(default_factory=list)  # that nobody has taken
    recent: deque[tuple[Iteration, _Row]] = field(default_factory=deque)  # those that were taken, as they were
    refined_ns: int = _FOREVER  # since when something new may be known of those
    open: _Row = ()  # the iteration under way, as it was taken
    state: RankState | None = None  # as it was taken
    scores: list[_Row] = field(default_factory=list)  # as they were taken
    scored_ns: int = 0

    @property
    def steps(self) -> bool:
        return self.tracker.source is not None

    @property
    def over(self) -> bool:
        """Whether every source that saw it join has seen it leave."""
        return bool(self.left) and self.left.keys() >= self.joined.keys()

    def leave(self, time_ns: int) -> None:
        """No source will tell more of it as this rank."""
        self.left = dict.fromkeys(self.joined, time_ns) | self.left
        for source in self.left:
            self.tracker.leave(source)
        self.end()

    def end(self) -> None:
        self.ended += self.tracker.finished(self.over)

    def now(self) -> RankState:
        tracker = self.tracker
        return RankState(
            *(self.rank_id, tracker.job, tracker.rank, tracker.size, self.pid, min(self.joined.values(), default=0)),
            *(max(self.left.values()) if self.over else 0, int(tracker.trust), Source.HOOK in self.joined),
            *(int(self.understanding), self.set_ups, tracker.parameters, tracker.gradient_bytes),
            *(int(tracker.parameters_source or 0), tracker.job_name),
        )

    def take(self) -> list[_Row]:
        """What is new of its iterations."""
        rows = list(self._refined())
        for one in self.ended:
            row = self._row(one)
            rows.append(row)
            if self.tracker.several:
                self.recent.append((one, row))
        self.ended = []
        under_way = self._under_way()
        if under_way != self.open:
            if self.open and self.open[0] not in {row[0] for row in (*rows, under_way) if row}:
                rows.append((*self.open[:4], self.open[4], self.open[4], *self.open[6:]))  # it never was
            rows += [under_way] if under_way else []
            self.open = under_way
        for start, end in self.tracker.from_other_sources:
            moments = start.moment, end.moment
            rows.append((-1, int(self.tracker.source or Source.HOOK), *moments, start.time_ns, end.time_ns, 0, 0, 0, 0))
        self.tracker.from_other_sources.clear()
        return rows

    def _row(self, one: Iteration) -> _Row:
        first, last, wait = self.tracker.communication(one.start_ns, one.end_ns)
        moments = int(one.start_moment), int(one.end_moment)
        return one.number, int(one.source), *moments, one.start_ns, one.end_ns, one.error_ns, first, wait, last

    def _refined(self) -> Iterable[_Row]:
        """Iterations that were taken of which more is known now."""
        for place, (one, taken) in enumerate(self.recent if self.refined_ns < _FOREVER else ()):
            if one.end_ns >= self.refined_ns and (row := self._row(one)) != taken:
                self.recent[place] = one, row
                yield row
        self.refined_ns = _FOREVER
        oldest_ns = self.tracker.finished_ns - _REFINED_NS
        while self.recent and self.recent[0][0].end_ns < oldest_ns:
            self.recent.popleft()

    def _under_way(self) -> _Row:
        start = self.tracker.under_way()
        if start is None or self.tracker.source is None or self.over:
            return ()
        first, last, wait = self.tracker.communication(start.time_ns, _FOREVER)
        whose = start.number, int(self.tracker.source), start.moment, 0
        return *whose, start.time_ns, 0, start.error_ns, first, wait, last

    def score(self) -> list[_Row]:
        """How its other sources do against the best one, where that is another score than before."""
        if not self.tracker.several or not (self.over or self.tracker.finished_ns >= self.scored_ns + _SCORED_NS):
            return []
        self.scored_ns, before = self.tracker.finished_ns, self.scores
        self.scores = [
            (int(one.source), int(one.reference), one.iterations, one.found, one.matched, one.error_ns)
            for one in self.tracker.scores()
        ]
        return self.scores if self.scores != before else []


class HostIterations:
    """One per host: marks go in, what is new of its ranks comes out."""

    def __init__(self) -> None:
        self._ranks: dict[_Key, _Rank] = {}
        self._over: list[_Rank] = []  # whose process is another rank now, or this one anew; not taken yet
        self._gone: dict[_Key, None] = {}
        self._ids = count(1)
        self._news: dict[int, _Rank] = {}  # by rank id
        self.unusable: Counter[str] = Counter()  # marks that led to nothing, by reason

    def add(self, marks: Iterable[Mark]) -> None:
        """Marks in the order in which they came."""
        for mark in marks:
            self._add(mark)

    def _add(self, mark: Mark) -> None:
        key = mark.job, mark.rank, mark.pid
        rank = self._ranks.get(key)
        if mark.moment is Moment.JOIN:
            rank = self._join(key, mark)
        elif rank is None:
            if mark.moment is not Moment.LEAVE:
                self.unusable[GONE if key in self._gone else STRANGER] += 1
            return
        elif mark.moment is Moment.LEAVE:
            rank.left[mark.source] = mark.time_ns
            rank.tracker.leave(mark.source)
        else:
            self._step(rank, mark)
        self._news[rank.rank_id] = rank
        rank.end()

    def _step(self, rank: _Rank, mark: Mark) -> None:
        rank.tracker.add(mark)
        if mark.source != rank.tracker.source:
            rank.refined_ns = min(rank.refined_ns, mark.time_ns)

    def _join(self, key: _Key, mark: Mark) -> _Rank:
        self._gone.pop(key, None)
        rank = self._ranks.get(key)
        if rank and mark.source in rank.left and rank.steps and not rank.over:
            rank.set_ups += 1
        resized = rank and rank.steps and mark.size and rank.tracker.size not in (0, mark.size)
        if rank is None or rank.over or resized:
            self._end_others(mark)
            rank = self._ranks[key] = _Rank(IterationTracker(mark.job, mark.rank), next(self._ids), mark.pid)
        rank.tracker.size = mark.size
        rank.tracker.observe_job(mark)
        rank.tracker.join(mark.source)
        rank.joined[mark.source] = mark.time_ns
        if mark.source is Source.UPROBE:
            rank.understanding = Understanding(min(max(mark.iteration, 0), Understanding.NOT_UNDERSTOOD))
        rank.left.pop(mark.source, None)
        return rank

    def _end_others(self, mark: Mark) -> None:
        """What the process has been in the job until now, it is no more."""
        for key, rank in list(self._ranks.items()):
            if (rank.pid, rank.tracker.job) == (mark.pid, mark.job) and (rank.steps or rank.over):
                if not rank.over:
                    rank.leave(mark.time_ns)
                self._news[rank.rank_id] = rank
                self._over.append(self._ranks.pop(key))

    def take(self) -> Training:
        """All that is new since the last time; of a rank first what it was."""
        states, rows, scores = list[RankState](), list[_Row](), list[_Row]()
        for rank_id, rank in sorted(self._news.items()):
            found = rank.take()
            rows += [(rank_id, *row) for row in found]
            scores += [(rank_id, *score) for score in rank.score()]
            state = rank.now()
            if found or state != rank.state:
                states.append(state)
            rank.state = state
            if rank.tracker.unusable:
                self.unusable[REPEATED] += rank.tracker.unusable
                rank.tracker.unusable = 0
            rank.tracker.forget(rank.tracker.finished_ns - _REFINED_NS if rank.tracker.several else _FOREVER)
        self._news = {}
        self._forget()
        return Training(tuple(states), np.array(rows, ITERATION), np.array(scores, SCORE))

    def _forget(self) -> None:
        self._over = []
        for key in [key for key, rank in self._ranks.items() if rank.over]:
            del self._ranks[key]
            self._gone[key] = None
        while len(self._gone) > _MOST_GONE:
            del self._gone[next(iter(self._gone))]

    def present(self) -> Training:
        """The ranks that were taken and are there, with their iterations under way: for whoever hears of them first."""
        there = [rank for rank in self._ranks.values() if rank.state]
        rows = [(rank.rank_id, *rank.open) for rank in there if rank.open]
        return Training(tuple(rank.state for rank in there if rank.state), np.array(rows, ITERATION))
