# SPDX-License-Identifier: Apache-2.0
import argparse
import io
import json
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from dataset_rows import BEGIN_NS, HOUR_NS, MS, buckets
from dataset_rows import table as rows_of
from rich.console import Console
from test_store import store_small

from collector.dataset.sink import ParquetSink
from collector.flushing import verdict_table
from netmon.commands import export
from netmon.errors import DataError, UsageError
from netmon.history.dataset import TIMED_TABLES
from netmon.report.summary import summarise
from netmon.views import Cause, RankTimes, Verdict


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    directory = tmp_path_factory.mktemp("export") / "data"
    store_small(directory)
    return directory


def run(data, out, *options):
    parser = argparse.ArgumentParser()
    export.arguments(parser)
    return export.run(parser.parse_args(["--data", str(data), "--out", str(out), *options]))


READERS = {"csv": pd.read_csv, "parquet": pd.read_parquet, "feather": pd.read_feather}


@pytest.mark.parametrize("suffix", READERS)
@pytest.mark.parametrize(("table", "rows"), [("iterations", 12), ("buckets", 7500), ("flows", 4), ("ledger", 10)])
def test_every_table_in_every_format(data, tmp_path, suffix, table, rows, capsys):
    out = tmp_path / f"x.{suffix}"
    assert run(data, out, "--table", table) == 0
    frame = READERS[suffix](out)
    assert len(frame) == rows
    assert set(frame["host"]) == {"h0"}
    assert capsys.readouterr().out == f"{rows} rows of {table} in {out}\n"
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


def test_every_table_that_has_times_can_be_exported():
    assert sorted(export._TABLES) == sorted([*TIMED_TABLES, "incidents"])


def test_incidents_are_what_verdicts_have_in_common(data, tmp_path):
    recorded = Path(__file__).parents[1] / "data/verdict"
    assert run(recorded, tmp_path / "x.csv", "--table", "incidents", "--job", "ring-3") == 0
    [row] = pd.read_csv(tmp_path / "x.csv").to_dict("records")
    assert (row["job"], row["cause"], row["steps"]) == ("ring-3", "other_job", 4)
    assert row["line"].startswith("ring-3 2.1 × slower ")
    with pytest.raises(DataError, match="no step of the dataset was slower"):
        run(data, tmp_path / "y.csv", "--table", "incidents")
    with pytest.raises(UsageError, match="by host"):
        run(recorded, tmp_path / "y.csv", "--table", "incidents", "--host", "h0")


def test_lists_are_json_in_csv(tmp_path):
    times = (RankTimes(0, "h0", 9), RankTimes(1, "h1", 9, True, 1, 2, 0, 3, 3, "backup", 0, 1))
    folder = tmp_path / "data" / "verdicts" / "date=2026-01-01" / "hour=00"
    folder.mkdir(parents=True)
    verdict = Verdict("train", 7, 1, 10, 9, 4, 5, Cause.CROSS, "backup", "h1", ranks=times)
    pq.write_table(verdict_table([verdict]), folder / "part.parquet")
    assert run(tmp_path / "data", tmp_path / "x.csv", "--table", "verdicts") == 0
    (text,) = pd.read_csv(tmp_path / "x.csv")["ranks"]
    assert [each["waited_ns"] for each in json.loads(text)] == [0, 2]
    run(tmp_path / "data", tmp_path / "x.parquet", "--table", "verdicts")
    assert [each["host"] for each in pd.read_parquet(tmp_path / "x.parquet")["ranks"][0]] == ["h0", "h1"]


def test_filters(data, tmp_path):
    out = tmp_path / "x.parquet"
    run(data, out, "--job", "train", "--iterations", "2:4")
    assert pd.read_parquet(out)["iteration"].tolist() == [2, 3]
    run(data, out, "--iterations", "10:")
    assert pd.read_parquet(out)["iteration"].tolist() == [10, 11]
    run(data, out, "--table", "buckets", "--since", "2025-10-09T08:53:21", "--until", "2025-10-09T08:53:21.010Z")
    assert len(pd.read_parquet(out)) == 20
    run(data, out, "--table", "buckets", "--iterations", ":1")
    assert set(pd.read_parquet(out)["iteration"]) == {0}


