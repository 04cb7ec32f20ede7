# SPDX-License-Identifier: Apache-2.0
"""How long an iteration usually takes is one number, wherever it is said."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from iteration_tables import iteration_rows
from test_verdict_recorded import BEFORE, EVIDENCE, OWN, RECORDED

from collector.host.iteration_rows import Accounted
from collector.view.job_views import JobHistory
from netmon.cli import main
from netmon.dl.iterations import Iteration
from netmon.dl.past_frames import joined_times, step_times
from netmon.dl.verdict import judge, no_link_totals
from netmon.dl.verdict.baseline import (
    FEWEST,
    MOST,
    Durations,
    baseline_durations,
    baseline_rows,
    matrix,
    median,
    ns_per_byte,
)
from netmon.dl.verdict.evidence import Steps
from netmon.history.judging import steps_of as steps_of_job
from netmon.history.past import DatasetPast, StoredRows
from netmon.records import Moment, Source
from netmon.report.chapters.slowdown import SLOWEST
from netmon.report.study import read_study
from netmon.top.steps import steps_of


@pytest.fixture(scope="module", params=[RECORDED, EVIDENCE, BEFORE, OWN], ids=lambda data: data.name)
def data(request):
    return request.param


@pytest.fixture(scope="module")
def rows(data):
    return pd.read_parquet(data / "iterations").astype({"job": str})


@pytest.fixture(scope="module")
def judged(rows):
    """What the verdict on each iteration says, by job and number."""
    jobs = {job: steps_of_job(own) for job, own in rows.groupby("job")}
    return {
        (job, number): judge(job, steps, no_link_totals(), number).baseline_ns
        for job, steps in jobs.items()
        for number in np.unique(steps.number).tolist()
    }


def test_top_why_the_report_and_the_verdict_say_the_same(data, judged, capsys, tmp_path):
    assert sum(ns > 0 for ns in judged.values()) >= 12
    past = DatasetPast(StoredRows(data)).steps()
    assert {(job, step.number): step.baseline_ns for job in past.jobs for step in steps_of(past, job)} == judged
    assert main(["why", "--data", str(data), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["verdicts"]
    assert told
    assert all(judged[one["job"], one["iteration"]] == one["baseline_ns"] for one in told)
    copied = shutil.copytree(
        data, tmp_path / "data", ignore=shutil.ignore_patterns("buckets")
    )  # a part of their columns
    slowest = SLOWEST.tables(read_study(copied))["slowest"].dropna(subset="times_baseline")
    assert len(slowest)
    for one in slowest.itertuples():
        assert one.time_s / one.times_baseline == pytest.approx(judged[one.job, one.iteration] / 1e9)


def test_what_has_not_been_stored_yet_changes_nothing_of_what_has(rows, judged):
    """A viewer has the last iterations from snapshots, which tell of no foreign traffic, and the others as stored."""
    lately = rows.drop(columns="node_shared").groupby("job").tail(8)
    joined = joined_times(step_times(rows), step_times(lately))
    assert {(job, one["number"]): one["baseline_ns"] for job in joined for one in joined[job]} == judged


def test_the_collector_looks_for_slow_iterations_by_the_same(rows, judged):
    for job, own in rows.groupby("job"):
        history, ranks = JobHistory(), own["rank"].unique()
        each = [
            Iteration(job, one.rank, 2, one.iteration, one.start_ns, one.end_ns, *_MOMENTS, Source.HOOK, 1000, False, 0)
            for one in own.itertuples()
        ]
        shared = {"node_shared": own["node_shared"].to_numpy(bool)}
        history.account(Accounted(iteration_rows((0, one) for one in each), shared), len(ranks))
        if len(ranks) < own["size"].max():
            continue  # what is known of some ranks only has no verdict
        for number in own["iteration"].unique():
            assert history.baseline_ns(ranks, number) == judged[job, number]


_MOMENTS = Moment.STEP_START, Moment.STEP_END


def test_it_is_the_median_of_the_iterations_before_that_are_a_measure():
    random = np.random.default_rng(1)
    for count in (1, 6, 7, 30, 700):
        for often in (0.0, 0.3, 0.98):
            of = Durations(
                random.integers(1, 1000, count).astype(float),
                *(random.random(count) < 0.9, random.random(count) < often),
                np.cumsum(np.arange(count) == 15),
            )
            found = baseline_durations(of)
            for row in random.integers(0, count, 20).tolist():
                compared = baseline_rows(of, row)
                pace = of.pace[row] - (row == 15)
                others = np.flatnonzero(of.whole & (of.pace == pace) & (np.arange(count) != row))
                others = others[others > 0] if len(others) > FEWEST else others
                quiet = others[~of.shared[others]]
                chosen = quiet if len(quiet) >= FEWEST else others
                before = chosen[chosen < row][-MOST:]
                if len(before) < FEWEST:
                    before = np.sort(chosen[np.argsort(abs(chosen - row), kind="stable")[:MOST]])
                assert compared.tolist() == (before.tolist() if len(before) >= FEWEST else [])
                assert found[row] == (int(median(of.slowest[compared])) if len(compared) else 0)


def test_what_bytes_take_is_told_in_spite_of_a_slow_link():
    random = np.random.default_rng(2)
    count = 60
    number, received, slow = np.arange(count), random.integers(2_000_000, 5_000_000, count), np.arange(count) % 5 == 0
    took = 20_000_000 + received * np.where(slow, 60, 40)  # ns
    table = matrix(one_rank(number, took, received))
    assert set(table.slowest[slow]) & set(np.sort(table.slowest)[:30])  # by their durations alone none stands out
    pace = ns_per_byte(table, number)
    assert pace == pytest.approx(40, rel=0.2)
    besides = table.slowest - pace * table.received
    assert besides[slow].min() > besides[~slow].max()
    for unknown in (None, np.where(number == 7, -1, received), np.full(count, 1_000_000)):
        assert ns_per_byte(matrix(one_rank(number, took, unknown)), number) == 0


def one_rank(number, took, received):
    start, none = np.cumsum(took) - took, np.zeros(len(number), np.int64)
    known, unknown = (number, none, start, start + took), (none, none, none - 1, none)
    return Steps(*known, *unknown, none > 0, none, ("h0",), 1, received_bytes=received)
