# SPDX-License-Identifier: Apache-2.0
"""What a rank is in the midst of, by its calls."""

import numpy as np

from netmon.dl.operations import Operation
from netmon.dl.rank_activity import (
    HOROVOD,
    OPEN,
    OVER,
    QUIET_NS,
    UNNAMED,
    WAITED,
    RankActivity,
)
from netmon.evidence import UNKNOWN
from netmon.records import (
    LIBRARY_GLOO,
    LIBRARY_HOROVOD,
    LIBRARY_REDUCER,
    OF_EACH,
    STEP,
    STEP_BEGIN,
    STEP_ENQUEUE,
    STEP_GROUP,
    STEP_GROUP_NAME,
    STEP_OVER,
    STEP_TRANSFER,
    STEP_WAIT_BEGIN,
    STEP_WAIT_END,
    STEP_WORK_WAIT,
    Table,
)

ALL_REDUCE, RECEIVE, SEND = Operation.ALL_REDUCE, Operation.RECEIVE, Operation.SEND

BARRIER, GROUP, CONTEXT, NAME = 15, 0x1000, 0x2000, 0xB19E
SIZE = 4


def call(kind: int, time_ns: int, **known: int) -> Table:
    one = np.zeros(1, STEP)
    one["kind"], one["time_ns"], one["library"] = kind, time_ns, LIBRARY_GLOO
    for name, value in known.items():
        one[name] = value
    return one


def begin(work: int, time_ns: int, sequence: int, group: int = CONTEXT + 8, operation: int = ALL_REDUCE) -> Table:
    about = {"sequence": sequence, "name_hash": group, "tensors": operation, "size": 1000 << 4 | 4}
    return call(STEP_BEGIN, time_ns, work=work, group_rank=1, group_size=SIZE, **about)


def named(time_ns: int = 1) -> Table:
    """A group and its context are made, and called so."""
    made = [call(STEP_GROUP, time_ns, name_hash=at, group_rank=1, group_size=SIZE) for at in (GROUP, CONTEXT)]
    return np.concatenate([*made, call(STEP_GROUP_NAME, time_ns, name_hash=NAME)])


def activity(*calls: Table) -> RankActivity:
    found = RankActivity()
    for one in calls:
        found.add(one)
    return found


def test_what_is_begun_is_open_until_it_is_over_and_waited_for_by_a_thread() -> None:
    found = activity(named(), begin(7, 10, 1))
    (work,) = found.works(1, SIZE)
    assert work == (NAME, 1, SIZE, ALL_REDUCE, 1, 1, UNKNOWN, 4000, 10, OPEN)
    found.add(call(STEP_WAIT_BEGIN, 11, work=7))
    assert [work.state for work in found.works(1, SIZE)] == [WAITED]
    found.add(call(STEP_WAIT_END, 12, work=7))
    assert [work.state for work in found.works(1, SIZE)] == [OVER]
    assert found.groups(1, SIZE) == {NAME}


def test_a_wait_that_begins_when_it_is_over_is_none() -> None:
    found = activity(named(), begin(7, 10, 1), call(STEP_WAIT_END, 11, work=7), call(STEP_WAIT_BEGIN, 12, work=7))
    assert [work.state for work in found.works(1, SIZE)] == [OVER]


def test_an_address_that_is_used_again_is_another_work() -> None:
    found = activity(named(), begin(7, 10, 1), call(STEP_WAIT_BEGIN, 11, work=7), begin(7, 12, 2, operation=BARRIER))
    (work,) = found.works(1, SIZE)
    assert (work.operation, work.sequence, work.state) == (BARRIER, 2, OPEN)


def test_transfers_count_in_the_sequence_and_not_in_the_position() -> None:
    send = begin(9, 11, 2, group=GROUP, operation=SEND)  # to rank 2
    waits = call(STEP_WORK_WAIT, 12, work=9)
    found = activity(named(), begin(7, 10, 1), call(STEP_WAIT_END, 10, work=7), send, waits)
    first, last = found.works(1, SIZE)
    assert (first.operation, first.peer, first.group, first.sequence, first.state) == (SEND, 2, NAME, UNKNOWN, WAITED)
    assert (last.sequence, last.position, last.state) == (1, 1, OVER)
    found.add(call(STEP_OVER, 13, work=9))
    found.add(begin(7, 14, 3))
    assert [(work.sequence, work.position) for work in found.works(1, SIZE)] == [(3, 2)]


