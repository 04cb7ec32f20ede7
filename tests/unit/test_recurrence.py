# SPDX-License-Identifier: Apache-2.0
"""Steps out of all that a rank calls, where the true steps are known: all are found, none is invented."""

import random
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netmon.dl.recurrence import RecurringCalls
from netmon.records import (
    LIBRARY_GLOO,
    STEP,
    STEP_BACKWARD,
    STEP_BEGIN,
    STEP_GROUP,
    STEP_GROUP_NAME,
    STEP_OVER,
    STEP_WAIT_END,
    STEP_WORK_WAIT,
    Moment,
)

MICROSECOND, MILLISECOND = 1_000, 1_000_000
BROADCAST, SUM, GATHER, SCATTER, SCATTER_SUM, EXCHANGE, SEND, RECEIVE, BARRIER = 0, 1, 6, 8, 16, 10, 12, 13, 15
ALL, DATA, TENSOR, STAGES = 101, 102, 103, 104  # groups
STEPS = 40


class Rank:
    """One that trains on paper: its calls, and the moments of its steps."""

    def __init__(self, seed: int = 1) -> None:
        self.rows: list[tuple[int, ...]] = []
        self.steps: list[tuple[int, int]] = []  # first call, all is over
        self.now = MILLISECOND
        self.random = random.Random(seed)
        self._works = 0
        self._sent: list[int] = []
        self._first = self._over = 0

    def wait(self, ms: float) -> None:
        """Compute, never twice for exactly as long."""
        self.now += round(ms * MILLISECOND * self.random.uniform(0.95, 1.1))

    def tell(
        self, kind: int, name: int = 0, operation: int = 0, size: int = 0, work: int = 0, sequence: int = 0
    ) -> int:
        self.now += 5 * MICROSECOND
        self.rows.append((self.now, name, 7, kind, LIBRARY_GLOO, operation, size, work, sequence, 0, 2))
        return self.now

    def begin(self, operation: int, group: int, values: int, peer: int = 0) -> int:
        self._works = self._works % 50 + 1  # memory is used again
        begun = self.tell(STEP_BEGIN, group, operation, values << 4 | 4, self._works, peer)
        self._first = self._first or begun
        self._over = max(self._over, begun)
        return self._works

    def call(self, operation: int, group: int = ALL, values: int = 1000) -> None:
        """A collective that is waited for."""
        work = self.begin(operation, group, values)
        self.wait(0.2)
        self._over = self.tell(STEP_WAIT_END, work=work)

    def receive(self, peer: int, group: int = STAGES) -> None:
        work = self.begin(RECEIVE, group, 512, peer)
        self.tell(STEP_WORK_WAIT, work=work)
        self.wait(0.3)
        self._over = self.tell(STEP_OVER, work=work)

    def send(self, peer: int, group: int = STAGES) -> None:
        self._sent.append(self.begin(SEND, group, 512, peer))

    def wait_for_sent(self) -> None:
        while self._sent:
            self._over = self.tell(STEP_OVER, work=self._sent.pop(0))

    def backward(self) -> None:
        self.tell(STEP_BACKWARD)

    def step(self, calls: Callable[[], object], pause_ms: float = 4) -> None:
        self.wait(pause_ms)
        self._first = self._over = 0
        calls()
        self.steps.append((self._first, self._over))

    def table(self, begin: int = 0) -> np.ndarray:
        return np.array(self.rows[begin:], STEP)

    def found(self, pieces: Iterable[np.ndarray] | None = None, late: bool = False) -> list[tuple[int, int]]:
        """The steps that are told."""
        detector = RecurringCalls(late)
        told = [boundary for piece in pieces or self.pieces(20) for boundary in detector.feed(piece)]
        return steps_of([*told, *detector.finish()])

    def pieces(self, count: int, begin: int = 0) -> list[np.ndarray]:
        return np.array_split(self.table(begin), count)

    def check(self) -> None:
        assert self.found() == self.steps


