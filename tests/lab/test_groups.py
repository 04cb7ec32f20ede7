# SPDX-License-Identifier: Apache-2.0
"""Groups of real parallel trainings: who is in them, what they are for, what is exchanged in a step, to the byte.
And in which of them ranks waited for one that was late."""

import subprocess
from pathlib import Path

import pandas as pd
import pytest

from netmon.cli import main
from netmon.dl.groups import DATA, EXPERT, PIPELINE, SHARDED, TENSOR, UNCLEAR, GroupUse, Sent
from netmon.history.groups import exposed_in, groups_of
from netmon.history.judging import verdicts
from netmon.lab.injections.spec import Injection
from netmon.lab.run import run
from netmon.lab.spec import RunSpec
from netmon.lab.training import horovod_python

pytestmark = pytest.mark.kernel

MILLISECOND = 1_000_000
STEPS, PARAMETERS, VALUE = 40, 400_000, 4
LATE_NS = 300 * MILLISECOND
RANKS = {"ddp": 2, "fsdp": 3, "pipeline": 3, "experts": 3, "tensor": 2, "hybrid": 8}
ROUTED = """
import sys, torch
size, parameters, steps, layers = map(int, sys.argv[1:])
router, each = torch.Generator().manual_seed(0), parameters // (2 * size * layers)
for _ in range(steps):
    got = torch.zeros(size, dtype=torch.int64)
    for _ in range(layers):
        counts = (torch.rand(size, size, generator=router) * 2 * each).int()
        got += 2 * (counts.sum(0) + counts.sum(1))
    print(*got.tolist())
"""


def trained(folder: Path, trainer: str, *injections: Injection) -> Path:
    ranks = tuple(range(RANKS[trainer]))
    quiet = {"hosts": len(ranks), "ring": ranks, "cross": (), "cross_load": 0}
    spec = {"parameters": PARAMETERS, "compute_ns": 50 * MILLISECOND, "iterations": STEPS, "injections": injections}
    run(RunSpec(folder, trainer, **quiet, **spec))
    return folder


def uses_of(data: Path) -> tuple[list[GroupUse], pd.DataFrame]:
    (found,) = groups_of(data).values()
    return found


def told(use: GroupUse) -> list[tuple[str, float, float]]:
    """That all ranks call alike."""
    assert all(one.calls[0] == one.calls[1] and one.bytes[0] == one.bytes[1] for one in use.operations)
    return [(one.name, one.calls[0], one.bytes[0]) for one in use.operations]


def same_in_every_step(rows: pd.DataFrame) -> bool:
    counts = rows.fillna({"peer": -1}).groupby(["rank", "group", "operation", "peer"])[["calls", "bytes"]].nunique()
    return bool((counts == 1).all(axis=None)) and rows.groupby("rank")["end_ns"].nunique().min() >= STEPS - 1


@pytest.mark.long
def test_ddp(tmp_path: Path) -> None:
    (use,), _ = uses_of(trained(tmp_path / "run", "ddp"))
    assert (use.kind, use.ranks, use.phase) == (DATA, (0, 1), "backward")
    ((name, _, size),) = told(use)
    assert name == "all-reduces"
    assert PARAMETERS <= size / VALUE < 1.001 * PARAMETERS


@pytest.mark.long
def test_fsdp(tmp_path: Path) -> None:
    (use,), rows = uses_of(trained(tmp_path / "run", "fsdp"))
    assert (use.kind, use.ranks) == (SHARDED, (0, 1, 2))
    gathered, summed = told(use)
    assert gathered[:2] == ("all-gathers", 4)
    assert summed == ("all-reduces", 4, 3 * gathered[2])  # as Gloo scatters
    assert PARAMETERS <= summed[2] / VALUE < 1.001 * PARAMETERS
    assert same_in_every_step(rows)


@pytest.mark.long
def test_a_pipeline(tmp_path: Path) -> None:
    (use,), rows = uses_of(trained(tmp_path / "run", "pipeline"))
    assert (use.kind, use.ranks) == (PIPELINE, (0, 1, 2))
    ways = ((0, 1), (1, 0), (1, 2), (2, 1))
    assert use.sent == tuple(Sent(*way, 4, PARAMETERS * VALUE) for way in ways)
    assert same_in_every_step(rows)


