# SPDX-License-Identifier: Apache-2.0
"""A look at the processes is worth its time when one has come or gone."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from netmon.kernel.processes import Changes


@pytest.fixture
def changes() -> Iterator[Changes]:
    changes = Changes()
    yield changes
    changes.close()


def tell(proc: Path, last: int) -> None:
    (proc / "loadavg").write_text(f"0.10 0.20 0.30 1/100 {last}\n")


def test_nothing_new_is_nothing_seen(tmp_path: Path) -> None:
    tell(tmp_path, 100)
    changes = Changes(tmp_path)
    assert changes.seen()
    assert [changes.seen() for _ in range(3)] == [False] * 3
    tell(tmp_path, 101)
    assert changes.seen()
    assert not changes.seen()
    (tmp_path / "101").mkdir()  # a folder has as many links as folders in it, and /proc as many as processes
    assert changes.seen()
    changes.close()


def test_a_process_that_comes_and_one_that_goes_are_seen(changes: Changes) -> None:
    changes.seen()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert changes.seen()
        process.kill()
    assert changes.seen()


def test_where_it_cannot_be_told_everything_may_be_new(tmp_path: Path) -> None:
    changes = Changes(tmp_path)
    assert changes.seen()
    assert changes.seen()
    changes.close()


@pytest.mark.skipif(os.stat("/dev").st_dev == os.stat("/").st_dev, reason="no second file system")
def test_a_file_that_somebody_else_has_put_there_is_not_trusted(tmp_path: Path) -> None:
    if os.stat("/dev/shm").st_dev == tmp_path.stat().st_dev:
        pytest.skip("no second file system")
    elsewhere = Path("/dev/shm") / f"netmon-test-{os.getpid()}"
    try:
        elsewhere.write_text("0.10 0.20 0.30 1/100 100\n")
        (tmp_path / "loadavg").symlink_to(elsewhere)
        changes = Changes(tmp_path)
        assert [changes.seen() for _ in range(3)] == [True] * 3
        changes.close()
    finally:
        elsewhere.unlink()
