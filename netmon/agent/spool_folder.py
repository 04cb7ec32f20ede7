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
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from netmon.errors import DataError
from netmon.kernel.stalling import StalledError, StallingCalls
from netmon.service import sync_way_to

# --- One SQLite file per session: batches by their sequence number, and the flows that they name.
#
# A batch is there completely or not at all, however the agent ends: that is what the write-ahead log is for. The file
# is locked as long as it is open, so that nobody takes a living session for one that was left behind. Everything here
# blocks for the disk and raises sqlite3.Error.


log = logging.getLogger(__name__)

_SYNCHRONOUS = {"process": "NORMAL", "power": "FULL"}
"""SQLite's `synchronous`, by what is to be outlived. NORMAL waits for the disk once in about 4 MB: a power cut then
takes the newest batches, and leaves a whole file with those before. FULL waits for it at each batch."""

_FORMAT = 1  # PRAGMA user_version
_FREE_PAGES = 256  # given back to the file system from here on
_ALONE = "PRAGMA locking_mode = EXCLUSIVE"
"""Before anything is read: no memory is shared between processes, which a network file system could not."""
_SETTINGS = (
    "PRAGMA auto_vacuum = INCREMENTAL",
    "PRAGMA journal_mode = WAL",
    "PRAGMA journal_size_limit = 4194304",
    "PRAGMA cache_size = -256",  # KiB
)
_TABLES = (
    "CREATE TABLE IF NOT EXISTS batch"
    " (sequence INTEGER PRIMARY KEY, body BLOB NOT NULL, buckets BLOB NOT NULL, link_totals BLOB NOT NULL)",
    "CREATE TABLE IF NOT EXISTS session (id INTEGER PRIMARY KEY CHECK (id = 1), hello BLOB NOT NULL)",
    # first, last: batches that have described the flow; over: no later batch than this one has rows of it.
    "CREATE TABLE IF NOT EXISTS flow (id INTEGER PRIMARY KEY, first INTEGER NOT NULL, last INTEGER NOT NULL,"
    " over INTEGER, message BLOB NOT NULL)",
    # ledger: as the session's latest samples have it (netmon.agent.downtime); sequence: of its newest batch.
    "CREATE TABLE IF NOT EXISTS account (id INTEGER PRIMARY KEY CHECK (id = 1), sequence INTEGER, ledger BLOB)",
    f"PRAGMA user_version = {_FORMAT}",
)
_OBJECTS_BYTES = 400  # of a batch's Python objects

Description = tuple[int, bytes]
"""(flow id, what the introduction says of it)"""

Account = tuple[int, bytes]
"""(number of the newest batch, the ledger as it was reported last)"""
NO_ACCOUNT: Account = (0, b"")

FlowRow = tuple[int, int, int, int | None, bytes]
"""(flow id, the first and the last batch that has described it, the last that may have rows of it, message)"""


@dataclass(frozen=True)
class Kept:
    """A batch. body + buckets is the message; link_totals: dtype LINK_TOTALS, of its buckets, as bytes."""

    sequence: int
    body: bytes
    buckets: bytes
    link_totals: bytes

    @property
    def size(self) -> int:
        """Bytes of the message."""
        return len(self.body) + len(self.buckets)

    @property
    def nbytes(self) -> int:
        """That it takes in memory, about."""
        return self.size + len(self.link_totals) + _OBJECTS_BYTES


@dataclass(frozen=True)
class Change:
    """What is done to a table, all of it or nothing."""

    batches: Sequence[Kept] = ()  # new ones
    account: Account = NO_ACCOUNT
    flows: Sequence[FlowRow] = ()  # as they are now
    flows_gone: Sequence[int] = ()
    acknowledged: int = 0  # batches up to here are forgotten
    gone: Sequence[int] = ()  # these, too
    stripped: Sequence[int] = ()  # these lose their buckets
    hello: bytes | None = None  # in place of the one before


