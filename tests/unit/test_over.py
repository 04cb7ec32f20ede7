# SPDX-License-Identifier: Apache-2.0
"""A host's last iterations, kept for rows that are asked for later."""

from collector.host.over import MOST, Over, OverIterations
from netmon.dl.iterations import Iteration
from netmon.records import Moment, Source


def iteration(number: int) -> Iteration:
    span = 100 * number, 100 * number + 90
    return Iteration("job", 3, 4, number, *span, Moment.STEP_START, Moment.STEP_END, Source.HOOK, 5, False, 0)


def test_those_of_a_span_and_no_more_than_some() -> None:
    over = OverIterations()
    assert list(over.within(0, 1 << 60)) == []
    for number in range(3 * MOST):
        over.add([(7, iteration(number))])
    assert list(over.within(200_000, 200_100)) == [
        Over(200_000, 200_090, 7, 3, 2_000),
        Over(200_100, 200_190, 7, 3, 2_001),
    ]
    assert MOST <= len(list(over.within(0, 1 << 60))) <= 2 * MOST
