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

from netmon.kernel.processes import Process, identity_of
from netmon.kernel.training import timelines as timeline_files
from netmon.kernel.training.timelines import Opened, Timelines
from netmon.marks import RankIdentity

START = '[\\n{"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros":17}},\\n'
SCRIPT = f"""
import os, sys
other, files = open("training.log", "w", buffering=1), {{}}
print("epoch 1 of 90", file=other)
print("done", flush=True)
for line in sys.stdin:
    action, name = line.split()
    if action == "start":
        files[name] = open(name, "w", buffering=1)
        files[name].write('{START}')
    elif action == "stop":
        files[name].close()
    elif action == "exec":
        os.execvp(name, [name, "60"])
    elif action == "open":
        files[name] = os.open(name, os.O_RDWR | os.O_NONBLOCK)
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
        self.trainers = {self._child.pid: identity_of(self._child.pid)}

    def tell(self, action: str, name: str) -> None:
        self._child.stdin.write(f"{action} {name}\n")
        self._child.stdin.flush()
        assert action == "exec" or self._child.stdout.readline() == "done\n"

    def look(self, timelines: Timelines) -> list[Opened]:
        return timelines.follow([self.process], self.trainers)

    def end(self) -> None:
        self._child.kill()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that answers is waited for, however busy the machine is."""
    monkeypatch.setattr(timeline_files, "_LOOK_S", 60.0)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Callable[[str], Writer]]:
    with ExitStack() as cleanup:

        def begin(timeline: str) -> Writer:
            begun = Writer(tmp_path, timeline, cleanup)
            cleanup.callback(begun.end)
            return begun

        yield begin


def inode(opened: Opened) -> int:
    number = os.fstat(opened.descriptor).st_ino
    os.close(opened.descriptor)
    return number


def test_a_file_named_beforehand_is_found_when_it_is_there(tmp_path: Path, writer: Callable[[str], Writer]) -> None:
    timelines, rank = Timelines(), writer("named.json")
    assert rank.look(timelines) == []
    rank.tell("start", "named.json")
    (found,) = rank.look(timelines)
    assert (found.pid, found.whole) == (rank.process.pid, True)
    assert inode(found) == (tmp_path / "named.json").stat().st_ino
    assert rank.look(timelines) == []


def test_files_that_the_script_begins_are_found_one_after_the_other(
    tmp_path: Path, writer: Callable[[str], Writer]
) -> None:
    timelines, rank = Timelines(), writer("DYNAMIC")
    assert rank.look(timelines) == []
    for name in ("first.json", "second.json"):
        rank.tell("start", name)
        (found,) = rank.look(timelines)
        assert (found.pid, found.whole) == (rank.process.pid, False)
        assert inode(found) == (tmp_path / name).stat().st_ino
        assert rank.look(timelines) == []
        rank.tell("stop", name)
    rank.tell("start", "second.json")  # emptied, and begun anew: who follows it sees that
    assert rank.look(timelines) == []


def test_a_file_that_is_found_too_late_is_found_again(
    writer: Callable[[str], Writer], monkeypatch: pytest.MonkeyPatch
) -> None:
    open_own, answers = timeline_files._open_own, threading.Event()
    monkeypatch.setattr(timeline_files, "_LOOK_S", 0.01)
    monkeypatch.setattr(timeline_files, "_open_own", lambda *where: open_own(*where) if answers.wait() else -1)
    timelines, rank, found = Timelines(), writer("named.json"), []
    rank.tell("start", "named.json")
    assert rank.look(timelines) == []
    answers.set()
    wait_for(lambda: found.extend(rank.look(timelines)) or bool(found))
    os.close(found[0].descriptor)


def test_other_ranks_write_none(writer: Callable[[str], Writer]) -> None:
    rank = writer("DYNAMIC")
    rank.tell("start", "first.json")
    assert Timelines().follow([replace(rank.process, rank=RankIdentity("job", 1, 2))], rank.trainers) == []


def test_what_a_process_only_names_is_not_opened(tmp_path: Path, writer: Callable[[str], Writer]) -> None:
    (tmp_path / "secret.json").write_text(START.replace("\\n", "\n"))
    (tmp_path / "link.json").symlink_to("secret.json")
    for name in ("secret.json", "link.json", str(tmp_path / "secret.json"), "../../etc/passwd", "\udcff"):
        rank = writer(name)
        assert rank.look(Timelines()) == []


def test_what_is_no_file_or_not_the_users_to_read_is_not_opened(
    tmp_path: Path, writer: Callable[[str], Writer], monkeypatch: pytest.MonkeyPatch
) -> None:
    rank, timelines = writer("named.json"), Timelines()
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "/dev/null"):
        rank.tell("open", name)
    rank.tell("start", "named.json")
    (tmp_path / "named.json").chmod(0o200)
    assert rank.look(timelines) == []
    (tmp_path / "named.json").chmod(0o600)
    trainer, identity = rank.process.pid, rank.trainers[rank.process.pid]
    rank.trainers = {trainer: identity._replace(uid=identity.uid + 1)}
    assert rank.look(timelines) == []
    rank.trainers = {trainer: identity}
    os.close(rank.look(timelines)[0].descriptor)


@pytest.mark.parametrize("part", ["executable", "mount_namespace", "layout", "start_ticks"])
def test_who_is_another_than_the_one_that_trained_has_none(writer: Callable[[str], Writer], part: str) -> None:
    rank = writer("named.json")
    rank.tell("start", "named.json")
    trainer, identity = rank.process.pid, rank.trainers[rank.process.pid]
    rank.trainers = {trainer: identity._replace(**{part: None})}
    assert rank.look(Timelines()) == []


def test_another_program_is_another_identity(writer: Callable[[str], Writer]) -> None:
    rank = writer("named.json")
    before = identity_of(rank.process.pid)
    assert before is not None
    assert identity_of(rank.process.pid) == before
    rank.tell("exec", "sleep")
    wait_for(lambda: os.readlink(f"/proc/{rank.process.pid}/exe").endswith("sleep"))
    assert identity_of(rank.process.pid) not in (None, before)
    rank.end()
    wait_for(lambda: identity_of(rank.process.pid) is None)
