# SPDX-License-Identifier: Apache-2.0
"""Rows on their way to viewers: hysteresis, series, provisional classes, rates; all over many links at once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.view.arrivals import (
    COLUMNS,
    INTERVAL_NS,
    Arrivals,
    LinkSeries,
    Present,
    SeriesCopy,
    ShareHysteresis,
)
from collector.view.sessions import ARRIVED, FLOW
from netmon.records import Class

MS = 1_000_000


def flags(steady, *on, first=0, link=0, job=1):
    count = len(on)
    windows = np.arange(first, first + count)
    return steady.flags(np.full(count, link), np.full(count, job), windows, np.array(on, bool)).astype(int).tolist()


def test_a_state_has_to_last():
    assert flags(ShareHysteresis(3), 0, 1, 0, 1, 1, 0, 1, 1, 1, 1, 0, 0, 1, 0, 0, 0) == [0] * 8 + [1] * 7 + [0]


def test_it_lasts_over_calls_and_over_windows_in_which_the_job_is_silent():
    steady = ShareHysteresis(3)
    assert flags(steady, 0, 1, 1) == [0, 0, 0]
    assert flags(steady, 1, first=50) == [1]
    assert flags(steady, 0, 0, first=40) == [1, 1]  # late
    assert flags(steady, 0, 0, 0, first=60) == [1, 1, 0]


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.integers(1, 6), st.integers(0, 60))
def test_it_never_flickers_and_does_not_depend_on_the_calls(on, hold, cut):
    whole, parts = ShareHysteresis(hold), ShareHysteresis(hold)
    cut = min(cut, len(on))
    seen = flags(whole, *on)
    assert seen == flags(parts, *on[:cut]) + flags(parts, *on[cut:], first=cut)
    for place in range(1, len(on)):
        if seen[place] != seen[place - 1]:
            assert place + 1 >= hold
            assert set(on[max(0, place + 1 - hold) : place + 1]) == {bool(seen[place])}


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.booleans()), max_size=80))
def test_links_and_jobs_do_not_disturb_each_other(rows):
    """Rows of several links and jobs in one call, several rows of one window: as each of them alone."""
    together, alone = ShareHysteresis(2), {}
    link, job = np.array([r[0] for r in rows], int), np.array([r[1] for r in rows], int)
    window = np.arange(len(rows)) // 2
    on = np.array([r[2] for r in rows], bool)
    seen = together.flags(link, job, window, on)
    for pair in {(r[0], r[1]) for r in rows}:
        own = (link == pair[0]) & (job == pair[1])
        steady = alone.setdefault(pair, ShareHysteresis(2))
        assert seen[own].tolist() == steady.flags(link[own], job[own], window[own], on[own]).tolist()


def test_a_link_that_has_gone_leaves_nothing_to_its_successor():
    steady = ShareHysteresis(2)
    assert flags(steady, 1, 1, link=4) == [0, 1]
    steady.forget(np.array([4]))
    assert flags(steady, 1, link=4) == [0]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 400), st.integers(1, 9)), min_size=1, max_size=60))
def test_a_series_is_the_sum_of_its_rows(rows):
    series = LinkSeries(lag_ns=0)
    series.extend(3)
    table = np.array(rows, np.int64)
    for part in np.array_split(table, 3):
        if len(part):
            series.add(part[:, 1] * INTERVAL_NS + 7, part[:, 0], np.full(len(part), Class.CROSS, np.uint8), part[:, 2])
    newest = np.array([table[table[:, 0] == link, 1].max(initial=-1) for link in range(3)])
    sums = series.copy(newest + 1).sums
    for link in range(3):
        for place in range(COLUMNS):
            column = newest[link] + 1 - COLUMNS + place
            wanted = table[(table[:, 0] == link) & (table[:, 1] == column), 2].sum()
            assert sums[link, place].tolist() == [0, 0, 0, wanted]


def arrived(*rows):
    """(flow, link, ms, payload bytes) each."""
    table = np.zeros(len(rows), ARRIVED)
    for row, (flow, link, ms, payload) in zip(table, rows, strict=True):
        row["flow"], row["link"], row["start_ns"] = flow, link, ms * MS
        row["payload_bytes"], row["wire_bytes"] = payload, payload + 66
    return table


TRAIN, OTHER, BACKUP, UNKNOWN, TWIN = range(5)  # the twin is on link 1


def present(horizon_ms, settled_ms=0, links=2):
    flows = np.zeros(5, FLOW)
    flows["class"] = Class.DL_ONLY, Class.DL_ONLY, Class.CROSS, Class.UNCLASSIFIED, Class.DL_ONLY
    flows["job"], flows["gradient"] = (1, 2, 0, 0, 1), (True, True, False, False, True)
    every = np.ones(links, np.int64)
    return Present(every * horizon_ms * MS, every * settled_ms * MS, every * 10 * MS, every * 1_000.0, flows)


def shown(arrivals, now):
    series = SeriesCopy(np.zeros((2, COLUMNS, len(Class)), np.int64), now.horizon_ns // INTERVAL_NS)
    arrivals.add_to(series, now)
    return series.sums


@pytest.mark.parametrize("other", [OTHER, BACKUP])
def test_a_job_shares_its_link_with_others_gradients_and_cross_traffic(other):
    arrivals = Arrivals(hold=1)
    rows = [(flow, link, ms, 500) for flow, link in ((TRAIN, 0), (TWIN, 1)) for ms in range(500, 600)]
    arrivals.add(arrived(*rows, *((other, 0, ms, 100) for ms in range(500, 600))))
    arrivals.classify(present(600))
    sums = shown(arrivals, present(600))
    assert sums[0, -1, Class.DL_SHARED] == 56_600 + (16_600 if other == OTHER else 0)
    assert sums[1, -1].tolist() == [0, 56_600, 0, 0]


def test_what_is_unclassified_shares_nothing_and_too_little_does_neither():
    arrivals = Arrivals(hold=1)
    rows = [(TRAIN, 0, ms, 500) for ms in range(500, 600)]
    arrivals.add(arrived(*rows, *((UNKNOWN, 0, ms, 500) for ms in range(500, 600)), (BACKUP, 0, 505, 999)))
    arrivals.classify(present(600))
    assert shown(arrivals, present(600))[0, -1].tolist() == [56_600, 56_600, 0, 1065]


def test_rows_are_shown_until_they_are_final():
    arrivals = Arrivals(hold=1)
    arrivals.add(arrived(*((TRAIN, 0, ms, 500) for ms in range(400, 600))))
    arrivals.classify(present(600))
    assert shown(arrivals, present(600))[0, -2:, Class.DL_ONLY].tolist() == [56_600, 56_600]
    assert shown(arrivals, present(600, settled_ms=450))[0, -2:, Class.DL_ONLY].tolist() == [28_300, 56_600]
    arrivals.classify(present(2_000, settled_ms=600))
    assert not shown(arrivals, present(2_000, settled_ms=600)).any()


def test_rates_are_of_the_last_second_and_a_class_needs_two_thirds():
    arrivals = Arrivals(hold=1)
    arrivals.add(arrived(*((TRAIN, 0, ms, 1184) for ms in range(0, 2_000)), (BACKUP, 0, 1_999, 1), (OTHER, 1, 10, 5)))
    now = present(2_000)
    arrivals.classify(now)
    flows, rates = arrivals.flow_rates(now, np.zeros(2, np.int64))
    assert dict(zip(flows.flow.tolist(), rates.tolist(), strict=True)) == {TRAIN: 10_000_000.0, BACKUP: 536.0}
    assert flows.classes.tolist() == [Class.DL_ONLY, Class.CROSS]
    flows, rates = arrivals.flow_rates(now, np.full(2, 1_900 * MS))
    assert rates.tolist() == [10_000_000.0, 5360.0]  # an agent that has begun just now


def test_nobody_looks_and_nothing_piles_up():
    arrivals = Arrivals(hold=1)
    for number in range(1_000):
        if arrivals.add(arrived(*((TRAIN, 0, 100 * number + ms, 500) for ms in range(100)))):
            arrivals.prune(present(100 * (number + 1), settled_ms=100 * number - 900))
    now = present(100_000, settled_ms=99_000)
    arrivals.classify(now)
    assert shown(arrivals, now)[0, -10:, Class.DL_ONLY].tolist() == [56_600] * 10
    assert len(arrivals._seen.flow) <= 130
