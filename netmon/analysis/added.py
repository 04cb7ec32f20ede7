# SPDX-License-Identifier: Apache-2.0
"""Rows of buckets, added up to coarser ones while they are read: what is held grows with the result only."""

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from netmon.errors import DataError, UsageError
from netmon.units import format_count, format_duration

SUMS = ("packets", "wire_bytes", "payload_bytes")
_COMPACT_ROWS = 1 << 21


def added_up(batches: Iterable[pa.RecordBatch], by: Sequence[str], width_ns: int, most_rows: int) -> pa.Table:
    """Sums of SUMS per combination of `by` and bin of width_ns; in the order of time.

    batches: rows of `buckets`. Columns: by, bucket_start_ns, bucket_ns, those of SUMS that the rows have. Raises
    UsageError for rows that are wider than the bins, DataError where more than most_rows would come.
    """
    key = [*by, "bucket_start_ns"]
    pieces: list[pa.Table] = []
    for batch in batches:
        widest = pc.max(batch["bucket_ns"]).as_py()
        if widest > width_ns:
            raise UsageError(
                f"cannot add up to {format_duration(width_ns)}: rows of {format_duration(widest)} lie there; give a "
                "larger width"
            )
        start = batch["bucket_start_ns"]
        begun = pc.multiply(pc.divide(start, width_ns), width_ns)  # both are positive
        words = {name: _plain(batch[name]) for name in by}
        sums = {name: batch[name] for name in SUMS if name in batch.schema.names}
        pieces.append(_sums(pa.table({**words, "bucket_start_ns": begun, **sums}), key))
        if sum(map(len, pieces)) > _COMPACT_ROWS:
            pieces = [_sums(pa.concat_tables(pieces), key)]
            if len(pieces[0]) > most_rows:
                raise DataError(
                    f"cannot hold more than {format_count(most_rows)} rows: select a time or hosts, or a larger width"
                )
    if not pieces:
        kinds = {**dict.fromkeys(by, pa.string()), **dict.fromkeys(("bucket_start_ns", "bucket_ns", *SUMS), pa.int64())}
        return pa.schema(list(kinds.items())).empty_table()
    whole = _sums(pa.concat_tables(pieces), key).sort_by([(name, "ascending") for name in ("bucket_start_ns", *by)])
    return whole.add_column(len(key), "bucket_ns", pa.repeat(width_ns, len(whole)))


def _sums(table: pa.Table, key: Sequence[str]) -> pa.Table:
    known = [name for name in SUMS if name in table.column_names]
    summed = table.group_by(list(key), use_threads=False).aggregate([(name, "sum") for name in known])
    return summed.rename_columns([name.removesuffix("_sum") for name in summed.column_names]).select([*key, *known])


def _plain(column: pa.Array) -> pa.Array:
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
