# SPDX-License-Identifier: Apache-2.0
"""Small files are merged, old hours go; a reader and a crash never see a row twice or not at all."""

import argparse
import shutil
import threading
import time
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from collector_stream import hello
from dataset_rows import BEGIN_NS, HOUR_NS, MS, buckets, flows, state, stored_rows, table

from collector.dataset import files as files_module
from collector.dataset import sink as sink_module
from collector.dataset.files import Keep, parse_keep, too_old
from collector.dataset.manifest import Manifest
from collector.dataset.sink import ParquetSink, Upkeep
from netmon.commands import collector
from netmon.errors import DataError, UsageError
from netmon.history.dataset import open_table, stream
from netmon.options import defaults_from
from netmon.views import RECENT


@pytest.fixture(autouse=True)
def _rolls_are_old(monkeypatch):
    monkeypatch.setattr(files_module, "ROLL_S", -1)


def files(directory: Path, name: str = "buckets") -> list[Path]:
    return sorted(directory.glob(f"{name}/*/*/*.parquet"))


def recent(directory: Path, name: str = "buckets") -> list[Path]:
    """What is not a part of another file yet, or was some minutes ago."""
    return sorted((directory / RECENT / name).glob("*/*/*/*.parquet"))


def read(directory: Path) -> pd.DataFrame:
    rows = stored_rows(directory)
    return rows.sort_values(["host", "bucket_start_ns", "flow_id"], ignore_index=True)


def compression(path: Path) -> str:
    return str(pq.ParquetFile(path).metadata.row_group(0).column(0).compression)


def filled(directory: Path, writes: int = 5, hosts: int = 3) -> ParquetSink:
    sink = ParquetSink(directory)
    for number in range(writes):
        sink.write({"buckets": buckets(hosts, BEGIN_NS + number * 200 * MS)}, {"s1": state("h0", number)})
    return sink


def test_the_files_of_some_minutes_become_one(tmp_path):
    sink = filled(tmp_path)
    before = read(tmp_path)
    assert not files(tmp_path)
    assert [compression(path) for path in recent(tmp_path)] == 5 * ["SNAPPY"]  # of few rows
    assert sink.merge_some(lambda: True)
    assert not sink.merge_some(lambda: True)
    (path,) = files(tmp_path)
    assert compression(path) == "ZSTD"
    pd.testing.assert_frame_equal(read(tmp_path), before)
    rows = pq.ParquetFile(path).read().to_pandas()
    ordered = rows.sort_values(["host", "bucket_start_ns"], kind="stable", ignore_index=True)
    assert rows["bucket_start_ns"].tolist() == ordered["bucket_start_ns"].tolist()
    sink.write({"buckets": buckets(3, BEGIN_NS + 1000 * MS)}, {})
    assert (len(files(tmp_path)), len(read(tmp_path))) == (1, 3600)
    sink.close()  # merges what is left
    assert (len(files(tmp_path)), len(pd.read_parquet(tmp_path / "buckets"))) == (2, 3600)
    ParquetSink(tmp_path).close()
    assert len(read(tmp_path)) == 3600
    assert not list((tmp_path / ".netmon" / "staging").iterdir())


def test_a_roll_is_merged_when_it_is_old_or_has_many_files_or_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(files_module, "ROLL_S", 3600)
    sink = filled(tmp_path, writes=3)
    assert not sink.merge_some(lambda: True)
    monkeypatch.setattr(files_module, "MOST_FILES", 3)
    assert sink.merge_some(lambda: True)
    sink.write({"buckets": buckets(3, BEGIN_NS)}, {})
    assert not sink.merge_some(lambda: True)
    monkeypatch.setattr(files_module, "_MOST_BYTES", 1)
    assert sink.merge_some(lambda: True)
    assert (len(files(tmp_path)), len(read(tmp_path))) == (2, 4 * 600)
    sink.write({"buckets": buckets(3, BEGIN_NS)}, {})
    sink.close()


