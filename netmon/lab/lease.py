# SPDX-License-Identifier: Apache-2.0
"""Who owns which testbed, so that what a killed lab left behind can be distinguished from what a living one uses.

A run has a random id. Its namespaces carry the id in their names; its sockets, spools and a lock file lie in
/run/netmon-lab/<id>. The kernel drops the lock with its owner, however that ended.
"""

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from netmon.errors import UnsupportedError
from netmon.lab import iproute
from netmon.lab.injections.quota import remove_groups

PREFIX = "netmon-"
RUNS = Path("/run/netmon-lab")
ETC_NETNS = Path("/etc/netns")
_NAMESPACE = re.compile(PREFIX + r"([0-9a-f]{6})-")


@dataclass(frozen=True)
class Lease:
    """One testbed's name and its folder for things that live as long as the run."""

    run: str
    folder: Path

    def namespace(self, name: str) -> str:
        """The network namespace of a host or of the switch."""
        return f"{PREFIX}{self.run}-{name}"


@contextlib.contextmanager
def leased() -> Iterator[Lease]:
    """A fresh testbed name; whatever carries it is removed at the end, also on failure. Needs root."""
    if os.geteuid() != 0:
        raise UnsupportedError("cannot build the testbed: network namespaces need root; run it with sudo")
    with contextlib.ExitStack() as stack:
        with _registry():
            lease = Lease(run := secrets.token_hex(3), RUNS / run)
            lease.folder.mkdir(mode=0o711)  # agents, which are not root, have their sockets and spools there
            lock = stack.enter_context((lease.folder / "lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        stack.callback(remove, run)
        yield lease


def abandoned() -> list[str]:
    """Ids of the runs that left something behind and whose owner is gone."""
    with _registry():
        return [run for run in runs() if not _alive(run)]


def runs() -> list[str]:
    """Ids of all runs that have anything on this machine."""
    folders = {path.name for path in RUNS.glob("*") if path.is_dir()}
    names = [*iproute.namespaces(PREFIX), *(path.name for path in ETC_NETNS.glob(f"{PREFIX}*"))]
    return sorted(folders | {match[1] for name in names if (match := _NAMESPACE.match(name))})


def remove(run: str) -> None:
    """End what still runs in a run's namespaces, and remove them and its files. Blocks up to 4 s."""
    names = iproute.namespaces(f"{PREFIX}{run}-")
    _end_processes(names)
    for name in names:
        iproute.call(["ip", "netns", "delete", name])
    remove_groups(run)
    for folder in ETC_NETNS.glob(f"{PREFIX}{run}-*"):
        shutil.rmtree(folder)
    with contextlib.suppress(OSError):  # somebody else's namespaces may have their files there
        ETC_NETNS.rmdir()
    shutil.rmtree(RUNS / run, ignore_errors=True)


def _end_processes(names: list[str]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + 2
        pids = [pid for name in names for pid in iproute.processes(name)]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        while pids and time.monotonic() < deadline:
            time.sleep(0.05)
            pids = [pid for name in names for pid in iproute.processes(name)]
        if not pids:
            return


def _alive(run: str) -> bool:
    try:
        with (RUNS / run / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


@contextlib.contextmanager
def _registry() -> Iterator[None]:
    """Nobody looks for the dead while somebody is being born: a run's lock file exists a moment before its lock."""
    RUNS.mkdir(exist_ok=True)
    RUNS.chmod(0o711)  # nobody else sees which runs there are
    with (RUNS / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
