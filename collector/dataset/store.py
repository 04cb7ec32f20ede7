# SPDX-License-Identifier: Apache-2.0
"""The dataset on disk: Parquet files that are complete or absent."""

import fcntl
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from netmon.errors import DataError
from netmon.records import SCHEMA_VERSION

_LOCK = ".collector.lock"


@dataclass(frozen=True)
class Part:
    """One file to be: where it belongs, and its rows with the metadata in the schema."""

    name: str  # of the dataset's table
    date: str  # YYYY-MM-DD, UTC
    host: str
    stem: str  # part-<session>-…
    rows: pa.Table

    @property
    def path(self) -> Path:
        """Below the dataset's directory."""
        return host_directory(self.name, self.date, self.host) / f"{self.stem}.parquet"


def host_directory(table: str, date: str, host: str) -> Path:
    """The Hive partition of one host, below the dataset's directory; date may be a pattern."""
    return Path(table, f"date={date}", f"host={quote(host, safe='')}")


class Store:
    """One dataset, written by one collector at a time."""

    def __init__(self, directory: Path) -> None:
        """Create the directory where it is missing, and take it. Raises DataError where that cannot be."""
        self.directory = directory
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
        except DataError:
            self._lock.close()
            raise
        for unfinished in directory.glob("*/date=*/host=*/.part-*"):
            unfinished.unlink(missing_ok=True)

    def close(self) -> None:
        """Let others write."""
        self._lock.close()

    def write(self, parts: Sequence[Part]) -> None:
        """Write the parts, all or none; blocks. Raises DataError; what was stored before is not touched."""
        unfinished: list[tuple[Path, Path]] = []
        try:
            for part in parts:
                final = self.directory / part.path
                final.parent.mkdir(parents=True, exist_ok=True)
                temporary = final.with_name(f".{final.name}.{os.getpid()}")
                unfinished.append((temporary, final))
                with temporary.open("wb") as file:
                    pq.write_table(part.rows, file, compression="zstd")
                    file.flush()
                    os.fsync(file.fileno())  # agents forget what is acknowledged: it has to outlive a power cut
            for temporary, final in unfinished:
                temporary.replace(final)
        except (OSError, pa.ArrowException) as error:
            for temporary, _ in unfinished:
                temporary.unlink(missing_ok=True)
            reason = getattr(error, "strerror", None) or str(error)
            raise DataError(
                f"cannot write to {self.directory}: {reason}; rows stay in memory and with the agents until it works"
            ) from None


def _check_schema(directory: Path) -> None:
    """Raise DataError where a table's newest day holds rows of another schema: they cannot be read as one table."""
    for table in sorted(path for path in directory.iterdir() if path.is_dir()):
        newest = max(table.glob("date=*"), default=None)
        part = next(newest.glob("host=*/part-*.parquet"), None) if newest else None
        try:
            metadata = (pq.read_schema(part).metadata or {}) if part else {}
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"cannot continue the dataset in {directory}: {part}: {error}; move it away") from None
        version = metadata.get(b"netmon.schema_version")
        if version is not None and int(version) != SCHEMA_VERSION:
            raise DataError(
                f"cannot continue the dataset in {directory}: its {table.name} have schema version {int(version)}, "
                f"this netmon writes {SCHEMA_VERSION}; choose another --data (`netmon report` and `export` read both)"
            )
