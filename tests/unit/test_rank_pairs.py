# SPDX-License-Identifier: Apache-2.0
"""Who is at the other end of what NCCL sends, and what pairs of ranks carry."""

import math

import numpy as np

from netmon.dl.transfers import COLUMNS, Numbers, partners, rank_pairs, way

Row = dict[str, int]


def a_ring(ranks: list[int], operations: int = 5, at_ns: int = 10**18, communicator: int = 7, **same: int) -> list[Row]:
    """Of these ranks, each a process of its own; as the group numbers them."""
    rows = []
    for number in range(operations):
        for place, rank in enumerate(ranks):
            start = at_ns + number * 10_000_000
            for sends, peer in ((1, place + 1), (0, place - 1)):
                row = {"job": 1, "process": 100 + rank, "rank": rank, "communicator": communicator + rank}
                row |= {"group_rank": place, "peer": peer % len(ranks), "sends": sends, "level": 1, "collective": 5}
                row |= {"number": number, "channel": 0, "start_ns": start + 1000 * rank, "end_ns": start + 4_000_000}
                rows.append(row | {"bytes": 1000, "missed": 0, "operations": 1} | same)
    return rows


def columns(rows: list[Row]) -> dict[str, Numbers]:
    return {name: np.array([row[name] for row in rows], np.int64) for name in ("job", "process", *COLUMNS)}


def pairs_of(rows: list[Row], size: int = 0) -> dict[tuple[int, int], int]:
    table = columns(rows)
    return {
        (pair.rank, pair.peer): pair.bytes
        for pair in rank_pairs(table, partners(table, {1: size} if size else {}).rank)
    }


def test_a_ring_is_known() -> None:
    rows = a_ring([0, 1, 2, 3])
    assert pairs_of(rows) == {(0, 1): 5000, (1, 2): 5000, (2, 3): 5000, (3, 0): 5000}
    found = partners(columns(rows), {})
    for at, other in enumerate(found.row.tolist()):
        assert rows[at]["number"] == rows[other]["number"]
        assert rows[at]["sends"] != rows[other]["sends"]
        assert found.row[other] == at


def test_groups_of_the_same_form_are_told_apart_by_time_only() -> None:
    apart = a_ring([0, 2]) + a_ring([1, 3], at_ns=10**18 + 3 * 10**9)
    assert pairs_of(apart) == {(0, 2): 5000, (2, 0): 5000, (1, 3): 5000, (3, 1): 5000}
    together = a_ring([0, 2]) + a_ring([1, 3])
    assert {pair for pair in pairs_of(together) if min(pair) >= 0} == set()
    assert sum(pairs_of(together).values()) == 2 * 20 * 1000  # of each of which only one end is known


def test_a_rank_that_nobody_tells_of_is_unknown() -> None:
    rows = [row for row in a_ring([0, 1, 2]) if row["rank"] != 2]
    assert pairs_of(rows) == {(0, 1): 5000, (1, -1): 5000, (-1, 0): 5000}


def test_of_many_operations_in_one_row_the_only_rank_that_fits_is_the_other_end() -> None:
    rows = a_ring([0, 1, 2], 1, level=2, number=-1, channel=-1)
    assert pairs_of(rows, 3) == {(0, 1): 1000, (1, 2): 1000, (2, 0): 1000}
    assert all(min(pair) < 0 for pair in pairs_of(rows))  # how many there are is not known
    assert all(min(pair) < 0 for pair in pairs_of(rows, 4))
    twice = a_ring([0, 2], 1, level=2, number=-1) + a_ring([1, 3], 1, level=2, number=-1)
    assert all(min(pair) < 0 for pair in pairs_of(twice, 4))


def test_transfers_are_paired_in_their_order() -> None:
    rows = []
    for nth in range(3):
        for row in a_ring([0, 1], 1, at_ns=10**18 + nth * 5_000_000, level=0):
            rows.append(row | {"bytes": nth})
    found = partners(columns(rows), {})
    assert [rows[at]["bytes"] for at in found.row] == [row["bytes"] for row in rows]
    fewer = rows[1:]  # one of them has no row of its own
    assert (partners(columns(fewer), {}).row < 0).sum() == 5


def test_a_crowd_of_operations_that_are_alike_is_unknown() -> None:
    rows = [row for n in range(30) for row in a_ring([2 * n, 2 * n + 1], 3)]
    assert (partners(columns(rows), {}).rank < 0).all()


def test_time_in_which_a_pair_sends_counts_once() -> None:
    rows = [row | {"channel": channel} for channel in range(4) for row in a_ring([0, 1], 2)]
    table = columns(rows)
    (pair, _) = rank_pairs(table, partners(table, {}).rank)
    assert (pair.operations, pair.bytes, pair.busy_ns) == (8, 8000, 8_000_000)


def test_by_which_way_it_went() -> None:
    assert way(1000, {"mlx5_0": 1000}, {}) == ("RDMA", 1.0, "mlx5_0")
    assert way(1000, {"mlx5_0": 500, "mlx5_1": 500}, {"eth0": 3}) == ("RDMA", 1.0, "")
    assert way(1000, {}, {"eth0": 1010}) == ("sockets", 0.0, "eth0")
    assert way(1000, {"mlx5_0": 500}, {"eth0": 500}) == ("RDMA and sockets", 0.5, "")
    assert way(1000, {"mlx5_0": 10}, {"eth0": 500}) == ("", 0.01, "")
    assert math.isnan(way(0, {}, {}).rdma)
    nothing = columns([])
    assert rank_pairs(nothing, partners(nothing, {}).rank) == []
