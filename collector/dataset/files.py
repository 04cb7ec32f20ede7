# SPDX-License-Identifier: Apache-2.0
"""One file of the dataset: how its rows are ordered, encoded and written so that they outlive a power cut."""

import errno
import os
import secrets
import shutil
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from collector.dataset.manifest import StoredFile
from collector.dataset.tables import DATASET_VERSION, SCHEMAS, TIMES
from collector.host.rows import COUNTS
from netmon.dl.grouped import ascending, order_by
from netmon.errors import DataError, UsageError
from netmon.evidence import EVIDENCE
from netmon.service import sync_directory, sync_way_to
from netmon.units import parse_duration, parse_size
from netmon.views import DROPPED, RECENT

ROWS_PER_GROUP = 1 << 17
"""About half a megabyte: a host's rows of a minute or two, which statistics let a reader skip."""

_PAGE_BYTES = 1 << 16  # whoever merges many files holds a page of each column of each file
_HOUR_NS = 3_600_000_000_000
_WORDS_WITH_STATISTICS = ("host", "job")  # of all hosts and jobs a new file has some: they do not help a reader
_WITH_STATISTICS = ("iteration", "bucket_start_ns", "start_ns", "end_ns", "first_ns", "last_ns", "time_ns")
_SAMPLED = 1024  # rows
FEW_ROWS = 1024
"""A file of no more is mostly made by beginning to compress each of its columns, which takes zstd longest."""

_HARDER = {"iteration": 15}  # zstd's level, of files that stay as they are; it takes a quarter off the column
_METADATA = {b"netmon.schema_version": str(DATASET_VERSION).encode()}


class Disk:
    """Waits for the disk where what is acknowledged has to outlive a power cut: agents forget it."""

    def __init__(self, durability: str) -> None:
        """durability: one of netmon.service.DURABILITIES."""
        self.power = durability == "power"
        self._made: dict[Path, int] = {}  # its inode; where somebody else has made it, it may not be synced

    def sync(self, file: BinaryIO) -> None:
        """What was written is there for good. Raises OSError."""
        file.flush()
        if self.power:
            os.fsync(file.fileno())

    def sync_directory(self, path: Path) -> None:
        """The names in it are there for good. Raises OSError."""
        if self.power:
            sync_directory(path)

    def make_directory(self, path: Path, below: Path) -> None:
        """Make a directory, and those between where they are missing, for good. Raises OSError."""
        with suppress(FileNotFoundError):
            if path == below or self._made.get(path) == path.stat().st_ino:
                return
        self.make_directory(path.parent, below)
        path.mkdir(exist_ok=True)
        self.sync_directory(path.parent)
        self._made[path] = path.stat().st_ino

    def make_root(self, path: Path) -> None:
        """Make a directory, and all above it, for good. Raises OSError."""
        path.mkdir(parents=True, exist_ok=True)
        if self.power:
            sync_way_to(path)


