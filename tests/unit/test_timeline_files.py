# SPDX-License-Identifier: Apache-2.0
"""The files that ranks write their timelines to, found in a real process: named beforehand, or by the script."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from waiting import wait_for

from netmon.kernel.processes import Process
from netmon.kernel.training import timelines as timeline_files
from netmon.kernel.training.timelines import Opened, Timelines
from netmon.marks import RankIdentity

START = '[\\n{"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros":17}},\\n'
SCRIPT = f"""
import sys
other, files = open("training.log", "w", buffering=1), {{}}
print("epoch 1 of 90", file=other)
print("done", flush=True)
for line in sys.stdin:
    action, name = line.split()
    if action == "start":
        files[name] = open(name, "w", buffering=1)
        files[name].write('{START}')
    else:
        files[name].close()
    print("done", flush=True)
"""


class Writer:
    """A process that is told when to write a timeline, and where."""

    def __init__(self, folder: Path, timeline: str, cleanup: ExitStack) -> None:
        environment = os.environ | {"HOROVOD_TIMELINE": timeline}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        command = [sys.executable, "-c", SCRIPT]
        self._child = cleanup.enter_context(subprocess.Popen(command, cwd=folder, env=environment, **pipes))
        assert self._child.stdout.readline() == "done\n"
        self.process = Process(self._child.pid, 0, "python", "", RankIdentity("job", 0, 2), os.getuid())

    def tell(self, action: str, name: str) -> None:
        self._child.stdin.write(f"{action} {name}\n")
        self._child.stdin.flush()
        assert self._child.stdout.readline() == "done\n"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that answers is waited for, however busy the machine is."""
    monkeypatch.setattr(timeline_files, "_LOOK_S", 60.0)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Callable[[str], Writer]]:
    with ExitStack() as cleanup:
        yield lambda timeline: Writer(tmp_path, timeline, cleanup)


def inode(opened: Opened) -> int:
    number = os.fstat(opened.descriptor).st_ino
    os.close(opened.descriptor)
    return number


def test_a_file_named_beforehand_is_found_when_it_is_there(tmp_path: Path, writer: Callable[[str], Writer]) -> None:
    timelines, rank = Timelines(), writer("named.json")
    assert timelines.follow([rank.process]) == []
    rank.tell("start", "named.json")
    (found,) = timelines.follow([rank.process])
    assert (found.pid, found.whole) == (rank.process.pid, True)
    assert inode(found) == (tmp_path / "named.json").stat().st_ino
    assert timelines.follow([rank.process]) == []


def test_files_that_the_script_begins_are_found_one_after_the_other(
    tmp_path: Path, writer: Callable[[str], Writer]
) -> None:
    timelines, rank = Timelines(), writer("DYNAMIC")
    assert timelines.follow([rank.process]) == []
    for name in ("first.json", "second.json"):
        rank.tell("start", name)
        (found,) = timelines.follow([rank.process])
        assert (found.pid, found.whole) == (rank.process.pid, False)
        assert inode(found) == (tmp_path / name).stat().st_ino
        assert timelines.follow([rank.process]) == []
        rank.tell("stop", name)
    rank.tell("start", "second.json")  # emptied, and begun anew: who follows it sees that
    assert timelines.follow([rank.process]) == []


def test_a_file_that_is_found_too_late_is_found_again(
    writer: Callable[[str], Writer], monkeypatch: pytest.MonkeyPatch
) -> None:
    open_own, answers = timeline_files._open_own, threading.Event()
    monkeypatch.setattr(timeline_files, "_LOOK_S", 0.01)
    monkeypatch.setattr(timeline_files, "_open_own", lambda *where: open_own(*where) if answers.wait() else -1)
    timelines, rank, found = Timelines(), writer("named.json"), []
    rank.tell("start", "named.json")
    assert timelines.follow([rank.process]) == []
    answers.set()
    wait_for(lambda: found.extend(timelines.follow([rank.process])) or bool(found))
    os.close(found[0].descriptor)


def test_other_ranks_write_none(writer: Callable[[str], Writer]) -> None:
    rank = writer("DYNAMIC")
    rank.tell("start", "first.json")
    assert Timelines().follow([replace(rank.process, rank=RankIdentity("job", 1, 2))]) == []
