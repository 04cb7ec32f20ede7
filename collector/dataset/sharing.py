# SPDX-License-Identifier: Apache-2.0
"""One dataset directory and multiple workers: whose turn it is, and whose rows of a host count.

A worker takes a host with an epoch, a number that is higher than that of whoever had the host before. From then on
nobody else can store anything of it: a write looks whether its hosts are still its own while nobody can take them.
"""

import fcntl
import os
import re
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TextIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from collector.dataset.files import Disk, Staging, write_file
from collector.dataset.manifest import Manifest, OtherManifest, StoredFile
from netmon.errors import DataError, UsageError
from netmon.views import WRITER

OWN = ".netmon"
"""The folder of what is not rows; readers pass over names that begin with a dot."""

_WORKER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
_WAIT_S = 10.0
_LOOK_S, _OURS_S = 0.5, 10.0
_FENCE = "CREATE TABLE IF NOT EXISTS fence (host TEXT PRIMARY KEY, epoch INTEGER NOT NULL) WITHOUT ROWID"


class LostHostsError(Exception):
    """Somebody has taken a host while its rows were being written: once more without it."""


class Alone:
    """How a collector that has the directory to itself gets on with others; `Worker` is one of many.

    folder: the writer's own, for its manifest and the files that it makes. Used by one thread at a time.
    """

    def __init__(self, directory: Path) -> None:
        """Take it. Raises DataError where another one writes."""
        self.folder, self.alone = directory / OWN, True
        self._path = directory / WRITER
        self._lock = _locked(directory, WRITER, fcntl.LOCK_EX, directory)

    def hold(self, exclusive: bool = False) -> AbstractContextManager[None]:
        """While files are published or removed; exclusive: nobody else's do meanwhile."""
        return nullcontext()

    def take(self, epochs: Mapping[str, int]) -> frozenset[str]:
        """Have these hosts from now on; returns those that somebody has with a higher epoch: none."""
        return frozenset()

    def forget_lost(self) -> None:
        """Hosts that were ours and that somebody else has taken are not ours any more: there are none."""

    def would_lose(self) -> bool:
        """Whether there are such hosts."""
        return False

    def foreign(self, hosts: Iterable[str]) -> frozenset[str]:
        """Those of them that are not ours: none."""
        return frozenset()

    def owns(self, host: str) -> bool:
        """Whether it is ours now."""
        return True

    def others(self) -> list[Path]:
        """The folders of all others that have written: workers that were here before."""
        return _workers(self.folder)

    def absent(self, folder: Path) -> AbstractContextManager[bool]:
        """Whether whoever has this folder is not there; while the context is open, they cannot come."""
        return nullcontext(True)

    def there(self) -> bool:
        """Whether the lock still has its name: somebody else could take another file of this name."""
        try:
            return not self._lock.closed and os.path.samestat(self._path.stat(), os.fstat(self._lock.fileno()))
        except FileNotFoundError:
            return False
        except OSError:  # the disk is not well: that is for a write to say
            return True

    def close(self) -> None:
        self._lock.close()


