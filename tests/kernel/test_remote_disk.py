# SPDX-License-Identifier: Apache-2.0
"""A spool on a network file system whose server goes away, fails, and comes back. Where it is no NFS it is FUSE."""

import asyncio
import errno
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from conftest import run
from in_process import JobsHere, take
from test_full_disk import ROWS, batch
from test_slow_disk import HELLO
from waiting import wait_for

from collector.dataset.sink import ParquetSink
from collector.registry import Registry
from collector.settings import Settings
from netmon.agent import spool as spool_module
from netmon.agent import spool_folder
from netmon.agent.spool import LINK_TOTALS, Spool
from netmon.agent.spool_folder import SpoolFolder
from netmon.errors import DataError
from netmon.records import Table, empty

pytest.importorskip("mfusepy", exc_type=Exception)
pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="this kernel has no FUSE"),
]


class Remote:
    def __init__(self, folder: Path) -> None:
        self.behind, self.mount = folder / "behind", folder / "mount"
        for path in (self.behind, self.mount):
            path.mkdir(mode=0o700)
        program = [sys.executable, str(Path(__file__).with_name("remote_disk.py")), str(self.behind), str(self.mount)]
        self.server = subprocess.Popen(program)
        wait_for(lambda: self.server.poll() is not None or os.path.ismount(self.mount))
        assert self.server.poll() is None

    def stop(self) -> None:
        self.server.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.server.send_signal(signal.SIGCONT)

    def fail(self, number: int) -> None:
        """0: no more."""
        being, fails = Path(f"{self.behind}.being"), Path(f"{self.behind}.fails")
        being.write_text(str(number))
        being.replace(fails)
        if not number:
            fails.unlink()

    def close(self) -> None:
        self.server.kill()
        self.server.wait()
        run("umount", "--lazy", str(self.mount))


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[Remote]:
    disk = Remote(tmp_path)
    try:
        yield disk
    finally:
        disk.close()


def carried() -> bytes:
    rows = empty(LINK_TOTALS)
    rows.resize(1)
    rows["packets"] = 1
    return rows.tobytes()


def test_a_spool_on_a_server_that_goes_away_fails_and_comes_back(remote, monkeypatch, caplog):
    monkeypatch.setattr(spool_module, "_ANSWERS_S", 0.2)
    monkeypatch.setattr(spool_module, "_UNREADABLE_S", 0.0)
    monkeypatch.setattr(spool_module, "_RECENT_BYTES", 0)  # all but the newest has to be read from there
    lost: list[Table] = []
    spool = Spool(SpoolFolder(remote.mount / "spool"), "s1", 1 << 24, lost.append)
    spool.hello = b"hello"
    for sequence in range(1, 4):
        spool.append(sequence, b"there" * 60_000, b"r", carried())
    wait_for(lambda: spool.spooled == 3)

    def said(words: str) -> int:
        return sum(words in line for line in caplog.messages)

    with caplog.at_level(logging.WARNING):
        remote.stop()
        for sequence in range(4, 20):  # the test's own limit ends it
            spool.append(sequence, b"while it was gone", b"r", carried())
            assert spool.after(sequence - 1, lambda: False).sequence == sequence
        wait_for(lambda: spool.silent)
        spool.append(20, b"still gone", b"r", carried())
        assert spool.after(0, lambda: False, lambda: 0.0) is None  # what is there is waited for
        assert (said("the disk does not answer; batches wait in memory"), lost) == (1, [])
        remote.fail(errno.ESTALE)
        remote.go_on()
        wait_for(lambda: not spool.silent)
        spool.append(21, b"while it failed", b"r", carried())
        found = spool.after(0, lambda: False)  # what is there, and not in memory, is lost, and counted
        assert found.sequence == 4
        assert (sum(int(table["packets"].sum()) for table in lost), spool.given_up, said("given up: 3 batches")) == (
            3,
            3,
            1,
        )
        remote.fail(0)
        spool.append(22, b"again", b"r", carried())
        wait_for(lambda: spool.spooled == 22)
        assert said("takes batches again") == 1
    assert [spool.after(number, lambda: False).sequence for number in range(3, 22)] == list(range(4, 23))
    assert spool.silent_s > 0
    spool.close()
    folder = SpoolFolder(remote.mount / "spool")
    (name,) = [name for name in folder.left_behind() if name != "s1"]
    table = folder.take_over(name)
    assert (table.hello(), [number for number, *_ in table.batches()]) == (b"hello", list(range(4, 23)))
    table.close()


@pytest.mark.parametrize("error", [errno.EROFS, errno.EIO, errno.ESTALE])
def test_a_dataset_on_a_server_that_fails_goes_on_when_it_does_not(remote, caplog, error):
    async def scenario() -> None:
        sink = ParquetSink(remote.mount / "data", durability="process")
        registry = Registry(sink, Settings(durability="process"), JobsHere())
        entry = await registry.open(HELLO, asyncio.Event())
        for sequence in range(1, 21):
            take(registry, entry, batch(sequence))
        remote.fail(error)
        assert not await registry.flush()
        assert registry.snapshot(5).warnings[0].startswith(f"cannot write to {remote.mount / 'data'}: ")
        assert entry.acknowledge == 0
        remote.fail(0)
        assert await registry.flush()
        assert entry.acknowledge > 0
        registry.settle(entry, leaving=True)
        assert await registry.flush()
        sink.close()

    asyncio.run(scenario())
    assert caplog.messages[-1] == f"{remote.mount / 'data'} takes rows again"
    rows = pd.concat(pd.read_parquet(path) for path in (remote.behind / "data" / "buckets").rglob("*.parquet"))
    assert len(rows) == 20 * ROWS
    assert not rows.duplicated("bucket_start_ns").any()


def test_an_agent_does_not_wait_for_ever_for_a_spool_that_does_not_answer(remote, monkeypatch):
    monkeypatch.setattr(spool_folder, "_OPENS_S", 0.3)
    remote.stop()
    with pytest.raises(DataError, match=r"its disk has not answered for .*; give another --spool"):
        spool_folder.open_folder(remote.mount / "spool", "process")
    remote.go_on()
