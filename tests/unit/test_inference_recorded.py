# SPDX-License-Identifier: Apache-2.0
"""The inference on traffic of real runs, recorded with its truth."""

import json
from dataclasses import replace

import numpy as np
import pytest

from netmon.bench.inference import find, read, recorded_runs, replay, scores, write
from netmon.bench.result import document
from netmon.cli import main
from netmon.dl.step_alignment import matched
from netmon.errors import DataError

RUNS = sorted(recorded_runs().glob("*.parquet"), key=lambda path: path.name)
QUIET = next(path for path in RUNS if path.stem == "horovod-3x1M-quiet")
TWO = next(path for path in RUNS if path.stem == "two-60-61")
MOST_BYTES = 5_000_000


@pytest.mark.parametrize("path", RUNS, ids=[path.stem for path in RUNS])
def test_a_recorded_run(path):
    run = read(path)
    for result in scores(run, replay(run)):
        assert result.f1 >= (0.95 if run.cross_load else 0.99)
        assert result.boundary_error_fraction <= 0.01
        assert result.members_exact
        assert result.ring_exact
        assert result.pattern_exact
        assert result.jobs == 1
        assert result.bytes_right >= 0.99
        assert result.first_found_after <= (6 if len(run.jobs) == 1 else 20)


def test_they_are_small():
    assert len(RUNS) > 10
    assert sum(path.stat().st_size for path in RUNS) < MOST_BYTES


def test_a_job_without_a_readable_flow_is_not_invented():
    run = read(QUIET)
    one_way = [number for number, flow in enumerate(run.flows) if flow.src < flow.dst]
    cut = run.traffic[np.isin(run.traffic["flow"], one_way)]
    assert not replay(type(run)(**{**vars(run), "traffic": cut})).jobs


def without(fields, *names):
    return {name: value for name, value in fields.items() if name not in names}


@pytest.mark.parametrize("path", [QUIET, TWO], ids=["one job", "two jobs"])
def test_a_labelled_table_is_read_as_it_was_written(path, tmp_path):
    run = read(path)
    write(run, tmp_path / "again.parquet")
    again = read(tmp_path / "again.parquet")
    np.testing.assert_array_equal(run.traffic, again.traffic)
    for job, job_again in zip(run.jobs, again.jobs, strict=True):
        np.testing.assert_array_equal(job.iterations, job_again.iterations)
        assert without(vars(job), "iterations") == without(vars(job_again), "iterations")
    assert without(vars(run), "traffic", "jobs") == without(vars(again), "traffic", "jobs")


def test_the_command_prints_one_document(capsys):
    assert main(["bench", "inference", str(QUIET), "--json"]) == 0
    [run] = json.loads(capsys.readouterr().out)["runs"]
    assert run["run"] == QUIET.stem
    assert run["found"] == run["true"] == 60
    assert {"cross_load", "cross_profile", "f1", "boundary_error_fraction", "members_exact", "ring_exact"} <= set(run)


def test_two_jobs_taken_for_one_count_against_the_one_that_they_are_most_like():
    run = read(TWO)
    said = replay(run)
    first, second = said.jobs.values()
    one = replace(first, members=tuple(dict.fromkeys((*first.members, *second.members))), pattern="star")
    said.jobs.clear()
    said.jobs[first.name] = one
    said.iterations[:] = [replace(i, job=first.name) for i in said.iterations]
    results = scores(run, said)
    assert [result.run for result in results] == ["two-60-61:a", "two-60-61:b"]
    assert sorted(result.jobs for result in results) == [0, 1]
    assert min(result.f1 for result in results) == 0
    assert max(result.f1 for result in results) < 0.7
    assert not any(result.members_exact or result.ring_exact for result in results)


def test_durations_are_right_where_all_ends_are_off_by_as_much():
    run = read(QUIET)
    said = replay(run)
    [exact] = scores(run, said)
    late = int(0.2 * next(iter(said.jobs.values())).period_ns)
    said.iterations[:] = [
        replace(i, end_ns=i.end_ns + late, received_ns=tuple(at + late for at in i.received_ns))
        for i in said.iterations
    ]
    del said.iterations[20], said.reported_ns[20]  # no duration ends with it, and none begins
    [shifted] = scores(run, said)
    assert exact.duration_error_fraction < 0.02
    assert shifted.duration_error_fraction == pytest.approx(exact.duration_error_fraction, abs=0.002)
    assert shifted.boundary_error_fraction > 0.15 > exact.boundary_error_fraction


def test_what_is_no_recording_is_refused(tmp_path, capsys):
    (tmp_path / "text.parquet").write_text("no parquet")
    for path in (tmp_path / "none", tmp_path / "text.parquet"):
        with pytest.raises(DataError, match="cannot"):
            list(find(path))
        assert main(["bench", "inference", str(path)]) == 1
        assert capsys.readouterr().err.startswith("netmon: cannot")


def test_a_run_in_which_nothing_is_found(tmp_path):
    run = read(QUIET)
    silent = type(run)(**{**vars(run), "traffic": run.traffic[:0]})
    [result] = scores(silent, replay(silent))
    assert (result.found, result.f1, result.first_found_after) == (0, 0.0, -1)
    assert not result.members_exact
    write(silent, tmp_path / "silent.parquet")
    assert read(tmp_path / "silent.parquet").traffic.size == 0
    from netmon.bench.inference import InferenceResult

    assert document(InferenceResult((result,)))["runs"][0]["boundary_error_fraction"] is None
    assert [table.row_count for table in InferenceResult((result,)).shown()] == [1]


def test_matching_is_one_to_one():
    truth, found = np.array([0, 100, 200]), np.array([10, 95, 105, 390])
    ours, theirs = matched(truth, found, within_ns=50)
    assert ours.tolist() == [0, 1]
    assert theirs.tolist() == [0, 1]
