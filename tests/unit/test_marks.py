# SPDX-License-Identifier: Apache-2.0
"""From a training script to its agent: the hook, the packet, and the socket it arrives on."""

import os
import signal
import socket
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netmon.agent.training_marks import MarkSocket
from netmon.errors import UsageError
from netmon.horovod import Steps, watch
from netmon.marks import MarkPacket, decode, encode, rank_from_environment
from netmon.records import Moment, Source


@pytest.fixture
def marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "marks.sock"
    monkeypatch.setenv("NETMON_SOCKET", str(path))
    socket = MarkSocket(path)
    yield socket
    socket.close()


def test_literal_bytes() -> None:
    packet = (
        b"NMK2"
        b"\x04\x00\x00\x00"  # length of the name
        b"\x01\x00\x00\x00"  # rank
        b"\x03\x00\x00\x00"  # size
        b"\x00\x09\x3d\x00\x00\x00\x00\x00"  # parameters
        b"ring"
        b"\x03\x00\x00\x00\x00\x00\x00\x00"  # FIRST_ENQUEUE
        b"\x07\x00\x00\x00\x00\x00\x00\x00"  # iteration
        b"\x00\xca\x9a\x3b\x00\x00\x00\x00"  # time_ns
    )
    mark = MarkPacket("ring", 1, 3, 7, Moment.FIRST_ENQUEUE, 1_000_000_000, 4_000_000)
    assert encode(mark) == packet
    assert decode(packet) == [mark]
    assert decode(packet + packet[-24:]) == [mark, mark]


@given(st.binary(max_size=400))
def test_any_bytes_are_a_mark_or_refused(packet: bytes) -> None:
    try:
        marks = decode(packet)
    except ValueError:
        return
    assert encode(marks[0])[:8] == packet[:8]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"HOROVOD_RANK": "1", "HOROVOD_SIZE": "4", "NETMON_JOB": "resnet"}, ("resnet", 1, 4)),
        (
            {
                "HOROVOD_RANK": "0",
                "HOROVOD_SIZE": "2",
                "HOROVOD_GLOO_RENDEZVOUS_ADDR": "a",
                "HOROVOD_GLOO_RENDEZVOUS_PORT": "1",
            },
            ("a:1", 0, 2),
        ),
        ({"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "m", "MASTER_PORT": "29500"}, ("m:29500", 3, 8)),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}, ("training", 2, 4)),
        ({"RANK": "4", "WORLD_SIZE": "4"}, None),
        ({"RANK": "x", "WORLD_SIZE": "4"}, None),
        ({}, None),
    ],
)
def test_the_rank_is_what_the_launcher_says(environment: dict[str, str], expected: object) -> None:
    assert rank_from_environment(environment) == expected


def test_every_moment_of_a_step_arrives_in_order(marks: MarkSocket) -> None:
    steps = Steps("job", 1, 2, parameters=10)
    for _ in range(60):  # more than a drain of the agent ever finds
        with steps.step():
            steps.first_enqueue()
            steps.last_wait()
    steps.close()
    got = marks.take()
    moments = [Moment.STEP_START, Moment.FIRST_ENQUEUE, Moment.LAST_WAIT, Moment.STEP_END]
    expected = [(i, moment) for i in range(60) for moment in moments]
    assert [(mark.iteration, mark.moment) for mark in got[1:-1]] == expected
    assert (got[0].moment, got[-1].moment) == (Moment.JOIN, Moment.LEAVE)
    assert {(mark.job, mark.rank, mark.size, mark.parameters, mark.source) for mark in got} == {
        ("job", 1, 2, 10, Source.HOOK)
    }
    assert [mark.time_ns for mark in got] == sorted(mark.time_ns for mark in got)


def test_a_process_that_dies_leaves(marks: MarkSocket) -> None:
    script = "import os; from netmon.horovod import Steps; s = Steps('job', 0, 1); s.begin(); os._exit(1)"
    process = subprocess.Popen([sys.executable, "-c", script])
    process.wait()
    got = marks.take()
    assert [mark.moment for mark in got] == [Moment.JOIN, Moment.STEP_START, Moment.LEAVE]
    assert {mark.pid for mark in got} == {process.pid}


def test_a_process_is_gone_though_its_child_lives(marks: MarkSocket) -> None:
    script = "import os, time; from netmon.horovod import Steps; s = Steps('job', 0, 1); os.fork() or time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", script], start_new_session=True) as process:
        process.wait()
        got = [mark.moment for mark in marks.take()]
        os.killpg(process.pid, signal.SIGKILL)
    assert got == [Moment.JOIN, Moment.LEAVE]


