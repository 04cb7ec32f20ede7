# SPDX-License-Identifier: Apache-2.0
"""Datasets of which parts are missing or wrong: what can be shown is shown, what is missing is named."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
import synthetic_dataset

from netmon.cli import main
from netmon.report.report import chapters
from netmon.report.study import Frames, GapError, Study, read_study
from netmon.report.style import without_mathematics


@pytest.fixture(scope="module")
def pristine(tmp_path_factory) -> Path:
    data = tmp_path_factory.mktemp("pristine")
    synthetic_dataset.write_dataset(data, iterations=3, thin=17)
    return data


@pytest.fixture
def data(pristine, tmp_path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "data"))


def shown(study: Study) -> dict[str, Frames | str]:
    """Each exhibit's frames, or why there are none; any other error is a failure."""
    result: dict[str, Frames | str] = {}
    for exhibit in (exhibit for chapter in chapters() for exhibit in chapter.exhibits):
        try:
            result[exhibit.name] = exhibit.tables(study)
        except GapError as gap:
            result[exhibit.name] = str(gap)
    return result


def gaps(study: Study) -> set[str]:
    return {name for name, frames in shown(study).items() if isinstance(frames, str)}


ALONE = {"shared-links", "shared-circles", "shared-drift", "shift-scores", "rank-pairs", "links-to-be-had"}
# No counters, all runs send the same, nothing stands out, nobody tells what ranks call.
ALWAYS = ALONE | {"nic-counters", "rdma-ports", "regression", "incidents", "groups"}
NEED_ITERATIONS = {
    *("iteration-time", "hyperbola", "congestion-point", "fits", "bytes-per-iteration", "bandwidth", "spare-capacity"),
    *("iteration-time-cdf", "node-bandwidth", "trace", "trace-boundary", "periodicity", "phases", "durations"),
}


def test_everything_is_shown_of_a_whole_dataset(data):
    study = read_study(data)
    assert study.tables.missing == []
    assert gaps(study) == ALWAYS


@pytest.mark.parametrize("table", ["buckets", "flows", "iterations", "ledger"])
def test_a_missing_table_is_named_and_the_rest_is_shown(data, table):
    shutil.rmtree(data / table)
    study = read_study(data)
    assert any(f"table {table}" in sentence for sentence in study.tables.missing)
    expected = {
        "buckets": {"packet-injection", "volume", "phases", "trace", "peak-to-mean", "bursts", "bytes-per-flow"},
        "flows": {"who-to-whom", "flow-sizes", "throughput", "ring", "owners", "bytes-per-flow"},
        "iterations": NEED_ITERATIONS,
        "ledger": {"links"},
    }[table]
    missing = gaps(study)
    assert expected <= missing
    assert len(missing) < len(shown(study))


def test_a_missing_column_is_named_and_the_rest_is_shown(data):
    for path in data.glob("buckets/*/*/*.parquet"):
        pq.write_table(pq.ParquetFile(path).read().drop_columns(["packets"]), path)
    study = read_study(data)
    assert any("buckets has no column packets" in sentence for sentence in study.tables.missing)
    assert gaps(study) < set(shown(study))


def test_missing_partitions(data):
    for whose in ("buckets/*/*/part-h1-*", "iterations/*/*/part-h2-*", "flows/*/*/part-h0-*"):
        for path in data.glob(whose):
            path.unlink()
    study = read_study(data)
    assert gaps(study) <= ALWAYS | {"ring"}
    assert any("flows have buckets but no row" in sentence for sentence in study.tables.missing)


