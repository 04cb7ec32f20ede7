# SPDX-License-Identifier: Apache-2.0
"""What a rank has called in its steps, added up: every call in its own step, open and waited times counted once."""

import numpy as np
from test_rank_activity import CONTEXT, NAME, SIZE, begin, call, named

from netmon.agent.collectives import Collectives
from netmon.dl.operations import Operation
from netmon.dl.rank_activity import UNNAMED
from netmon.dl.step_calls import StepCalls
from netmon.evidence import UNKNOWN
from netmon.records import (
    LIBRARY_REDUCER,
    STEP_BACKWARD,
    STEP_DROPPED,
    STEP_OVER,
    STEP_WAIT_BEGIN,
    STEP_WAIT_END,
    STEP_WORK_WAIT,
    Mark,
    Moment,
    Source,
    Table,
)

ALL_REDUCE, RECEIVE, SEND = Operation.ALL_REDUCE, Operation.RECEIVE, Operation.SEND

GATHER, BYTES = 4, 4000


def step_at(at: int, number: int = 0, call_size: int = 1000) -> list[Table]:
    """A gather, waited for; a backward pass; two sums at once, waited for one after the other."""
    first = begin(7, at + 10, 3 * number + 1, operation=GATHER)
    one, two = begin(8, at + 50, 3 * number + 2), begin(9, at + 52, 3 * number + 3)
    for each in (first, one, two):
        each["size"] = call_size << 4 | 4 if call_size else 0
    return [
        first,
        call(STEP_WAIT_BEGIN, at + 12, work=7),
        call(STEP_WAIT_END, at + 20, work=7),
        call(STEP_WAIT_END, at + 21, work=7),  # by the thread that waited
        call(STEP_BACKWARD, at + 40),
        *(one, two),
        call(STEP_WAIT_BEGIN, at + 60, work=8),
        call(STEP_WAIT_END, at + 70, work=8),
        call(STEP_WAIT_END, at + 72, work=9),
        call(STEP_WAIT_BEGIN, at + 73, work=9),  # it is over
    ]


def fed(*calls: Table) -> StepCalls:
    found = StepCalls()
    found.add(np.concatenate(calls))
    return found


def test_calls_of_a_step_are_added_up_by_group_and_operation() -> None:
    found = fed(named(), *step_at(1000), *step_at(2000, 1))
    found.step(1010, 1072)
    assert not len(found.take(1, SIZE))  # the next one may have begun before
    found.step(2010, 2072)
    sums, gathers = found.take(1, SIZE)
    assert gathers[["start_ns", "end_ns", "group", "group_rank", "group_size"]].tolist() == (1010, 1072, NAME, 1, SIZE)
    assert gathers[["operation", "peer", "calls", "bytes", "forward_calls"]].tolist() == (GATHER, UNKNOWN, 1, BYTES, 1)
    assert gathers[["open_ns", "waited_ns", "first_at_ns", "last_at_ns"]].tolist() == (10, 8, 0, 10)
    assert sums[["operation", "calls", "bytes", "forward_calls", "forward_bytes"]].tolist() == (1, 2, 2 * BYTES, 0, 0)
    assert sums[["open_ns", "waited_ns", "first_at_ns", "last_at_ns"]].tolist() == (22, 10, 40, 62)
    assert sums[["longest_ns", "longest_sequence", "longest_at_ns"]].tolist() == (10, 2, 40)
    assert sums[["late_ns", "late_sequence", "late_at_ns"]].tolist() == (30, 2, 40)
    (last,) = (row for row in found.take(1, SIZE, last=True) if row["operation"] == GATHER)
    assert last[["start_ns", "end_ns", "calls", "first_at_ns", "late_ns"]].tolist() == (1072, 2072, 1, 938, 938)


def test_what_is_begun_before_the_step_before_is_over_belongs_to_the_next() -> None:
    send = [begin(20 + at, at, 1, CONTEXT, SEND) for at in (100, 200)]
    over = [call(STEP_OVER, 205, work=120), call(STEP_OVER, 230, work=220)]
    found = fed(named(), send[0], call(STEP_WORK_WAIT, 110, work=120), send[1], *over)
    found.step(100, 205)
    found.step(200, 230)
    (first,), (second,) = found.take(1, SIZE), found.take(1, SIZE, last=True)
    assert first[["calls", "peer", "longest_sequence", "waited_ns"]].tolist() == (1, 1, UNKNOWN, 95)
    assert second[["start_ns", "calls", "waited_ns", "first_at_ns"]].tolist() == (205, 1, 0, 0)


def test_ddp_waits_for_all_sums_at_once() -> None:
    wait = call(STEP_WAIT_BEGIN, 30, library=LIBRARY_REDUCER, name_hash=5)
    over = [call(STEP_WAIT_END, at, work=work) for work, at in ((7, 20), (8, 50), (9, 60))]
    begun = [begin(work, 10 + work, work) for work in (7, 8, 9)]
    found = fed(named(), *begun, over[0], wait, *over[1:])
    found.step(17, 60)
    (row,) = found.take(1, SIZE, last=True)
    assert row[["calls", "open_ns", "waited_ns", "longest_ns"]].tolist() == (3, 43, 30, 30)