def split_by_hour(name: str, rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each hour that there are, with the hour since 1970."""
    hours = rows[TIMES[name]].to_numpy() // _HOUR_NS
    first, last = int(hours.min()), int(hours.max())
    if first == last:
        yield first, rows
        return
    for hour in np.unique(hours).tolist():
        yield hour, rows.filter(pa.array(hours == hour))


def partition(hour: int) -> str:
    """The folder of an hour since 1970, below the table's."""
    time = np.datetime64(hour, "h").astype("datetime64[s]").item()
    return f"date={time:%Y-%m-%d}/hour={time:%H}"


def in_order(name: str, rows: pa.Table) -> pa.Table:
    """By host and time; flows keep the order of their appearance. In one chunk: many, each with a dictionary of its
    own, take twice as long to write.
    """
    rows = rows.combine_chunks()
    if name in ("flows", "sessions") or len(rows) < 2:
        return rows
    rank = _host_ranks(rows["host"].chunk(0))
    time = rows[TIMES[name]].to_numpy()
    by = (rank, time, rows["flow_id"].to_numpy()) if "flow_id" in rows.column_names else (rank, time)
    return rows if ascending(*by) else rows.take(pa.array(order_by(*by)))


def _host_ranks(hosts: pa.DictionaryArray) -> npt.NDArray[np.int64]:
    """The place of each row's word in their order."""
    words = hosts.dictionary.to_pylist()
    index = np.empty(len(words), np.int64)
    index[np.argsort(np.array(words, object), kind="stable")] = np.arange(len(words))
    ranks: npt.NDArray[np.int64] = index.take(hosts.indices.to_numpy())
    return ranks


@contextmanager
def writer(disk: Disk, name: str, path: Path, rows: pa.Table, merged: bool = False) -> Iterator[pq.ParquetWriter]:
    """Opens a file to write row groups into; it is synced when it is closed. rows: some of those that will be in it.

    merged: it is of many hosts' rows of a long time, or as large: its row groups differ in what they hold. What is not
    and has few rows is compressed by snappy, which begins at once, and by zstd when it is merged. Raises OSError,
    pa.ArrowException.
    """
    schema = SCHEMAS[name]
    few = not merged and len(rows) <= FEW_ROWS
    deltas = _deltas(name, rows)
    with path.open("wb") as file:
        with pq.ParquetWriter(
            file,
            schema.with_metadata(_METADATA),
            compression="snappy" if few else "zstd",
            compression_level={column: _HARDER.get(column, 1) for column in schema.names} if merged else None,
            data_page_size=_PAGE_BYTES,
            use_dictionary=[column for column in schema.names if column not in deltas],
            column_encoding=dict.fromkeys(deltas, "DELTA_BINARY_PACKED"),
            write_statistics=_WITH_STATISTICS + (_WORDS_WITH_STATISTICS if merged else ()),
        ) as parquet:
            yield parquet
        disk.sync(file)


def _deltas(name: str, rows: pa.Table) -> list[str]:
    """The columns that are written as differences from row to row.

    Most numbers of a bucket or a flow repeat, and are half as long by dictionary; those of an iteration, of the ledger
    of the NICs' counters and of the evidence hardly ever do: a dictionary makes them twice as long and takes five times
    as long. So do the counts of buckets where hardly two are alike.
    """
    if name in ("iterations", "ledger", "nic", *EVIDENCE):
        return [field.name for field in SCHEMAS[name] if pa.types.is_int64(field.type)]
    if name not in ("buckets", "full"):
        return [TIMES[name]]
    return [TIMES[name], *(column for column in COUNTS if _unlike(rows[column]))]


def _unlike(column: pa.ChunkedArray) -> bool:
    """Whether most of a column's numbers differ from each other, by a few of them."""
    some = column.take(pa.array(np.linspace(0, len(column) - 1, min(len(column), _SAMPLED)).astype(np.int64)))
    return len(some) >= _SAMPLED and len(some.unique()) > len(some) / 2


def write_file(disk: Disk, name: str, path: Path, rows: pa.Table) -> None:
    """Write a file of these rows. Raises OSError, pa.ArrowException."""
    rows = rows if rows.schema.equals(SCHEMAS[name]) else rows.cast(SCHEMAS[name])
    with writer(disk, name, path, rows, merged=len(rows) >= LARGE_ROWS) as parquet:
        parquet.write_table(rows, row_group_size=ROWS_PER_GROUP)


def reason_of(error: Exception) -> str:
    """What went wrong, for a line: a full disk is called the same whoever says so."""
    if isinstance(error, sqlite3.Error) and "full" in str(error):
        return os.strerror(errno.ENOSPC)
    return getattr(error, "strerror", None) or str(error)


def check_schema(directory: Path) -> None:
    """Raise DataError where a table's newest day holds rows of another schema: they cannot be read as one table."""
    for table in sorted(path for path in directory.iterdir() if path.is_dir()):
        newest = max(table.glob("date=*"), default=None)
        part = next(newest.glob("*=*/part-*.parquet"), None) if newest else None
        try:
            metadata = (pq.read_schema(part).metadata or {}) if part else {}
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"cannot continue the dataset in {directory}: {part}: {error}; move it away") from None
        version = int(metadata.get(b"netmon.schema_version", DATASET_VERSION))
        if version != DATASET_VERSION:
            raise DataError(
                f"cannot continue the dataset in {directory}: its {table.name} have schema version {version}, "
                f"this netmon writes {DATASET_VERSION}; choose another --data"
            )


