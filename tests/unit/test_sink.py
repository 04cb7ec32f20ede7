# SPDX-License-Identifier: Apache-2.0
"""The Parquet sink by itself: what a crash, a full disk and a second collector do to it."""

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from collector_stream import UTC, S, hello
from dataset_rows import BEGIN_NS, HOUR_NS, MS, buckets, flows, state, stored_rows, table

from collector.dataset.files import Disk
from collector.dataset.manifest import Manifest
from collector.dataset.sink import ParquetSink
from netmon.errors import DataError


class PowerCut(BaseException):
    """Nothing of what comes after it happens."""


def count(directory: Path, name: str = "buckets") -> int:
    return len(stored_rows(directory, name))


def test_rows_of_all_hosts_are_in_one_file_by_host_and_time(tmp_path):
    sink = ParquetSink(tmp_path)
    later, earlier = buckets(3, BEGIN_NS + 500 * MS), buckets(3, BEGIN_NS)
    sink.write({"buckets": pa.concat_tables([later, earlier])}, {})
    sink.close()
    (path,) = tmp_path.glob("buckets/date=2026-11-21/hour=00/part-*.parquet")
    rows = pq.ParquetFile(path).read().to_pandas()
    assert len(rows) == 1200
    expected = rows.sort_values(["host", "bucket_start_ns"], kind="stable")
    assert rows["host"].tolist() == expected["host"].tolist()
    assert rows["bucket_start_ns"].tolist() == expected["bucket_start_ns"].tolist()
    assert "DELTA_BINARY_PACKED" in pq.ParquetFile(path).metadata.row_group(0).column(5).encodings


def test_who_has_let_go_of_the_directory_writes_no_more(tmp_path):
    sink = ParquetSink(tmp_path)
    sink.close()
    with pytest.raises(DataError, match="let go of"):
        sink.write({"buckets": buckets(1, BEGIN_NS)}, {})
    ParquetSink(tmp_path).close()


def test_an_hour_has_a_folder(tmp_path):
    sink = ParquetSink(tmp_path)
    sink.write({"buckets": buckets(2, BEGIN_NS + HOUR_NS - 100 * MS)}, {})
    sink.close()
    assert {path.parent.name for path in tmp_path.glob("buckets/*/*/*")} == {"hour=00", "hour=01"}
    assert pd.read_parquet(tmp_path / "buckets").groupby("hour", observed=True).size().to_dict() == {0: 200, 1: 200}


@pytest.mark.parametrize("moment", ["stage", "commit", "after the commit", "rename", "remove"])
def test_a_power_cut_at_any_moment_leaves_all_of_a_write_or_nothing(tmp_path, monkeypatch, moment):
    """Nothing is visible before the commit; after it everything will be."""
    data, after = tmp_path / "data", tmp_path / "after"
    sink = ParquetSink(data)
    first = {"buckets": buckets(2, BEGIN_NS), "flows": flows("h0", [1, 2])}
    sink.write(first, {"s1": state("h0", 5)})
    second = {"buckets": buckets(2, BEGIN_NS + S), "flows": flows("h0", [2, 3], process="iperf3")}
    renames = 0

    def cut(*_: object, **__: object) -> None:
        shutil.copytree(data, after)
        raise PowerCut

    def second_rename(path: Path, target: Path) -> None:
        nonlocal renames
        renames += 1
        if renames == 2:
            cut()
        os.replace(path, target)

    with monkeypatch.context() as patched:
        if moment == "stage":
            patched.setattr(Disk, "sync_directory", cut)
        elif moment == "commit":
            patched.setattr(Manifest, "commit", cut)
        elif moment == "after the commit":
            patched.setattr(Path, "replace", cut)
        elif moment == "rename":
            patched.setattr(Path, "replace", second_rename)
        else:
            patched.setattr(Manifest, "placed", cut)
        with pytest.raises(PowerCut):
            sink.write(second, {"s1": state("h0", 9)})
    sink.close()
    whole = moment not in ("stage", "commit")
    assert count(after) in ((400,) if not whole else (400, 800))
    again = ParquetSink(after)
    resumed = again.resume(hello())
    assert resumed.last_sequence == (9 if whole else 5)
    if not whole:
        again.write(second, {"s1": state("h0", 9)})
    again.close()
    assert count(after) == 800
    assert not pd.read_parquet(after / "buckets").duplicated().any()
    seen = pd.read_parquet(after / "flows").set_index("flow_id")["process"].astype(str).to_dict()
    assert seen == {1: "", 2: "iperf3", 3: "iperf3"}
    assert not list((after / ".netmon" / "staging").iterdir())