@pytest.mark.long
def test_experts(tmp_path: Path) -> None:
    data = trained(tmp_path / "run", "experts")
    uses, rows = uses_of(data)
    assert [(use.kind, use.ranks) for use in uses] == [(DATA, (0, 1, 2)), (EXPERT, (0, 1, 2))]
    assert told(uses[0]) == [("all-reduces", 1, PARAMETERS // 2 * VALUE)]
    (exchanges,) = uses[1].operations
    assert (exchanges.name, exchanges.calls) == ("all-to-alls", (8, 8))
    command = [horovod_python(), "-c", ROUTED, "3", str(PARAMETERS), str(STEPS), "2"]
    routed = [list(map(int, line.split())) for line in subprocess.check_output(command, text=True).splitlines()]
    for rank in range(3):
        own = rows[(rows["rank"] == rank) & rows["operation"].isin(uses[1].codes)].sort_values("end_ns")
        assert own["bytes"].tolist() == [VALUE * step[rank] for step in routed]


@pytest.mark.long
def test_tensor(tmp_path: Path) -> None:
    (use,), rows = uses_of(trained(tmp_path / "run", "tensor"))
    assert (use.kind, use.ranks) == (TENSOR, (0, 1))
    activations = PARAMETERS // (4 * 64) * 64 * VALUE
    assert told(use) == [("all-reduces", 7, 7 * activations)]  # of what the first block gets there is no gradient
    assert same_in_every_step(rows)


@pytest.mark.long
def test_all_in_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = trained(tmp_path / "run", "hybrid")
    uses, rows = uses_of(data)
    assert same_in_every_step(rows)
    activations = PARAMETERS // (4 * 4 * 64) * 64 * VALUE
    found = {(use.kind, use.ranks) for use in uses}
    layers = {(0, 1), (2, 3), (4, 5), (6, 7)}
    assert {ranks for kind, ranks in found if kind == TENSOR} == layers
    assert {ranks for kind, ranks in found if kind == PIPELINE} == {(0, 4), (1, 5), (2, 6), (3, 7)}
    assert {ranks for kind, ranks in found if kind == SHARDED} == {(0, 2), (1, 3), (4, 6), (5, 7)}
    assert [ranks for kind, ranks in found if kind == UNCLEAR] == [tuple(range(8))]  # a sum of one value
    for use in uses:
        if use.kind == PIPELINE:
            first, second = use.ranks
            assert use.sent == (Sent(first, second, 4, 4 * activations), Sent(second, first, 4, 4 * activations))
    capsys.readouterr()
    assert main(["why", "--groups", "--data", str(data)]) == 0
    shown = capsys.readouterr().out
    assert "pipeline" in shown
    assert "rank 0 sends to 4: 4 a step" in shown


@pytest.mark.parametrize(
    ("trainer", "rank", "words"),
    [
        ("fsdp", 1, "all-gather 201 of the sharded data group; rank 1 entered last"),
        pytest.param("pipeline", 1, "the receives of the pipeline group; rank 1 computed", marks=pytest.mark.long),
        pytest.param("experts", 2, "all-to-all 226 of the expert group; rank 2 entered last", marks=pytest.mark.long),
    ],
)
def test_whom_the_others_waited_for_and_in_which_group(tmp_path: Path, trainer: str, rank: int, words: str) -> None:
    data = trained(tmp_path / "run", trainer, Injection("late", at=25, duration_ns=LATE_NS, rank=rank))
    (verdict,) = verdicts(data, None, 25)
    iterations = pd.read_parquet(data / "iterations", columns=["rank", "iteration"])
    assert {rank: sorted(own) for rank, own in iterations.groupby("rank")["iteration"]} == {
        rank: list(range(STEPS)) for rank in range(3)
    }
    said = exposed_in(data, verdict)
    others = [number for number in range(3) if number != rank]
    assert said.startswith(f"ranks {others[0]}, {others[1]} waited up to ")
    assert words in said
