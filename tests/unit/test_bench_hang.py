# SPDX-License-Identifier: Apache-2.0
"""What `netmon bench hang` plans, and what it counts as right."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from netmon.bench.hang import HangResult, Injection, Outcome, plan
from netmon.bench.result import document
from netmon.bench.specs import HANG_KINDS, HANG_TRAINERS, HangSpec
from netmon.bench.undisturbed import UndisturbedResult, pauses
from netmon.errors import UsageError
from netmon.views import Hang, Hung

S = 1_000_000_000
TOLD = Hang("run", S, 0, 4 * S, Hung.NOT_ENTERED, "all-gather", 9, "", 1, "h1", "it sleeps", (1,), (0, 2))


def outcome(kind: str = "sleep", hang: Hang | None = TOLD, trainer: str = "fsdp") -> Outcome:
    return Outcome(Injection("run", trainer, kind, 1), S, 9, hang=hang)


def test_every_kind_and_trainer_has_its_turn() -> None:
    runs = plan(HangSpec(runs=60))
    kinds = Counter(one.kind for run in runs for one in run)
    assert set(kinds) == set(HANG_KINDS)
    assert {run[0].trainer for run in runs} == set(HANG_TRAINERS)
    for run in runs:
        assert [one.kind in ("stop", "link") for one in run] == [True, True, False]
    assert not [one for run in runs for one in run if one.trainer == "horovod" and one.kind == "cross"]
    assert plan(HangSpec(runs=60)) == runs


def test_a_kind_that_nobody_knows() -> None:
    with pytest.raises(UsageError, match="cannot do melt: choose from sleep, "):
        HangSpec(kinds="sleep,melt")


@pytest.mark.parametrize(
    ("one", "right"),
    [
        (outcome(), (True, True)),
        (outcome(hang=None), (False, False)),
        (outcome(hang=replace(TOLD, rank=2)), (False, True)),
        (outcome(hang=replace(TOLD, sequence=10)), (True, False)),
        (outcome("stop", replace(TOLD, collective="reduce-scatter", sequence=40)), (True, True)),
        (outcome("kill"), (False, True)),
        (outcome("link", replace(TOLD, what=Hung.CUT_OFF, rank=0, missing=(0, 1))), (True, True)),
        (outcome("cross", replace(TOLD, what=Hung.CROSSWISE, collective="all-reduce", missing=(0, 1))), (True, True)),
        (outcome("sleep", replace(TOLD, collective="all-reduce"), "ddp"), (True, True)),
    ],
)
def test_what_is_right(one: Outcome, right: tuple[bool, bool]) -> None:
    assert (one.right_rank, one.right_collective) == right


def test_what_ended_by_itself_did_not_stand_still() -> None:
    ended = outcome("size", hang=None)
    ended.ended_itself = True
    result = HangResult(1, [ended])
    assert (result.kinds["size"].injected, result.kinds["size"].ended_itself) == (0, 1)
    assert "run, size of rank 1: the training ended by itself" in list(result.shown())


def test_the_result_says_what_was_not_right() -> None:
    result = HangResult(1, [outcome(), outcome(hang=None)], undisturbed_s=60.0)
    lines = [part for part in result.shown() if isinstance(part, str)]
    assert lines == [
        "reported while nothing was done: 0 in 1.0 min",
        "waits shown meanwhile: 0",
        "run, sleep of rank 1, before 9: nothing reported",
    ]
    found = document(result)
    assert found["kinds"]["sleep"]["reported"] == 1
    assert found["kinds"]["sleep"]["delay_s_median"] == 3.0
    assert found["outcomes"][1]["reported"] is None


def test_an_undisturbed_training_has_pauses_that_its_ranks_make_themselves() -> None:
    some = [pauses(np.random.default_rng(seed), 3) for seed in range(20)]
    kinds = Counter(one.kind for each in some for one in each)
    assert set(kinds) == {"late", "evaluate", "checkpoint", "gc", "batch"}
    for each in some:
        assert [(one.kind, one.at, one.rank) for one in each[:3]] == [("late", 1, 0), ("late", 1, 1), ("late", 1, 2)]
        assert len({one.at for one in each}) == len(each) - 2
        # A rank that sleeps for longer is one that others wait for in vain, as far as anybody can say.
        assert all(one.duration_ns <= 2 * S for one in each if one.kind == "late" and one.strength < 1)
        assert max(one.duration_ns for one in each) <= 30 * S


def test_what_is_shown_of_undisturbed_training() -> None:
    result = UndisturbedResult(
        {"ddp": 1.5}, Counter(ddp=9), Counter(evaluate=3, debugger=2), ["line"], ["ddp-2: why"], True
    )
    assert [str(line) for line in result.shown()][1:] == [
        "pauses: 2 debugger, 3 evaluate",
        "reported: 1 in 1.50 hours",
        "line",
        "ddp-2: why",
        "interrupted: this is what was there",
    ]
    assert HangSpec().measured_by == "hang:measure"
    assert HangSpec(undisturbed=8).measured_by == "undisturbed:measure"


def test_what_is_there_is_not_written_over(tmp_path):
    assert HangSpec(data=tmp_path / "new").data
    with pytest.raises(UsageError, match="it exists"):
        HangSpec(data=tmp_path)
