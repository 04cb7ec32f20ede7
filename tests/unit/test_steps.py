# SPDX-License-Identifier: Apache-2.0
"""Which process trains as which rank, and the marks of what it was seen to do."""

from typing import Any

import numpy as np

from netmon.agent.steps import StepMarks
from netmon.records import (
    LIBRARY_HOROVOD,
    STEP_ENQUEUE,
    STEP_RANK,
    STEP_WAIT_BEGIN,
    STEP_WAIT_END,
    Mark,
    Moment,
    Source,
    Table,
    calls_of,
)

NAME = "train.py@node3"
NOW = 1_000_000_000


def process(pid: int, rank: int = 0, trains: bool = True, late: bool = False) -> dict[str, Any]:
    return {
        "pid": pid,
        "uid": 0,
        "job": "job",
        "rank": rank,
        "size": 2,
        "trains": trains,
        "late": late,
        "probed": True,
        "job_name": NAME,
    }


def steps(pid: int, count: int, start_ns: int = NOW) -> Table:
    rows = []
    for number in range(count):
        at = start_ns + number * 1_000_000
        calls = [(STEP_ENQUEUE, name) for name in range(1, 7)] + [(STEP_WAIT_BEGIN, 0), (STEP_WAIT_END, 0)] * 6
        rows += [(at + i * 1000, name, pid, kind, LIBRARY_HOROVOD, 1, 0) for i, (kind, name) in enumerate(calls)]
    return calls_of(rows)


def moments(marks: list[Mark], moment: Moment) -> list[int]:
    return [mark.iteration for mark in marks if mark.moment is moment]


def test_a_rank_from_its_first_step_to_its_end() -> None:
    marks = StepMarks()
    got = [*marks.ranks([process(5)], NOW), *marks.steps(steps(5, 4)), *marks.ranks([], NOW)]
    assert (got[0].moment, got[-1].moment) == (Moment.JOIN, Moment.LEAVE)
    for moment in (Moment.FIRST_ENQUEUE, Moment.FIRST_WAIT, Moment.LAST_WAIT):
        assert moments(got, moment) == [0, 1, 2, 3]
    assert {(mark.source, mark.pid, mark.relative) for mark in got} == {(Source.UPROBE, 5, False)}


def test_who_trained_before_it_was_watched_counts_relatively() -> None:
    marks = StepMarks()
    marks.ranks([process(5, late=True)], NOW)
    assert {mark.relative for mark in marks.steps(steps(5, 4))} == {True}


def test_steps_wait_until_it_is_known_whether_others_came_before_them() -> None:
    marks = StepMarks()
    marks.ranks([process(5) | {"probed": False}], NOW)
    assert marks.steps(steps(5, 4)) == []
    got = marks.ranks([process(5, late=True)], NOW)
    assert moments(got, Moment.FIRST_ENQUEUE)
    assert all(mark.relative for mark in got)


def test_steps_of_a_process_that_is_not_known_yet_are_kept() -> None:
    marks = StepMarks()
    assert marks.steps(steps(5, 4)) == []
    assert moments(marks.ranks([process(5)], NOW), Moment.FIRST_ENQUEUE) == [0, 1, 2, 3]


def test_a_shell_that_started_the_rank_is_not_the_rank() -> None:
    marks = StepMarks()
    shell, script, loader = process(4, trains=False), process(5), process(6)
    assert marks.ranks([shell], NOW)[0].pid == 4
    got = marks.ranks([shell, script, loader], NOW)
    assert [(mark.pid, mark.moment) for mark in got] == [(4, Moment.LEAVE), (5, Moment.JOIN)]
    assert marks.ranks([shell, script, loader], NOW) == []


def test_a_rank_that_says_it_is_another_one_now_is_that() -> None:
    marks = StepMarks()
    marks.ranks([process(5)], NOW)
    told = Mark("job", 1, 3, 5, 0, Moment.JOIN, NOW, Source.HOOK, 0)
    got = marks.rename([told])
    assert [(mark.rank, mark.size, mark.moment) for mark in got] == [(0, 2, Moment.LEAVE), (1, 3, Moment.JOIN)]
    assert {mark.rank for mark in marks.steps(steps(5, 4))} == {1}
    assert marks.ranks([process(5)], NOW) == []  # the environment does not change


