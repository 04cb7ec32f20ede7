# SPDX-License-Identifier: Apache-2.0
"""Rows of a rank that was stopped, as the kernel side tells of it: the time itself, and what was done around it."""

import itertools
import os
import time
from collections.abc import Iterator

import numpy as np
import pytest

from netmon.agent.host_part import STEP_NS, RankRows
from netmon.kernel.meter.memory import mapped_array, whole_pages
from netmon.kernel.stops import MOST_WATCHED, RankStops
from netmon.records import STOP, Table

START = 1_000_000_000_000


@pytest.fixture
def shared() -> Iterator[tuple[RankStops, Table]]:
    """What the program would write to, and who reads it."""
    descriptor = os.memfd_create("stops")
    os.truncate(descriptor, whole_pages(MOST_WATCHED * STOP.itemsize))
    yield RankStops(descriptor), mapped_array(descriptor, STOP, MOST_WATCHED, writable=True)
    os.close(descriptor)


def rows(stops: RankStops, memory: Table, told: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Of steps of which the program tells (begin, end, total), in ms since the start: (start, end, stopped) in ms."""
    rank = RankRows(os.getpid(), START, stops)
    place = int(np.flatnonzero(memory["pid"] == os.getpid())[0])
    for step, (begin, end, total) in enumerate(told, 1):
        memory["begin_ns"][place], memory["end_ns"][place] = (START + t * 1_000_000 if t else 0 for t in (begin, end))
        memory["total_ns"][place] = total * 1_000_000
        rank.sample(START + step * STEP_NS)
    rank.close()
    assert not memory["pid"].any()
    found = [(row["start_ns"] - START, row["end_ns"] - START, row["stopped_ns"]) for row in rank.take()]
    assert all(begin == end for (_, begin, _), (end, _, _) in itertools.pairwise(found))
    return [(a // 1_000_000, b // 1_000_000, ns // 1_000_000) for a, b, ns in found if ns]


def test_a_stop_between_two_looks_is_a_row_of_its_own(shared: tuple[RankStops, Table]) -> None:
    assert rows(*shared, [(0, 0, 0), (130, 170, 40), (130, 170, 40)]) == [(130, 170, 40)]


def test_a_stop_over_several_looks_is_told_as_long_as_it_was(shared: tuple[RankStops, Table]) -> None:
    told = [(60, 0, 0), (60, 0, 0), (60, 0, 0), (60, 310, 250)]
    assert rows(*shared, told) == [(60, 100, 40), (100, 200, 100), (200, 300, 100), (300, 310, 10)]


def test_several_stops_between_two_looks_are_the_steps_own(shared: tuple[RankStops, Table]) -> None:
    assert rows(*shared, [(0, 0, 0), (150, 160, 25), (230, 160, 25)]) == [(100, 200, 25), (230, 300, 70)]


def test_what_a_rank_did_stands_beside_the_time_in_which_it_was_stopped(shared: tuple[RankStops, Table]) -> None:
    stops, memory = shared
    rank = RankRows(os.getpid(), START, stops)
    memory["begin_ns"][0], memory["end_ns"][0] = START + STEP_NS // 2, START + 3 * STEP_NS // 4
    memory["total_ns"][0] = STEP_NS // 4
    until = time.process_time_ns() + 1_000_000
    while time.process_time_ns() < until:
        pass
    rank.sample(START + STEP_NS)
    rank.close()
    before, stopped = rank.take()[:2]  # a busy machine may give what follows a row of its own
    assert stopped["cpu_ns"] == stopped["run_delay_ns"] == 0
    assert before["cpu_ns"] > 500_000  # two thirds of it


def test_a_rank_beyond_those_that_are_watched_is_looked_at_only(shared: tuple[RankStops, Table]) -> None:
    stops, memory = shared
    for pid in range(1, MOST_WATCHED + 2):
        stops.watch(pid)
    assert memory["pid"].all()
    assert stops.since(MOST_WATCHED + 1, 0, START) == (None, 0)
    stops.forget(7)
    stops.forget(7)
    stops.watch(MOST_WATCHED + 1)
    assert memory["pid"][6] == MOST_WATCHED + 1


def test_nobody_tells() -> None:
    stops = RankStops(None)
    stops.watch(1)
    assert stops.since(1, 0, START) == (None, 0)
    stops.forget(1)
