# SPDX-License-Identifier: Apache-2.0
"""Which rows of a table are wanted: by time, job, hosts and iterations, so that few files are read."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from netmon.errors import NoRowsError, UsageError
from netmon.history.dataset import all_of, open_table, stream

FOR_EVER = 1 << 62
_AROUND_NS = 60_000_000_000  # clocks are compared again and again: a row is not far from where it was
# A row lies in a time span if it begins before the span's end and ends after its start.
_SPANS = {
    "buckets": ("bucket_start_ns", "bucket_start_ns"),
    "full": ("bucket_start_ns", "bucket_start_ns"),
    "flows": ("first_ns", "last_ns"),
    "iterations": ("start_ns", "end_ns"),
    "ledger": ("start_ns", "end_ns"),
    "nic": ("time_ns", "time_ns"),
    "transport": ("start_ns", "end_ns"),
    "host": ("start_ns", "end_ns"),
    "verdicts": ("start_ns", "end_ns"),
}
TABLES = tuple(_SPANS)


@dataclass(frozen=True)
class Window:
    """What is wanted of a dataset. Empty: all."""

    since_ns: int | None = None  # UTC epoch
    until_ns: int | None = None
    job: str | None = None  # by what its ranks have in common
    hosts: tuple[str, ...] = ()
    iterations: tuple[int | None, int | None] = (None, None)  # the first, and the one after the last


def rows_within(window: Window, table: str, columns: Sequence[str]) -> ds.Expression | None:
    """The window as a condition on the rows of a table; None: every row.

    columns: that the table has. Raises UsageError where it has none to ask.
    """
    restricted = {
        "job": window.job is not None,
        "iteration": window.iterations != (None, None),
        "host": bool(window.hosts),
    }
    for column, wanted in restricted.items():
        if wanted and column not in columns:
            raise UsageError(f"cannot select rows of {table} by {column}: the table has no such column")
    begins, ends = (ds.field(column) for column in _SPANS[table])
    first, last = window.iterations
    return all_of(
        [
            *([ds.field("job") == window.job] if window.job is not None else []),
            *([ds.field("host").isin(window.hosts)] if window.hosts else []),
            *([ds.field("iteration") >= (first or 0)] if restricted["iteration"] else []),
            *([ds.field("iteration") < last] if last is not None else []),
            *([ends >= window.since_ns] if window.since_ns is not None else []),
            *([begins < window.until_ns] if window.until_ns is not None else []),
        ]
    )


def open_rows(data: Path, table: str, window: Window) -> tuple[ds.Dataset, ds.Expression | None]:
    """The files of a table that may hold rows of the window, and the condition on these. Raises DataError, UsageError.

    A job's buckets lie within its iterations, whose table is small.
    """
    since = window.since_ns if window.since_ns is not None and table != "flows" else 0
    until = window.until_ns if window.until_ns is not None else FOR_EVER
    if table == "buckets" and (window.job is not None or window.iterations != (None, None)):
        since, until = _of_iterations(data, window, since, until)
    files = open_table(data, table, (max(0, since - _AROUND_NS), until + _AROUND_NS))
    return files, rows_within(window, table, files.schema.names)


def _of_iterations(data: Path, window: Window, since: int, until: int) -> tuple[int, int]:
    try:
        iterations = open_table(data, "iterations")
    except NoRowsError:
        return since, until
    condition = rows_within(replace(window, hosts=()), "iterations", iterations.schema.names)
    batches = list(stream(iterations, ["start_ns", "end_ns"], condition))
    if not batches:
        return since, until
    rows = pa.Table.from_batches(batches)
    return max(since, pc.min(rows["start_ns"]).as_py()), min(until, pc.max(rows["end_ns"]).as_py())