def test_a_large_file_is_in_its_table_at_once_and_is_not_merged(tmp_path, monkeypatch):
    monkeypatch.setattr(files_module, "LARGE_ROWS", 600)
    sink = filled(tmp_path, writes=2)
    large = files(tmp_path)
    assert (len(large), len(recent(tmp_path))) == (2, 0)
    assert not sink.merge_some(lambda: True)
    place = pq.read_schema(large[0]).names.index("host")
    assert pq.read_metadata(large[0]).row_group(0).column(place).statistics.has_min_max, "as of merged ones"
    sink.write({"buckets": buckets(1, BEGIN_NS)}, {})
    assert (len(files(tmp_path)), len(recent(tmp_path))) == (2, 1)
    sink.close()
    assert set(large) < set(files(tmp_path))
    assert len(pd.read_parquet(tmp_path / "buckets")) == len(read(tmp_path)) == 2 * 600 + 200


def test_what_a_killed_collector_has_left_is_merged_by_the_next(tmp_path):
    data = tmp_path / "data"
    sink = filled(tmp_path / "killed")
    shutil.copytree(tmp_path / "killed", data)
    sink.close()
    assert len(read(data)) == 5 * 600
    ParquetSink(data).close()
    assert (len(files(data)), len(pd.read_parquet(data / "buckets"))) == (1, 5 * 600)


@pytest.mark.parametrize("moment", ["merge", "commit", "place", "placed"])
def test_a_power_cut_while_files_are_merged_costs_nothing(tmp_path, monkeypatch, moment):
    data, after = tmp_path / "data", tmp_path / "after"
    sink = filled(data)
    before = read(data)

    def cut(*_: object, **__: object) -> None:
        shutil.copytree(data, after)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        where = {
            "merge": (sink_module, "merge_files"),
            "commit": (Manifest, "commit"),
            "place": (Path, "replace"),
            "placed": (Manifest, "placed"),
        }
        patched.setattr(*where[moment], cut)
        with pytest.raises(KeyboardInterrupt):
            sink.merge_some(lambda: True)
    pd.testing.assert_frame_equal(read(after), before)
    sink.close()
    ParquetSink(after).close()
    for directory in (data, after):
        pd.testing.assert_frame_equal(read(directory), before)
        assert len(files(directory)) == 1
        assert not list((directory / ".netmon" / "staging").iterdir())


def test_files_that_are_a_part_of_another_one_go_when_nobody_can_be_reading_them(tmp_path, monkeypatch):
    monkeypatch.setattr(files_module, "_LOOK_S", -1)
    sink = filled(tmp_path, writes=2)
    assert sink.merge_some(lambda: True)
    assert not sink.merge_some(lambda: True)
    assert len(recent(tmp_path)) == 2
    sink.write({"buckets": buckets(3, BEGIN_NS)}, {})
    monkeypatch.setattr(files_module, "_READ_S", -1)
    assert sink.merge_some(lambda: True)
    assert len(recent(tmp_path)) == 1, "what is no part of another one stays"
    assert not sink.merge_some(lambda: True)
    assert not (tmp_path / RECENT / "buckets").exists() or not list((tmp_path / RECENT / "buckets").iterdir())
    sink.close()
    assert len(read(tmp_path)) == 1800


def test_whoever_has_listed_an_hour_that_is_dropped_can_read_it_for_some_minutes(tmp_path, monkeypatch):
    monkeypatch.setattr(files_module, "_LOOK_S", -1)
    sink = filled(tmp_path)
    sink.write({"buckets": buckets(1, BEGIN_NS + HOUR_NS)}, {})
    while sink.merge_some(lambda: True):
        pass
    listed = open_table(tmp_path, "buckets")
    sink.drop([Keep("buckets", most_bytes=1)])
    assert [path.parent.name for path in files(tmp_path)] == ["hour=01"]
    assert len(read(tmp_path)) == 200
    assert sum(map(len, stream(listed))) == 5 * 600 + 200
    assert not sink.merge_some(lambda: True)
    monkeypatch.setattr(files_module, "_READ_S", -1)
    assert not sink.merge_some(lambda: True)
    with pytest.raises(DataError, match="became a part of another file, or was removed"):
        list(stream(listed))
    assert len(read(tmp_path)) == 200
    sink.close()