def test_a_directory_that_is_removed_under_it_is_made_anew(tmp_path, caplog):
    data = tmp_path / "data"
    sink = ParquetSink(data)
    sink.write({"buckets": buckets(2, BEGIN_NS), "flows": flows("h0", [1])}, {"s1": state("h0", 5)})
    shutil.rmtree(data)
    sink.write({"buckets": buckets(2, BEGIN_NS + S), "flows": flows("h0", [1, 2])}, {"s1": state("h0", 9)})
    assert count(data) == 400
    assert [line for line in caplog.messages if "was removed by somebody" in line]
    with pytest.raises(DataError, match="another collector does"):
        ParquetSink(data)
    shutil.rmtree(data)
    other = ParquetSink(data)
    for _ in range(2):
        with pytest.raises(DataError, match="another collector does"):
            sink.write({"buckets": buckets(2, BEGIN_NS + 2 * S)}, {"s1": state("h0", 12)})
    assert not sink.merge_some(lambda: True)  # there is nothing of it to be looked after, which is no error
    sink.take_absent()
    sink.drop([])
    other.close()
    sink.write({"buckets": buckets(2, BEGIN_NS + 2 * S)}, {"s1": state("h0", 12)})
    sink.close()
    assert count(data) == 400
    again = ParquetSink(data)
    assert again.resume(hello()).last_sequence == 12
    again.close()


WRITER = """
import sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from collector_stream import hello
from dataset_rows import BEGIN_NS, MS, buckets, flows, state
from collector.dataset.sink import ParquetSink
sink = ParquetSink(Path(sys.argv[1]))
number = sink.resume(hello()).last_sequence
while True:
    number += 1
    tables = {"buckets": buckets(1, BEGIN_NS + number * 200 * MS), "flows": flows("h0", [1, number])}
    sink.write(tables, {"s1": state("h0", number)})
    print(number, flush=True)
"""


