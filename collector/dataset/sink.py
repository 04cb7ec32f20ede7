# SPDX-License-Identifier: Apache-2.0
"""Where settled tables go: Parquet files that are complete or absent."""

import itertools
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from collector.dataset.files import (
    Disk,
    Keep,
    Rolls,
    Staging,
    check_schema,
    in_order,
    merge_files,
    partition,
    reason_of,
    split_by_hour,
    too_old,
    write_file,
)
from collector.dataset.manifest import (
    FLOW_OVER_NS,
    Manifest,
    Resume,
    SessionState,
    StoredFile,
    over_before,
    resume_from,
)
from collector.dataset.sharing import Alone, LostHostsError, Worker, take_all, take_over
from collector.dataset.tables import LATER, SCHEMAS, TIMES
from netmon.errors import DataError
from netmon.records import Hello

# --- Tables whose rows change: one row per flow (or interface of a session), in files by order of appearance.
#
# A file is written again when a row in it has changed. New rows, and columns that a restart needs, go to the disk
# with the write that brings them. Columns that only move on with the time (when a flow was last seen) follow a few
# files at a time, the one that has waited longest first: so the cost does not grow with the flows that live.

ROWS_PER_PART = 4096
_LATER_AT_A_TIME = 1  # files that are written again for columns that can wait, per write
_Ints = npt.NDArray[np.int64]


@dataclass
class Part:
    """The rows of one file, as they are now."""

    rows: pa.Table  # texts plain
    path: str = ""  # below the dataset's directory; empty: not written yet
    whole: bool = False  # takes no more rows
    over: frozenset[str] = frozenset()  # sessions that the manifest has forgotten: nobody moves their rows
    waiting_since: float = 0.0  # a change that can wait; 0: none
    touched: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class Changes:
    """What one write does to a table; nothing of it holds before it is on the disk."""

    parts: dict[int, pa.Table]  # all parts with another content
    write: list[int]  # those that have to be written now
    keys: _Ints  # of the new rows
    of_part: _Ints
    index: _Ints


