# SPDX-License-Identifier: Apache-2.0
"""What waits for the collector: on the disk, in memory, within its bound, and after the agent was killed."""

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from waiting import wait_for

from netmon.agent import spool as spool_module
from netmon.agent import spool_folder
from netmon.agent.spool import LINK_TOTALS, Spool, link_totals, summed
from netmon.agent.spool_folder import SpoolFolder
from netmon.errors import DataError
from netmon.records import BUCKET, Direction, Flow
from netmon.wire.limits import MAX_FLOWS, MAX_MESSAGE_BYTES


def loss(packets: int = 1) -> bytes:
    return np.array([(1, 0, packets, 100 * packets, 50 * packets)], LINK_TOTALS).tobytes()


class Kept:
    """A spool, and what it has given up."""

    def __init__(self, directory: Path, limit: int = 1 << 20, session: str = "s1") -> None:
        self.lost: list[int] = []
        self.folder = SpoolFolder(directory)
        self.spool = Spool(self.folder, session, limit, lambda table: self.lost.append(int(table["packets"].sum())))
        self.spool.hello = b"hello"

    def append(self, first: int, last: int, body: int = 10, buckets: int = 100) -> None:
        for sequence in range(first, last + 1):
            self.spool.append(sequence, b"b" * body, b"r" * buckets, loss())

    def waiting(self, after: int = 0) -> list[tuple[int, int]]:
        """Sequence and size of the buckets of all that waits."""
        found = []
        after = max(after, self.spool.acknowledged)
        while self.spool._following(after) is not None:
            batch = self.spool.after(after, lambda: False)
            assert batch
            after = batch.sequence
            found.append((after, len(batch.buckets)))
        return found

    def stored(self) -> None:
        """The disk has all that was appended, and nothing else."""
        wait_for(lambda: not (self.spool._is_due or self.spool._busy_since))


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    it = Kept(tmp_path / "spool")
    yield it
    it.spool.close()


def test_what_is_acknowledged_is_forgotten_and_the_rest_keeps_its_order(kept: Kept) -> None:
    kept.append(1, 9)
    kept.spool.acknowledge(4)
    kept.spool.acknowledge(2)  # an old one says nothing
    kept.spool.acknowledge(12)  # nor one of what was never sent
    assert kept.waiting() == [(sequence, 100) for sequence in range(5, 10)]
    assert kept.spool.size == 5 * 110
    kept.spool.acknowledge(9)
    assert (kept.spool.size, kept.spool.waits, kept.lost) == (0, False, [])


def test_a_session_of_which_nothing_waits_leaves_nothing(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "spool")
    kept.append(1, 3)
    kept.spool.acknowledge(3)
    kept.spool.close()
    assert list((tmp_path / "spool").iterdir()) == []


def test_the_oldest_lose_their_buckets_before_any_loses_everything(tmp_path: Path) -> None:
    kept = Kept(tmp_path, limit=1000)
    kept.append(1, 10)  # 110 bytes each
    assert kept.spool.size <= 1000
    assert kept.waiting() == [(1, 0), *((sequence, 100) for sequence in range(2, 11))]
    assert kept.lost == [1]
    kept.append(11, 80)
    assert kept.spool.size <= 1000
    assert len(kept.lost) == 80 - sum(1 for _, buckets in kept.waiting() if buckets)
    assert kept.spool.given_up == 0
    kept.append(81, 120)  # not even the bodies fit any more
    sequences = [sequence for sequence, _ in kept.waiting()]
    assert sequences == list(range(sequences[0], 121))
    assert kept.spool.given_up == sequences[0] - 1 > 0
    assert kept.waiting()[-1] == (120, 100)  # the newest is always whole
    assert sum(kept.lost) == 119
    kept.spool.close()


def test_a_refused_batch_is_kept_for_a_report_and_counted_once(kept: Kept) -> None:
    kept.append(1, 3)
    lost = kept.spool.set_aside(2)
    assert lost is not None
    assert lost["packets"].tolist() == [1]
    assert kept.spool.set_aside(2) is None
    assert kept.waiting() == [(1, 100), (3, 100)]
    assert kept.lost == [1]
    kept.stored()
    assert (kept.folder.refused / "s1-2.batch").read_bytes() == b"b" * 10 + b"r" * 100


def test_what_was_set_aside_is_bounded(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_folder, "_MOST_REFUSED_BYTES", 250)
    kept.append(1, 5)
    for sequence in range(1, 6):
        kept.spool.set_aside(sequence)
        kept.stored()
        os.utime(kept.folder.refused / f"s1-{sequence}.batch", (sequence, sequence))
    assert len(list(kept.folder.refused.iterdir())) == 2


