# SPDX-License-Identifier: Apache-2.0
"""Steps out of a process's calls, where the true steps are known: all are found, none is invented."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netmon.dl.cycles import CycleDetector
from netmon.dl.rank_steps import RankSteps
from netmon.records import (
    LIBRARY_CUDA,
    LIBRARY_GLOO,
    LIBRARY_HOROVOD,
    LIBRARY_NCCL,
    LIBRARY_REDUCER,
    LIBRARY_XLA,
    STEP_CALL,
    STEP_DONE,
    STEP_ENQUEUE,
    STEP_OTHER,
    STEP_SIZE,
    STEP_WAIT_BEGIN,
    STEP_WAIT_END,
    Moment,
    Table,
    calls_of,
)

MICROSECOND = 1_000
MILLISECOND = 1_000_000
GRADIENTS = tuple(range(1, 17))


class Script:
    """A training script that is run on paper: its calls, and the moments of its steps."""

    def __init__(self, library: int = LIBRARY_HOROVOD, waits: bool = True) -> None:
        self.library, self.waits = library, waits
        self.rows: list[tuple[int, ...]] = []
        self.steps: list[tuple[int, int, int]] = []  # first enqueue, first wait, last wait
        self.now = MILLISECOND

    def call(self, kind: int, name: int = 0, tensors: int = 1) -> int:
        self.now += 10 * MICROSECOND
        self.rows.append((self.now, name, 7, kind, self.library, tensors, 0))
        return self.now

    def metric(self, name: int) -> None:
        self.call(STEP_ENQUEUE, name)
        if self.waits:
            self.wait(1)

    def wait(self, times: int) -> tuple[int, int]:
        begun = [(self.call(STEP_WAIT_BEGIN), self.call(STEP_WAIT_END)) for _ in range(times)]
        return begun[0][0], begun[-1][1]

    def broadcast(self) -> None:
        self.call(STEP_OTHER)
        if self.waits:
            self.wait(1)

    def step(self, names: tuple[int, ...] = GRADIENTS) -> None:
        self.now += 5 * MILLISECOND
        enqueued = [self.call(STEP_ENQUEUE, name) for name in names]
        if self.waits:
            self.steps.append((enqueued[0], *self.wait(len(names))))
        else:
            done = [self.call(STEP_DONE, name) for name in names]
            self.steps.append((enqueued[0], enqueued[-1], done[-1]))

    def found(self, pieces: int = 1, late: bool = False) -> dict[Moment, dict[int, int]]:
        detector, found = CycleDetector(late), {moment: {} for moment in Moment}
        boundaries = [b for piece in np.array_split(calls_of(self.rows), pieces) for b in detector.feed(piece)]
        for iteration, moment, time_ns in [*boundaries, *detector.finish()]:
            assert iteration not in found[moment]
            found[moment][iteration] = time_ns
        return found

    def check(self, pieces: int = 1) -> None:
        found = self.found(pieces)
        assert found[Moment.FIRST_ENQUEUE] == dict(enumerate(step[0] for step in self.steps))
        assert found[Moment.LAST_WAIT] == dict(enumerate(step[2] for step in self.steps))
        assert found[Moment.FIRST_WAIT] == dict(enumerate(step[1] for step in self.steps))


@settings(deadline=None, max_examples=50)
@given(st.randoms(use_true_random=False), st.booleans(), st.integers(1, 40))
def test_training_with_all_that_belongs_to_it(chance: random.Random, waits: bool, pieces: int) -> None:
    """Warm-up broadcasts, metrics before, between and after steps, evaluations; the names in an order of their own."""
    script = Script(waits=waits)
    for _ in range(chance.randrange(3)):
        script.broadcast()
    if waits:
        for _ in range(chance.randrange(12)):
            script.metric(100)
    each_step = chance.random() < 0.5
    for _ in range(chance.randrange(1, 4)):
        for _ in range(chance.randrange(3, 12)):
            script.step()
            if each_step and waits:
                script.metric(101)
        if waits:
            for _ in range(chance.randrange(30)):  # an evaluation
                script.metric(102)
        else:
            script.metric(103)
    script.check(pieces)


@pytest.mark.parametrize("library", [LIBRARY_HOROVOD, LIBRARY_GLOO, LIBRARY_XLA])
@settings(deadline=None, max_examples=20)
@given(st.randoms(use_true_random=False))
def test_it_does_not_matter_how_calls_arrive(library: int, chance: random.Random) -> None:
    """Alone, or many steps at once; most steps are alike, some have more, or less, or another order, or are another
    model's."""
    table = any_calls(chance, library)
    pieces = np.split(table, sorted(chance.sample(range(len(table)), chance.choice((0, 1, 3, 10)))))
    one_by_one, at_once = CycleDetector(), CycleDetector()
    for piece in pieces:
        told = [boundary for row in range(len(piece)) for boundary in one_by_one.feed(piece[row : row + 1])]
        assert at_once.feed(piece) == told
        assert (at_once.iteration, at_once.size) == (one_by_one.iteration, one_by_one.size)
        assert (at_once.pending, at_once.handed_over) == (one_by_one.pending, one_by_one.handed_over)
    assert at_once.finish() == one_by_one.finish()


