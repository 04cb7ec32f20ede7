# SPDX-License-Identifier: Apache-2.0
"""What has arrived on all hosts and the job stage has not been told of yet: payload, and beginnings after a rest."""

from collections import deque

import numpy as np
import numpy.typing as npt

from netmon.records import Table, empty

STARTING_NS = 1_000_000_000
"""The first bucket that an agent sees of a flow within it is not the flow's."""

UNTOLD = np.dtype([("session", "<i8"), ("flow", "<i8"), ("time_ns", "<i8"), ("amount", "<i8")])
"""Place of its session, index of its flow, start (mono); amount: bytes of payload, or the width of its bucket."""

_MOST_PIECES = 300  # ticks whose rows wait to be told
_MOST_ONSETS = 2_000  # of a session, that are told at one time: the newest
_Numbers = npt.NDArray[np.int64]


class UntoldRows:
    """Rows of UNTOLD, in the pieces in which they came."""

    def __init__(self) -> None:
        """Begin without rows."""
        self._pieces: deque[Table] = deque()
        self._lost: dict[int, int] = {}  # rows that nobody took in time, by session

    def add(self, session: _Numbers, flow: _Numbers, time_ns: _Numbers, amount: _Numbers) -> None:
        """Rows have come; arrays of one length."""
        if not len(flow):
            return
        rows = np.empty(len(flow), UNTOLD)
        for name, column in zip(UNTOLD.names or (), (session, flow, time_ns, amount), strict=True):
            rows[name] = column
        self._pieces.append(rows)
        if len(self._pieces) > _MOST_PIECES:
            for place, count in zip(*np.unique(self._pieces.popleft()["session"], return_counts=True), strict=True):
                self._lost[int(place)] = self._lost.get(int(place), 0) + int(count)

    def take(self, places: _Numbers, sessions: int) -> Table:
        """Hand over those of the sessions at these places, in their order; sessions: how many places there are."""
        turn = np.full(sessions, -1)
        turn[places] = np.arange(len(places))
        taken, pieces, self._pieces = [empty(UNTOLD)], self._pieces, deque()
        for rows in pieces:
            there = turn[rows["session"]] >= 0
            taken.append(rows[there])
            if not there.all():
                self._pieces.append(rows[~there])
        found = np.concatenate(taken)
        return found[np.argsort(turn[found["session"]], kind="stable")]

    def lost(self, places: _Numbers) -> int:
        """Rows of these sessions that nobody took in time, since the last call."""
        return sum(self._lost.pop(place, 0) for place in places.tolist()) if self._lost else 0

    def drop(self, place: int) -> None:
        """The session is gone."""
        self._lost.pop(place, None)
        self._pieces = deque(rows[rows["session"] != place] for rows in self._pieces)


def newest_onsets(rows: Table) -> Table:
    """Rows of UNTOLD by session; of one that has too many the newest, by time."""
    sessions, count = np.unique(rows["session"], return_counts=True)
    for session in sessions[count > _MOST_ONSETS].tolist():
        own = np.flatnonzero(rows["session"] == session)
        newest = own[np.argsort(rows["time_ns"][own], kind="stable")][-_MOST_ONSETS:]
        before, after = rows[: own[0]], rows[own[-1] + 1 :]
        rows = np.concatenate([before, rows[newest], after])
    return rows
