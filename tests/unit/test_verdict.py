# SPDX-License-Identifier: Apache-2.0
"""Why an iteration was slow: the causes are known here, and nobody may be accused of what he did not do."""

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.flushing import verdict_table
from netmon.dl.verdict import (
    CELL_NS,
    Link,
    LinkTotals,
    Steps,
    Whose,
    judge,
    judge_input,
    matrix,
    no_link_totals,
    sentence,
    standing_out,
    verdict_on,
    worth_reporting,
)
from netmon.dl.verdict.evidence import LINK_TOTAL, in_cells
from netmon.dl.verdict.host_part import WAITED
from netmon.dl.verdict.verdict_text import arithmetic, columns, from_columns
from netmon.records import Direction
from netmon.views import ABOUT, CAUSES, NETWORK, SHARES, Cause, RankTimes, Verdict

MS, CELLS = 1_000_000, 1_000_000 // CELL_NS  # ns, and cells, of a millisecond
RANKS, ITERATIONS, SLOW = 3, 20, 12
COMPUTING, TRANSFER = 200, 100  # ms, usual
PACE = 31_250  # bytes of a cell: 1 Gbit/s
BEGIN = 1_790_000_000 * 1000 * MS
LINKS = [Link(f"h{rank}", "eth0", way, 10**9) for rank in range(RANKS) for way in Direction]
JOB = [Whose("resnet", rank, (rank + 1) % RANKS, False, "") for rank in range(RANKS)]
FROM = [Whose("resnet", rank, (rank - 1) % RANKS, False, "") for rank in range(RANKS)]


class Run:
    """A ring whose iterations are all alike, until one of them is changed. It sends at full pace, cell by cell."""

    def __init__(self):
        self.who = Whose("", -1, -1, False, "backup")
        self.slow = {SLOW}  # and others that are like it
        self.late = dict.fromkeys(range(RANKS), 0)  # ms that a rank computes longer in SLOW
        self.busy = dict.fromkeys(range(RANKS), 0)  # ms that a rank does not wait in the transfer in SLOW
        self.baseline_paces = [1.0] * (TRANSFER * CELLS)  # of the transfer, as shares of PACE
        self.paces = self.baseline_paces.copy()  # the same in SLOW
        self.paces_of = {}  # the same in other iterations
        self.sent, self.everywhere = [], False  # (link, cell of the transfer, bytes) of others in SLOW, or in all
        self.dropped = {}  # cells of the transfer in SLOW: bytes that rank 0 sent in vain
        self.quiet_before = (0, 0)  # a rank that sends nothing for so many ms before the stop
        self.first = None  # the rank that goes on first after a stop; None: all do
        self.in_pieces = False  # every rank sends ten milliseconds, then waits for two
        self.marks = True
        self.after = 0  # ms, from the transfer's end to the iteration's
        self.under_way = 0  # bytes that rank 0 sends then, and that arrive later
        self.bucket_ms = 0  # width of the rows, if they are coarser than cells
        self.waited = None
        self.said = None  # dtype SAID; of: rank 1's control connection to rank 0 is the last of those that are known
        self.shared = False

    def judged(self, number=SLOW, carried=True):
        steps, cells = [], []
        for iteration in range(ITERATIONS):
            start = BEGIN + iteration * 2_000 * MS
            slow = iteration in self.slow
            late = [self.late[rank] if slow else 0 for rank in range(RANKS)]
            paces = np.array(self.paces if slow else self.paces_of.get(iteration, self.baseline_paces))
            paces = np.concatenate([paces, np.ones(max(0, round(TRANSFER * CELLS - paces.sum())))])
            there = start + (COMPUTING + max(late)) * MS
            for rank in range(RANKS):
                arrived = start + (COMPUTING + late[rank]) * MS
                end = there + len(paces) * CELL_NS
                known = (arrived, end, end - arrived - slow * self.busy[rank] * MS) if self.marks else (0, 0, -1)
                steps.append((iteration, rank, start, end + self.after * MS, *known, 2_000, slow and self.shared, rank))
            first = there // CELL_NS
            for cell, pace in enumerate(paces):
                for rank in range(RANKS):
                    waits = slow and self.first is not None and self.lacks(rank, cell, paces)
                    waits = waits or (slow and self.is_quiet(rank, cell, paces))
                    between = self.in_pieces and cell % (12 * CELLS) < 2 * CELLS
                    if pace and not waits and not between:
                        amount = int(PACE * pace)
                        lost = self.dropped.get(cell, 0) if slow and rank == 0 else 0
                        cells.append((2 * rank + 1, rank, first + cell, amount + lost, amount + lost))
                        cells.append(
                            (2 * ((rank + 1) % RANKS), RANKS + (rank + 1) % RANKS, first + cell, amount, amount)
                        )
            if slow and self.under_way:
                cells.append((1, 0, first + len(paces) + 2 * CELLS, self.under_way, self.under_way))
            if slow or self.everywhere:
                cells += [(link, 2 * RANKS, first + cell, size, size) for link, cell, size in self.sent]
        names = ("number", "rank", "start_ns", "end_ns", "comm_start_ns", "comm_end_ns", "exposed_ns", "error_ns")
        table = dict(zip((*names, "shared", "host"), np.array(steps).T, strict=True))
        table["shared"] = table["shared"].astype(bool)
        told = Steps(**table, hosts=[f"h{rank}" for rank in range(RANKS)], size=RANKS)
        rows = np.array(cells, dtype=LINK_TOTAL)
        whose = [*JOB, *FROM, self.who, Whose("resnet", 1, 0, True, "")]
        kept = LinkTotals(LINKS, whose, rows, 100_000, self.waited, self.said) if carried else no_link_totals()
        return judge("resnet", told, self.coarser(kept) if self.bucket_ms else kept, number)

    def coarser(self, kept):
        """The same, as rows of wider buckets have it."""
        width, rows = self.bucket_ms * MS, kept.rows
        begin, widths = rows["cell"] * CELL_NS // width * width, np.full(len(rows), width)
        wide = in_cells(rows["link"], rows["of"], begin, widths, rows["wire_bytes"], rows["payload_bytes"])
        return replace(kept, rows=wide, width_ns=width)

    def lacks(self, rank, cell, paces):
        """Whether a rank cannot send: one that has stopped already, another that still waits for it."""
        quiet = np.flatnonzero(paces == 0)
        if rank == self.first:
            return quiet[0] - 24 * CELLS <= cell < quiet[0]
        pieces = 15 if rank == (self.first + 1) % RANKS else 27
        return quiet[-1] < cell <= quiet[-1] + pieces * CELLS

    def is_quiet(self, rank, cell, paces):
        """Whether a rank has sent its last before the stop."""
        quiet = np.flatnonzero(paces == 0)
        which, ms = self.quiet_before
        return bool(ms and len(quiet) and rank == which and quiet[0] - ms * CELLS <= cell < quiet[0])

    def beside(self, link, share=0.8, from_ms=0, for_ms=150):
        """Somebody fills a link in some milliseconds of the transfer; gradients get what is left, or half."""
        self.shared = True
        some = range(from_ms * CELLS, (from_ms + for_ms) * CELLS)
        self.paces += [1.0] * (some.stop - len(self.paces))
        for cell in some:
            self.paces[cell] = 1.0 - share
            self.sent.append((link, cell, int(PACE * share)))

    def stopped(self, from_ms, for_ms):
        """Nobody sends for so long."""
        self.paces[from_ms * CELLS : from_ms * CELLS] = [0.0] * (for_ms * CELLS)


def shares(verdict):
    return {name: getattr(verdict, f"{name}_ns") for name in SHARES if getattr(verdict, f"{name}_ns")}


def test_a_transfer_in_which_ranks_compute_is_held_up_for_as_long_as_one_in_which_they_do_not():
    run = Run()
    run.baseline_paces = [1.0] * (20 * CELLS) + [0.0] * (80 * CELLS)
    run.paces = [*run.baseline_paces]
    run.beside(0, from_ms=100)
    verdict = run.judged()
    assert (verdict.cause, verdict.host) == (Cause.CROSS, "h0")
    assert verdict.excess_ns == 120 * MS
    assert verdict.cross_ns == pytest.approx(120 * MS, rel=0.02)


def test_more_to_transfer_takes_what_as_many_bytes_take_in_other_iterations():
    run = Run()
    run.paces_of = {number: [1.0] * ((60 + 20 * (number % 5)) * CELLS) for number in range(ITERATIONS)}
    run.paces = [1.0] * (180 * CELLS)
    run.stopped(90, 70)
    verdict = run.judged()
    assert verdict.excess_ns == 150 * MS
    assert verdict.transfer_ns == pytest.approx(80 * MS, rel=0.1)
    assert "there was more to transfer" in sentence(verdict)


def test_the_sentence_an_engineer_wants():
    run = Run()
    run.beside(0)
    verdict = run.judged()
    assert (verdict.cause, verdict.culprit, verdict.host, verdict.direction) == (
        Cause.CROSS,
        "backup",
        "h0",
        Direction.RX,
    )
    assert (verdict.rank, verdict.baseline_ns, verdict.excess_ns) == (0, 300 * MS, 120 * MS)
    assert verdict.bytes == pytest.approx(0.8 * 150 * CELLS * PACE, rel=0.01)
    assert verdict.cross_ns == pytest.approx(120 * MS, rel=0.02)
    assert verdict.counterfactual_low_ns <= 300 * MS <= verdict.counterfactual_high_ns
    assert verdict.confidence > 0.9
    assert sentence(verdict).startswith(
        "iteration 12 of job resnet took 1.4 × its usual 300 ms because "
        "15 MB of backup entered h0 (rank 0) and held the transfer up by 1"
    )
    assert "without it, it would have taken 30" in sentence(verdict)
    assert any("100%" in line for line in arithmetic(verdict))
    run.who = Whose("bert", 0, -1, False, "")
    assert (run.judged().cause, run.judged().culprit) == (Cause.OTHER_JOB, "job bert")
    run.who = Whose("", -1, -1, False, "")
    assert (run.judged().cause, run.judged().culprit) == (Cause.CROSS, "unclassified")


@pytest.mark.parametrize("link", range(2 * RANKS))
def test_the_link_is_named_on_which_they_met(link):
    run = Run()
    run.beside(link)
    verdict = run.judged()
    assert (verdict.host, verdict.direction) == (LINKS[link].host, LINKS[link].direction)


