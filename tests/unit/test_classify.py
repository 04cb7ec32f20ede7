# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netmon.dl.classify import Rows, crosses, flow_class, ring_bytes, row_classes, share_windows, window_width
from netmon.records import CLASS_COLOURS, CLASS_LETTERS, CLASS_NAMES, CLASS_PATTERNS, STACK, Class, Owner

MS = 1_000_000
GBIT = np.array([10**9, 10**9], np.int64)
DL, CROSS, UNKNOWN = Class.DL_ONLY, Class.CROSS, Class.UNCLASSIFIED


def classify(rows, capacity=GBIT, threshold=0.01, job=None, gradient=None):
    """rows: (start ns, link, flow class, payload); windows of 10 ms. job, gradient: of each row; one job, all of it."""
    start, link, classes, payload = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    dl = classes == DL
    asked = Rows(
        *(start, link, classes.astype(np.uint8), dl.astype(np.int64) if job is None else np.array(job)),
        *(dl if gradient is None else np.array(gradient), payload + 66, payload),
    )
    windows = share_windows(asked, capacity, 10 * MS, threshold)
    return windows, row_classes(asked, windows).tolist()


def test_the_owner_decides():
    assert flow_class(Owner(1, "python", job="train", rank=0, source="socket")) == DL
    assert flow_class(Owner(1, "iperf3", source="socket")) == CROSS
    assert flow_class(Owner(0, source="protocol")) == CROSS
    assert flow_class(Owner()) == UNKNOWN


def test_a_window_is_shared_from_one_percent_of_the_capacity():
    # 1 % of 1 Gbit/s in 10 ms are 12,500 bytes.
    assert classify([(0, 0, DL, 9), (1, 0, CROSS, 12_500)])[1] == [Class.DL_SHARED, CROSS]
    assert classify([(0, 0, DL, 9), (1, 0, CROSS, 12_499)])[1] == [DL, CROSS]


def test_small_pieces_add_up():
    rows = [(0, 0, DL, 9), *((i, 0, CROSS, 1_250) for i in range(10))]
    assert classify(rows)[1][0] == Class.DL_SHARED


def test_acknowledgements_do_not_share():
    assert classify([(0, 0, DL, 9), *((i, 0, CROSS, 0) for i in range(1000))])[1][0] == DL


def test_another_window_or_link_is_not_shared():
    rows = [(0, 0, DL, 9), (10 * MS, 0, DL, 9), (0, 1, DL, 9), (10 * MS - 1, 0, CROSS, 10**6)]
    assert classify(rows)[1] == [Class.DL_SHARED, DL, DL, CROSS]


def test_unknown_traffic_shares_nothing():
    assert classify([(0, 0, DL, 9), (0, 0, UNKNOWN, 10**6)])[1] == [DL, UNKNOWN]


def test_any_cross_payload_shares_a_link_of_unknown_capacity():
    unknown = np.array([0, 0], np.int64)
    assert classify([(0, 0, DL, 9), (0, 0, CROSS, 1)], unknown)[1][0] == Class.DL_SHARED
    assert classify([(0, 0, DL, 9), (0, 0, CROSS, 0)], unknown)[1][0] == DL


def test_a_window_is_whole_buckets():
    assert window_width(10 * MS, 10_000) == 10 * MS
    assert window_width(10 * MS, 3 * MS) == 12 * MS
    assert window_width(10 * MS, 1000 * MS) == 1000 * MS


def test_no_rows_are_no_windows():
    none = np.empty(0, np.int64)
    rows = Rows(none, none, none.astype(np.uint8), none, none.astype(np.bool_), none, none)
    windows = share_windows(rows, GBIT, MS, 0.01)
    assert len(windows.number) == len(windows.shared(1)) == len(row_classes(rows, windows)) == 0


def test_another_jobs_gradients_share_a_window_and_its_control_traffic_does_not():
    rows = [(0, 0, DL, 10**5), (1, 0, DL, 10**5)]
    assert classify(rows, job=[1, 2])[1] == [Class.DL_SHARED, Class.DL_SHARED]
    assert classify(rows, job=[1, 1])[1] == [DL, DL]
    assert classify(rows, job=[1, 2], gradient=[True, False])[1] == [DL, Class.DL_SHARED]
    assert classify([(0, 0, DL, 10**5), (1, 0, DL, 9)], job=[1, 2])[1] == [DL, Class.DL_SHARED]


row = st.tuples(st.integers(0, 10**9), st.integers(0, 1), st.sampled_from([DL, CROSS, UNKNOWN]), st.integers(0, 10**6))


@given(st.lists(row, min_size=1, max_size=200))
def test_no_byte_changes_its_side(rows):
    """Classification splits the DL bytes in two and moves nothing else; windows hold every byte once."""
    windows, classes = classify(rows)
    for (_, _, flow, _), of_row in zip(rows, classes, strict=True):
        assert of_row in ((DL, Class.DL_SHARED) if flow == DL else (flow,))
    assert windows.wire_bytes.sum() == sum(payload + 66 for *_, payload in rows)
    assert windows.cross_bytes.sum() == sum(payload for *_, flow, payload in rows if flow == CROSS)


def test_equation_3_1():
    assert ring_bytes(3, 4_000_000) == pytest.approx(21.333e6, rel=1e-4)
    assert ring_bytes(1, 4_000_000) == 0
    assert math.isnan(ring_bytes(3, 0))
    assert math.isnan(ring_bytes(0, 10))


def test_every_class_has_all_that_is_shown_of_it():
    assert sorted(STACK) == list(Class)
    for shown in (CLASS_NAMES, CLASS_LETTERS, CLASS_COLOURS, CLASS_PATTERNS):
        assert len(shown) == len(set(shown)) == len(Class)


def test_only_other_traffic_is_foreign_to_every_job():
    assert crosses(np.arange(len(Class))).tolist() == [class_ == Class.CROSS for class_ in Class]
