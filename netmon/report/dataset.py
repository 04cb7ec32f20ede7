# SPDX-License-Identifier: Apache-2.0
"""Opening the dataset that a collector has written."""

from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds

from netmon.errors import DataError

TABLES = ("buckets", "flows", "iterations", "ledger")
_PARTITIONS = ds.partitioning(pa.schema([("date", pa.string()), ("host", pa.string())]), flavor="hive")


def open_table(data: Path, table: str) -> ds.Dataset:
    """The table as a lazy pyarrow dataset, `date` and `host` from the path. Raises DataError where there is none."""
    if not data.is_dir():
        raise DataError(f"cannot read {data}: no such directory; give the --data of a collector")
    directory = data / table
    if not any(directory.glob("date=*/host=*/*.parquet")):
        raise DataError(f"cannot read {table} in {data}: the dataset holds no row of it yet")
    try:
        return ds.dataset(directory, format="parquet", partitioning=_PARTITIONS)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"cannot read {table} in {data}: {error}") from None
