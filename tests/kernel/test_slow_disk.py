# SPDX-License-Identifier: Apache-2.0
"""A disk that stands still, one that goes away, one without inodes: said, counted, and it goes on by itself."""

import asyncio
import fcntl
import logging
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from conftest import run
from in_process import JobsHere, take
from test_full_disk import batch
from waiting import wait_for

from collector import flushing
from collector.dataset.sink import ParquetSink
from collector.registry import Registry
from collector.server import why_not_ready
from collector.settings import Settings
from netmon.agent import spool as spool_module
from netmon.agent.spool import LINK_TOTALS, Spool
from netmon.agent.spool_folder import SpoolFolder
from netmon.records import ClockSample, Hello, Interface, Table, empty

pytestmark = pytest.mark.kernel

_FREEZE, _THAW, _SHUTDOWN = 0xC0045877, 0xC0045878, 0x8004587D  # FIFREEZE, FITHAW, EXT4_IOC_SHUTDOWN
_NO_FLUSH = struct.pack("=I", 2)
UTC = 1_760_000_000_000_000_000
HELLO = Hello("h0", "s1", 10_000, ClockSample(0, UTC, 1000), (Interface(7, "eth0", 10**9, "tcx", "tcx"),), "1")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    image, directory = tmp_path / "image", tmp_path / "disk"
    directory.mkdir()
    image.touch()
    os.truncate(image, 32 << 20)
    run("mkfs.ext4", "-q", "-O", "^has_journal", str(image))
    try:
        run("mount", "-o", "loop", str(image), str(directory))
    except Exception as error:
        pytest.skip(f"no loop devices: {error}")
    try:
        yield directory
    finally:
        with suppress(OSError):
            command(directory, _THAW)
        run("umount", "--lazy", str(directory))


def command(directory: Path, number: int, argument: bytes = b"\0\0\0\0") -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.ioctl(descriptor, number, argument)
    finally:
        os.close(descriptor)


@contextmanager
def frozen(directory: Path) -> Iterator[None]:
    """Whoever writes there waits until it is over."""
    command(directory, _FREEZE)
    try:
        yield
    finally:
        with suppress(OSError):
            command(directory, _THAW)


def test_a_spool_whose_disk_stands_still_says_so_and_holds_nobody_up(disk, monkeypatch, caplog):
    monkeypatch.setattr(spool_module, "_ANSWERS_S", 0.1)
    spool = Spool(SpoolFolder(disk / "spool"), "s1", 1 << 24, print)
    spool.append(1, b"before", b"", b"")
    wait_for(lambda: spool.spooled == 1)
    with caplog.at_level(logging.WARNING):
        with frozen(disk):
            for sequence in range(2, 12):  # the test's own limit ends it
                spool.append(sequence, b"x" * 100_000, b"", b"")
                assert spool.after(sequence - 1, lambda: False).sequence == sequence  # whoever is connected gets it
            wait_for(lambda: spool.silent)
            spool.append(12, b"still", b"", b"")
            assert any("the disk does not answer; batches wait in memory" in line for line in caplog.messages)
            assert spool.silent_s > 0
        wait_for(lambda: spool.spooled == 12)
    assert any("takes batches again" in line for line in caplog.messages)
    last = spool.newest
    assert [spool.after(number, lambda: False).sequence for number in range(last)] == list(range(1, last + 1))
    spool.close()
    table = SpoolFolder(disk / "spool").take_over("s1")
    assert [number for number, *_ in table.batches()] == list(range(1, last + 1))
    table.close()


def test_a_collector_whose_disk_stands_still_says_so_and_acknowledges_nothing(disk, monkeypatch, caplog):
    monkeypatch.setattr(flushing, "SLOW_S", 0.2)

    async def scenario() -> None:
        sink = ParquetSink(disk)
        registry = Registry(sink, Settings(), JobsHere())
        entry = await registry.open(HELLO, asyncio.Event())
        for sequence in range(1, 21):
            take(registry, entry, batch(sequence))
        with frozen(disk):
            writing = asyncio.ensure_future(registry.flush())
            while not why_not_ready(registry):  # the loop lives; the test's own limit ends it
                await asyncio.sleep(0.01)
            assert registry.snapshot(0).warnings[0].startswith(f"{disk} has not taken rows for")
            assert entry.acknowledge == 0
        assert await writing
        assert entry.acknowledge > 0
        assert why_not_ready(registry) == ""
        sink.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert caplog.messages[-1] == f"{disk} takes rows again"