def set_up(pid: int, rank: int, size: int, at_ns: int) -> Table:
    return calls_of([(at_ns, rank << 32 | size, pid, STEP_RANK, LIBRARY_HOROVOD, 0, 0)])


def failed(pid: int, at_ns: int) -> Table:
    """A step of which a peer dies: all is handed over, and the first wait fails."""
    calls = [(STEP_ENQUEUE, name) for name in range(1, 7)] + [(STEP_WAIT_BEGIN, 0), (STEP_WAIT_END, 0)]
    return calls_of([(at_ns + i, name, pid, kind, LIBRARY_HOROVOD, 1, 0) for i, (kind, name) in enumerate(calls)])


def test_an_elastic_job_gives_its_ranks_out_anew() -> None:
    marks = StepMarks()
    got = marks.ranks([process(5, rank=1)], NOW)
    later = NOW + 1_000_000_000
    table = [set_up(5, 1, 2, NOW), steps(5, 4), failed(5, NOW + 5_000_000), set_up(5, 0, 1, later), steps(5, 3, later)]
    got += marks.steps(np.concatenate(table))
    told = [(mark.rank, mark.iteration, mark.moment.name) for mark in got]
    assert [one for one in told if one[2] in ("JOIN", "LEAVE")] == [(1, 0, "JOIN"), (1, 3, "LEAVE"), (0, 0, "JOIN")]
    assert [one for one in told if one[2] == "LAST_WAIT"] == [
        *((1, number, "LAST_WAIT") for number in range(4)),
        *((0, number, "LAST_WAIT") for number in (4, 5, 6)),
    ]
    assert marks.ranks([process(5, rank=1)], later) == []  # the environment does not change
    assert moments(marks.finish(), Moment.LAST_WAIT) == []


def test_two_ranks_of_a_host_that_change_places_are_both_followed() -> None:
    marks = StepMarks()
    both = [process(5, rank=0), process(6, rank=1)]
    marks.ranks(both, NOW)
    marks.steps(np.concatenate([steps(5, 3), steps(6, 3)]))
    marks.steps(set_up(5, 1, 2, 2 * NOW))
    assert marks.ranks(both, 2 * NOW) == []
    marks.steps(set_up(6, 0, 2, 2 * NOW))
    assert marks.ranks(both, 2 * NOW) == []
    assert {pid: identity.rank for pid, identity in marks.identities().items()} == {5: 1, 6: 0}


def test_a_process_that_is_killed_in_a_step_has_not_taken_it() -> None:
    marks = StepMarks()
    marks.ranks([process(5)], NOW)
    got = marks.steps(np.concatenate([steps(5, 4), failed(5, NOW + 5_000_000)])) + marks.ranks([], NOW)
    assert moments(got, Moment.LAST_WAIT) == [0, 1, 2, 3]


def test_a_job_is_called_what_its_script_is_not_what_started_it() -> None:
    marks = StepMarks()
    (joined,) = marks.ranks([process(5) | {"job_name": "ip@node3"}], NOW)
    assert joined.job_name == "ip@node3"
    (again,) = marks.ranks([process(5)], NOW + 1)
    assert (again.moment, again.job_name) == (Moment.JOIN, NAME)
    assert marks.ranks([process(5)], NOW + 2) == []
    assert {mark.job_name for mark in marks.steps(steps(5, 4))} == {""}  # it is told once
    assert marks.ranks([process(5) | {"job_name": "a title"}], NOW + 3) == []


def test_a_job_that_its_script_names_is_called_that() -> None:
    marks = StepMarks()
    marks.rename([Mark("bert", 0, 2, 5, 0, Moment.JOIN, NOW, Source.HOOK, 0)])
    (joined,) = marks.ranks([process(5)], NOW)
    assert (joined.job, joined.job_name) == ("bert", "")
