# SPDX-License-Identifier: Apache-2.0
"""A disk that is slow for a while, or always: what a spool says is spooled outlives its agent, in order and once."""

import shutil
import sqlite3
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from waiting import wait_for

from netmon.agent import spool as spool_module
from netmon.agent.batch_table import Account, BatchTable, FlowRow, Kept
from netmon.agent.link_totals import LINK_TOTALS
from netmon.agent.spool import Spool
from netmon.agent.spool_folder import SpoolFolder
from netmon.records import Table, empty

TAKE = BatchTable.take


class Disk:
    """What a spool is on. While it is slow, batches are written when it is told to, and nobody waits so long."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, limit: int = 1 << 24) -> None:
        self.directory, self.lost = directory, list[Table]()
        self._slow, self._fails, self._answers = False, False, threading.Event()
        monkeypatch.setattr(BatchTable, "take", lambda *arguments: self._take(*arguments))
        self.spool = Spool(SpoolFolder(directory, "power"), "s1", limit, self.lost.append)
        self.spool.hello = b"hello"
        self._wait_for_it(60.0)

    def _wait_for_it(self, limit_s: float) -> None:
        calls = self.spool._disk._calls
        assert calls
        calls._limit_s = limit_s

    def _take(self, table: BatchTable, batches: Sequence[Kept], flows: Sequence[FlowRow], *account: Account) -> None:
        if self._slow and table._path:
            answers = self._answers
            assert answers.wait(120)
            if self._fails:
                raise sqlite3.OperationalError("disk I/O error")
        TAKE(table, batches, flows, *account)

    def slow(self) -> None:
        self._slow, self._fails, self._answers = True, False, threading.Event()
        self._wait_for_it(0.2)

    def answer(self, fails: bool = False, slow: bool = False) -> None:
        """What it was asked for is done; slow: it stays so."""
        answered, self._fails = self._answers, fails
        calls = self.spool._disk._calls
        assert calls
        answered.set()
        wait_for(lambda: not calls._stalled.total())
        if slow:
            self.slow()
        else:
            self._slow = False
            self._wait_for_it(60.0)

    def append(self, first: int, last: int = 0) -> None:
        for sequence in range(first, (last or first) + 1):
            one = empty(LINK_TOTALS)
            one.resize(1)
            one["packets"] = 1
            flows = [(sequence, b"flow %d " % sequence)] if sequence % 2 else [(1, b"flow 1 owned %d " % sequence)]
            self.spool.append(sequence, b"%d" % sequence, b"r" * 100, one.tobytes(), flows)

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
    found, last = [], 0
    while spool._numbers_after(max(last, spool.acknowledged)):
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
    assert disk.spool.memory_bytes > 4 * 100
    found(disk.killed(tmp_path / "in it"), [1, 2])
    disk.answer(fails)
    found(disk.killed(tmp_path / "late"), [1, 2] if fails else [1, 2, 3])
    disk.append(7)
    assert (disk.spool.spooled, disk.spool.memory_bytes) == (7, 0)
    found(disk.killed(tmp_path / "after it"), range(1, 8))
    disk.append(8)
    found(disk.killed(tmp_path / "later"), range(1, 9))
    read(disk.spool, range(1, 9))
    disk.spool.acknowledge(8)
    assert (disk.spool.waits, disk.lost) == (False, [])


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
        kept.append((sorted(table.flows()), table.sequences(), it.spool.introduction(), it.spool.size, table.size))
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
    assert (disk.spool._recent.numbers, disk.spool._recent.nbytes) == ([], 0)


def test_only_the_newest_are_remembered_and_those_that_lose_rows_are_not(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.append(1)
    monkeypatch.setattr(spool_module, "_RECENT_BYTES", 3 * disk.spool._recent.nbytes)
    disk.append(2, 6)
    assert disk.spool._recent.numbers == [4, 5, 6]
    read(disk.spool, range(1, 7))
    disk.spool.limit_bytes = 102
    disk.append(7)
    assert disk.spool._recent.numbers == [7]
    batches = [disk.spool.after(number - 1, lambda: False) for number in range(1, 8)]
    assert [len(batch.buckets) for batch in batches if batch] == [0] * 6 + [100]


def test_a_disk_that_is_always_late_gets_all_the_same(disk: Disk, tmp_path: Path) -> None:
    disk.slow()
    for sequence in range(1, 8):
        disk.append(sequence)
        assert disk.spool.spooled == sequence - 1
        disk.answer(slow=True)
    found(disk.killed(tmp_path / "killed"), range(1, 8))


def test_many_go_to_the_disk_few_at_a_time_and_in_their_order(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_module, "_AT_ONCE", 4)
    disk.spool._at_once = 4
    disk.slow()
    disk.append(1, 12)
    disk.answer()
    for sequence, spooled in ((13, 5), (14, 9), (15, 13), (16, 16)):
        disk.append(sequence)
        assert disk.spool.spooled == spooled
        found(disk.killed(tmp_path / str(sequence)), range(1, spooled + 1))
        read(disk.spool, range(1, sequence + 1))
    disk.slow()
    disk.append(17, 30)
    disk.answer()
    disk.spool.close()  # with all that is left
    found(disk.killed(tmp_path / "closed"), range(1, 31))


def test_what_came_late_and_is_stored_or_given_up_meanwhile_goes(
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
        assert [(number, len(table.read(number).buckets)) for number in sorted(table.sequences())] == [
            *((2, 100), (3, 100), (4, 100), (5, 0), (6, 0), (7, 100), (8, 100))
        ]
    assert len(disk.lost) == 2
    disk.spool.close()


def test_of_several_that_came_late_none_passes_one_that_has_lost_its_buckets(disk: Disk, tmp_path: Path) -> None:
    disk.slow()
    disk.append(1, 4)
    disk.answer(fails=True)
    disk.slow()
    disk.append(5)  # with it, 1 to 5 are on their way
    stripped = disk.spool._memory.read(3)
    disk.spool._memory._db.execute("UPDATE batch SET buckets = x'', carried = x'' WHERE sequence = 3")
    disk.spool._memory.size -= len(stripped.buckets)
    disk.answer()
    with closing(disk.killed(tmp_path / "late")) as table:
        assert table.sequences() == {1, 2, 3, 4, 5}
    disk.append(6)
    assert list(disk.spool._disk.link_totals) == [1, 2, 3, 4, 5, 6]
    assert disk.spool._disk.link_totals[3] == b""
    found(disk.killed(tmp_path / "after it"), range(1, 7))
    disk.spool.acknowledge(6)
    assert (disk.spool.size, disk.spool.waits) == (0, False)
