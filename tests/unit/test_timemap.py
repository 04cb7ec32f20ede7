# SPDX-License-Identifier: Apache-2.0
"""Mono times on the UTC axis: what is in order stays in order, what is stored stays where it is."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from netmon.dl.timemap import STEP_NS, TimeMap, TimeMaps

UTC = 1_760_000_000_000_000_000
S = 1_000_000_000
BUCKET = 100_000


def test_it_slews_and_then_keeps_to_the_line():
    steered = TimeMap.constant(UTC).steered(10 * S, UTC + 40_000, 2e-4)
    assert steered.offset(10 * S) == UTC
    assert steered.offset(11 * S) == UTC + 40_000 + 200_000
    assert steered.offset(9 * S) == UTC


def test_it_steps_where_the_clock_has_jumped():
    steered = TimeMap.constant(UTC).steered(10 * S, UTC + 3 * S, 0)
    assert (steered.offset(10 * S - 1), steered.offset(10 * S)) == (UTC, UTC + 3 * S)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(50_000_000, S), st.integers(-STEP_NS + 1, STEP_NS - 1), st.floats(-2e-4, 2e-4)),
        max_size=8,
    )
)
def test_buckets_stay_in_order_and_stored_ones_where_they_are(steps):
    clock, now = TimeMap.constant(UTC), 10 * S
    stored = np.empty(0, np.int64)
    for later, gap, slope in steps:
        rows = np.arange(now, now + later, BUCKET, dtype=np.int64)
        stored = np.concatenate([stored, clock.utcs(rows)])
        now = int(rows[-1]) + BUCKET
        clock = clock.steered(now, clock.offset(now) + gap, slope)
        everything = np.arange(10 * S, now, BUCKET, dtype=np.int64)
        assert np.abs(clock.utcs(everything) - stored).max() <= 2  # a new knot is rounded to a nanosecond
    if len(stored):
        widths = np.diff(stored)
        assert widths.min() >= BUCKET - 200  # 1e-3 of slewing, and the slope behind it
        assert widths.max() <= BUCKET + 200


@given(
    st.integers(10**9, 10**15),
    st.integers(-STEP_NS + 1, STEP_NS - 1),
    st.floats(-1e-3, 1e-3),
    st.integers(-(10**10), 10**10),
)
def test_mono_reverses_utc(at, gap, slope, distance):
    clock = TimeMap.constant(UTC, at).steered(at, UTC + gap, slope)
    assert abs(clock.mono(clock.utc(at + distance)) - at - distance) <= 1


def test_its_document_is_the_same_clock():
    clock = TimeMap.constant(UTC).steered(S, UTC + 1_000, 1e-5).steered(3 * S, UTC + 4 * S, -1e-5)
    times = np.arange(0, 9 * S, 123_456_789, dtype=np.int64)
    assert (TimeMap.from_document(clock.document()).utcs(times) == clock.utcs(times)).all()


def test_many_maps_say_what_each_of_them_does():
    random = np.random.default_rng(4)
    maps = [TimeMap.constant(UTC)]
    for number in range(6):
        clock = TimeMap.constant(UTC + number, number * S)
        for second in random.integers(2, 60, 3).cumsum().tolist():
            clock = clock.steered(second * S, UTC + int(random.integers(-20_000_000, 20_000_000)), 1e-4 * number)
        maps.append(clock)
    of, times = random.integers(0, len(maps), 5_000), random.integers(-S, 300 * S, 5_000)
    expected = [maps[place].utcs(np.array([time]))[0] for place, time in zip(of, times, strict=True)]
    assert TimeMaps(maps).utcs(of, times).tolist() == expected
    assert [maps[place].utc(time) for place, time in zip(of.tolist(), times.tolist(), strict=True)] == expected
