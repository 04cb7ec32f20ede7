# SPDX-License-Identifier: Apache-2.0
"""Programs that know nothing of netmon read the dataset as it lies, also while it is being written."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from dataset_rows import BEGIN_NS, HOUR_NS, MS, buckets, flows, state

from collector.dataset.sink import ParquetSink

HERE = Path(__file__).parent


def python(what: str) -> str:
    """The interpreter that can import the programs; the first call makes it."""
    build = ["bash", str(HERE / "build_readers.sh"), what]
    done = subprocess.run(
        build, capture_output=True, text=True, check=False, env=os.environ | {"PYTHON": sys.executable}, timeout=900
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Iterator[Path]:
    """Files of two hours; a collector still has it, and rows that are not merged yet."""
    directory = tmp_path_factory.mktemp("readers")
    sink = ParquetSink(directory)
    for begin in (BEGIN_NS, BEGIN_NS + 2000 * MS, BEGIN_NS + 2200 * MS, BEGIN_NS + 4000 * MS, BEGIN_NS + HOUR_NS):
        tables = {"buckets": buckets(12, begin), "flows": flows("h0", [1, 2])}
        sink.write(tables, {"s1": state("h0", 1)})
        while begin == BEGIN_NS + 2200 * MS and sink.merge_some(lambda: True, at_once=True):
            pass
    while sink.merge_some(lambda: True, at_once=True):
        pass
    sink.write({"buckets": buckets(12, BEGIN_NS + 2400 * MS)}, {})
    (directory / ".netmon" / "staging" / "half.parquet").write_text("half")
    yield directory
    (directory / ".netmon" / "staging" / "half.parquet").unlink()
    sink.close()


def expected(data: Path) -> dict[str, int]:
    rows = pd.read_parquet(data / "buckets")
    own = rows[(rows["job"] == "job1") & rows["iteration"].between(10, 19)]
    return {
        host: int(total) for host, total in own.groupby("host", observed=True)["payload_bytes"].sum().items() if total
    }


def check(program: str, interpreter: str, data: Path) -> None:
    command = [interpreter, str(HERE / "queries.py"), program, str(data), "job1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == expected(data)
    assert len(found) == 4  # the job's hosts


@pytest.mark.parametrize("program", ["duckdb", "pandas", "polars", "dask"])
def test_a_query_gives_what_is_there(program: str, data: Path) -> None:
    check(program, python("readers"), data)


@pytest.mark.long
def test_spark_gives_what_is_there(data: Path) -> None:
    if not shutil.which("java"):
        pytest.skip("Spark needs Java: apt-get install default-jre-headless")
    check("spark", python("spark"), data)
