# SPDX-License-Identifier: Apache-2.0
"""Several workers on one dataset directory: what one stores, the other goes on with; nothing is there twice."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from collector_stream import hello
from dataset_rows import BEGIN_NS, HOUR_NS, MS, buckets, flows, state, stored_rows

from collector.dataset import sharing
from collector.dataset.files import Keep
from collector.dataset.sink import ParquetSink
from netmon.errors import DataError, UsageError
from netmon.history.files import has_ended

HELLOS = {host: hello(session=f"s-{host}", host=host) for host in ("a", "b")}


def rows_of(host: str, number: int) -> pa.Table:
    """The rows of a flush."""
    rows = buckets(1, BEGIN_NS + number * 200 * MS)
    for name, value in (("host", host), ("session", f"s-{host}")):
        at = rows.column_names.index(name)
        words = pa.array([value] * len(rows)).dictionary_encode()
        rows = rows.set_column(at, rows.schema.field(name), words.cast(rows.schema.field(name).type))
    return rows


def flush(sink: ParquetSink, number: int, *hosts: str, process: str = "") -> frozenset[str]:
    own = [flows(host, [1, 10 + number], session=f"s-{host}", process=process) for host in hosts]
    tables = {"buckets": pa.concat_tables([rows_of(host, number) for host in hosts]), "flows": pa.concat_tables(own)}
    return sink.write(tables, {f"s-{host}": state(host, number) for host in hosts})


def read(directory: Path, name: str) -> pd.DataFrame:
    rows = stored_rows(directory, name)
    for column in ("host", "session", "process"):
        if column in rows:
            rows[column] = rows[column].astype(str)
    return rows


def stored(directory: Path) -> dict[str, list[int]]:
    """Flow ids by host, and the check that each flush of a host is there once."""
    found = read(directory, "buckets")
    assert not found.duplicated(["host", "bucket_start_ns"]).any()
    return {host: sorted(own["flow_id"]) for host, own in read(directory, "flows").groupby("host")}


class KilledError(BaseException):
    """Nothing is done after this."""


def killed(*_: object) -> None:
    raise KilledError


@pytest.fixture
def workers(tmp_path):
    sinks = [ParquetSink(tmp_path, name) for name in ("w1", "w2")]
    yield sinks
    for sink in sinks:
        sink.close()


def test_two_workers_write_one_dataset(tmp_path, workers):
    one, other = workers
    assert one.take({"a": 1}) == other.take({"b": 2}) == frozenset()
    for number in range(1, 4):
        assert flush(one, number, "a") == flush(other, number, "b") == frozenset()
    assert stored(tmp_path) == {"a": [1, 11, 12, 13], "b": [1, 11, 12, 13]}
    assert len(read(tmp_path, "buckets")) == 2 * 3 * 200


def test_who_is_alone_and_workers_keep_each_other_out(tmp_path, workers, monkeypatch):
    monkeypatch.setattr(sharing, "_OURS_S", 0.2)
    with pytest.raises(DataError, match="another collector does"):
        ParquetSink(tmp_path)
    with pytest.raises(DataError, match="a worker of this name does"):
        ParquetSink(tmp_path, "w1")
    for name in ("../w3", "", "-", "w 3", "w" * 33):
        with pytest.raises(UsageError):
            ParquetSink(tmp_path, name or " ")
    for sink in workers:
        sink.close()
    alone = ParquetSink(tmp_path)
    with pytest.raises(DataError, match="another collector does"):
        ParquetSink(tmp_path, "w1")
    alone.close()


def test_a_dataset_has_ended_when_nobody_writes_it(tmp_path, workers):
    assert not has_ended(tmp_path)
    workers[0].close()
    assert not has_ended(tmp_path)
    workers[1].close()
    assert has_ended(tmp_path)
    alone = ParquetSink(tmp_path)
    assert not has_ended(tmp_path)
    alone.close()
    assert has_ended(tmp_path)
    assert not has_ended(tmp_path / "elsewhere"), "as of a copy without names that begin with a dot"


def test_a_host_that_moves_goes_on_where_it_was(tmp_path, workers):
    """Its flows leave the files that they shared with hosts that stay."""
    one, other = workers
    one.take({"a": 1, "b": 2})
    flush(one, 1, "a", "b")
    one.settle_changes()
    assert other.take({"a": 3}) == frozenset()
    resume = other.resume(HELLOS["a"])
    assert resume.last_sequence == 1
    assert [stored.flow.flow_id for stored in resume.flows] == [1, 11]
    with pytest.raises(DataError, match="another worker has the host"):
        one.resume(HELLOS["a"])
    assert flush(other, 2, "a", process="moved") == frozenset()
    assert flush(one, 2, "b", process="stayed") == frozenset()
    assert stored(tmp_path) == {"a": [1, 11, 12], "b": [1, 11, 12]}
    seen = read(tmp_path, "flows").set_index(["host", "flow_id"])["process"].to_dict()
    assert (seen["a", 1], seen["b", 1]) == ("moved", "stayed")
    one.take({"a": 4})
    assert one.resume(HELLOS["a"]).last_sequence == 2
    flush(one, 3, "a", "b")
    assert stored(tmp_path) == {"a": [1, 11, 12, 13], "b": [1, 11, 12, 13]}
    assert len(read(tmp_path, "buckets")) == 2 * 3 * 200


def test_who_took_a_host_is_killed_before_its_rows_have_moved(tmp_path, workers, monkeypatch):
    """They stay where they are, with who had the host before, and are there when that one takes it again."""
    one, other = workers
    one.take({"a": 1, "b": 2})
    flush(one, 1, "a", "b")
    with monkeypatch.context() as patched:
        patched.setattr("collector.dataset.sink.take_over", killed)
        with pytest.raises(KilledError):
            other.take({"a": 3})
    assert flush(one, 2, "a", "b", process="stayed") == {"a"}
    assert stored(tmp_path) == {"a": [1, 11], "b": [1, 11, 12]}
    assert one.take({"a": 4}) == frozenset()
    assert [stored.flow.flow_id for stored in one.resume(HELLOS["a"]).flows] == [1, 11]
    flush(one, 2, "a")
    assert stored(tmp_path) == {"a": [1, 11, 12], "b": [1, 11, 12]}


def test_rows_that_have_moved_come_back_with_all_of_a_writer_that_is_gone(tmp_path, workers):
    """They are there once: not as they were before they moved, too."""
    one, other = workers
    one.take({"a": 1, "b": 2})
    flush(one, 1, "a", "b")
    other.take({"a": 3})
    assert other.resume(HELLOS["a"]).last_sequence == 1
    flush(other, 2, "a", process="moved")
    other.close()
    one.take_absent()
    flush(one, 2, "b")
    assert stored(tmp_path) == {"a": [1, 11, 12], "b": [1, 11, 12]}
    one.take({"a": 4})
    assert one.resume(HELLOS["a"]).last_sequence == 2
    flush(one, 3, "a", process="back")
    assert stored(tmp_path) == {"a": [1, 11, 12, 13], "b": [1, 11, 12]}


def test_rows_of_a_session_that_will_not_come_back_stay_in_their_file(tmp_path, workers):
    """Nobody moves them, and nobody looks for them: they are written again with the others."""
    one, other = workers
    one.take({"a": 1, "b": 1, "c": 1})
    flush(one, 1, "a", "b", "c")
    one.close()
    with sqlite3.connect(tmp_path / ".netmon/workers/w1/manifest.sqlite") as manifest:
        for table in ("sessions", "members"):
            manifest.execute(f"DELETE FROM {table} WHERE session = 's-b'")
    manifest.close()
    again = ParquetSink(tmp_path, "w1")
    again.take({"a": 2, "c": 2})
    assert again.resume(HELLOS["a"]).last_sequence == 1
    other.take({"a": 3})
    flush(again, 2, "c")
    again.close()
    assert stored(tmp_path) == {"a": [1, 11], "b": [1, 11], "c": [1, 11, 12]}


def test_rows_of_a_lost_host_move_while_others_are_written(tmp_path, workers, monkeypatch):
    """Between the fence and the move the file is ours; what was staged of it by then does not bring them back."""
    one, other = workers
    one.take({"a": 1, "b": 2})
    flush(one, 1, "a", "b")
    other._sharing.take({"a": 3})
    staged = one._staging.stem

    def moved_meanwhile() -> str:
        monkeypatch.setattr(one._staging, "stem", staged)
        other.take({"a": 3})
        return staged()

    monkeypatch.setattr(one._staging, "stem", moved_meanwhile)
    assert flush(one, 2, "b", process="stayed") == frozenset()
    assert stored(tmp_path) == {"a": [1, 11], "b": [1, 11, 12]}
    assert other.resume(HELLOS["a"]).last_sequence == 1


def test_who_has_lost_a_host_stores_nothing_of_it(tmp_path, workers):
    one, other = workers
    one.take({"a": 1, "b": 2})
    flush(one, 1, "a", "b")
    other.take({"a": 5})
    assert flush(one, 2, "a", "b") == {"a"}
    assert stored(tmp_path) == {"a": [1, 11], "b": [1, 11, 12]}
    assert other.resume(HELLOS["a"]).last_sequence == 1
    flush(other, 2, "a")
    assert flush(one, 3, "a") == {"a"}, "it was never taken again"
    assert one.take({"a": 4}) == {"a"}, "somebody has it with a later epoch"
    assert flush(one, 3, "a") == {"a"}
    assert stored(tmp_path) == {"a": [1, 11, 12], "b": [1, 11, 12]}


def test_a_host_that_is_lost_while_it_is_written_is_not_stored(tmp_path, workers, monkeypatch):
    """The files are complete, and then somebody else takes it: they are made once more without its rows."""
    one, other = workers
    one.take({"a": 1, "b": 2})
    flush(one, 1, "a", "b")
    taken = []

    def sync_then_lose(path: Path) -> None:
        if not taken:
            taken.append(other.take({"a": 3}))

    monkeypatch.setattr(one._disk, "sync_directory", sync_then_lose)
    assert flush(one, 2, "a", "b") == {"a"}
    assert taken == [frozenset()]
    assert stored(tmp_path) == {"a": [1, 11], "b": [1, 11, 12]}
    assert not list(tmp_path.glob(".netmon/workers/w1/staging/*"))


def test_a_host_that_went_and_came_back_unnoticed_has_its_newest_rows(tmp_path, workers):
    one, other = workers
    one.take({"a": 1})
    flush(one, 1, "a", process="before")
    other.take({"a": 2})
    other.resume(HELLOS["a"])
    flush(other, 2, "a", process="there")
    one.take({"a": 3})
    one.resume(HELLOS["a"])
    flush(one, 3, "a", process="back")
    assert stored(tmp_path) == {"a": [1, 11, 12, 13]}
    seen = read(tmp_path, "flows").set_index("flow_id")["process"].to_dict()
    assert seen == {1: "back", 11: "before", 12: "there", 13: "back"}


WRITER = """
import sys
sys.path[:0] = sys.argv[2:]
from pathlib import Path
from test_dataset_workers import HELLOS, flush
from collector.dataset.sink import ParquetSink
sink = ParquetSink(Path(sys.argv[1]), "w1")
sink.take({"a": 1, "b": 2})
number = sink.resume(HELLOS["a"]).last_sequence
while True:
    number += 1
    refused = flush(sink, number, "a", "b")
    print(number, *sorted(refused), flush=True)
