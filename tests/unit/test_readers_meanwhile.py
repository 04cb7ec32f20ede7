# SPDX-License-Identifier: Apache-2.0
"""Whoever reads a dataset with netmon gets every row once, however often its files are merged meanwhile."""

import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from dataset_rows import BEGIN_NS, HOUR_NS
from waiting import DIES_WITH_US, wait_for

import netmon
from netmon.errors import DataError
from netmon.past import RowQuery, replaced_path
from netmon.report.dataset import Tables, open_table, stream
from netmon.report.files import table_files
from netmon.report.selection import Window, open_rows
from netmon.report.stored_rows import StoredRows
from netmon.web.hours import Hour

EVER = (BEGIN_NS - HOUR_NS, BEGIN_NS + 1000 * HOUR_NS)


def numbers(batches: Iterable[pa.RecordBatch]) -> list[int]:
    return list(chain.from_iterable(batch.column("iteration").to_pylist() for batch in batches))


READERS = {
    "stream": lambda data: numbers(stream(open_table(data, "iterations"), ["iteration"])),
    "selection": lambda data: numbers(selected(*open_rows(data, "iterations", Window(job="train")))),
    "report": lambda data: Tables(data).read("iterations")["iteration"].tolist(),
    "past": lambda data: numbers(StoredRows(data).batches(RowQuery("iterations", (), *EVER))),
    "notebook": lambda data: netmon.open(str(data)).iterations(job="train")["iteration"].tolist(),
}


def selected(files: ds.Dataset, condition: ds.Expression) -> Iterator[pa.RecordBatch]:
    return stream(files, ["iteration"], condition)


@contextmanager
def merging(directory: Path) -> Iterator[None]:
    program = Path(__file__).with_name("merging_run.py")
    writer = subprocess.Popen([*DIES_WITH_US, sys.executable, program, directory], stdin=subprocess.PIPE)
    try:
        wait_for(lambda: bool(table_files(directory, "iterations") and table_files(directory, "buckets")))
        yield
    finally:
        writer.communicate(b"end\n", timeout=60)


def check(data: Path, reads: int, readers: dict) -> None:
    least = dict.fromkeys(readers, 1)
    for _ in range(reads):
        for name, read in readers.items():
            found = sorted(read(data))
            assert found == list(range(len(found))), name
            assert len(found) >= least[name], name
            least[name] = len(found)


def test_every_reader_is_whole(tmp_path):
    with merging(tmp_path):
        check(tmp_path, 12, READERS)
    assert any((tmp_path / ".netmon/replaced").iterdir()), "nothing was merged"


@pytest.mark.long
@pytest.mark.timeout(4 * 3600)
def test_ten_thousand_reads_are_whole(tmp_path):
    with merging(tmp_path):
        check(tmp_path, 10_000 // len(READERS), READERS)


def test_an_hour_on_the_page_counts_every_row_once(tmp_path):
    with merging(tmp_path):
        hour = Hour(tmp_path, BEGIN_NS, ["h0"], ["train"], [])
        for _ in range(15):
            hour.read()
            stored = len(READERS["stream"](tmp_path))
            assert hour.wire_bytes.sum() <= min(3600, stored)
            assert hour.wire_bytes.max() <= 1
    hour.read()
    assert hour.wire_bytes.sum() == min(3600, len(READERS["stream"](tmp_path)))


def test_a_file_that_was_merged_after_it_was_listed_is_read_where_it_is_kept(tmp_path):
    with merging(tmp_path):
        listed = open_table(tmp_path, "iterations")
        wait_for(lambda: not any(Path(name).exists() for name in listed.files))
        found = numbers(stream(listed, ["iteration"]))
        assert found
        assert sorted(found) == list(range(len(found)))
        for name in listed.files:
            replaced_path(Path(name)).unlink(missing_ok=True)
        with pytest.raises(DataError, match="was merged into another file, or removed"):
            list(stream(listed, ["iteration"]))
