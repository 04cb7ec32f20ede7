# SPDX-License-Identifier: Apache-2.0
"""Times and selections as people write them in a notebook, and tables with times that pandas understands."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from netmon.errors import UsageError
from netmon.history.dataset import Window
from netmon.history.frames import plain_words
from netmon.units import parse_time

MOMENTS = (
    *("start_ns", "end_ns", "comm_start_ns", "comm_end_ns", "wait_start_ns", "first_ns", "last_ns"),
    *("bucket_start_ns", "time_ns", "reported_ns", "queued_ns"),
    *("first_transfer_ns", "last_transfer_ns"),
)
"""Columns that hold ns of the UTC epoch; all others that end so are durations."""
_TIMESTAMP = pa.timestamp("ns", "UTC")

Moment = str | int | datetime
Iterations = int | range | slice | Sequence[int | None]


def frame(table: pa.Table) -> pd.DataFrame:
    """Rows as pandas has them: `start_ns` becomes `start` with a time zone, words are words. Durations stay in ns."""
    for index, name in enumerate(table.column_names):
        if name in MOMENTS:
            column = table.column(name)
            moments = pc.if_else(pc.equal(column, 0), None, column).cast(_TIMESTAMP)  # 0: not known
            table = table.set_column(index, name.removesuffix("_ns"), moments)
    return plain_words(table.drop_columns([name for name in ("date",) if name in table.column_names]).to_pandas())


def moment_ns(moment: Moment | None) -> int | None:
    """ISO 8601 (UTC unless it says else), a datetime, a Timestamp or ns → ns of the UTC epoch. Raises UsageError."""
    if moment is None or isinstance(moment, int):
        return moment
    if isinstance(moment, str):
        return parse_time(moment)
    stamp = pd.Timestamp(moment)
    return int((stamp if stamp.tz else stamp.tz_localize("UTC")).as_unit("ns").value)


def window(
    job: str | None,
    host: str | Sequence[str] | None,
    since: Moment | None,
    until: Moment | None,
    iterations: Iterations | None,
) -> Window:
    """What a call asks for. host: one or several. iterations: one, (first, one after the last), a range or a slice.

    Raises UsageError.
    """
    hosts = (host,) if isinstance(host, str) else tuple(host or ())
    return Window(moment_ns(since), moment_ns(until), job, hosts, _span(iterations))


def _span(iterations: Iterations | None) -> tuple[int | None, int | None]:
    if iterations is None:
        return None, None
    if isinstance(iterations, int):
        return iterations, iterations + 1
    ends: Any = (iterations.start, iterations.stop) if isinstance(iterations, range | slice) else tuple(iterations)
    step = getattr(iterations, "step", None)
    if step not in (None, 1) or len(ends) != 2:
        raise UsageError(f"cannot read {iterations!r} as iterations: give one, (10, 20) or range(10, 20)")
    return ends[0], ends[1]