@pytest.mark.parametrize(
    ("options", "error", "reason"),
    [
        (["--job", "other"], DataError, "no row of the dataset matches"),
        (["--table", "ledger", "--job", "train"], UsageError, "by job: the table has no such column"),
        (["--table", "flows", "--iterations", "1:2"], UsageError, "by iteration: the table has no such column"),
        (["--iterations", "3"], UsageError, "write A:B"),
        (["--since", "yesterday"], UsageError, "write it like 2026"),
    ],
)
def test_what_cannot_be_exported(data, tmp_path, options, error, reason):
    with pytest.raises(error, match=reason):
        run(data, tmp_path / "x.csv", *options)
    assert not list(tmp_path.iterdir())


def test_no_dataset(tmp_path):
    with pytest.raises(DataError, match="no such directory"):
        run(tmp_path / "nothing", tmp_path / "x.csv")
    with pytest.raises(DataError, match="holds no row of it yet"):
        run(tmp_path, tmp_path / "x.csv")
    with pytest.raises(UsageError, match=r"the format of .* is unknown"):
        run(tmp_path, tmp_path / "x.txt")


def test_the_summary_compares_quiet_and_shared(data):
    summary = summarise(data)
    (job,) = summary.jobs.to_dict("records")
    assert (job["quiet_iterations"], job["shared_iterations"], job["ranks"]) == (6, 6, 2)
    assert (job["measured_bytes"], job["theory_bytes"]) == (240_000, 4_000_000)
    volumes = summary.volumes.set_index(["direction", "period", "class"])["wire_bytes"]
    assert volumes["rx", "shared", "cross"] == 6 * 240 * 100_066
    assert volumes["tx", "quiet", "DL-only"] == 6 * 240 * 1_066
    assert volumes.sum() == 6000 * 1_066 + 1500 * 100_066
    assert (summary.accounts["coverage"] == 1).all()
    console = Console(width=120, file=io.StringIO())
    summary.print(console)
    text = console.file.getvalue()
    assert "train (hook)" in text
    assert "h0 eth0 rx" in text
    assert "100.000%" in text


def test_only_files_of_the_time_are_opened(tmp_path):
    sink = ParquetSink(tmp_path)
    for hour in range(4):
        begin = BEGIN_NS + hour * HOUR_NS + HOUR_NS // 2
        when = {"iteration": hour * 14_400 + 7_200, "start_ns": begin, "end_ns": begin + 250 * MS}
        rows = rows_of("iterations", 1, job="job0", **when)
        sink.write({"buckets": buckets(2, begin), "iterations": rows}, {})
    sink.close()
    unreadable = [path for path in tmp_path.glob("buckets/*/*/*") if path.parent.name in ("hour=01", "hour=03")]
    for path in unreadable:
        path.write_bytes(b"no Parquet")
    out = tmp_path / "x.parquet"
    run(tmp_path, out, "--table", "buckets", "--job", "job0", "--iterations", "36000:36001")
    rows = pd.read_parquet(out)
    assert len(rows) > 0
    assert set(rows["date"]) == {"2026-11-21"}
    assert (rows["bucket_start_ns"] // HOUR_NS * HOUR_NS == BEGIN_NS + 2 * HOUR_NS).all()
    run(tmp_path, out, "--table", "buckets", "--since", "2026-11-21T00:20", "--until", "2026-11-21T00:40")
    assert len(pd.read_parquet(out)) == 400
    with pytest.raises(DataError, match="no row of the dataset matches"):
        run(tmp_path, out, "--table", "buckets", "--since", "2026-11-21T02:40", "--until", "2026-11-21T02:45")
