# SPDX-License-Identifier: Apache-2.0
"""Where settled tables go: Parquet files that are complete or absent."""

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from collector.dataset.files import (
    Disk,
    Rolls,
    Staging,
    check_schema,
    in_order,
    merge_files,
    partition,
    reason_of,
    split_by_hour,
    write_file,
)
from collector.dataset.manifest import Manifest, StoredFile
from collector.dataset.resume import Resume, SessionState, over_before, resume_from
from collector.dataset.retention import Keep, too_old
from collector.dataset.row_parts import Changes, RowParts, hosts_in, without_hosts
from collector.dataset.sharing import Alone, LostHostsError, Worker, take_all, take_over
from collector.dataset.tables import LATER, SCHEMAS, TIMES
from netmon.errors import DataError
from netmon.records import Hello

_log = logging.getLogger(__name__)

_CLOSING_S = 4.0  # what is not merged by then is when the next one begins


class ParquetSink:
    """One dataset directory, written by one collector alone or by several workers, of which this is one.

    Names in the directory that begin with a dot are no rows.
    Its methods may be called from any thread.
    """

    def __init__(self, directory: Path, worker: str = "", durability: str = "power") -> None:
        """Create the directory where it is missing, and take it. Raises DataError where that cannot be.

        worker: its name among several; empty: nobody else is to write there. durability: what stored rows outlive,
        one of netmon.durability.DURABILITIES.
        """
        self.directory, self._disk = directory, Disk(durability)
        self._busy = threading.RLock()
        self._worker, self._closed, self._gone = worker, False, False
        self._begin()

    def _begin(self) -> None:
        self._flows = RowParts(SCHEMAS["flows"], "flow_id", LATER["flows"])
        self._sessions = RowParts(SCHEMAS["sessions"], "interface", LATER["sessions"])
        self._seen: dict[str, int] = {}
        self._rolls = Rolls()
        self._changing = {"flows": self._flows, "sessions": self._sessions}
        directory, worker = self.directory, self._worker
        try:
            self._disk.make_root(directory)
        except OSError as error:
            raise DataError(f"cannot write to {directory}: {error.strerror}; choose another --data") from None
        self._sharing = Worker(directory, worker, self._disk) if worker else Alone(directory)
        try:
            check_schema(directory)
            self._manifest = self._opened()
        except BaseException:
            self._sharing.close()
            raise

    def _look_for_directory(self) -> None:
        """Somebody may have removed it, and another collector may have begun there: it is taken anew, or not."""
        if self._closed:
            raise DataError(f"cannot write to {self.directory}: it has been let go of")
        if not self._sharing.there():
            self._gone = True
            self._manifest.close()
            self._sharing.close()
            self._begin()
            self._gone = False
            _log.warning(f"{self.directory} was removed by somebody with all that it held: it is made anew")

    def _opened(self) -> Manifest:
        """The manifest, and the directory as it says: what a crash has interrupted is completed, the rest undone."""
        manifest = None
        try:
            self._staging = Staging(self.directory, self._sharing.folder, self._disk)
            manifest = Manifest(self._sharing.folder / "manifest.sqlite", self._disk.power)
            self._manifest = manifest
            self._complete()
            self._staging.clear()
            if self._sharing.alone:
                self.take_absent()
                manifest.keep_other_manifest()
        except BaseException as error:
            if manifest:
                manifest.close()
            if not isinstance(error, OSError | sqlite3.Error):
                raise
            raise DataError(f"cannot write to {self.directory}: {reason_of(error)}; choose another --data") from None
        return manifest

    def take(self, epochs: Mapping[str, int]) -> frozenset[str]:
        """Have these hosts from now on, with all that is stored of them; returns those that somebody else has.

        epochs: by host, each higher than those before it. Blocks; raises DataError, and may be tried again then.
        """
        with self._busy:
            later = self._sharing.take(epochs)
            hosts = epochs.keys() - later
            try:
                with self._sharing.hold(exclusive=True):
                    self._forget_lost()
                    for folder in self._sharing.others():
                        take_over(self._manifest, self._staging, folder, hosts)
            except (OSError, sqlite3.Error, pa.ArrowException) as error:
                raise DataError(f"cannot take hosts over in {self.directory}: {reason_of(error)}") from None
            return later

    def take_absent(self) -> None:
        """Have what writers that are gone have stored, so that somebody looks after it. Raises DataError."""
        with self._busy:
            for folder in [] if self._gone else self._sharing.others():
                try:
                    with self._sharing.hold(exclusive=True), self._sharing.absent(folder) as absent:
                        if absent:
                            take_all(self._manifest, self._staging, folder)
                            (folder / "manifest.sqlite").unlink()
                except (OSError, sqlite3.Error, pa.ArrowException) as error:
                    raise DataError(f"cannot take over {folder}: {reason_of(error)}") from None

    def settle_changes(self) -> None:
        """Store what has waited of rows that change, as before hosts are given to somebody else. Raises DataError."""
        with self._busy:
            self._forget_lost()
            try:
                self._write({}, {name: parts.waiting() for name, parts in self._changing.items()}, {})
            except LostHostsError:
                self.settle_changes()

    def _forget_lost(self) -> None:
        """Rows that change of hosts that somebody else has taken are theirs: our files do not hold them any more."""
        lost = self._sharing.lost()
        if lost:
            for parts in self._changing.values():
                parts.drop(lost)

    def close(self) -> None:
        """Store what has waited, and merge all files, as far as the disk takes it; let others write."""
        deadline = time.monotonic() + _CLOSING_S
        with self._busy:
            try:
                self.settle_changes()
                while self.merge_some(lambda: time.monotonic() < deadline, at_once=True):
                    pass
            except DataError as error:
                _log.warning(error)
            finally:
                self._closed = True
                self._manifest.close()
                self._sharing.close()

    def resume(self, hello: Hello) -> Resume:
        """What is stored of a session; reads a few small files. Raises DataError."""
        with self._busy:
            if not self._sharing.owns(hello.host):  # what is stored of it is where its new worker looks for it
                raise DataError(f"cannot resume session {hello.session} of {hello.host}: another worker has the host")
            try:
                state = self._manifest.session(hello.session)
                if state is None or state.host != hello.host:
                    return Resume()
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
            self._seen[path] = _last_seen(self.directory / path)
        return self._seen[path]

    def write(self, tables: Mapping[str, pa.Table], states: Mapping[str, SessionState]) -> frozenset[str]:
        """Store rows by table (collector.dataset.tables.SCHEMAS) and states by session, all or nothing; blocks.

        When it returns, they outlive a power cut, unless it was set otherwise. Rows of `flows` and `sessions` replace
        earlier ones of the same flow (interface). Raises DataError; what was stored before is not touched, and the same
        call may be made again.

        Returns the hosts that somebody else has: nothing of these is stored.
        """
        with self._busy:
            self._look_for_directory()
            self._forget_lost()
            refused = self._sharing.foreign(hosts_in(tables.values(), states.values()))
            if refused:
                tables = {name: without_hosts(rows, refused) for name, rows in tables.items()}
                states = {session: state for session, state in states.items() if state.host not in refused}
            changes = {
                name: parts.changes(tables.get(name, SCHEMAS[name].empty_table()))
                for name, parts in self._changing.items()
            }
            rows = {name: table for name, table in tables.items() if name not in self._changing and len(table)}
            try:
                self._write(rows, changes, states)
            except LostHostsError:
                return refused | self.write(tables, states)
            self._flows.forget()
            return refused

    def _write(
        self, tables: Mapping[str, pa.Table], changes: Mapping[str, Changes], states: Mapping[str, SessionState]
    ) -> None:
        files: list[StoredFile] = []
        paths: dict[str, dict[int, str]] = {name: {} for name in changes}
        members: dict[str, list[str]] = {}
        committed = False
        try:
            self._complete()
            for name, table in tables.items():
                for hour, rows in split_by_hour(name, table):
                    roll = self._rolls.of(name, partition(hour), self._staging.stem)
                    self._stage(files, name, in_order(name, rows), partition(hour), self._staging.stem(), roll)
            for name, change in changes.items():
                for number in change.write:
                    rows = self._changing[name].content(change, number)
                    file = self._stage_part(files, name, number, rows)
                    paths[name][number] = file.path
                    members[file.path] = rows["session"].unique().to_pylist()
            if files:
                self._disk.sync_directory(self._staging.folder)
            with self._sharing.hold():
                if self._sharing.would_lose():
                    raise LostHostsError
                if files or states:
                    self._manifest.commit(files, states, members)
                committed = True
                for name, change in changes.items():
                    self._changing[name].apply(change, paths[name])
                self._publish_soon(files)
        except (OSError, sqlite3.Error, pa.ArrowException) as error:
            raise DataError(
                f"cannot write to {self.directory}: {reason_of(error)}; "
                "rows stay in memory and with the agents until it works"
            ) from None
        finally:
            if not committed:
                self._staging.discard(files)

    def _publish_soon(self, files: list[StoredFile]) -> None:
        try:
            self._publish(files, [])
        except (OSError, sqlite3.Error) as error:  # they are stored; the next write puts them into their place first
            _log.warning(f"cannot put files into their place in {self.directory} yet: {reason_of(error)}")

    def _stage(
        self, files: list[StoredFile], name: str, rows: pa.Table, folder: str, stem: str, roll: str = ""
    ) -> StoredFile:
        """Write a file to be; where it will lie has to exist."""
        file = StoredFile(name, folder, stem, bytes=0, roll=roll, staged=f"{self._staging.stem()}.parquet")
        self._disk.make_directory((self.directory / file.path).parent, self.directory)
        files.append(file)
        staged = self._staging.folder / file.staged
        write_file(self._disk, name, staged, rows)
        files[-1] = replace(file, bytes=staged.stat().st_size)
        return file

    def _stage_part(self, files: list[StoredFile], name: str, number: int, rows: pa.Table) -> StoredFile:
        """A part of rows that change keeps its place."""
        part = self._changing[name].parts.get(number)
        if part and part.path:
            known = Path(part.path)
            return self._stage(files, name, rows, "/".join(known.parts[1:3]), known.stem)
        hour = rows[TIMES[name]][0].as_py() // 3_600_000_000_000
        return self._stage(files, name, rows, partition(hour), self._staging.stem())

    def _complete(self) -> None:
        """Put what has been committed into its place. Raises OSError, sqlite3.Error, DataError."""
        files, removed = self._manifest.staged(), self._manifest.removals()
        if files or removed:
            with self._sharing.hold():
                self._publish(self._manifest.staged(), self._manifest.removals())

    def _publish(self, files: list[StoredFile], removed: list[str]) -> None:
        if files or removed:
            self._staging.publish(files, removed)
            self._manifest.placed([file.path for file in files], removed)

    def merge_some(self, go_on: Callable[[], bool], at_once: bool = False) -> bool:
        """Make one file of the small ones of some minutes, if it is time; blocks, but writes go on meanwhile.

        Returns whether there may be more. go_on: asked now and then; at_once: it is time. Raises DataError, loses no
        row.
        """
        try:
            with self._busy:
                self._staging.remove_old()
                sources = [] if self._gone else self._due(at_once)  # the next write says so
            if not sources:
                return False
            staged = self._staging.folder / f"{self._staging.stem()}.parquet"
            try:
                paths = [self.directory / source.path for source in sources]
                return merge_files(self._disk, sources[0].name, paths, staged, go_on) and self._replace(sources, staged)
            except pa.ArrowException:
                self._rolls.damaged.add(sources[0].roll)
                raise
            finally:
                with self._busy:
                    if not any(file.staged == staged.name for file in self._manifest.staged()):
                        staged.unlink(missing_ok=True)
        except (OSError, sqlite3.Error, pa.ArrowException) as error:
            raise DataError(f"cannot merge files in {self.directory}: {reason_of(error)}") from None

    def _due(self, at_once: bool) -> list[StoredFile]:
        self._complete()
        sources = self._rolls.due(self._manifest.recent(), at_once)
        gone = [source.path for source in sources if not (self.directory / source.path).exists()]
        if gone:  # somebody has removed them
            self._manifest.forget(gone)
        return [source for source in sources if source.path not in gone]

    def _replace(self, sources: Sequence[StoredFile], staged: Path) -> bool:
        with self._busy, self._sharing.hold():
            if not set(sources).issubset(self._manifest.recent()):  # the hour was dropped meanwhile
                return False
            first, size = sources[0], staged.stat().st_size
            merged = StoredFile(first.name, first.partition, first.roll, size, staged=staged.name)
            self._disk.sync_directory(self._staging.folder)
            self._manifest.commit([merged], {}, {}, rolled=[source.path for source in sources])
            self._publish([merged], [])
            return True

    def drop(self, keep: Sequence[Keep]) -> None:
        """Remove the hours that are not to be kept any more, but for those with rows that change. Raises DataError."""
        with self._busy:
            if self._gone:
                return
            try:
                with self._sharing.hold(exclusive=True):
                    self._complete()
                    parts = (part for own in self._changing.values() for part in own.parts.values())
                    live = {(self.directory / part.path).parent for part in parts}
                    for hour in too_old(self.directory, keep):
                        if hour not in live:
                            self._drop(hour.parents[1].name, f"{hour.parent.name}/{hour.name}")
            except (OSError, sqlite3.Error) as error:
                raise DataError(f"cannot remove old rows from {self.directory}: {reason_of(error)}") from None

    def _drop(self, name: str, partition: str) -> None:
        """Every worker removes its own files; who removes the last one removes the folder."""
        own = self._manifest.files(name, partition)
        self._manifest.forget([file.path for file in own])
        if self._sharing.alone:
            self._staging.drop(name, partition)
        else:
            self._staging.remove(own)


def _last_seen(path: Path) -> int:
    """The newest last_ns of a file of flows, by its statistics. Raises OSError."""
    groups, column = pq.ParquetFile(path).metadata, pq.read_schema(path).get_field_index("last_ns")
    return max(int(groups.row_group(i).column(column).statistics.max) for i in range(groups.num_row_groups))