def test_a_file_that_could_not_be_renamed_before_is_merged_too(tmp_path, monkeypatch):
    sink = filled(tmp_path, writes=3)
    with monkeypatch.context() as patched:
        patched.setattr(
            files_module.Staging, "publish", lambda *_, **__: (_ for _ in ()).throw(OSError("no such luck"))
        )
        sink.write({"buckets": buckets(3, BEGIN_NS + 600 * MS)}, {})
    merge = sink_module.merge_files

    def and_again(*given: object) -> bool:
        """The rename fails for a second file, after the roll's files were chosen."""
        with monkeypatch.context() as patched:
            patched.setattr(files_module.Staging, "publish", lambda *_, **__: (_ for _ in ()).throw(OSError("nor now")))
            with suppress(DataError):
                sink.write({"buckets": buckets(3, BEGIN_NS + 800 * MS)}, {})
        return merge(*given)

    with monkeypatch.context() as patched:
        patched.setattr(sink_module, "merge_files", and_again)
        assert sink.merge_some(lambda: True)
    sink.write({}, {"s1": state("h0", 9)})
    sink.close()
    assert len(read(tmp_path)) == 5 * 600


def test_an_hour_that_is_dropped_while_it_is_merged_stays_dropped(tmp_path, monkeypatch):
    sink = filled(tmp_path)
    sink.write({"buckets": buckets(1, BEGIN_NS)}, {})
    while sink.merge_some(lambda: True):
        pass
    sink.write({"buckets": buckets(1, BEGIN_NS), "ledger": table("ledger", 1, start_ns=BEGIN_NS)}, {})
    sink.write({"buckets": buckets(1, BEGIN_NS + HOUR_NS)}, {})
    merge = sink_module.merge_files

    def and_meanwhile(*given: object) -> bool:
        with monkeypatch.context() as patched:
            patched.setattr(sink_module, "too_old", lambda *_: [tmp_path / "buckets/date=2026-11-21/hour=00"])
            sink.drop([])
        return merge(*given)

    with monkeypatch.context() as patched:
        patched.setattr(sink_module, "merge_files", and_meanwhile)
        with suppress(DataError):  # the files are gone
            assert not sink.merge_some(lambda: True)
    sink.close()
    assert len(read(tmp_path)) == 200


def test_a_damaged_file_keeps_no_other_one_from_being_merged(tmp_path):
    sink = filled(tmp_path)
    sink.write({"buckets": buckets(1, BEGIN_NS + HOUR_NS)}, {})
    recent(tmp_path)[0].write_bytes(b"no Parquet")
    with pytest.raises(DataError, match="cannot merge files in"):
        sink.merge_some(lambda: True)
    assert sink.merge_some(lambda: True)
    assert not sink.merge_some(lambda: True)
    assert [path.parent.name for path in files(tmp_path)] == ["hour=01"]
    assert len(recent(tmp_path)) == 6
    sink.close()


def test_merging_stops_when_it_is_told_to(tmp_path):
    sink = filled(tmp_path)
    assert not sink.merge_some(lambda: False)
    assert not files(tmp_path)
    assert not list((tmp_path / ".netmon" / "staging").iterdir())
    sink.close()
    assert (len(files(tmp_path)), len(read(tmp_path))) == (1, 5 * 600)


