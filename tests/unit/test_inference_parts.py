# SPDX-License-Identifier: Apache-2.0
"""The parts of the inference by themselves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from training_traffic import Wire, both_ways, ring

from netmon.dl.grouped import sums_by_two
from netmon.dl.inference.bursts import Bursts
from netmon.dl.inference.job import Words
from netmon.dl.inference.live import ScanSchedule
from netmon.dl.inference.topology import blocks

MS = 1_000_000


@pytest.mark.parametrize(
    ("edges", "parts"),
    [
        (ring("1", "2", "3", "4"), 1),
        (both_ways(("1", "2"), ("1", "3"), ("2", "3")), 1),
        (both_ways(("1", "2"), ("1", "3"), ("1", "4")), 3),
        ([*ring("1", "2", "3"), *ring("3", "4", "5")], 2),
        ([*ring("1", "2", "3"), *both_ways(("1", "4"), ("4", "5"))], 3),
        (ring("1", "2"), 1),
    ],
    ids=["ring", "clique", "star", "two rings on one host", "ring and tree", "pair"],
)
def test_blocks_are_held_together_by_more_than_one_address(edges, parts):
    found = blocks(edges)
    assert len(found) == parts
    assert sorted(edge for block in found for edge in block) == sorted(edges)


def test_pauses_between_iterations_are_kept_however_long_it_trains():
    random, bursts = np.random.default_rng(1), Bursts(MS)
    pauses = random.integers(90, 110, 20_000) * MS
    pauses[::50] = 3_000 * MS  # it writes a checkpoint
    time_ns = np.cumsum(pauses + 5 * MS)
    for some in np.split(time_ns, 400):
        bursts.add(some, np.full(len(some), 150_000), MS)
    assert 1_000 < len(bursts) <= 2_048
    assert (np.diff(bursts.rows["level"]) == 150_000).all()


def test_pauses_between_blocks_are_forgotten_so_that_more_of_those_between_steps_are_kept():
    random, bursts = np.random.default_rng(1), Bursts(MS)
    pauses = random.integers(2, 9, 40_000) * MS
    pauses[::100] = 2_000 * MS
    time_ns = np.cumsum(pauses + MS)
    for some in np.split(time_ns, 400):
        bursts.add(some, np.full(len(some), 150_000), MS)
    assert bursts.pause_ns == 8 * MS
    assert (np.diff(bursts.rows["start_ns"]) > 2_000 * MS).sum() > 60  # where all are kept there are 20 at most


@pytest.mark.parametrize("large", [1_000_000, 1 << 33])
def test_bursts_are_what_they_were_when_they_are_packed(large):
    random = np.random.default_rng(1)
    time_ns = np.cumsum(random.integers(3, 400, 1900)) * MS
    volume = random.integers(2_000, 1_000_000, len(time_ns))
    volume[900] = large
    bursts = Bursts(MS)
    for begin in range(0, len(time_ns), 7):
        bursts.add(time_ns[begin : begin + 7], volume[begin : begin + 7], MS)
    level = np.cumsum(volume) - volume
    expected = {"start_ns": time_ns, "end_ns": time_ns + MS, "level": level, "volume": volume}
    for name, column in expected.items():
        assert (bursts.rows[name] == column).all(), name
    assert (len(bursts), bursts.total, bursts.ended_ns) == (1900, volume.sum(), time_ns[-1] + MS)
    for place in (0, 5, 899, 901, 1700, 1880, 1899):
        assert bursts.since(int(time_ns[place])) == volume[place:].sum()
        rows = bursts.rows_around(level[place])
        assert rows["level"][0] < level[place] or place == 0
        assert (rows[rows["level"] >= level[place]]["start_ns"] == time_ns[place:]).all()


def test_words_are_found_from_a_moment_on():
    words = Words(MS)
    words.add([(("a", "b"), np.array([5, 3, 3]) * MS), (("a", "c"), np.array([4]) * MS)])
    words.add([(("a", "b"), np.array([9]) * MS)])
    assert words.first("a", "bc", 3 * MS, 9 * MS) == 3 * MS + MS // 2
    assert words.first("a", "bc", 4 * MS, 9 * MS) == 4 * MS + MS // 2
    assert words.first("a", "b", 6 * MS, 9 * MS) is None
    assert words.first("b", "ac", 0, 9 * MS) is None
    words.forget(5 * MS)
    assert words.first("a", "bc", 0, 20 * MS) == 3 * MS + MS // 2
    assert words.first("a", "c", 0, 20 * MS) is None


def test_words_are_bounded():
    words = Words(MS)
    for second in range(20):
        words.add([(("a", "b"), (second * 1000 + np.arange(1000)) * MS)])
    assert words.first("a", "b", 0, 20_000 * MS) == (20_000 - 8192) * MS + MS // 2


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3), st.integers(0, 10**12))))
def test_sums_by_two_keys(rows):
    columns = np.array(rows, np.int64).reshape(-1, 3).T
    expected: dict[tuple[int, int], int] = {}
    for major, minor, value in rows:
        expected[major, minor] = expected.get((major, minor), 0) + value
    found = list(zip(*(column.tolist() for column in sums_by_two(*columns)), strict=True))
    assert found == [(*key, expected[key]) for key in sorted(expected)]


def test_flows_of_which_none_was_looked_at_are_no_group():
    wire = Wire()
    for edge in both_ways(("1", "2")):
        wire.flow(edge)
    flows = dict(enumerate(wire.flows))
    bursts = {flow: Bursts(MS) for flow in flows}
    for each in bursts.values():
        each.add(np.arange(8) * 50 * MS, np.full(8, 150_000), MS)
    looking = ScanSchedule(flows, bursts, MS)
    looking.went_on(flows, 500 * MS)
    assert looking.around(flows, 500 * MS) == []
    assert looking.scan(500 * MS)
    assert [set(group) <= flows.keys() for group in looking.around(flows, 500 * MS)] == [True]
