# SPDX-License-Identifier: Apache-2.0
"""What a page is told of bytes and iterations: sums that are exact, phases that add up, pieces that are bounded."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("aiohttp", reason="aiohttp is not installed: the page cannot be served")
from snapshot_example import example
from synthetic_dataset import write_dataset
from synthetic_source import BEGIN_NS, MS, Synthetic

from netmon.views import STEP as TOLD
from netmon.web.answers import BINS, FINEST_NS, encode, origin, tile
from netmon.web.live import LiveHistory, StepPieces
from netmon.web.source import HOST, JOB, PHASES, RANK, STEP, Lane, arranged, by_lane, density, in_bins, resampled
from netmon.web.stored import HOUR_NS, Hour, Stored


def read(message: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    length = int.from_bytes(message[:4], "little")
    head = json.loads(message[4 : 4 + length])
    types = {"f32": "<f4", "f64": "<f8", "u8": "u1", "u16": "<u2"}
    return head, {
        name: np.frombuffer(message, types[kind], count, 4 + length + offset)
        for name, (kind, offset, count) in head["columns"].items()
    }


def steps(*rows: tuple[int, int, int, int, int, int, int]) -> np.ndarray:
    """(rank, number, start, first gradient, first wait, last gradient, end) in ms, of job 0."""
    table = np.zeros(len(rows), STEP)
    for row, (rank, number, *times) in zip(table, rows, strict=True):
        row["rank"], row["number"] = rank, number
        for name, time in zip(STEP.names[-5:], times, strict=True):
            row[name] = time * MS
    return table


def test_columns_are_read_as_they_were_written() -> None:
    columns = {"a": np.arange(3, dtype=np.uint8), "b": np.arange(5.0), "c": np.zeros(0, np.float32)}
    head, found = read(encode({"x": 1}, columns))
    assert head["x"] == 1
    for name, column in columns.items():
        np.testing.assert_array_equal(found[name], column)
    assert all(offset % 8 == 0 for _, offset, _ in head["columns"].values())


def test_rows_in_bins_are_the_same_bytes() -> None:
    random = np.random.default_rng(1)
    start, length = random.integers(0, 900, 500), random.integers(1, 60, 500)
    wire, series = random.integers(1, 10_000, 500), random.integers(0, 3, 500)
    for width in (1, 7, 100):
        found = in_bins(series, start, length, wire, (3, 0, width, -(-1_000 // width)))
        np.testing.assert_allclose(found.sum(axis=1), np.bincount(series, wire, 3))
    inside = in_bins(series, start, length, wire, (3, 100, 10, 50))
    np.testing.assert_allclose(inside, in_bins(series, start, length, wire, (3, 0, 10, 100))[:, 10:60])


def test_another_grid_holds_the_same_bytes() -> None:
    values = np.random.default_rng(2).random((2, 100)).astype(np.float32)
    for begin, width, bins in ((-50, 17, 100), (0, 10, 100), (0, 1, 1_000)):
        np.testing.assert_allclose(
            resampled(values, (0, 10), begin, width, bins).sum(axis=1), values.sum(axis=1), rtol=1e-5
        )
    assert resampled(values, (0, 10), 2_000, 10, 4).tolist() == np.zeros((2, 4)).tolist()


def test_an_iteration_is_told_apart_by_what_its_ranks_wait_for() -> None:
    usual = [
        (rank, n, 100 * n, 100 * n + 40, 100 * n + 40, 100 * n + 90, 100 * n + 100) for n in range(9) for rank in (0, 1)
    ]
    late = [(0, 9, 900, 940, 940, 1_190, 1_200), (1, 9, 900, 1_040, 1_040, 1_190, 1_200)]
    lanes = by_lane(steps(*usual, *late), [(0, -1), (0, 0), (0, 1)])
    rows = lanes.of(1, 900 * MS, 1_300 * MS)
    assert (lanes.bounds[rows] // MS).tolist() == [
        [900, 940, 1_040, 1_090, 1_190]
    ]  # 100 late, 50 as usual, 100 held up
    assert lanes.number[lanes.of(0, 0, 1_300 * MS)].tolist() == list(range(10))
    share = density(lanes, 1, 0, 10 * MS, 130).astype(int)
    assert share.sum(axis=0).tolist() == [255] * 120 + [0] * 10
    spent = dict(zip(PHASES, (share.sum(axis=1) / 255 * 10).tolist(), strict=True))
    assert spent == {"computing": 500, "waiting": 100, "transfer": 500, "held up": 100, "not known": 0}


def test_an_iteration_of_which_little_is_known_is_not_guessed() -> None:
    lanes = by_lane(steps((0, 1, 100, 0, 0, 0, 200)), [(0, 0)])
    assert density(lanes, 0, 100 * MS, 10 * MS, 10)[4].tolist() == [255] * 10
    assert by_lane(np.zeros(0, STEP), [(0, 0)]).number.tolist() == []


def test_lanes_are_by_job_and_host() -> None:
    found = arranged([("b", 0, "h1"), ("a", 1, "h0"), ("a", 0, "h0")], ["h0", "h1", "h2"])
    assert found == (
        *(Lane(JOB, "a"), Lane(RANK, "a", 0, "h0"), Lane(RANK, "a", 1, "h0"), Lane(HOST, "a", host="h0")),
        *(Lane(JOB, "b"), Lane(RANK, "b", 0, "h1"), Lane(HOST, "b", host="h1")),
        Lane(HOST, host="h2"),
    )


def test_an_hour_of_a_dataset_holds_its_bytes(tmp_path: Path) -> None:
    write_dataset(tmp_path, 2, lab=False, thin=20)
    rows = pd.read_parquet(tmp_path / "buckets")
    source = Stored(tmp_path)
    try:
        known = source.catalogue()
        hosts = sorted({lane.host for lane in known.lanes} - {""})
        assert hosts == ["h0", "h1", "h2", "h3"]
        hour = Hour(tmp_path, known.begin_ns // HOUR_NS * HOUR_NS, hosts, list(known.job_names), known.lanes)
        assert hour.read()
        assert hour.wire_bytes.sum(dtype=float) == pytest.approx(rows["wire_bytes"].sum(), rel=1e-4)
        assert not hour.read()  # nothing is new
        at = int(rows["bucket_start_ns"].iloc[len(rows) // 2]) // MS * MS
        fine = source.rates(hosts, at, FINEST_NS, BINS, full=False)
        inside = rows["bucket_start_ns"].between(at, at + BINS * FINEST_NS - 1)
        assert fine.wire_bytes.sum() == pytest.approx(rows["wire_bytes"][inside].sum())
        found, _ = source.steps(known.begin_ns, known.end_ns)
        assert len(hour.steps.number)
        assert not found or len(found[0].number) == len(hour.steps.number)
    finally:
        source.close()


def test_a_tile_is_what_the_source_says() -> None:
    source = Synthetic(4, 60)
    known = source.catalogue()
    width = FINEST_NS << 10
    index = (BEGIN_NS + 10_000 * MS - origin(known)) // (BINS * width)
    message, final = tile(source, known, (10, index, 0), full=True)
    head, columns = read(message)
    assert final
    begin = origin(known) + index * BINS * width
    rates = source.rates(["gpu-0000"], begin, width, BINS, full=True).wire_bytes[0] * 8e9 / width
    lane = next(at for at, one in enumerate(known.lanes) if one.kind == HOST)
    for row in np.flatnonzero(columns["rate_lane"] == lane).tolist():
        told = columns["rate_bps"].reshape(-1, BINS)[row]
        np.testing.assert_allclose(told, rates[columns["rate_series"][row]], rtol=1e-6)
    assert len(columns["slice_ns"]) == 6 * len(columns["slice_number"]) > 0
    assert head["resolution_ns"] == width


def test_iterations_that_are_told_again_are_the_same() -> None:
    pieces = StepPieces()
    pieces.arrange([(0, 0)])
    told = steps(*((0, n, 100 * n, 0, 0, 0, 100 * n + 100) for n in range(50)))
    for first in range(0, 40, 5):
        pieces.add(told[first : first + 10], 0)
    (lanes,) = pieces.of(0, 10_000 * MS)
    assert lanes.number[lanes.of(0, 0, 10_000 * MS)].tolist() == list(range(45))


def test_many_iterations_are_let_go_after_a_while() -> None:
    pieces = StepPieces()
    pieces.arrange([(0, 0)])
    told = steps(*((0, n, n, 0, 0, 0, n + 1) for n in range(1_000)))
    for again in range(120):
        table = told.copy()
        for name in ("start_ns", "end_ns"):
            table[name] += again * 1_000 * MS
        table["number"] += again * 1_000
        pieces.add(table, (again - 40) * 1_000 * MS)
    found = pieces.of(0, 1 << 62)
    assert len(found) > 1
    numbers = np.concatenate([lanes.number[lanes.of(0, 0, 1 << 62)] for lanes in found])
    assert 40_000 < len(numbers) < 120_000
    assert np.diff(numbers).tolist() == [1] * (len(numbers) - 1)
    assert numbers[-1] == 119_999


def test_snapshots_become_rates_and_iterations() -> None:
    gathered = LiveHistory()
    snapshot = example(time_ns=BEGIN_NS)
    shown = []
    for second in (0, 1):
        links = [
            type(link)(**{**vars(link), "series_end_ns": BEGIN_NS + second * 1_000 * MS})
            for link in example(BEGIN_NS, 10 * second).links
        ]
        told = np.zeros(3, TOLD)
        told["rank"], told["number"] = [0, 1, 2], 412
        told["start_ns"], told["end_ns"] = BEGIN_NS - 500 * MS, BEGIN_NS - 100 * MS
        jobs = [type(job)(**{**vars(job), "steps": told}) for job in snapshot.jobs]
        shown.append(type(snapshot)(**{**vars(snapshot), "links": tuple(links), "jobs": tuple(jobs)}))
        gathered.add(shown[-1], BEGIN_NS)
    assert [lane.kind for lane in gathered.catalogue.lanes].count(RANK) == 3
    assert gathered.verdict_count == 1
    for width in (100 * MS, 1_000 * MS):
        found = gathered.rates(["h2"], BEGIN_NS - 5_000 * MS, width, 4_000 * MS // width)
        assert (found.wire_bytes[0, 7] * 8e9 / width).tolist() == pytest.approx([8e8] * (4_000 * MS // width))
    (lanes,) = gathered.steps(0, 1 << 62)
    assert lanes.number.tolist() == [412] * 4  # of each rank, and of the slowest


def test_a_time_in_which_nobody_listened_is_told_from_silence() -> None:
    gathered = LiveHistory()
    columns = len(example().links[0].wire_bps)

    def hear(second: int, known: int) -> None:
        """known: seconds of which the snapshot has rates."""
        links = []
        for link in example(BEGIN_NS, 1).links:
            rates = np.array(link.wire_bps)
            rates[: columns - known * 10] = np.nan
            links.append(replace(link, series_end_ns=BEGIN_NS + second * 1_000 * MS, wire_bps=rates))
        gathered.add(replace(example(BEGIN_NS), links=tuple(links), jobs=()), BEGIN_NS)

    def unheard() -> list[tuple[float, float]]:
        return [((a - BEGIN_NS) / 1e9, (b - BEGIN_NS) / 1e9) for a, b in gathered.catalogue.unheard_ns[1:]]

    hear(20, 10)
    hear(29, 10)
    generation = gathered.catalogue.generation
    assert unheard() == []
    before = gathered.rates(["h2"], BEGIN_NS + 20_000 * MS, 100 * MS, 90).wire_bytes
    hear(33, 2)  # of a collector that has just begun
    assert unheard() == [(29, 31)]
    assert gathered.catalogue.generation > generation
    assert (gathered.rates(["h2"], BEGIN_NS + 20_000 * MS, 100 * MS, 90).wire_bytes == before).all()
    hear(100, 10)
    assert unheard() == [(29, 31), (33, 90)]
    hear(3_660, 10)
    assert unheard() == [(33, 90), (100, 3_650)]