def test_rows_that_change_are_in_their_table_at_once_and_are_not_merged(tmp_path, monkeypatch):
    monkeypatch.setattr("collector.dataset.sink.ROWS_PER_PART", 2)
    sink = ParquetSink(tmp_path)
    sink.write({"flows": flows("h0", [1, 2, 3])}, {"s1": state("h0", 1)})
    sink.write({"flows": flows("h0", [4, 5, 6, 7, 8, 9])}, {"s1": state("h0", 2)})
    names = files(tmp_path, "flows")
    assert [pq.read_metadata(path).num_rows for path in names] == [2, 2, 2, 2, 1]
    assert not sink.merge_some(lambda: True)
    sink.close()
    ParquetSink(tmp_path).close()
    assert files(tmp_path, "flows") == names
    assert sorted(pd.read_parquet(tmp_path / "flows")["flow_id"]) == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_a_merged_hour_can_be_read_in_part(tmp_path, monkeypatch):
    """One job's iterations: statistics let a reader skip most row groups."""
    monkeypatch.setattr(files_module, "ROWS_PER_GROUP", 1000)
    sink = filled(tmp_path, writes=10, hosts=16)
    assert sink.merge_some(lambda: True)
    sink.close()
    (path,) = files(tmp_path)
    metadata = pq.read_metadata(path)
    place = {name: number for number, name in enumerate(pq.read_schema(path).names)}

    def may_match(group: int) -> bool:
        job, iteration = (metadata.row_group(group).column(place[name]).statistics for name in ("job", "iteration"))
        return job.min <= "job1" <= job.max and iteration.min <= 2 <= iteration.max

    matching = [group for group in range(metadata.num_row_groups) if may_match(group)]
    assert metadata.num_row_groups >= 16
    assert 0 < len(matching) <= metadata.num_row_groups / 2 + 1


@pytest.mark.parametrize(
    ("text", "keep"),
    [
        ("buckets=7d", Keep("buckets", most_ns=7 * 24 * HOUR_NS)),
        ("full=10GB", Keep("full", most_bytes=10**10)),
        ("all=12h", Keep("all", most_ns=12 * HOUR_NS)),
    ],
)
def test_what_is_kept_is_told_by_age_or_size(text, keep):
    assert parse_keep(text) == keep


@pytest.mark.parametrize("text", ["buckets", "buckets=", "cells=7d", "buckets=0d", "buckets=often", "=7d"])
def test_what_cannot_be_read_is_refused(text):
    with pytest.raises(UsageError, match=r"cannot read '.*': write TABLE=AGE or TABLE=SIZE, such as"):
        parse_keep(text)


def test_what_is_kept_stands_in_the_configuration_too(tmp_path):
    path = tmp_path / "collector.toml"
    path.write_text('data = "out"\nkeep = ["buckets=7d", "all=90d"]\n')
    parser = argparse.ArgumentParser()
    collector.arguments(parser)
    defaults_from(path, parser)
    assert parser.parse_args([]).keep == [
        Keep("buckets", most_ns=7 * 24 * HOUR_NS),
        Keep("all", most_ns=2160 * HOUR_NS),
    ]
    assert parser.parse_args(["--keep", "full=1GB"]).keep == [Keep("full", most_bytes=10**9)]
    path.write_text('keep = ["cells=7d"]')
    with pytest.raises(UsageError, match=r"cannot set 'keep' to .*: cannot read 'cells=7d'"):
        defaults_from(path, parser)


