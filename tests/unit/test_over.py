# SPDX-License-Identifier: Apache-2.0
"""Hosts' last iterations, kept for rows that are asked for later."""

import numpy as np

from collector.host.tables import MOST, Over, RecentIterations


def add(over: RecentIterations, place: int, number: int) -> None:
    told = {"start_ns": 100 * number, "end_ns": 100 * number + 90, "job": 7, "rank": 3, "number": number}
    over.add(np.array([place]), **{name: np.array([value]) for name, value in told.items()})


def test_those_of_a_span_and_no_more_than_some() -> None:
    over = RecentIterations()
    assert list(over.within(0, 0, 1 << 60)) == []
    for number in range(3 * MOST):
        add(over, 0, number)
        if number % 10 == 0:
            add(over, 1, number)
    assert list(over.within(0, 200_000, 200_100)) == [
        Over(200_000, 200_090, 7, 3, 2_000),
        Over(200_100, 200_190, 7, 3, 2_001),
    ]
    assert list(over.within(1, 200_000, 200_100)) == [Over(200_000, 200_090, 7, 3, 2_000)]
    assert MOST <= len(list(over.within(0, 0, 1 << 60))) <= 2 * MOST
    assert len(list(over.within(1, 0, 1 << 60))) == 300
    over.drop(0)
    assert list(over.within(0, 0, 1 << 60)) == []