def any_calls(chance: random.Random, library: int) -> Table:
    rows, now = list[tuple[int, ...]](), 1_700_000_000 * 1_000_000_000
    models = [
        [(chance.getrandbits(64), chance.randrange(4) << 4 | 4) for _ in range(chance.choice((1, 2, 3, 8, 20)))]
        for _ in range(chance.choice((1, 1, 2)))
    ]
    names = models[0]
    waits, seldom = chance.choice((0, 1, 2)), chance.choice((0, 0, 0.001, 0.01))
    calls_first = library == LIBRARY_GLOO and chance.random() < 0.3

    def call(kind: int, name: int = 0, size: int = 0) -> None:
        nonlocal now
        now += chance.choice((1, 20, 300)) * MICROSECOND
        rows.append((now, name, 7, kind, library, 1, size))

    def wait() -> None:
        call(STEP_WAIT_BEGIN)
        call(STEP_WAIT_END)

    for _ in range(chance.randrange(3, 40)):
        now += chance.choice((10, 60)) * MILLISECOND
        if chance.random() < 0.1:  # another model is trained for a while
            names = chance.choice(models)
        for name, size in chance.sample(names, len(names)) if library == LIBRARY_HOROVOD else names:
            if calls_first:
                call(STEP_CALL)
            if chance.random() >= seldom:
                call(STEP_ENQUEUE, name, size)
            if waits == 1:
                wait()
            if chance.random() < seldom:
                other = chance.choice((STEP_OTHER, STEP_DONE, STEP_WAIT_BEGIN, STEP_WAIT_END, STEP_ENQUEUE))
                call(other, chance.choice((0, 3, chance.getrandbits(64))))
            if chance.random() < seldom:
                call(STEP_SIZE, name, 9 << 4 | 2)
        for _ in range(chance.choice((1, len(names))) if waits == 2 else 0):
            wait()
    return calls_of(rows)


@settings(deadline=None, max_examples=50)
@given(st.randoms(use_true_random=False), st.booleans())
def test_names_in_another_order_in_each_step(chance: random.Random, waits: bool) -> None:
    script = Script(waits=waits)
    for _ in range(10):
        script.step(tuple(chance.sample(GRADIENTS, len(GRADIENTS))))
    script.check()


@settings(deadline=None, max_examples=50)
@given(st.integers(3, 10), st.integers(3, 10), st.sets(st.sampled_from(GRADIENTS[1:]), min_size=4, max_size=14))
def test_layers_that_are_frozen_in_the_middle(before: int, after: int, kept: set[int]) -> None:
    script = Script()
    for _ in range(before):
        script.step()
    for _ in range(after):
        script.step(tuple(sorted(kept)))
    script.check()


