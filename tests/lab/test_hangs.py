# SPDX-License-Identifier: Apache-2.0
"""Real PyTorch on Gloo that stands still: who is told of, in what, and how soon; and of whom nobody is told."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from waiting import wait_for

from netmon.cli import main
from netmon.evidence import ProcessState
from netmon.history.dataset import read_rows
from netmon.history.groups import read_hangs
from netmon.lab.monitor import Monitor
from netmon.lab.network import INTERFACE, Network, network
from netmon.lab.process import Process
from netmon.lab.spec import RunSpec
from netmon.lab.training import Training, horovod_python
from netmon.views import Hang, Hung, Selection
from netmon.wire.watch import watch_once

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("as_horovod_is")]

RANKS, STEP = 3, 40
SCRIPT = Path(__file__).with_name("hanging.py")
SOON_NS = 6_000_000_000  # and what a busy machine takes


class Watched(NamedTuple):
    testbed: Network
    monitor: Monitor
    folder: Path
    data: Path


@pytest.fixture(scope="module")
def watched(lab_folder: Path) -> Iterator[Watched]:
    folder = lab_folder / "hangs"
    (folder / "log").mkdir(parents=True)
    data = folder / "data"
    spec = RunSpec(data, hosts=RANKS, ring=tuple(range(RANKS)), cross=(), cross_load=0)
    with network(RANKS, spec.rate_bps) as testbed, Monitor(spec, testbed, folder / "log") as monitor:
        yield Watched(testbed, monitor, folder, data)
        monitor.end_in_order()


@contextmanager
def training(watched: Watched, what: str, rank: int, port: int) -> Iterator[list[Process]]:
    """All ranks, when the one that does it has said so."""
    hosts, python = watched.testbed.hosts, horovod_python()
    common = {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": hosts[0].address, "MASTER_PORT": str(port)}
    common |= {"GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1", "NETMON_JOB": what}
    command = [
        python,
        str(SCRIPT),
        what,
        str(rank),
        str(STEP if what != "life" else 0),
        str(watched.folder / "checkpoint"),
    ]
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(
                Process(
                    *(f"{what}-{number}", command, watched.folder / "log"),
                    host=host,
                    environment=common | {"RANK": str(number), "LOCAL_RANK": "0"},
                )
            )
            for number, host in enumerate(hosts)
        ]
        stack.callback(kill, ranks)
        ranks[rank].wait_output(rf"{what} (\d+)", 120)
        yield ranks


def kill(ranks: list[Process]) -> None:
    """Stopped ones, too."""
    for rank in ranks:
        if rank.status() is None:
            os.kill(rank.pid, signal.SIGKILL)


def told(watched: Watched, job: str) -> Callable[[], Hang | None]:
    def look() -> Hang | None:
        return next((hang for hang in shown(watched, job) if hang.reported_ns and not hang.until_ns), None)

    return look


def shown(watched: Watched, job: str) -> tuple[Hang, ...]:
    """Also a wait that is no hang yet."""
    jobs = watch_once(watched.monitor.address, Selection()).jobs
    return next((one.hangs for one in jobs if one.job == job), ())


def awaited(watched: Watched, job: str) -> Hang:
    found: list[Hang] = []

    def there() -> bool:
        found.extend(hang for hang in [told(watched, job)()] if hang)
        return bool(found)

    wait_for(there, seconds=30)
    return found[-1]


def begun_ns(rank: Process, what: str) -> int:
    return int(rank.wait_output(rf"{what} (\d+)", 1)[1])


@pytest.mark.long
def test_a_rank_that_sleeps_before_a_collective(watched: Watched) -> None:
    with training(watched, "sleep", 1, 29501) as ranks:
        hang = awaited(watched, "sleep")
        assert (hang.what, hang.rank, hang.host) == (Hung.NOT_ENTERED, 1, watched.testbed.hosts[1].name)
        assert (hang.collective, hang.sequence, hang.waiting, hang.missing) == ("all-reduce", STEP + 1, (0, 2), (1,))
        assert hang.reported_ns - begun_ns(ranks[1], "sleep") < SOON_NS
    wait_for(lambda: told(watched, "sleep")() is None, seconds=30)


def test_a_rank_that_is_stopped_and_goes_on(watched: Watched) -> None:
    with training(watched, "stop", 2, 29502) as ranks:
        os.kill(ranks[2].pid, signal.SIGSTOP)
        stopped_ns = time.time_ns()
        hang = awaited(watched, "stop")
        assert (hang.what, hang.rank, hang.waiting) == (Hung.NOT_ENTERED, 2, (0, 1))
        assert "stopped" in hang.why
        assert hang.reported_ns - stopped_ns < SOON_NS
        os.kill(ranks[2].pid, signal.SIGCONT)
        wait_for(lambda: told(watched, "stop")() is None, seconds=30)
        for rank in ranks:
            rank.wait_output("done", 60)


def test_a_rank_that_calls_another_collective(watched: Watched) -> None:
    with training(watched, "other", 0, 29503) as ranks:
        hang = awaited(watched, "other")
        assert (hang.what, hang.rank) == (Hung.OTHER_CALL, 0)
        assert (hang.collective, hang.sequence, hang.why) == ("all-reduce", STEP + 1, "it has called all-gather")
        assert hang.reported_ns - begun_ns(ranks[0], "other") < SOON_NS


@pytest.mark.long
def test_a_rank_of_ddp_that_sleeps_before_its_backward_pass(watched: Watched) -> None:
    with training(watched, "ddp", 2, 29506) as ranks:
        hang = awaited(watched, "ddp")
        assert (hang.what, hang.rank, hang.collective) == (Hung.NOT_ENTERED, 2, "all-reduce")
        assert hang.waiting == (0, 1)
        assert hang.reported_ns - begun_ns(ranks[2], "ddp") < SOON_NS


def test_a_stage_of_a_pipeline_that_sleeps(watched: Watched) -> None:
    """The one before has sent, and waits in the sum; the one after waits for what it has not sent."""
    with training(watched, "pipeline", 1, 29507) as ranks:
        hang = awaited(watched, "pipeline")
        assert (hang.what, hang.rank, hang.missing, hang.waiting) == (Hung.NOT_ENTERED, 1, (1,), (0, 2))
        assert hang.reported_ns - begun_ns(ranks[1], "pipeline") < SOON_NS


@pytest.mark.long
def test_a_rank_of_horovod_that_is_stopped(watched: Watched) -> None:
    spec = RunSpec(watched.data, "horovod", hosts=RANKS, ring=tuple(range(RANKS)), job="horovod", iterations=100_000)
    spec = replace(spec, parameters=100_000, compute_ns=50_000_000)
    folder = watched.folder / "horovod"
    (folder / "log").mkdir(parents=True)
    with Training(spec, watched.testbed, folder, horovod_python()) as training, ExitStack() as stack:
        stack.callback(kill, training.ranks)
        wait_for(lambda: training.iterations_done() > STEP)
        os.kill(training.ranks[1].pid, signal.SIGSTOP)
        stopped_ns = time.time_ns()
        hang = awaited(watched, "horovod")
        assert (hang.what in (Hung.NOT_ENTERED, Hung.STOPPED_IN_IT), hang.rank, hang.waiting) == (True, 1, (0, 2))
        assert hang.reported_ns - stopped_ns < SOON_NS


@pytest.mark.long
def test_a_rank_that_ends(watched: Watched) -> None:
    """The others find out by themselves, and end, too; if they do not, they are told of it."""
    with training(watched, "end", 1, 29504):
        time.sleep(8)
        hang = told(watched, "end")()
        assert hang is None or (hang.what, hang.rank) == (Hung.GONE, 1)


@pytest.mark.long
def test_a_rank_that_computes_for_twelve_seconds_is_waited_for_and_no_hang_is_reported(watched: Watched) -> None:
    with training(watched, "busy", 0, 29505) as ranks:
        wait_for(lambda: bool(shown(watched, "busy")), seconds=60)
        [wait] = shown(watched, "busy")
        assert (wait.reported_ns, wait.rank, wait.why) == (0, 0, "it computes")
        for rank in ranks:
            rank.wait_output("done", 90)
    assert not shown(watched, "busy")


TRACER = "import ctypes, sys, time; ctypes.CDLL(None).ptrace(0x4206, int(sys.argv[1]), 0, 0); time.sleep(10)"


@pytest.mark.long
@pytest.mark.timeout(900)
def test_of_a_training_that_evaluates_compiles_writes_and_is_debugged_nobody_is_told(watched: Watched) -> None:
    """The debugger lets it run (PTRACE_SEIZE)."""
    with training(watched, "life", 0, 29508) as ranks:
        for debugged in range(2):
            ranks[1].wait_output(rf"does traced {6 * debugged + 5}\n", 400)
            subprocess.run([sys.executable, "-c", TRACER, str(ranks[1].pid)], check=True)
        for rank in ranks:
            rank.wait_output("done", 300)
    assert [one.hangs for one in watch_once(watched.monitor.address, Selection()).jobs if one.job == "life"] == [()]


def test_the_dataset_has_them(watched: Watched, capsys: pytest.CaptureFixture[str]) -> None:
    if not read_hangs(watched.data):  # this test is run by itself
        test_a_rank_that_is_stopped_and_goes_on(watched)
        test_a_rank_that_calls_another_collective(watched)
        test_a_stage_of_a_pipeline_that_sleeps(watched)
    wait_for(lambda: {hang.job for hang in read_hangs(watched.data)} >= {"stop", "other"}, seconds=30)
    hangs = read_hangs(watched.data)
    assert len(hangs) == len({hang.job for hang in hangs}), hangs
    [stop] = read_hangs(watched.data, "stop")
    assert stop.since_ns < stop.reported_ns < stop.until_ns
    columns = ["job", "rank", "quiet", "state", "start_ns", "end_ns"]
    waits = read_rows(watched.data, "waits", columns)
    waits = waits[waits["job"] == "stop"]
    stopped = waits[(waits["rank"] == 2) & (waits["quiet"] == 1) & (waits["state"] == ProcessState.STOPPED)]
    assert (stopped["end_ns"] - stopped["start_ns"] >= 1_000_000_000).all()
    assert len(stopped)
    capsys.readouterr()
    assert main(["why", "stop", "--data", str(watched.data)]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("stop stood still: rank 2 on h2 has not entered all-reduce ")
    out = watched.folder / "hang.json"
    assert main(["trace", str(watched.data), "--hang", "--job", "stop", "--out", str(out)]) == 0
    assert "stop stood still: rank 2" in out.read_text()
