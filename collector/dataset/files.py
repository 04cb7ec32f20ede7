# SPDX-License-Identifier: Apache-2.0
"""One file of the dataset: how its rows are ordered, encoded and written so that they outlive a power cut."""

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from collector.dataset.tables import DATASET_VERSION, SCHEMAS, TIMES
from collector.host.rows import COUNTS
from netmon.dl.grouped import ascending, order_by
from netmon.durability import sync_directory, sync_way_to
from netmon.errors import DataError

ROWS_PER_GROUP = 1 << 17
"""About half a megabyte: a host's rows of a minute or two, which statistics let a reader skip."""

_PAGE_BYTES = 1 << 16  # whoever merges many files holds a page of each column of each file
_HOUR_NS = 3_600_000_000_000
_WORDS_WITH_STATISTICS = ("host", "job")  # of all hosts and jobs a new file has some: they tell a reader nothing
_WITH_STATISTICS = (
    "iteration",
    "bucket_start_ns",
    "start_ns",
    "end_ns",
    "first_ns",
    "last_ns",
    "time_ns",
)
_SAMPLED = 1024  # rows
FEW_ROWS = 1024
"""A file of no more is mostly made by beginning to compress each of its columns, which takes zstd longest."""

_HARDER = {
    "iteration": 15
}  # zstd's level, of merged files: written once, at leisure; it takes a quarter off the column
_METADATA = {b"netmon.schema_version": str(DATASET_VERSION).encode()}


class Disk:
    """Waits for the disk where what is acknowledged has to outlive a power cut: agents forget it."""

    def __init__(self, durability: str) -> None:
        """durability: one of netmon.durability.DURABILITIES."""
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
    """By host and time; flows keep the order of their appearance."""
    if name in ("flows", "sessions") or len(rows) < 2:
        return rows
    rows = rows.unify_dictionaries()
    rank = host_ranks(rows["host"])
    time = rows[TIMES[name]].to_numpy()
    by = (rank, time, rows["flow_id"].to_numpy()) if "flow_id" in rows.column_names else (rank, time)
    return rows if ascending(*by) else rows.take(pa.array(order_by(*by)))


def host_ranks(hosts: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Of a dictionary column whose dictionaries are unified: the place of each row's word in their order."""
    chunks = hosts.chunks
    words = chunks[0].dictionary.to_pylist()
    index = np.empty(len(words), np.int64)
    index[np.argsort(np.array(words, object), kind="stable")] = np.arange(len(words))
    codes = np.concatenate([chunk.indices.to_numpy() for chunk in chunks])
    ranks: npt.NDArray[np.int64] = index[codes]
    return ranks


@contextmanager
def writer(disk: Disk, name: str, path: Path, rows: pa.Table, merged: bool = False) -> Iterator[pq.ParquetWriter]:
    """Opens a file to write row groups into; it is synced when it is closed. rows: some of those that will be in it.

    merged: it is of many hosts' rows of a long time: its row groups differ in what they hold. What is not and has few
    rows is compressed by snappy, which begins at once, and by zstd when it is merged. Raises OSError,
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
    if name in ("iterations", "ledger", "nic", "transport", "host"):
        return [field.name for field in SCHEMAS[name] if pa.types.is_int64(field.type)]
    if name not in ("buckets", "full"):
        return [TIMES[name]]
    return [TIMES[name], *(column for column in COUNTS if _unlike(rows[column]))]


def _unlike(column: pa.ChunkedArray) -> bool:
    """Whether most of a column's numbers differ from each other, by a few of them."""
    some = column.take(pa.array(np.linspace(0, len(column) - 1, min(len(column), _SAMPLED)).astype(np.int64)))
    return len(some) >= _SAMPLED and len(some.unique()) > len(some) / 2


def write_file(disk: Disk, name: str, path: Path, rows: pa.Table) -> None:
    """Write a small file. Raises OSError, pa.ArrowException."""
    rows = rows if rows.schema.equals(SCHEMAS[name]) else rows.cast(SCHEMAS[name])
    with writer(disk, name, path, rows) as parquet:
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