@settings(deadline=None, max_examples=50)
@given(st.integers(3, 10), st.integers(3, 10), st.integers(0, 16))
def test_a_model_of_other_names_in_the_middle(before: int, after: int, shared: int) -> None:
    script = Script()
    for _ in range(before):
        script.step()
    for _ in range(after):
        script.step((*GRADIENTS[:shared], *range(50, 66 - shared)))
    found = script.found()[Moment.FIRST_ENQUEUE]
    assert list(found) == list(range(len(script.steps)))
    assert set(found.values()) <= {step[0] for step in script.steps}


def test_a_model_that_is_trained_again_after_another_one() -> None:
    """What comes at once may hold the first model's calls, and none of the one that has taken its place meanwhile."""
    script = Script()
    for names in [GRADIENTS] * 6:
        script.step(names)
    first = len(script.rows)
    for names in [tuple(range(50, 58))] * 5 + [GRADIENTS]:
        script.step(names)
    table = calls_of(script.rows)
    one_by_one, at_once = CycleDetector(), CycleDetector()
    told = [boundary for row in range(len(table)) for boundary in one_by_one.feed(table[row : row + 1])]
    assert [*at_once.feed(table[:first]), *at_once.feed(table[first:])] == told


@settings(deadline=None, max_examples=50)
@given(st.randoms(use_true_random=False), st.integers(0, 4))
def test_a_graph_that_is_traced_anew_keeps_some_names(chance: random.Random, shared: int) -> None:
    """TensorFlow names gradients by their place in the graph, and hands them over in another order in each step."""
    script = Script(waits=False)
    for names in (GRADIENTS, (*GRADIENTS[:shared], *range(50, 66 - shared))):
        for _ in range(6):
            script.step(tuple(chance.sample(names, len(names))))
    found = script.found()[Moment.FIRST_ENQUEUE]
    assert list(found) == list(range(len(script.steps)))
    assert set(found.values()) <= {step[0] for step in script.steps}


