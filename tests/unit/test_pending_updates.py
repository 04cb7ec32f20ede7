# SPDX-License-Identifier: Apache-2.0
"""Rows of all hosts that wait until the job stage is told of them."""

import numpy as np

from collector.host.rows import PENDING, PendingRows, newest_onsets


def add(rows, *found):
    rows.add(*(np.array(column, np.int64) for column in zip(*found, strict=True)))


def test_rows_are_told_once_and_of_the_sessions_that_were_asked_for():
    rows = PendingRows()
    add(rows, (0, 5, 10, 1), (2, 6, 11, 2), (1, 7, 12, 3))
    add(rows, (0, 5, 9, 4), (1, 8, 13, 5))
    told = rows.take(np.array([2, 0]), 3)
    told = zip(*(told[name].tolist() for name in PENDING), strict=True)
    assert list(told) == [(0, 5, 10, 1), (2, 6, 11, 2), (0, 5, 9, 4)]
    assert len(rows.take(np.array([2, 0]), 3)) == 0
    assert rows.take(np.array([1]), 3)["amount"].tolist() == [3, 5]


def test_rows_of_a_session_that_is_gone_are_forgotten():
    rows = PendingRows()
    add(rows, (0, 5, 10, 1), (1, 6, 11, 2))
    rows.drop(0)
    assert rows.take(np.array([0, 1]), 2)["session"].tolist() == [1]


def test_what_nobody_takes_is_bounded_and_counted():
    rows = PendingRows()
    for tick in range(310):
        add(rows, (0, 1, tick, 1), (1, 2, tick, 1), (1, 3, tick, 1))
    assert len(rows.take(np.array([1]), 2)) == 600
    assert rows.lost(np.array([1])) == 20
    assert rows.lost(np.array([0, 1])) == 10
    assert rows.lost(np.array([0, 1])) == 0


def test_of_too_many_onsets_of_a_session_the_newest_are_told():
    rows = PendingRows()
    times = np.random.default_rng(1).permutation(2_500)
    add(rows, (0, 1, 7, 1), *((1, 2, int(time), 1) for time in times), (2, 1, 3, 1))
    told = newest_onsets(rows.take(np.arange(3), 3))
    assert sorted(told["time_ns"][told["session"] == 1].tolist()) == list(range(500, 2_500))
    assert told["time_ns"][told["session"] != 1].tolist() == [7, 3]
