# SPDX-License-Identifier: Apache-2.0
"""What a service has to do with its machine: its user, who started it, clock and memory, and what outlives a cut."""

import contextlib
import ctypes
import errno
import logging
import os
import pwd
import re
import stat
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import sdnotify

from netmon.errors import DataError, UnsupportedError

# --- The user that what was started as root becomes, and the files that are given to that user before.

NAMES = ("netmon", "nobody")
_OURS = re.compile(r".+\.spool(-wal|-shm|-journal)?|refused|.+\.batch")


class ServiceUser(NamedTuple):
    """Of the machine's users."""

    name: str
    uid: int
    gid: int


def service_user() -> ServiceUser | None:
    """The first of NAMES that there is; None: the caller is not root, and stays who it is. Raises UnsupportedError."""
    if os.geteuid() != 0:
        return None
    for name in NAMES:
        with contextlib.suppress(KeyError):
            found = pwd.getpwnam(name)
            if found.pw_uid:
                return ServiceUser(name, found.pw_uid, found.pw_gid)
    raise UnsupportedError("cannot give up root: there is no user netmon and no user nobody; useradd --system netmon")


def give_folder(folder: Path, user: ServiceUser) -> None:
    """Makes the folder, and gives it to the user with what the agent has left there as root.

    A folder that is not root's alone stays as it is. Raises DataError where it holds anything else: it would be given
    away, too.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        index = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:  # whoever uses it says what is wrong
        return
    try:
        _give(index, folder, user)
    except OSError as error:
        raise DataError(f"cannot give {folder} to the user {user.name}: {error.strerror}") from error
    finally:
        os.close(index)


def _give(index: int, folder: Path, user: ServiceUser) -> None:
    """What is in a folder that only root may write to is what root has put there: nobody can exchange it meanwhile."""
    found = os.fstat(index)
    if found.st_uid != 0 or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return
    names = os.listdir(index)
    strangers = [name for name in names if not _OURS.fullmatch(name)]
    if strangers:
        raise DataError(f"cannot use {folder}: it holds {strangers[0]!r}; give a folder that is the agent's alone")
    for name in names:
        if name == "refused":
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=index)
            try:
                _give(inner, folder / name, user)
            finally:
                os.close(inner)
        else:
            os.chown(name, user.uid, user.gid, dir_fd=index, follow_symlinks=False)
    os.fchown(index, user.uid, user.gid)


def give_socket(path: Path) -> None:
    """A socket that root has made is the service user's, so that the other service can connect, and nobody else."""
    with contextlib.suppress(OSError, UnsupportedError):
        user = service_user()
        if user and stat.S_ISSOCK(path.lstat().st_mode):
            os.chown(path, user.uid, user.gid, follow_symlinks=False)


def require_readable(folder: Path, names: tuple[str, ...], user: ServiceUser) -> None:
    """To be called as the user. Raises UnsupportedError where one of these files is there and not theirs to read."""
    for path in (folder / name for name in names):
        try:
            path.open("rb").close()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise UnsupportedError(
                f"cannot read {path} as user {user.name}, which this agent is from now on: {error.strerror}; "
                f"chgrp -R {user.gid} {folder} and chmod 0750 {folder}, 0640 {path.name}"
            ) from None


# --- What a service says to whoever has started it: that it is ready, that it is alive, that it stops (sd_notify).

_SIGNS = 4  # of life, in the time after which it is taken for dead


class Supervisor:
    """Does nothing unless the environment requests it. Never blocks; belongs to one thread."""

    def __init__(self) -> None:
        """Reads what systemd has put into the environment."""
        self._notifier = sdnotify.SystemdNotifier() if "NOTIFY_SOCKET" in os.environ else None
        meant = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        given_us = os.environ.get("WATCHDOG_USEC", "") if meant and self._notifier else ""
        self._interval_ns = int(given_us) * 1_000 // _SIGNS if given_us.isdecimal() else 0
        self._due_ns = 0

    def ready(self) -> None:
        self._notify("READY=1")

    def alive(self) -> None:
        """To be called in the service's own loop, as often as it turns: says so often enough, and no more."""
        if self._interval_ns and (now := time.monotonic_ns()) >= self._due_ns:
            self._due_ns = now + self._interval_ns
            self._notify("WATCHDOG=1")

    def stopping(self) -> None:
        """It ends by itself, or was stopped."""
        self._notify("STOPPING=1")

    def close(self) -> None:
        if self._notifier:
            self._notifier.socket.close()
            self._notifier = None

    def _notify(self, state: str) -> None:
        if self._notifier:
            self._notifier.notify(state)


# --- This machine's clock is set by somebody: an hour, a year, either way.

_JUMP_S = 1.0  # what is less is slewed, or not worth a line


