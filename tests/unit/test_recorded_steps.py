# SPDX-License-Identifier: Apache-2.0
"""Of recorded scripts every step is reported, and nothing else, however the calls arrive."""

import numpy as np
import pytest
from step_recordings import NAMES, RecordedRank, read

from netmon.agent.steps import StepMarks
from netmon.dl.understanding import Understanding
from netmon.records import Mark, Moment, Table

MILLISECOND = 1_000_000


def marks_of(rank: RecordedRank, interval_ns: int) -> list[Mark]:
    """What an agent says of it that drains the kernel so often."""
    pid, first_ns = int(rank.calls["pid"][0]), int(rank.calls["time_ns"][0])
    process = {"pid": pid, "uid": 0, "job": "job", "rank": rank.rank, "size": rank.ranks, "job_name": ""}
    marks = StepMarks()
    found = marks.ranks([{**process, "trains": True, "late": False, "probed": True}], first_ns)
    return [*found, *(mark for part in _parts(rank.calls, interval_ns) for mark in marks.steps(part)), *marks.finish()]


def _parts(calls: Table, interval_ns: int) -> list[Table]:
    number = (calls["time_ns"] - calls["time_ns"][0]) // interval_ns
    return np.split(calls, np.flatnonzero(np.diff(number)) + 1)


@pytest.mark.parametrize("interval_ns", [200 * MILLISECOND, 31 * MILLISECOND])
@pytest.mark.parametrize("name", NAMES)
def test_every_step_is_reported_once(name: str, interval_ns: int) -> None:
    for rank in read(name):
        marks = marks_of(rank, interval_ns)
        begun, ended = (
            {mark.iteration: mark.time_ns for mark in marks if mark.moment is moment}
            for moment in (Moment.FIRST_ENQUEUE, Moment.LAST_WAIT)
        )
        assert list(begun) == list(ended) == list(range(len(rank.steps)))
        for number, (begin, end) in enumerate(rank.steps):
            assert begin < begun[number] <= ended[number] < end


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("ddp-")])
def test_what_is_understood_after_all_is_reported_as_that(name: str) -> None:
    for rank in read(name):
        joined = [mark for mark in marks_of(rank, 31 * MILLISECOND) if mark.moment is Moment.JOIN]
        assert joined[-1].iteration == Understanding.UNDERSTOOD
