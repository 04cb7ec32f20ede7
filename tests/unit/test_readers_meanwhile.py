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
from test_readers import python as reader_python
from waiting import DIES_WITH_US, wait_for

import netmon
from netmon.history.dataset import Tables, Window, open_rows, open_table, stream
from netmon.history.files import table_files
from netmon.history.past import StoredRows
from netmon.views import RECENT, RowQuery
from netmon.web.stored import Hour

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
    assert len(list((tmp_path / "iterations").rglob("*.parquet"))) > 12, "nothing was merged"


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


def test_a_file_that_was_merged_after_it_was_listed_is_read(tmp_path):
    with merging(tmp_path):
        wait_for(lambda: RECENT in open_table(tmp_path, "iterations").files[-1])
        listed = open_table(tmp_path, "iterations")
        recent = Path(listed.files[-1])
        if RECENT in str(recent):
            wait_for(lambda: recent not in table_files(tmp_path, "iterations"))
        found = numbers(stream(listed, ["iteration"]))
        assert found
        assert sorted(found) == list(range(len(found)))


OTHERS = {
    "pandas": "rows = pd.read_parquet(sys.argv[1] + '/iterations', columns=['iteration'])['iteration'].tolist()",
    "pyarrow": "rows = pq.read_table(sys.argv[1] + '/iterations', columns=['iteration'])['iteration'].to_pylist()",
    "each file": "rows = [n for path in sorted(Path(sys.argv[1]).glob('iterations/*/*/*')) "
    "for n in pq.ParquetFile(path).read(['iteration'])['iteration'].to_pylist()]",
    "duckdb": "rows = [n for n, in duckdb.sql(f\"SELECT iteration FROM '{sys.argv[1]}/iterations/*/*/*.parquet'\")"
    ".fetchall()]",
}
"""Readers that know nothing of netmon."""

READ = """
import sys
from pathlib import Path
import pandas as pd
import pyarrow.parquet as pq
least = 1
for _ in range(int(sys.argv[2])):
    {read}
    assert sorted(rows) == list(range(len(rows))), "a row is missing, or there twice"
    assert len(rows) >= least, "there were more before"
    least = len(rows)
print(least)
"""


def check_other(name: str, data: Path, reads: int) -> None:
    interpreter, imports = sys.executable, ""
    if name == "duckdb":
        interpreter, imports = reader_python("readers"), "import duckdb\n"
    with merging(data):
        wait_for(lambda: any((data / "iterations").rglob("*.parquet")))
        script = imports + READ.format(read=OTHERS[name])
        done = subprocess.run(
            [interpreter, "-c", script, data, str(reads)], capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0


@pytest.mark.parametrize("name", OTHERS)
def test_every_other_reader_is_whole(tmp_path, name):
    check_other(name, tmp_path, 40)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", OTHERS)
def test_ten_thousand_reads_by_others_are_whole(tmp_path, name):
    check_other(name, tmp_path, 10_000 // len(OTHERS))
