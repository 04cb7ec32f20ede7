# SPDX-License-Identifier: Apache-2.0
"""What a page says of jobs: which is slow and since when, whatever names they have, and at a bounded cost."""

import json
import time
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("aiohttp", reason="aiohttp is not installed: the page cannot be served")
from synthetic_source import BEGIN_NS, MS, Synthetic

from netmon.dl.verdict.baseline import baseline_durations, baseline_of_last, of_durations
from netmon.dl.verdict.incidents import step_parts
from netmon.views import Cause, Hang, Hung
from netmon.web.answers import Answers


def test_a_job_that_is_slow_comes_first_and_is_well_again_later() -> None:
    source = Synthetic(24, 60)
    source.live = True
    one = source.slow("job-002", 2)
    source.found = []
    told = Answers(source).jobs()
    assert (told["all"], told["slow"], {row["incident"] for row in told["jobs"]}) == (3, 0, {None})
    assert all(row["baseline_ns"] == pytest.approx(row["last_ns"], rel=1) for row in told["jobs"])
    source.found = [one]
    answers = Answers(source)
    first = answers.jobs()["jobs"][0]
    assert (first["name"], first["lost_ns"]) == ("job-002", one.excess_ns)
    [shown] = answers.incidents(lambda incident: incident)["incidents"]
    assert shown["key"] == first["incident"]
    assert "".join(shown["line"][::2]).startswith("job-002 ")
    assert shown["line"][1] == str(one.start_ns // 10**9 * 10**9)


def test_usual_is_the_one_baseline_or_what_the_collector_says() -> None:
    source = Synthetic(8, 60)
    lanes = source.lanes
    took = (lanes.end_ns - lanes.bounds[:, 0])[lanes.first[0] : lanes.last[0]]
    [row] = Answers(source).jobs()["jobs"]
    assert row["baseline_ns"] == baseline_of_last(of_durations(took))
    lanes.shared[lanes.first[0] : lanes.last[0]] = took > np.quantile(took, 0.4)  # the quiet ones are the measure
    [row] = Answers(source).jobs()["jobs"]
    quiet = took[~lanes.shared[lanes.first[0] : lanes.last[0]]]
    assert row["baseline_ns"] == pytest.approx(np.median(quiet), rel=0.01)
    source.known = replace(source.known, baseline_ns={"job-000": 123 * MS})
    [row] = Answers(source).jobs()["jobs"]
    assert row["baseline_ns"] == 123 * MS


def test_an_incident_goes_on_only_where_the_job_does() -> None:
    source = Synthetic(8, 60)
    lane = source.lanes.last[0] - 1
    start, end = int(source.lanes.bounds[lane, 0]), int(source.lanes.end_ns[lane])
    number = int(source.lanes.number[lane])
    source.found = [replace(source.found[0], iteration=number, start_ns=start, end_ns=end)]
    assert not Answers(source).jobs()["jobs"][0]["ongoing"]
    source.live = True
    assert Answers(source).jobs()["jobs"][0]["ongoing"]
    source.end_ns += 60_000 * MS
    assert Answers(source).jobs()["jobs"][0]["silent_ns"] > 0


def test_a_job_that_stands_still_is_told_of() -> None:
    source = Synthetic(8, 60)
    hang = Hang("a<b>\x07", BEGIN_NS, 0, BEGIN_NS, Hung.GONE, "barrier", 5, "", 1, "h1", "", (1,), (0,))
    source.hangs = (hang,)
    [line] = json.loads(json.dumps(Answers(source).jobs()))["hangs"]
    assert line[0].startswith("a<b>\ufffd stands still: rank 1 on h1 is gone")
    assert line[1] == str(BEGIN_NS // 10**9 * 10**9)
    source.hangs = (replace(hang, what=Hung.NOT_ENTERED, reported_ns=0),)
    told = Answers(source).jobs()
    assert told["hangs"] == []
    assert told["waits"][0][0].startswith("a<b>\ufffd waits: rank 1 on h1 has not entered")


def test_names_with_markup_and_control_signs_are_text() -> None:
    source = Synthetic(8, 60)
    name = "\x1b[31m<b>\x1f123\x1f</b>\u202e"
    source.found = [replace(source.found[0], culprit=name, culprit_user="\x07", sender="\n")]
    answers = Answers(source)
    answers.jobs()
    [shown] = json.loads(json.dumps(answers.incidents(lambda one: one)))["incidents"]
    assert [piece for piece in shown["line"][1::2] if not piece.endswith("000000000")] == []  # times
    assert all(sign.isprintable() for piece in [*shown["line"], shown["who"], shown["do"]] for sign in piece)
    assert "<b>" in shown["who"]


def test_a_hundred_thousand_verdicts_take_bounded_time() -> None:
    source = Synthetic(8, 60)
    one = source.found[0]
    far = 10_000 * MS
    source.found = [
        replace(one, iteration=10 * n, start_ns=one.start_ns + n * far, end_ns=one.end_ns + n * far)
        for n in range(100_000)
    ]
    answers = Answers(source)
    begun = time.process_time()
    answers.jobs()
    told = answers.incidents(lambda incident: incident)
    assert time.process_time() - begun < 20
    assert len(told["incidents"]) == 300
    assert 300 < told["all"] <= 2_000  # the newest
    begun = time.process_time()
    for _ in range(10):
        answers._requested_s = -1.0
        answers.jobs()
    assert time.process_time() - begun < 5


def test_steps_have_their_cause_also_where_a_number_comes_again() -> None:
    source = Synthetic(8, 60)
    one = source.found[0]
    again = replace(one, start_ns=one.start_ns - 3_600_000 * MS, end_ns=one.end_ns - 3_600_000 * MS, cause=Cause.LOSS)
    source.found = [again, one]
    answers = Answers(source)
    _, bars = answers.bars("job-000", BEGIN_NS, BEGIN_NS + 60_000 * MS)
    [row] = np.flatnonzero(bars["cause"] != 255)
    assert (bars["cause"][row], bars["number"][row]) == (Cause.CROSS, one.iteration)
    assert bars["baseline_ns"][row] == one.baseline_ns
    lane = source.lanes
    took = (lane.end_ns - lane.bounds[:, 0])[lane.first[0] : lane.last[0]]  # one rank's are all ranks'
    assert dict(zip(bars["number"], bars["baseline_ns"], strict=True)).items() >= {
        (number, expected)
        for number, expected in enumerate(baseline_durations(of_durations(took)))
        if number != one.iteration and number in bars["number"]
    }
    _, bars = answers.bars("nobody", BEGIN_NS, BEGIN_NS + 60_000 * MS)
    assert len(bars["number"]) == 0
    found = answers.steps(one.iteration)
    assert found[0]["start_ns"] == str(one.start_ns)


def test_of_more_steps_than_can_be_drawn_the_slowest_are() -> None:
    source = Synthetic(8, 3_600)
    slowest = source.found[0]
    _, bars = Answers(source).bars("job-000", BEGIN_NS, BEGIN_NS + 7_200_000 * MS)
    assert len(bars["number"]) <= 1_201
    assert bars["took_ns"].max() == slowest.duration_ns
    assert slowest.iteration in bars["number"]


def test_a_server_that_runs_for_long_remembers_as_much_as_its_source() -> None:
    source = Synthetic(8, 60)
    one, far = source.found[0], 10_000 * MS
    answers = Answers(source)
    for newest in range(2_000, 30_000, 2_000):  # the source has the newest 2,000
        source.found = [
            replace(one, iteration=10 * n, start_ns=one.start_ns + n * far, end_ns=one.end_ns + n * far)
            for n in range(newest - 2_000, newest)
        ]
        answers._count, answers._requested_s = -1, -1.0
        answers.jobs()
        assert sum(map(len, answers._verdicts.values())) <= 6_000


def test_the_parts_of_a_step_add_up() -> None:
    one = Synthetic(8, 60).found[0]
    mixed = replace(one, cross_ns=one.excess_ns - 40 * MS, late_ns=60 * MS, compute_ns=-20 * MS - 7)
    parts = step_parts(mixed)
    assert parts[0] == ("usual", one.baseline_ns)
    assert {name for name, _ in parts[1:]} == {"cross traffic", "late ranks", "computing"}
    assert sum(ns for _, ns in parts) == pytest.approx(one.duration_ns, abs=1_000)
    assert step_parts(replace(one, baseline_ns=0)) == [("not known", one.duration_ns)]
