# SPDX-License-Identifier: Apache-2.0
"""Steps of scripts that reduce their gradients themselves, by a library that tells no more than sizes."""

import pytest

from netmon.dl.cycles import CycleDetector
from netmon.dl.rank_steps import RankSteps
from netmon.records import (
    LIBRARY_CUDA,
    LIBRARY_GLOO,
    LIBRARY_NCCL,
    STEP_CALL,
    STEP_ENQUEUE,
    STEP_OTHER,
    STEP_WAIT_BEGIN,
    STEP_WAIT_END,
    Moment,
    calls_of,
)

US, MS = 1_000, 1_000_000
SIZES = (7, 8, 8, 8, 9, 8, 8, 7)  # hashes of them
STEPS = 12


class Script:
    """What a process does, as the probes see it."""

    def __init__(self, library: int) -> None:
        self.now = 1_000 * MS
        self.begun: list[int] = []
        self.ended: list[int] = []
        self._rows: list[tuple[int, ...]] = []
        self._library = library

    def does(self, kind: int, name: int = 0, at: int = 0, library: int = 0) -> None:
        self._rows.append((at or self.now, name, 1, kind, library or self._library, 1, 0))

    def reduces(self, size: int, kind: int = STEP_ENQUEUE) -> None:
        """One call that waits: the size may be told after the wait has begun."""
        self.does(STEP_CALL)
        self.does(STEP_WAIT_BEGIN, at=self.now + 20 * US)
        self.does(kind, size, at=self.now + 40 * US)
        self.now += 3 * MS
        self.does(STEP_WAIT_END)
        self.now += 30 * US

    def boundaries(self, whole: bool = False, late: bool = False) -> dict[Moment, list[int]]:
        """whole: by all that tells steps; late: the first call may be within a step."""
        table = calls_of(sorted(self._rows))
        if whole:
            steps = RankSteps()
            told = [boundary for row in range(len(table)) for boundary in steps.feed(table[row : row + 1], 2)]
        else:
            detector = CycleDetector(late)
            told = [*detector.feed(table), *detector.finish()]
        return {moment: [time_ns for _, this, time_ns in told if this is moment] for moment in Moment}


def test_a_loop_that_reduces_one_after_the_other() -> None:
    script = Script(LIBRARY_GLOO)
    for step in range(STEPS):
        script.now += 60 * MS
        script.begun.append(script.now)
        for number, size in enumerate(SIZES):
            script.reduces(size)
            script.now += 8 * MS if (step, number) in ((4, 2), (7, 6)) else 0  # another process had the CPU
        script.ended.append(script.now - 30 * US)
        script.reduces(1, STEP_OTHER)  # the loss
        script.now += 5_000 * MS if step == 8 else 0  # a checkpoint is written
    found = script.boundaries()
    assert found[Moment.FIRST_ENQUEUE] == script.begun
    assert found[Moment.LAST_WAIT] == script.ended


def test_calls_whose_sizes_are_told_while_the_first_are_waited_for() -> None:
    script = Script(LIBRARY_GLOO)
    first_waits = []
    for _ in range(STEPS):
        script.now += 60 * MS
        script.begun.append(script.now)
        for _ in SIZES:
            script.does(STEP_CALL)
            script.now += 30 * US
        first_waits.append(script.now)
        script.does(STEP_WAIT_BEGIN)
        for number, size in enumerate(SIZES):
            script.does(STEP_ENQUEUE, size, at=script.begun[-1] + 10 * US + number * 3 * MS)
            script.now = script.begun[-1] + (number + 1) * 3 * MS
            script.does(STEP_WAIT_END)
            if number + 1 < len(SIZES):
                script.does(STEP_WAIT_BEGIN, at=script.now + 1 * US)
        script.ended.append(script.now)
    found = script.boundaries()
    assert found[Moment.FIRST_ENQUEUE] == script.begun
    assert found[Moment.FIRST_WAIT] == first_waits
    assert found[Moment.LAST_WAIT] == script.ended


