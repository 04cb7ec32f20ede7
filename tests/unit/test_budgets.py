# SPDX-License-Identifier: Apache-2.0
"""What strangers may have of the agent: names, marks, connections, calls, and turns."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text
from test_steps import NOW, moments, process, set_up, steps

from netmon.agent.steps import StepMarks
from netmon.agent.training_marks import MarkSocket
from netmon.dl.cycles import CycleDetector
from netmon.kernel.privileged import MOST_OF_USER, choose_candidates
from netmon.kernel.processes import MOST_ENVIRONMENT, Process, in_turn, read_bounded
from netmon.marks import MOST_MARKS, MarkPacket, RankIdentity, decode, encode, head, printable, rank_from_environment
from netmon.rate_limiter import RateLimiters
from netmon.records import LIBRARY_HOROVOD, STEP_DROPPED, STEP_ENQUEUE, Moment, Table, calls_of
from netmon.top.glyphs import shown

SECOND = 1_000_000_000


@given(st.text())
def test_a_name_is_short_and_can_be_shown(text: str) -> None:
    name = printable(text)
    assert len(name.encode()) <= 255
    assert name.isprintable()
    assert printable(name) == name


def test_a_name_of_a_stranger_does_nothing_in_the_viewer() -> None:
    drawn = shown(Text.assemble(("JOB ", "bold"), ("\x1b[2J\u202egpj.exe\nx", "red")))
    assert drawn.plain == "JOB \ufffd[2J\ufffdgpj.exe\ufffdx"
    assert [(span.start, span.end, span.style) for span in drawn.spans] == [(0, 4, "bold"), (4, 18, "red")]


@pytest.mark.parametrize("rank", [-1, 1 << 20, 3_000_000_000, 2**64])
def test_a_rank_that_no_job_has_is_none(rank: int) -> None:
    assert rank_from_environment({"RANK": str(rank), "WORLD_SIZE": str(rank + 1)}) is None


def test_a_packet_of_such_a_rank_is_refused() -> None:
    mark = MarkPacket("job", 0, 1, 0, Moment.JOIN, 1, 0)
    with pytest.raises(ValueError, match="rank 2147483646"):
        decode(encode(mark._replace(rank=2**31 - 2, size=2**31 - 1)))


def test_a_library_that_is_set_up_as_such_a_rank_is_not() -> None:
    marks = StepMarks()
    marks.ranks([process(5)], NOW)
    assert marks.steps(set_up(5, 2**32 - 1, 2**32 - 1, NOW + 1)) == []
    assert marks.identities()[5] == RankIdentity("job", 0, 2)
    assert marks.refused


def test_a_budget_comes_back_with_time() -> None:
    budget = RateLimiters(10, 20)
    assert sum(budget.take_one("a", 0) for _ in range(100)) == 20
    assert sum(budget.take_one("a", SECOND) for _ in range(100)) == 10
    assert budget.left("b", SECOND) == 20


def test_everybody_has_a_turn() -> None:
    assert list(in_turn([1, 2, 3, 11, 12, 21], lambda item: item // 10)) == [1, 11, 21, 2, 12, 3]


@pytest.fixture
def marks(tmp_path: Path) -> Iterator[MarkSocket]:
    socket_ = MarkSocket(tmp_path / "marks.sock")
    yield socket_
    socket_.close()


def connected(marks: MarkSocket) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    connection.connect(str(marks._path))
    return connection


def test_a_flood_stays_in_its_own_connection(marks: MarkSocket) -> None:
    with connected(marks) as flood:
        whose = head("flood", 0, 1, 0)
        now = time.monotonic_ns()
        flood.send(encode(MarkPacket("flood", 0, 1, 0, Moment.JOIN, now, 0)))
        sent, full = 0, False
        while not full:
            many = [(Moment.STEP_START, sent + number, now) for number in range(MOST_MARKS)]
            try:
                flood.send(whose + b"".join(np.array(many, "<i8").tobytes() for many in many))
                sent += MOST_MARKS
            except BlockingIOError:
                full = True
        taken = len(marks.take())
        assert 0 < taken < sent


def test_connections_of_a_user_are_bounded(marks: MarkSocket) -> None:
    connections = [connected(marks) for _ in range(40)]
    marks.take()
    assert len(marks._connections) == 32  # of one process
    assert marks.refused == 8
    for connection in connections:
        connection.close()


def test_a_process_is_one_rank(marks: MarkSocket) -> None:
    with connected(marks) as first, connected(marks) as second:
        for rank, connection in enumerate((first, second)):
            connection.send(encode(MarkPacket("job", rank, 2, 0, Moment.JOIN, time.monotonic_ns(), 0)))
        assert [mark.rank for mark in marks.take()] == [0]
        assert marks.refused == 1


def test_a_process_that_joins_all_the_time_is_cut_off(marks: MarkSocket) -> None:
    joined = 0
    with connected(marks) as connection:
        for number in range(600):
            mark = MarkPacket("job", number, 1000, 0, Moment.JOIN, time.monotonic_ns(), 0)
            try:
                connection.send(encode(mark))
            except OSError:
                break
            joined += sum(mark.moment is Moment.JOIN for mark in marks.take())
    assert 0 < joined < 600
    assert marks.refused


def test_calls_without_end_and_names_without_end_take_bounded_memory() -> None:
    detector, name = CycleDetector(), 0
    for _ in range(8):
        rows = [(name + i, name + i + 1, 5, STEP_ENQUEUE, LIBRARY_HOROVOD, 1, 0) for i in range(10_000)]
        name += len(rows)
        detector.feed(calls_of(rows))
    assert detector.pending <= 70_000
    marks = StepMarks()
    ranks = [process(pid, rank=pid) for pid in range(1, 11)]
    marks.ranks(ranks, NOW)
    for drain in range(8):
        rows = [
            (drain * 10_000 + i, drain * 10_000 + i + 1, pid, STEP_ENQUEUE, LIBRARY_HOROVOD, 1, 0)
            for pid in range(1, 11)
            for i in range(2_000)
        ]
        marks.steps(calls_of(rows))
    assert sum(rank.steps.pending for rank in marks._ranks.values()) <= 100_000
    assert marks.refused


def strange_calls(pid: int, begin: int, count: int) -> Table:
    """No two of one name, 1 µs apart."""
    rows = [(NOW + i * 1000, i + 1, pid, STEP_ENQUEUE, LIBRARY_HOROVOD, 1, 0) for i in range(begin, begin + count)]
    return calls_of(rows)


def test_calls_that_lead_to_no_step_are_looked_at_no_more_and_who_trains_is_not_hurt() -> None:
    marks = StepMarks()
    marks.ranks([process(pid, rank=pid) for pid in range(1, 6)], NOW)
    trained = moments(marks.steps(steps(5, 4)), Moment.FIRST_ENQUEUE)
    for drain in range(30):
        for pid in range(1, 5):
            marks.steps(strange_calls(pid, drain * 2_000, 2_000))
    assert marks.refused > 4 * 60_000 - 100_000
    trained += moments(marks.steps(steps(5, 4, NOW + 10_000_000)), Moment.FIRST_ENQUEUE)
    assert trained == list(range(8))


def test_steps_of_a_process_have_a_rate() -> None:
    marks = StepMarks()
    marks.ranks([process(5)], NOW)
    for part in range(100):
        marks.steps(steps(5, 100, NOW + part * 100_000_000))  # 1,000 a second
    assert 2_000 < marks._ranks[5].steps.iteration < 5_000
    assert marks.refused


def test_what_unknown_processes_call_is_held_for_a_while_only() -> None:
    marks = StepMarks()
    for drain in range(200):
        marks.steps(calls_of([(drain, 1, pid, STEP_ENQUEUE, LIBRARY_HOROVOD, 1, 0) for pid in range(1000)]))
    assert sum(map(len, marks._unknown)) <= 100_000
    marks.steps(steps(5000, 4))
    assert len([m for m in marks.ranks([process(5000)], NOW) if m.moment is Moment.FIRST_ENQUEUE]) == 4


def test_who_calls_too_often_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    marks = StepMarks()
    for count in (1, 4097):
        assert marks.steps(calls_of([(NOW, count, 7, STEP_DROPPED, LIBRARY_HOROVOD, 0, 0)])) == []
    assert caplog.text.count("process 7 calls a training library more often than training does") == 1


def rank(pid: int, uid: int, parent: int = 1, of: int = 0) -> Process:
    return Process(pid, pid, "python", "", RankIdentity("job", of, 8), uid, parent)


def test_loaders_of_a_rank_and_crowds_of_a_user_hide_nobody() -> None:
    trainer, successor = rank(10, 1), rank(900, 1)
    loaders = [rank(pid, 1, parent=10) for pid in range(11, 139)]
    crowd = [rank(pid, 2, of=pid % 8) for pid in range(1000, 2500)]
    chosen = choose_candidates([trainer, *loaders, successor, *crowd], {10, 900, *range(11, 139), *range(1000, 2500)})
    assert [process.pid for process in chosen[:2]] == [10, 900]
    assert len(chosen) == 2 + MOST_OF_USER


def test_who_trains_comes_before_who_only_says_so() -> None:
    crowd = [rank(pid, 1) for pid in range(1, 1001)]
    assert 5000 in {process.pid for process in choose_candidates([*crowd, rank(5000, 1)], {5000})}


def test_files_of_proc_are_read_up_to_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "environ"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    assert len(read_bounded(path, MOST_ENVIRONMENT)) == MOST_ENVIRONMENT
    assert read_bounded(tmp_path / "none", 1) == b""
