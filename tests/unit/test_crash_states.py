# SPDX-License-Identifier: Apache-2.0
"""Power cuts at every moment, in every way: what spool and dataset have acknowledged is there, whole and once."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from crash_checks import check_of
from crash_share import in_shares
from crash_states import Result, enumerate_states, fast_folder
from crash_trace import Op, installed, parse, record

HERE = Path(__file__).parent

pytestmark = pytest.mark.skipif(not installed, reason="strace is not installed")


def recorded(kind: str, folder: Path, runs: int, steps: int) -> list[Op]:
    """Of a directory that is not there any more."""
    (place := folder / "own/fs").mkdir(parents=True)
    program, own = ("crash_store_run.py", ()) if kind == "store" else ("crash_spool_run.py", (kind,))
    ops = record(HERE / program, place, *own, "0", str(runs), str(steps))
    shutil.rmtree(place)
    return ops


def judge_input(kind: str, checked: str, runs: int, steps: int, **more: Any) -> Result:
    with fast_folder() as folder:
        ops = recorded(kind, folder, runs, steps)
        return enumerate_states(ops, check_of(checked), folder / "own/fs", **more)


@pytest.mark.parametrize("kind", ["process", "power", "store"])
def test_some_states(kind: str) -> None:
    runs, steps, every = (1, 2, 12) if kind == "store" else (2, 6, 6)
    result = judge_input(kind, kind, runs, steps, draws=1, every=every)
    assert result.states > 50
    assert not result.wrong, str(result)


def name(text: str) -> str:
    """As strace shows it."""
    return '"' + "".join(f"\\x{byte:02x}" for byte in text.encode()) + '"'


def test_a_descriptor_that_another_thread_has_before_its_close_is_over() -> None:
    lines = [
        "1 clone3({flags=CLONE_VM|CLONE_FILES|CLONE_THREAD} => {parent_tid=[2]}, 88) = 2",
        f"1 openat(AT_FDCWD, {name('/d')}, O_RDONLY|O_DIRECTORY) = 3",
        "1 close(3 <unfinished ...>",
        f"2 openat(AT_FDCWD, {name('/d/one')}, O_RDWR|O_CREAT, 0644) = 3",
        "1 <... close resumed>) = 0",
        f"2 pwrite64(3, {name('a')}, 1, 0) = 1",
        "2 close(3) = 0",
        f"2 pwrite64(3, {name('b')}, 1, 0) = 1",
    ]
    ops = [(op.kind, op.path, op.data) for op in parse(lines, "/d", "/said")]
    assert ops == [("make", "one", b""), ("write", "one", b"a")]


def test_a_thread_that_writes_before_its_clone_is_over() -> None:
    """As strace tells it on a busy machine."""
    lines = [
        f"1 openat(AT_FDCWD, {name('/d/one')}, O_RDWR|O_CREAT, 0644) = 3",
        "1 clone3({flags=CLONE_VM|CLONE_FILES|CLONE_THREAD} <unfinished ...>",
        f"2 openat(AT_FDCWD, {name('/d/two')}, O_RDWR|O_CREAT, 0644) = 4",
        "1 <... clone3 resumed> => {parent_tid=[2]}, 88) = 2",
        f"2 pwrite64(4, {name('b')}, 1, 0) = 1",
        f"2 pwrite64(3, {name('a')}, 1, 0) = 1",
        "1 fdatasync(4) = 0",
    ]
    ops = [(op.kind, op.path) for op in parse(lines, "/d", "/said")]
    assert ops == [("make", "one"), ("make", "two"), ("write", "two"), ("write", "one"), ("sync", "two")]


def test_what_was_not_synced_is_found_to_be_lost() -> None:
    assert judge_input("process", "power", 1, 12, draws=0, every=3).wrong["lost"]


@pytest.mark.long
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("kind", ["process", "power", "store"])
def test_every_state(kind: str) -> None:
    """Of a run of more than 10,000 operations."""
    runs, steps = (10, 9) if kind == "store" else (15, 60)  # fewer operations where batches wait together
    with fast_folder() as folder:
        ops = recorded(kind, folder, runs, steps)
        result = in_shares(ops, folder, kind, draws=3, every=int(os.environ.get("NETMON_EVERY", "1")))
    print(f"{kind}: {result}")
    assert result.operations >= 10_000
    assert not result.wrong
