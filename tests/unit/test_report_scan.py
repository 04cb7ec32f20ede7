# SPDX-License-Identifier: Apache-2.0
"""The single pass over the buckets gives what pandas gives with the whole table in memory."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import synthetic_dataset
from hypothesis import given
from hypothesis import strategies as st

from netmon.history.dataset import Tables, _gathered, open_table, stream
from netmon.report import scan as scanning
from netmon.report.scan import _BINS, COLUMNS, Cells, Scan, Traffic, scan, sum_by, sum_cells, training_times

LINK = ["host", "interface", "direction"]
SUMS = ["packets", "wire_bytes", "payload_bytes"]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    synthetic_dataset.write_dataset(folder, iterations=3, thin=17)
    return folder


@pytest.fixture(scope="module")
def rows(data) -> pd.DataFrame:
    table = open_table(data, "buckets").to_table().to_pandas()
    words = [name for name in table if isinstance(table[name].dtype, pd.CategoricalDtype)]
    return table.astype(dict.fromkeys(words, object))


@pytest.fixture(scope="module", params=[1 << 20, 997])
def traffic(data, request) -> Traffic:
    """request.param: rows per batch."""
    tables = Tables(data)
    whole = pa.Table.from_batches(list(tables.batches("buckets", COLUMNS)))
    pieces = whole.to_batches(max_chunksize=request.param)
    into = Scan(
        synthetic_dataset.BUCKET_NS, synthetic_dataset.RATE, 128_000, training_times([tables.read("iterations")])
    )
    return scan(pieces, into)


def same(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    by = [name for name in expected if name not in SUMS]
    order = [frame[list(expected)].sort_values(by, ignore_index=True) for frame in (found, expected)]
    pd.testing.assert_frame_equal(*order, check_dtype=False)


def test_rows_and_time(traffic, rows):
    assert traffic.rows == len(rows)
    assert traffic.begin_ns == rows["bucket_start_ns"].min()
    assert traffic.end_ns == rows["bucket_start_ns"].max() + synthetic_dataset.BUCKET_NS


def test_flows(traffic, rows):
    by = ["session", "flow_id", *LINK, "class"]
    same(traffic.flows[[*by, *SUMS]], rows.groupby(by, as_index=False)[SUMS].sum())


def test_milliseconds(traffic, rows):
    by = [*LINK, "class", "job", "time_ns"]
    found = traffic.milliseconds.merge(traffic.series, left_on="series", right_index=True)
    expected = rows.assign(time_ns=rows["bucket_start_ns"] // 1_000_000 * 1_000_000)
    sums = ["wire_bytes", "packets"]
    assert (found["time_ns"] % 1_000_000 == 0).all()
    same(found[[*by, *sums]], expected.groupby(by, as_index=False)[sums].sum())


def test_milliseconds_of_some_series_and_time(traffic):
    cells = traffic.milliseconds
    begin_ns, end_ns = (int(cells["time_ns"].quantile(share)) for share in (0.3, 0.6))
    some = [3, 0, 10_000]
    wanted = cells[cells["series"].isin(some) & (cells["time_ns"] >= begin_ns) & (cells["time_ns"] < end_ns)]
    assert len(wanted)
    assert sorted(traffic.cells(some, begin_ns, end_ns).index) == wanted.index.to_list()
    assert traffic.cells([], begin_ns, end_ns).empty


def test_rows_of_many_small_files_come_together(data, rows):
    tables = Tables(data)
    batches = list(tables.batches("buckets", COLUMNS))
    assert (len(batches), sum(map(len, batches))) == (1, len(rows))
    assert len(tables._datasets["buckets"].files) > 1
    assert [len(batch) for batch in _gathered(batches * 3)] == [3 * len(rows)]


def test_slices_and_iterations(traffic, rows):
    quarter = rows.assign(time_ns=rows["bucket_start_ns"] // 250_000_000 * 250_000_000)
    by = ["session", "flow_id", "time_ns"]
    same(traffic.flow_slices, quarter.groupby(by, as_index=False)[["payload_bytes"]].sum())
    training = rows[rows["class"].str.startswith("DL") & (rows["iteration"] >= 0)]
    by = ["session", "flow_id", "iteration"]
    same(traffic.flow_iterations, training.groupby(by, as_index=False)[["payload_bytes"]].sum())


def test_phases_account_for_every_byte(traffic, rows):
    assert traffic.phases[SUMS].sum().to_dict() == rows[SUMS].sum().to_dict()
    training = traffic.phases[traffic.phases["class"].str.startswith("DL")]
    assert set(training["phase"]) == {"inside"}


def test_peaks_of_the_finest_bucket(traffic, rows):
    by = [*LINK, "class"]
    finest = traffic.peaks[(traffic.peaks["interval_ns"] == synthetic_dataset.BUCKET_NS)]
    cells = rows.groupby([*by, "bucket_start_ns"], as_index=False)["wire_bytes"].sum()
    expected = cells.groupby(by, as_index=False)["wire_bytes"].max().rename(columns={"wire_bytes": "peak_bytes"})
    found = finest[finest["class"] != "all"]
    if traffic.rows > 997:  # a bucket that lies in two batches counts as two
        merged = found.merge(expected, on=by, suffixes=("", "_expected"))
        assert len(merged) == len(expected)
        assert (merged["peak_bytes"] <= merged["peak_bytes_expected"]).all()
        assert (merged["peak_bytes"] >= 0.5 * merged["peak_bytes_expected"]).all()


@given(st.integers(0, 1000), st.integers(0, 60), st.integers(1, 7))
def test_cells_add_up_whichever_way_they_come(seed, rows, pieces):
    rng = np.random.default_rng(seed)
    key, amount = rng.integers(0, 20, rows), rng.integers(0, 2**40, rows)
    cells = Cells(1)
    for piece in np.array_split(np.arange(rows), pieces):
        cells.add(key[piece], amount[piece])
    distinct, (sums,) = cells.sums()
    expected: dict[int, int] = {}
    for number, value in zip(key.tolist(), amount.tolist(), strict=True):
        expected[number] = expected.get(number, 0) + value
    assert dict(zip(distinct.tolist(), sums.tolist(), strict=True)) == dict(sorted(expected.items()))
    assert (np.diff(distinct) > 0).all()
    assert sum_by(key, amount)[0].tolist() == distinct.tolist()


@given(st.integers(0, 2**32 - 1), st.integers(0, 200), st.sampled_from((1, 3, 10**6)))
def test_cells_of_rows_close_together_are_those_of_any(seed, rows, apart):
    rng = np.random.default_rng(seed)
    series, bins = rng.integers(0, 5, rows) * 7, (rng.integers(0, 40, rows) + 10**9) * apart
    amounts = [rng.integers(0, 2**40, rows) for _ in range(2)]
    key, sums = sum_cells(series, bins, *amounts)
    expected, expected_sums = sum_by(series << _BINS | bins, *amounts)
    assert key.tolist() == expected.tolist()
    assert [column.tolist() for column in sums] == [column.tolist() for column in expected_sums]


@pytest.mark.parametrize("cells", [1 << 21, 100])
def test_rows_that_are_wider_are_spread_over_their_time(data, rows, monkeypatch, cells):
    """As an agent under pressure streams them: no peak is made of bytes that came at other times."""
    monkeypatch.setattr(scanning, "_MOST_CELLS", cells)
    wide = 5 * synthetic_dataset.BUCKET_NS
    plain = rows.sort_values("bucket_start_ns").head(4000)
    coarse = plain.assign(bucket_start_ns=plain["bucket_start_ns"] // wide * wide, bucket_ns=wide)
    found = []
    for table in (plain, coarse):
        into = Scan(
            synthetic_dataset.BUCKET_NS, synthetic_dataset.RATE, 0, training_times([Tables(data).read("iterations")])
        )
        found.append(scan(pa.Table.from_pandas(table[list(COLUMNS)], preserve_index=False).to_batches(), into))
    for name in ("wire_bytes", "packets"):
        assert found[0].milliseconds[name].sum() == found[1].milliseconds[name].sum()
    assert found[1].peaks["peak_bytes"].max() <= found[0].peaks["peak_bytes"].max()


def test_a_large_file_is_not_held_while_it_is_read(tmp_path):
    folder = tmp_path / "buckets" / "date=2026-11-21" / "hour=00"
    folder.mkdir(parents=True)
    numbers = np.random.default_rng(1).integers(0, 2**62, (8, 800_000))
    table = pa.table(dict(zip(["bucket_start_ns", "wire_bytes", *"abcdef"], numbers, strict=True)))
    pq.write_table(table, folder / "part-0.parquet", row_group_size=40_000)
    del table
    before, rows, most = pa.total_allocated_bytes(), 0, 0
    for batch in stream(open_table(tmp_path, "buckets")):
        rows += len(batch)
        most = max(most, pa.total_allocated_bytes() - before)
    assert rows == 800_000
    assert most < numbers.nbytes / 2
