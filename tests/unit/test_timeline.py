# SPDX-License-Identifier: Apache-2.0
"""A Horovod Timeline, written as Horovod writes it and read while it grows."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from netmon.agent import timeline as timeline_marks
from netmon.agent.timeline import MOST_READ, TimelineFile, TimelineMarks
from netmon.dl.iterations import IterationTracker
from netmon.kernel.training.timelines import Opened
from netmon.marks import RankIdentity
from netmon.records import Mark, Moment, Source

START_US = 1_795_268_564_865_332
UTC_MINUS_MONO = START_US * 1000 - 5_000_000_000  # Horovod began at 5 s of the monotonic clock
NOW = 60_000_000_000
TENSORS = range(1, 7)


class Timeline:
    """Horovod's TimelineWriter: every event takes the place of the bracket that closed the file."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("wb", buffering=0)
        self.begin()

    def begin(self) -> None:
        self.file.write(b"[\n")
        start = f'"args": {{"start_time_since_epoch_in_micros":{START_US}}}'
        self.file.write(f'{{"name": "process_name", "ph": "M", "pid": 0, {start}}},\n'.encode())
        for number in TENSORS:
            name = f'"args": {{"name": "allreduce.layer{number}.weight"}}'
            self.file.write(f'{{"name": "process_name", "ph": "M", "pid": {number}, {name}}},\n'.encode())
        self.file.write(b"]")

    def event(self, text: str) -> None:
        self.file.seek(-1, os.SEEK_END)
        self.file.write(b"," + f"{{{text}}}".encode() + b"]")

    def step(self, at_us: int) -> None:
        for number in TENSORS:
            self.event(f'"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": {at_us + number}, "pid": {number}')
            self.event(f'"ph": "X", "name": "0", "ts": {at_us + number}, "pid": {number}, "dur": 0')
            self.event(f'"ph": "E", "ts": {at_us + 20 + number}, "pid": {number}')
        self.event(f'"ph": "i", "name": "CYCLE_START", "ts": {at_us + 30}, "s": "g"')
        for number in TENSORS:
            self.event(f'"ph": "B", "name": "ALLREDUCE", "ts": {at_us + 40}, "pid": {number}')
            result = '"args": {"dtype": "float32", "shape": "[4]"}'
            self.event(f'"ph": "E", "ts": {at_us + 50 + number}, "pid": {number}, {result}')


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that answers is waited for, however busy the machine is."""
    monkeypatch.setattr(timeline_marks, "_READ_S", 60.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "timeline.json"


@pytest.fixture
def timeline(path: Path) -> Iterator[Timeline]:
    written = Timeline(path)
    yield written
    written.file.close()


def followed(path: Path, whole: bool = True) -> TimelineMarks:
    marks = TimelineMarks()
    opened = Opened(9, 0, whole, os.open(path, os.O_RDONLY))
    (join,) = marks.follow(opened, RankIdentity("job", 0, 3), NOW)
    assert (join.moment, join.source) == (Moment.JOIN, Source.TIMELINE)
    return marks


def boundaries(marks: list[Mark], moment: Moment) -> list[tuple[int, int]]:
    return [(mark.iteration, mark.time_ns) for mark in marks if mark.moment is moment]


def mono(at_us: int) -> int:
    return 5_000_000_000 + at_us * 1000


def test_a_file_that_grows_is_read_as_it_grows(path: Path, timeline: Timeline) -> None:
    marks, got = followed(path), []
    for step in range(6):
        timeline.step(step * 100_000)
        got += marks.read(NOW, UTC_MINUS_MONO)
    got += marks.finish(NOW, UTC_MINUS_MONO)
    assert boundaries(got, Moment.FIRST_ENQUEUE) == [(i, mono(i * 100_000 + 1)) for i in range(6)]
    assert boundaries(got, Moment.LAST_WAIT) == [(i, mono(i * 100_000 + 56)) for i in range(6)]
    assert got[-1].moment is Moment.LEAVE
    assert marks.refused == 0


def test_what_a_process_has_written_last_is_read_when_it_is_gone(path: Path, timeline: Timeline) -> None:
    marks = followed(path)
    timeline.step(0)
    got = marks.read(NOW, UTC_MINUS_MONO)
    for step in range(1, 2_000):  # more than is read at a time
        timeline.step(step * 10_000)
    assert path.stat().st_size > 2 * MOST_READ
    assert marks.retain({}, NOW) == []
    got += marks.read(NOW, UTC_MINUS_MONO)
    assert [iteration for iteration, _ in boundaries(got, Moment.LAST_WAIT)] == list(range(2_000))
    assert got[-1].time_ns == mono(1_999 * 10_000 + 56)
    assert marks.refused == 0


def test_a_file_that_answers_late_is_read_all_the_same(
    path: Path, timeline: Timeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline_marks, "_READ_S", 0.01)
    read, answers = TimelineFile.read, threading.Event()
    monkeypatch.setattr(TimelineFile, "read", lambda file, most: answers.wait() and read(file, most))
    marks = followed(path)
    for step in range(6):
        timeline.step(step * 100_000)
    assert marks.read(NOW, UTC_MINUS_MONO) == []
    answers.set()
    got = marks.finish(NOW, UTC_MINUS_MONO)
    assert [iteration for iteration, _ in boundaries(got, Moment.LAST_WAIT)] == list(range(6))
    assert marks.refused == 0


@pytest.mark.parametrize("gone", [False, True])
def test_a_file_that_never_answers_is_left(path: Path, monkeypatch: pytest.MonkeyPatch, gone: bool) -> None:
    path.touch()
    monkeypatch.setattr(timeline_marks, "_READ_S", 0.01)
    answers, closed = threading.Event(), threading.Event()
    close = os.close
    monkeypatch.setattr(TimelineFile, "read", lambda *_: answers.wait())
    monkeypatch.setattr(os, "close", lambda descriptor: (close(descriptor), closed.set()))
    marks = followed(path)
    assert marks.read(NOW, UTC_MINUS_MONO) == []
    assert not gone or marks.retain({}, NOW) == []
    assert marks.read(NOW + 4_000_000_000, UTC_MINUS_MONO) == []
    (left,) = marks.read(NOW + 6_000_000_000, UTC_MINUS_MONO)
    assert left.moment is Moment.LEAVE
    assert marks.refused == 1
    assert not closed.is_set()  # it is read from
    answers.set()
    assert closed.wait(60)


def test_iterations_are_bounded_by_what_a_timeline_tells_best(path: Path, timeline: Timeline) -> None:
    """When a communication ended is this rank's own; it began when some rank handed something over."""
    marks, tracker = followed(path), IterationTracker("job", 0)
    for step in range(6):
        timeline.step(step * 100_000)
    for mark in (*marks.read(NOW, UTC_MINUS_MONO), *marks.finish(NOW, UTC_MINUS_MONO)):
        tracker.add(mark)
    iterations = tracker.finished(leaving=True)
    ends = [mono(step * 100_000 + 56) for step in range(6)]
    assert [iteration.end_ns for iteration in iterations] == ends
    assert [iteration.start_ns for iteration in iterations] == [mono(1), *ends[:-1]]
    assert {iteration.end_moment for iteration in iterations} == {Moment.LAST_WAIT}
    assert iterations[0].error_ns > iterations[1].error_ns == iterations[-1].error_ns
    assert tracker.communication(ends[0], ends[1])[:2] == (mono(100_001), ends[1])


