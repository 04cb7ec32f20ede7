# SPDX-License-Identifier: Apache-2.0
"""The files of a dataset: which there are, and opening one that was listed, also after others have taken its place.

A collector makes one file of the small ones of some minutes (see netmon.views.RECENT). The small ones stay for ten
minutes, as do the files of an hour that is not to be kept: whoever lists first and opens later reads every row once.
"""

import fcntl
import stat
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from netmon.errors import DataError
from netmon.views import DROPPED, HOUR_NS, RECENT, WRITER
from netmon.wire.limits import MAX_ITERATION, MAX_MONO_NS, MAX_UTC_NS

_WIDEST_NS = 10_000_000_000  # of a bucket
_TIMES = (-MAX_MONO_NS, MAX_UTC_NS + MAX_MONO_NS)  # of a host's own time, by a clock that may be as wrong as can be
_MOMENTS = ("start_ns", "end_ns", "first_ns", "last_ns", "time_ns", "bucket_start_ns", "reported_ns")
RANGES = {
    **dict.fromkeys((*_MOMENTS, "comm_start_ns", "comm_end_ns", "wait_start_ns", "queued_ns"), _TIMES),
    "bucket_ns": (0, _WIDEST_NS),
    **dict.fromkeys(("rank", "size", "peer_rank"), (-1, 1 << 24)),
    "iteration": (-1, MAX_ITERATION),
}
"""What netmon writes; what is read is counted and laid out by these columns, in memory that grows with them."""

_NUMBERS, _WORDS = ("flow_id", *RANGES), ("host", "session", "interface", "direction", "class", "job", "cause")
_NEEDED = {
    "buckets": ("bucket_start_ns", "wire_bytes"),
    "full": ("bucket_start_ns", "wire_bytes"),
    "flows": ("flow_id",),
    "iterations": ("job", "rank", "iteration", "start_ns", "end_ns"),
    "ledger": ("start_ns", "end_ns"),
    "verdicts": ("job", "start_ns", "end_ns"),
    "sessions": ("interface",),
}


def table_files(data: Path, table: str) -> list[Path]:
    """The table's files by hour, the recent ones of an hour last. Together they have every row once."""
    recent = list((data / RECENT / table).glob("date=*/hour=*/*/*.parquet"))  # before those that they become
    there = list((data / table).glob("date=*/hour=*/*.parquet"))
    rolled = {(*path.parts[-3:-1], path.stem) for path in there}
    return sorted([*there, *(path for path in recent if path.parts[-4:-1] not in rolled)], key=_order)


def has_ended(data: Path) -> bool:
    """Whether nobody writes the dataset any more; False where that is unknown, as of a copy."""
    with suppress(OSError), (data / WRITER).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def hour_of(path: Path) -> tuple[str, str]:
    """The folders that a file's hour is named by: date=…, hour=…"""
    day, hour = _hour(path).parts[-2:]
    return day, hour


def _order(path: Path) -> tuple[tuple[str, str], Path]:
    return hour_of(path), path.relative_to(_hour(path))


def _hour(path: Path) -> Path:
    """The folder of a file's hour, of a table or of its recent files."""
    return path.parent if "=" in path.parent.name else path.parents[1]


def files_of_time(paths: Sequence[Path], since_ns: int, until_ns: int) -> list[Path]:
    """Those that may hold rows which begin in [since, until), UTC, by the folders that they lie in."""
    return [path for path in paths if _may_begin(path, since_ns, until_ns)]


def open_file(path: Path) -> pa.NativeFile:
    """A file that table_files has listed. Raises OSError: FileNotFoundError where it left its place too long ago."""
    for there in (path, path.parents[3] / DROPPED / Path(*path.parts[-4:])):
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(there.stat().st_mode):  # opening a FIFO would wait for ever
                raise OSError("it is no regular file")
            return pa.OSFile(str(there))
    raise FileNotFoundError("it became a part of another file, or was removed, while it was to be read; try again")


def read_footer(path: Path) -> pq.FileMetaData:
    """Of a file that table_files has listed. Raises OSError as open_file does, pa.ArrowException, DataError."""
    with open_file(path) as file:
        footer = pq.read_metadata(file)
    check_schema(path, footer.schema.to_arrow_schema())
    return footer


def check_schema(path: Path, schema: pa.Schema) -> None:
    """Raises DataError where a column is missing or of another kind than netmon writes, whichever version."""
    there = set(schema.names)
    table = _hour(path).parents[1].name
    for name in _NEEDED.get(table, ()):
        if name not in there:
            raise DataError(f"cannot read {path}: it has no column {name}, which the table {table} needs")
    for names, kind, is_kind in ((_NUMBERS, "numbers", _is_number), (_WORDS, "text", _is_text)):
        for name in there.intersection(names):
            if not is_kind(found := schema.field(name).type):
                raise DataError(f"cannot read {path}: its column {name} has the type {found}, not {kind}")


def check_rows(path: Path, batch: pa.RecordBatch) -> None:
    """Raises DataError where a number is one that netmon cannot have written."""
    for name in RANGES.keys() & set(batch.schema.names):
        least, most = RANGES[name]
        ends = pc.min_max(batch.column(name)).as_py()
        for value in (ends["min"], ends["max"]):
            if value is not None and not least <= value <= most:
                raise DataError(f"cannot read {path}: {name} is {value} in one of its rows; no netmon has written it")


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind))


def _is_text(kind: pa.DataType) -> bool:
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(plain) or pa.types.is_large_string(plain) or pa.types.is_null(plain))


def unreadable(path: Path, error: Exception) -> DataError:
    """The error for somebody who needs the file."""
    return DataError(f"cannot read {path}: {first_line(error)}")


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:160].rstrip(".")


def _may_begin(path: Path, since_ns: int, until_ns: int) -> bool:
    """Whether the folder that a file lies in is of a time that overlaps [since, until)."""
    hour = _hour(path)
    day, part = (folder.partition("=")[2] for folder in hour.parts[-2:])
    try:
        begin = datetime.strptime(f"{day} {part}", "%Y-%m-%d %H").replace(tzinfo=timezone.utc)
    except ValueError:
        return True
    begin_ns = int(begin.timestamp()) * 1_000_000_000
    return begin_ns < until_ns and begin_ns + HOUR_NS > since_ns
