# SPDX-License-Identifier: Apache-2.0
"""Load files: a table with the columns start_ns and size_bytes, as Parquet (names in .parquet) or CSV (all others)."""

from pathlib import Path

import numpy as np
import pandas as pd

from netmon.errors import DataError
from netmon.lab.traffic.loads import LOAD
from netmon.records import Table

_PARQUET = ".parquet"
_COLUMNS = list(LOAD.names or ())


def write_load(path: Path, rows: Table, comment: str = "") -> None:
    """Write a load, dtype LOAD. comment: how it was made, one line; kept in a CSV. Raises DataError."""
    frame = pd.DataFrame(rows)
    try:
        if path.suffix == _PARQUET:
            frame.to_parquet(path, index=False, compression="zstd")
        else:
            path.write_text((f"# {comment}\n" if comment else "") + frame.to_csv(index=False))
    except OSError as error:
        raise DataError(f"cannot write a load to {path}: {error.strerror}") from None


def read_load(path: Path) -> Table:
    """A load, dtype LOAD, in order of time. Raises DataError where the file is none, saying what is wrong with it."""
    frame = _read(path)
    if list(frame.columns) != _COLUMNS:
        found = ", ".join(map(str, frame.columns[:4]))
        raise DataError(f"cannot read {path} as a load: its columns are {found}; it takes {' and '.join(_COLUMNS)}")
    if frame.empty:
        raise DataError(f"cannot read {path} as a load: it holds no flow")
    rows = np.empty(len(frame), LOAD)
    for column in _COLUMNS:
        values = frame[column].to_numpy()
        if not np.issubdtype(values.dtype, np.integer):
            raise DataError(f"cannot read {path} as a load: {column} must be whole numbers throughout")
        rows[column] = values
    _check(path, rows)
    return rows


def _read(path: Path) -> pd.DataFrame:
    try:
        return pd.read_parquet(path) if path.suffix == _PARQUET else pd.read_csv(path, comment="#")
    except OSError as error:
        raise DataError(f"cannot read the load {path}: {error.strerror or error}") from None
    except ValueError as error:  # what is neither CSV nor Parquet, of several libraries
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"cannot read {path} as a load: {reason}") from None


def _check(path: Path, rows: Table) -> None:
    late = np.flatnonzero(np.diff(rows["start_ns"]) < 0)
    for row, reason in (
        (np.flatnonzero(rows["start_ns"] < 0), "begins before the load does"),
        (late + 1, "begins before the one above it"),
        (np.flatnonzero(rows["size_bytes"] < 1), "has no bytes"),
    ):
        if len(row):
            raise DataError(f"cannot read {path} as a load: flow {row[0] + 1} {reason}")