def test_an_event_that_is_half_written_is_read_when_it_is_whole(path: Path, tmp_path: Path, timeline: Timeline) -> None:
    for step in range(4):
        timeline.step(step * 100_000)
    whole, torn = path.read_bytes(), tmp_path / "torn.json"
    torn.write_bytes(b"")
    marks, got = followed(torn), []
    for end in range(0, len(whole) + 97, 97):
        torn.write_bytes(whole[:end])
        got += marks.read(NOW, UTC_MINUS_MONO)
    assert boundaries(got, Moment.FIRST_ENQUEUE) == [(i, mono(i * 100_000 + 1)) for i in range(4)]
    assert marks.refused == 0
    marks.finish(NOW, UTC_MINUS_MONO)


def test_a_file_that_begins_anew_counts_on(path: Path, timeline: Timeline) -> None:
    marks, got = followed(path), []
    for step in range(4):
        timeline.step(step * 100_000)
    got += marks.read(NOW, UTC_MINUS_MONO)
    timeline.file.truncate(0)
    timeline.file.seek(0)
    got += marks.read(NOW, UTC_MINUS_MONO)
    timeline.begin()
    for step in range(10, 16):
        timeline.step(step * 100_000)
    got += marks.read(NOW, UTC_MINUS_MONO)
    numbers = [iteration for iteration, _ in boundaries(got, Moment.FIRST_ENQUEUE)]
    assert numbers == sorted(set(numbers))
    assert {time_ns for _, time_ns in boundaries(got, Moment.FIRST_ENQUEUE)} <= {
        mono(step * 100_000 + 1) for step in range(16)
    }
    assert got[-1].relative
    marks.finish(NOW, UTC_MINUS_MONO)