@pytest.mark.parametrize("sizes", [SIZES, (5, 5, 5, 5, 5, 5), (3,)], ids=["mixed", "alike", "one buffer"])
def test_calls_that_nobody_is_seen_waiting_for(sizes: tuple[int, ...]) -> None:
    script = Script(LIBRARY_NCCL)
    for _ in range(2 * STEPS):
        script.now += 60 * MS
        script.begun.append(script.now)
        for size in sizes:
            script.does(STEP_ENQUEUE, size)
            script.now += 20 * US
    found = script.boundaries()
    assert found[Moment.FIRST_ENQUEUE] == script.begun
    assert found[Moment.LAST_WAIT] == found[Moment.FIRST_WAIT] == []


@pytest.mark.parametrize("every", [0, 1, 4])
@pytest.mark.parametrize("sizes", [SIZES, (7, 8)], ids=["many", "few"])
def test_a_thread_that_waits_for_its_gpu(every: int, sizes: tuple[int, ...]) -> None:
    """In each step; or never, or now and then: then a step's end is not known."""
    script = Script(LIBRARY_NCCL)
    waits = []
    for step in range(3 * STEPS):
        script.now += 60 * MS + (600 * MS if step == 2 * STEPS else 0)  # once it is late
        script.begun.append(script.now)
        for size in sizes:
            script.does(STEP_ENQUEUE, size)
            script.now += 20 * US
        for _ in range(2 if every and step % every == 0 else 0):  # the second one is for something else
            waits.append((script.now, script.now + 5 * MS))
            for kind, at in zip((STEP_WAIT_BEGIN, STEP_WAIT_END), waits[-1], strict=True):
                script.does(kind, at=at, library=LIBRARY_CUDA)
            script.now += 7 * MS
    found = script.boundaries(whole=True)
    assert found[Moment.FIRST_ENQUEUE] == script.begun
    told = list(zip(found[Moment.FIRST_WAIT], found[Moment.LAST_WAIT], strict=True))
    assert told == (waits[::2][-len(told) :] if every == 1 else [])
    assert len(told) >= STEPS or every != 1


@pytest.mark.parametrize("compute_ms", [20, 45, 80])
def test_the_step_after_an_evaluation(compute_ms: int) -> None:
    """Its metrics are averaged right before it, however short its computation is beside what it sends."""
    script = Script(LIBRARY_NCCL)
    for step in range(3 * STEPS):
        if step % 8 == 7:
            script.now += 100 * MS
            for _ in range(4):
                script.does(STEP_OTHER)
                script.now += 200 * US
        script.now += compute_ms * MS
        script.begun.append(script.now)
        for size in (7, 8):
            script.does(STEP_ENQUEUE, size)
            script.now += 20 * US
        script.now += (100 - compute_ms) * MS
    assert script.boundaries()[Moment.FIRST_ENQUEUE] == script.begun


def test_a_script_that_was_found_late_and_has_a_long_step_soon() -> None:
    script = Script(LIBRARY_NCCL)
    script.does(STEP_ENQUEUE, 8)
    for step in range(2 * STEPS):
        script.now += 60 * MS + (300 * MS if step == STEPS else 0)
        script.begun.append(script.now)
        for size in (7, 8):
            script.does(STEP_ENQUEUE, size)
            script.now += 20 * US
    assert script.boundaries(late=True)[Moment.FIRST_ENQUEUE] == script.begun


def test_calls_whose_sizes_never_come_hold_nothing_up_for_good() -> None:
    script = Script(LIBRARY_GLOO)
    script.does(STEP_CALL)
    for _ in range(20_000):
        script.now += 1 * US
        script.does(STEP_WAIT_BEGIN)
    for _ in range(STEPS):
        script.now += 60 * MS
        script.begun.append(script.now)
        for size in SIZES:
            script.reduces(size)
    assert script.boundaries()[Moment.FIRST_ENQUEUE] == script.begun
