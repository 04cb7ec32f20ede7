# SPDX-License-Identifier: Apache-2.0
"""Many small files of an hour become one: which, and how they are merged in little memory."""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from collector.dataset.files import ROWS_PER_GROUP, Disk, in_order, writer
from collector.dataset.manifest import StoredFile
from collector.dataset.tables import SCHEMAS

AT_ONCE = 256
"""So many files of an hour that is still being written are merged, so that their number stays bounded."""

_QUIET_S = 300  # an hour into which nothing has come for so long is over
_QUIET_FLOWS_S = 1_200  # a session that comes back goes on in files that are not older
_SMALL_BYTES = 64 << 20  # files of an hour that together are not larger become one, merged before or not
_MOST_BYTES = 1 << 30  # of one file
_ROWS_AT_ONCE = 1 << 18  # of all files that are merged, in memory


def due(files: Iterable[StoredFile], open_paths: Collection[str], now_s: float | None = None) -> list[StoredFile]:
    """The files of one table and hour that should become one; none: nothing is due.

    open_paths: not to be touched. now_s: another time than the present (Unix).
    """
    hours: dict[tuple[str, str], list[StoredFile]] = defaultdict(list)
    for file in files:
        if file.name != "sessions" and file.path not in open_paths:
            hours[file.name, file.partition].append(file)
    now = time.time() if now_s is None else now_s
    for (name, _), own in sorted(hours.items()):
        quiet_s = _QUIET_FLOWS_S if name == "flows" else _QUIET_S
        quiet = [file for file in own if file.changed_s < now - quiet_s]
        chosen = _chosen(quiet if name == "flows" else own, over=len(quiet) == len(own) or name == "flows")
        if len(chosen) > 1:
            return chosen
    return []


def _chosen(files: list[StoredFile], over: bool) -> list[StoredFile]:
    small = [file for file in files if not file.generation]
    if not over:
        return sorted(small, key=lambda file: file.changed_s)[:AT_ONCE] if len(small) >= AT_ONCE else []
    together = files if sum(file.bytes for file in files) <= _SMALL_BYTES else small
    chosen: list[StoredFile] = []
    for file in sorted(together, key=lambda file: file.changed_s)[:AT_ONCE]:
        if chosen and sum(f.bytes for f in chosen) + file.bytes > _MOST_BYTES:
            break
        chosen.append(file)
    return chosen


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
    """All rows, host by host; of flows, file by file."""
    at_once = max(1024, _ROWS_AT_ONCE // len(sources))
    opened = [stack.enter_context(pq.ParquetFile(path, memory_map=True)) for path in sources]
    batches = [_whole(name, file.iter_batches(at_once, use_threads=False)) for file in opened]
    if name == "flows":
        for own in batches:
            yield from own
        return
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
