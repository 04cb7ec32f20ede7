# SPDX-License-Identifier: Apache-2.0
"""The Horovod Timeline files that ranks write, opened for the part of the agent that may not open them itself.

No name that a process gives is followed: a timeline is found among the files that the process itself has open for
writing. It is a regular file of the one user that the process runs as, which that user may read, and begins as a
timeline does; what is looked at is what was opened. And the process is, after that, still the one that was seen to
train: the same program, user and mount namespace.
"""

import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from netmon.kernel.processes import PROC, Identity, Process, environment_of, identity_of
from netmon.kernel.stalling import StallingCalls, close_late

_VARIABLE = "HOROVOD_TIMELINE"
_DYNAMIC = "DYNAMIC"  # the script starts and stops it (hvd.start_timeline), in files that it names
_HEAD_BYTES = 4096
_MARK = b"start_time_since_epoch_in_micros"  # in the first record of every timeline, and nowhere else
MOST_AT_ONCE = 16
"""Files in one answer; the others come with the next."""
_MOST_OF_USER = 8  # ranks 0 that write one
_MOST_FILES = 1024  # of a process, that are looked at
_LOOK_S = 0.2  # at one process's files; what takes longer is on a file system that does not answer

_File = tuple[int, int]
"""Device and inode."""


class Opened(NamedTuple):
    """A file that a rank writes. whole: it begins with the training."""

    pid: int
    uid: int
    whole: bool
    descriptor: int  # for reading; whoever gets it closes it


class Timelines:
    """Only rank 0 of a job writes one. Needs CAP_SYS_PTRACE for other users' processes."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}  # by pid: as the environment has it
        self._opened: dict[int, _File] = {}  # by pid
        self._others: dict[int, set[_File]] = {}  # by pid: files that it writes and that are no timelines
        self._looking = StallingCalls(_LOOK_S)

    def follow(self, processes: Iterable[Process], trainers: Mapping[int, Identity]) -> list[Opened]:
        """processes: ranks; trainers: those that train now, by pid → files that are new, MOST_AT_ONCE at most.

        A file that was replaced by another one is new; one that was emptied is not.
        """
        of_user = Counter[int]()
        writers: list[int] = []
        for process in processes:
            if process.rank and process.rank.rank == 0 and process.pid in trainers:
                of_user[trainers[process.pid].uid] += 1
                if of_user[trainers[process.pid].uid] <= _MOST_OF_USER:
                    writers.append(process.pid)
        self._names = {pid: self._names[pid] if pid in self._names else _name(pid) for pid in writers}
        self._opened = {pid: file for pid, file in self._opened.items() if pid in self._names}
        self._others = {pid: files for pid, files in self._others.items() if pid in self._names}
        found: list[Opened] = []
        for pid, name in self._names.items():
            if name and len(found) < MOST_AT_ONCE:
                descriptor = self._look(pid, trainers[pid])
                if descriptor >= 0:
                    found.append(Opened(pid, trainers[pid].uid, name != _DYNAMIC, descriptor))
        return found

    def _look(self, pid: int, identity: Identity) -> int:
        """−1: none, or none that is new. What is found too late is found again by the next look."""
        known, others = self._opened.get(pid), self._others.setdefault(pid, set())
        try:
            found = self._looking.call(identity.uid, lambda: _find(pid, identity, known, others), close_late)
        except OSError:  # its file system does not answer
            return -1
        if found is None:
            return -1
        descriptor, self._opened[pid] = found
        return descriptor


def _find(pid: int, identity: Identity, known: _File | None, others: set[_File]) -> tuple[int, _File] | None:
    """The timeline among the files that a process writes now; None: none, or none that is new. others: are none."""
    for path in _written(pid):
        descriptor = _open_own(path, identity.uid)
        if descriptor < 0:
            continue
        status = os.fstat(descriptor)
        file = status.st_dev, status.st_ino
        head = b"" if file in others else os.pread(descriptor, _HEAD_BYTES, 0)
        if _MARK in head and known != file and identity_of(pid) == identity:
            return descriptor, file
        os.close(descriptor)
        if _MARK in head:
            return None
        if len(head) == _HEAD_BYTES or head[:1] not in (b"", b"["):  # else it may become one
            others.add(file)
    return None


def _written(pid: int) -> Iterator[str]:
    """Ways to what a process has open for writing."""
    folder = PROC / str(pid) / "fd"
    try:
        with os.scandir(folder) as listed:
            entries = list(islice(listed, _MOST_FILES))
    except OSError:
        return
    for entry in entries:
        try:
            writes = entry.stat(follow_symlinks=False).st_mode & stat.S_IWUSR  # proc(5): the link's mode is the file's
        except OSError:
            continue
        if writes:
            yield entry.path


def _open_own(path: str, uid: int) -> int:
    """−1 where it is no regular file of this user's that he may read: it is looked at before it is opened."""
    try:
        index = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # closed meanwhile
        return -1
    try:
        status = os.fstat(index)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != uid or not status.st_mode & stat.S_IRUSR:
            return -1
        return os.open(f"/proc/self/fd/{index}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return -1
    finally:
        os.close(index)


def _name(pid: int) -> str:
    """Empty where the process writes none."""
    return environment_of(pid).get(_VARIABLE, "")
