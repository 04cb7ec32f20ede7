# SPDX-License-Identifier: Apache-2.0
"""Values of many groups, searched together: as each group alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netmon.dl.grouped import GroupedValues, edges, numbered, order_by, starts

NEAR, FAR = 50, 2**61
pairs = st.lists(st.tuples(st.integers(0, 5), st.integers(0, NEAR)), max_size=40)


def columns(entries: list[tuple[int, int]], factor: int = 1) -> tuple[np.ndarray, np.ndarray]:
    table = np.array(sorted(entries), np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1] * factor


@pytest.mark.parametrize("factor", [1, FAR // NEAR])  # the second does not fit one key
@given(known=pairs, asked=pairs)
def test_places_are_those_of_each_group(
    factor: int, known: list[tuple[int, int]], asked: list[tuple[int, int]]
) -> None:
    group, value = columns(known, factor)
    of, wanted = columns(asked, factor)
    values = GroupedValues(group, value, 6)
    begin = edges(group, 6)
    for side in ("left", "right"):
        found = values.positions(of, wanted, side)
        expected = [
            begin[g] + np.searchsorted(value[begin[g] : begin[g + 1]], v, side=side)
            for g, v in zip(of.tolist(), wanted.tolist(), strict=True)
        ]
        assert found.tolist() == expected


@pytest.mark.parametrize("factor", [1, FAR // NEAR])
@given(entries=pairs)
def test_order_and_runs(factor: int, entries: list[tuple[int, int]]) -> None:
    table = np.array(entries, np.int64).reshape(-1, 2) * (1, factor)
    order = order_by(table[:, 0], table[:, 1])
    ordered = table[order]
    assert ordered.tolist() == sorted(table.tolist())
    assert order.tolist() == sorted(range(len(table)), key=lambda row: (*table[row].tolist(), row))
    first = starts(ordered[:, 0], ordered[:, 1])
    assert len(first) == len({tuple(row) for row in table.tolist()})


def test_words_beyond_what_is_signed_are_put_in_order() -> None:
    words = np.array([2**64 - 1, 2**64 - 3, 2**64 - 2, 2**63], np.uint64)
    assert order_by(words[:3]).tolist() == [1, 2, 0]
    assert order_by(words).tolist() == [3, 1, 2, 0]


@pytest.mark.parametrize(("kind", "lowest"), [(np.int64, 0), (np.uint64, 2**63 + 10**12)])
@given(keys=st.lists(st.integers(-(10**12), 10**12) | st.integers(0, 100), max_size=60))
def test_keys_are_numbered_as_unique_does(kind: type, lowest: int, keys: list[int]) -> None:
    table = np.array([lowest + key for key in keys], kind)
    wanted, place = np.unique(table, return_inverse=True)
    once, of_key = numbered(table)
    assert once.dtype == table.dtype
    assert once.tolist() == wanted.tolist()
    assert of_key.tolist() == place.tolist()