def test_a_file_that_begins_anew_unseen_counts_on(path: Path, timeline: Timeline) -> None:
    """As when the script stops and starts it between two looks: it is longer than before by then."""
    marks, got = followed(path), []
    for step in range(4):
        timeline.step(step * 100_000)
    got += marks.read(NOW, UTC_MINUS_MONO)
    timeline.file.truncate(0)
    timeline.file.seek(0)
    timeline.begin()
    for step in range(10, 20):
        timeline.step(step * 100_000)
    for _ in range(2):
        got += marks.read(NOW, UTC_MINUS_MONO)
    numbers = [iteration for iteration, _ in boundaries(got, Moment.FIRST_ENQUEUE)]
    assert numbers == sorted(set(numbers))
    told = {time_ns for _, time_ns in boundaries(got, Moment.FIRST_ENQUEUE)}
    assert {mono(step * 100_000 + 1) for step in (0, 1, 2, 3, *range(12, 20))} <= told
    assert told <= {mono(step * 100_000 + 1) for step in range(20)}
    assert marks.refused == 0
    marks.finish(NOW, UTC_MINUS_MONO)


def test_a_file_that_the_script_begins_in_the_middle_is_relative(path: Path, timeline: Timeline) -> None:
    marks = followed(path, whole=False)
    for step in range(6):
        timeline.step(step * 100_000)
    got = marks.read(NOW, UTC_MINUS_MONO)
    assert boundaries(got, Moment.FIRST_ENQUEUE)
    assert all(mark.relative for mark in got)
    marks.finish(NOW, UTC_MINUS_MONO)


@pytest.mark.parametrize(
    "text",
    [
        b'[{"ph": "B", "name": "load", "ts": 1, "pid": 4},' * 1000,
        b'[{"ph":"X","cat":"kernel","name":"gemm","ts":17,"dur":4,"pid":0,"tid":7}' * 2000,
        bytes(range(256)) * 4096,
    ],
    ids=["chrome trace", "PyTorch profiler", "noise"],
)
def test_a_file_of_another_program_is_counted_and_left(path: Path, text: bytes) -> None:
    path.write_bytes(text)
    marks = followed(path)
    got = [mark for _ in range(3) for mark in marks.read(NOW, UTC_MINUS_MONO)]
    assert [mark.moment for mark in got] == [Moment.LEAVE]
    assert marks.refused == 1
    assert marks.read(NOW, UTC_MINUS_MONO) == []


def test_a_clock_that_was_set_since_shows(path: Path, timeline: Timeline) -> None:
    marks = followed(path)
    for step in range(4):
        timeline.step(step * 100_000)
    assert marks.read(NOW, UTC_MINUS_MONO - 3_600_000_000_000) == []
    assert marks.refused == 1
    marks.finish(NOW, UTC_MINUS_MONO)
