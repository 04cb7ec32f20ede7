# SPDX-License-Identifier: Apache-2.0
"""Iterations that have settled and are not stored yet, of all sessions."""

from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from collector.host.iteration_rows import Accounted
from netmon.dl.iterations import Iteration


class Latest(NamedTuple):
    """The last iteration of a rank: what all of them have in common, its number, when it ended (mono)."""

    about: Iteration
    number: int
    end_ns: int


class UnstoredIterations:
    """In the pieces in which they settled."""

    def __init__(self) -> None:
        self._pieces: list[Accounted] = []
        self._latest: dict[int, dict[tuple[str, int], Latest]] | None = None

    def add(self, piece: Accounted) -> None:
        """Iterations of any sessions, of each rank ascending."""
        if len(piece):
            self._pieces.append(piece)
            self._latest = None

    def take(self) -> list[Accounted]:
        """Hand all of them over."""
        pieces, self._pieces, self._latest = self._pieces, [], None
        return pieces

    def put_back(self, pieces: Sequence[Accounted], session_indices: Container[int]) -> None:
        """What was handed over is not stored; session_indices: of the sessions that are still there."""
        later = self.take()
        for piece in (*pieces, *later):
            there = np.array(
                [session_index in session_indices for session_index in piece.rows.session.tolist()], np.bool_
            )
            self.add(piece if there.all() else piece.take(there))

    def drop(self, session_index: int) -> None:
        """The session is gone."""
        for piece in self.take():
            own = piece.rows.session == session_index
            self.add(piece.take(~own) if own.any() else piece)

    def latest(self) -> Mapping[int, Mapping[tuple[str, int], Latest]]:
        """By place, job and rank."""
        if self._latest is None:
            self._latest = {}
            for piece in self._pieces:
                rows = piece.rows
                _, last = np.unique(rows.whose[::-1], return_index=True)
                newest = rows.take(len(rows) - 1 - last)
                for session_index, who, number, end_ns in zip(
                    *(column.tolist() for column in (newest.session, newest.whose, newest.number, newest.end_ns)),
                    strict=True,
                ):
                    about = rows.about[who]
                    self._latest.setdefault(session_index, {})[about.job, about.rank] = Latest(about, number, end_ns)
        return self._latest
