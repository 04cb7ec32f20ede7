# SPDX-License-Identifier: Apache-2.0
"""The flight recorder: exactly the window that is asked for, in bounded room, whatever the disk does."""

import errno
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from waiting import wait_for

from netmon.agent import recorder as recorder_module
from netmon.agent.recorder import MOST_REQUESTS, Pulls, Recorder, Store, in_memory, on_disk
from netmon.records import BUCKET, Table, empty
from netmon.wire import netmon_pb2
from netmon.wire.buckets import decode_buckets

S = 1_000_000_000
FINE = 10_000
BEGIN = 1_000 * S


def rows(second: float, count: int = 1_000) -> Table:
    """A second of a few flows, from so many seconds after the beginning on."""
    rng = np.random.default_rng(int(second * 10))
    made = np.zeros(count, BUCKET)
    made["bucket_start_ns"] = BEGIN + int(second * S) + rng.integers(0, S // FINE, count) * FINE
    made["flow_id"], made["packets"] = rng.integers(1, 9, count), rng.integers(1, 50, count)
    made["wire_bytes"] = made["packets"] * rng.integers(66, 1514, count)
    made["payload_bytes"] = made["wire_bytes"] - made["packets"] * np.uint32(66)
    return made


def recorder(store: Store, seconds: int = 600, limit: int = 10**9) -> Recorder:
    return Recorder(store, FINE, seconds * S, limit, BEGIN)


def read(of: Recorder, since: float, until: float) -> list[tuple[int, ...]]:
    messages = of.read(BEGIN + int(since * S), BEGIN + int(until * S))
    return sorted(np.concatenate([empty(BUCKET), *map(decode_buckets, messages)]).tolist())


def within(tables: list[Table], since: float, until: float) -> list[tuple[int, ...]]:
    whole = np.concatenate(tables)
    start = whole["bucket_start_ns"].astype(np.int64)
    return sorted(whole[(start >= BEGIN + int(since * S)) & (start < BEGIN + int(until * S))].tolist())


@pytest.fixture(params=["memory", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return in_memory(1 << 16) if request.param == "memory" else on_disk(tmp_path / "record", 1 << 16)


@pytest.mark.parametrize(("since", "until"), [(0, 10), (2.5, 3.25), (3, 4), (9.9, 100), (-5, 0.5), (4, 4)])
def test_a_window_has_its_rows_and_no_others(store: Store, since: float, until: float) -> None:
    of, tables = recorder(store), [rows(second) for second in range(10)]
    for second, table in enumerate(tables):
        of.add(table, BEGIN + (second + 1) * S)
    assert read(of, since, until) == within(tables, since, until)


def test_what_has_not_been_written_yet_is_there_too(store: Store) -> None:
    of, table = recorder(store), rows(0, 10)
    of.add(table, BEGIN + S // 2)
    assert read(of, 0, 1) == within([table], 0, 1)


def test_room_is_bounded_and_the_oldest_goes(store: Store) -> None:
    of, tables = recorder(store, limit=1 << 19), [rows(second, 20_000) for second in range(20)]
    for second, table in enumerate(tables):
        of.add(table, BEGIN + (second + 1) * S)
        assert store.size <= 1 << 19
    assert store.size > 1 << 18
    assert read(of, 18, 20) == within(tables, 18, 20)
    assert not read(of, 0, 1)
    assert "the first 5.000 s are not recorded any more" in of.gap(BEGIN, BEGIN + 5 * S)
    assert not of.gap(BEGIN + 18 * S, BEGIN + 20 * S)


def test_what_is_older_than_asked_for_goes(store: Store) -> None:
    of = recorder(store, seconds=5)
    for second in range(20):
        of.add(rows(second, 20_000), BEGIN + (second + 1) * S)
    assert not read(of, 0, 14)
    assert read(of, 15, 20) == within([rows(second, 20_000) for second in range(15, 20)], 15, 20)


def test_what_is_not_over_yet_is_a_gap(store: Store) -> None:
    of = recorder(store)
    of.add(rows(0), BEGIN + S)
    assert of.gap(BEGIN, BEGIN + 3 * S) == "the last 2.000 s are not over yet"
    assert of.gap(BEGIN - S, BEGIN) == "the first 1.000 s are not recorded any more"


class _FullDisk:
    size = 0

    def append(self, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def read(self, offset: int, size: int) -> bytes:
        return b""


def test_a_disk_that_is_full_ends_the_recording_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    of = recorder(Store(_FullDisk))
    for second in range(3):
        of.add(rows(second), BEGIN + (second + 1) * S)
    assert of.lost_rows == 3_000
    assert len(caplog.records) == 1
    assert "No space left on device" in caplog.text
    assert "No space left on device" in of.gap(BEGIN, BEGIN + S)
    assert not read(of, 0, 10)


def test_nothing_is_left_on_the_disk(tmp_path: Path) -> None:
    of = recorder(on_disk(tmp_path, 1 << 16))
    of.add(rows(0, 20_000), BEGIN + 2 * S)
    assert not list(tmp_path.iterdir())


def answers(of: Pulls) -> list[netmon_pb2.FullAnswer]:
    taken = []
    while not (taken and taken[-1].last):
        message = of.take()
        if message:
            taken.append(netmon_pb2.AgentMessage.FromString(message).full)
    return taken


def request(number: int, since: int, until: int, most: int = 10**6) -> netmon_pb2.FullRequest:
    return netmon_pb2.FullRequest(number=number, since_ns=BEGIN + since * S, until_ns=BEGIN + until * S, most_rows=most)


def test_an_answer_ends_with_what_is_missing() -> None:
    of = recorder(in_memory(1 << 16))
    for second in range(3):
        of.add(rows(second), BEGIN + (second + 1) * S)
    pulls = Pulls(of)
    pulls.add_request(request(7, 1, 9))
    taken = answers(pulls)
    assert {answer.number for answer in taken} == {7}
    assert sum(answer.buckets.rows for answer in taken) == 2_000
    assert taken[-1].gap == "the last 6.000 s are not over yet"
    pulls.add_request(request(8, 0, 3, most=1_500))
    assert "more than 1500 rows" in answers(pulls)[-1].gap


def test_without_a_recorder_it_says_so() -> None:
    pulls = Pulls(None)
    pulls.add_request(request(1, 0, 1))
    assert answers(pulls)[-1].gap == "the agent records nothing (--record off)"


def test_too_many_requests_are_refused_and_all_are_forgotten_with_the_connection() -> None:
    pulls = Pulls(recorder(in_memory(1 << 16)))
    for number in range(MOST_REQUESTS + 1):
        pulls.add_request(request(number, 0, 1))
    gaps = {}
    while len(gaps) <= MOST_REQUESTS:
        message = pulls.take()
        if message:
            answer = netmon_pb2.AgentMessage.FromString(message).full
            gaps[answer.number] = answer.gap
    assert gaps[MOST_REQUESTS] == "the agent answers others"
    pulls.add_request(request(1, 0, 1))
    pulls.clear()
    assert pulls.take() is None


class _Faltering:
    """A disk that is full until it is not."""

    full = True

    def __init__(self) -> None:
        self.size, self._data = 0, b""

    def append(self, data: bytes) -> None:
        if _Faltering.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._data += data
        self.size += len(data)

    def read(self, offset: int, size: int) -> bytes:
        return self._data[offset : offset + size]


def test_a_disk_that_has_room_again_is_recorded_on_again(caplog: pytest.LogCaptureFixture) -> None:
    of, tables = recorder(Store(_Faltering)), [rows(second) for second in range(30)]
    for second, table in enumerate(tables):
        _Faltering.full = second < 12
        of.add(table, BEGIN + (second + 1) * S)
    lines = ["nothing is recorded for the time being", "full resolution is recorded again"]
    assert [line.partition(":")[0] for line in caplog.messages] == lines
    assert of.trouble == ""
    begun = of.lost_rows // 1000
    assert 12 < begun < 30
    assert read(of, begun, 30) == within(tables, begun, 30)
    assert not read(of, 0, begun)
    assert "are not recorded any more" in of.gap(BEGIN, BEGIN + 2 * S)


def test_a_disk_that_does_not_answer_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "_ANSWERS_S", 0.1)
    monkeypatch.setattr(recorder_module, "_AGAIN_NS", 3 * S)
    stalls, goes_on = [True], threading.Event()
    write = os.pwrite

    def pwrite(descriptor: int, data: bytes, offset: int) -> int:
        if stalls[0]:
            goes_on.wait()
        return write(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    of = recorder(on_disk(tmp_path / "record", 1 << 16))
    for second in range(8):  # the test's own limit ends it
        of.add(rows(second), BEGIN + (second + 1) * S)
    assert "it has not answered for 0.1 s" in of.trouble
    assert of.lost_rows == 8_000
    stalls[0] = False
    goes_on.set()
    seconds = iter(range(8, 10_000))
    wait_for(lambda: of.add(rows(second := next(seconds)), BEGIN + (second + 1) * S) or not of.trouble)
    second = next(seconds)
    of.add(rows(second), BEGIN + (second + 1) * S)
    assert read(of, second, second + 1) == within([rows(second)], second, second + 1)
    of.close()
