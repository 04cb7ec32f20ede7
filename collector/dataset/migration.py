# SPDX-License-Identifier: Apache-2.0
"""Datasets of earlier schema versions become ones of today's, in their place: all of it, or nothing.

Versions 1 to 3 have a folder per host, one file per host and flush, and what holds for a session in every file's
metadata. Their rows are written anew beside the tables, an hour of all hosts to a file; one transaction of the manifest
then says that the new files belong to the dataset and the old ones do not. Until it, nothing of the old files has been
touched; after it, a collector (or this) that starts completes what a crash has interrupted.
"""

import json
import shutil
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from collector.dataset.earlier import session_state
from collector.dataset.files import Disk, in_order, partition, reason_of, split_by_hour, write_file
from collector.dataset.manifest import Manifest, StoredFile
from collector.dataset.sharing import Alone
from collector.dataset.staging import Staging
from collector.dataset.tables import SCHEMAS, TIMES
from netmon.errors import DataError

_ROWS_AT_ONCE = 1 << 20  # of one table and day, in memory
_FLOWS_AT_ONCE = 1 << 16  # a session that comes back has all of its file in memory
_STATE, _OWN = b"netmon.state", b"netmon."
_ROOM = 1.2  # × the bytes of the old files, to be free before anything is written

Tell = Callable[[int, int], None]
"""Told how many of how many files have been read."""


@dataclass
class Migrated:
    """What was done; files and rows of the old dataset, files of the new one."""

    files: int = 0
    rows: int = 0
    made: int = 0
    versions: set[int] = field(default_factory=set)
    sessions: int = 0


def earlier_files(directory: Path) -> dict[tuple[str, str], list[Path]]:
    """The files of versions before 4 by table and day, each in the order of their names. Raises DataError."""
    if not directory.is_dir():
        raise DataError(f"cannot migrate {directory}: no such directory; give the --data of a collector")
    found: dict[tuple[str, str], list[Path]] = defaultdict(list)
    for path in sorted(directory.glob("*/date=*/host=*/part-*.parquet")):
        found[path.parts[-4], path.parts[-3]].append(path)
    unknown = sorted({name for name, _ in found} - SCHEMAS.keys())
    if unknown:
        raise DataError(f"cannot migrate {directory}: its tables {', '.join(unknown)} are not known to this netmon")
    return found


def migrate(directory: Path, tell: Tell = lambda done, of: None) -> Migrated:
    """Blocks; all or nothing, whatever ends it. Raises DataError."""
    found = earlier_files(directory)
    done = Migrated(files=sum(map(len, found.values())))
    disk = Disk("power")
    sharing = Alone(directory)
    try:
        staging = Staging(directory, sharing.folder, disk)
        with closing(Manifest(sharing.folder / "manifest.sqlite")) as manifest:
            _complete(manifest, staging)
            found = earlier_files(directory)  # without what an interrupted migration had only to remove
            done.files = sum(map(len, found.values()))
            if found:
                _check_room(directory, found)
                _Migration(directory, staging, manifest, tell, done).run(found)
    except (OSError, sqlite3.Error, pa.ArrowException) as error:
        raise DataError(f"cannot migrate {directory}: {reason_of(error)}; it is as it was") from None
    finally:
        sharing.close()
    return done


def _complete(manifest: Manifest, staging: Staging) -> None:
    files, removed = manifest.staged(), manifest.removals()
    if files or removed:
        staging.place(files, removed)
        manifest.placed([file.path for file in files], removed)
    staging.clear()


def _check_room(directory: Path, found: Mapping[Any, list[Path]]) -> None:
    needed = int(_ROOM * sum(path.stat().st_size for paths in found.values() for path in paths))
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise DataError(
            f"cannot migrate {directory}: it needs {needed / 1e6:.0f} MB beside what is there, and {free / 1e6:.0f} MB "
            "are free; make room, or move it to a larger disk first"
        )