def steps_of(told: Sequence[tuple[int, Moment, int]]) -> list[tuple[int, int]]:
    """(begin, end) of whole steps, which are numbered from 0 without a gap."""
    assert [moment for _, moment, _ in told] == [Moment.FIRST_ENQUEUE, Moment.LAST_WAIT] * (len(told) // 2)
    assert [number for number, _, _ in told] == [place // 2 for place in range(len(told))]
    return [(begin, end) for (_, _, begin), (_, _, end) in zip(told[::2], told[1::2], strict=True)]


# --- What is trained.


def sharded(rank: Rank, layers: int = 4, in_place: bool = False, backward: bool = True, scattered: bool = True) -> None:
    """Parameters are gathered layer by layer, and again in the backward pass, in which gradients are scattered.

    in_place: the first layer's parameters are there.
    """
    for layer in range(layers):
        if layer or not in_place:
            rank.call(GATHER, DATA, 1000 + layer)
        rank.wait(2)
    if backward:
        rank.backward()
        for layer in reversed(range(layers)):
            if layer < layers - 1:
                rank.call(GATHER, DATA, 1000 + layer)
            rank.wait(2)
            if scattered:
                rank.call(SCATTER_SUM, DATA, 1000 + layer)


def fsdp(rank: Rank) -> None:
    for _ in range(STEPS):
        rank.step(lambda: sharded(rank))


def fsdp_accumulating(rank: Rank) -> None:
    def step() -> None:
        for micro_batch in range(3):
            sharded(rank, scattered=micro_batch == 2)

    for _ in range(STEPS):
        rank.step(step)


def fsdp_clipping(rank: Rank) -> None:
    def step() -> None:
        sharded(rank)
        rank.call(SUM, DATA, 1)

    for _ in range(STEPS):
        rank.step(step)


def fsdp_evaluating(rank: Rank) -> None:
    """An evaluation leaves the first layer's parameters in place, so the next step does not gather them."""
    for number in range(STEPS):
        rank.step(lambda: sharded(rank, in_place=number > 0 and number % 7 == 0))  # noqa: B023
        if number % 7 == 6:
            for batch in range(3):
                rank.wait(4)
                sharded(rank, in_place=batch > 0, backward=False)
            rank.call(SUM, ALL, 1)


def fsdp_saving(rank: Rank) -> None:
    """Now and then all parameters are gathered, and rank 0 writes them while the others wait."""
    for number in range(STEPS):
        rank.step(lambda: sharded(rank))
        if number % 15 == 14:
            for layer in range(4):
                rank.call(GATHER, ALL, 1000 + layer)
            rank.wait(3000)
            rank.call(BARRIER, ALL, 1)


def fsdp_freezing(rank: Rank) -> None:
    """Half of the layers are trained no longer: their parameters are gathered, but they have no gradients."""

    def step(frozen: int) -> None:
        for layer in range(4):
            rank.call(GATHER, DATA, 1000 + layer)
            rank.wait(2)
        rank.backward()
        for layer in reversed(range(frozen, 4)):
            rank.wait(2)
            rank.call(SUM, DATA, 1000 + layer)

    for number in range(STEPS):
        rank.step(lambda: step(2 if number >= STEPS // 2 else 0))  # noqa: B023


def tensor_set_up(rank: Rank) -> None:
    """Each layer's parts are handed out before the first step, which takes more calls than its forward pass."""
    for _ in range(24):
        rank.call(SCATTER, TENSOR, 512)

    def step() -> None:
        for layer in range(4):
            rank.wait(1 + layer)
            rank.call(SUM, TENSOR, 512)
            rank.call(GATHER, TENSOR, 512)
        rank.call(GATHER, TENSOR, 256)
        rank.backward()
        for _ in range(4):
            rank.call(SUM, TENSOR, 512)
            rank.call(GATHER, TENSOR, 512)
        for _ in range(17):
            rank.call(SUM, TENSOR, 64)

    for _ in range(STEPS):
        rank.step(step, pause_ms=1)


def tensor(rank: Rank) -> None:
    """Each layer's parts are summed in both passes."""

    def step() -> None:
        for _ in range(3):
            rank.wait(2)
            rank.call(SUM, TENSOR, 512)
        rank.backward()
        for _ in range(3):
            rank.wait(2)
            rank.call(SUM, TENSOR, 512)

    for _ in range(STEPS):
        rank.step(step)


def stage(rank: Rank, number: int, last: int, micro_batches: int, ahead: int, backward: bool = True) -> None:
    """Of a pipeline. ahead: so many micro-batches go forward before the first one goes back."""
    for at in range(micro_batches + ahead):
        if at < micro_batches:
            if number:
                rank.receive(number - 1)
            rank.wait(1)
            if number < last:
                rank.send(number + 1)
        if at >= ahead and backward:
            if number < last:
                rank.receive(number + 1)
            rank.backward()
            rank.wait(2)
            if number:
                rank.send(number - 1)
    rank.wait_for_sent()


def one_forward_one_backward(number: int, last: int) -> Callable[[Rank], None]:
    def train(rank: Rank) -> None:
        for _ in range(STEPS):
            rank.step(lambda: stage(rank, number, last, 4, min(4, last - number)))

    return train


def gpipe(number: int, last: int) -> Callable[[Rank], None]:
    def train(rank: Rank) -> None:
        for _ in range(STEPS):
            rank.step(lambda: stage(rank, number, last, 4, 4))

    return train


def gpipe_evaluating(number: int, last: int) -> Callable[[Rank], None]:
    def train(rank: Rank) -> None:
        for step in range(STEPS):
            rank.step(lambda: stage(rank, number, last, 4, 4))
            if step % 6 == 5:
                rank.wait(4)
                for _ in range(3):
                    stage(rank, number, last, 4, 4, backward=False)
                rank.call(SUM, ALL, 1)

    return train


def interleaved(number: int) -> Callable[[Rank], None]:
    """Two ranks with two parts of the model each: what leaves the first ones' end comes back to their beginning."""

    def step(rank: Rank) -> None:
        chunks = [(chunk, batch) for half in range(2) for chunk in range(2) for batch in (2 * half, 2 * half + 1)]
        ahead = 4 - 2 * number
        for at in range(len(chunks) + ahead):
            if at < len(chunks):
                if number or chunks[at][0]:
                    rank.receive(1 - number)
                rank.wait(1)
                if not (number and chunks[at][0]):
                    rank.send(1 - number)
            if at >= ahead:
                chunk = 1 - chunks[at - ahead][0]
                if not (number and chunk):
                    rank.receive(1 - number)
                rank.backward()
                rank.wait(2)
                if number or chunk:
                    rank.send(1 - number)
        rank.wait_for_sent()

    def train(rank: Rank) -> None:
        for _ in range(STEPS):
            rank.step(lambda: step(rank))

    return train


def experts(rank: Rank) -> None:
    """Tokens go to their experts and back, another number each time; what all ranks share is summed."""

    def exchange() -> None:
        rank.call(EXCHANGE, ALL, rank.random.randrange(1, 5000))

    def step() -> None:
        for _ in range(2):
            rank.call(EXCHANGE, ALL, 2)
            exchange()
            rank.wait(2)
            exchange()
        rank.backward()
        for _ in range(4):
            exchange()
            rank.wait(1)
        rank.call(SUM, ALL, 1024)
        rank.call(SUM, ALL, 32)

    for _ in range(STEPS):
        rank.step(step)


def hybrid(number: int) -> Callable[[Rank], None]:
    """2 stages × 2 that share the data × 2 that share each layer, three micro-batches, and a step of everybody."""

    def layers(rank: Rank, order: Sequence[int], again: bool) -> None:
        for layer in order:
            rank.call(GATHER, DATA, 1000 + layer)
            rank.wait(1)
            rank.call(SUM, TENSOR, 512)
            if again:
                rank.call(SCATTER_SUM, DATA, 1000 + layer)

    def step(rank: Rank) -> None:
        for _ in range(3):
            if number:
                rank.receive(0)
            layers(rank, (0, 1), again=False)
            if not number:
                rank.send(1)
        for _ in range(3):
            if not number:
                rank.receive(1)
            rank.backward()
            layers(rank, (1, 0), again=True)
            if number:
                rank.send(0)
        rank.wait_for_sent()
        rank.call(SUM, ALL, 1)

    def train(rank: Rank) -> None:
        for _ in range(STEPS):
            rank.step(lambda: step(rank))

    return train


def one_by_one(operation: int) -> Callable[[Rank], None]:
    """A script that goes through its 100 gradients itself, one after the other."""

    def step(rank: Rank) -> None:
        rank.backward()
        rank.wait(20)
        for gradient in range(100):
            rank.call(operation, ALL, 1000 + gradient)

    def train(rank: Rank) -> None:
        for _ in range(STEPS):
            rank.step(lambda: step(rank))

    return train


def changing_micro_batches(number: int) -> Callable[[Rank], None]:
    def train(rank: Rank) -> None:
        for step in range(STEPS + 20):
            count = 4 if step % 20 < 12 else rank.random.choice((2, 3, 5, 7))
            rank.step(lambda: stage(rank, number, 2, count, count))  # noqa: B023
        rank.call(BARRIER)

    return train


KINDS = {
    "fsdp": fsdp,
    "fsdp that accumulates": fsdp_accumulating,
    "fsdp that clips": fsdp_clipping,
    "fsdp with evaluations": fsdp_evaluating,
    "fsdp that is saved": fsdp_saving,
    "tensor": tensor,
    **{f"1F1B, stage {number}": one_forward_one_backward(number, 3) for number in range(4)},
    **{f"GPipe, stage {number}": gpipe(number, 2) for number in range(3)},
    **{f"interleaved, rank {number}": interleaved(number) for number in range(2)},
    "experts": experts,
    **{f"2×2×2, stage {number}": hybrid(number) for number in range(2)},
    "GPipe with evaluations": gpipe_evaluating(0, 2),
    "sums one by one": one_by_one(SUM),
    "gathers one by one": one_by_one(GATHER),
}
FROM_THE_START = KINDS | {
    "tensor after a long set-up": tensor_set_up,
    **{f"changing micro-batches, stage {number}": changing_micro_batches(number) for number in range(3)},
    "fsdp that freezes": fsdp_freezing,
}


def trained(kind: str) -> Rank:
    rank = Rank()
    FROM_THE_START[kind](rank)
    return rank


@pytest.mark.parametrize("kind", FROM_THE_START)
def test_all_steps_are_told_where_they_were(kind):
    trained(kind).check()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", [0.1, 0.25, 0.4])
def test_who_is_watched_late_loses_the_steps_before_and_at_most_the_one_then(kind, part):
    rank = trained(kind)
    cut = int(part * len(rank.rows))
    found = rank.found(rank.pieces(20, cut), late=True)
    to_come = [step for step in rank.steps if step[0] >= rank.rows[cut][0]]
    assert found in (to_come, to_come[1:])


@pytest.mark.parametrize("kind", ["fsdp", "GPipe, stage 1", "experts"])
@given(cuts=st.lists(st.integers(0, 10**6), max_size=40))
@settings(max_examples=20, deadline=None)
def test_it_does_not_matter_how_calls_arrive(kind, cuts):
    rank = trained(kind)
    table = rank.table()
    pieces = np.split(table, sorted(cut % len(table) for cut in cuts))
    assert rank.found([piece for piece in pieces if len(piece)]) == rank.steps


@pytest.mark.parametrize("train", [fsdp, tensor, gpipe(0, 1), experts])
def test_what_is_called_while_groups_are_made_is_no_step(train):
    rank = Rank()
    for _ in range(4):
        rank.tell(STEP_GROUP, rank.random.randrange(10**6))
        for _ in range(3):
            rank.call(rank.random.choice((GATHER, BARRIER)))
        rank.tell(STEP_GROUP_NAME, rank.random.randrange(10**6))
    train(rank)
    rank.check()


def test_groups_that_are_made_in_training_change_nothing():
    rank = Rank()
    fsdp(rank)
    rank.tell(STEP_GROUP, 5)
    rank.tell(STEP_GROUP_NAME, 6)
    fsdp(rank)
    rank.check()


def test_what_a_step_sums_is_counted():
    rank, detector = Rank(), RecurringCalls()
    fsdp(rank)
    assert len(detector.feed(rank.table()) + detector.finish()) == 2 * STEPS
    values = sum(1000 + layer for layer in range(4))
    assert detector.size == (values, 4 * values)


def test_after_a_reset_numbers_go_on():
    rank, detector = Rank(), RecurringCalls()
    fsdp(rank)
    told = detector.feed(rank.table()) + detector.restart()
    first = len(rank.rows)
    experts(rank)
    told += detector.feed(rank.table(first)) + detector.finish()
    assert steps_of(told) == rank.steps


# --- What is no training, or pretends to be.


@pytest.mark.parametrize("seed", range(5))
def test_of_calls_that_never_recur_nothing_is_told(seed):
    rank = Rank(seed)
    for _ in range(2000):
        what = rank.random.randrange(4)
        if what == 0:
            rank.backward()
        elif what == 1:
            rank.call(rank.random.choice((SUM, GATHER, EXCHANGE, BROADCAST)), values=rank.random.randrange(1, 9999))
        elif what == 2:
            rank.send(rank.random.randrange(3))
            rank.wait_for_sent()
        else:
            rank.receive(rank.random.randrange(3))
        rank.wait(rank.random.random())
    assert rank.found() == []


def test_a_few_rounds_of_the_same_calls_are_no_steps_yet():
    rank, detector = Rank(), RecurringCalls()
    for _ in range(10):
        rank.step(lambda: sharded(rank))
    assert detector.feed(rank.table()) == []
    assert not detector.known


def test_calls_that_come_alone_all_the_time_are_no_steps():
    rank = Rank()
    for _ in range(200):
        rank.wait(5)
        rank.call(SUM, ALL, 1)
    assert rank.found() == []


@given(
    rows=st.lists(
        st.tuples(
            st.integers(0, 2**63 - 1),
            st.integers(0, 3),
            st.sampled_from([7]),
            st.integers(0, 20),
            st.integers(0, 6),
            st.sampled_from([0, 1, 6, 12, 13, 16, 65535]),
            st.integers(0, 2**64 - 1),
            st.integers(0, 4),
            st.sampled_from([0, 1, 2**32 - 1]),
            st.just(65535),
            st.integers(0, 65535),
        ),
        min_size=1,
        max_size=8,
    ),
    times=st.integers(1, 200),
    pieces=st.integers(1, 9),
)
@settings(max_examples=200, deadline=None)
def test_whatever_a_process_says_steps_follow_each_other(rows, times, pieces):
    table = np.array(rows * times, STEP)
    table.sort(order="time_ns", kind="stable")
    detector = RecurringCalls()
    told = [boundary for piece in np.array_split(table, pieces) for boundary in detector.feed(piece)]
    steps = steps_of([*told, *detector.finish()])
    assert all(begin <= end for begin, end in steps)
    assert all(first[0] <= second[0] for first, second in pairwise(steps))


def million(seed: int, recurring: bool) -> Iterable[np.ndarray]:
    """A million calls, a hundredth at a time. recurring: of 50 each, but no 40 times like another."""
    draw = np.random.default_rng(seed)
    for batch in range(100):
        table = np.zeros(10_000, STEP)
        table["time_ns"] = (batch * 10_000 + np.arange(10_000)) * MILLISECOND
        table["kind"], table["library"] = STEP_BEGIN, LIBRARY_GLOO
        table["name_hash"], table["work"] = ALL, np.arange(10_000) % 64 + 1
        of_step = draw.integers(0, 8, 50)
        table["tensors"] = np.tile(of_step, 200) if recurring else draw.integers(0, 8, 10_000)
        yield table


@pytest.mark.parametrize("recurring", [False, True])
def test_of_a_million_calls_few_are_kept(recurring):
    detector, most = RecurringCalls(), 0
    for table in million(3, recurring):
        detector.feed(table)
        most = max(most, detector.pending)
    assert most <= 35_000
    if not recurring:
        assert not detector.known
        assert detector.hopeless
