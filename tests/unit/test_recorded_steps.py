# SPDX-License-Identifier: Apache-2.0
"""Of recorded scripts every step is reported, and nothing else, however the calls arrive."""

import numpy as np
import pytest
from step_recordings import NAMES, RecordedRank, read

from netmon.agent.steps import StepMarks
from netmon.dl.understanding import Understanding
from netmon.records import STEP_WAIT_BEGIN, STEP_WAIT_END, STEP_WORK_WAIT, Mark, Moment, Table

MILLISECOND = 1_000_000
NOT_LATE = {"gan", "local-sgd", "sequence", "tensor-by-hand"}
"""Who watches these late cannot tell where in the sequence a step begins."""


def marks_of(rank: RecordedRank, interval_ns: int, late: bool = False) -> list[Mark]:
    """What an agent says of it that drains the kernel so often."""
    pid, first_ns = int(rank.calls["pid"][0]), int(rank.calls["time_ns"][0])
    process = {"pid": pid, "uid": 0, "job": "job", "rank": rank.rank, "size": rank.ranks, "job_name": ""}
    marks = StepMarks()
    found = marks.ranks([{**process, "trains": True, "late": late, "probed": True}], first_ns)
    return [*found, *(mark for part in _parts(rank.calls, interval_ns) for mark in marks.steps(part)), *marks.finish()]


def _parts(calls: Table, interval_ns: int) -> list[Table]:
    number = (calls["time_ns"] - calls["time_ns"][0]) // interval_ns
    return np.split(calls, np.flatnonzero(np.diff(number)) + 1)


@pytest.mark.parametrize("interval_ns", [200 * MILLISECOND, 31 * MILLISECOND])
@pytest.mark.parametrize("name", NAMES)
def test_every_step_is_reported_once(name: str, interval_ns: int) -> None:
    for rank in read(name):
        check(marks_of(rank, interval_ns), rank.steps)


def check(marks: list[Mark], steps: list[tuple[int, int]]) -> None:
    """All these steps, and no others."""
    begun, ended = (
        {mark.iteration: mark.time_ns for mark in marks if mark.moment is moment}
        for moment in (Moment.FIRST_ENQUEUE, Moment.LAST_WAIT)
    )
    assert list(begun) == list(ended) == list(range(len(steps)))
    for number, (begin, end) in enumerate(steps):
        assert begin < begun[number] <= ended[number] < end


@pytest.mark.parametrize("name", NAMES)
def test_steps_are_right_where_waits_for_works_are_not_seen(name: str) -> None:
    for rank in read(name):
        waits = np.isin(rank.calls["kind"], (STEP_WAIT_BEGIN, STEP_WAIT_END, STEP_WORK_WAIT))
        others = rank.calls[~waits | (rank.calls["work"] == 0)]
        check(marks_of(rank._replace(calls=others), 200 * MILLISECOND), rank.steps)


@pytest.mark.parametrize("part", [0.15, 0.4])
@pytest.mark.parametrize("name", sorted(name for name in {*NAMES} - NOT_LATE if not name.startswith("ddp-")))
def test_who_is_watched_late_misses_at_most_the_step_then(name: str, part: float) -> None:
    for rank in read(name):
        calls = rank.calls[int(part * len(rank.calls)) :]
        marks = marks_of(rank._replace(calls=calls), 200 * MILLISECOND, late=True)
        to_come = [step for step in rank.steps if step[0] >= int(calls["time_ns"][0])]
        reported = sum(mark.moment is Moment.LAST_WAIT for mark in marks)
        assert len(to_come) - reported in (0, 1)
        check(marks, to_come[len(to_come) - reported :])
        assert {mark.relative for mark in marks} == {True}


def test_who_is_seen_to_make_the_first_group_is_not_late() -> None:
    for rank in read("hybrid"):
        marks = marks_of(rank, 200 * MILLISECOND, late=True)
        check(marks, rank.steps)
        assert {mark.relative for mark in marks if mark.moment is Moment.LAST_WAIT} == {False}


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("ddp-")])
def test_what_is_understood_after_all_is_reported_as_that(name: str) -> None:
    for rank in read(name):
        joined = [mark for mark in marks_of(rank, 31 * MILLISECOND) if mark.moment is Moment.JOIN]
        assert joined[-1].iteration == Understanding.UNDERSTOOD
