# SPDX-License-Identifier: Apache-2.0
"""Settled rows of all sessions on their way to the dataset."""

import numpy as np

from collector.host.rows import SETTLED
from collector.host.unstored import Unstored, by_session
from netmon.records import Columns


def rows(*sessions: int) -> Columns:
    table = Columns.zeros(len(sessions), SETTLED)
    table["session"], table["bucket_start_ns"] = sessions, np.arange(len(sessions))
    return table


def sessions_of(unstored: Unstored) -> list[list[int]]:
    return [piece["session"].tolist() for piece in unstored.take()]


def test_what_is_not_stored_comes_back_before_what_came_later_without_sessions_that_are_gone() -> None:
    unstored = Unstored()
    unstored.add(rows(0, 1, 2))
    unstored.add(rows(1))
    pieces = unstored.take()
    assert unstored.nbytes == 0
    unstored.add(rows(2, 3))
    unstored.put_back(pieces, {0, 2, 3})
    assert unstored.nbytes == 4 * SETTLED.itemsize
    assert sessions_of(unstored) == [[0, 2], [2, 3]]


def test_the_rows_of_a_session_that_is_gone_go() -> None:
    unstored = Unstored()
    unstored.add(rows(0, 1, 1))
    unstored.add(rows(1))
    unstored.drop(1)
    assert unstored.nbytes == SETTLED.itemsize
    assert sessions_of(unstored) == [[0]]


def test_rows_by_session_keep_their_order() -> None:
    found = by_session([rows(3, 0, 3), rows(0)])
    assert {place: [own["bucket_start_ns"].tolist() for own in pieces] for place, pieces in found.items()} == {
        3: [[0, 2]],
        0: [[1], [0]],
    }
