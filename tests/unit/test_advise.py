# SPDX-License-Identifier: Apache-2.0
"""`netmon advise` on a dataset of two jobs that share a link, in phase, and one that has nobody beside it."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from netmon.cli import main
from netmon.history.advice import advice

MS = 1_000_000
BEGIN_NS = 1_795_219_200_000_000_000
ALONE, TOGETHER = 10, 60  # iterations
FULL = 125_000  # bytes a millisecond of 1 Gbit/s


def job_rows(first_ms: int, iterations: int, busy_ms: int, period_ms: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Beginning of each iteration, and number and bytes of each millisecond in which it sends."""
    starts = first_ms + period_ms * np.arange(iterations)
    places = (starts[:, None] + period_ms - busy_ms + np.arange(busy_ms)).ravel()
    return starts, np.repeat(np.arange(iterations), busy_ms), places


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Job a alone for 1 s, b alone for 1 s, then both: 40 ms of transfer take 80 ms."""
    buckets, iterations, flows = [], [], []

    def sends(job: str, host: str, peer: str, first: int, count: int, together: bool, number: int) -> None:
        busy, period = (80, 140) if together else (40, 100)
        starts, of, places = job_rows(first, count, busy, period)
        flow = {"a": 1, "b": 2}[job]
        for place, iteration in zip(places, of, strict=True):
            buckets.append((host, flow, place, FULL // (2 if together else 1), job, number + iteration))
        for rank, where in enumerate((host, peer)):
            for at, start in enumerate(starts):
                iterations.append((where, job, rank, number + at, start, start + period))
        flows.append((host, flow, job, 0, 1))
        flows.append((peer, flow + 10, job, 1, 0))

    sends("a", "h0", "h1", 0, ALONE, False, 0)
    sends("b", "h0", "h2", 1000, ALONE, False, 0)
    sends("a", "h0", "h1", 2000, TOGETHER, True, ALONE)
    sends("b", "h0", "h2", 2000, TOGETHER, True, ALONE)
    rows = pd.DataFrame(buckets, columns=["host", "flow_id", "at", "wire_bytes", "job", "iteration"])
    rows["bucket_start_ns"] = BEGIN_NS + rows.pop("at") * MS
    rows = rows.assign(session="s", interface="eth0", direction="tx", bucket_ns=MS)
    write(tmp_path, "buckets", rows)
    steps = pd.DataFrame(iterations, columns=["host", "job", "rank", "iteration", "start_ns", "end_ns"])
    steps[["start_ns", "end_ns"]] = BEGIN_NS + steps[["start_ns", "end_ns"]] * MS
    write(tmp_path, "iterations", steps)
    told = pd.DataFrame(flows, columns=["host", "flow_id", "job", "rank", "peer_rank"]).drop_duplicates()
    write(tmp_path, "flows", told.assign(session="s", direction="tx"))
    hosts = pd.DataFrame({"host": ["h0", "h1", "h2"], "interface": "eth0", "capacity_bps": 1_000_000_000})
    write(tmp_path, "sessions", hosts)
    return tmp_path


def write(data: Path, table: str, rows: pd.DataFrame) -> None:
    folder = data / table / "date=2026-11-21" / "hour=00"
    folder.mkdir(parents=True)
    pq.write_table(pa.Table.from_pandas(rows, preserve_index=False), folder / "part-0.parquet")


def test_two_jobs_in_phase_are_advised_to_stand_apart(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", "--data", str(dataset), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    [share] = told["shares"]
    assert (share["job"], share["others"], share["links"]) == ("b", ["a"], ["h0 eth0 tx"])
    assert share["advised"]
    assert 40 * MS <= share["shift_ns"] <= 100 * MS
    assert share["shared_ns"] == pytest.approx(140 * MS, rel=0.05)
    assert share["shifted_ns"] == pytest.approx(100 * MS, rel=0.05)
    assert told["advice"][0].startswith("start job b ")
    assert {job["job"]: job["alone_ns"] for job in told["jobs"]} == {"a": 100 * MS, "b": 100 * MS}
    pairs = {(pair["job"], pair["source"], pair["target"]): pair for pair in told["pairs"]}
    own = pairs["a", "rank 0 (h0)", "rank 1 (h1)"]
    assert own["bytes"] == pytest.approx(40 * FULL)
    assert own["pace_bps"] == pytest.approx(0.5e9, rel=0.01)


def test_what_people_read_names_jobs_links_and_pairs(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", "a", "--data", str(dataset)]) == 0
    text = capsys.readouterr().out
    assert "h0 eth0 tx" in text
    assert "pairs of ranks" in text


def test_a_time_without_iterations_and_a_missing_directory_are_said(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["advise", "--data", str(dataset), "--until", "2026-11-20T00:00:00"]) == 1
    assert "holds no iteration" in capsys.readouterr().err
    assert main(["advise", "--data", str(dataset / "none")]) == 1
    assert main(["advise"]) == 2
    assert main(["advise", "--data", str(dataset), "--seconds", "0"]) == 2


def test_a_job_with_few_iterations_is_not_judged(dataset: Path) -> None:
    found = advice(dataset, 0.3)
    assert found.unjudged == ("a", "b")
    assert found.shares == ()
