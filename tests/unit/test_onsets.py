# SPDX-License-Identifier: Apache-2.0
"""Recognising the same packet at both ends of a flow."""

import numpy as np
import pytest
from collector_stream import hello

from collector.host.flows import AllFlows, FlowTable, Links
from collector.host.rows import ARRIVED
from netmon.dl.clocks import MOST_DELAY_NS, ONSET, REST_NS, coarse_lag, match_onsets
from netmon.records import Columns, Direction, Flow

MS = 1_000_000


def onsets(*rows: tuple[int, int]) -> np.ndarray:
    """(key, time) each."""
    return np.array([(key, 0, time) for key, time in rows], ONSET)


def bursts(rng: np.random.Generator, keys: int = 3, seconds: int = 5) -> np.ndarray:
    """Some ten a second of each flow."""
    times = [np.cumsum(rng.uniform(60, 140, seconds * 10)) * MS for _ in range(keys)]
    return onsets(*[(key, round(time)) for key in range(keys) for time in times[key]])


def test_an_onset_follows_a_rest():
    everything = AllFlows()
    table = FlowTable(Links(hello()), everything, 0)
    for number in (0, 1):
        table.describe(Flow(number, 7, Direction.TX, "a", "b", 1, 2, 6, 0))
    rows = Columns.zeros(6, ARRIVED)
    rows["flow"], rows["start_ns"] = [0, 1, 0, 0, 1, 0], np.array([10, 15, 29, 50, 35, 69]) * MS
    rows["wire_bytes"] = 1
    assert everything.seen(rows).tolist() == [0, 1, 3, 4]
    rows["start_ns"] = np.array([80, 90, 81, 120, 110, 121]) * MS  # flow 0 goes on after 11 ms
    assert everything.seen(rows).tolist() == [1, 3, 4]
    assert not len(everything.seen(rows[:0]))
    assert everything.state["wire_bytes"].tolist() == [8, 4]


def test_pairs_are_of_one_flow_and_near():
    sent = onsets((1, 100 * MS), (1, 200 * MS), (2, 100 * MS))
    received = onsets((1, 202 * MS), (2, 100 * MS - 10), (1, 120 * MS), (3, 100 * MS))
    i, j = match_onsets(sent, received, MS)
    assert sorted(zip(i.tolist(), j.tolist(), strict=True)) == [(1, 0), (2, 1)]
    assert not len(match_onsets(sent, received[:0], MS)[0])


def test_lost_packets_do_not_make_wrong_pairs():
    rng = np.random.default_rng(3)
    sent = bursts(rng)
    received = sent.copy()
    received["time_ns"] += rng.integers(10_000, MOST_DELAY_NS, len(sent))
    counted, arrived = (np.flatnonzero(rng.random(len(sent)) < 0.7) for _ in range(2))
    i, j = match_onsets(sent[counted], received[arrived], 2 * MS)
    assert (counted[i] == arrived[j]).all()
    assert len(i) == len(np.intersect1d(counted, arrived))
    assert REST_NS > MOST_DELAY_NS + 2 * 2 * MS


@pytest.mark.parametrize("lag_ms", [0, 3, -4_999, 5_000])
def test_a_lag_of_seconds_is_found(lag_ms):
    rng = np.random.default_rng(4)
    sent = bursts(rng)
    received = sent.copy()
    received["time_ns"] += lag_ms * MS + rng.integers(10_000, 500_000, len(sent))
    found = coarse_lag(sent, received[rng.random(len(sent)) < 0.9], 10_000 * MS)
    assert abs(found - lag_ms * MS) <= MS


def test_no_lag_is_told_where_none_stands_out():
    rng = np.random.default_rng(5)
    assert coarse_lag(bursts(rng), bursts(rng), 10_000 * MS) is None
    even = onsets(*[(0, time * 100 * MS) for time in range(50)])
    assert coarse_lag(even, even, 10_000 * MS) is None  # strictly periodic: any period would do
    assert coarse_lag(even[:0], even, MS) is None
