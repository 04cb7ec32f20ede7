# SPDX-License-Identifier: Apache-2.0
"""Rows between their arrival and the dataset: whatever the order in which they come, none is lost, moved or doubled."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dataset_rows import BEGIN_NS, MS, buckets

from collector.dataset.files import Disk, write_file
from collector.host.rows import ARRIVED, Pending, merge
from netmon.dl.grouped import ascending, order_by
from netmon.dl.history import PayloadHistory
from netmon.records import Columns, joined


def arrived(rng: np.random.Generator, rows: int, sessions: int) -> Columns:
    """Of a few flows of each session, some several times at once; every session's clock shows another time."""
    found = Columns.zeros(rows, ARRIVED)
    found["session"] = np.sort(rng.integers(0, sessions, rows))
    found["flow"] = found["session"] * 8 + rng.integers(0, 4, rows)
    found["start_ns"] = found["session"].astype(np.int64) * 10**12 + rng.integers(0, 50, rows) * MS
    found["bucket_ns"] = rng.choice([MS, 5 * MS], rows)
    found["stored"] = rng.random(rows) < 0.1
    for name in ("packets", "wire_bytes", "payload_bytes", "peak_bytes", "busy_buckets"):
        found[name] = rng.integers(1, 2**32, rows)
    return found.replaced(**{name: found[name].astype(np.uint32) for name in ("packets", "wire_bytes", "peak_bytes")})


def by_key(rows: Columns) -> dict[tuple[int, ...], list[int]]:
    """Packets, wire bytes and the largest peak of each row that there should be, one by one."""
    names = ("session", "start_ns", "flow", "bucket_ns", "stored", "packets", "wire_bytes", "peak_bytes")
    found: dict[tuple[int, ...], list[int]] = {}
    for row in zip(*(rows[name].tolist() for name in names), strict=True):
        sums = found.setdefault(row[:5], [0, 0, 0])
        sums[:] = sums[0] + row[5], sums[1] + row[6], max(sums[2], row[7])
    return found


@pytest.mark.parametrize("sessions", [1, 3, 100])
def test_rows_that_settle_bit_by_bit_are_those_that_came(sessions: int) -> None:
    rng = np.random.default_rng(sessions)
    pending, came, settled = Pending(), [], []
    for _ in range(4):
        came.append(arrived(rng, 400, sessions))
        pending.add(came[-1])
    assert pending.count == len(pending.all()) == 1600
    for since in (0, 7, 7, 31, 50):
        until = np.arange(sessions) * 10**12 + since * MS
        rows = pending.take(until)
        assert (rows["start_ns"] < until[rows["session"]]).all()
        assert not (pending.all()["start_ns"] < until[pending.all()["session"]]).any()
        settled.append(merge(rows, 1))
        order = np.lexsort((settled[-1]["flow"], settled[-1]["start_ns"], settled[-1]["session"]))
        assert (np.diff(order) == 1).all()
    assert not pending.count
    assert by_key(joined(settled)) == by_key(joined(came))
    assert len(joined(settled)) == len(by_key(joined(came)))


def test_a_session_that_is_gone_takes_its_rows_along() -> None:
    pending = Pending()
    rows = arrived(np.random.default_rng(1), 300, 3)
    pending.add(rows)
    pending.drop(1)
    assert by_key(pending.all()) == {key: sums for key, sums in by_key(rows).items() if key[0] != 1}


def test_columns_are_parts_of_a_table() -> None:
    table = Columns({"a": np.arange(6), "b": np.arange(6) * 10})
    part = table[1:5][1:]
    part["a"] = 7
    assert table["a"].tolist() == [0, 1, 7, 7, 7, 5]
    assert part[part["b"] > 20]["b"].tolist() == [30, 40]
    assert part.take(np.array([2, 0])).replaced(c=np.ones(2))["b"].tolist() == [40, 20]
    assert (len(table[4:2]), table.nbytes, part.nbytes) == (0, 96, 48)
    assert joined([part, table[:1]])["b"].tolist() == [20, 30, 40, 0]


@pytest.mark.parametrize("alike", [True, False])
def test_counts_that_hardly_repeat_are_written_without_a_dictionary(alike: bool, tmp_path) -> None:
    rows = buckets(1, BEGIN_NS, 4000)
    if not alike:
        wire = pa.array(np.random.default_rng(0).integers(0, 2**20, 4000))
        rows = rows.set_column(rows.schema.get_field_index("wire_bytes"), "wire_bytes", wire)
    write_file(Disk("process"), "buckets", tmp_path / "one.parquet", rows)
    file = pq.ParquetFile(tmp_path / "one.parquet")
    assert file.read()["wire_bytes"].equals(rows["wire_bytes"])
    group = file.metadata.row_group(0)
    encodings = {group.column(n).path_in_schema: group.column(n).encodings for n in range(group.num_columns)}
    assert ("RLE_DICTIONARY" in encodings["wire_bytes"]) is alike
    assert "RLE_DICTIONARY" in encodings["packets"]


def test_payload_is_summed_alike_with_few_keys_and_with_many() -> None:
    rng = np.random.default_rng(5)
    host, time_ns = np.repeat(np.arange(3), 200), np.tile(np.repeat(np.arange(50), 4) * MS // 2, 3)
    key, payload = rng.integers(0, 5, 600), rng.integers(0, 1000, 600).astype(np.uint32)
    until, asked = np.full(3, 10**9), np.arange(3)
    told = []
    for keys in (key, key * 10_000):  # too many cells to be counted one by one
        history = PayloadHistory()
        history.cut_all(1, [3 * MS + 1])
        history.add(host, time_ns, keys, payload, until)
        sums = history.between(asked, np.full(3, 2 * MS), np.full(3, 20 * MS))
        told.append((sums.question.tolist(), (sums.key // (keys.max() // 4)).tolist(), sums.payload_bytes.tolist()))
    assert told[0] == told[1]
    inside = (time_ns >= 2 * MS) & (time_ns < 20 * MS)
    assert sum(told[0][2]) == payload[inside].sum()


@pytest.mark.parametrize("rows", [0, 1, 2, 6])
def test_rows_are_in_order_where_sorting_leaves_them(rows: int) -> None:
    rng = np.random.default_rng(rows)
    for _ in range(200):
        keys = rng.integers(0, 2, (3, rows))
        assert ascending(*keys) == (order_by(*keys) == np.arange(rows)).all()
