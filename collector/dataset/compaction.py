# SPDX-License-Identifier: Apache-2.0
"""The small files of some minutes become one that never changes: when, and how they are merged in little memory.

What is acknowledged has to be on the disk within a second or two, which makes small files. They lie apart (see
netmon.past.RECENT), so that whoever reads the tables without netmon meets no file that goes away.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from collector.dataset.files import ROWS_PER_GROUP, Disk, in_order, writer
from collector.dataset.manifest import StoredFile
from collector.dataset.tables import SCHEMAS

ROLL_S = 300
"""Programs other than netmon see rows that are so old."""

MOST_FILES = 256
"""Of a roll: so many are merged at once."""

_MOST_BYTES = 64 << 20  # of a roll; with the last file some more
_ROWS_AT_ONCE = 1 << 18  # of all files that are merged, in memory


class Rolls:
    """Which file to be each small file belongs to. Used by one thread at a time."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], tuple[str, float]] = {}  # by table and partition: stem, and since when
        self.damaged: set[str] = set()
        """Rolls that cannot be merged: they stay as they are, and no other one waits for them."""

    def of(self, name: str, partition: str, new: Callable[[], str]) -> str:
        """The roll that the next rows of a table's hour go to. new: makes a stem."""
        return self._open.setdefault((name, partition), (new(), time.monotonic()))[0]

    def due(self, files: Iterable[StoredFile], at_once: bool) -> list[StoredFile]:
        """The files of a roll that is closed, so that nothing is added from now on; none: no roll is due.

        files: all that there are. at_once: every roll is due. Rolls of an earlier process are closed.
        """
        rolls: dict[tuple[str, str, str], list[StoredFile]] = defaultdict(list)
        for file in files:
            if file.roll and file.roll not in self.damaged:
                rolls[file.name, file.partition, file.roll].append(file)
        for (name, partition, roll), own in sorted(rolls.items()):
            stem, since = self._open.get((name, partition), ("", 0.0))
            if stem != roll:
                return own
            full = len(own) >= MOST_FILES or sum(file.bytes for file in own) >= _MOST_BYTES
            if at_once or full or time.monotonic() >= since + ROLL_S:
                del self._open[name, partition]
                return own
        return []


def merge_files(disk: Disk, name: str, sources: list[Path], target: Path, go_on: Callable[[], bool]) -> bool:
    """Write the rows of all sources, each ordered by host and time, into one file; False where it has to stop.

    Rows of a host stay together, in row groups that are ordered by host and time. Memory does not grow with the
    sources' size. Raises OSError, pa.ArrowException.
    """
    with ExitStack() as stack:
        groups = _groups(name, _rows(name, sources, stack), go_on)
        first = next(groups, SCHEMAS[name].empty_table())
        with writer(disk, name, target, first, merged=True) as parquet:
            for rows in chain([first], groups):
                if not go_on():
                    return False
                parquet.write_table(rows, row_group_size=2 * ROWS_PER_GROUP)
    return go_on()


def _groups(name: str, batches: Iterator[pa.RecordBatch], go_on: Callable[[], bool]) -> Iterator[pa.Table]:
    """The rows of each row group, as long as it is to go on."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        if not go_on():
            return
        waiting.append(batch)
        if sum(map(len, waiting)) >= ROWS_PER_GROUP:
            yield in_order(name, pa.Table.from_batches(waiting)).cast(SCHEMAS[name])
            waiting = []
    if waiting:
        yield in_order(name, pa.Table.from_batches(waiting)).cast(SCHEMAS[name])


def _rows(name: str, sources: list[Path], stack: ExitStack) -> Iterator[pa.RecordBatch]:
    """All rows, host by host."""
    at_once = max(1024, _ROWS_AT_ONCE // len(sources))
    opened = [stack.enter_context(pq.ParquetFile(path, memory_map=True)) for path in sources]
    batches = [_whole(name, file.iter_batches(at_once, use_threads=False)) for file in opened]
    runs = [_Runs(own) for own in batches]
    while live := [run for run in runs if run.host is not None]:
        host = min(str(run.host) for run in live)
        for run in live:
            while run.host == host:
                yield run.take()


def _whole(name: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """With the columns that the table has got since the file was written, which are null."""
    schema = SCHEMAS[name]
    for batch in batches:
        if batch.schema.names == schema.names:
            yield batch
            continue
        there = set(batch.schema.names)
        columns = [batch.column(f.name) if f.name in there else pa.nulls(len(batch), f.type) for f in schema]
        yield pa.RecordBatch.from_arrays(columns, schema.names)


class _Runs:
    """The rows of one file, as runs of one host."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._runs = (run for batch in batches for run in _split(batch))
        self.host: str | None = None
        self._batch: pa.RecordBatch | None = None
        self._step()

    def take(self) -> pa.RecordBatch:
        """The next run."""
        batch = self._batch
        self._step()
        return batch

    def _step(self) -> None:
        self.host, self._batch = next(self._runs, (None, None))


def _split(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    hosts = batch.column("host")
    ends = pa.compute.run_end_encode(hosts.indices, run_end_type=pa.int64())
    begin = 0
    for end, word in zip(ends.run_ends.to_pylist(), ends.values.to_pylist(), strict=True):
        yield hosts.dictionary[word].as_py(), batch.slice(begin, end - begin)
        begin = end