def test_traffic_that_was_merely_present_is_no_cause():
    """All ranks stop in the midst of a transfer, while somebody sends as much as before."""
    run = Run()
    run.stopped(30, 200)
    run.sent = [(0, cell, PACE // 10) for cell in range(300 * CELLS)]
    run.shared = True
    verdict = run.judged()
    assert (verdict.cause, verdict.culprit) == (Cause.UNKNOWN, "")
    assert verdict.unknown_ns == pytest.approx(200 * MS, rel=0.02)


def test_an_evaluation_is_a_pause_whoever_was_there():
    run = Run()
    run.late = dict.fromkeys(range(RANKS), 1500)
    run.sent = [(0, cell, PACE // 2) for cell in range(-1000 * CELLS, 0)]
    verdict = run.judged()
    assert (verdict.cause, verdict.culprit, verdict.pause_ns) == (Cause.PAUSE, "", 1500 * MS)


def test_a_rank_that_comes_late_is_named_and_those_that_waited_are_not():
    run = Run()
    run.late[2] = 400
    run.sent = [(0, cell, PACE // 2) for cell in range(-400 * CELLS, 0)]
    verdict = run.judged()
    assert (verdict.cause, verdict.rank, verdict.host) == (Cause.STRAGGLER, 2, "h2")
    assert verdict.late_ns == pytest.approx(400 * MS, abs=MS)
    assert "rank 2 (h2) was 400 ms late" in sentence(verdict)


def waiting_steps(late: np.ndarray, transfer: np.ndarray) -> Steps:
    """Whose ranks come so much late (ms; iterations, ranks) to transfers that take so long, and wait in them only."""
    start = BEGIN + np.arange(ITERATIONS) * 2_000 * MS
    there = COMPUTING + late.max(axis=1)
    end = [start[step] + int((there[step] + transfer[step]) * MS) for step in range(ITERATIONS)]
    rows = [
        (step, rank, start[step], end[step], start[step] + int((COMPUTING + late[step, rank]) * MS), end[step])
        for step in range(ITERATIONS)
        for rank in range(RANKS)
    ]
    columns_of = np.array(rows, np.int64).T
    return Steps(
        *columns_of[:4],
        comm_start_ns=columns_of[4],
        comm_end_ns=columns_of[5],
        exposed_ns=columns_of[5] - columns_of[4],
        error_ns=np.full(len(rows), 2_000),
        shared=np.zeros(len(rows), bool),
        host=columns_of[1],
        hosts=[f"h{rank}" for rank in range(RANKS)],
        size=RANKS,
    )


@pytest.mark.parametrize(("waits", "told"), [(1.0, True), (2.0, False)])
def test_a_late_rank_is_told_of_however_much_transfers_differ_if_it_hardly_does_itself(waits, told):
    random = np.random.default_rng(1)
    transfer, late = random.uniform(60, 340, ITERATIONS), np.zeros((ITERATIONS, RANKS))
    transfer[SLOW], late[SLOW, 1] = 200, 260
    late += (waits - 1) * random.uniform(0, 300, (ITERATIONS, RANKS))  # each comes when it likes
    steps = waiting_steps(late, transfer)
    one = judge_input("resnet", matrix(steps), no_link_totals(), SLOW)
    verdict = verdict_on(one, steps)
    assert (verdict.cause, verdict.rank) == (Cause.STRAGGLER, 1)
    assert worth_reporting(one, replace(verdict, confidence=0.9)) == told


@pytest.mark.parametrize(("together", "told"), [(False, True), (True, False)])
def test_a_pause_is_told_of_however_much_one_of_the_ranks_differs_if_they_hardly_do_together(together, told):
    random = np.random.default_rng(1)
    transfer, late = random.uniform(60, 340, ITERATIONS), np.zeros((ITERATIONS, RANKS))
    transfer[SLOW], late[SLOW] = 200, 260
    late[:, 0 if together else 2 :] += random.uniform(0, 150, (ITERATIONS, 1))
    steps = waiting_steps(late, transfer)
    one = judge_input("resnet", matrix(steps), no_link_totals(), SLOW)
    verdict = replace(verdict_on(one, steps), cause=Cause.PAUSE, confidence=0.9)
    assert worth_reporting(one, verdict) == told


@pytest.mark.parametrize(("throttled_ms", "always", "told"), [(80, False, True), (30, False, False), (80, True, False)])
def test_a_rank_that_a_quota_throttled_is_told_of_however_much_iterations_differ(throttled_ms, always, told):
    number, zeros = np.arange(20), np.zeros(20, np.int64)
    took = np.where(number == SLOW, 240, np.random.default_rng(1).uniform(100, 180, 20)) * MS
    start = BEGIN + number * 1_000 * MS
    steps = Steps(
        *(number, zeros, start, start + took.astype(np.int64)),
        **{name: zeros - (name == "exposed_ns") for name in ("comm_start_ns", "comm_end_ns", "exposed_ns", "error_ns")},
        **{"shared": zeros > 0, "host": zeros, "hosts": ["h0"], "size": 1},
    )
    waited = np.zeros(200, WAITED)
    waited["start_ns"] = BEGIN + np.arange(200) * 100 * MS
    waited["end_ns"] = waited["start_ns"] + 100 * MS
    waited["throttled_ns"][range(0, 200, 10) if always else [10 * SLOW]] = throttled_ms * MS
    one = judge_input("resnet", matrix(steps), replace(no_link_totals(), waited=waited), SLOW)
    verdict = replace(verdict_on(one, steps), cause=Cause.HOST, rank=0, confidence=0.9)
    assert worth_reporting(one, verdict) == told


def plain_steps(count: int, exposed_ms: Callable[[int], int] = lambda _: -1) -> Steps:
    """Of one rank: what they took, and for how long it only waited; −1: not known."""
    number = np.arange(count)
    start, zeros = BEGIN + number * 1_000 * MS, np.zeros(count, np.int64)
    took = np.where(number == SLOW, 140, 100) * MS
    exposed = [MS * known if (known := exposed_ms(step)) >= 0 else -1 for step in number.tolist()]
    return Steps(
        *(number, zeros, start, start + took, zeros, zeros, np.array(exposed, np.int64), zeros),
        **{"shared": zeros > 0, "host": zeros, "hosts": ["h0"], "size": 1},
    )


def test_a_pause_is_in_the_same_iteration_of_a_rank_that_alone_is_seen_to_wait():
    """Rank 1 waits for its GPU in each step, and by that its iterations end before the pauses that come after steps."""
    begun = BEGIN + np.cumsum([0] + [400 * MS if step == SLOW else 100 * MS for step in range(21)])
    over, rows = begun + 80 * MS, []
    for step in range(1, 20):
        rows.append((step, 0, begun[step], begun[step + 1], begun[step], 0, -1, 0))
        rows.append((step, 1, over[step - 1], over[step], begun[step], over[step], 50 * MS, 0))
    host = np.array([row[1] for row in rows])
    steps = Steps(*np.array(rows).T, shared=host < 0, host=host, hosts=["h0", "h1"], size=2)
    table = matrix(steps)
    took = (table.duration[:-1] / MS).round().astype(int)
    assert took.tolist() == [2 * [400 if step == SLOW else 100] for step in range(1, 19)]
    assert np.isnan(table.duration[-1, 1])  # where it ends is not known yet
    verdict = verdict_on(judge_input("resnet", table, no_link_totals(), SLOW), steps)
    assert (verdict.cause, verdict.excess_ns) == (Cause.UNKNOWN, 300 * MS)


@pytest.mark.parametrize(("confidence", "told"), [(0.6, True), (0.4, False)])
def test_lost_packets_that_explain_little_are_not_told_of(confidence, told):
    steps = plain_steps(20)
    one = judge_input("resnet", matrix(steps), no_link_totals(), SLOW)
    verdict = replace(verdict_on(one, steps), cause=Cause.LOSS, confidence=confidence)
    assert worth_reporting(one, verdict) == told


@pytest.mark.parametrize(
    ("received_mb", "transfer_ms", "told"), [(7, 0, True), (13, 0, False), (-1, 0, True), (7, 50, False), (7, 40, True)]
)
def test_the_network_is_not_accused_of_what_more_bytes_take(received_mb, transfer_ms, told):
    steps = plain_steps(20)
    received = 1_000_000 * (5 + steps.number % 5)  # 10 ns each
    took = np.where(steps.number == SLOW, 140 * MS, 10 * MS + 10 * received)
    received[SLOW] = 1_000_000 * received_mb
    steps = replace(steps, end_ns=steps.start_ns + took, received_bytes=np.where(received < 0, -1, received))
    one = judge_input("resnet", matrix(steps), no_link_totals(), SLOW)
    verdict = replace(verdict_on(one, steps), cause=Cause.LOSS, confidence=0.9, transfer_ns=transfer_ms * MS)
    assert worth_reporting(one, verdict) == told


def test_what_is_compared_with_nothing_is_not_told_of():
    steps = plain_steps(3)
    one = judge_input("resnet", matrix(steps), no_link_totals(), 2)
    assert not worth_reporting(one, verdict_on(one, steps))


@pytest.mark.parametrize(("known", "cause"), [(1, Cause.UNKNOWN), (4, Cause.COMPUTE)])
def test_one_step_of_which_it_is_known_what_its_rank_waited_is_no_measure(known, cause):
    steps = plain_steps(20, lambda step: 50 if step >= SLOW - known else -1)
    assert verdict_on(judge_input("resnet", matrix(steps), no_link_totals(), SLOW), steps).cause == cause


def test_two_causes_are_both_told_with_their_shares():
    run = Run()
    run.late[1] = 150
    run.beside(0)
    verdict = run.judged()
    assert (verdict.cause, verdict.rank) == (Cause.STRAGGLER, 1)
    assert (verdict.second_cause, verdict.second_culprit) == (Cause.CROSS, "backup")
    assert verdict.late_ns == pytest.approx(150 * MS, rel=0.02)
    assert verdict.cross_ns == pytest.approx(120 * MS, rel=0.02)
    assert "; also the transfer was held up by traffic that is no training (backup), 1" in sentence(verdict)


def test_a_slow_link_that_nobody_shares():
    run = Run()
    run.paces = [0.4] * (TRANSFER * CELLS * 5 // 2)
    verdict = run.judged()
    assert (verdict.cause, verdict.culprit) == (Cause.SLOW_LINK, "")
    assert verdict.slow_link_ns == pytest.approx(150 * MS, rel=0.02)


@pytest.mark.parametrize("late_ms", [30, 80, 200])
def test_the_link_of_a_rank_that_did_something_else_for_longer_is_not_accused(late_ms):
    """It sends more slowly by that, too; somebody else's being late says nothing of it."""
    run = Run()
    run.paces = [0.4] * (TRANSFER * CELLS * 5 // 2)
    slow = run.judged().rank
    run.late[slow] = late_ms
    found = run.judged()
    assert found.network == (late_ms < 150 / 2)
    assert found.slow_link_ns == (pytest.approx(150 * MS, rel=0.02) if found.network else 0)
    run.late = {rank: late_ms * (rank != slow) for rank in range(RANKS)}
    assert run.judged().slow_link_ns == pytest.approx(150 * MS, rel=0.02)


def test_a_link_that_is_slow_for_a_while_answers_for_that_while():
    run = Run()
    run.paces = [1.0] * (20 * CELLS) + [0.2] * (125 * CELLS) + [1.0] * (55 * CELLS)
    verdict = run.judged()
    assert (verdict.cause, verdict.network) == (Cause.SLOW_LINK, True)
    assert verdict.slow_link_ns == pytest.approx(100 * MS, rel=0.05)


def test_a_link_that_was_slow_is_it_too_until_tcp_is_fast_again():
    run = Run()
    recovering = [part for share in (0.3, 0.4, 0.5, 0.6, 0.7) for part in [share] * (15 * CELLS)]
    run.paces = [1.0] * (10 * CELLS) + [0.2] * (125 * CELLS) + recovering + [1.0] * (28 * CELLS)
    verdict = run.judged()
    assert verdict.cause == Cause.SLOW_LINK
    assert verdict.slow_link_ns >= 0.8 * verdict.excess_ns


def test_a_link_that_was_slow_again_and_again_answers_for_all_of_it():
    """At one pace; between them its queue had overflowed."""
    run = Run()
    run.paces = ([0.2] * (70 * CELLS) + [1.0] * (20 * CELLS)) * 2
    run.dropped = {place * CELLS: 6_000 for place in (2, 92)}
    verdict = run.judged()
    assert verdict.cause == Cause.SLOW_LINK
    assert verdict.slow_link_ns == pytest.approx(2 * 0.8 * 70 * MS, rel=0.2)


@pytest.mark.parametrize(("pieces", "cause"), [(6, Cause.UNKNOWN), (14, Cause.SLOW_LINK)])
def test_a_few_pieces_of_many_are_alike_by_chance(pieces, cause):
    run = Run()
    run.paces = [1.0] * (20 * CELLS) + [0.2] * (21 * pieces)
    assert run.judged().cause == cause


@pytest.mark.parametrize(("fast", "cause"), [(0, Cause.SLOW_LINK), (1, Cause.UNKNOWN)])
def test_a_link_that_senders_do_not_keep_busy_is_slow_where_nothing_came_faster(fast, cause):
    """Three pieces in eight come at its pace, and five more slowly, each at another one."""
    run, piece = Run(), 4.2 * CELLS
    paces = [0.4, 0.4, 0.4, 0.12, 0.16, 0.21, 0.27, 0.33, *[0.9] * fast]
    run.paces = 12 * [pace for pace in paces for _ in range(round(piece / CELLS / pace))]
    verdict = run.judged()
    assert verdict.cause == cause
    if cause == Cause.SLOW_LINK:
        assert verdict.slow_link_ns == pytest.approx((1 / 0.4 - 1) * TRANSFER * MS, rel=0.1)


def test_a_slow_link_explains_most_of_what_the_transfer_took_longer_and_no_more_than_that():
    """Baseline iterations differ, and the quicker half of them shows what is usual."""
    run, uneven = Run(), [1.0] * 8 + [0.0] * 4 + [1.0] * 4 + [0.0] * 6
    run.paces_of = {step: [1.0] * (50 * CELLS) + [0.5] * ((24 + step) * CELLS) for step in range(1, ITERATIONS, 2)}
    run.paces = [0.2] * (56 * CELLS) + 20 * uneven
    run.dropped = {place * CELLS: 6_000 for place in (2, 60, 86, 116, 136)}
    verdict = run.judged()
    assert verdict.cause == Cause.SLOW_LINK
    assert 0.5 * verdict.excess_ns < verdict.slow_link_ns == pytest.approx(0.8 * 56 * MS, rel=0.1)


def test_a_transfer_that_ends_in_silence_has_nobody_who_went_on():
    run = Run()
    run.paces = [1.0] * (TRANSFER * CELLS) + [0.0] * (100 * CELLS)
    assert not run.judged().network


def test_nobody_answers_for_more_than_his_bytes_can_have_taken():
    """Half a megabyte takes four milliseconds of a gigabit a second, however long the transfer stood still then."""
    run = Run()
    run.beside(0, share=0.8, from_ms=40, for_ms=5)
    run.stopped(45, 50)
    verdict = run.judged()
    assert verdict.cross_ns <= 1.5 * 8 * verdict.bytes + 2 * MS or verdict.cause != Cause.CROSS
    assert verdict.cross_ns < 10 * MS
    assert not verdict.network


def test_what_stops_and_goes_is_no_slow_link():
    """A host without CPU leaves gaps; between them its bytes go as fast as ever."""
    run = Run()
    run.paces = ([1.0] * 16 + [0.0] * 15) * 25
    verdict = run.judged()
    assert not verdict.network
    assert verdict.unknown_ns > 50 * MS


def test_a_rank_that_waited_for_a_cpu_is_its_hosts():
    """Only if it waited longer than it usually does, and about as long as it was late."""
    run = Run()
    run.late[2] = 400
    run.waited = waited = np.zeros(3 * 40, WAITED)
    waited["rank"] = np.repeat(np.arange(3), 40)
    waited["start_ns"] = BEGIN + np.tile(np.arange(40), 3) * 1000 * MS
    waited["end_ns"] = waited["start_ns"] + 1000 * MS
    waited["waited_ns"] = 50 * MS
    assert run.judged().cause == Cause.STRAGGLER
    waited["waited_ns"][2 * 40 + 2 * SLOW] += 380 * MS
    verdict = run.judged()
    assert (verdict.cause, verdict.rank, verdict.host, verdict.culprit) == (Cause.HOST, 2, "h2", "rank 2")
    assert verdict.host_ns == pytest.approx(400 * MS, abs=MS)
    assert "h2 (rank 2) itself was slow" in sentence(verdict)
    run.late, run.paces = dict.fromkeys(range(3), 0), ([1.0] * 16 + [0.0] * 15) * 25
    assert run.judged().cause == Cause.HOST


def test_one_rank_that_stops_in_the_midst_is_told_from_all_that_do():
    """The others go on until they lack its piece, and wait for a whole one when it comes."""
    run = Run()
    run.in_pieces = True
    run.stopped(40, 200)
    assert run.judged().cause == Cause.UNKNOWN
    run.first = 1
    verdict = run.judged()
    assert (verdict.cause, verdict.rank) == (Cause.STRAGGLER, 1)
    assert verdict.late_ns == pytest.approx(200 * MS, rel=0.15)


def test_without_rows_nobody_is_accused():
    run = Run()
    run.beside(0)
    verdict = run.judged(carried=False)
    assert (verdict.cause, verdict.culprit, verdict.unknown_ns) == (Cause.UNKNOWN, "", verdict.excess_ns)
    assert sentence(verdict).endswith("; the cause is not known")
    more = replace(verdict, transfer_ns=verdict.excess_ns * 3 // 4, unknown_ns=verdict.excess_ns // 4)
    assert "; there was more to transfer, which took " in sentence(more)


def test_what_the_marks_do_not_tell_the_traffic_does():
    run = Run()
    run.marks = False
    run.beside(0)
    verdict = run.judged()
    assert (verdict.cause, verdict.culprit) == (Cause.CROSS, "backup")
    assert verdict.cross_ns == pytest.approx(120 * MS, rel=0.05)


def test_any_iteration_can_be_asked_for():
    run = Run()
    run.late[0] = 300
    usual = run.judged(5)
    assert usual.cause == Cause.UNKNOWN
    assert sentence(usual).endswith("not longer than usual")
    with pytest.raises(KeyError):
        run.judged(999)


@pytest.mark.parametrize("count", [1, 3])
def test_a_few_iterations_have_no_usual(count):
    numbers = np.arange(count)
    unknown = np.zeros(count, np.int64)
    steps = Steps(
        *(numbers, unknown, BEGIN + numbers * MS, BEGIN + numbers * MS + 1000 * (numbers + 1)),
        *(unknown, unknown, unknown - 1, unknown, unknown > 0, unknown),
        hosts=["h0"],
        size=1,
    )
    assert standing_out(steps) == []
    verdict = judge("short", steps, no_link_totals(), count - 1)
    assert sentence(verdict).endswith("there is no usual time to compare it with")
    assert list(arithmetic(verdict)) == []


def test_a_job_of_one_rank_computes_longer():
    numbers = np.arange(20)
    none = np.zeros(20, np.int64)
    ends = BEGIN + numbers * 1000 * MS + np.where(numbers == 9, 900, 300) * MS
    steps = Steps(
        *(numbers, none, BEGIN + numbers * 1000 * MS, ends, none, none, none, none, none > 0, none),
        hosts=["h0"],
        size=1,
    )
    assert standing_out(steps) == [9]
    verdict = judge("alone", steps, no_link_totals(), 9)
    assert (verdict.cause, verdict.compute_ns) == (Cause.COMPUTE, 600 * MS)


def test_columns_and_back(tmp_path):
    run = Run()
    run.beside(3)
    ranks = (RankTimes(0, "h0", 9), RankTimes(1, "h1", 9, True, 1, 2, 0, 3, 3, "backup", 0, 1))
    verdict = run.judged()
    assert from_columns(columns(verdict)) == verdict
    verdict = replace(verdict, ranks=ranks, receiver_ns=5)
    pq.write_table(verdict_table([verdict]), tmp_path / "part.parquet")
    (stored,) = pq.read_table(tmp_path / "part.parquet").to_pylist()
    assert from_columns(stored) == verdict
    frame = pd.read_parquet(tmp_path / "part.parquet")
    times = pd.json_normalize(frame.explode("ranks")["ranks"].tolist())
    assert times["waited_ns"].tolist() == [0, 2]
    nobody = Verdict("j", 1, 0, 1, 1, 1, 0)
    assert columns(nobody)["counterfactual_ns"] is None
    assert columns(nobody)["direction"] == ""
    assert from_columns(columns(nobody)) == nobody


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(0, 500), min_size=RANKS, max_size=RANKS),
    st.integers(0, 200),
    st.floats(0, 0.95),
    st.integers(0, 2 * RANKS - 1),
)
def test_shares_add_up_and_traffic_answers_only_for_what_it_can_have_done(late, stop_ms, share, link):
    run = Run()
    run.late = dict(enumerate(late))
    if stop_ms:
        run.stopped(20, stop_ms)
    if share > 0.1:
        run.beside(link, share, 10 + stop_ms + 15, 60)
    verdict = run.judged()
    if verdict.excess_ns <= 0:
        return
    assert sum(shares(verdict).values()) == verdict.excess_ns
    assert all(ns >= 0 for name, ns in shares(verdict).items() if name != "unknown")
    if share <= 0.1:
        assert not verdict.network
        assert verdict.cross_ns == 0
    if share > 0.1:
        assert verdict.cross_ns <= 60 * MS * share * 1.1 + 2 * MS
    assert replace(verdict, reported_ns=0) == verdict


def test_every_cause_has_an_entry_and_a_letter_of_its_own() -> None:
    assert sorted(about.cause for about in ABOUT if about.cause is not None) == sorted(Cause)
    assert len({about.letter for about in CAUSES.values()} - {""}) == len(Cause)
    assert {f"{share}_ns" for share in SHARES} < {field.name for field in fields(Verdict)}


def test_the_rules_know_the_causes_that_blame_the_network() -> None:
    root = Path(__file__).parents[2]
    network = [cause.name.lower() for cause in NETWORK]
    assert f'cause=~"{"|".join(network)}"' in (root / "packaging/prometheus/netmon.rules.yml").read_text()