def test_a_collector_that_is_killed_loses_nothing_and_stores_nothing_twice(tmp_path):
    told = 0
    for kill_after in (1, 4, 2):
        command = [sys.executable, "-c", WRITER, str(tmp_path), str(Path(__file__).parent)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout
            for _ in range(kill_after):
                told = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
            rest = process.stdout.read().splitlines()
            told = max([told, *(int(line) for line in rest if line.isdigit())])
    sink = ParquetSink(tmp_path)
    stored = sink.resume(hello()).last_sequence
    sink.close()
    assert told <= stored <= told + 1
    rows = pd.read_parquet(tmp_path / "buckets")
    assert sorted(rows["bucket_start_ns"]) == [BEGIN_NS + (200 + row) * MS for row in range(200 * stored)]
    assert sorted(pd.read_parquet(tmp_path / "flows")["flow_id"]) == list(range(1, stored + 1))


def test_a_second_collector_is_refused(tmp_path):
    sink = ParquetSink(tmp_path)
    with pytest.raises(DataError, match=r"cannot write to .*: another collector does; stop it or"):
        ParquetSink(tmp_path)
    sink.close()
    ParquetSink(tmp_path).close()


def test_what_cannot_be_renamed_is_not_lost(tmp_path, monkeypatch, caplog):
    """It is stored by then: the next write puts it into its place first."""
    sink = ParquetSink(tmp_path)

    def refuse(path: Path, target: Path) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", refuse)
        sink.write({"buckets": buckets(1, BEGIN_NS)}, {"s1": state("h0", 1)})
        with pytest.raises(DataError, match="Input/output error"):
            sink.write({"buckets": buckets(1, BEGIN_NS + S)}, {"s1": state("h0", 2)})
    assert "cannot put files into their place" in caplog.text
    sink.write({"buckets": buckets(1, BEGIN_NS + S)}, {"s1": state("h0", 2)})
    sink.close()
    assert count(tmp_path) == 400


def test_the_state_of_a_session_comes_back(tmp_path):
    sink = ParquetSink(tmp_path)
    known = state("h0", 7, settled_ns=12, ledger_until_utc={3: 4})
    sink.write({"buckets": buckets(1, BEGIN_NS)}, {"s1": known, "s2": state("h1", 3)})
    sink.close()
    again = ParquetSink(tmp_path)
    resumed = again.resume(hello())
    assert (resumed.last_sequence, resumed.settled_ns, resumed.ledger_until_utc) == (7, 12, {3: 4})
    assert again.resume(hello(host="other")).last_sequence == 0
    assert again.resume(hello(session="s3")).last_sequence == 0
    again.close()


def test_a_flow_has_one_row_whatever_changes(tmp_path):
    sink = ParquetSink(tmp_path)
    sink.write({"flows": pa.concat_tables([flows("h0", [1, 2, 3]), flows("h1", [1, 2], session="s2")])}, {})
    sink.write({"flows": flows("h1", [2, 5], session="s2", process="python")}, {})
    sink.write({"flows": flows("h0", [3], process="iperf3", last_ns=BEGIN_NS + 1)}, {})
    (path,) = tmp_path.glob("flows/*/*/*.parquet")
    rows = pq.ParquetFile(path).read().to_pandas()[["host", "flow_id", "process"]].astype(str).to_numpy().tolist()
    expected = [
        ("h0", 1, ""),
        ("h0", 2, ""),
        ("h0", 3, "iperf3"),
        ("h1", 1, ""),
        ("h1", 2, "python"),
        ("h1", 5, "python"),
    ]
    assert rows == [[host, str(flow), process] for host, flow, process in expected]
    sink.close()


def test_flows_that_only_go_on_are_written_a_few_files_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr("collector.dataset.sink.ROWS_PER_PART", 10)
    sink = ParquetSink(tmp_path)
    ids = list(range(1, 41))
    sink.write({"flows": flows("h0", ids)}, {})
    files = sorted(tmp_path.glob("flows/*/*/*.parquet"))
    assert [pq.read_metadata(path).num_rows for path in files] == [10] * 4
    inodes = {path: path.stat().st_ino for path in files}

    def written() -> list[int]:
        changed = [number for number, path in enumerate(files) if path.stat().st_ino != inodes[path]]
        inodes.update({path: path.stat().st_ino for path in files})
        return changed

    sink.write({}, {})
    assert written() == []
    moving = {"flows": flows("h0", ids, last_ns=BEGIN_NS + S)}
    sink.write(moving, {})  # the first one has waited since now
    rounds = [written()]
    for _ in range(3):
        sink.write({}, {})
        rounds.append(written())
    assert sorted(number for numbers in rounds for number in numbers) == [0, 1, 2]
    assert max(map(len, rounds)) == 1
    sink.write({"flows": flows("h0", [15], process="python")}, {})
    assert 1 in written()
    sink.close()
    assert (pd.read_parquet(tmp_path / "flows").set_index("flow_id")["last_ns"].drop(15) == BEGIN_NS + S).all()


def test_a_session_that_comes_back_goes_on_in_its_files(tmp_path):
    sink = ParquetSink(tmp_path)
    recent = {"first_ns": UTC, "last_ns": UTC}
    sink.write({"flows": flows("h0", [1, 2], **recent)}, {"s1": state("h0", 1, settled_ns=0)})
    sink.close()
    again = ParquetSink(tmp_path)
    resumed = again.resume(hello())
    assert [stored.flow.flow_id for stored in resumed.flows] == [1, 2]
    again.write({"flows": flows("h0", [2, 3], process="python", **recent)}, {"s1": state("h0", 2)})
    again.close()
    assert len(list(tmp_path.glob("flows/*/*/*.parquet"))) == 1
    stored = pd.read_parquet(tmp_path / "flows").set_index("flow_id")["process"].astype(str)
    assert stored.to_dict() == {1: "", 2: "python", 3: "python"}


def test_sessions_have_a_row_per_interface(tmp_path):
    sink = ParquetSink(tmp_path)
    rows = table("sessions", 2, host="h0", session="s1", interface=["eth0", "eth1"], start_ns=BEGIN_NS)
    sink.write({"sessions": rows}, {})
    sink.write({"sessions": table("sessions", 1, host="h0", session="s1", interface="eth1", clock_source="tsc")}, {})
    sink.close()
    stored = pd.read_parquet(tmp_path / "sessions").set_index("interface")["clock_source"].astype(str)
    assert stored.to_dict() == {"eth0": "", "eth1": "tsc"}


def test_a_manifest_that_is_damaged_is_said(tmp_path):
    ParquetSink(tmp_path).close()
    (tmp_path / ".netmon" / "manifest.sqlite").write_bytes(b"x" * 4096)
    with pytest.raises(DataError, match=r"cannot write to .*: file is not a database"):
        ParquetSink(tmp_path)


def test_states_can_be_told_apart():
    assert replace(state("h0", 3), host="h1").text() != state("h0", 3).text()
