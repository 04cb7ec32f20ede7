# SPDX-License-Identifier: Apache-2.0
"""Injections: how they are written, what is refused, and that what stops or disturbs a process lets it go again."""

import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from waiting import wait_for

from netmon.errors import UsageError
from netmon.lab.injections import programs
from netmon.lab.injections.spec import (
    CAUSES,
    FILE_PORT,
    TRANSFERS,
    Injection,
    injection,
    pauses_of,
    transfers_of,
)
from netmon.lab.spec import RunSpec
from netmon.lab.trainers.script import METRICS, Pauses, Transfers
from netmon.records import Direction

SPEC = RunSpec(Path("out"))


def test_an_injection_is_written_in_a_line():
    text = "cross:from=2,to=0,at=20.5,for=300ms,load=0.6,profile=burst"
    expected = Injection("cross", 20.5, 300_000_000, 0.6, source=2, target=0, profile="burst")
    assert injection(text) == expected
    assert injection(text.replace("from=2,to=0", "from=h2,to=h0")) == expected
    assert injection("job:hosts=0+2,params=2e6").hosts == (0, 2)
    assert injection("slow-link:host=1,direction=rx").direction == Direction.RX
    assert injection("stop-all").kind == "stop-all"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("fire", "choose cross, job"),
        ("stop:who=1", "no 'who'"),
        ("stop:rank=one", "rank cannot be 'one'"),
        ("slow-link:direction=up", "direction cannot be 'up'"),
    ],
)
def test_what_is_no_injection(text, reason):
    with pytest.raises(UsageError, match=reason) as caught:
        injection(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("stop:rank=3", "needs a rank="),
        ("stop", "needs a rank="),
        ("cross:from=2,to=2", "needs from= and to="),
        ("upload:rank=1,to=1", "not the rank's"),
        ("download:rank=1", "the file server's host"),
        ("cross:from=2,to=0,profile=voip", "no cross profile"),
        ("job:hosts=0", "two hosts or more"),
        ("slow-link:host=4", "needs a host="),
        ("loss:host=1,strength=0.9", "0 to 0.5"),
        ("stop:rank=1,at=50", "1 to 49"),
        ("stop:rank=1,for=30s", "at most 20 s"),
    ],
)
def test_what_cannot_be_done_to_a_run(text, reason):
    with pytest.raises(UsageError, match=reason):
        replace(SPEC, injections=(injection(text),)).check()


def test_every_kind_can_be_done_to_a_run():
    whole = Injection("nothing", rank=1, host=1, source=2, target=0, hosts=(0, 2))
    replace(SPEC, injections=tuple(replace(whole, kind=kind) for kind in CAUSES)).check()
    with pytest.raises(UsageError, match="only ring, horovod and ddp"):
        replace(SPEC, trainer="horovod-keras", injections=(injection("evaluate"),)).check()


def test_trainers_pause_when_they_are_asked_to(capsys):
    asked = (injection("evaluate:at=3,for=2ms"), injection("stop:rank=1"), injection("checkpoint:at=5.5,for=1ms"))
    pauses, averaged = Pauses(pauses_of(asked)), []
    for finished in range(8):
        pauses.keep(finished, lambda finished=finished: averaged.append(finished))
    assert averaged == [3] * METRICS
    (_, kind, after, begun, ended), (_, other, later, *_) = (
        line.split() for line in capsys.readouterr().out.splitlines()
    )
    assert (kind, after, other, later) == ("evaluate", "3", "checkpoint", "5")
    assert int(ended) - int(begun) >= 2_000_000
    assert pauses_of(()) == ""


@pytest.mark.parametrize("kind", TRANSFERS)
def test_a_rank_transfers_what_it_is_asked_to(kind, capsys):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    asked = (Injection(kind, at=3.25, duration_ns=10**9, strength=0.5, rank=1, target=0), injection("stop:rank=1"))
    assert transfers_of(asked, 0, ["127.0.0.1"], 80_000_000) == ""
    (text,) = transfers_of(asked, 1, ["127.0.0.1"], 80_000_000).split(",")
    assert text == f"3.25:{kind}:5000000:127.0.0.1:{FILE_PORT}"
    with program("serve", "127.0.0.1", port) as server:
        try:
            assert server.stdout.readline() == "ready\n"
            transfers, told = Transfers(text.replace(str(FILE_PORT), str(port))), []
            for finished in range(1, 6):
                transfers.begin_due(finished)
            wait_for(lambda: told.append(capsys.readouterr().out) or "ended" in "".join(told))
        finally:
            server.terminate()
    begun, ended = ("".join(told)).splitlines()
    assert begun.startswith("transfer 3.25 begun ")
    assert ended.startswith("transfer 3.25 ended ")
    assert ended.split()[-1] == ("0" if kind == "upload" else "5000000")


