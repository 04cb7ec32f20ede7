# SPDX-License-Identifier: Apache-2.0
"""Which jobs' steps explain what their ranks send: accounts of calls as libraries make them."""

import numpy as np
import pytest

from netmon.agent.steps import StepMarks
from netmon.dl.understanding import StepAccount, Understanding
from netmon.records import (
    LIBRARY_GLOO,
    LIBRARY_HOROVOD,
    LIBRARY_NCCL,
    LIBRARY_REDUCER,
    OF_ALL,
    OF_EACH,
    OF_ONE,
    STEP_ENQUEUE,
    STEP_TRANSFER,
    STEP_WAIT_BEGIN,
    STEP_WAIT_END,
    Moment,
    calls_of,
)

MS = 1_000_000
STEP_NS = 100 * MS
MB = 1_000_000
RANKS = 4


def call(kind, library, size, name=0):
    return kind, library, size << 4 | 1, name


def summed(size, library=LIBRARY_GLOO):
    return call(STEP_ENQUEUE, library, size)


def sent(size, library=LIBRARY_GLOO, of=OF_ALL):
    return call(STEP_TRANSFER, library, size, of)


def table(calls, begin_ns):
    return calls_of(
        [
            (begin_ns + row * MS, name, 1, kind, library, 1, size)
            for row, (kind, library, size, name) in enumerate(calls)
        ]
    )


def after(steps, before=(), step_bytes=0, each=STEP_NS):
    """The account after so many steps, each a list of calls, and what had been called before the first one."""
    account = StepAccount()
    account.add(table(before, 1), (), 0, RANKS)
    for number, calls in enumerate([*steps, []], 1):
        begin = number * each
        account.add(table(calls, begin), [begin], step_bytes, RANKS)
    return account


EXPLAINED = {
    "gradients": [summed(4 * MB)],
    "buffers sent by one": [sent(MB, of=OF_ONE), summed(4 * MB)],
    "metrics gathered": [summed(4 * MB), *[sent(1000, of=OF_EACH)] * 20],
    "several models": [summed(MB)] * 9,
    "gradients by way of Gloo": [summed(4 * MB, LIBRARY_REDUCER), summed(4 * MB)],
    "Horovod's hierarchy": [
        call(STEP_ENQUEUE, LIBRARY_HOROVOD, 0),
        sent(MB, LIBRARY_NCCL, OF_EACH),
        sent(MB, LIBRARY_NCCL, OF_EACH),
        summed(MB, LIBRARY_NCCL),
    ],
    "sizes that nobody tells": [call(STEP_ENQUEUE, LIBRARY_HOROVOD, 0), sent(5_000, LIBRARY_HOROVOD, OF_EACH)],
    "nothing": [],
}
UNEXPLAINED = {
    "parameters gathered": [sent(4 * MB), summed(4 * MB)],
    "parts gathered": [sent(MB, LIBRARY_NCCL, OF_EACH), summed(4 * MB, LIBRARY_NCCL)],
    "small parts gathered": [*[sent(1_200)] * 20, *[summed(1_200)] * 20],
    "activations beside gradients": [*[sent(100_000)] * 16, summed(MB)],
    "parameters sent by one": [summed(4 * MB), sent(4 * MB, of=OF_ONE)],
}


@pytest.mark.parametrize("calls", EXPLAINED.values(), ids=EXPLAINED)
def test_steps_that_explain_what_is_sent_are_understood(calls):
    assert after([calls] * 20).state is Understanding.UNDERSTOOD


@pytest.mark.parametrize("calls", UNEXPLAINED.values(), ids=UNEXPLAINED)
def test_steps_that_do_not_are_not(calls):
    assert after([calls] * 3).state is Understanding.NOT_UNDERSTOOD


def test_what_comes_now_and_then_changes_nothing():
    gradients, checkpoint = [summed(4 * MB)], [summed(4 * MB), sent(40 * MB)]
    account = after([*[gradients] * 5, checkpoint] * 5)
    assert account.state is Understanding.UNDERSTOOD


@pytest.mark.parametrize("of", [OF_ONE, OF_ALL])
def test_what_is_sent_before_the_first_step_is_no_evidence(of):
    account = after([[summed(4 * MB)]] * 2, before=[sent(100 * MB, of=of)] * 30)
    assert account.state is Understanding.UNDERSTOOD
    assert not account.waits


def test_without_any_step_it_takes_a_while():
    account = StepAccount()
    states = []
    for second in range(1, 13):
        account.add(table([sent(50_000)] * 4, second * 1000 * MS), (), 0, RANKS)
        states.append(account.state)
    assert states[0] is states[9] is Understanding.UNDECIDED
    assert states[-1] is Understanding.NOT_UNDERSTOOD
    assert account.waits  # steps may still come: a long evaluation before the training


def test_a_job_that_changes_for_good_is_understood_later():
    odd, plain = [sent(4 * MB), summed(4 * MB)], [summed(4 * MB)]
    assert after([*[odd] * 8, *[plain] * 6]).state is Understanding.NOT_UNDERSTOOD
    assert after([*[odd] * 8, *[plain] * 8]).state is Understanding.UNDERSTOOD
    assert after([*[plain] * 20, *[odd] * 8]).state is Understanding.NOT_UNDERSTOOD


def train(steps):
    """Marks of a rank that takes these steps: Horovod's, each after what else is called before it."""
    agent = StepMarks()
    told = {"pid": 1, "uid": 0, "job": "job", "rank": 0, "size": 2, "job_name": "", "trains": True, "late": False}
    told["probed"] = True
    marks = agent.ranks([told], 1)
    for number, others in enumerate(steps, 1):
        handed_over = [call(STEP_ENQUEUE, LIBRARY_HOROVOD, MB // 4, name) for name in range(1, 5)]
        waited = [call(kind, LIBRARY_HOROVOD, 0) for kind in (STEP_WAIT_BEGIN, STEP_WAIT_END)] * 4
        calls = [*(sent(MB, LIBRARY_HOROVOD, of) for of in others), *handed_over, *waited]
        marks += agent.steps(table(calls, number * STEP_NS))
    return [*marks, *agent.finish()]


def understood(marks):
    return [mark.iteration for mark in marks if mark.moment is Moment.JOIN]


def test_no_step_is_told_of_a_rank_that_is_not_understood():
    marks = train(np.random.default_rng(1).choice([OF_ALL, OF_EACH], (1000, 12)).tolist())
    assert understood(marks) == [Understanding.UNDERSTOOD, Understanding.UNDECIDED, Understanding.NOT_UNDERSTOOD]
    assert {mark.moment for mark in marks} == {Moment.JOIN, Moment.LEAVE}


def test_steps_that_sums_do_not_explain_are_known_by_all_calls():
    marks = train([[OF_ALL, OF_EACH]] * 30)
    assert understood(marks) == [Understanding.UNDERSTOOD, Understanding.UNDECIDED, Understanding.UNDERSTOOD]
    begun = [(mark.iteration, mark.time_ns) for mark in marks if mark.moment is Moment.FIRST_ENQUEUE]
    assert begun == [(number, (number + 1) * STEP_NS) for number in range(30)]


def test_steps_that_had_to_wait_are_told_once_they_are_understood():
    marks = train([[OF_ALL], *[[]] * 9])
    begun = [mark.iteration for mark in marks if mark.moment is Moment.FIRST_ENQUEUE]
    assert begun == list(range(10))
    assert train([[]] * 10)[1].moment is Moment.FIRST_ENQUEUE  # at once