def described(spool: Spool) -> list[bytes]:
    own, flows = spool.introduction()
    assert own == b"hello"
    return sorted(flows.split())


def test_an_introduction_has_the_flows_that_no_batch_to_come_describes(kept: Kept) -> None:
    spool = kept.spool
    spool.append(1, b"b", b"r", loss(), [(1, b"one "), (2, b"two ")])
    spool.append(2, b"b", b"r", loss(), [(2, b"two_owned "), (3, b"three ")])
    assert described(spool) == []
    spool.acknowledge(1)
    assert described(spool) == [b"one", b"two_owned"]
    spool.end_flows([1, 99])
    kept.append(3, 3)
    spool.acknowledge(2)
    assert described(spool) == [b"three", b"two_owned"]
    spool.append(4, b"b", b"r", loss(), [(4, b"four ")])
    assert spool.set_aside(4) is not None
    assert described(spool) == [b"four", b"three", b"two_owned"]


def test_flows_that_are_over_count_for_the_bound_and_go_with_their_rows(tmp_path: Path) -> None:
    kept = Kept(tmp_path, limit=1000)
    kept.spool.append(1, b"b" * 10, b"r" * 100, loss(), [(1, b"f" * 300), (2, b"g ")])
    kept.append(2, 3)
    kept.spool.acknowledge(1)
    before = kept.spool.size
    kept.spool.end_flows([1])
    assert kept.spool.size == before + 300
    kept.append(4, 6)
    assert described(kept.spool) == [b"f" * 300 + b"g"]
    kept.append(7, 9)
    assert kept.spool.size <= 1000
    assert described(kept.spool) == [b"g"]
    kept.spool.acknowledge(9)
    assert (kept.spool.size, kept.spool.waits) == (0, False)
    kept.spool.close()


def test_flows_outlive_a_disk_that_is_left(small_disk: Path) -> None:
    kept = Kept(small_disk)
    kept.spool.append(1, b"b", b"r", loss(), [(1, b"one ")])
    kept.spool.acknowledge(1)
    with contextlib.suppress(OSError):  # the spool may take some of it meanwhile
        (small_disk / "filling").write_bytes(b"x" * (shutil.disk_usage(small_disk).free & ~4095))
    kept.append(2, 4, buckets=100_000)
    kept.spool.append(5, b"b", b"r", loss(), [(5, b"five ")])
    assert described(kept.spool) == [b"one"]
    kept.spool.acknowledge(5)
    assert described(kept.spool) == [b"five", b"one"]
    kept.spool.close()


KILLED = """
import sys, time
from pathlib import Path
from netmon.agent.spool import Spool
from netmon.agent.spool_folder import SpoolFolder
spool = Spool(SpoolFolder(Path(sys.argv[1])), "killed", 1 << 30, print)
spool.hello = b"its hello"
for sequence in range(1, 100000):
    spool.append(sequence, b"%d" % sequence, b"r" * 1000, b"")
    if sequence % 50 == 0:
        time.sleep(0.01)
        if spool.spooled >= 500:
            print("ready", flush=True)
"""


def test_what_an_agent_had_appended_when_it_was_killed_is_whole(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        folder = SpoolFolder(tmp_path)
        assert folder.left_behind() == ["killed"]
        assert folder.take_over("killed") is None  # it lives
        process.send_signal(signal.SIGKILL)
        process.wait()
    table = folder.take_over("killed")
    assert table
    assert table.hello() == b"its hello"
    last = table.last()
    assert last >= 500
    assert [number for number, *_ in table.batches()] == list(range(1, last + 1))
    assert table.read(last)[0].body == b"%d" % last
    table.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "none", str(disk)], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.parametrize("from_the_start", [False, True])
def test_a_full_disk_waits_in_memory_and_recovers(small_disk: Path, from_the_start: bool) -> None:
    kept = Kept(small_disk, limit=8 << 20) if not from_the_start else None
    filler = small_disk / "filler"
    if from_the_start:
        fill(filler)
        kept = Kept(small_disk, limit=8 << 20)
    assert kept
    kept.append(1, 40, buckets=100_000)  # four times what the disk has
    assert [sequence for sequence, _ in kept.waiting()] == list(range(1, 41))
    kept.spool.acknowledge(30)
    filler.unlink(missing_ok=True)
    kept.append(41, 42, buckets=1000)
    assert [sequence for sequence, _ in kept.waiting()] == list(range(31, 43))
    kept.spool.acknowledge(42)
    assert (kept.spool.waits, kept.lost) == (False, [])
    kept.spool.close()
    assert list(small_disk.iterdir()) == []


