# SPDX-License-Identifier: Apache-2.0
"""Where settled tables go. Parquet files that are complete or absent are one such place."""

import errno
import fcntl
import logging
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from collector.dataset.compaction import due, merge_files
from collector.dataset.earlier import earlier_resume, last_seen
from collector.dataset.files import in_order, make_directory, partition, split_by_hour, sync_directory, write_file
from collector.dataset.manifest import Manifest, StoredFile
from collector.dataset.resume import Resume, SessionState, over_before, resume_from
from collector.dataset.retention import Keep, too_old
from collector.dataset.row_parts import Changes, RowParts
from collector.dataset.staging import Staging
from collector.dataset.tables import DATASET_VERSION, SCHEMAS, TIMES
from netmon.errors import DataError
from netmon.records import Hello

_LOCK = ".collector.lock"
_OLDEST_CONTINUED = 3  # schema version whose rows can be read as one table with ours
_log = logging.getLogger(__name__)


class Sink(Protocol):
    """Takes settled tables of many hosts, and gives back what a session's restart needs."""

    directory: Path
    """Where it keeps them; names in it that begin with a dot are no rows."""

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
        self._busy = threading.RLock()
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
            self._staging = Staging(self.directory)
            manifest = Manifest(self._staging.folder.parent / "manifest.sqlite")
            self._manifest = manifest
            self._complete()
            self._staging.clear()
            for unfinished in self.directory.glob("*/date=*/host=*/.part-*"):  # of an earlier version
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
                    parts = self._changing[Path(path).parts[0]]
                    if not (self.directory / path).exists():  # somebody has removed it
                        continue
                    if parts.lacks(path) and (parts is self._sessions or self._last_seen(path) >= over):
                        parts.adopt(path, pq.ParquetFile(self.directory / path).read())
                return resume_from(state, self._flows.rows_of(hello.session, "last_ns", over).to_pylist(), hello)
            except (OSError, sqlite3.Error, pa.ArrowException, ValueError, KeyError, TypeError) as error:
                raise DataError(
                    f"cannot resume session {hello.session} of {hello.host} in {self.directory}: {error}"
                ) from None

    def _last_seen(self, path: str) -> int:
        """When a flow of the file was seen last, as it was when this was first asked; it is not open any more."""
        if path not in self._seen:
            self._seen[path] = last_seen(self.directory / path)
        return self._seen[path]

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
                    self._stage(files, name, in_order(name, rows), partition(hour), self._staging.stem())
            for name, change in changes.items():
                for number in change.write:
                    rows = self._changing[name].content(change, number)
                    file = self._stage_part(files, name, number, rows)
                    paths[name][number] = file.path
                    members[file.path] = rows["session"].unique().to_pylist()
                    earlier = self._changing[name].parts.get(number)
                    if earlier and earlier.path not in ("", file.path):
                        replaced.append(earlier.path)
            if files or states:
                if files:
                    sync_directory(self._staging.folder)
                self._manifest.commit(files, states, members, replaced)
            committed = True
        except (OSError, sqlite3.Error, pa.ArrowException) as error:
            raise DataError(
                f"cannot write to {self.directory}: {_reason(error)}; "
                "rows stay in memory and with the agents until it works"
            ) from None
        finally:
            if not committed:
                self._staging.discard(files)
        for name, change in changes.items():
            self._changing[name].apply(change, paths[name])
        try:
            self._place(files, replaced)
        except (OSError, sqlite3.Error) as error:  # they are stored; the next write puts them into their place first
            _log.warning(f"cannot put files into their place in {self.directory} yet: {_reason(error)}")

    def _stage(self, files: list[StoredFile], name: str, rows: pa.Table, folder: str, stem: str) -> StoredFile:
        """Write a file to be; where it will lie has to exist."""
        file = StoredFile(name, folder, stem, bytes=0, staged=f"{self._staging.stem()}.parquet")
        make_directory((self.directory / file.path).parent)
        files.append(file)
        staged = self._staging.folder / file.staged
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
        return self._stage(files, name, rows, partition(hour), self._staging.stem())

    def _complete(self) -> None:
        """Put what has been committed into its place. Raises OSError, sqlite3.Error."""
        self._place(self._manifest.staged(), self._manifest.removals())

    def _place(self, files: list[StoredFile], removed: list[str]) -> None:
        if files or removed:
            self._staging.place(files, removed)
            self._manifest.placed([file.path for file in files], removed)

    def merge_some(self, go_on: Callable[[], bool]) -> bool:
        """Make one file of many of an hour, if there is such an hour; blocks, but writes go on meanwhile.

        Returns whether there may be more. go_on: asked now and then. Raises DataError; no row is lost then.
        """
        try:
            with self._busy:
                sources = self._due()
            if not sources:
                return False
            staged = self._staging.folder / self._staging.stem() / f"{self._staging.stem()}.parquet"
            staged.parent.mkdir()
            try:
                paths = [self.directory / source.path for source in sources]
                if not merge_files(sources[0].name, paths, staged, go_on):
                    return False
                return self._replace(sources, staged)
            finally:
                with self._busy:
                    if not any(file.staged.startswith(staged.parent.name) for file in self._manifest.staged()):
                        shutil.rmtree(staged.parent, ignore_errors=True)
        except (OSError, sqlite3.Error, pa.ArrowException) as error:
            raise DataError(f"cannot merge files in {self.directory}: {_reason(error)}") from None

    def _due(self) -> list[StoredFile]:
        self._complete()
        sources = due(self._manifest.files(), self._open_paths())
        gone = [source.path for source in sources if not (self.directory / source.path).exists()]
        if gone:  # somebody has removed them
            self._manifest.forget(gone)
        return [source for source in sources if source.path not in gone]

    def _replace(self, sources: Sequence[StoredFile], staged: Path) -> bool:
        with self._busy:
            paths = [source.path for source in sources]
            if not self._open_paths().isdisjoint(paths):  # a session has come back to one of them
                return False
            first = sources[0]
            folder = self.directory / first.name / first.partition
            how = self._staging.prepare_swap(staged, (self.directory / path for path in paths), folder)
            size = staged.stat().st_size
            merged = StoredFile(first.name, first.partition, staged.stem, size, generation=1, staged=how)
            self._complete()
            self._manifest.commit([merged], {}, {}, paths)
            self._complete()
            return True

    def _open_paths(self) -> set[str]:
        return {part.path for parts in self._changing.values() for part in parts.parts.values()}

    def drop(self, keep: Sequence[Keep]) -> None:
        """Remove the hours that are not to be kept any more, but for those with rows that change. Raises DataError."""
        try:
            with self._busy:
                self._complete()
                live = {(self.directory / path).parent for path in self._open_paths()}
                for partition in too_old(self.directory, keep):
                    if partition not in live:
                        files = (str(path.relative_to(self.directory)) for path in partition.iterdir())
                        self._manifest.forget(files)
                        self._staging.drop(partition)
        except (OSError, sqlite3.Error) as error:
            raise DataError(f"cannot remove old rows from {self.directory}: {_reason(error)}") from None


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