# --- A folder alongside the tables in which files are made, and how they get from there to their final paths.

_READ_S = 600.0  # longer than most who have listed a file take until they open it
_LOOK_S = 10.0


class Staging:
    """One writer's of a dataset."""

    def __init__(self, directory: Path, own: Path, disk: Disk) -> None:
        """directory: the dataset's; own: the writer's, below which it is made where it is missing. Raises OSError."""
        self.directory, self.disk = directory, disk
        self.folder = own / "staging"
        disk.make_directory(self.folder, directory)
        self._looked_s = 0.0
        self._token = secrets.token_hex(6)  # another one in every run: what lies in two datasets can be put together
        self._number = 0

    def stem(self) -> str:
        """A name that no other file has, whoever writes it."""
        self._number += 1
        return f"part-{self._token}-{self._number:06}"

    def clear(self) -> None:
        """Remove what was never committed. Raises OSError."""
        for unfinished in self.folder.iterdir():
            unfinished.unlink()

    def discard(self, files: Iterable[StoredFile]) -> None:
        """Remove files that are not going to be committed."""
        for file in files:
            (self.folder / file.staged).unlink(missing_ok=True)

    def publish(self, files: Iterable[StoredFile], removed: Iterable[str]) -> None:
        """Move committed files to their final paths, and remove others; may be repeated. Raises OSError."""
        folders = set()
        for file in files:
            final = self.directory / file.path
            self.disk.make_directory(final.parent, self.directory)
            with suppress(FileNotFoundError):  # it was renamed before a crash
                (self.folder / file.staged).replace(final)
            folders.add(final.parent)
        for path in removed:
            (self.directory / path).unlink(missing_ok=True)
            folders.add((self.directory / path).parent)
        for folder in folders:
            if folder.is_dir():
                self.disk.sync_directory(folder)
                self.disk.sync_directory(folder.parent)

    def drop(self, name: str, partition: str) -> None:
        """Take an hour out of its table, for readers at once. Raises OSError."""
        shutil.rmtree(self.directory / RECENT / name / partition, ignore_errors=True)
        hour, away = self.directory / name / partition, self.directory / DROPPED / name / partition
        shutil.rmtree(away, ignore_errors=True)
        away.parent.mkdir(parents=True, exist_ok=True)
        os.utime(hour)  # since when it is there
        hour.rename(away)
        self.disk.sync_directory(hour.parent)
        with suppress(OSError):  # not empty
            hour.parent.rmdir()

    def remove(self, files: Iterable[StoredFile]) -> None:
        """Take files of an hour out of their table, and what they were made of; the folder, if it is empty then."""
        for file in files:
            hour = f"{file.name}/{file.partition}"
            shutil.rmtree(self.directory / RECENT / hour / (file.roll or file.stem), ignore_errors=True)
            (self.directory / file.path).unlink(missing_ok=True)
            for folder in (self.directory / hour, (self.directory / hour).parent):
                with suppress(OSError):  # not empty
                    folder.rmdir()

    def remove_old(self) -> None:
        """Remove what nobody can be reading any more: small files that are a part of another one, hours dropped."""
        now_s = time.monotonic()
        if now_s < self._looked_s + _LOOK_S:
            return
        self._looked_s = now_s
        before_s = time.time() - _READ_S
        for roll in (self.directory / RECENT).glob("*/date=*/hour=*/*"):
            hour = roll.parent.relative_to(self.directory / RECENT)
            _remove_if(self.directory / hour / f"{roll.name}.parquet", roll, before_s)
        for hour in (self.directory / DROPPED).glob("*/date=*/*=*"):
            _remove_if(hour, hour, before_s)


def _remove_if(dated: Path, folder: Path, before_s: float) -> None:
    """Remove a folder, and those above it that are empty then, if what dates it is there and older."""
    with suppress(OSError):
        if dated.stat().st_mtime < before_s:
            shutil.rmtree(folder)
            folder.parent.rmdir()
            folder.parent.parent.rmdir()


