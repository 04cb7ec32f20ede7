# SPDX-License-Identifier: Apache-2.0
"""The files of a dataset: which there are, and opening one that was listed, also after others have taken its place.

A collector merges the files of an hour by exchanging its folder at once: who lists it finds either the old files or the
new one. What has left its place can be opened elsewhere for some minutes, so that whoever lists first and opens later
reads every row once.
"""

import stat
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from netmon.errors import DataError
from netmon.past import HOUR_NS, replaced_path


def table_files(data: Path, table: str) -> list[Path]:
    """The table's files by day: of an hour, or of a host as earlier versions wrote them."""
    return sorted(path for kind in ("hour", "host") for path in (data / table).glob(f"date=*/{kind}=*/*.parquet"))


def files_of_time(paths: Sequence[Path], since_ns: int, until_ns: int) -> list[Path]:
    """Those that may hold rows which begin in [since, until), UTC, by the folders that they lie in."""
    return [path for path in paths if _may_begin(path, since_ns, until_ns)]


def open_file(path: Path) -> pa.NativeFile:
    """A file that table_files has listed. Raises OSError: FileNotFoundError where it left its place too long ago."""
    for there in (path, replaced_path(path)):
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(there.stat().st_mode):  # opening a FIFO would wait for ever
                raise OSError("it is no regular file")
            return pa.OSFile(str(there))
    raise FileNotFoundError("it was merged into another file, or removed, while it was to be read; try again")


def read_footer(path: Path) -> pq.FileMetaData:
    """Of a file that table_files has listed. Raises OSError as open_file does, and pa.ArrowException."""
    with open_file(path) as file:
        return pq.read_metadata(file)


def unreadable(path: Path, error: Exception) -> DataError:
    """The error for somebody who needs the file."""
    return DataError(f"cannot read {path}: {first_line(error)}")


def first_line(error: Exception) -> str:
    """What went wrong, on one line."""
    return (str(error).splitlines() or [type(error).__name__])[0][:160].rstrip(".")


def _may_begin(path: Path, since_ns: int, until_ns: int) -> bool:
    """Whether the folder that a file lies in is of a time that overlaps [since, until)."""
    day, part = (folder.partition("=")[2] for folder in path.parts[-3:-1])
    kind = path.parts[-2].partition("=")[0]
    try:
        begin = datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=timezone.utc)
        hours = (int(part), 1) if kind == "hour" else (0, 24)
    except ValueError:
        return True
    begin_ns = int(begin.timestamp()) * 1_000_000_000 + hours[0] * HOUR_NS
    return begin_ns < until_ns and begin_ns + hours[1] * HOUR_NS > since_ns
