# SPDX-License-Identifier: Apache-2.0
"""The directory of the spools: whose it has to be, one file per session, and what was set aside.

DIR/SESSION.spool     (and SQLite's -wal) of a session that lives, or was left behind
DIR/refused/…         what could not be sent, for a report of the bug; bounded
"""

import contextlib
import errno
import fcntl
import logging
import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

from netmon.agent.batch_table import BatchTable
from netmon.durability import sync_way_to
from netmon.errors import DataError
from netmon.kernel.stalling import StalledError, StallingCalls

log = logging.getLogger(__name__)

_MOST_REFUSED_BYTES = 64 << 20
_SUFFIX = ".spool"
_UNWELL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
"""What a disk may recover from. Anything else is in the configuration, and for somebody to put right."""


_OPENS_S = 10.0


def open_folder(path: Path, durability: str) -> "SpoolFolder":
    """A spool's folder. Raises DataError, also where the disk does not answer for ten seconds."""
    try:
        return StallingCalls(_OPENS_S).call(None, lambda: SpoolFolder(path, durability), lambda late: None)
    except StalledError:
        raise DataError(
            f"cannot use {path} as a spool: its disk has not answered for {_OPENS_S:.0f} s; give another --spool"
        ) from None


class SpoolFolder:
    """One directory. It is ours or root's, and nobody else may write there; everything else is refused."""

    def __init__(self, directory: Path, durability: str = "process") -> None:
        """Makes it where it is missing. Raises DataError where it is not to be trusted, or is no directory.

        durability: what an appended batch outlives: the end of the "process", or a cut of "power" as well.
        A disk that is full or read-only is no reason to refuse: `open_session` raises then, and batches wait in memory.
        """
        self.directory, self._durability = directory, durability
        self.refused = directory / "refused"
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check(directory)
            if durability == "power":
                sync_way_to(directory)
        except OSError as error:
            if error.errno not in _UNWELL:
                raise _unusable(directory, f"{error.strerror}; give another --spool") from error

    def open_session(self, session: str) -> BatchTable:
        """A new session's. Raises sqlite3.Error or OSError."""
        with self._locked():
            return BatchTable(self._path(session), self._durability)

    def remove(self, session: str) -> None:
        """The file of a session that is closed; does nothing where that cannot be."""
        for end in ("", "-wal", "-journal"):
            with contextlib.suppress(OSError):
                Path(f"{self._path(session)}{end}").unlink(missing_ok=True)

    def left_behind(self) -> list[str]:
        """Sessions that have a file, oldest first: those that live are among them. Empty where it cannot be read."""
        try:
            paths = list(self.directory.glob(f"*{_SUFFIX}"))
            return [path.name.removesuffix(_SUFFIX) for path in sorted(paths, key=lambda p: p.lstat().st_mtime_ns)]
        except OSError:
            return []

    def size(self, session: str) -> int:
        """Bytes of its file on the disk; 0 where there is none."""
        try:
            return self._path(session).lstat().st_size
        except OSError:
            return 0

    def take_over(self, session: str) -> BatchTable | None:
        """What a session left behind; None where its agent lives.

        Raises DataError where it is not to be read: torn, of another format, or not ours.
        """
        path = self._path(session)
        try:
            with self._locked():
                found = path.lstat()
                if not stat.S_ISREG(found.st_mode) or found.st_uid not in (0, os.geteuid()):
                    raise DataError(f"cannot read {path}: it is not a file of ours")
                return BatchTable(path, self._durability)
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                return None
            raise DataError(f"cannot read {path}: {error}") from error
        except (sqlite3.Error, OSError) as error:
            raise DataError(f"cannot read {path}: {error}") from error

    def set_aside(self, session: str) -> bool:
        """Moves a session's file away, whatever is in it; whether that could be."""
        with contextlib.suppress(OSError):
            self.refused.mkdir(mode=0o700, exist_ok=True)
            for end in ("", "-wal"):
                path = Path(f"{self._path(session)}{end}")
                if path.exists() or path.is_symlink():
                    path.rename(self.refused / path.name)
            self._trim()
        return not os.path.lexists(self._path(session))

    def keep_refused(self, session: str, sequence: int, message: bytes) -> None:
        """Keeps a batch that the collector refused; does nothing where that cannot be."""
        with contextlib.suppress(OSError):
            self.refused.mkdir(mode=0o700, exist_ok=True)
            (self.refused / f"{session}-{sequence}.batch").write_bytes(message)
            self._trim()

    def _trim(self) -> None:
        """The oldest go when there are too many."""
        files = sorted(((p.lstat(), p) for p in self.refused.iterdir()), key=lambda pair: pair[0].st_mtime_ns)
        size = sum(found.st_size for found, _ in files)
        for found, path in files:
            if size <= _MOST_REFUSED_BYTES:
                return
            path.unlink()
            size -= found.st_size

    def _path(self, session: str) -> Path:
        return self.directory / f"{session}{_SUFFIX}"

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Between a file's beginning and its lock nobody else looks at it."""
        descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _check(directory: Path) -> None:
    """Who may put files there could make us write over, or send, what is not ours."""
    trusted = (0, os.geteuid())
    link, target = directory.lstat(), directory.stat()
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in trusted:
        raise _unusable(directory, "it is somebody else's symbolic link; give another --spool")
    if target.st_uid not in trusted:
        raise _unusable(directory, "it is somebody else's directory; give another --spool")
    if target.st_mode & 0o022:
        raise _unusable(directory, "others may write there; chmod go-w, or give another --spool")


def _unusable(directory: Path, reason: str) -> DataError:
    return DataError(f"cannot use {directory} as a spool: {reason}")