# --- The small files of some minutes become one that never changes: when, and how they are merged in little memory.
#
# What is acknowledged has to be on the disk within a second or two, which makes small files. They lie in a separate
# folder (see netmon.views.RECENT), so that whoever reads the tables without netmon meets no file that goes away.

LARGE_ROWS = 1 << 20
"""A file of so many is never merged: it is in its table at once."""

ROLL_S = 300
"""Programs other than netmon see rows that are so old."""

MOST_FILES = 256
"""Of a roll: so many are merged at once."""

_MOST_BYTES = 64 << 20  # of a roll; with the last file some more
_ROWS_AT_ONCE, _READ_BYTES = 1 << 16, 1 << 14  # of all files that are merged; of each column of each of them


class Rolls:
    """Which file to be each small file belongs to. Used by one thread at a time."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], tuple[str, float]] = {}  # by table and partition: stem, and since when
        self.damaged: set[str] = set()
        """Rolls that cannot be merged: they stay as they are, and no other one waits for them."""

    def of(self, name: str, partition: str, rows: int, new: Callable[[], str]) -> str:
        """The roll that the next rows of a table's hour go to; empty: so many need none. new: makes a stem."""
        return "" if rows >= LARGE_ROWS else self._open.setdefault((name, partition), (new(), time.monotonic()))[0]

    def due(self, files: Iterable[StoredFile], at_once: bool) -> list[StoredFile]:
        """The files of a roll that is closed, so that nothing is added from now on; none: no roll is due.

        files: all that there are. at_once: every roll is due. Rolls of an earlier process are closed.
        """
        rolls: dict[tuple[str, str, str], list[StoredFile]] = defaultdict(list)
        for file in files:
            if file.roll and file.roll not in self.damaged:
                rolls[file.name, file.partition, file.roll].append(file)
        for (name, partition, roll), own in sorted(rolls.items()):
            stem, since = self._open.get((name, partition), ("", 0.0))
            if stem != roll:
                return own
            full = len(own) >= MOST_FILES or sum(file.bytes for file in own) >= _MOST_BYTES
            if at_once or full or time.monotonic() >= since + ROLL_S:
                del self._open[name, partition]
                return own
        return []


def merge_files(disk: Disk, name: str, sources: list[Path], target: Path, go_on: Callable[[], bool]) -> bool:
    """Write the rows of all sources, each ordered by host and time, into one file; False where it has to stop.

    Rows of a host stay together, in row groups that are ordered by host and time. Memory does not grow with the
    sources' size. Raises OSError, pa.ArrowException.
    """
    with ExitStack() as stack:
        groups = _groups(name, _rows(name, sources, stack), go_on)
        first = next(groups, SCHEMAS[name].empty_table())
        with writer(disk, name, target, first, merged=True) as parquet:
            for rows in chain([first], groups):
                if not go_on():
                    return False
                parquet.write_table(rows, row_group_size=2 * ROWS_PER_GROUP)
    return go_on()


def _groups(name: str, batches: Iterator[pa.RecordBatch], go_on: Callable[[], bool]) -> Iterator[pa.Table]:
    """The rows of each row group, as long as it is to go on."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if not go_on():
            return
        waiting.append(batch)
        rows += len(batch)
        if rows >= ROWS_PER_GROUP:
            yield in_order(name, pa.Table.from_batches(waiting)).cast(SCHEMAS[name])
            waiting, rows = [], 0
    if waiting:
        yield in_order(name, pa.Table.from_batches(waiting)).cast(SCHEMAS[name])


def _rows(name: str, sources: list[Path], stack: ExitStack) -> Iterator[pa.RecordBatch]:
    """All rows, host by host."""
    at_once = max(1024, _ROWS_AT_ONCE // len(sources))
    opened = [stack.enter_context(pq.ParquetFile(path, buffer_size=_READ_BYTES, pre_buffer=False)) for path in sources]
    batches = [_whole(name, file.iter_batches(at_once, use_threads=False)) for file in opened]
    runs = [_Runs(own) for own in batches]
    while live := [run for run in runs if run.host is not None]:
        host = min(str(run.host) for run in live)
        for run in live:
            while run.host == host:
                yield run.take()


def _whole(name: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """With the columns that the table has got since the file was written, which are null."""
    schema = SCHEMAS[name]
    for batch in batches:
        if batch.schema.names == schema.names:
            yield batch
            continue
        there = set(batch.schema.names)
        columns = [batch.column(f.name) if f.name in there else pa.nulls(len(batch), f.type) for f in schema]
        yield pa.RecordBatch.from_arrays(columns, schema.names)


class _Runs:
    """The rows of one file, as runs of one host."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._runs = (run for batch in batches for run in _split(batch))
        self.host: str | None = None
        self._batch: pa.RecordBatch | None = None
        self._step()

    def take(self) -> pa.RecordBatch:
        batch = self._batch
        self._step()
        return batch

    def _step(self) -> None:
        self.host, self._batch = next(self._runs, (None, None))