def test_a_process_is_not_spoken_for_by_its_child(marks: MarkSocket) -> None:
    mark = MarkPacket("job", 0, 1, 0, Moment.JOIN, time.monotonic_ns(), 0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sender:
        sender.connect(str(marks._path))
        sender.send(encode(mark))
        script = f"import socket; socket.socket(fileno={sender.fileno()}).send({encode(mark._replace(iteration=1))!r})"
        subprocess.run([sys.executable, "-c", script], pass_fds=[sender.fileno()], check=True)
        assert len(marks.take()) == 1
    assert marks.refused == 1


def test_open_files_that_come_with_marks_are_not_taken(marks: MarkSocket) -> None:
    mark = MarkPacket("job", 0, 1, 0, Moment.JOIN, time.monotonic_ns(), 0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sender, open(marks._path.parent / "f", "w") as given:
        sender.connect(str(marks._path))
        socket.send_fds(sender, [encode(mark)], [given.fileno()] * 16)  # before it is accepted, and afterwards
        assert len(marks.take()) == 1
        start = mark._replace(moment=Moment.STEP_START, time_ns=time.monotonic_ns())
        socket.send_fds(sender, [encode(start)], [given.fileno()] * 16)
        assert len(marks.take()) == 1
        own = Path("/proc/self/fd")
        names = [os.readlink(own / number) for number in os.listdir(own) if os.path.lexists(own / number)]
        assert names.count(given.name) == 1


def test_without_an_agent_it_does_nothing_and_with_a_late_one_it_joins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NETMON_SOCKET", str(tmp_path / "late.sock"))
    monkeypatch.setattr("netmon.training.steps._TRY_AGAIN_NS", 0)
    steps = Steps("job", 0, 1)
    with steps.step():
        pass
    late = MarkSocket(tmp_path / "late.sock")
    with steps.step():
        pass
    steps.close()
    assert [(m.iteration, m.moment) for m in late.take()][:2] == [(0, Moment.JOIN), (1, Moment.STEP_START)]
    late.close()


def test_an_agent_that_comes_again_is_joined_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "marks.sock"
    monkeypatch.setenv("NETMON_SOCKET", str(path))
    monkeypatch.setattr("netmon.training.steps._TRY_AGAIN_NS", 0)
    first = MarkSocket(path)
    steps = Steps("job", 0, 1)
    first.take()
    first.close()
    with steps.step():  # notices
        pass
    second = MarkSocket(path)
    with steps.step():
        pass
    assert [m.moment for m in second.take()] == [Moment.JOIN, Moment.STEP_START, Moment.STEP_END]
    steps.close()
    second.close()


def test_a_wrapped_optimizer_marks_its_steps(marks: MarkSocket) -> None:
    class Optimizer:
        param_groups = ()

        def step(self) -> str:
            return "stepped"

    optimizer = watch(Optimizer(), job="job", rank=0, size=1)
    assert [optimizer.step() for _ in range(3)] == ["stepped"] * 3
    got = [(m.iteration, m.moment) for m in marks.take()]
    assert got[1:] == [
        *((i, moment) for i in range(3) for moment in (Moment.STEP_START, Moment.STEP_END)),
        (3, Moment.STEP_START),
    ]
    optimizer.netmon.close()


def test_a_stale_socket_is_taken_over_and_a_live_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "marks.sock"
    first = MarkSocket(path)
    with pytest.raises(UsageError, match="cannot listen for marks"):
        MarkSocket(path)
    first._socket.close()  # as if killed
    MarkSocket(path).close()


def test_the_hook_costs_microseconds(marks: MarkSocket) -> None:
    """No figure is asserted, only that nothing blocks: a thousand steps that nobody takes are over at once."""
    steps = Steps("job", 0, 1)
    begin = time.monotonic()
    for _ in range(1000):
        with steps.step():
            pass
    assert time.monotonic() - begin < 5
    steps.close()


def test_a_rank_that_is_given_another_number_joins_again(marks: MarkSocket, monkeypatch: pytest.MonkeyPatch) -> None:
    horovod = types.SimpleNamespace(rank=lambda: 1, size=lambda: 3)
    monkeypatch.setitem(sys.modules, "horovod.torch", horovod)
    monkeypatch.setattr("netmon.training.steps._RESET_NS", 0)
    steps = Steps("job")
    with steps.step():
        pass
    horovod.rank, horovod.size = (lambda: 0), (lambda: 2)
    with steps.step():
        pass
    steps.close()
    got = [(mark.rank, mark.size, mark.moment) for mark in marks.take()]
    step = (Moment.STEP_START, Moment.STEP_END)
    assert got == [
        (1, 3, Moment.JOIN),
        *((1, 3, moment) for moment in step),
        (1, 3, Moment.LEAVE),
        (0, 2, Moment.JOIN),
        *((0, 2, moment) for moment in (*step, Moment.LEAVE)),
    ]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"rank": 0}, "another rank"),
        ({"time_ns": 1}, "another clock"),
        ({"ahead_ns": 10**12}, "another clock"),
        ({"ahead_ns": -(10**9)}, "older than the one before"),
        ({}, "twice"),
        ({"iteration": -1}, "no number of an iteration"),
        ({"parameters": 2**64 - 1}, "no number of parameters"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_mark_that_contradicts_the_ones_before_is_counted(
    marks: MarkSocket, wrong: dict[str, int], reason: str
) -> None:
    now = time.monotonic_ns()
    join = MarkPacket("job", 1, 2, 0, Moment.JOIN, now - 2000, 0)
    start = MarkPacket("job", 1, 2, 5, Moment.STEP_START, now - 1000, 0)
    bad = start._replace(rank=wrong.get("rank", 1), time_ns=wrong.get("time_ns", now - 1000 + wrong.get("ahead_ns", 0)))
    bad = bad._replace(iteration=wrong.get("iteration", 5), parameters=wrong.get("parameters", 0))
    end = start._replace(moment=Moment.STEP_END, time_ns=now)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sender:
        sender.connect(str(marks._path))
        for mark in (join, start, bad, end):
            sender.send(encode(mark))
        got = marks.take()
    assert [mark.moment for mark in got] == [Moment.JOIN, Moment.STEP_START, Moment.STEP_END], reason
    assert marks.refused == 1


def test_what_horovods_optimizer_does_in_a_step_is_marked(marks: MarkSocket) -> None:
    class Optimizer:
        param_groups = ()

        def _allreduce_grad_async(self, gradient: object) -> None: ...

        def synchronize(self) -> None: ...

        def step(self) -> None:
            self._allreduce_grad_async(1)
            self._allreduce_grad_async(2)
            self.synchronize()

    optimizer = watch(Optimizer(), job="job", rank=0, size=1)
    optimizer.step()
    names = ("STEP_START", "FIRST_ENQUEUE", "FIRST_WAIT", "LAST_WAIT", "STEP_END", "STEP_START")
    assert [mark.moment.name for mark in marks.take()[1:]] == list(names)
    optimizer.netmon.close()


def test_a_step_that_fails_is_none_and_the_next_one_has_its_number(
    marks: MarkSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an elastic job of which a peer dies: the survivors are set up anew, here with other ranks."""
    horovod = types.SimpleNamespace(rank=lambda: 1, size=lambda: 3)
    monkeypatch.setitem(sys.modules, "horovod.torch", horovod)

    class Optimizer:
        param_groups = ()
        peers_live = True

        def zero_grad(self) -> None: ...

        def _allreduce_grad_async(self, gradient: object) -> None: ...

        def synchronize(self) -> None:
            if not self.peers_live:
                raise RuntimeError

        def step(self) -> None:
            self._allreduce_grad_async(1)
            self.synchronize()

    optimizer = watch(Optimizer(), job="job")
    optimizer.step()
    optimizer.peers_live = False
    with pytest.raises(RuntimeError):
        optimizer.step()
    horovod.rank, horovod.size, optimizer.peers_live = (lambda: 0), (lambda: 2), True
    optimizer.zero_grad()
    optimizer.step()
    optimizer.netmon.close()
    names = ("STEP_START", "FIRST_ENQUEUE", "FIRST_WAIT", "LAST_WAIT", "STEP_END")
    assert [(mark.rank, mark.size, mark.iteration, mark.moment.name) for mark in marks.take()] == [
        (1, 3, 0, "JOIN"),
        *((1, 3, 0, name) for name in names),
        (1, 3, 1, "STEP_START"),
        (1, 3, 1, "LEAVE"),
        (0, 2, 0, "JOIN"),
        *((0, 2, 1, name) for name in names),
        (0, 2, 2, "STEP_START"),
        (0, 2, 2, "LEAVE"),
    ]


def test_a_step_left_by_an_exception_is_none(marks: MarkSocket) -> None:
    steps = Steps("job", 0, 1)
    with pytest.raises(KeyError), steps.step():
        raise KeyError
    with steps.step():
        pass
    steps.close()
    got = [(mark.iteration, mark.moment.name) for mark in marks.take()]
    begun = (0, "STEP_START")
    assert got == [(0, "JOIN"), begun, (0, "LEAVE"), (0, "JOIN"), begun, (0, "STEP_END"), (1, "LEAVE")]