class Worker:
    """One of the workers on the directory. Their turns are transactions of a database, so they end with the process."""

    def __init__(self, directory: Path, name: str, disk: Disk) -> None:
        """Come in. Raises UsageError for a name that is none, DataError where that cannot be."""
        if not _WORKER.fullmatch(name):
            raise UsageError(f"a worker's name is up to 32 letters, digits, - and _, not {name!r}")
        self.alone = False
        self._own = directory / OWN
        self.folder = self._own / "workers" / name
        self._epochs: dict[str, int] = {}
        self._epoch = 0
        with ExitStack() as opened:
            self._alone = opened.enter_context(_locked(directory, WRITER, fcntl.LOCK_SH, directory))
            try:
                disk.make_directory(self.folder, directory)
                # Of one that was killed and begins anew, somebody may be looking after what it has written.
                self._lock = opened.enter_context(_locked(self.folder, "lock", fcntl.LOCK_EX, directory, _OURS_S))
                self._fence = sqlite3.connect(
                    self._own / "fence.sqlite", _WAIT_S, isolation_level=None, check_same_thread=False
                )
                opened.callback(self._fence.close)
                self._fence.execute(f"PRAGMA synchronous={'EXTRA' if disk.power else 'NORMAL'}")
                self._fence.execute(_FENCE)
            except (OSError, sqlite3.Error) as error:
                raise DataError(f"cannot write to {directory}: {error}; choose another --data") from None
            self._opened = opened.pop_all()

    @contextmanager
    def hold(self, exclusive: bool = False) -> Iterator[None]:
        """Wait for our turn, a few seconds at most; raises DataError after that."""
        if not self._epoch:
            try:
                self._fence.execute("BEGIN EXCLUSIVE" if exclusive else "BEGIN")
                self._fence.execute("SELECT COUNT(*) FROM fence").fetchone()  # only now nobody can take anything
            except sqlite3.Error as error:
                self._end("ROLLBACK")
                raise DataError(
                    f"cannot write to {self._own.parent}: {error} for {_WAIT_S:g} s; "
                    "if a worker is stopped while it writes, continue or kill it"
                ) from None
        self._epoch += 1
        try:
            yield
        finally:
            self._epoch -= 1
            if not self._epoch:
                self._end("COMMIT")

    def _end(self, how: str) -> None:
        if self._fence.in_transaction:
            self._fence.execute(how)

    def take(self, epochs: Mapping[str, int]) -> frozenset[str]:
        """Raise the fence; it holds when this returns."""
        try:
            with self.hold(exclusive=True):
                now = self._now()
                later = frozenset(host for host, epoch in epochs.items() if now.get(host, -1) > epoch)
                mine = {host: epoch for host, epoch in epochs.items() if host not in later}
                self._fence.executemany("INSERT OR REPLACE INTO fence VALUES (?, ?)", mine.items())
        except sqlite3.Error as error:
            raise DataError(f"cannot take hosts in {self._own.parent}: {error}") from None
        self._epochs |= mine
        return later

    def forget_lost(self) -> None:
        """Hosts that were ours and that somebody else has taken are not ours any more."""
        taken = self._taken(self._now())
        self._epochs = {host: epoch for host, epoch in self._epochs.items() if host not in taken}

    def would_lose(self) -> bool:
        """Whether there are such hosts."""
        return bool(self._taken(self._now()))

    def _now(self) -> dict[str, int]:
        try:
            return dict(self._fence.execute("SELECT host, epoch FROM fence"))
        except sqlite3.Error as error:
            raise DataError(f"cannot see whose hosts are whose in {self._own.parent}: {error}") from None

    def _taken(self, now: Mapping[str, int]) -> frozenset[str]:
        return frozenset(host for host, epoch in self._epochs.items() if now.get(host, -1) > epoch)

    def foreign(self, hosts: Iterable[str]) -> frozenset[str]:
        """Those that were never taken, or are lost."""
        return frozenset(hosts) - self._epochs.keys()

    def owns(self, host: str) -> bool:
        """Whether it was taken, and nobody has taken it since."""
        return host in self._epochs and host not in self._taken(self._now())

    def others(self) -> list[Path]:
        """All but us; a collector that was alone before, too."""
        before = [self._own] if (self._own / "manifest.sqlite").exists() else []
        return before + [folder for folder in _workers(self._own) if folder != self.folder]

    @contextmanager
    def absent(self, folder: Path) -> Iterator[bool]:
        """Whether its lock is free; a collector alone is not there while we are."""
        if folder == self._own:
            yield True
            return
        with (folder / "lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield False
                return
            yield True

    def there(self) -> bool:
        """No worker begins a shared directory anew."""
        return True

    def close(self) -> None:
        self._opened.close()


def _workers(own: Path) -> list[Path]:
    return sorted(path.parent for path in own.glob("workers/*/manifest.sqlite"))


def _locked(folder: Path, name: str, how: int, directory: Path, wait_s: float = _LOOK_S) -> TextIO:
    """Take a lock that is let go of with the process. Raises DataError where somebody has it."""
    try:
        lock = (folder / name).open("a")
    except OSError as error:
        raise DataError(f"cannot write to {directory}: {error.strerror}; choose another --data") from None
    deadline = time.monotonic() + wait_s  # somebody may just look whether anybody is here
    while True:
        try:
            fcntl.flock(lock, how | fcntl.LOCK_NB)
            return lock
        except OSError:
            if time.monotonic() < deadline:
                time.sleep(_LOOK_S / 10)
                continue
        lock.close()
        who = "a worker of this name" if name != WRITER else "another collector"
        raise DataError(f"cannot write to {directory}: {who} does; stop it or choose another --data")


# --- What another writer of the dataset has stored of a host becomes ours: its sessions' state, and rows that may
# change.
#
# Such rows lie in files alongside rows of other hosts. They are written into a file of ours, and the other's file
# without them takes its place, both by one transaction over the two manifests. To be called while nobody else writes.


@dataclass
class _Moving:
    ours: list[StoredFile] = field(default_factory=list)
    members: dict[str, list[str]] = field(default_factory=dict)
    theirs: list[StoredFile] = field(default_factory=list)
    emptied: list[str] = field(default_factory=list)


def take_over(manifest: Manifest, staging: Staging, folder: Path, hosts: Collection[str]) -> None:
    """Move what the writer with this folder has of these hosts; blocks. Raises OSError, sqlite3.Error, ArrowException.

    It may be done again after it has failed.
    """
    with manifest.other_manifest(folder / "manifest.sqlite") as other:
        theirs = Staging(staging.directory, folder, staging.disk)
        _finish(other, theirs)
        sessions = other.sessions(hosts)
        if not sessions:
            return
        moving = _Moving()
        moved = False
        try:
            for file in other.members(sessions):
                _split(moving, file, sessions, staging, theirs)
            for index, files in ((staging, moving.ours), (theirs, moving.theirs)):
                if files:
                    staging.disk.sync_directory(index.folder)
            other.move(sessions, moving.ours, moving.members, moving.theirs, moving.emptied)
            moved = True
        finally:
            if not moved:
                staging.discard(moving.ours)
                theirs.discard(moving.theirs)
        staging.publish(moving.ours, [])
        manifest.placed([file.path for file in moving.ours])
        _finish(other, theirs)


def take_all(manifest: Manifest, staging: Staging, folder: Path) -> None:
    """Everything of a writer that is not there any more, its files too; blocks. Raises as take_over does."""
    with manifest.other_manifest(folder / "manifest.sqlite") as other:
        theirs = Staging(staging.directory, folder, staging.disk)
        _finish(other, theirs)
        other.move_all()
        theirs.clear()  # nobody else will


def _finish(other: OtherManifest, theirs: Staging) -> None:
    """Put into its place what it has committed."""
    files, removals = other.unfinished()
    if files or removals:
        theirs.publish(files, removals)
        other.placed()


def _split(moving: _Moving, file: StoredFile, sessions: Collection[str], staging: Staging, theirs: Staging) -> None:
    path = staging.directory / file.path
    if not path.exists():  # somebody has removed it
        moving.emptied.append(file.path)
        return
    rows = pq.ParquetFile(path).read()
    names = rows["session"].cast(pa.string())
    ours = pc.is_in(names, pa.array(sorted(sessions)))
    mine, rest = rows.filter(ours), rows.filter(pc.invert(ours))
    if len(mine):
        new = replace(file, stem=staging.stem())
        moving.ours.append(_staged(new, mine, staging))
        moving.members[new.path] = mine["session"].unique().to_pylist()
    if not len(rest):
        moving.emptied.append(file.path)
    elif len(mine):
        moving.theirs.append(_staged(file, rest, theirs, staging.stem()))


def _staged(file: StoredFile, rows: pa.Table, staging: Staging, stem: str = "") -> StoredFile:
    staged = f"{stem or staging.stem()}.parquet"
    write_file(staging.disk, file.name, staging.folder / staged, rows)
    return replace(file, staged=staged, bytes=(staging.folder / staged).stat().st_size)
