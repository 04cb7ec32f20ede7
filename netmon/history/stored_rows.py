# SPDX-License-Identifier: Apache-2.0
"""Rows of a time out of a dataset on this machine; little of it is read."""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from netmon.errors import DataError
from netmon.history.dataset import all_of, known_columns, leave_out, open_table, stream
from netmon.history.files import has_ended, hour_of, open_file, table_files
from netmon.past import HOUR_NS, RowQuery
from netmon.views import RankTimes, Verdict

WIDEST_NS = 1_000_000_000
"""A row's bucket is not wider."""

_TIMES = {
    "iterations": ("start_ns", "end_ns", HOUR_NS),
    "verdicts": ("start_ns", "end_ns", HOUR_NS),
    "collectives": ("start_ns", "end_ns", HOUR_NS),
    "ledger": ("start_ns", "end_ns", HOUR_NS // 60),
    "buckets": ("bucket_start_ns", "", WIDEST_NS),
    "full": ("bucket_start_ns", "", WIDEST_NS),
}
"""Where a row begins and ends, and how long it is at most."""


class StoredRows:
    def __init__(self, data: Path) -> None:
        self.name = str(data)
        self._data = data
        self._judged: tuple[int, Sequence[Verdict]] = 0, ()  # up to which step

    def newest_ns(self) -> int:
        """See Rows; only the newest hour is looked at. Raises DataError."""
        open_table(self._data, "iterations")  # or says why there is none
        paths = table_files(self._data, "iterations")
        ends = [end for path in paths if hour_of(path) == hour_of(paths[-1]) and (end := _newest(path))]
        if ends:
            return max(ends)
        raise DataError(f"cannot go back in {self._data}: its newest files hold no iteration")

    def written(self) -> bool:
        return not has_ended(self._data)

    def batches(self, wanted: RowQuery) -> Iterator[pa.RecordBatch]:
        """See Rows. A file that is damaged is left out. Raises DataError where there is no dataset."""
        begin, end, longest = _TIMES.get(wanted.table, ("", "", 0))
        span = (wanted.since_ns - longest, wanted.until_ns) if begin else None
        if self._data.is_dir() and not table_files(self._data, wanted.table):
            return
        found = open_table(self._data, wanted.table, span)
        conditions = []
        for column, values in wanted.among.items():
            if column in found.schema.names:
                kind = found.schema.field(column).type
                plain = kind.value_type if pa.types.is_dictionary(kind) else kind
                conditions.append(ds.field(column).isin(pa.array(values, plain)))
        if begin:
            conditions.append(ds.field(begin) < wanted.until_ns)
            over = ds.field(end) > wanted.since_ns if end else ds.field(begin) >= wanted.since_ns - longest
            conditions.append(over)
        yield from stream(found, known_columns(found, wanted.columns) or None, all_of(conditions), leave_out)

    def judged(self, since_ns: int) -> Sequence[Verdict]:
        """See Rows. None while somebody writes: they would all be made anew again and again."""
        from netmon.dl.verdict.incidents import LATELY_NS
        from netmon.history.judging import ALWAYS, stored_verdicts  # as in explained

        newest_ns = self.newest_ns()
        if table_files(self._data, "verdicts") or (self.written() and time.time_ns() - newest_ns < LATELY_NS):
            return ()
        if self._judged[0] != newest_ns:
            self._judged = newest_ns, stored_verdicts(self._data, within_ns=(since_ns, ALWAYS[1]))
        return self._judged[1]

    def explained(self, job: str, iteration: int) -> Sequence[tuple[Verdict, Sequence[RankTimes]]]:
        from netmon.history.judging import explained  # much, for those who only read rows

        try:
            return list(explained(self._data, job, iteration))
        except DataError:
            return ()


def _newest(path: Path) -> int | None:
    with suppress(OSError, pa.ArrowException), open_file(path) as file:  # or it is damaged
        return pc.max(pq.ParquetFile(file).read(["end_ns"])["end_ns"]).as_py()  # type: ignore[no-any-return]
    return None