def test_old_hours_go_as_a_whole_and_never_the_newest(tmp_path):
    sink = ParquetSink(tmp_path)
    for hour in range(5):
        sink.write({"buckets": buckets(1, BEGIN_NS + hour * HOUR_NS)}, {})
    while sink.merge_some(lambda: True):
        pass
    now = BEGIN_NS / 1e9 + 5 * 3600
    old = {path.name for path in too_old(tmp_path, [parse_keep("buckets=150m")], now)}
    assert old == {"hour=00", "hour=01"}
    size = files(tmp_path)[-1].stat().st_size
    assert len(too_old(tmp_path, [Keep("all", most_bytes=2 * size + size // 2)], now)) == 3
    assert len(too_old(tmp_path, [Keep("buckets", most_bytes=1)], now)) == 4
    assert too_old(tmp_path, [Keep("flows", most_bytes=1)], now) == []
    sink.drop([Keep("buckets", most_bytes=1)])
    assert [path.parent.name for path in files(tmp_path)] == ["hour=04"]
    sink.write({"buckets": buckets(1, BEGIN_NS)}, {})
    sink.close()
    assert len(pd.read_parquet(tmp_path / "buckets")) == 400
    ParquetSink(tmp_path).close()


def test_an_hour_with_rows_that_change_stays(tmp_path):
    sink = ParquetSink(tmp_path)
    sink.write({"flows": flows("h0", [1], first_ns=BEGIN_NS)}, {})
    (tmp_path / "flows" / "date=2026-11-22" / "hour=00").mkdir(parents=True)
    assert len(too_old(tmp_path, [Keep("flows", most_ns=1)], datetime.now(timezone.utc).timestamp() + 10**9)) == 1
    sink.drop([Keep("flows", most_bytes=1)])
    assert len(files(tmp_path, "flows")) == 1
    sink.close()


def test_a_clock_that_jumps_ahead_makes_no_row_old(tmp_path):
    sink = ParquetSink(tmp_path)
    for hour in range(3):
        sink.write({"buckets": buckets(1, BEGIN_NS + hour * HOUR_NS)}, {})
    sink.close()
    right_s = BEGIN_NS / 1e9 + 3 * 3600
    for wrong_s in (right_s, right_s + 3600, right_s + 365 * 86_400, right_s - 365 * 86_400, 0):
        assert too_old(tmp_path, [parse_keep("all=150m")], wrong_s) == []
    assert len(too_old(tmp_path, [parse_keep("all=90m")], right_s + 365 * 86_400)) == 1


def test_a_clock_that_jumps_ahead_makes_no_session_forgotten(tmp_path, monkeypatch):
    sink = ParquetSink(tmp_path)
    sink.write({"buckets": buckets(1, BEGIN_NS)}, {"s1": state("h0", 5)})
    sink.close()
    now_s = time.time()
    for jump_s in (3600, 366 * 86_400, -366 * 86_400):
        monkeypatch.setattr(time, "time", lambda jump_s=jump_s: now_s + jump_s)
        sink = ParquetSink(tmp_path)
        sink.write({}, {"s2": state("h1", 1)})
        assert sink.resume(hello()).last_sequence == 5
        sink.close()
    for day in range(1, 40):
        monkeypatch.setattr(time, "time", lambda day=day: now_s + (400 + day) * 86_400)
        sink = ParquetSink(tmp_path)
        sink.write({}, {f"later-{day}": state("h1", 1)})
        sink.close()
    sink = ParquetSink(tmp_path)
    assert sink.resume(hello()).last_sequence == 0
    sink.close()


def test_it_happens_by_itself(tmp_path, monkeypatch):
    monkeypatch.setattr("collector.dataset.sink._EVERY_S", 0.01)
    sink = filled(tmp_path)
    upkeep = Upkeep(sink, lambda: [Keep("all", most_ns=1)])
    deadline = threading.Event()
    for _ in range(3000):
        if len(files(tmp_path)) == 1:
            break
        deadline.wait(0.02)
    upkeep.close()
    sink.close()
    assert len(files(tmp_path)) == 1


def test_files_that_somebody_has_removed_are_passed_over(tmp_path):
    sink = filled(tmp_path)
    recent(tmp_path)[1].unlink()
    assert sink.merge_some(lambda: True)
    assert (len(files(tmp_path)), len(read(tmp_path))) == (1, 4 * 600)
    sink.close()


def test_a_table_of_words_that_differ_per_file_is_merged(tmp_path):
    sink = ParquetSink(tmp_path)
    for number, job in enumerate(("a", "b", "")):
        rows = buckets(2, BEGIN_NS + number * 200 * MS)
        words = pa.array([job] * len(rows), pa.string()).dictionary_encode()
        sink.write({"buckets": rows.set_column(rows.schema.get_field_index("job"), "job", words)}, {})
    assert sink.merge_some(lambda: True)
    sink.close()
    assert read(tmp_path)["job"].value_counts().to_dict() == {"a": 400, "b": 400, "": 400}


def test_files_without_columns_that_came_later_are_merged(tmp_path):
    sink = filled(tmp_path, writes=2)
    older = recent(tmp_path)[0]
    pq.write_table(pq.ParquetFile(older).read().drop(["busy_buckets"]), older)
    sink.close()
    (path,) = files(tmp_path)
    rows = pq.ParquetFile(path).read()
    assert len(rows) == 1200
    assert rows["busy_buckets"].null_count == 600
