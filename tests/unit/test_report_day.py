# SPDX-License-Identifier: Apache-2.0
"""More rows than a report keeps: sums are of all of them, details of a part, and the report says which."""

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import synthetic_day
from dataset_rows import BEGIN_NS, HOUR_NS, MS, buckets, table

from collector.dataset.sink import ParquetSink
from netmon.history.dataset import Tables
from netmon.report import study
from netmon.report.chapters import accounts
from netmon.report.scan import training_times
from netmon.report.study import read_study

MOST_KB = 1_500_000


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("day")
    synthetic_day.write_day(directory, hosts=8, share=0.004, hours=1)
    return directory


def test_sums_are_whole_and_details_are_of_a_part(data, monkeypatch):
    whole = read_study(data)
    monkeypatch.setattr(study, "MOST_CELLS", 10_000)
    monkeypatch.setattr(study, "MOST_ITERATIONS", 20_000)
    part = read_study(data)
    assert (whole.traffic.rows, part.traffic.rows) == (112_000, 112_000)
    for name in ("flows", "phases"):
        pd.testing.assert_frame_equal(getattr(part.traffic, name), getattr(whole.traffic, name))
    begin, end = part.traffic.detail_ns
    assert (end - begin) % (250 * MS) == 0
    cells = whole.traffic.milliseconds
    kept = cells[(cells["time_ns"] >= begin) & (cells["time_ns"] < end)].reset_index(drop=True)
    pd.testing.assert_frame_equal(part.traffic.milliseconds, kept)
    assert 5_000 < len(kept) <= 10_000
    assert len(part.ranks) * 6 == len(whole.ranks)
    assert set(part.ranks["iteration"] % 6) == {0}
    assert part.accounts["nic_bytes"].sum() == whole.accounts["nic_bytes"].sum() == 2 * 8 * 3600 * 10**6
    told = " ".join(part.tables.missing)
    assert "112000 rows of buckets: sums are of all of them" in told
    assert "115200 rows of iterations: durations are those of every 6th iteration" in told
    assert not any("rows of buckets" in line for line in whole.tables.missing)


def test_training_times_of_pieces_are_those_of_the_whole():
    starts = [5, 0, 100, 20, 108]
    rows = pd.DataFrame({"host": ["a", "a", "b", "b", "a"], "job": ["x", "y", "x", "x", "x"], "start_ns": starts})
    rows["end_ns"] = rows["start_ns"] + 10
    for pieces in ([rows], [rows[:2], rows[2:]], [rows[3:], rows[:3]]):
        found = training_times(pieces)
        assert found.jobs == {"x": (5, 118), "y": (0, 10)}
        assert found.hosts == {"a": {"x": (5, 118), "y": (0, 10)}, "b": {"x": (20, 110)}}
        assert (found.starts.tolist(), found.ends.tolist()) == ([0, 20, 100], [15, 30, 118])


def test_counters_are_followed_over_files_and_batches(tmp_path):
    sink = ParquetSink(tmp_path)
    for hour, values in enumerate(([5, 7], [9, 6], [30, 8])):
        told = {"host": ["a", "b"], "device": "eth0", "source": "sysfs", "counter": "rx_bytes", "value": values}
        sink.write({"nic": table("nic", 2, time_ns=BEGIN_NS + hour * HOUR_NS, **told)}, {})
    sink.close()
    rows = Tables(tmp_path).growth("nic", ["host", "counter"], "time_ns", "value")
    assert rows[["host", "first", "last", "samples"]].to_numpy().tolist() == [["a", 5, 30, 3], ["b", 7, 8, 3]]
    assert Tables(tmp_path).sums("nic", ["host"], ["value"])["value"].tolist() == [44, 21]


def test_of_an_rdma_port_it_is_said_what_was_posted_on_its_device_and_what_is_left(tmp_path):
    sink = ParquetSink(tmp_path)
    for at, (sent, received) in enumerate(((1_000, 50), (9_500, 2_050))):
        of_port = {"host": "a", "device": "mlx5_0/1", "source": "rdma"}
        counted = {"counter": ["port_xmit_bytes", "port_rcv_bytes"], "value": [sent, received]}
        sink.write({"nic": table("nic", 2, time_ns=BEGIN_NS + at * HOUR_NS, **of_port, **counted)}, {})
    of_device = {"host": "a", "rdma_device": "mlx5_0", "start_ns": BEGIN_NS, "end_ns": BEGIN_NS + HOUR_NS}
    rows = {
        "job": ["train", "train", "", ""],
        "verb": ["write", "read", "send", "write"],
        "bytes": [6000, 1500, 300, 700],
    }
    sink.write({"rdma": table("rdma", 4, **of_device, **rows)}, {})
    sink.close()
    (exhibit,) = (exhibit for exhibit in accounts.CHAPTER.exhibits if exhibit.name == "rdma-ports")
    (port,) = exhibit.tables(read_study(tmp_path))["ports"].to_dict("records")
    assert port == {
        **{"host": "a", "device": "mlx5_0/1", "sent_bytes": 8500, "received_bytes": 2000},
        **{"by_ranks_bytes": 6000, "by_others_bytes": 1000, "reads_bytes": 1500, "rest_bytes": 1500},
    }


def test_where_nobody_told_how_wide_rows_are_they_do(tmp_path):
    sink = ParquetSink(tmp_path)
    sink.write({"buckets": buckets(2, BEGIN_NS, 100, step_ns=5 * MS)}, {})
    sink.close()
    study = read_study(tmp_path)
    assert (study.bucket_ns, study.traffic.rows) == (5 * MS, 200)


@pytest.fixture(scope="module")
def day(tmp_path_factory) -> Path:
    """Iterations and ledger of a whole day, buckets of a hundredth of each of its hours."""
    directory = tmp_path_factory.mktemp("day")
    synthetic_day.write_day(directory, hosts=100, share=0.01)
    return directory


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("command", ["report", "export"])
def test_a_day_of_a_hundred_hosts_is_read_in_bounded_memory(day, tmp_path, command):
    netmon = [sys.executable, "-m", "netmon", command]
    options = {
        "report": [str(day), "--out", str(tmp_path / "report")],
        "export": ["--data", str(day), "--table", "buckets", "--out", str(tmp_path / "x.parquet")],
    }
    process = subprocess.Popen([*netmon, *options[command]])
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    assert used.ru_maxrss <= MOST_KB