class BatchTable:
    """Used by one thread at a time."""

    def __init__(self, path: Path, durability: str = "process") -> None:
        """path: of the file, new or left behind. durability: what a batch outlives."""
        self._path, self._inode = path, 0
        self._settings = (*_SETTINGS, f"PRAGMA synchronous = {_SYNCHRONOUS[durability]}")
        self._open()

    def _open(self) -> None:
        self._db = sqlite3.connect(self._path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            self._db.execute(_ALONE).fetchall()
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if version not in (0, _FORMAT):
                raise sqlite3.DatabaseError(f"spool of format {version}, not {_FORMAT}")
            for statement in (*self._settings, "BEGIN IMMEDIATE", *_TABLES, "COMMIT"):
                self._db.execute(statement).fetchall()
        except sqlite3.Error:
            self._db.close()
            raise
        with suppress(OSError):
            self._inode = os.stat(self._path).st_ino

    def _look_for_file(self) -> None:
        """Somebody may have removed it, or its folder: what is in it goes into a new one, while it can be read."""
        try:
            if not self._inode or os.stat(self._path).st_ino == self._inode:
                return
        except FileNotFoundError:
            pass
        except OSError:  # it may come back
            return
        with suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._db.execute("VACUUM INTO ?", (str(self._path),))
        self._db.close()
        self._open()
        log.warning("%s was removed by somebody: what waited in it is in a new file of this name", self._path)

    def hello(self) -> bytes:
        """As written last; empty before."""
        row = self._db.execute("SELECT hello FROM session").fetchone()
        return bytes(row[0]) if row else b""

    def account(self) -> Account:
        """As kept last; (0, b"") before."""
        row = self._db.execute("SELECT sequence, ledger FROM account").fetchone()
        return (int(row[0]), bytes(row[1])) if row else NO_ACCOUNT

    def apply(self, change: Change) -> None:
        """All of it or nothing."""
        self._look_for_file()
        run, many = self._db.execute, self._db.executemany
        run("BEGIN IMMEDIATE")
        try:
            if change.hello is not None:
                run("INSERT OR REPLACE INTO session VALUES (1, ?)", (change.hello,))
            rows = [(batch.sequence, batch.body, batch.buckets, batch.link_totals) for batch in change.batches]
            many("INSERT OR REPLACE INTO batch VALUES (?, ?, ?, ?)", rows)
            many("INSERT OR REPLACE INTO flow VALUES (?, ?, ?, ?, ?)", change.flows)
            many("DELETE FROM flow WHERE id = ?", [(number,) for number in change.flows_gone])
            run("DELETE FROM batch WHERE sequence <= ?", (change.acknowledged,))
            many("DELETE FROM batch WHERE sequence = ?", [(number,) for number in change.gone])
            stripped = [(number,) for number in change.stripped]
            many("UPDATE batch SET buckets = x'', link_totals = x'' WHERE sequence = ?", stripped)
            if change.account[1]:
                run("INSERT OR REPLACE INTO account VALUES (1, ?, ?)", change.account)
            run("COMMIT")
        except sqlite3.Error:
            if self._db.in_transaction:
                run("ROLLBACK")
            raise
        self._shrink()

    def flows(self) -> list[FlowRow]:
        """Its flows, by when they were over; first those that are not."""
        return self._db.execute("SELECT id, first, last, over, message FROM flow ORDER BY over, id").fetchall()

    def batches(self) -> list[tuple[int, int, int, bytes]]:
        """Number, bytes of the message, bytes of its buckets, and what these carry, of each in their order."""
        query = (
            "SELECT sequence, length(body) + length(buckets), length(buckets), link_totals FROM batch ORDER BY sequence"
        )
        return self._db.execute(query).fetchall()

    def read(self, sequence: int, most_bytes: int = 0) -> list[Kept]:
        """From this one on; no more than so many bytes, but for the first."""
        found, size = list[Kept](), 0
        query = "SELECT sequence, body, buckets, link_totals FROM batch WHERE sequence >= ? ORDER BY sequence"
        for row in self._db.execute(query, (sequence,)):
            found.append(Kept(*row))
            size += found[-1].size
            if size > most_bytes:
                break
        return found

    def last(self) -> int:
        """The highest number; 0: it is empty."""
        return int(self._db.execute("SELECT coalesce(max(sequence), 0) FROM batch").fetchone()[0])

    def _shrink(self) -> None:
        (free,) = self._db.execute("PRAGMA freelist_count").fetchone()
        if free > _FREE_PAGES:
            self._db.execute(f"PRAGMA incremental_vacuum({free - _FREE_PAGES // 2})").fetchall()

    def close(self) -> None:
        """Unlock it; what is in it stays."""
        self._db.close()


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
