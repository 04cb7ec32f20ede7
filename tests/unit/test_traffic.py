# SPDX-License-Identifier: Apache-2.0
"""What flows carry and sums over spans."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from netmon.dl.classify import Traffic, flow_traffic
from netmon.dl.history import GRAIN_NS, PayloadHistory

MS = 1_000_000
GRADIENT, CONTROL, UNKNOWN = Traffic.GRADIENT, Traffic.CONTROL, Traffic.UNKNOWN


def kinds(*flows, jobs=None):
    """flows: (payload bytes, packets, seconds)."""
    payload, packets, lifetime = np.array(flows).T
    return flow_traffic(
        payload.astype(np.int64), packets.astype(np.int64), lifetime, np.array(jobs or [1] * len(flows))
    )


def test_small_messages_are_control():
    gradient, negotiation, rendezvous, acknowledgements = (
        (10**9, 10**6, 60),
        (10**6, 10**4, 60),
        (5000, 20, 0.01),
        (0, 0, 60),
    )
    assert kinds(gradient, negotiation, rendezvous, acknowledgements).tolist() == [GRADIENT, CONTROL, CONTROL, UNKNOWN]


def test_every_bulk_flow_of_the_pair_is_gradient():
    assert kinds((10**9, 10**6, 60), (5 * 10**7, 5 * 10**4, 60), (3 * 10**7, 10**5, 60)).tolist() == [
        GRADIENT,
        GRADIENT,
        CONTROL,  # 3 %, but in small segments
    ]


def test_nothing_is_said_before_there_is_something_to_compare_with():
    assert kinds((5000, 20, 0.01), (300, 2, 0.01)).tolist() == [UNKNOWN, UNKNOWN]
    assert kinds((10**9, 10**6, 60), (5000, 20, 60), jobs=[1, 2]).tolist() == [GRADIENT, UNKNOWN]


rows = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 2), st.integers(1, 100)), max_size=80)


@given(rows, st.lists(st.integers(0, 200), min_size=2, max_size=6, unique=True))
def test_a_history_holds_every_byte_once(entries, cuts):
    """Cuts anywhere within a millisecond; also when all of it is old."""
    quarter = GRAIN_NS // 4
    history = PayloadHistory()
    table = np.array(sorted(entries), np.int64).reshape(-1, 3)
    history.cut_all(1, [cut * quarter for cut in cuts])
    for half in np.array_split(table, 3):
        until = np.array([0, half[:, 0].max(initial=-1) * quarter + 1])
        history.add(np.ones(len(half), np.int64), half[:, 0] * quarter, half[:, 1], half[:, 2], until)
    first, last = min(cuts), max(cuts)
    inside = table[(table[:, 0] >= first) & (table[:, 0] < last)]
    expected = {int(k): int(inside[inside[:, 1] == k, 2].sum()) for k in np.unique(inside[:, 1])}
    for now_ns in (0, 10**12):
        history.forget(np.array([0, first * quarter]), np.array([0, now_ns]))
        sums = history.between(*np.array([[1], [first * quarter], [last * quarter]]))
        assert dict(zip(sums.key.tolist(), sums.payload_bytes.tolist(), strict=True)) == expected


def test_a_late_cut_is_right_to_the_millisecond():
    history = PayloadHistory()
    times = np.arange(0, 10 * MS, MS // 10)
    none = np.zeros(len(times), np.int64)
    history.add(none, times, none, none + 1, np.array([10 * MS]))
    assert history.between(*np.array([[0], [3 * MS], [7 * MS]])).payload_bytes.tolist() == [40]


def test_hosts_of_a_history_are_as_far_apart_as_their_clocks():
    history = PayloadHistory()
    host, far = np.array([0, 0, 1, 3, 3]), 10**18
    times = np.array([3 * MS, 9_000 * MS, far, 7 * MS, 8 * MS])
    amounts = np.array([1, 1 << 40, 3, 5, 6])
    history.add(host, times, np.array([0, 1 << 33, 2, 3, 3]), amounts, np.full(4, far + MS))
    start = np.array([0, 9_000 * MS, far, 0, 8 * MS, 0])
    end = np.array([4 * MS, 9_001 * MS, far + MS, far, 9 * MS, far])
    sums = history.between(np.array([0, 0, 1, 2, 3, 3]), start, end)
    found = list(zip(*(column.tolist() for column in sums), strict=True))
    assert found == [(0, 0, 1), (1, 1 << 33, 1 << 40), (2, 2, 3), (4, 3, 6), (5, 3, 11)]
    history.drop(3)
    assert history.between(*np.array([[3], [0], [far]])).payload_bytes.tolist() == []
    assert history.between(*np.array([[0], [0], [far]])).payload_bytes.tolist() == [1, 1 << 40]