class RowParts:
    """One table's rows that may still change."""

    def __init__(self, schema: pa.Schema, key: str, later: Iterable[str]) -> None:
        """key: the column that distinguishes a session's rows. later: columns whose changes can wait."""
        self._plain = pa.schema([pa.field(f.name, _plain(f.type)) for f in schema])
        self._key, self._later = key, frozenset(later)
        self.parts: dict[int, Part] = {}
        self._numbers = itertools.count()
        self._words: dict[str, int] = {}
        self._word_numbers = itertools.count()
        self._keys, self._of_part, self._index = (np.empty(0, np.int64) for _ in range(3))
        self._order: _Ints | None = None  # of _keys; None: out of date

    def changes(self, rows: pa.Table) -> Changes:
        """What these rows, new or known, change; of a row that comes twice the later one holds."""
        parts, write, new_keys, new_part, new_place = {}, set[int](), [], [], []
        if len(rows):
            rows = rows.cast(self._plain)
            keys, last = np.unique(self._numbered(rows)[::-1], return_index=True)
            order = np.sort(len(rows) - 1 - last)
            rows, keys = rows.take(pa.array(order)), self._numbered(rows)[order]
            known, at = self._find(keys)
            for number in np.unique(self._of_part[at[known]]).tolist():
                mine = np.flatnonzero(known)[self._of_part[at[known]] == number]
                old = self.parts[number].rows
                fresh = rows.take(pa.array(mine))
                index = self._index[at[mine]]
                if self._matters(old.take(pa.array(index)), fresh):
                    write.add(number)
                both = np.arange(len(old))
                both[index] = len(old) + np.arange(len(fresh))
                parts[number] = pa.concat_tables([old, fresh]).take(pa.array(both)).combine_chunks()
            for number, begin, own in self._room(np.flatnonzero(~known)):
                before = parts.get(number, self.parts[number].rows if number in self.parts else None)
                fresh = rows.take(pa.array(own))
                parts[number] = pa.concat_tables([before, fresh]).combine_chunks() if before is not None else fresh
                write.add(number)
                new_keys.append(keys[own])
                new_part.append(np.full(len(own), number))
                new_place.append(begin + np.arange(len(own)))
        waiting = sorted((p.waiting_since, n) for n, p in self.parts.items() if p.waiting_since and n not in write)
        write.update(number for _, number in waiting[:_LATER_AT_A_TIME])
        joined = [np.concatenate([np.empty(0, np.int64), *part]) for part in (new_keys, new_part, new_place)]
        return Changes(parts, sorted(write), *joined)

    def content(self, changes: Changes, number: int) -> pa.Table:
        return changes.parts.get(number, self.parts[number].rows if number in self.parts else None)

    def apply(self, changes: Changes, paths: dict[int, str]) -> None:
        """The changes are on the disk. paths: of the parts that were written."""
        now = time.monotonic()
        for number, rows in changes.parts.items():
            part = self.parts.setdefault(number, Part(rows))
            part.rows, part.touched = rows, now
            part.whole = part.whole or len(rows) >= ROWS_PER_PART
            part.waiting_since = part.waiting_since or now
        for number, path in paths.items():
            self.parts[number].path, self.parts[number].waiting_since = path, 0.0
        self._keys = np.concatenate([self._keys, changes.keys])
        self._of_part = np.concatenate([self._of_part, changes.of_part])
        self._index = np.concatenate([self._index, changes.index])
        if len(changes.keys):
            self._order = None

    def waiting(self) -> Changes:
        numbers = [number for number, part in self.parts.items() if part.waiting_since]
        nothing = np.empty(0, np.int64)
        return Changes({}, numbers, nothing, nothing, nothing)

    def lacks(self, path: str) -> bool:
        """Whether a file's rows are not known."""
        return all(part.path != path for part in self.parts.values())

    def adopt(self, path: str, rows: pa.Table, sessions: Collection[str]) -> None:
        """Take in a file of an earlier collector, if it is not known. sessions: those that may come back."""
        if not self.lacks(path):
            return
        number = next(self._numbers)
        missing = [field for field in self._plain if field.name not in rows.column_names]
        for lacking in missing:
            empty = "" if pa.types.is_string(lacking.type) else 0
            rows = rows.append_column(lacking.name, pa.array([empty] * len(rows), lacking.type))
        rows = rows.select(self._plain.names).cast(self._plain)
        over = frozenset(rows["session"].unique().to_pylist()).difference(sessions)
        self.parts[number] = Part(rows, path, len(rows) >= ROWS_PER_PART, over)
        self._keys = np.concatenate([self._keys, self._numbered(rows)])
        self._of_part = np.concatenate([self._of_part, np.full(len(rows), number)])
        self._index = np.concatenate([self._index, np.arange(len(rows))])
        self._order = None

    def forget(self) -> None:
        """Let go of whole parts in which nothing has changed for as long as a flow may be silent."""
        before = time.monotonic() - FLOW_OVER_NS / 1e9
        over = [n for n, p in self.parts.items() if p.whole and not p.waiting_since and p.touched < before]
        if not over:
            return
        for number in over:
            del self.parts[number]
        kept = ~np.isin(self._of_part, over)
        self._keys, self._of_part, self._index = self._keys[kept], self._of_part[kept], self._index[kept]
        self._order = None
        used = set(np.unique(np.concatenate([self._keys >> 32, self._keys & 0xFFFFFFFF])).tolist())
        self._words = {word: number for word, number in self._words.items() if number in used}

    def drop_moved(self, sessions_of: Callable[[str], Collection[str]]) -> None:
        """Let go of rows that the files do not hold any more. sessions_of: whose rows a file does hold, by its path."""
        for number, part in list(self.parts.items()):
            there = pa.array(sorted(part.over.union(sessions_of(part.path))), pa.string())
            kept = pc.is_in(part.rows["session"], there).to_numpy(zero_copy_only=False)
            if kept.all():
                continue
            mine = self._of_part == number
            index = np.cumsum(kept) - 1
            gone = mine & ~kept[np.where(mine, self._index, 0)]
            self._index = np.where(mine, index[np.where(mine, self._index, 0)], self._index)
            self._keys, self._of_part, self._index = self._keys[~gone], self._of_part[~gone], self._index[~gone]
            self._order = None
            part.rows = part.rows.filter(pa.array(kept)).combine_chunks()
            if not len(part.rows):
                del self.parts[number]

    def rows_of(self, session: str, time: str, since_ns: int) -> pa.Table:
        """A session's rows, in the order of their appearance, of the parts that have a time since then."""
        recent = [part.rows for part in self.parts.values() if pc.max(part.rows[time]).as_py() >= since_ns]
        parts = [rows.filter(pc.equal(rows["session"], session)) for rows in recent]
        return pa.concat_tables(parts) if parts else self._plain.empty_table()

    def _room(self, rows: _Ints) -> list[tuple[int, int, _Ints]]:
        """Where new rows go: part, place of the first one in it, rows."""
        found = []
        number = next((n for n, part in self.parts.items() if not part.whole), None)
        begin = len(self.parts[number].rows) if number is not None else 0
        while len(rows):
            number = next(self._numbers) if number is None else number
            found.append((number, begin, rows[: ROWS_PER_PART - begin]))
            rows = rows[ROWS_PER_PART - begin :]
            number, begin = None, 0
        return found

    def _numbered(self, rows: pa.Table) -> _Ints:
        """One number per row of a session and key."""
        sessions = rows["session"].combine_chunks().dictionary_encode()
        codes = [self._word(word) for word in sessions.dictionary.to_pylist()]
        key = rows[self._key].combine_chunks()
        if pa.types.is_string(key.type):
            encoded = key.dictionary_encode()
            words = [self._word(word) for word in encoded.dictionary.to_pylist()]
            second = np.array(words, np.int64)[encoded.indices.to_numpy()]
        else:
            second = key.to_numpy().astype(np.int64)
        numbers: _Ints = np.array(codes, np.int64)[sessions.indices.to_numpy()] << 32 | second
        return numbers

    def _word(self, word: str) -> int:
        if word not in self._words:
            self._words[word] = next(self._word_numbers)
        return self._words[word]

    def _find(self, keys: _Ints) -> tuple[npt.NDArray[np.bool_], _Ints]:
        """Whether each key is known, and where."""
        if not len(self._keys):
            return np.zeros(len(keys), np.bool_), np.zeros(len(keys), np.int64)
        if self._order is None:
            self._order = np.argsort(self._keys, kind="stable")
        index = np.minimum(np.searchsorted(self._keys, keys, sorter=self._order), len(self._keys) - 1)
        at = self._order[index]
        return self._keys[at] == keys, at

    def _matters(self, old: pa.Table, new: pa.Table) -> bool:
        """Whether a column that cannot wait differs."""
        return any(
            not old[name].combine_chunks().equals(new[name].combine_chunks())
            for name in self._plain.names
            if name not in self._later
        )


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def hosts_in(tables: Iterable[pa.Table], states: Iterable[SessionState]) -> Iterator[str]:
    """The hosts of which there are rows or states, as they are requested; some more than once."""
    yield from (state.host for state in states)
    for rows in tables:
        yield from filter(None, rows["host"].unique().to_pylist())  # a verdict may be about no host


