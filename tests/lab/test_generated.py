# SPDX-License-Identifier: Apache-2.0
"""A recorded job, fitted and played again in the lab: the same bytes, and, on a quiet machine, the same times."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from netmon.history.dataset import Window
from netmon.lab.run import run
from netmon.lab.spec import RunSpec
from netmon.report.scan import peak_bytes
from netmon.simulation import fit, write_generator

pytestmark = pytest.mark.kernel

MS = 1_000_000
BUCKET_NS = 10_000


def recorded(folder: Path, iterations: int) -> RunSpec:
    spec = RunSpec(folder, hosts=3, ring=(0, 1, 2), cross=(), cross_load=0, parameters=1_000_000, iterations=iterations)
    run(spec)
    return spec


def played(spec: RunSpec, generator: Path, folder: Path) -> None:
    options = {"trainer": "generated", "generator": generator, "data": folder, "job": "again"}
    run(RunSpec(**{**vars(spec), **options}))


def sent(spec: RunSpec, data: Path) -> list[float]:
    """DL payload that each rank sent, per iteration; what leaves a moment after an iteration's end counts, too."""
    rows = pd.read_parquet(data / "buckets", columns=["host", "direction", "class", "payload_bytes"])
    ours = rows[(rows["direction"] == "tx") & rows["class"].astype(str).str.startswith("DL-")]
    total = ours.groupby(ours["host"].astype(str))["payload_bytes"].sum()
    return [total[f"h{host}"] / spec.iterations for host in spec.ring]


@pytest.mark.timeout(600)
def test_what_is_played_sends_what_was_recorded(tmp_path):
    spec = recorded(tmp_path / "recorded", 12)
    generator, used, _ = fit(spec.data, Window())
    assert used >= 3
    file = tmp_path / "job.json"
    write_generator(spec.data, Window(), file)
    played(spec, file, tmp_path / "played")
    rows = pd.read_parquet(tmp_path / "played/iterations")
    assert set(rows["job"].astype(str)) == {"again"}
    assert rows.groupby("rank").size().tolist() == [spec.iterations] * generator.ranks
    again = sent(spec, tmp_path / "played")
    for rank in range(generator.ranks):
        told = sum(size for phase in generator.phases for (a, _), size in phase.bytes.items() if a == rank)
        assert again[rank] == pytest.approx(told, rel=0.01)


def curve(data: Path) -> dict[int, float]:
    """Peak to mean of what host 0 sends, by the interval in buckets; the mean as of iterations of median length."""
    iterations = pd.read_parquet(data / "iterations")
    spans = iterations.groupby("iteration").agg(start=("start_ns", "min"), end=("end_ns", "max"))
    rows = pd.read_parquet(data / "buckets")
    rows = rows[(rows["host"] == "h0") & (rows["direction"] == "tx")]
    rows = rows[rows["bucket_start_ns"].between(spans["start"].iloc[1], spans["end"].max())]
    bins, place = np.unique(rows["bucket_start_ns"] // BUCKET_NS, return_inverse=True)
    amount = np.bincount(place, rows["wire_bytes"]).astype(np.int64)
    mean = amount.sum() / (len(spans) - 1) / (spans["end"] - spans["start"]).median() * BUCKET_NS
    return {length: peak_bytes(bins, amount, length) / length / mean for length in (100, 1000, 10_000)}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_what_is_played_takes_as_long_and_is_as_bursty(tmp_path):
    """For a quiet machine: 5 % of the iteration time, 10 % of peak to mean."""
    spec = recorded(tmp_path / "recorded", 60)
    file = tmp_path / "job.json"
    write_generator(spec.data, Window(), file)
    played(spec, file, tmp_path / "played")
    times, curves = [], []
    for data in (spec.data, tmp_path / "played"):
        rows = pd.read_parquet(data / "iterations")
        times.append((rows["end_ns"] - rows["start_ns"]).median())
        curves.append(curve(data))
    print(times, curves)
    assert times[1] == pytest.approx(times[0], rel=0.05)
    assert curves[1] == pytest.approx(curves[0], rel=0.10)