@settings(deadline=None, max_examples=50)
@given(st.randoms(use_true_random=False))
def test_unused_parameters_are_missing_now_and_then(chance: random.Random) -> None:
    script = Script()
    for _ in range(20):
        unused = chance.sample(GRADIENTS[1:], chance.randint(0, len(GRADIENTS) // 4))
        script.step(tuple(name for name in GRADIENTS if name not in unused))
    script.check()


def test_a_call_may_hand_over_all_tensors() -> None:
    script = Script()
    for _ in range(5):
        script.call(STEP_ENQUEUE, 9, tensors=160)
        script.wait(1)
    assert list(script.found()[Moment.FIRST_ENQUEUE]) == [0, 1, 2, 3, 4]


def test_each_tensor_of_a_call_comes_under_its_own_name() -> None:
    """Grouped all-reduces in TensorFlow; a metric and a broadcast, which come without a wait, too, are not of them."""
    script = Script(waits=False)
    for _ in range(6):
        groups = [(script.call(STEP_ENQUEUE, name, tensors=4), name) for name in (10, 20, 30)]
        done = [script.call(STEP_DONE, first + i) for _, first in groups for i in range(4)]
        script.steps.append((groups[0][0], groups[-1][0], done[-1]))
        script.call(STEP_OTHER)
        script.call(STEP_DONE, 101)
    script.call(STEP_ENQUEUE, 100)
    script.call(STEP_DONE, 100)
    script.check()


def test_a_model_of_one_tensor_is_found_in_the_end() -> None:
    script = Script()
    for _ in range(20):
        script.step((1,))
    script.check()


@pytest.mark.parametrize(("values", "steps"), [(1 << 17, 3), (1 << 16, 16)])
def test_a_few_large_sums_are_a_step_when_they_come_for_the_third_time(values: int, steps: int) -> None:
    """Metrics are smaller than 1 MiB together."""
    for repeated in (steps - 1, steps):
        rows = [
            (step * 100 * MILLISECOND + number * MICROSECOND, number, 7, STEP_ENQUEUE, LIBRARY_NCCL, 1, values << 4 | 4)
            for step in range(1, repeated + 1)
            for number in (101, 102)
        ]
        found = CycleDetector().feed(calls_of(rows))
        told = [number for number, moment, _ in found if moment is Moment.FIRST_ENQUEUE]
        assert told == list(range(steps if repeated == steps else 0))


def test_metrics_alone_are_no_steps() -> None:
    script = Script()
    for _ in range(15):
        script.metric(100)
        script.metric(101)
    assert script.found()[Moment.FIRST_ENQUEUE] == {}


def test_two_models_that_take_turns_make_one_cycle() -> None:
    script = Script()
    for _ in range(8):
        script.step(tuple(range(20, 28)))
        script.step(GRADIENTS)
    found = script.found()[Moment.FIRST_ENQUEUE]
    assert list(found) == list(range(8))


def test_a_normalisation_that_is_reduced_within_the_backward_pass() -> None:
    """Synchronised batch normalisation uses the same names for every layer, and waits in the middle."""
    script, begun = Script(), []
    for _ in range(8):
        script.now += 5 * MILLISECOND
        for layer in range(0, 40, 4):
            times = [script.call(STEP_ENQUEUE, 200 + layer + i) for i in range(4)]
            begun += [times[0]] if not layer else []
            script.call(STEP_ENQUEUE, 98)
            script.call(STEP_ENQUEUE, 99)
            script.wait(2)
        script.wait(40)
    assert list(script.found()[Moment.FIRST_ENQUEUE].values()) == begun


def test_a_look_that_begins_in_the_middle_begins_with_a_whole_step() -> None:
    script = Script()
    for _ in range(8):
        script.step()
    del script.rows[:7]
    assert list(script.found(late=True)[Moment.FIRST_ENQUEUE].values()) == [step[0] for step in script.steps[1:]]


def test_a_backward_pass_is_a_step_from_the_first_on() -> None:
    script = Script(LIBRARY_REDUCER)
    for _ in range(3):
        enqueued = [script.call(STEP_ENQUEUE, 5) for _ in range(4)]
        waits = script.call(STEP_WAIT_BEGIN, 5), [script.call(STEP_WAIT_END, 5) for _ in range(4)][-1]
        script.steps.append((enqueued[0], *waits))
    script.check()


@pytest.mark.parametrize("library", [LIBRARY_HOROVOD, LIBRARY_REDUCER])
def test_what_ends_a_step_is_told_before_the_next_one_begins(library: int) -> None:
    """A pause may follow it, and the rows around it must not wait for what comes after."""
    script = Script(library)
    for _ in range(8):
        if library == LIBRARY_HOROVOD:
            script.step()
        else:
            enqueued = [script.call(STEP_ENQUEUE, 5) for _ in range(4)]
            script.steps.append((enqueued[0], script.call(STEP_WAIT_BEGIN, 5), 0))
            script.steps[-1] = (*script.steps[-1][:2], [script.call(STEP_WAIT_END, 5) for _ in range(4)][-1])
    told = [one for one in CycleDetector().feed(calls_of(script.rows)) if one[1] is Moment.LAST_WAIT]
    assert told[-1] == (7, Moment.LAST_WAIT, script.steps[-1][2])


def test_of_two_models_one_counts_until_it_is_trained_no_more() -> None:
    script = Script(LIBRARY_REDUCER)
    first = []
    for model in (5, 6, 5, 6, 5, 6, 6, 6, 6, 6, 6):
        first.append(script.call(STEP_ENQUEUE, model))
        script.call(STEP_WAIT_BEGIN, model)
    found = list(script.found()[Moment.FIRST_ENQUEUE].values())
    assert found[:3] == first[0:5:2]
    assert set(found) <= set(first)


def test_what_a_library_hands_on_to_another_is_not_counted_twice() -> None:
    script = Script()
    for _ in range(5):
        script.step()
        script.library = LIBRARY_NCCL
        script.call(STEP_ENQUEUE, 77, tensors=100)
        script.library = LIBRARY_HOROVOD
    script.check()


@pytest.mark.parametrize("waits", [False, True])
def test_waits_for_what_a_gpu_does_are_unknown_unless_the_script_waits_for_it(waits: bool) -> None:
    """A backward pass ends when its all-reduces are queued there; the reducer sees no more."""
    script = Script(LIBRARY_REDUCER)
    waited = []
    for _ in range(5):
        for _ in range(4):
            script.call(STEP_ENQUEUE, 5)
            script.library = LIBRARY_NCCL
            script.call(STEP_ENQUEUE, 77)
            script.library = LIBRARY_REDUCER
        script.call(STEP_WAIT_BEGIN, 5)
        script.call(STEP_WAIT_END, 5)
        if waits:
            script.library = LIBRARY_CUDA
            waited.append(script.wait(1))
            script.library = LIBRARY_REDUCER
    steps = RankSteps()
    told = [*steps.feed(calls_of(script.rows), 2), *steps.finish()]
    found = {moment: [time_ns for _, this, time_ns in told if this is moment] for moment in Moment}
    assert len(found[Moment.FIRST_ENQUEUE]) == 5
    assert list(zip(found[Moment.FIRST_WAIT], found[Moment.LAST_WAIT], strict=True)) == waited[2:]


def sized(values: int, width: int = 4) -> int:
    return values << 4 | width


def test_the_size_of_a_model_is_what_its_steps_hand_over() -> None:
    script = Script()
    for number in range(4):
        script.step()
        script.metric(100 + number)
    rows = [row for row in script.rows if row[3] == STEP_ENQUEUE]
    sizes = [(row[0] + 1, row[1], 7, STEP_SIZE, LIBRARY_HOROVOD, 0, sized(1000 + row[1])) for row in rows]
    detector = CycleDetector()
    detector.feed(calls_of(sorted(script.rows + sizes)))
    assert detector.size == (sum(1000 + name for name in GRADIENTS), 4 * sum(1000 + name for name in GRADIENTS))
    assert detector.iteration == 3


def test_the_size_of_a_model_is_unknown_while_one_of_its_tensors_is() -> None:
    script = Script()
    for _ in range(4):
        script.step()
    at = script.rows[-1][0]
    sizes = [(at + name, name, 7, STEP_SIZE, LIBRARY_HOROVOD, 0, sized(10)) for name in GRADIENTS[1:]]
    detector = CycleDetector()
    detector.feed(calls_of(script.rows + sizes))
    assert detector.size == (0, 0)
    detector.feed(calls_of([(at + 99, GRADIENTS[0], 7, STEP_SIZE, LIBRARY_HOROVOD, 0, sized(7, 2))]))
    assert detector.size == (10 * 15 + 7, 4 * 150 + 14)


def test_the_size_of_a_ddp_model_is_that_of_its_buckets() -> None:
    rows, now = [], MILLISECOND
    for _ in range(3):
        for values in (1000, 2000, 500):
            now += MICROSECOND
            rows.append((now, 5, 7, STEP_ENQUEUE, LIBRARY_REDUCER, 1, sized(values)))
        rows += [
            (now + 1, 5, 7, STEP_WAIT_BEGIN, LIBRARY_REDUCER, 0, 0),
            (now + 2, 5, 7, STEP_WAIT_END, LIBRARY_REDUCER, 0, 0),
        ]
        now += MILLISECOND
    detector = CycleDetector()
    detector.feed(calls_of(rows))
    assert detector.size == (3500, 14_000)
    unread = (now, 5, 7, STEP_ENQUEUE, LIBRARY_REDUCER, 1, 0)
    detector.feed(calls_of([unread, (now + 1, 5, 7, STEP_WAIT_BEGIN, LIBRARY_REDUCER, 0, 0)]))
    assert detector.size == (0, 0)
