# SPDX-License-Identifier: Apache-2.0
"""What flows carry and sums over spans."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from netmon.dl.explain import RankSteps, sentence, slowest
from netmon.dl.history import GRAIN_NS, PayloadHistory
from netmon.dl.traffic import Traffic, flow_traffic
from netmon.records import Direction
from netmon.views import SlowIteration

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
    for cut in cuts:
        assert history.cut(1, cut * quarter, 0)
    for half in np.array_split(table, 3):
        until = np.array([0, half[:, 0].max(initial=-1) * quarter + 1])
        history.add(np.ones(len(half), np.int64), half[:, 0] * quarter, half[:, 1], half[:, 2], until)
    first, last = min(cuts), max(cuts)
    inside = table[(table[:, 0] >= first) & (table[:, 0] < last)]
    expected = {int(k): int(inside[inside[:, 1] == k, 2].sum()) for k in np.unique(inside[:, 1])}
    for now_ns in (0, 10**12):
        history.forget(np.array([0, first * quarter]), np.array([0, now_ns]))
        sums = history.between(1, first * quarter, last * quarter)
        assert dict(zip(sums.key.tolist(), sums.payload_bytes.tolist(), strict=True)) == expected


def test_a_late_cut_is_right_to_the_millisecond():
    history = PayloadHistory()
    times = np.arange(0, 10 * MS, MS // 10)
    none = np.zeros(len(times), np.int64)
    history.add(none, times, none, none + 1, np.array([10 * MS]))
    assert not history.cut(0, 3 * MS + 50_000, added_until_ns=10 * MS)
    assert history.between(0, 3 * MS, 7 * MS).payload_bytes.tolist() == [40]


def steps(durations, cause_rx, waited=None):
    """durations: (iterations, ranks) in ms; cause_rx: payload of `backup` that entered each node."""
    shape = np.shape(durations)
    number, rank = np.indices(shape)
    waited = durations if waited is None else waited
    return RankSteps(
        *(
            number.ravel(),
            rank.ravel(),
            np.ravel(durations) * MS,
            np.ravel(waited if waited is not None else durations) * MS,
        ),
        *(np.ravel(cause_rx) > 0, ["backup"] * number.size, np.zeros(number.size, np.int64), np.ravel(cause_rx)),
        [f"h{r}" for r in rank.ravel()],
    )


def test_the_sentence_an_engineer_wants():
    durations, cross = np.full((20, 3), 300), np.zeros((20, 3), np.int64)
    durations[12], cross[12, 0] = 570, 310_000_000
    slow = slowest(steps(durations, cross))
    assert slow == SlowIteration(12, 570 * MS, 300 * MS, "backup", 310_000_000, Direction.RX, "h0", 0, (1, 2))
    assert sentence("resnet", slow) == (
        "iteration 12 of job resnet took 1.9 × its median (300 ms): "
        "310 MB of backup entered h0 (rank 0) while ranks 1 and 2 waited"
    )


def test_nobody_is_blamed_without_traffic():
    durations = np.full((20, 3), 300)
    assert slowest(steps(durations, np.zeros((20, 3), np.int64))) == SlowIteration()
    assert sentence("resnet", SlowIteration()) == ""
    durations[3, 1] = 600
    text = sentence("resnet", slowest(steps(durations, np.zeros((20, 3), np.int64))), relative=True)
    assert text == "iteration ~3 of job resnet took 2.0 × its median (300 ms); no cross traffic met it"
    assert slowest(steps(durations[:4], np.zeros((4, 3), np.int64))) == SlowIteration()
