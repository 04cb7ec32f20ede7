# SPDX-License-Identifier: Apache-2.0
"""Why an iteration was slow: the causes are known here, and nobody may be accused of what he did not do."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netmon.dl.verdict import RankSteps, sentence, slowest
from netmon.records import Direction
from netmon.views import Cause, SlowIteration

MS = 1_000_000
RANKS, ITERATIONS, SLOW = 3, 20, 12
COMPUTING, EXPOSED, COMMUNICATION = 200, 100, 150  # ms, usual
GRADIENTS = 10_000_000  # bytes: 15 µs a kilobyte while they pass


class Run:
    """Tables (iterations, ranks): a job whose iterations are all alike, until one of them is changed."""

    def __init__(self, ranks=RANKS, iterations=ITERATIONS):
        shape = iterations, ranks
        self.computing, self.exposed = np.full(shape, COMPUTING), np.full(shape, EXPOSED)
        self.tx, self.rx = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        self.known = np.ones(shape, bool)
        self.who = "backup"

    def steps(self):
        number, rank = (index.ravel() for index in np.indices(self.rx.shape))
        unknown = ~self.known.ravel()
        communication = self.exposed.ravel() + COMMUNICATION - EXPOSED
        return RankSteps(
            *(number, rank, (self.computing + self.exposed).ravel() * MS),
            exposed_ns=np.where(unknown, -1, self.exposed.ravel() * MS),
            communication_ns=np.where(unknown, -1, communication * MS),
            dl_bytes=np.full(len(number), GRADIENTS),
            other=[self.who if met else "" for met in (self.rx + self.tx).ravel()],
            other_tx_bytes=self.tx.ravel(),
            other_rx_bytes=self.rx.ravel(),
            host=[f"h{r}" for r in rank],
        )

    def verdict(self):
        return slowest(self.steps())


def said(slow, job="resnet"):
    return sentence(job, slow).partition(": ")[2]


def test_the_sentence_an_engineer_wants():
    run = Run()
    run.exposed[SLOW] += 270
    run.rx[SLOW, 0] = 18_000_000
    slow = run.verdict()
    assert slow == SlowIteration(
        *(SLOW, 570 * MS, 300 * MS, Cause.CROSS, "backup", 18_000_000, Direction.RX, "h0", 0), transfer_ns=270 * MS
    )
    assert sentence("resnet", slow) == (
        "iteration 12 of job resnet took 1.9 × its median (300 ms): "
        "18 MB of backup entered h0 (rank 0) and held the transfer up by 270 ms"
    )
    run.who = "job bert"
    assert run.verdict().cause == Cause.OTHER_JOB


@pytest.mark.parametrize("met", [0, 47_100_000])
def test_an_evaluation_is_a_pause_whoever_was_there(met):
    """Between two steps all ranks validate for long; meanwhile another job sends as much as it likes."""
    run = Run()
    run.computing[SLOW] += 1500
    run.exposed[SLOW] += 30
    run.rx[SLOW, 1] = met
    slow = run.verdict()
    assert (slow.cause, slow.culprit, slow.pause_ns) == (Cause.PAUSE, "", 1500 * MS)
    assert said(slow) == "all ranks paused for 1.50 s; no network cause"


def test_a_straggler_is_named_and_those_that_waited_are_not():
    run = Run()
    run.computing[SLOW, 2] += 400
    run.exposed[SLOW, :2] += 400
    run.rx[SLOW, 0] = 100_000_000
    slow = run.verdict()
    assert (slow.cause, slow.rank, slow.host, slow.culprit, slow.late_ns) == (Cause.STRAGGLER, 2, "h2", "", 400 * MS)
    assert said(slow) == "rank 2 (h2) came 400 ms late; no network cause"


@pytest.mark.parametrize("usual", [0, 18_000_000])
def test_traffic_that_is_always_there_is_no_cause(usual):
    """Nor is what cannot have taken so long."""
    run = Run()
    run.exposed[SLOW] += 270
    run.tx[:, 0] = usual
    run.tx[SLOW, 0] += 2_000_000
    slow = run.verdict()
    assert (slow.cause, slow.transfer_ns) == (Cause.UNKNOWN, 270 * MS)
    moved = "20 MB" if usual else "2 MB"
    assert said(slow) == (
        f"the transfer took 270 ms longer, and the {moved} of backup left h0 (rank 0) cannot have taken so long"
    )


def test_a_slow_link_that_nobody_shares():
    run = Run()
    run.exposed[SLOW] += 270
    assert said(run.verdict()) == "the transfer took 270 ms longer, and no cross traffic met it"


def test_what_the_marks_do_not_tell_accuses_nobody():
    run = Run()
    run.exposed[SLOW] += 270
    run.rx[SLOW, 0] = 18_000_000
    run.known[SLOW, 1] = False
    slow = run.verdict()
    assert (slow.cause, slow.told) == (Cause.UNKNOWN, False)
    assert said(slow) == (
        "the cause is unknown, as the ranks' waiting is not told; meanwhile 18 MB of backup entered h0 (rank 0)"
    )


def test_a_rank_that_is_missing_may_have_been_the_one():
    run = Run()
    run.exposed[SLOW] += 270
    run.rx[SLOW, 0] = 18_000_000
    steps = run.steps()
    stay = ~((steps.number == SLOW) & (steps.rank == 2))
    cut = {name: np.array(column)[stay] for name, column in vars(steps).items()}
    assert slowest(RankSteps(**cut | {n: cut[n].tolist() for n in ("other", "host")})).cause == Cause.UNKNOWN


def test_two_causes_of_which_none_is_most_of_it():
    run = Run()
    run.exposed[SLOW] += 130
    run.computing[SLOW] += 130
    run.computing[SLOW, 1] += 20
    run.rx[SLOW, 0] = 1_000_000
    slow = run.verdict()
    assert slow.transfer_ns + slow.late_ns + slow.pause_ns <= slow.duration_ns - slow.median_ns
    assert slow.cause == Cause.UNKNOWN


def test_a_job_of_one_rank_has_no_straggler():
    run = Run(ranks=1)
    run.computing[SLOW] += 600
    assert said(run.verdict()) == "it computed 600 ms longer; no network cause"


def test_nothing_is_said_where_nothing_stands_out():
    assert Run().verdict() == SlowIteration()
    assert sentence("resnet", SlowIteration()) == ""
    few = Run(iterations=4)
    few.exposed[3] += 500
    assert few.verdict() == SlowIteration()
    assert sentence("resnet", SlowIteration(3, 2 * MS, MS), relative=True).startswith("iteration ~3 of job resnet took")


excesses = st.lists(st.integers(-50, 3000), min_size=RANKS, max_size=RANKS)


@given(excesses, excesses, st.lists(st.integers(0, 10**9), min_size=RANKS, max_size=RANKS))
def test_shares_are_parts_of_the_excess_and_traffic_answers_only_for_the_transfer(computed, waited, met):
    run = Run()
    run.computing[SLOW] += computed
    run.exposed[SLOW] += waited
    run.rx[SLOW] = met
    slow = run.verdict()
    if slow.iteration < 0:
        return
    excess = slow.duration_ns - slow.median_ns
    assert min(slow.transfer_ns, slow.late_ns, slow.pause_ns) >= 0
    assert slow.transfer_ns + slow.late_ns + slow.pause_ns <= excess
    if slow.cause in (Cause.CROSS, Cause.OTHER_JOB):
        assert min(waited) * MS >= excess / 2
        assert slow.culprit_bytes > 0
    if slow.cause in (Cause.PAUSE, Cause.STRAGGLER):
        assert not slow.culprit