def test_a_read_only_disk_waits_in_memory(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    kept = Kept(small_disk)
    kept.append(1, 3)
    assert len(kept.waiting()) == 3
    kept.spool.acknowledge(3)
    assert not kept.spool.waits
    kept.spool.close()


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        file.writelines(itertools.repeat(b"\0" * 4096))


def test_a_disk_that_gives_nothing_back_is_given_up_and_counted(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "_RECENT_BYTES", 0)
    kept.append(1, 5)
    kept.stored()
    kept.spool.acknowledge(2)
    kept.stored()
    table = kept.spool._table
    assert table
    table.close()  # as if the device had gone: every access fails from now on
    assert kept.waiting() == [(5, 100)]  # which is in memory
    assert (sum(kept.lost), kept.spool.given_up) == (2, 2)
    kept.append(6, 7)
    assert [sequence for sequence, _ in kept.waiting()] == [5, 6, 7]
    kept.stored()
    assert kept.spool.spooled == 7


def test_a_spool_that_is_removed_is_made_anew_with_all_that_waits(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    kept.append(1, 5)
    kept.spool.acknowledge(2)
    kept.stored()
    shutil.rmtree(kept.folder.directory)
    kept.append(6, 7)
    kept.stored()
    assert kept.waiting() == [(sequence, 100) for sequence in range(3, 8)]
    assert [line for line in caplog.messages if "was removed by somebody" in line]
    assert kept.folder.left_behind() == ["s1"]
    assert kept.folder.take_over("s1") is None, "it is ours"
    kept.spool.close()
    table = kept.folder.take_over("s1")
    assert table
    assert ([number for number, *_ in table.batches()], table.hello()) == ([3, 4, 5, 6, 7], b"hello")
    table.close()
    assert kept.lost == []


def test_somebody_elses_directory_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("giving a directory away needs root")
    others = tmp_path / "others"
    others.mkdir()
    os.chown(others, 65534, 65534)
    with pytest.raises(DataError, match="somebody else's directory"):
        SpoolFolder(others)
    mine, link = tmp_path / "mine", tmp_path / "link"
    mine.mkdir()
    link.symlink_to(mine)
    SpoolFolder(link)  # of an administrator
    os.lchown(link, 65534, 65534)
    with pytest.raises(DataError, match="somebody else's symbolic link"):
        SpoolFolder(link)
    mine.chmod(0o777)
    with pytest.raises(DataError, match="others may write there"):
        SpoolFolder(mine)


def test_a_link_in_the_place_of_a_session_is_not_followed(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "spool")
    kept.append(1, 2)
    kept.spool.close()
    shutil.move(tmp_path / "spool/s1.spool", tmp_path / "elsewhere")
    (tmp_path / "spool/s1.spool").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="not a file of ours"):
        kept.folder.take_over("s1")


def test_what_buckets_carry_is_counted_per_link() -> None:
    def flow(number: int, interface: int, direction: Direction) -> Flow:
        return Flow(number, interface, direction, "198.18.0.1", "198.18.0.2", 1, 2, 6, 0)

    flows = {5: flow(5, 1, Direction.TX), 6: flow(6, 1, Direction.RX), 9: flow(9, 1, Direction.TX)}
    buckets = np.zeros(4, BUCKET)
    buckets["flow_id"] = (9, 6, 5, 9)
    buckets["packets"], buckets["wire_bytes"], buckets["payload_bytes"] = (1, 2, 3, 4), (10, 20, 30, 4_000_000_000), 7
    table = link_totals(buckets, flows)
    assert table.tolist() == [(1, 0, 2, 20, 7), (1, 1, 8, 4_000_000_040, 21)]
    twice = summed([table.tobytes(), table.tobytes()])
    assert twice.tolist() == [(1, 0, 4, 40, 14), (1, 1, 16, 8_000_000_080, 42)]
    assert summed([]).tolist() == []


def test_an_introduction_is_no_larger_than_a_collector_takes(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    flows = [(number, number.to_bytes(8, "big") * 16) for number in range(1, MAX_FLOWS + 100)]
    kept.spool.append(1, b"body", b"", loss(), flows)
    kept.append(2, 3)
    kept.spool.acknowledge(1)
    _, told = kept.spool.introduction()
    assert MAX_MESSAGE_BYTES // 2 - 128 <= len(told) <= MAX_MESSAGE_BYTES // 2
