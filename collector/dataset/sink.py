# SPDX-License-Identifier: Apache-2.0
"""Where settled tables go. Parquet files that are complete or absent are one such place."""

import errno
import fcntl
import logging
import os
import secrets
import sqlite3
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from collector.dataset.earlier import earlier_resume, last_seen
from collector.dataset.files import in_order, make_directory, partition, split_by_hour, sync_directory, write_file
from collector.dataset.manifest import Manifest, StoredFile
from collector.dataset.resume import Resume, SessionState, over_before, resume_from
from collector.dataset.row_parts import Changes, RowParts
from collector.dataset.tables import DATASET_VERSION, SCHEMAS, TIMES
from netmon.errors import DataError
from netmon.records import Hello

_LOCK = ".collector.lock"
_OWN = ".netmon"  # readers pass over names that begin with a dot
_OLDEST_CONTINUED = 3  # schema version whose rows can be read as one table with ours
_log = logging.getLogger(__name__)


class Sink(Protocol):
    """Takes settled tables of many hosts, and gives back what a session's restart needs."""

    def resume(self, hello: Hello) -> Resume:
        """What is stored of a session. Raises DataError."""

    def write(self, tables: Mapping[str, pa.Table], states: Mapping[str, SessionState]) -> None:
        """Store rows by table (collector.dataset.tables.SCHEMAS) and states by session, all or nothing; blocks.

        When it returns, they outlive a power cut. Rows of `flows` and `sessions` replace earlier ones of the same flow
        (interface). Raises DataError; what was stored before is not touched, and the same call may be made again.
        """

    def close(self) -> None:
        """Store what has waited; let others write."""


