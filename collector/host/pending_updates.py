# SPDX-License-Identifier: Apache-2.0
"""What has arrived on all hosts and the job stage has not been reported yet: payload, and beginnings after a rest."""

from collections import deque

import numpy as np
import numpy.typing as npt

from netmon.columnar import Columns, joined
from netmon.dl.grouped import order_by

STARTING_NS = 1_000_000_000
"""The first bucket that an agent sees of a flow within it is not the flow's."""

COLUMNS = "session", "flow", "time_ns", "amount"
"""Place of its session, index of its flow, start (mono); amount: bytes of payload, or the width of its bucket."""

_MOST_PIECES = 300  # ticks whose rows wait to be reported
_MOST_ONSETS = 2_000  # of a session, reported at one time: the newest
_Numbers = npt.NDArray[np.int64]


class PendingRows:
    """Rows of COLUMNS, in the pieces in which they came."""

    def __init__(self) -> None:
        self._pieces: deque[Columns] = deque()
        self._lost: dict[int, int] = {}  # rows that nobody took in time, by session

    def add(self, session: _Numbers, flow: _Numbers, time_ns: _Numbers, amount: _Numbers) -> None:
        """Rows have come; arrays of one length."""
        if not len(flow):
            return
        values = (np.asarray(column, np.int64) for column in (session, flow, time_ns, amount))
        self._pieces.append(Columns(dict(zip(COLUMNS, values, strict=True))))
        if len(self._pieces) > _MOST_PIECES:
            for index, count in zip(*np.unique(self._pieces.popleft()["session"], return_counts=True), strict=True):
                self._lost[int(index)] = self._lost.get(int(index), 0) + int(count)

    def take(self, session_indices: _Numbers, sessions: int) -> Columns:
        """Remove and return the rows of these sessions, as they came. sessions: one more than the largest index."""
        wanted = np.zeros(sessions, np.bool_)
        wanted[session_indices] = True
        taken, pieces, self._pieces = [no_rows()], self._pieces, deque()
        for rows in pieces:
            there = wanted[rows["session"]]
            if there.all():
                taken.append(rows)
            else:
                taken.append(rows[there])
                self._pieces.append(rows[~there])
        return joined(taken)

    def lost(self, session_indices: _Numbers) -> int:
        """Rows of these sessions that nobody took in time, since the last call."""
        return sum(self._lost.pop(session_index, 0) for session_index in session_indices.tolist()) if self._lost else 0

    def drop(self, session_index: int) -> None:
        """The session is gone."""
        self._lost.pop(session_index, None)
        self._pieces = deque(rows[rows["session"] != session_index] for rows in self._pieces)


def no_rows() -> Columns:
    """Of COLUMNS."""
    return Columns({name: np.zeros(0, np.int64) for name in COLUMNS})


def newest_onsets(rows: Columns) -> Columns:
    """Rows of COLUMNS; of a session that has too many the newest."""
    session, time_ns = rows["session"], rows["time_ns"]
    many = np.flatnonzero(np.bincount(session) > _MOST_ONSETS)
    if not len(many):
        return rows
    kept = np.ones(len(session), np.bool_)
    order = order_by(session)
    begin, end = (np.searchsorted(session[order], many, side) for side in ("left", "right"))
    for first, over in zip(begin.tolist(), end.tolist(), strict=True):
        own = order[first:over]
        older = len(own) - _MOST_ONSETS
        kept[own[np.argpartition(time_ns[own], older)[:older]]] = False
    return rows[kept]
