# SPDX-License-Identifier: Apache-2.0
"""Whether two datasets have the same rows: each table as a multiset, every column, whatever file a row is in."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    import pandas as pd

TABLES = ("buckets", "flows", "iterations", "ledger", "nic", "sessions")

_CLOCK = ("clock_error_ns", "clock_offset_ns")
LEFT_OUT = {"sessions": _CLOCK, "ledger": _CLOCK, "flows": ("peer_rank",)}
"""What two runs over the same batches may differ in: how well a clock was known when a session was first stored, and

which flows had been stored before their other ends were described.
"""

_MOST_SHOWN = 3


@dataclass(frozen=True)
class TableDifference:
    """rows: of the first. missing: of the first that the second has not; extra: the other way round."""

    rows: int
    missing: int
    extra: int
    shown: Sequence[str] = ()  # a few of those, with their columns

    @property
    def none(self) -> bool:
        """Whether they are the same."""
        return not (self.missing or self.extra)


def compare(one: Path, other: Path, tables: Sequence[str] = TABLES) -> dict[str, TableDifference]:
    """By table; one that neither has is the same. Blocks for a second or two per million rows."""
    return {table: _compare(_rows(one, table), _rows(other, table)) for table in tables}


def _rows(data: Path, name: str) -> "pd.DataFrame":
    parts = [_plain(pq.ParquetFile(path).read()) for path in sorted((data / name).rglob("*.parquet"))]
    rows = pa.concat_tables(parts) if parts else pa.table({})
    frame: pd.DataFrame = rows.select(sorted({*rows.column_names} - {*LEFT_OUT.get(name, ())})).to_pandas()
    return frame


def _plain(table: pa.Table) -> pa.Table:
    """Without dictionaries, and what the files say of themselves."""
    for index, column in enumerate(table.schema):
        if pa.types.is_dictionary(column.type):
            table = table.set_column(index, column.name, table[column.name].cast(column.type.value_type))
    return table.replace_schema_metadata(None)


def _compare(one: "pd.DataFrame", other: "pd.DataFrame") -> TableDifference:
    import pandas as pd

    both = pd.concat([one, other], ignore_index=True)
    kind = np.zeros(len(both), np.int64)
    if len(both):  # equal rows have equal hashes, of 64 bits
        _, kind = np.unique(pd.util.hash_pandas_object(both, index=False).to_numpy(), return_inverse=True)
    kinds = int(kind.max(initial=-1)) + 1
    more = np.bincount(kind[: len(one)], minlength=kinds) - np.bincount(kind[len(one) :], minlength=kinds)
    shown = [
        f"{sign} {_text(both.iloc[row])}"
        for sign, odd in (("-", more > 0), ("+", more < 0))
        for row in np.flatnonzero(odd[kind])[:_MOST_SHOWN]
    ]
    return TableDifference(len(one), int(more[more > 0].sum()), int(-more[more < 0].sum()), shown)


def _text(row: "pd.Series[Any]") -> str:
    return ", ".join(f"{name}={value}" for name, value in row.items())