def test_a_group_that_was_made_before_is_the_one_of_all_ranks_or_nobody_knows() -> None:
    found = activity(begin(7, 10, 5), begin(8, 11, 2, group=0x99))
    assert [work.group for work in found.works(1, SIZE)] == [UNNAMED, UNNAMED]
    assert found.works(1, SIZE + 1) == []
    receive = begin(9, 12, 3, group=0x77, operation=RECEIVE)
    found.add(receive)
    works = found.works(1, SIZE)
    assert {work.position for work in works} == {UNKNOWN}  # how many transfers there were before nobody knows


def test_ddp_waits_for_all_that_it_has_begun() -> None:
    finalize = call(STEP_WAIT_BEGIN, 12, library=LIBRARY_REDUCER)
    found = activity(named(), begin(7, 10, 1), begin(8, 11, 2), finalize)
    assert [(work.sequence, work.state) for work in found.works(1, SIZE)] == [(1, WAITED), (2, WAITED)]
    found.add(call(STEP_WAIT_END, 13, work=7))
    assert [(work.sequence, work.state) for work in found.works(1, SIZE)] == [(2, WAITED)]


def test_horovod_waits_until_it_does_not() -> None:
    found = activity(call(STEP_ENQUEUE, 9, library=LIBRARY_HOROVOD), call(STEP_WAIT_BEGIN, 10, library=LIBRARY_HOROVOD))
    (work,) = found.works(1, SIZE)
    assert (work.group, work.group_rank, work.begun_ns, work.state) == (HOROVOD, 1, 10, WAITED)
    found.add(call(STEP_WAIT_END, 11, library=LIBRARY_HOROVOD))
    assert found.works(1, SIZE) == []


def test_horovod_waits_for_what_was_called_last() -> None:
    found = activity(
        call(STEP_ENQUEUE, 8, library=LIBRARY_HOROVOD),
        call(STEP_TRANSFER, 9, library=LIBRARY_HOROVOD, name_hash=OF_EACH),
        call(STEP_WAIT_BEGIN, 10, library=LIBRARY_HOROVOD),
        call(STEP_ENQUEUE, 11, library=LIBRARY_HOROVOD),
    )
    assert [work.operation for work in found.works(1, SIZE)] == [Operation.ALL_GATHER]
    found.add(call(STEP_WAIT_BEGIN, 12, library=LIBRARY_HOROVOD))
    assert [work.operation for work in found.works(1, SIZE)] == [Operation.ALL_REDUCE]


def test_pauses() -> None:
    found = activity(call(STEP_ENQUEUE, 10), call(STEP_ENQUEUE, 20), call(STEP_ENQUEUE, 30 + QUIET_NS))
    assert (found.rested, found.last_ns) == ((20, 30 + QUIET_NS), 30 + QUIET_NS)


def test_where_calls_have_been_missed_nobody_knows_what_is_open() -> None:
    found = activity(named(), begin(7, 10, 1))
    found.forget()
    assert found.works(1, SIZE) == []
    found.add(begin(7, 11, 9))
    assert [work.position for work in found.works(1, SIZE)] == [UNKNOWN]


def test_however_much_is_called_little_is_kept() -> None:
    found = activity(named())
    for number in range(3_000):
        found.add(begin(number + 1, 10 * number + 10, number + 1))
        found.add(call(STEP_WAIT_BEGIN, 10 * number + 11, work=number + 1))
        if number % 3:
            found.add(call(STEP_WAIT_END, 10 * number + 12, work=number + 1))
    works = found.works(1, SIZE)
    assert len(works) < 50
    assert sum(map(len, found._calls)) < 5_000
    assert len(found._open) <= 256
