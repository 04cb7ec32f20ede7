# SPDX-License-Identifier: Apache-2.0
"""What a dataset says of the moments before a job stood still."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dataset_rows import BEGIN_NS, table

from netmon.dl.rank_activity import OVER, WAITED
from netmon.history.groups import around, before
from netmon.views import Hang, Hung

S = 1_000_000_000
T0 = BEGIN_NS + 60 * S
ALL_GATHER = 4
HANG = Hang("a", T0, T0 + 20 * S, T0 + 4 * S, Hung.NOT_ENTERED, "all-gather", 9, "", 1, "h1", "it sleeps", (1,), (0, 2))


def store(folder: Path, **tables: pa.Table) -> None:
    for name, rows in tables.items():
        place = folder / name / "date=2026-11-21" / "hour=00"
        place.mkdir(parents=True)
        pq.write_table(rows, place / "part.parquet")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Rank 1's last step is 811, rank 0 is a step ahead; of three flows of the job one goes on."""
    store(
        tmp_path,
        iterations=table(
            *("iterations", 3),
            **{"job": ["a", "a", "a"], "rank": [1, 1, 0], "iteration": [810, 811, 812]},
            end_ns=[T0 - 3 * S, T0 - 2 * S, T0 - S],
        ),
        waits=table(
            *("waits", 3),
            **{"job": ["a"] * 3, "rank": [1, 1, 0], "operation": [ALL_GATHER] * 3, "sequence": [7, 8, 9]},
            **{"pending": [OVER, OVER, WAITED], "age_ns": [5 * S, 4 * S, 3 * S]},
            **{"start_ns": [T0] * 3, "end_ns": [T0 + 3 * S] * 3},
        ),
        buckets=table(
            *("buckets", 5),
            **{"job": ["a", "a", "a", "a", "b"], "session": ["s"] * 5, "flow_id": [1, 2, 3, 3, 4]},
            **{"payload_bytes": [9_000, 9_000, 9_000, 90_000_000, 9_000], "bucket_ns": [1_000_000] * 5},
            bucket_start_ns=[T0 - S, T0, T0 - S, T0 + 9 * S, T0 - S],
        ),
    )
    return tmp_path


def test_the_last_step_the_last_collective_and_the_flows_that_stood_still(data: Path) -> None:
    found = before(data, HANG)
    assert (found.step, found.step_end_ns, found.through) == (811, T0 - 2 * S, "all-gather 8")
    assert (found.flows, found.still, found.still_ns) == (3, 2, T0)
    assert found.line(lambda ns: f"{(ns - T0) // S}") == (
        "before: step 811 ended at -2; the rank was through all-gather 8; 2 of 3 flows of the job stopped from 0 on"
    )


def test_where_nobody_is_missing_it_is_the_last_step_of_all(data: Path) -> None:
    found = before(data, replace(HANG, rank=-1))
    assert (found.step, found.through) == (812, "")


def test_where_nothing_is_known_nothing_is_said(data: Path) -> None:
    assert before(data, replace(HANG, job="c")).line(str) == ""


def test_a_trace_has_the_seconds_before_and_not_the_whole_night() -> None:
    assert around(HANG) == (T0 - 10 * S, T0 + 22 * S)
    assert around(replace(HANG, until_ns=T0 + 9_000 * S)) == (T0 - 10 * S, T0 + 62 * S)