"""


def start_writer(directory: Path) -> subprocess.Popen[str]:
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
    return subprocess.Popen([sys.executable, "-c", WRITER, str(directory), *paths], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("after", [1, 3, 6])
def test_a_worker_that_is_killed_is_taken_over(tmp_path, after):
    writer = start_writer(tmp_path)
    try:
        while int(writer.stdout.readline().split()[0]) < after:
            pass
        time.sleep(0.01 * after)
    finally:
        writer.kill()
        writer.wait()
        said = writer.stdout.read().split()
        writer.stdout.close()
    last = max([after, *map(int, said)])
    sink = ParquetSink(tmp_path, "w2")
    sink.take({"a": 3, "b": 4})
    resumed = {host: sink.resume(own).last_sequence for host, own in HELLOS.items()}
    assert resumed["a"] == resumed["b"] in (last, last + 1)
    flush(sink, resumed["a"] + 1, "a", "b")
    sink.close()
    numbers = list(range(11, 12 + resumed["a"]))
    assert stored(tmp_path) == {"a": [1, *numbers], "b": [1, *numbers]}
    assert len(read(tmp_path, "buckets")) == 2 * 200 * (resumed["a"] + 1)


def test_a_worker_that_was_paused_stores_nothing_that_somebody_else_stores(tmp_path):
    writer = start_writer(tmp_path)
    try:
        while int(writer.stdout.readline().split()[0]) < 3:
            pass
        sink = ParquetSink(tmp_path, "w2")
        while True:  # not where it stopped within its turn: nobody can take anything there
            os.kill(writer.pid, signal.SIGSTOP)
            try:
                sink.take({"a": 3})
                break
            except DataError:
                os.kill(writer.pid, signal.SIGCONT)
                time.sleep(0.003)
        begun = sink.resume(HELLOS["a"]).last_sequence
        for number in range(begun + 1, begun + 4):
            flush(sink, number, "a")
        os.kill(writer.pid, signal.SIGCONT)
        lines = [writer.stdout.readline().split() for _ in range(12)]
        assert lines[-1][1:] == ["a"]
    finally:
        os.kill(writer.pid, signal.SIGCONT)
        writer.kill()
        writer.wait()
        writer.stdout.close()
    sink.take({"b": 4})
    assert sink.resume(HELLOS["a"]).last_sequence == begun + 3
    assert sink.resume(HELLOS["b"]).last_sequence >= begun
    sink.close()
    assert stored(tmp_path)["a"] == [1, *range(11, 11 + begun + 3)]


def test_each_worker_merges_its_own_files(tmp_path, workers):
    one, other = workers
    one.take({"a": 1})
    other.take({"b": 2})
    for number in range(1, 5):
        flush(one, number, "a")
        flush(other, number, "b")
    before = read(tmp_path, "buckets").sort_values(["host", "bucket_start_ns"]).reset_index(drop=True)
    while one.merge_some(lambda: True, at_once=True):
        pass
    assert len(list(tmp_path.glob("buckets/*/*/*"))) == 1
    while other.merge_some(lambda: True, at_once=True):
        pass
    assert len(list(tmp_path.glob("buckets/*/*/*"))) == 2
    after = read(tmp_path, "buckets").sort_values(["host", "bucket_start_ns"]).reset_index(drop=True)
    pd.testing.assert_frame_equal(after, before)


def test_what_absent_workers_have_written_is_looked_after(tmp_path, workers, monkeypatch):
    one, other = workers
    one.take({"a": 1})
    for number in range(1, 4):
        flush(one, number, "a")
    other.take_absent()
    assert len(list(tmp_path.glob(".netmon/workers/*/manifest.sqlite"))) == 2, "it is there"
    one.close()
    other.take_absent()
    assert [path.parent.name for path in tmp_path.glob(".netmon/workers/*/manifest.sqlite")] == ["w2"]
    while other.merge_some(lambda: True):
        pass
    assert len(list(tmp_path.glob("buckets/*/*/*"))) == 1
    third = ParquetSink(tmp_path, "w3")
    third.take({"a": 2})
    assert third.resume(HELLOS["a"]).last_sequence == 3
    flush(third, 4, "a")
    third.close()
    assert stored(tmp_path) == {"a": [1, 11, 12, 13, 14]}


def test_each_worker_drops_its_own_old_hours(tmp_path, workers):
    one, other = workers
    one.take({"a": 1})
    other.take({"b": 2})
    for sink, host in ((one, "a"), (other, "b")):
        for hours in (0, 5):
            rows = rows_of(host, hours * 18_000)
            sink.write({"buckets": rows}, {})
        while sink.merge_some(lambda: True, at_once=True):
            pass
    one.write({"buckets": rows_of("a", 1)}, {})
    keep = [Keep("buckets", most_bytes=1)]
    one.drop(keep)
    left = read(tmp_path, "buckets")
    left["hour"] = (left["bucket_start_ns"] - BEGIN_NS) // HOUR_NS
    assert set(left.groupby(["host", "hour"]).size().index) == {("a", 5), ("b", 0), ("b", 5)}
    other.drop(keep)
    assert {path.name for path in tmp_path.glob("buckets/*/*")} == {"hour=05"}


def test_workers_go_on_with_what_one_alone_has_written_and_the_other_way_round(tmp_path):
    alone = ParquetSink(tmp_path)
    flush(alone, 1, "a", "b")
    alone.close()
    one, other = ParquetSink(tmp_path, "w1"), ParquetSink(tmp_path, "w2")
    one.take({"a": 1})
    other.take({"b": 2})
    assert one.resume(HELLOS["a"]).last_sequence == other.resume(HELLOS["b"]).last_sequence == 1
    flush(one, 2, "a")
    flush(other, 2, "b")
    one.close()
    other.close()
    alone = ParquetSink(tmp_path)
    assert [alone.resume(own).last_sequence for own in HELLOS.values()] == [2, 2]
    assert alone.resume(replace(HELLOS["a"], session="another")).last_sequence == 0
    flush(alone, 3, "a", "b")
    alone.close()
    assert stored(tmp_path) == {"a": [1, 11, 12, 13], "b": [1, 11, 12, 13]}
    assert len(read(tmp_path, "buckets")) == 2 * 3 * 200
