# SPDX-License-Identifier: Apache-2.0
"""Full resolution made coarser: every byte, and the peaks, against a model that walks the rows."""

from collections import defaultdict

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from netmon.dl.coarse import Coarsener, coarsen
from netmon.records import BUCKET, Table

WIDTH, FINE = 100, 10  # ns
ROW = st.tuples(st.integers(0, 3), st.integers(0, 60), st.integers(1, 9), st.integers(1, 10**6))
ROWS = st.lists(ROW, max_size=80)


def table(rows: list[tuple[int, ...]]) -> Table:
    """(flow, bucket, packets, wire bytes)."""
    made = np.zeros(len(rows), BUCKET)
    for row, (flow, bucket, packets, wire) in zip(made, rows, strict=True):
        row["flow_id"], row["bucket_start_ns"], row["packets"] = flow, 10**12 + bucket * FINE, packets
        row["wire_bytes"], row["payload_bytes"] = wire, wire // 2
    return made


def expected(rows: Table, width: int) -> dict[tuple[int, int], tuple[int, ...]]:
    """(flow, start) → packets, wire, payload, peak, busy."""
    buckets: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0, 0])
    for row in rows:
        of = buckets[int(row["flow_id"]), int(row["bucket_start_ns"])]
        for place, name in enumerate(("packets", "wire_bytes", "payload_bytes")):
            of[place] += int(row[name])
    bins: dict[tuple[int, int], list[list[int]]] = defaultdict(list)
    for (flow, start), counts in buckets.items():
        bins[flow, start // width * width].append(counts)
    return {
        key: (*(sum(c[i] for c in of) for i in range(3)), max(c[1] for c in of), len(of)) for key, of in bins.items()
    }


def found(rows: Table) -> dict[tuple[int, int], tuple[int, ...]]:
    names = ("packets", "wire_bytes", "payload_bytes", "peak_bytes", "busy_buckets")
    keys = list(zip(rows["flow_id"].tolist(), rows["bucket_start_ns"].tolist(), strict=True))
    assert len(keys) == len(set(keys))
    return dict(zip(keys, zip(*(rows[name].tolist() for name in names), strict=True), strict=True))


@given(ROWS)
@settings(max_examples=200, deadline=None)
def test_a_coarse_row_has_the_sums_the_peak_and_the_busy_buckets(rows: list[tuple[int, ...]]) -> None:
    fine = table(rows)
    assert found(coarsen(fine, FINE, WIDTH)) == expected(fine, WIDTH)


@given(st.lists(st.tuples(ROWS, st.integers(0, 700)), max_size=5))
@settings(max_examples=200, deadline=None)
def test_bins_are_whole_however_the_rows_come(arrivals: list[tuple[list[tuple[int, ...]], int]]) -> None:
    """Each row comes before the moment up to which its drain is complete."""
    coarsener, everything, given_out, before = Coarsener(FINE), [], [], 0
    for rows, step in arrivals:
        fine = table(rows)
        fine = fine[fine["bucket_start_ns"] >= 10**12 + before]
        before += step
        everything.append(fine)
        until = (10**12 + before) // WIDTH * WIDTH
        given_out.append(coarsener.take(fine, WIDTH, until))
        assert (given_out[-1]["bucket_start_ns"] < until).all()
    given_out.append(coarsener.take(table([]), WIDTH, 2**62 // WIDTH * WIDTH))
    whole = np.concatenate([table([]), *everything])
    assert found(np.concatenate(given_out)) == expected(whole, WIDTH)