def test_what_is_not_known_is_not_guessed() -> None:
    found = fed(*step_at(1000, call_size=0))
    found.step(1010, 1072)
    sums, _ = found.take(1, SIZE, last=True)
    assert sums[["group", "bytes"]].tolist() == (UNNAMED, UNKNOWN)  # as large as the job
    for size, group, group_rank in ((SIZE, UNNAMED, 1), (2 * SIZE, UNKNOWN, UNKNOWN)):
        found = fed(*step_at(1000), begin(30, 1075, 1, 0, RECEIVE))
        found.step(1010, 1080)
        rows = found.take(1, size, last=True)
        assert {(row["group"], row["group_size"]) for row in rows if row["operation"] == GATHER} == {(group, SIZE)}
        assert {(row["group"], row["group_rank"]) for row in rows if row["operation"] == RECEIVE} == {
            (group, group_rank)
        }


def test_of_steps_of_which_calls_have_been_missed_nothing_is_told() -> None:
    found = fed(named(), *step_at(1000))
    found.forget()
    found.add(np.concatenate(step_at(2000)))
    for at in (1000, 2000):
        found.step(at + 10, at + 72)
    assert {row["end_ns"] for row in found.take(1, SIZE, last=True)} == {2072}


def test_what_is_kept_has_a_limit() -> None:
    found, many, at_once = fed(named()), 7_000, 100
    for at in range(0, many, at_once):
        found.add(np.concatenate([row for part in range(at_once) for row in step_at(1000 * (at + part), at + part)]))
    assert found._count <= 65_536
    for at in range(many):
        found.step(1000 * at + 10, 1000 * at + 72)
    ends = np.unique(found.take(1, SIZE, last=True)["end_ns"])
    assert len(ends) == 4_096
    assert ends[-1] == 1000 * (many - 1) + 72


# --- an agent's


def mark(moment: Moment, time_ns: int, pid: int = 5, source: Source = Source.UPROBE) -> Mark:
    return Mark("job", 1, SIZE, pid, 0, moment, time_ns, source, 0)


def step_marks(at: int) -> list[Mark]:
    return [mark(Moment.FIRST_ENQUEUE, at + 10), mark(Moment.LAST_WAIT, at + 72)]


def of(pid: int, *calls: Table) -> Table:
    table = np.concatenate(calls)
    table["pid"] = pid
    return table


def test_an_agent_tells_of_ranks_only_and_of_the_last_step_when_they_leave() -> None:
    collectives, jobs = Collectives(), {"other": 0}
    collectives.add(np.concatenate([of(5, named(), *step_at(1000)), of(6, named(), *step_at(1000))]))
    collectives.add_marks([mark(Moment.JOIN, 900), *step_marks(1000)])
    assert not len(collectives.due(2000, jobs))
    collectives.add_marks([mark(Moment.LEAVE, 1100)])
    rows = collectives.due(2000, jobs)
    assert rows[["job", "rank", "pid", "size", "calls"]].tolist() == [(1, 1, 5, SIZE, 2), (1, 1, 5, SIZE, 1)]
    assert jobs == {"other": 0, "job": 1}
    assert not len(collectives.due(2000, jobs))


def test_the_steps_of_a_script_are_what_counts() -> None:
    collectives = Collectives()
    collectives.add(of(5, named(), *step_at(1000), *step_at(2000)))
    hook = {"source": Source.HOOK}
    for at in (1000, 2000):
        steps = [mark(Moment.STEP_START, at + 5, **hook), *step_marks(at), mark(Moment.STEP_END, at + 90, **hook)]
        collectives.add_marks(steps)
    collectives.add_marks([mark(Moment.LEAVE, 3000)])
    assert set(collectives.due(3000, {})["end_ns"].tolist()) == {1090, 2090}


def test_of_a_process_that_calls_too_often_what_was_missed_is_not_told() -> None:
    collectives = Collectives()
    collectives.add(of(5, named(), *step_at(1000)))
    collectives.add(of(5, call(STEP_DROPPED, 1500, name_hash=3)))
    collectives.add(of(5, *step_at(2000)))
    collectives.add_marks([*step_marks(1000), *step_marks(2000), mark(Moment.LEAVE, 3000)])
    assert set(collectives.due(3000, {})["end_ns"].tolist()) == {2072}


def test_rows_of_many_steps_come_with_several_batches() -> None:
    collectives = Collectives()
    for at in range(1000, 801_000, 1000):
        collectives.add(of(5, *((named(),) if at == 1000 else ()), *step_at(at)))
        collectives.add_marks(step_marks(at))
    counts = [len(collectives.due(1_000_000, {})) for _ in range(3)]
    assert counts == [1000, 598, 0]


def test_a_script_may_say_what_it_likes() -> None:
    collectives = Collectives()
    collectives.add(of(5, named(), *step_at(1000), *step_at(2000)))
    times = (1, 1005, 900, 2500, 1 << 59, 7, 2600)
    moments = (Moment.STEP_START, Moment.STEP_END)
    collectives.add_marks([mark(moment, time_ns, source=Source.HOOK) for time_ns in times for moment in moments])
    collectives.add_marks([mark(Moment.LEAVE, 3000)])
    rows = collectives.due(3000, {})
    assert (rows["start_ns"] <= rows["end_ns"]).all()
    assert (rows["end_ns"] <= 3000).all()
