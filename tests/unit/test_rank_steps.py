# SPDX-License-Identifier: Apache-2.0
"""Which of two ways reports a rank's steps, and that numbers go on where that changes."""

import numpy as np
from step_recordings import read

from netmon.dl.rank_steps import Basis, RankSteps
from netmon.records import Moment, Table

SECOND = 1_000_000_000


def parts(calls: Table) -> list[Table]:
    return np.split(calls, np.flatnonzero(np.diff(calls["time_ns"] // (SECOND // 5))) + 1)


def numbers(steps: RankSteps, calls: Table) -> list[int]:
    found = [boundary for part in parts(calls) for boundary in steps.feed(part, 2)]
    return [number for number, moment, _ in found if moment is Moment.FIRST_ENQUEUE]


def after_it(before: Table, calls: Table) -> Table:
    """These calls, a second after those."""
    later = calls.copy()
    later["time_ns"] -= later["time_ns"][0]
    later["time_ns"] += before["time_ns"][-1] + np.uint64(SECOND)
    return later


def test_numbers_go_on_where_a_model_of_ddp_is_trained_afterwards() -> None:
    before, after = read("hybrid")[0], read("ddp-accumulating")[0]
    later = after_it(before.calls, after.calls)
    steps = RankSteps()
    first = numbers(steps, before.calls)
    assert steps.basis is Basis.CALLS
    second = numbers(steps, later)
    assert steps.basis is Basis.SUMS
    assert first + second == list(range(len(before.steps) + len(after.steps)))


def test_numbers_go_on_where_the_job_is_set_up_anew() -> None:
    before, after = read("hybrid")[0], read("fsdp-freezing")[0]
    later = after_it(before.calls, after.calls)
    steps = RankSteps()
    first = numbers(steps, before.calls)
    steps.restart()
    second = numbers(steps, later)
    second += [number for number, moment, _ in steps.finish() if moment is Moment.FIRST_ENQUEUE]
    assert first + second == list(range(len(before.steps) + len(after.steps)))