def test_one_rank_is_late_or_collects_garbage_when_it_is_asked_to(capsys):
    asked = (injection("late:rank=1,at=3,for=2ms,strength=0.5"), injection("gc:rank=1,at=4,for=3ms"))
    for rank in range(2):
        pauses = Pauses(pauses_of(asked), rank)
        for finished in range(8):
            pauses.be_late(finished)
            pauses.collect(finished)
            assert not pauses.keep(finished, list)
    lines = [line.split()[1:] for line in capsys.readouterr().out.splitlines()]
    assert [(kind, after) for kind, after, *_ in lines] == [("late", "3"), ("gc", "4")]
    assert all(int(ended) - int(begun) >= 2_000_000 for _, _, begun, ended in lines)


def test_trainers_change_their_batch_size_when_they_are_asked_to(capsys):
    pauses = Pauses(pauses_of((injection("batch:at=3"), injection("batch:at=5,strength=0.5"))))
    assert [pauses.computing(finished) for finished in (0, 2, 3, 4, 5, 9)] == [1, 1, 1.5, 1.5, 0.5, 0.5]
    assert pauses.keep(3, lambda: None)
    assert capsys.readouterr().out.startswith("paused batch 3 ")


@pytest.fixture
def sleeper():
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def state(process):
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2][0]


def program(*words):
    command = [sys.executable, "-I", "-S", programs.__file__, *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_a_process_is_stopped_for_as_long_as_asked(sleeper):
    with program("stop", 0.2, sleeper.pid) as stopper:
        told = dict(line.split() for line in stopper.stdout)
    assert stopper.returncode == 0
    assert int(told["ended"]) - int(told["begun"]) >= 200_000_000
    wait_for(lambda: state(sleeper) == "S")


def test_a_process_is_let_go_when_its_stopper_has_to_end(sleeper):
    with program("stop", 600, sleeper.pid, 2**22 - 1) as stopper:
        assert stopper.stdout.readline().startswith("begun")
        wait_for(lambda: state(sleeper) == "T")
        stopper.terminate()
        stopper.wait(60)
    assert stopper.returncode == 0
    wait_for(lambda: state(sleeper) == "S")


def test_busy_loops_leave_nothing_behind(sleeper):
    before = os.sched_getaffinity(sleeper.pid)
    with program("busy", 2, 600, sleeper.pid) as disturber:
        assert disturber.stdout.readline().startswith("begun")
        assert len(os.sched_getaffinity(sleeper.pid)) == 1
        children = Path(f"/proc/{disturber.pid}/task/{disturber.pid}/children").read_text().split()
        assert len(children) == 2
        disturber.terminate()
        disturber.wait(60)
    assert disturber.returncode == 0
    assert os.sched_getaffinity(sleeper.pid) == before
    assert not any(Path(f"/proc/{child}").exists() for child in children)


def test_busy_loops_leave_other_hosts_their_cpus(sleeper):
    before = os.sched_getaffinity(sleeper.pid)
    with subprocess.Popen(["sleep", "600"]) as other:
        try:
            with program("busy", 1, 600, sleeper.pid, other.pid) as disturber:
                assert disturber.stdout.readline().startswith("begun")
                assert os.sched_getaffinity(other.pid) == (before - {max(before)} or before)
                disturber.terminate()
                disturber.wait(60)
            assert os.sched_getaffinity(other.pid) == os.sched_getaffinity(sleeper.pid) == before
        finally:
            other.kill()


def test_busy_loops_end_by_themselves(sleeper):
    begun = time.monotonic()
    with program("busy", 1, 0.05, sleeper.pid) as disturber:
        disturber.wait(60)
    assert disturber.returncode == 0
    assert time.monotonic() - begun >= 0.05