def without_hosts(rows: pa.Table, hosts: Collection[str]) -> pa.Table:
    theirs = pc.is_in(rows["host"].cast(pa.string()), pa.array(sorted(hosts)))
    return rows.filter(pc.invert(theirs))


# --- Where settled tables go: Parquet files that are complete or absent.

_log = logging.getLogger(__name__)

_CLOSING_S = 4.0  # what is not merged by then is when the next one begins


class ParquetSink:
    """One dataset directory, written by one collector alone or by multiple workers, of which this is one.

    Names in the directory that begin with a dot are no rows.
    Its methods may be called from any thread.
    """

    def __init__(self, directory: Path, worker: str = "", durability: str = "power") -> None:
        """Create the directory where it is missing, and take it. Raises DataError where that cannot be.

        worker: its name among the workers; empty: nobody else is to write there. durability: what stored rows outlive,
        one of netmon.service.DURABILITIES.
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
            _log.warning(f"{self.directory} was removed by somebody with all its contents: it is made anew")

    def _opened(self) -> Manifest:
        """The manifest, and the directory as it says: what a crash has interrupted is completed, the rest undone."""
        manifest = None
        try:
            self._staging = Staging(self.directory, self._sharing.folder, self._disk)
            manifest = Manifest(self._sharing.folder / "manifest.sqlite", self._disk.power)
            self._manifest, self._version = manifest, manifest.version()
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
                    self._forget_moved()
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
                            self._forget_moved()  # before it is here again
                            take_all(self._manifest, self._staging, folder)
                            (folder / "manifest.sqlite").unlink()
                except (OSError, sqlite3.Error, pa.ArrowException) as error:
                    raise DataError(f"cannot take over {folder}: {reason_of(error)}") from None

    def settle_changes(self) -> None:
        """Store what has waited of rows that change, as before hosts are given to somebody else. Raises DataError."""
        with self._busy:
            self._forget_moved()
            try:
                self._write({}, {name: parts.waiting() for name, parts in self._changing.items()}, {})
            except LostHostsError:
                self.settle_changes()

    def _forget_moved(self) -> None:
        """Let go of rows that change and that somebody else has moved into a file of theirs.

        Whoever takes a host does so after that, or is killed before: until then nobody but us has them.
        """
        self._sharing.forget_lost()
        try:
            if self._has_moved():
                self._version = self._manifest.version()
                for parts in self._changing.values():
                    parts.drop_moved(self._manifest.sessions_of)
        except sqlite3.Error as error:
            raise DataError(f"cannot see what others have moved in {self.directory}: {error}") from None

    def _has_moved(self) -> bool:
        """Whether somebody else may have moved something since `_forget_moved`."""
        return not self._sharing.alone and self._manifest.version() != self._version

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
                with self._sharing.hold():
                    self._forget_moved()
                    self._complete()  # somebody may have been killed before the files without their rows were here
                    for path in self._manifest.paths_of(hello.session):
                        self._adopt(path, over)
                return resume_from(state, self._flows.rows_of(hello.session, "last_ns", over).to_pylist(), hello)
            except (OSError, sqlite3.Error, pa.ArrowException, ValueError, KeyError, TypeError) as error:
                raise DataError(
                    f"cannot resume session {hello.session} of {hello.host} in {self.directory}: {error}"
                ) from None

    def _adopt(self, path: str, over: int) -> None:
        """Know the rows of a file of ours that may still change."""
        parts = self._changing[Path(path).parts[0]]
        if not (self.directory / path).exists():  # somebody has removed it
            return
        if parts.lacks(path) and (parts is self._sessions or self._last_seen(path) >= over):
            parts.adopt(path, pq.ParquetFile(self.directory / path).read(), self._manifest.sessions_of(path))

    def _last_seen(self, path: str) -> int:
        """When a flow of the file was seen last, as it was at the first call; it is not open any more."""
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
            self._forget_moved()
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
                    roll = self._rolls.of(name, partition(hour), len(rows), self._staging.stem)
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
                if self._sharing.would_lose() or self._has_moved():
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

        Returns whether there may be more. go_on: called now and then; at_once: it is time. Raises DataError, loses no
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


# --- Upkeep: small files are merged, old hours go, at the lowest priority.

_EVERY_S = 20.0


class Upkeep:
    """Runs until it is closed."""

    def __init__(self, sink: ParquetSink, keep: Callable[[], Sequence[Keep]]) -> None:
        """Begin. keep(): in force now."""
        self._sink, self._keep = sink, keep
        self._stop = threading.Event()
        self._trouble = ""
        self._thread = threading.Thread(target=self._run, name="upkeep", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop soon: a file that is being merged is given up."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        while not self._stop.wait(_EVERY_S):
            try:
                self._sink.take_absent()
                while self._sink.merge_some(lambda: not self._stop.is_set()):
                    pass
                self._sink.drop(self._keep())
            except DataError as error:
                if str(error) != self._trouble:
                    _log.warning(error)
                self._trouble = str(error)
            else:
                self._trouble = ""
