# SPDX-License-Identifier: Apache-2.0
"""A job that changes its own pace, as with another batch size, is told of once, and measured by what it is then."""

import numpy as np
import pytest
from iteration_tables import iteration_rows

from collector.judging.job_steps import JobSteps
from netmon.dl.iterations import Iteration
from netmon.dl.verdict import Steps, judge, no_link_totals, sentence, standing_out
from netmon.dl.verdict.baseline import LASTS, changes
from netmon.records import Moment, Source
from netmon.views import Cause

MS = 1_000_000
ITERATIONS, RANKS, AT = 120, 3, 50


def steps(computed, transfer=100.0):
    """computed, transfer: ms, (iterations, ranks)."""
    computed, transfer = (np.broadcast_to(np.asarray(one, float), (ITERATIONS, RANKS)) for one in (computed, transfer))
    arrived = computed.max(axis=1, keepdims=True)  # the others wait for the last one
    exposed = arrived - computed + transfer
    number, rank = np.divmod(np.arange(ITERATIONS * RANKS), RANKS)
    start = number * 10_000 * MS
    first, last = (start + (one.ravel() * MS).astype(np.int64) for one in (computed, computed + exposed))
    error, shared = np.full(len(rank), 2_000), np.zeros(len(rank), np.bool_)
    return Steps(
        *(number, rank, start, last, first, last, last - first, error, shared, rank),
        hosts=["h0", "h1", "h2"],
        size=RANKS,
    )


def noisy(seed=1):
    return np.random.default_rng(seed).normal(200, 6, (ITERATIONS, RANKS))


@pytest.mark.parametrize("factor", [1.5, 0.6])
def test_a_changed_batch_size_is_one_change(factor):
    computed = noisy()
    computed[AT:] *= factor
    told_of = steps(computed)
    assert standing_out(told_of) == [AT]
    verdict = judge("train", told_of, no_link_totals(), AT)
    assert verdict.cause is Cause.CHANGE
    assert verdict.duration_ns / verdict.baseline_ns == pytest.approx((200 * factor + 100) / 300, rel=0.1)
    assert f"since {AT}: every rank computes {'longer' if factor > 1 else 'less'}" in sentence(verdict)
    later = judge("train", told_of, no_link_totals(), AT + 20)
    assert later.baseline_ns == pytest.approx((200 * factor + 100) * MS, rel=0.1)


def test_one_change_after_the_other_each_is_told():
    computed = noisy()
    computed[30:60] *= 1.5
    computed[60:] *= 2.5
    assert standing_out(steps(computed)) == [30, 60]


def test_a_change_that_does_not_begin_evenly_begins_with_its_first_iteration():
    computed = noisy()
    computed[AT:] *= 1.5
    computed[AT + 1] *= 1.6
    assert standing_out(steps(computed))[0] == AT


def test_a_change_on_a_busy_machine_is_one():
    """Recorded: medians over the ranks of what they computed, in ms."""
    computed = noisy()
    computed[AT : AT + 5] = np.array([131, 144, 164, 140, 153])[:, None]
    computed[:AT] *= 1.22
    computed[AT + 5 :] *= 0.75
    assert standing_out(steps(computed))[0] == AT


@pytest.mark.parametrize("rank", [slice(None), 1])
def test_pauses_are_no_change_nor_is_a_rank_that_stays_late(rank):
    computed = noisy()
    slow = slice(AT, AT + (LASTS - 1 if rank == slice(None) else 40))
    computed[slow, rank] += 200
    found = standing_out(steps(computed))
    assert found[: LASTS - 1] == list(range(AT, AT + LASTS - 1))
    assert {judge("train", steps(computed), no_link_totals(), one).cause for one in found} <= {
        Cause.PAUSE,
        Cause.STRAGGLER,
    }


def test_traffic_for_many_iterations_is_no_change():
    transfer = np.full((ITERATIONS, RANKS), 100.0)
    transfer[AT : AT + 40] += 200
    assert standing_out(steps(noisy(), transfer)) == list(range(AT, AT + 40))


def test_where_computing_is_not_known_there_is_no_change():
    computed = np.full((ITERATIONS, RANKS), np.nan)
    assert changes(computed, np.full(ITERATIONS, 1.0)) == []


def told(job, numbers, computed_ms=80):
    """What a collector's job says is to be judged; 20 ms of an iteration are waited for."""
    found = []
    for number in numbers:
        for rank in (0, 1):
            start, wait = number * 1000 * MS, int((number * 1000 + computed_ms) * MS)
            bounds = start, wait + 20 * MS, Moment.STEP_START, Moment.STEP_END
            waits = wait, wait + 20 * MS, wait
            one = Iteration("job", rank, 2, number, *bounds, Source.HOOK, 2_000, False, 0, *waits)
            found += job.add({rank: f"h{rank}"}, iteration_rows([(rank, one)]))
    return found


@pytest.mark.parametrize("factor", [1.5, 0.6])
def test_while_it_happens_a_change_is_found_within_some_iterations(factor):
    job = JobSteps()
    assert told(job, range(AT)) == []
    found = told(job, range(AT, AT + LASTS), 80 * factor)
    assert set(found) == ({*range(AT, AT + LASTS)} if factor > 1 else {AT})
    assert not any(job.may_change(number) for number in range(AT + LASTS))
    assert told(job, range(AT + LASTS, AT + 60), 80 * factor) == []
    assert told(job, [AT + 60], 110 * factor) == [AT + 60]


def test_what_may_be_the_beginning_of_a_change_waits_until_that_is_known():
    job = JobSteps()
    told(job, range(AT))
    told(job, [AT], 140)
    assert job.may_change(AT)
    told(job, [AT + 1])
    assert not job.may_change(AT)