def _split(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    hosts = batch.column("host")
    ends = pa.compute.run_end_encode(hosts.indices, run_end_type=pa.int64())
    begin = 0
    for end, word in zip(ends.run_ends.to_pylist(), ends.values.to_pylist(), strict=True):
        yield hosts.dictionary[word].as_py(), batch.slice(begin, end - begin)
        begin = end


# --- Retention: how long rows are kept, by age or size per table; whole hours go, the oldest first.

_FORM = "TABLE=AGE or TABLE=SIZE, such as buckets=7d, full=10GB or all=90d"


@dataclass(frozen=True)
class Keep:
    """What to keep of a table; the default of each limit is none."""

    table: str  # "all": of each
    most_ns: int = 0
    most_bytes: int = 0


def parse_keep(text: str) -> Keep:
    """`buckets=7d`, `full=10GB` → Keep. Raises UsageError."""
    table, _, amount = text.partition("=")
    if not amount or table not in (*SCHEMAS, "all"):
        raise UsageError(f"cannot read {text!r}: write {_FORM}; tables are {', '.join(SCHEMAS)}")
    for parse, limit in ((parse_duration, "most_ns"), (parse_size, "most_bytes")):
        try:
            value = parse(amount)
        except UsageError:
            continue
        if value <= 0:
            break
        return Keep(table, **{limit: value})
    raise UsageError(f"cannot read {text!r}: write {_FORM}")


def too_old(directory: Path, keep: Iterable[Keep], now_s: float | None = None) -> list[Path]:
    """Folders of hours to be dropped; not a table's newest.

    Age counts up to the newest rows of the dataset: a clock that jumps ahead makes nothing old.
    """
    found: dict[Path, None] = {}
    if not keep:
        return []
    partitions = {table: _partitions(directory / table) for table in SCHEMAS}
    ends = [own[-1][0] for own in partitions.values() if own]
    now = min(
        [datetime.fromtimestamp(time.time() if now_s is None else now_s, timezone.utc), *([max(ends)] if ends else [])]
    )
    for rule in keep:
        for table in SCHEMAS if rule.table == "all" else (rule.table,):
            found |= dict.fromkeys(_of_table(partitions[table], rule, now))
    return list(found)


def _of_table(partitions: Sequence[tuple[datetime, Path]], rule: Keep, now: datetime) -> list[Path]:
    """partitions: with the time at which each ends, the oldest first."""
    older = partitions[:-1]
    if rule.most_ns:
        limit = now - timedelta(microseconds=rule.most_ns // 1000)
        return [path for end, path in older if end < limit]
    sizes = [sum(file.stat().st_size for file in path.glob("*.parquet")) for _, path in partitions]
    total, gone = sum(sizes), []
    for (_, path), size in zip(older, sizes, strict=False):
        if total <= rule.most_bytes:
            break
        gone.append(path)
        total -= size
    return gone


def _partitions(table: Path) -> list[tuple[datetime, Path]]:
    found = []
    for path in table.glob("date=*/hour=*"):
        with suppress(ValueError):  # not of ours
            begin = datetime.strptime("/".join(path.parts[-2:]), "date=%Y-%m-%d/hour=%H").replace(tzinfo=timezone.utc)
            found.append((begin + timedelta(hours=1), path))
    return sorted(found)