def _set_s() -> float:
    """UTC against the time since the machine started, sleep included: it changes only where the clock is set."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


class ClockJumps:
    """Of one process. Costs two readings of clocks a look."""

    def __init__(self, set_s: Callable[[], float] = _set_s) -> None:
        self._set_s, self._before_s = set_s, set_s()
        self.count = 0
        """How often the clock was set by more than a second."""

    def check(self) -> float:
        """By how many seconds it was set since the last look; 0: it was not."""
        now_s = self._set_s()
        jump_s = now_s - self._before_s
        if abs(jump_s) < _JUMP_S:
            return 0.0
        self._before_s = now_s
        self.count += 1
        return jump_s


def jump_text(jump_s: float) -> str:
    """A jump in words, as "set by +3600 s (1 h 0 min)"."""
    hours, minutes = divmod(round(abs(jump_s) / 60), 60)
    days, hours = divmod(hours, 24)
    words = [f"{days} d"] if days else []
    return f"set by {jump_s:+.0f} s ({' '.join([*words, f'{hours} h', f'{minutes} min'])})"


# --- What is to be outlived by what was acknowledged, and how the names of files outlive a cut of power.

DURABILITIES = ("process", "power")
""""process": the end of the process, SIGKILL included; "power": the end of the machine as well."""

_NOT_OURS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EINVAL, errno.ENOTSUP)
"""A folder above that may not be read, or not be synced, is not where we have made something."""


def sync_directory(path: Path) -> None:
    """Make the names in a directory outlive a power cut; blocks for the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_way_to(directory: Path) -> None:
    """Make the names of a directory, and of those above it, outlive a power cut; blocks for the disk.

    Whoever has made them may have been killed before they were synced. Raises OSError.
    """
    for above in directory.resolve().parents:
        try:
            sync_directory(above)
        except OSError as error:
            if error.errno not in _NOT_OURS:
                raise


# --- What the C library does with memory that is given back: kept for the next batch, instead of returned to the
# kernel.
#
# A batch of some thousand rows makes tables of some hundred kilobytes, again and again. As glibc comes, each of them
# is mapped and unmapped, and the kernel clears its pages anew: half of what summing up the rows costs.

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # mallopt(3)
_KEPT_BYTES = 4 << 20


def keep_heap() -> None:
    """To be called once, before there is work. Where the C library is another one, nothing changes.

    All threads share one arena: one at a time has Python's lock, and each arena would keep as much.
    """
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        for option in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
            library.mallopt(option, _KEPT_BYTES)
        library.mallopt(_ARENA_MAX, 1)


def trim_heap() -> None:
    """What the start has used and the work will not goes back to the kernel."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


# --- Notices when the agent's loop stands still, because a disk does not answer, say, or the host was suspended.
#
# What the kernel counts meanwhile waits in its rings; what they cannot hold is in the ledger as lost. Nothing has to
# be done about either: it is said once when it begins, and once when it is over, and counted.

log = logging.getLogger(__name__)

_LOOK_S = 2.0
_STILL_S = 5.0
_SUSPENDED_S = 1.0
_WOKEN_S = 0.1  # a shorter suspend needs no time request
_OUR_MODULES = "netmon."


def _asleep_s() -> float:
    """For how long the machine was suspended since it started."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)


class LoopWatchdog:
    """One per agent: `turn` by its loop, a thread that looks now and then."""

    def __init__(self, asleep_s: Callable[[], float] = _asleep_s, jumps: ClockJumps | None = None) -> None:
        self._asleep_s, self._asleep = asleep_s, asleep_s()
        self._turned_asleep = self._asleep
        self.jumps = jumps or ClockJumps()
        self._turned_s = time.monotonic()
        self._still_since = 0.0
        self._loop = threading.get_ident()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="loop-watchdog", daemon=True)
        self.still_s = 0.0
        """Total time that the loop has been stalled since the start."""
        self.suspended_s = 0.0
        """For how long the machine was suspended since the start."""

    def start(self) -> None:
        """To be called once, by the loop's thread."""
        self._loop, self._turned_s = threading.get_ident(), time.monotonic()
        self._thread.start()

    def turn(self) -> bool:
        """The loop goes on; whether the machine was suspended since it did so last."""
        self._turned_s, before = time.monotonic(), self._turned_asleep
        self._turned_asleep = self._asleep_s()
        return self._turned_asleep - before > _WOKEN_S

    def finish(self) -> None:
        """Nothing is said any more."""
        self._ended.set()

    def _work(self) -> None:
        while not self._ended.wait(_LOOK_S):
            self.check()

    def check(self) -> None:
        """What has changed since the last time."""
        asleep = self._asleep_s()
        if asleep - self._asleep > _SUSPENDED_S:
            self.suspended_s += asleep - self._asleep
            log.warning("this host was suspended for %.0f s; nothing was counted then", asleep - self._asleep)
        self._asleep = asleep
        if jump_s := self.jumps.check():
            log.warning(
                "this host's clock was %s: rows before and after keep their order, their UTC follows the collector's",
                jump_text(jump_s),
            )
        turned, now = self._turned_s, time.monotonic()
        if self._still_since and turned > self._still_since:
            took, self._still_since = turned - self._still_since, 0.0
            self.still_s += took
            log.warning("the agent goes on after %.0f s", took)
        if not self._still_since and now - turned > _STILL_S:
            self._still_since = turned
            log.warning(
                "the agent has been stalled for %.0f s in %s: a disk that does not answer, or a host without CPU time; "
                "what the kernel's rings cannot hold is counted as lost",
                *(now - turned, _where(sys._current_frames().get(self._loop))),
            )


def _where(frame: FrameType | None) -> str:
    """The innermost function of ours that a thread is in."""
    while frame:
        if frame.f_globals.get("__name__", "").startswith(_OUR_MODULES):
            return f"{frame.f_globals['__name__']}.{frame.f_code.co_name}"
        frame = frame.f_back
    return "its loop"
