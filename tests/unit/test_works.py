# SPDX-License-Identifier: Apache-2.0
"""Which calls belong to which work, though addresses come again."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from netmon.dl.operations import ENDS, ROLES, WAITS, Works, by_process, in_order
from netmon.records import STEP, STEP_BEGIN, STEP_OVER, STEP_WAIT_BEGIN, STEP_WAIT_END, STEP_WORK_WAIT

KINDS = STEP_BEGIN, STEP_OVER, STEP_WAIT_BEGIN, STEP_WAIT_END, STEP_WORK_WAIT


@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from(KINDS)), max_size=40))
def test_a_call_is_of_the_last_work_that_was_begun_at_its_address(calls: list[tuple[int, int]]) -> None:
    work = np.array([address for address, _ in calls], np.uint64)
    kind = np.array([kind for _, kind in calls], np.uint8)
    works = Works(work, ROLES[kind])
    assert works.begun.tolist() == np.flatnonzero(kind == STEP_BEGIN).tolist()
    for place, begun in enumerate(works.begun.tolist()):
        later = [at for at in range(begun + 1, len(calls)) if calls[at][0] == calls[begun][0]]
        following = [at for at in later if kind[at] == STEP_BEGIN]
        assert works.again[place] == bool(following)
        own = [at for at in later if not following or at < following[0]]
        for found, kinds in ((works.over, ENDS), (works.awaited, WAITS)):
            assert found[place] == next((at for at in own if kinds[kind[at]]), -1)


def test_the_few_calls_of_one_process_do_not_hold_those_of_another() -> None:
    table = np.zeros(1_000, STEP)
    table["pid"], table["time_ns"] = np.where(np.arange(1_000) % 100, 7, 5), np.arange(1_000)
    few, many = by_process(in_order(table))
    assert (len(few), len(many)) == (10, 990)
    assert (np.diff(few["time_ns"].astype(int)) == 100).all()
    memory = few
    while isinstance(memory.base, np.ndarray):
        memory = memory.base
    assert memory.nbytes == 10 * STEP.itemsize
