# SPDX-License-Identifier: Apache-2.0
"""The last hour of a dataset, asked of the collector that writes it."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from collector_thread import collecting
from snapshot_example import example
from waiting import free_port, wait_for

from collector import answers as answers_module
from netmon.dl.past_frames import joined_times
from netmon.errors import WireError
from netmon.history.past import DatasetPast, StoredRows
from netmon.top.collector_past import CollectorPast
from netmon.views import STEP_TIMES, TABLES, RowQuery
from netmon.wire.questions import CollectorRows, decode_wanted, encode_wanted
from netmon.wire.watch import UnreachableError

RECORDED = Path(__file__).parents[1] / "data/verdict"
S = 1_000_000_000


class Asked(CollectorRows):
    """What was recorded is not of today."""

    def newest_ns(self) -> int:
        return StoredRows(RECORDED).newest_ns()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    at = f"127.0.0.1:{free_port()}"
    with collecting(at, tmp_path_factory.mktemp("data"), stored=StoredRows(RECORDED)):
        wait_for(lambda: answers(at))
        yield at


def answers(at: str) -> bool:
    with contextlib.suppress(UnreachableError):
        return CollectorRows(at).newest_ns() > 0
    return False


def rows(source: Any, wanted: RowQuery) -> list[dict[str, Any]]:
    found = [row for batch in source.batches(wanted) for row in pa.Table.from_batches([batch]).to_pylist()]
    return sorted(found, key=repr)


@pytest.mark.parametrize("table", TABLES)
def test_a_collector_tells_the_same_rows_as_its_dataset(address: str, table: str) -> None:
    for wanted in (RowQuery(table, ["host", "job", "rank"]), RowQuery(table, among={"host": ["h1", "nobody"]})):
        assert rows(CollectorRows(address), wanted) == rows(StoredRows(RECORDED), wanted)


def test_a_moment_of_the_hour_is_the_same_from_both(address: str) -> None:
    pasts = [DatasetPast(StoredRows(RECORDED)), DatasetPast(Asked(address))]
    here, there = (past.steps() for past in pasts)
    assert there.names == here.names
    assert not there.verdicts  # the recording has none, and a collector makes none anew
    assert here.verdicts
    for job, steps in here.jobs.items():
        assert there.jobs[job].tolist() == steps.tolist()
        step = steps[len(steps) // 2]
        number, since, until = (int(step[name]) for name in ("number", "start_ns", "end_ns"))
        one, other = (past.frame(job, number, since, until) for past in pasts)
        assert (other.spans, other.basis, other.gaps) == (one.spans, one.basis, one.gaps)
        assert [flow.flow for flow in other.snapshot.flows] == [flow.flow for flow in one.snapshot.flows]
        assert pasts[0].steps().jobs[job].tolist() == steps.tolist()  # what is read again is there once


def test_top_goes_back_to_what_was_before_it_began(address: str) -> None:
    past = CollectorPast(address, open_stored=lambda: DatasetPast(Asked(address)))
    list(past.remember([example()]))
    steps = past.steps()
    job, times = next(iter(steps.jobs.items()))
    step = times[-1]
    frame = past.frame(job, *(int(step[name]) for name in ("number", "start_ns", "end_ns")))
    assert frame.spans  # nobody is connected that could be asked for full resolution
    assert "streamed" in frame.basis or "kept" in frame.basis or "no row" in frame.basis
    assert CollectorPast(address).steps().jobs == {}


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (RowQuery("../../etc"), "not one of iterations"),
        (RowQuery("buckets", since_ns=2, until_ns=2), "end after it begins"),
        (RowQuery("buckets", ["host"] * 65), "more than 64 columns"),
        (RowQuery("buckets", among={"host": ["h"] * 5_000}), "4096 values"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_a_line(address: str, wanted: RowQuery, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        decode_wanted(encode_wanted(wanted))
    with pytest.raises(UnreachableError, match=reason):
        rows(CollectorRows(address), wanted)


@pytest.mark.parametrize("among", [{"flow_id": ["x"]}, {"host": [1]}, {"wire_bytes": [-(1 << 63)]}], ids=str)
def test_values_of_another_kind_than_the_columns_are_refused_in_a_line(address: str, among: dict[str, list]) -> None:
    """Or there are no such rows; either way a collector goes on."""
    try:
        assert rows(CollectorRows(address), RowQuery("buckets", among=among)) == []
    except UnreachableError as error:
        assert "cannot read buckets so" in str(error)  # noqa: PT017
    assert rows(CollectorRows(address), RowQuery("buckets"))


@pytest.mark.parametrize(("since", "until"), [(-(1 << 63), (1 << 63) - 1), (-(1 << 63), 1 - (1 << 63)), (0, 1)])
def test_any_times_may_be_asked_for(address: str, since: int, until: int) -> None:
    assert isinstance(rows(CollectorRows(address), RowQuery("iterations", since_ns=since, until_ns=until)), list)


def test_an_answer_is_bounded(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers_module, "MOST_ROWS", 10)
    with pytest.raises(UnreachableError, match="more than 10 rows of buckets: request less time"):
        rows(CollectorRows(address), RowQuery("buckets"))


def test_a_collector_that_does_not_tell_says_so(tmp_path: Path) -> None:
    at = f"unix:{tmp_path}/s"
    with collecting(at, tmp_path / "data"):
        wait_for(lambda: answers(at))
        with pytest.raises(UnreachableError, match="does not serve its dataset"):
            rows(CollectorRows(at), RowQuery("iterations"))
        assert CollectorPast(at, open_stored=lambda: DatasetPast(CollectorRows(at))).steps().jobs == {}


def test_it_is_told_through_a_receiving_process_too(tmp_path: Path) -> None:
    at, wanted = f"unix:{tmp_path}/s", RowQuery("iterations", ["job", "rank", "iteration"])
    with collecting(at, tmp_path / "data", stored=StoredRows(RECORDED)):
        wait_for(lambda: answers(at))
        assert rows(CollectorRows(at), wanted) == rows(StoredRows(RECORDED), wanted)
        with pytest.raises(UnreachableError, match="not one of iterations"):
            rows(CollectorRows(at), RowQuery("/etc"))


def test_what_both_know_counts_once_and_a_job_may_have_begun_anew() -> None:
    def table(*numbers_and_ends: tuple[int, float]) -> np.ndarray:
        steps = np.zeros(len(numbers_and_ends), STEP_TIMES)
        steps["number"] = [number for number, _ in numbers_and_ends]
        steps["end_ns"] = [int(end * S) for _, end in numbers_and_ends]
        steps["longest_ns"] = S
        return steps

    stored = {"a": table((1, 1), (2, 2), (3, 3), (1, 10)), "b": table((1, 1))}
    told = {"a": table((3, 3.001), (1, 10.0004), (2, 11)), "c": table((7, 1))}
    joined = joined_times(stored, told)
    assert joined["a"]["number"].tolist() == [1, 2, 3, 1, 2]
    assert joined["a"]["end_ns"].tolist() == [int(end * S) for end in (1, 2, 3.001, 10.0004, 11)]
    assert set(joined) == {"a", "b", "c"}
