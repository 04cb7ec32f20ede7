# SPDX-License-Identifier: Apache-2.0
"""Which iteration each row of all hosts belongs to."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from collector.host.flows import AllFlows
from collector.host.rank import Steps
from netmon.dl.grouped import GroupedValues, edges
from netmon.records import Table

_Numbers = npt.NDArray[np.int64]
_NEVER = np.iinfo(np.int64).max


class AllSteps:
    """The ranks of all hosts and their iterations, as they are now."""

    def __init__(self, of_sessions: Iterable[tuple[int, Sequence[Steps]]], flows: AllFlows, sessions: int) -> None:
        """of_sessions: place of each session that has ranks, and those; sessions: how many places there are."""
        ranks = [(session, steps) for session, own in of_sessions for steps in own]
        self._flows, self._sessions = flows, sessions
        self._session = np.array([session for session, _ in ranks], np.int64)
        self._job = np.array([flows.job(steps.job) for _, steps in ranks], np.int64)
        self._shift = np.array([steps.shift for _, steps in ranks], np.int64)
        spans = [span for _, steps in ranks for span in steps.spans]
        self._begin, self._end, self._number = np.array(spans, np.int64).reshape(-1, 3).T
        of_rank = np.repeat(np.arange(len(ranks)), [len(steps.spans) for _, steps in ranks])
        self._of_rank = of_rank
        self._spans = GroupedValues(of_rank, self._begin, len(ranks))
        self._passes = self._by_stepper(ranks)
        self._told = _Presence([r for r in self._events(ranks) if r[-1]], sessions)
        self._inferred = _Presence([r for r in self._events(ranks) if not r[-1]], sessions)

    def _by_stepper(self, ranks: list[tuple[int, Steps]]) -> list[_Numbers]:
        """The rank of each stepper, −1: none; several times where one has been this rank before another one."""
        passes: list[_Numbers] = []
        for place, (session, steps) in enumerate(ranks):
            stepper = self._flows.stepper(session, int(self._job[place]), steps.rank)
            for one in passes:
                if stepper >= len(one) or one[stepper] < 0:
                    break
            else:
                one = np.full(self._flows.steppers + len(ranks), -1)
                passes.append(one)
            one[stepper] = place
        return passes

    @staticmethod
    def _events(ranks: list[tuple[int, Steps]]) -> list[tuple[int, int, int, int, bool]]:
        return [(s, r.since_ns, r.until_ns, place, r.told) for place, (s, r) in enumerate(ranks) if not r.hidden]

    def stamp(self, session: _Numbers, flow: _Numbers, start_ns: _Numbers) -> tuple[_Numbers, _Numbers]:
        """Job and iteration of each row, −1 between iterations; arrays of one length.

        Of a row that is no rank's: of the only rank that trained on its host then; no job where none or several did.
        """
        state: Table = self._flows.state
        job = state["job"][flow].astype(np.int64)
        number = np.full(len(flow), -1, np.int64)
        if not len(self._session):
            return job, number
        own = np.flatnonzero(job)
        stepper = state["stepper"][flow[own]]
        for ranks in self._passes:
            rank = ranks[stepper]
            there = np.flatnonzero(rank >= 0)
            at = own[there]
            number[at] = np.maximum(number[at], self._numbers(rank[there], start_ns[at]))
        others = np.flatnonzero(job == 0)
        others = others[np.isin(session[others], self._session)]
        rank = self._alone(session[others], start_ns[others])
        there = np.flatnonzero(rank >= 0)
        at = others[there]
        job[at], number[at] = self._job[rank[there]], self._numbers(rank[there], start_ns[at])
        return job, number

    def _numbers(self, rank: _Numbers, start_ns: _Numbers) -> _Numbers:
        """The iteration of each rank at each time."""
        if not len(self._begin):
            return np.full(len(rank), -1, np.int64)
        place = self._spans.places(rank, start_ns) - 1
        inside = (place >= 0) & (self._of_rank[place] == rank) & (start_ns < self._end[place])
        inside &= self._number[place] >= 0
        return np.where(inside, self._number[place] + self._shift[rank], -1)

    def _alone(self, session: _Numbers, time_ns: _Numbers) -> _Numbers:
        """The only rank that trains on each host at each time; −1: none or several.

        A rank that only its traffic tells of does where no process on its host is known to: it may be the same one.
        """
        told, which = self._told.at(session, time_ns)
        inferred, other = self._inferred.at(session, time_ns)
        return np.where(told == 1, which, np.where((told == 0) & (inferred == 1), other, -1))


class _Presence:
    """How many ranks are there at a time, and the sum of their numbers: which one it is, if it is one."""

    def __init__(self, ranks: list[tuple[int, int, int, int, bool]], sessions: int) -> None:
        """ranks: session, since, until, number of each."""
        events = [(s, since, 1, rank) for s, since, _, rank, _ in ranks]
        events += [(s, max(since, until), -1, -rank) for s, since, until, rank, _ in ranks if until < _NEVER]
        session, time_ns, count, number = np.array(sorted(events), np.int64).reshape(-1, 4).T
        self._values = GroupedValues(session, time_ns, sessions)
        self._first = edges(session, sessions)
        self._count, self._number = (np.append(0, np.cumsum(column)) for column in (count, number))

    def at(self, session: _Numbers, time_ns: _Numbers) -> tuple[_Numbers, _Numbers]:
        """Count and sum, by session and time."""
        if len(self._count) == 1:
            return np.zeros(len(session), np.int64), np.zeros(len(session), np.int64)
        place, first = self._values.places(session, time_ns), self._first[session]
        return self._count[place] - self._count[first], self._number[place] - self._number[first]
