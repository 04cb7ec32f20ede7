# SPDX-License-Identifier: Apache-2.0
"""Datasets that earlier versions have written become ones of today's: every row, all or nothing."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from collector_stream import MS, UTC, S, hello

from collector.dataset import migration
from collector.dataset.earlier import earlier_resume
from collector.dataset.manifest import Manifest
from collector.dataset.migration import migrate
from collector.dataset.sink import ParquetSink
from collector.dataset.staging import Staging
from collector.dataset.tables import DATASET_VERSION, SCHEMAS
from netmon.cli import main
from netmon.errors import DataError
from netmon.records import ClockSample
from netmon.report.dataset import Tables

RECORDED = Path(__file__).parents[1] / "data" / "datasets"
VERSIONS = (1, 2, 3)
BEGIN = 1_760_054_400 * S - 600 * MS  # as they were recorded


@pytest.fixture(params=VERSIONS)
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copytree(RECORDED / f"schema-{request.param}", tmp_path / "data"))


def rows(data: Path, name: str) -> pd.DataFrame:
    """All rows of a table, words plain, in one order."""
    files = sorted((data / name).glob("date=*/*/*.parquet"))
    tables = []
    for path in files:
        table = pq.ParquetFile(path).read().to_pandas()
        if path.parts[-2].startswith("host="):
            table["host"] = path.parts[-2].removeprefix("host=")
        words = [column for column in table if isinstance(table[column].dtype, pd.CategoricalDtype)]
        tables.append(table.astype(dict.fromkeys(words, object)))
    found = pd.concat(tables)
    return found.sort_values(sorted(found.columns), ignore_index=True)[sorted(found.columns)]


def content(data: Path) -> dict[str, bytes]:
    ours = (data / ".netmon", data / ".collector.lock")
    return {
        str(path.relative_to(data)): path.read_bytes()
        for path in sorted(data.rglob("*"))
        if path.is_file() and not any(path.is_relative_to(own) for own in ours)
    }


def test_every_row_is_there_as_it_was(data: Path) -> None:
    tables = sorted(path.name for path in data.iterdir())
    before = {name: rows(data, name) for name in tables}
    done = migrate(data)
    assert done.rows == sum(map(len, before.values()))
    assert sorted(path.name for path in data.iterdir() if path.is_dir() and path.name[0] != ".") == sorted(
        [*tables, "sessions"]
    )
    for name, old in before.items():
        new = rows(data, name)
        columns = list(old.columns)
        ordered = new.sort_values(columns, ignore_index=True)[columns]
        pd.testing.assert_frame_equal(ordered, old.sort_values(columns, ignore_index=True), check_dtype=False)
        for path in (data / name).glob("date=*/*/*.parquet"):
            assert path.parent.name.startswith("hour=")
            assert pq.read_schema(path).remove_metadata().equals(SCHEMAS[name])
    buckets = rows(data, "buckets")
    assert (buckets["busy_buckets"] == 1).all()
    assert buckets["peak_bytes"].equals(buckets["wire_bytes"])
    assert migrate(data).files == 0


def test_what_stood_in_the_files_metadata_is_a_table(data: Path) -> None:
    migrate(data)
    sessions = rows(data, "sessions")
    assert sessions[["host", "session"]].to_numpy().tolist() == [["h0", "s1"], ["h1", "s2"]]
    (row, _) = sessions.to_dict("records")
    assert (row["interface"], row["bucket_ns"], row["hook_rx"], row["share_threshold"]) == ("eth0", MS, "tcx", 0.01)
    assert row["start_ns"] == BEGIN
    assert "one header per segment" in row["byte_basis"]
    read = Tables(data)
    assert (read.missing, read.metadata["schema_version"]) == ([], [DATASET_VERSION])
    assert read.metadata["byte_basis"]


def test_a_session_goes_on_where_it_was(data: Path) -> None:
    clock = ClockSample(0, BEGIN, 1_000)
    introduction = hello(host="h1", session="s2", clock=clock)
    before, _ = earlier_resume(data, introduction) if not data_is_first(data) else (None, None)
    migrate(data)
    sink = ParquetSink(data)
    after = sink.resume(introduction)
    sink.close()
    assert after.last_sequence == 14
    assert 0 < after.complete_sequence < 14
    assert after.clock
    assert after.clock.utc(0) == BEGIN
    assert len(after.flows) == 4
    if before:
        assert (after.last_sequence, after.complete_sequence, after.settled_ns) == (
            before.last_sequence,
            before.complete_sequence,
            before.settled_ns,
        )
        assert before.clock
        assert after.clock.document() == before.clock.document()
        assert (after.flows, after.ledger_until_utc) == (before.flows, before.ledger_until_utc)


def data_is_first(data: Path) -> bool:
    path = next(data.glob("buckets/*/*/*.parquet"))
    return pq.read_schema(path).metadata[b"netmon.schema_version"] == b"1"


def fails_at(number: int) -> Callable[..., None]:
    write, count = migration.write_file, iter(range(1000))

    def write_file(*args: object) -> None:
        if next(count) == number:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(*args)  # type: ignore[arg-type]

    return write_file


def test_a_disk_that_is_full_at_any_file_leaves_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = Path(shutil.copytree(RECORDED / "schema-2", tmp_path / "data"))
    before = content(data)
    for number in range(9):
        with monkeypatch.context() as patch:
            patch.setattr(migration, "write_file", fails_at(number))
            with pytest.raises(DataError, match=r"No space left on device; it is as it was"):
                migrate(data)
        assert content(data) == before
        assert not list((data / ".netmon" / "staging").iterdir())
    assert migrate(data).made == 9


def test_what_ends_before_the_transaction_has_done_nothing(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = content(data)
    with monkeypatch.context() as patch:
        patch.setattr(Manifest, "commit", interrupted)
        patch.setattr(Staging, "discard", lambda *_: None)  # it is killed
        with pytest.raises(KeyboardInterrupt):
            migrate(data)
    assert content(data) == before
    assert migrate(data).files
    assert not list((data / ".netmon" / "staging").iterdir())


@pytest.mark.parametrize("collector_first", [False, True])
def test_what_ends_after_it_is_completed_by_who_starts_next(
    data: Path, monkeypatch: pytest.MonkeyPatch, collector_first: bool
) -> None:
    whole = Path(shutil.copytree(data, data.with_name("whole")))
    migrate(whole)
    with monkeypatch.context() as patch:
        patch.setattr(Staging, "place", interrupted)
        with pytest.raises(KeyboardInterrupt):
            migrate(data)
    if collector_first and (data / "full").exists():  # version 3, which a collector goes on with
        ParquetSink(data).close()
    else:
        assert migrate(data).files == 0
    for name in SCHEMAS:
        if (whole / name).exists():
            pd.testing.assert_frame_equal(rows(data, name), rows(whole, name))
    assert not list(data.glob("*/date=*/host=*/*"))


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_a_file_that_cannot_be_read_is_named(data: Path) -> None:
    path = sorted(data.glob("ledger/*/*/*.parquet"))[0]
    path.write_bytes(path.read_bytes()[:100])
    before = content(data)
    with pytest.raises(DataError, match=rf"{path.name} cannot be read .*; move that file away to go on without it"):
        migrate(data)
    assert content(data) == before


def test_a_disk_without_room_is_said_before_anything_is_written(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migration.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**6, 10**6 - 1, 1))
    with pytest.raises(DataError, match=r"it needs \d+ MB beside what is there, and 0 MB are free"):
        migrate(data)


def test_a_collector_that_writes_there_is_in_the_way(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path)
    with pytest.raises(DataError, match="another collector does"):
        migrate(tmp_path)
    sink.close()


def test_the_command_says_what_it_would_do_and_what_it_did(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = content(data)
    assert main(["migrate", str(data), "--dry-run"]) == 0
    assert "files of earlier versions" in capsys.readouterr().out
    assert content(data) == before
    assert main(["migrate", str(data)]) == 0
    assert "with 2 sessions" in capsys.readouterr().out
    assert main(["migrate", str(data)]) == 0
    assert "nothing to migrate" in capsys.readouterr().out
    assert main(["migrate", str(data / "nowhere")]) == 1
    assert "no such directory" in capsys.readouterr().err


def test_what_root_makes_belongs_to_whom_the_dataset_does(data: Path) -> None:
    if os.geteuid():
        pytest.skip("giving files away needs root")
    for path in (data, *data.rglob("*")):
        os.chown(path, 12345, 12345)
    assert main(["migrate", str(data)]) == 0
    assert {path.stat().st_uid for path in (data, *data.rglob("*"))} == {12345}


def test_a_collector_that_refuses_names_the_command(tmp_path: Path) -> None:
    data = Path(shutil.copytree(RECORDED / "schema-2", tmp_path / "data"))
    with pytest.raises(DataError, match=f"run `netmon migrate {data}`"):
        ParquetSink(data)
    migrate(data)
    sink = ParquetSink(data)
    sink.write({"buckets": pa.concat_tables([pq.ParquetFile(p).read() for p in data.glob("buckets/*/*/*")])}, {})
    sink.close()


def test_the_recordings_are_what_they_say() -> None:
    for version in VERSIONS:
        for path in (RECORDED / f"schema-{version}").glob("*/*/*/*.parquet"):
            assert int(pq.read_schema(path).metadata[b"netmon.schema_version"]) == version
    assert UTC != BEGIN  # across midnight
