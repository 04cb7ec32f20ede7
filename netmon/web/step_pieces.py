# SPDX-License-Identifier: Apache-2.0
"""Iterations that keep coming: in pieces of some minutes, so that what is new costs no more as the hour fills."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from netmon.web.steps import STEP, Lanes, by_lane

_ROWS = 50_000  # of a piece
_AGAIN_NS = 20_000_000_000  # an iteration may be told again for so long
_SAME_NS = 1_000_000_000  # of two of one number: they begin so close together
_MOST_ROWS = 4_000_000


@dataclass
class _Piece:
    rows: npt.NDArray[np.void]
    lanes: Lanes | None = None


class StepPieces:
    """Not for several threads at once."""

    def __init__(self) -> None:
        """No iteration, no lane."""
        self._lanes: Sequence[tuple[int, int]] = ()
        self._pieces = [_Piece(np.zeros(0, STEP))]  # the last one grows
        self._from_ns = 0  # begin of what it holds
        self._first_ns = 1 << 62  # begin of what came first

    def arrange(self, lanes: Sequence[tuple[int, int]]) -> None:
        """There are other lanes."""
        self._lanes = lanes
        for piece in self._pieces:
            piece.lanes = None

    def add(self, steps: npt.NDArray[np.void], since_ns: int) -> None:
        """steps: dtype STEP, some of them known already; since_ns: what ended before is let go."""
        last = self._pieces[-1]
        if len(steps) and self._first_ns == 1 << 62:
            self._first_ns = int(steps["start_ns"].min())
        rows = _distinct(np.concatenate([last.rows, steps[steps["start_ns"] >= self._from_ns]]))
        if np.array_equal(rows, last.rows):
            return
        last.rows, last.lanes = rows, None
        edge = int(rows["start_ns"].max()) - _AGAIN_NS
        if len(rows) > _ROWS and (rows["start_ns"] < edge).any():
            last.rows, self._from_ns = rows[rows["start_ns"] < edge], edge
            self._pieces.append(_Piece(rows[rows["start_ns"] >= edge]))
        while len(self._pieces) > 1 and (
            self._pieces[0].rows["end_ns"].max() < since_ns
            or sum(len(piece.rows) for piece in self._pieces) > _MOST_ROWS
        ):
            del self._pieces[0]

    def add_before(self, steps: npt.NDArray[np.void]) -> None:
        """Those that began before the first that was added; of later ones what is known stays."""
        rows = _distinct(steps[steps["start_ns"] < self._first_ns])
        if len(rows) and sum(len(piece.rows) for piece in self._pieces) + len(rows) <= _MOST_ROWS:
            begin = rows["start_ns"].min()
            place = sum(piece.rows["start_ns"].min() < begin for piece in self._pieces[:-1])
            self._pieces.insert(place, _Piece(rows))

    def of(self, begin_ns: int, end_ns: int) -> list[Lanes]:
        """Those that may begin in a time, by lane."""
        found = []
        for piece in self._pieces:
            starts = piece.rows["start_ns"]
            if len(starts) and starts.min() < end_ns and starts.max() >= begin_ns:
                piece.lanes = piece.lanes or by_lane(piece.rows, self._lanes)
                found.append(piece.lanes)
        return found


def _distinct(steps: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """Of what was told more than once the last word: its times may be known better."""
    order = np.lexsort((np.arange(len(steps)), steps["number"], steps["rank"], steps["job"]))
    own = steps[order]
    again = np.zeros(len(own), np.bool_)
    if len(own) > 1:
        again[:-1] = np.abs(np.diff(own["start_ns"])) < _SAME_NS
        for name in ("job", "rank", "number"):
            again[:-1] &= np.diff(own[name]) == 0
    return own[~again]