def test_a_truncated_file_is_left_out(data):
    victim = next(data.glob("buckets/*/*/part-h0-*websearch-0.4*"))
    victim.write_bytes(victim.read_bytes()[: victim.stat().st_size // 2])
    empty = next(data.glob("iterations/*/*/part-h1-*websearch-0.4*"))
    empty.write_bytes(b"")
    study = read_study(data)
    assert sum("cannot be read" in sentence for sentence in study.tables.missing) == 2
    assert gaps(study) == ALWAYS


def test_a_damaged_page_is_left_out(data):
    victim = next(data.glob("buckets/*/*/part-h0-*websearch-0.4*"))
    content = bytearray(victim.read_bytes())
    content[4:2000] = b"\xff" * 1996
    victim.write_bytes(content)
    study = read_study(data)
    assert any("cannot be read" in sentence for sentence in study.tables.missing)
    assert gaps(study) == ALWAYS


def test_a_sweep_killed_in_the_middle(data):
    runs = data / "lab" / "runs"
    (runs / "synthetic-burst-0.9" / "run.json").unlink()
    interrupted = runs / "synthetic-burst-0.8" / "run.json"
    interrupted.write_text(json.dumps({**json.loads(interrupted.read_text()), "outcome": "interrupted"}))
    (runs / "synthetic-burst-0.6" / "run.json").write_text('{"spec": {"ring"')
    study = read_study(data)
    said = "\n".join(study.tables.missing)
    for expected in ("no run.json", "interrupted; left out", "cannot be read", "3 of 11 runs are still to be done"):
        assert expected in said
    assert len(study.runs) == 8
    assert set(study.times["run"]) == set(study.runs["run"])
    assert gaps(study) == ALWAYS


def test_a_dataset_without_a_lab_goes_by_measured_levels(tmp_path):
    synthetic_dataset.write_dataset(tmp_path, iterations=3, thin=17, lab=False)
    study = read_study(tmp_path)
    assert study.rate_bps == synthetic_dataset.RATE
    assert set(study.runs["profile"]) == {"measured"}
    assert study.times["level"].between(0, 1).all()
    assert gaps(study) <= ALWAYS | {"regression"}


def test_iterations_that_end_before_they_start(data):
    victim = next(data.glob("iterations/*/*/part-h1-*websearch-0.4*"))
    table = pq.read_table(victim)
    swapped = [{"start_ns": "end_ns", "end_ns": "start_ns"}.get(name, name) for name in table.column_names]
    pq.write_table(table.rename_columns(swapped), victim)
    study = read_study(data)
    assert "3 rows of iterations do not end after their start: left out" in study.tables.missing
    assert gaps(study) == ALWAYS


def test_a_name_that_looks_like_a_formula():
    drawn = without_mathematics(pd.DataFrame({"job": ["$x_$", "plain"], "count": [1, 2]}))
    assert list(drawn["job"]) == [r"\$x_\$", "plain"]
    assert list(drawn["count"]) == [1, 2]


def test_one_iteration(tmp_path, capsys):
    synthetic_dataset.write_dataset(tmp_path / "data", iterations=1, thin=17)
    assert main(["report", str(tmp_path / "data"), "--out", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out" / "report.html").read_text()
    assert "no iteration after the first one" in page
    assert "There is no iteration after any job" in capsys.readouterr().out


def test_no_capacity(data):
    shutil.rmtree(data / "sessions")
    shutil.rmtree(data / "lab")
    study = read_study(data)
    assert any("--rate" in sentence for sentence in study.tables.missing)
    assert {"bandwidth", "spare-capacity", "bursts"} <= gaps(study)
    assert not {"durations", "volume", "ring"} & gaps(study)


@pytest.mark.parametrize("tables", [(), ("buckets",)])
def test_nothing_can_be_shown(tmp_path, capsys, tables):
    for table in tables:
        (tmp_path / "data" / table / "date=2026-11-21" / "hour=01").mkdir(parents=True)
    (tmp_path / "data").mkdir(exist_ok=True)
    assert main(["report", str(tmp_path / "data"), "--out", str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert "cannot make a report: nothing in the dataset can be shown" in error
    assert error.count("\n") == 1


def test_no_directory_and_no_such_job(data, tmp_path, capsys):
    assert main(["report", str(tmp_path / "nowhere"), "--out", str(tmp_path / "out")]) == 1
    assert "no such directory" in capsys.readouterr().err
    assert main(["report", str(data), "--out", str(tmp_path / "out"), "--job", "mnist"]) == 1
    assert "cannot report on job mnist" in capsys.readouterr().err
