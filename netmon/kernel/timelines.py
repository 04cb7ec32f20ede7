# SPDX-License-Identifier: Apache-2.0
"""The Horovod Timeline files that ranks write, opened for the part of the agent that may not open them itself."""

import os
import stat
from collections.abc import Iterable

from netmon.kernel.processes import PROC, Process

_VARIABLE = b"HOROVOD_TIMELINE"
_DYNAMIC = "DYNAMIC"  # "to be started by the script": no file is named
MOST_AT_ONCE = 16
"""Files in one answer; the others come with the next."""


class Timelines:
    """Only rank 0 of a job writes one. Needs CAP_SYS_PTRACE for other users' processes."""

    def __init__(self) -> None:
        """None is open."""
        self._paths: dict[int, str] = {}  # by pid; empty: it writes none
        self._opened: dict[int, tuple[int, int]] = {}  # by pid: device and inode

    def follow(self, processes: Iterable[Process]) -> list[tuple[int, int]]:
        """processes: those that train now → (pid, descriptor for reading) of files that are new; the caller's to close.

        A file that was replaced by another one is new; one that was emptied is not.
        """
        ranks = [process.pid for process in processes if process.rank and process.rank.rank == 0]
        self._paths = {pid: self._paths[pid] if pid in self._paths else _path(pid) for pid in ranks}
        self._opened = {pid: file for pid, file in self._opened.items() if pid in self._paths}
        found: list[tuple[int, int]] = []
        for pid, path in self._paths.items():
            descriptor = _open(path) if path and len(found) < MOST_AT_ONCE else -1
            if descriptor >= 0:
                status = os.fstat(descriptor)
                file = status.st_dev, status.st_ino
                if stat.S_ISREG(status.st_mode) and self._opened.get(pid) != file:
                    self._opened[pid] = file
                    found.append((pid, descriptor))
                else:
                    os.close(descriptor)
        return found


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # not there yet
        return -1


def _path(pid: int) -> str:
    """As we can open it, also in a container; empty where the process writes none."""
    try:
        environment = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return ""
    variables = dict(pair.partition(b"=")[::2] for pair in environment.split(b"\0"))
    name = os.fsdecode(variables.get(_VARIABLE, b""))
    if name in ("", _DYNAMIC):
        return ""
    return f"{PROC}/{pid}/root{name}" if name.startswith("/") else f"{PROC}/{pid}/cwd/{name}"