class _Migration:
    def __init__(self, directory: Path, staging: Staging, manifest: Manifest, tell: Tell, done: Migrated) -> None:
        self._directory, self._staging, self._manifest = directory, staging, manifest
        self._tell, self._done = tell, done
        self._files: list[StoredFile] = []
        self._members: dict[str, list[str]] = {}
        self._newest: dict[tuple[str, str], tuple[int, dict[str, Any]]] = {}  # metadata of (host, session)
        self._begin: dict[tuple[str, str], int] = {}  # their first row
        self._states: dict[tuple[str, str], dict[str, tuple[int, bytes]]] = defaultdict(dict)  # by table
        self._read = 0

    def run(self, found: Mapping[tuple[str, str], list[Path]]) -> None:
        committed = False
        try:
            for (name, _), paths in found.items():
                for rows in self._batches(name, paths):
                    for hour, own in split_by_hour(name, rows):
                        self._stage(name, in_order(name, own.cast(SCHEMAS[name])), partition(hour))
            self._stage_sessions()
            self._check()
            self._staging.disk.sync_directory(self._staging.folder)
            states = {key[1]: session_state(key[0], tables) for key, tables in self._states.items()}
            old = [str(path.relative_to(self._directory)) for paths in found.values() for path in paths]
            self._manifest.commit(self._files, states, self._members, old)
            committed = True
        finally:
            if not committed:
                self._staging.discard(self._files)
        self._done.sessions, self._done.made = len(self._newest), len(self._files)
        self._staging.place(self._files, old)
        self._manifest.placed([file.path for file in self._files], old)
        for folder in {self._directory / Path(path).parent for path in old}:
            _remove_empty(folder, self._directory)

    def _batches(self, name: str, paths: list[Path]) -> Iterator[pa.Table]:
        """The files' rows as they are to be now, many files at a time."""
        most = _FLOWS_AT_ONCE if name == "flows" else _ROWS_AT_ONCE
        waiting: list[pa.Table] = []
        for path in paths:
            try:
                rows = self._converted(name, path)
            except (pa.ArrowException, ValueError, KeyError) as error:
                place = path.relative_to(self._directory)
                raise DataError(
                    f"cannot migrate {self._directory}: {place} cannot be read ({str(error).splitlines()[0]}); "
                    "move that file away to go on without it. The dataset is as it was"
                ) from None
            self._read += 1
            self._tell(self._read, self._done.files)
            if len(rows):
                waiting.append(rows)
            if sum(map(len, waiting)) >= most:
                yield pa.concat_tables(waiting)
                waiting = []
        if waiting:
            yield pa.concat_tables(waiting)

    def _converted(self, name: str, path: Path) -> pa.Table:
        file = pq.ParquetFile(path)
        rows, metadata = file.read(), file.schema_arrow.metadata or {}
        host = unquote(path.parts[-2].partition("=")[2])
        told = {key.removeprefix(_OWN).decode(): _value(text) for key, text in metadata.items() if key != _STATE}
        self._done.rows += len(rows)
        self._done.versions.add(int(told.get("schema_version", 1)))
        self._remember(name, host, path, rows, told, metadata.get(_STATE, b""))
        defaults = _defaults(name, rows, told) | {"host": host}
        return pa.Table.from_arrays(
            [_column(field, rows, defaults) for field in SCHEMAS[name]],
            schema=pa.schema([pa.field(f.name, _plain(f.type)) for f in SCHEMAS[name]]),
        )

    def _remember(self, name: str, host: str, path: Path, rows: pa.Table, told: dict[str, Any], state: bytes) -> None:
        """What holds for the session, as its newest file says."""
        key = host, str(told.get("session") or path.stem.split("-")[1])
        first = int(path.stem.rsplit("-", 2 if name != "flows" else 1)[1])
        if len(rows):
            begin = int(rows[TIMES[name]].to_numpy().min())
            self._begin[key] = min(begin, self._begin.get(key, begin))
        if name in ("flows", "full"):
            self._newest.setdefault(key, (-1, told))
            return
        if first >= self._newest.get(key, (-1, {}))[0]:
            self._newest[key] = first, told
        if state and first >= self._states[key].get(name, (-1, b""))[0]:
            self._states[key][name] = first, state

    def _stage(self, name: str, rows: pa.Table, folder: str) -> None:
        staging = self._staging
        file = StoredFile(name, folder, staging.stem(), bytes=0, staged=f"{staging.stem()}.parquet")
        self._files.append(file)
        write_file(staging.disk, name, staging.folder / file.staged, rows)
        self._files[-1] = replace(file, bytes=(staging.folder / file.staged).stat().st_size)
        if name in ("flows", "sessions"):
            self._members[file.path] = rows["session"].unique().to_pylist()

    def _stage_sessions(self) -> None:
        rows = [row for (host, name), (_, told) in self._newest.items() for row in self._session_rows(host, name, told)]
        if rows:
            schema = SCHEMAS["sessions"]
            plain = pa.schema([pa.field(f.name, _plain(f.type)) for f in schema])
            table = pa.Table.from_pylist(rows, schema=plain).cast(schema)
            for hour, own in split_by_hour("sessions", table):
                self._stage("sessions", own, partition(hour))

    def _session_rows(self, host: str, session: str, told: dict[str, Any]) -> Iterator[dict[str, Any]]:
        hooks = told.get("hook") or {}
        basis = told.get("byte_basis") or {}
        for interface in sorted({*basis, *(hook.rpartition(":")[0] for hook in hooks)}):
            yield {
                "host": host,
                "session": session,
                "interface": interface,
                "agent_version": str(told.get("agent_version") or ""),
                "start_ns": self._begin.get((host, session), 0),
                "bucket_ns": int(told.get("bucket_ns") or 0),
                "full_bucket_ns": int(told.get("full_bucket_ns") or told.get("bucket_ns") or 0),
                "capacity_bps": int((told.get("capacity_bps") or {}).get(interface) or 0),
                "byte_basis": basis.get(interface, ""),
                "super_packet_ns": int((told.get("super_packet_ns") or {}).get(interface) or 0),
                "hook_rx": hooks.get(f"{interface}:rx", ""),
                "hook_tx": hooks.get(f"{interface}:tx", ""),
                "clock_error_ns": int(told.get("clock_error_ns") or 0),
                "clock_source": str(told.get("clock_source") or ""),
                "share_window_ns": int(told.get("share_window_ns") or 0),
                "share_threshold": float(told.get("share_threshold") or 0),
            }

    def _check(self) -> None:
        """As many rows lie there as were read: by what was written, not by what was meant to be."""
        written = sum(
            pq.read_metadata(self._staging.folder / file.staged).num_rows
            for file in self._files
            if file.name != "sessions"
        )
        if written != self._done.rows:
            raise DataError(
                f"cannot migrate {self._directory}: {self._done.rows} rows were read and {written} written; "
                "it is as it was"
            )


def _defaults(name: str, rows: pa.Table, told: dict[str, Any]) -> dict[str, Any]:
    """What an earlier version did not write, where it follows from what it did; all else is empty."""
    if name in ("buckets", "full"):  # one that was not summed up is its own peak
        known: dict[str, Any] = {"peak_bytes": rows["wire_bytes"], "busy_buckets": 1}
        return known | {key: str(told.get(key) or "") for key in ("reason", "gap")}
    if name == "iterations":
        return {"job_name": rows["job"].cast(pa.string())}
    return {"members": 0, "prefix_bits": 0}


def _column(field: pa.Field, rows: pa.Table, defaults: dict[str, Any]) -> pa.ChunkedArray | pa.Array:
    plain = _plain(field.type)
    if field.name in rows.column_names:
        return rows[field.name].cast(plain)
    value = defaults.get(field.name, "" if pa.types.is_string(plain) else None)
    if isinstance(value, pa.ChunkedArray):
        return value.cast(plain)
    return pa.array([value] * len(rows), plain)


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _value(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text.decode()


def _remove_empty(folder: Path, below: Path) -> None:
    """A folder of a host, and those above it that are empty then."""
    while folder != below:
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent
