# SPDX-License-Identifier: Apache-2.0
"""Which iteration each row of all hosts belongs to."""

import numpy as np
import numpy.typing as npt

from collector.host.flows import AllFlows
from collector.host.rank_table import RankSteps
from netmon.dl.grouped import GroupedValues, edges, starts

_Numbers = npt.NDArray[np.int64]
_NEVER = np.iinfo(np.int64).max


class AllSteps:
    """The ranks of all hosts and their iterations, as they are now."""

    def __init__(self, ranks: RankSteps, flows: AllFlows, sessions: int) -> None:
        """sessions: one more than the largest index."""
        self._flows, self._sessions = flows, sessions
        self._session, self._job, self._shift = ranks.session, ranks.job, ranks.shift
        order = np.lexsort((ranks.begin_ns, ranks.of_rank))
        of_iterations = (ranks.begin_ns, ranks.end_ns, ranks.number, ranks.of_rank)
        self._begin, self._end, self._number, self._of_rank = (column[order] for column in of_iterations)
        self._spans = GroupedValues(self._of_rank, self._begin, len(self._session))
        self._passes = self._by_rank_id(ranks.rank_id)
        seen = ~ranks.hidden
        self._by_process, self._inferred = (
            _Presence(self._session[some], ranks.since_ns[some], ranks.until_ns[some], some, sessions)
            for some in (np.flatnonzero(seen & ranks.by_process), np.flatnonzero(seen & ~ranks.by_process))
        )

    def _by_rank_id(self, rank_id: _Numbers) -> list[_Numbers]:
        """The rank of each rank id, −1: none; more than one where one process was this rank before another one."""
        # The n-th row of one rank id is in the n-th pass.
        order = np.argsort(rank_id, kind="stable")
        first = starts(rank_id[order])
        turn = np.empty(len(rank_id), np.int64)
        turn[order] = np.arange(len(rank_id)) - np.repeat(first, np.diff(np.append(first, len(rank_id))))
        passes: list[_Numbers] = []
        for number in range(int(turn.max(initial=-1)) + 1):
            own = np.flatnonzero(turn == number)
            passes.append(np.full(self._flows.rank_ids, -1))
            passes[-1][rank_id[own]] = own
        return passes

    def stamp(self, session: _Numbers, flow: _Numbers, start_ns: _Numbers) -> tuple[_Numbers, _Numbers]:
        """Job and iteration of each row, −1 between iterations; arrays of one length.

        Of a row that is no rank's: of the only rank that trained on its host then; no job unless exactly one did.
        """
        job = self._flows.of_flows("job", flow).astype(np.int64)
        number = np.full(len(flow), -1, np.int64)
        if not len(self._session):
            return job, number
        own = np.flatnonzero(job)
        rank_id = self._flows.of_flows("rank_id", flow[own])
        for ranks in self._passes:
            rank = ranks[rank_id]
            there = np.flatnonzero(rank >= 0)
            at = own[there]
            number[at] = np.maximum(number[at], self._numbers(rank[there], start_ns[at]))
        first = starts(session, start_ns)  # rows of one time follow each other: looked up once
        rank = np.full(len(first), -1)
        there = np.flatnonzero(np.isin(session[first], self._session))
        rank[there] = self._alone(session[first[there]], start_ns[first[there]])
        there = np.flatnonzero(rank >= 0)
        of_run, of_job = np.full(len(first), -1), np.zeros(len(first), np.int64)
        of_job[there], of_run[there] = self._job[rank[there]], self._numbers(rank[there], start_ns[first[there]])
        count, others = np.diff(np.append(first, len(flow))), job == 0
        return np.where(others, np.repeat(of_job, count), job), np.where(others, np.repeat(of_run, count), number)

    def _numbers(self, rank: _Numbers, start_ns: _Numbers) -> _Numbers:
        """The iteration of each rank at each time."""
        if not len(self._begin):
            return np.full(len(rank), -1, np.int64)
        at = self._spans.positions(rank, start_ns) - 1
        inside = (at >= 0) & (self._of_rank[at] == rank) & (start_ns < self._end[at])
        inside &= self._number[at] >= 0
        return np.where(inside, self._number[at] + self._shift[rank], -1)

    def _alone(self, session: _Numbers, time_ns: _Numbers) -> _Numbers:
        """The only rank that trains on each host at each time; −1: none or more than one.

        A rank that only its traffic reports does where no process on its host is known to: it may be the same one.
        """
        at_process, which = self._by_process.at(session, time_ns)
        inferred, other = self._inferred.at(session, time_ns)
        return np.where(at_process == 1, which, np.where((at_process == 0) & (inferred == 1), other, -1))


class _Presence:
    """How many ranks are there at a time, and the sum of their numbers: which one it is, if it is one."""

    def __init__(
        self, session: _Numbers, since_ns: _Numbers, until_ns: _Numbers, number: _Numbers, sessions: int
    ) -> None:
        """One row per rank; sessions: one more than the largest index."""
        ends = np.flatnonzero(until_ns < _NEVER)
        session = np.concatenate([session, session[ends]])
        time_ns = np.concatenate([since_ns, np.maximum(since_ns, until_ns)[ends]])
        count = np.concatenate([np.ones(len(number), np.int64), np.full(len(ends), -1)])
        number = np.concatenate([number, -number[ends]])
        order = np.lexsort((number, count, time_ns, session))
        session, time_ns = session[order], time_ns[order]
        self._values = GroupedValues(session, time_ns, sessions)
        self._first = edges(session, sessions)
        self._count, self._number = (np.append(0, np.cumsum(column[order])) for column in (count, number))

    def at(self, session: _Numbers, time_ns: _Numbers) -> tuple[_Numbers, _Numbers]:
        """Count and sum, by session and time."""
        if len(self._count) == 1:
            return np.zeros(len(session), np.int64), np.zeros(len(session), np.int64)
        at, first = self._values.positions(session, time_ns), self._first[session]
        return self._count[at] - self._count[first], self._number[at] - self._number[first]
