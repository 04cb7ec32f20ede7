# SPDX-License-Identifier: Apache-2.0
"""A disk that is slow for a while, or fails: what a spool says is spooled outlives its agent, in order and once."""

import shutil
import sqlite3
import threading
from collections.abc import Collection, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from waiting import wait_for

from netmon.agent import spool as spool_module
from netmon.agent.spool import LINK_TOTALS, Spool
from netmon.agent.spool_folder import BatchTable, Change, SpoolFolder
from netmon.records import Table, empty

APPLY = BatchTable.apply


class Disk:
    """What a spool is on. While it is slow, nothing is written until it is told to answer."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, limit: int = 1 << 24) -> None:
        self.directory, self.lost = directory, list[Table]()
        self._slow, self._fails, self._answers = False, False, threading.Event()
        monkeypatch.setattr(BatchTable, "apply", lambda table, change: self._apply(table, change))
        self.spool = Spool(SpoolFolder(directory, "power"), "s1", limit, self.lost.append)
        self.spool.hello = b"hello"
        self.stored()

    def _apply(self, table: BatchTable, change: Change) -> None:
        if self._slow:
            assert self._answers.wait(120)
            if self._fails:
                raise sqlite3.OperationalError("disk I/O error")
        APPLY(table, change)

    def stored(self) -> None:
        wait_for(lambda: not (self.spool._is_due or self.spool._busy_since))

    def slow(self) -> None:
        self._slow, self._fails, self._answers = True, False, threading.Event()

    def answer(self, fails: bool = False) -> None:
        """What it was asked for is done, or fails; and what follows."""
        self._fails = fails
        self._answers.set()
        if fails:
            wait_for(lambda: bool(self.spool.trouble) and not self.spool._busy_since)
        self._slow = False
        if not fails:
            self.stored()

    def append(self, first: int, last: int = 0) -> None:
        for sequence in range(first, (last or first) + 1):
            one = empty(LINK_TOTALS)
            one.resize(1)
            one["packets"] = 1
            flows = [(sequence, b"flow %d " % sequence)] if sequence % 2 else [(1, b"flow 1 owned %d " % sequence)]
            self.spool.append(sequence, b"%d" % sequence, b"r" * 100, one.tobytes(), flows)
        if not self._slow:
            self.stored()

    def killed(self, place: Path) -> BatchTable:
        """What a later agent finds if this one is killed now."""
        shutil.copytree(self.directory, place)
        table = SpoolFolder(place).take_over("s1")
        assert table
        return table


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    it = Disk(tmp_path / "spool", monkeypatch)
    yield it
    it.answer()
    it.spool.close()


def read(spool: Spool, numbers: Collection[int]) -> None:
    """They are what waits, in this order."""
    found, last = [], spool.acknowledged
    while spool._following(last) is not None:
        batch = spool.after(last, lambda: False)
        assert batch
        assert batch.body == b"%d" % batch.sequence
        last = batch.sequence
        found.append(last)
    assert found == list(numbers)


def found(table: BatchTable, numbers: Collection[int]) -> None:
    assert table.hello() == b"hello"
    spool = Spool(SpoolFolder(Path(str(table._path)).parent), "s1", 1 << 24, print, table)
    with closing(spool):
        read(spool, numbers)


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_said_to_be_spooled_after_a_slow_moment_outlives_the_agent(
    disk: Disk, tmp_path: Path, fails: bool
) -> None:
    disk.append(1, 2)
    assert (disk.spool.spooled, disk.spool.memory_bytes) == (2, 0)
    disk.slow()
    disk.append(3, 6)
    assert disk.spool.spooled == 2
    assert disk.spool.memory_bytes == 4 * 101
    found(disk.killed(tmp_path / "in it"), [1, 2])
    disk.answer(fails)
    disk.append(7)
    assert (disk.spool.spooled, disk.spool.memory_bytes) == (7, 0)
    found(disk.killed(tmp_path / "after it"), range(1, 8))
    read(disk.spool, range(1, 8))
    disk.spool.acknowledge(7)
    assert (disk.spool.waits, disk.spool.size, disk.lost) == (False, 0, [])


def test_flows_are_known_as_if_it_had_not_been_slow(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = []
    for number, slow in enumerate((False, True)):
        it = Disk(tmp_path / f"flows{number}", monkeypatch)
        it.append(1, 5)
        it.spool.acknowledge(2)
        if slow:
            it.slow()
        it.append(6, 9)
        it.spool.end_flows([3, 5, 7])
        it.append(10)
        it.answer()
        it.append(11)
        table = it.killed(tmp_path / f"killed{number}")
        kept.append((sorted(table.flows()), table.batches(), it.spool.introduction(), it.spool.size))
        table.close()
        it.spool.acknowledge(9)
        kept[-1] += (it.spool.introduction(), it.spool.size)
        it.spool.acknowledge(11)
        assert (it.spool.size, it.spool.memory_bytes) == (0, 0)
        it.spool.close()
    assert kept[0] == kept[1]


def test_a_new_connection_does_not_wait_for_the_disk(disk: Disk) -> None:
    disk.append(1, 4)
    disk.spool.acknowledge(4)
    disk.slow()
    disk.append(5, 6)
    disk.spool.end_flows([3])
    assert disk.spool.introduction() == (b"hello", b"flow 1 owned 6 flow 3 ")  # flow 5 comes with batch 5
    read(disk.spool, [5, 6])
    disk.spool.acknowledge(6)
    assert disk.spool.introduction() == (b"hello", b"flow 1 owned 6 flow 5 ")
    disk.answer()
    disk.append(7)
    assert (disk.spool.spooled, disk.spool.memory_bytes) == (7, 0)
    assert disk.spool.introduction() == (b"hello", b"flow 1 owned 6 flow 5 ")


def test_what_the_disk_has_taken_is_sent_while_it_does_not_answer(disk: Disk) -> None:
    disk.append(1, 4)
    disk.spool.acknowledge(1)
    disk.slow()
    disk.append(5, 6)
    assert disk.spool.spooled == 4
    read(disk.spool, [2, 3, 4, 5, 6])
    disk.spool.acknowledge(6)
    assert (disk.spool._recent, disk.spool._recent_bytes) == ({}, 0)


def test_only_the_newest_are_remembered_and_those_that_lose_rows_are_not_sent_with_them(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.append(1)
    monkeypatch.setattr(spool_module, "_RECENT_BYTES", 3 * disk.spool._recent_bytes)
    disk.append(2, 6)
    assert list(disk.spool._recent) == [4, 5, 6]
    read(disk.spool, range(1, 7))
    disk.spool.limit_bytes = 102
    disk.append(7)
    batches = [disk.spool.after(number - 1, lambda: False) for number in range(1, 8)]
    assert [len(batch.buckets) for batch in batches if batch] == [0] * 6 + [100]


def test_what_is_written_late_and_is_stored_or_given_up_meanwhile_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(tmp_path / "spool", monkeypatch)
    disk.slow()
    disk.append(1, 3)
    disk.spool.acknowledge(1)
    disk.answer()
    disk.append(4)
    assert disk.spool.spooled == 4
    found(disk.killed(tmp_path / "stored"), [2, 3, 4])
    disk.slow()
    disk.append(5, 6)
    monkeypatch.setattr(spool_module, "MOST_IN_MEMORY", 150)
    disk.append(7)  # 5 and 6 lose their buckets
    assert (len(disk.lost), disk.spool.given_up) == (2, 0)
    disk.answer()
    disk.append(8)
    assert disk.spool.spooled == 8
    with closing(disk.killed(tmp_path / "given up")) as table:
        assert [(number, buckets) for number, _, buckets, _ in table.batches()] == [
            *((2, 100), (3, 100), (4, 100), (5, 0), (6, 0), (7, 100), (8, 100))
        ]
    assert len(disk.lost) == 2
    disk.spool.close()


def test_a_full_disk_forgets_before_it_is_given_more(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.append(1, 3)
    changes = list[Change]()

    def full(table: BatchTable, change: Change) -> None:
        changes.append(change)
        if len(change.batches) > 1 or (change.batches and len(changes) < 4):
            raise sqlite3.OperationalError("database or disk is full")
        APPLY(table, change)

    disk.slow()
    disk.append(4, 9)
    disk.spool.acknowledge(3)
    monkeypatch.setattr(BatchTable, "apply", full)
    disk.answer(fails=True)
    disk.append(10)
    assert disk.spool.spooled == 10
    assert [len(change.batches) for change in changes[:3]] == [6, 0, 1]
    assert changes[1].acknowledged == 3
    read(disk.spool, range(4, 11))
