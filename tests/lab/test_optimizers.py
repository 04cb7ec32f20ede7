# SPDX-License-Identifier: Apache-2.0
"""`watch` in trainings of every kind: no step is missed or invented, and no weight differs from an unwatched one.

The trainings are in optimizer_scenarios.py; they run with Accelerate and Lightning beside real Horovod.
"""

import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from netmon.agent.training_marks import MarkSocket
from netmon.records import Moment

HERE = Path(__file__).parent
SCRIPT = HERE / "optimizer_scenarios.py"
ALONE = {
    f"HOROVOD_{whose}{what}": str(int(what == "SIZE"))
    for whose in ("", "LOCAL_", "CROSS_")
    for what in ("RANK", "SIZE")
}
SCENARIOS = (
    *("schedulers", "optimizers", "closures", "grad_scaler", "averaged", "copies", "groups", "horovods", "compiled"),
    *("nested", "broken", "sharded", "accelerate", "lightning"),
)


@pytest.fixture(scope="module")
def python() -> str:
    """The interpreter that has all of them; made where it is missing."""
    command = ["bash", str(HERE / "build_frameworks.sh")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    last = (done.stderr.strip() or "it says nothing").splitlines()[-1]
    assert done.returncode == 0, f"cannot make the environment with Accelerate and Lightning ({command[1]}): {last}"
    return done.stdout.strip().splitlines()[-1]


@contextmanager
def listening(path: Path) -> Iterator[list]:
    """What an agent hears until the context is left; nothing that is told waits for it."""
    marks, heard, over = MarkSocket(path), [], threading.Event()

    def listen() -> None:
        while not over.wait(0.01):
            heard.extend(marks.take())

    listener = threading.Thread(target=listen)
    listener.start()
    try:
        yield heard
    finally:
        over.set()
        listener.join()
        heard.extend(marks.take())
        refused = marks.refused
        marks.close()
    assert refused == 0


def environment(path: Path, rank: int, size: int) -> dict[str, str]:
    own = {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    horovod = ALONE if size == 1 else {}
    places = {"NETMON_SOCKET": str(path), "PYTHONPATH": str(HERE.parents[1]), "OMP_NUM_THREADS": "1"}
    return os.environ | own | horovod | places


@pytest.fixture(scope="module")
def told(python: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, dict], list]:
    """What the trainings say of themselves, by name, and what an agent hears of them."""
    path = tmp_path_factory.mktemp("watched") / "marks.sock"
    with listening(path) as heard:
        done = subprocess.run(
            [python, SCRIPT], env=environment(path, 0, 1), capture_output=True, text=True, check=False, timeout=300
        )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {line["name"]: line for line in lines}, heard


def steps_of(heard: list, job: str, rank: int = 0) -> int:
    return sum(mark.moment == Moment.STEP_END for mark in heard if (mark.job, mark.rank) == (job, rank))


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_step_is_told_and_no_weight_differs(told: tuple[dict[str, dict], list], name: str) -> None:
    outcomes, heard = told
    outcome = outcomes[name]
    assert "error" not in outcome, outcome["error"]
    assert outcome["numbers"]
    assert outcome["same"], "the weights differ from those of the same training without netmon"
    assert steps_of(heard, name) == outcome["steps"]


def test_a_step_that_failed_is_given_up_once(told: tuple[dict[str, dict], list]) -> None:
    moments = [mark.moment for mark in told[1] if mark.job == "nested"]
    assert (
        moments.count(Moment.JOIN) == moments.count(Moment.LEAVE) == 4 + 1
    )  # optimizers, and the one that fails again


def test_horovods_own_moments_are_in_each_of_its_steps(told: tuple[dict[str, dict], list]) -> None:
    names = ("STEP_START", "FIRST_ENQUEUE", "FIRST_WAIT", "LAST_WAIT", "STEP_END")
    steps: dict[tuple[int, int], set[str]] = {}
    moments = [mark for mark in told[1] if mark.job == "horovods" and mark.moment.name in names]
    optimizer = -1
    for mark in moments:
        optimizer += mark.moment is Moment.STEP_START and mark.iteration == 0
        steps.setdefault((optimizer, mark.iteration), set()).add(mark.moment.name)
    assert len(moments) == 3 * (3 * len(names) + 1)
    assert [sorted(steps[optimizer, step]) for optimizer in range(3) for step in range(3)] == [sorted(names)] * 9


def test_two_ranks_share_their_optimizers_state(python: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    path = tmp_path / "marks.sock"
    with listening(path) as heard, ExitStack() as cleanup:
        ranks = []
        for rank in range(2):
            variables = environment(path, rank, 2) | {"MASTER_PORT": str(port)}
            command = [python, SCRIPT, "sharded"]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            ranks.append(cleanup.enter_context(subprocess.Popen(command, env=variables, **pipes)))
        outcomes = [rank.communicate(timeout=120) for rank in ranks]
    for rank, (out, complaints) in enumerate(outcomes):
        outcome = json.loads(out.splitlines()[-1]) if out else {"error": complaints[-2000:]}
        assert "error" not in outcome, outcome["error"]
        assert outcome["same"]
        assert steps_of(heard, "sharded", rank) == outcome["steps"] == 6