def test_a_spool_on_a_disk_that_goes_away_goes_on_in_memory_and_counts_what_it_lost(disk, monkeypatch, caplog):
    monkeypatch.setattr(spool_module, "_UNREADABLE_S", 0.0)
    monkeypatch.setattr(spool_module, "_RECENT_BYTES", 0)  # all but the newest has to be read from there
    lost: list[Table] = []
    carried = empty(LINK_TOTALS)
    carried.resize(1)
    spool = Spool(SpoolFolder(disk / "spool"), "s1", 1 << 24, lost.append)
    spool.append(1, b"on the disk", b"", carried.tobytes())
    wait_for(lambda: spool.spooled == 1)
    with caplog.at_level(logging.WARNING):
        command(disk, _SHUTDOWN, _NO_FLUSH)
        for sequence in range(2, 5):
            spool.append(sequence, b"in memory " * 1000, b"", carried.tobytes())
        wait_for(lambda: spool.trouble)
        assert sum("batches wait in memory" in line for line in caplog.messages) == 1
        run("umount", "--lazy", str(disk))
        run("mount", "-t", "tmpfs", "tmpfs", str(disk))  # another one in its place
        disk.joinpath("spool").mkdir(mode=0o700)
        sent = set()
        number = 0
        while number < 4:
            with suppress(Exception):  # what was on the disk is given up at the second look
                found = spool.after(number, lambda: False)
                number = found.sequence
                sent.add(number)
    assert sent >= {2, 3, 4}
    assert sent == {1, 2, 3, 4} or (spool.given_up == 1 and len(lost) == 1)
    spool.append(5, b"again on a disk", b"", carried.tobytes())
    wait_for(lambda: spool.spooled == 5)
    assert any("takes batches again" in line for line in caplog.messages)
    spool.close()


def test_a_disk_without_inodes_is_a_full_disk(tmp_path, caplog):
    run("mount", "-t", "tmpfs", "-o", "nr_inodes=60", "tmpfs", str(tmp_path))
    spool_directory = tmp_path / "spool"
    spool_directory.mkdir(mode=0o700)

    async def scenario() -> None:
        sink = ParquetSink(tmp_path)
        registry = Registry(sink, Settings(), JobsHere())
        entry = await registry.open(HELLO, asyncio.Event())
        for sequence in range(1, 21):
            take(registry, entry, batch(sequence))
        taken = []
        with suppress(OSError):
            for number in range(100):
                (tmp_path / f"in-the-way-{number}").touch()
                taken.append(number)
        assert len(taken) < 100
        spool = Spool(SpoolFolder(spool_directory), "s1", 1 << 24, print)
        spool.append(1, b"a batch", b"", b"")
        wait_for(lambda: spool.trouble)
        assert not await registry.flush()
        assert "No space left on device" in registry.snapshot(0).warnings[0]
        assert entry.acknowledge == 0
        for number in taken:
            (tmp_path / f"in-the-way-{number}").unlink()
        assert await registry.flush()
        assert entry.acknowledge > 0
        sink.close()
        spool.append(2, b"another", b"", b"")
        wait_for(lambda: spool.spooled == 2)
        assert (spool_directory / "s1.spool").exists()
        assert [spool.after(number, lambda: False).sequence for number in (0, 1)] == [1, 2]
        spool.close()

    try:
        with caplog.at_level(logging.WARNING):
            asyncio.run(scenario())
    finally:
        run("umount", "--lazy", str(tmp_path))
    assert sum("batches wait in memory" in line for line in caplog.messages) == 1
    assert any(line.endswith("spool takes batches again") for line in caplog.messages)