class ParquetSink:
    """One dataset directory, written by one collector at a time. Its methods may be called from any thread."""

    def __init__(self, directory: Path) -> None:
        """Create the directory where it is missing, and take it. Raises DataError where that cannot be."""
        self.directory = directory
        self._staging = directory / _OWN / "staging"
        self._busy = threading.RLock()
        self._token = secrets.token_hex(4)  # names are another's in every run: directories can be put together
        self._number = 0
        self._flows = RowParts(SCHEMAS["flows"], "flow_id", later=("last_ns", "traffic"))
        self._sessions = RowParts(SCHEMAS["sessions"], "interface", later=("clock_error_ns",))
        self._seen: dict[str, int] = {}
        self._changing = {"flows": self._flows, "sessions": self._sessions}
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock: TextIO = (directory / _LOCK).open("w")
        except OSError as error:
            raise DataError(f"cannot write to {directory}: {error.strerror}; choose another --data") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise DataError(
                f"cannot write to {directory}: another collector does; stop it or choose another --data"
            ) from None
        try:
            _check_schema(directory)
            self._manifest = self._opened()
        except BaseException:
            self._lock.close()
            raise

    def _opened(self) -> Manifest:
        """The manifest, and the directory as it says: what a crash has interrupted is completed, the rest undone."""
        manifest = None
        try:
            self._staging.mkdir(parents=True, exist_ok=True)
            manifest = Manifest(self._staging.parent / "manifest.sqlite")
            self._manifest = manifest
            self._complete()
            for unfinished in (*self._staging.iterdir(), *self.directory.glob("*/date=*/host=*/.part-*")):
                unfinished.unlink(missing_ok=True)
        except (OSError, sqlite3.Error) as error:
            if manifest:
                manifest.close()
            raise DataError(f"cannot write to {self.directory}: {_reason(error)}; choose another --data") from None
        return manifest

    def close(self) -> None:
        """Store what has waited, as far as the disk takes it; let others write."""
        with self._busy:
            try:
                self._write({}, {name: parts.waiting() for name, parts in self._changing.items()}, {})
            except DataError as error:
                _log.warning(error)
            finally:
                self._manifest.close()
                self._lock.close()

    def resume(self, hello: Hello) -> Resume:
        """What is stored of a session; reads a few small files. Raises DataError."""
        with self._busy:
            try:
                state = self._manifest.session(hello.session)
                if state is None or state.host != hello.host:
                    return self._resume_earlier(hello)
                over = over_before(state.clock, state.settled_ns, hello)
                for path in self._manifest.paths_of(hello.session):
                    if self._flows.lacks(path) and self._last_seen(path) >= over:
                        self._flows.adopt(path, pq.ParquetFile(self.directory / path).read())
                return resume_from(state, self._flows.rows_of(hello.session, "last_ns", over).to_pylist(), hello)
            except (OSError, sqlite3.Error, pa.ArrowException, ValueError, KeyError, TypeError) as error:
                raise DataError(
                    f"cannot resume session {hello.session} of {hello.host} in {self.directory}: {error}"
                ) from None

    def _last_seen(self, path: str) -> int:
        """When a flow of the file was seen last, as it was when this was first asked; it is not open any more."""
        if path not in self._seen:
            with suppress(FileNotFoundError):  # somebody has removed it
                self._seen[path] = last_seen(self.directory / path)
        return self._seen.get(path, 0)

    def _resume_earlier(self, hello: Hello) -> Resume:
        resume, flows = earlier_resume(self.directory, hello)
        for path, rows in flows.items():
            host = pa.array([hello.host] * len(rows), pa.string())
            self._flows.adopt(str(path.relative_to(self.directory)), rows.append_column("host", host))
        return resume

    def write(self, tables: Mapping[str, pa.Table], states: Mapping[str, SessionState]) -> None:
        """Store all of it, or nothing (see Sink.write). Raises DataError."""
        with self._busy:
            changes = {
                name: parts.changes(tables.get(name, SCHEMAS[name].empty_table()))
                for name, parts in self._changing.items()
            }
            rows = {name: table for name, table in tables.items() if name not in self._changing and len(table)}
            self._write(rows, changes, states)
            self._flows.forget()

    def _write(
        self, tables: Mapping[str, pa.Table], changes: Mapping[str, Changes], states: Mapping[str, SessionState]
    ) -> None:
        files: list[StoredFile] = []
        paths: dict[str, dict[int, str]] = {name: {} for name in changes}
        members: dict[str, list[str]] = {}
        replaced: list[str] = []
        committed = False
        try:
            self._complete()
            for name, table in tables.items():
                for hour, rows in split_by_hour(name, table):
                    self._stage(
                        files, name, in_order(name, rows), partition(hour), f"part-{self._token}-{self._next()}"
                    )
            for name, change in changes.items():
                for number in change.write:
                    rows = self._changing[name].content(change, number)
                    file = self._stage_part(files, name, number, rows)
                    paths[name][number] = file.path
                    if name == "flows":
                        members[file.path] = rows["session"].unique().to_pylist()
                    earlier = self._changing[name].parts.get(number)
                    if earlier and earlier.path not in ("", file.path):
                        replaced.append(earlier.path)
            if files or states:
                if files:
                    sync_directory(self._staging)
                self._manifest.commit(files, states, members, replaced)
            committed = True
        except (OSError, sqlite3.Error, pa.ArrowException) as error:
            raise DataError(
                f"cannot write to {self.directory}: {_reason(error)}; "
                "rows stay in memory and with the agents until it works"
            ) from None
        finally:
            if not committed:
                for file in files:
                    (self._staging / file.staged).unlink(missing_ok=True)
        for name, change in changes.items():
            self._changing[name].apply(change, paths[name])
        try:
            self._place(files, replaced)
        except (OSError, sqlite3.Error) as error:  # they are stored; the next write puts them into their place first
            _log.warning(f"cannot put files into their place in {self.directory} yet: {_reason(error)}")

    def _stage(self, files: list[StoredFile], name: str, rows: pa.Table, folder: str, stem: str) -> StoredFile:
        """Write a file to be; where it will lie has to exist."""
        file = StoredFile(name, folder, stem, bytes=0, staged=f"{self._token}-{self._next()}.parquet")
        make_directory((self.directory / file.path).parent)
        files.append(file)
        staged = self._staging / file.staged
        write_file(name, staged, rows)
        files[-1] = replace(file, bytes=staged.stat().st_size)
        return file

    def _stage_part(self, files: list[StoredFile], name: str, number: int, rows: pa.Table) -> StoredFile:
        """A part of rows that change keeps its place, unless that is a folder of an earlier version."""
        part = self._changing[name].parts.get(number)
        known = Path(part.path) if part and "/hour=" in part.path else None
        if known:
            return self._stage(files, name, rows, "/".join(known.parts[1:3]), known.stem)
        hour = rows[TIMES[name]][0].as_py() // 3_600_000_000_000
        return self._stage(files, name, rows, partition(hour), f"part-{self._token}-{self._next()}")

    def _next(self) -> str:
        self._number += 1
        return f"{self._number:06}"

    def _complete(self) -> None:
        """Put what has been committed into its place. Raises OSError, sqlite3.Error."""
        self._place(self._manifest.staged(), self._manifest.removals())

    def _place(self, files: list[StoredFile], removed: list[str]) -> None:
        if not files and not removed:
            return
        for file in files:
            final = self.directory / file.path
            make_directory(final.parent)
            with suppress(FileNotFoundError):  # it was renamed before a crash
                (self._staging / file.staged).replace(final)
        for path in removed:
            (self.directory / path).unlink(missing_ok=True)
        for folder in {(self.directory / path).parent for path in (*(file.path for file in files), *removed)}:
            sync_directory(folder)
        self._manifest.placed([file.path for file in files], removed)


def _reason(error: Exception) -> str:
    if isinstance(error, sqlite3.Error) and "full" in str(error):
        return os.strerror(errno.ENOSPC)
    return getattr(error, "strerror", None) or str(error)


def _check_schema(directory: Path) -> None:
    """Raise DataError where a table's newest day holds rows of another schema: they cannot be read as one table."""
    for table in sorted(path for path in directory.iterdir() if path.is_dir()):
        newest = max(table.glob("date=*"), default=None)
        part = next(newest.glob("*=*/part-*.parquet"), None) if newest else None
        try:
            metadata = (pq.read_schema(part).metadata or {}) if part else {}
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"cannot continue the dataset in {directory}: {part}: {error}; move it away") from None
        version = int(metadata.get(b"netmon.schema_version", DATASET_VERSION))
        if not _OLDEST_CONTINUED <= version <= DATASET_VERSION:
            raise DataError(
                f"cannot continue the dataset in {directory}: its {table.name} have schema version {version}, "
                f"this netmon writes {DATASET_VERSION}; choose another --data (`netmon report` and `export` read both)"
            )
