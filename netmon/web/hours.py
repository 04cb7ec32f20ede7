# SPDX-License-Identifier: Apache-2.0
"""One hour of a dataset as a page needs it: bytes by host and class on a grid, and iterations."""

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from netmon.errors import DataError
from netmon.history.dataset import leave_out, open_table, stream
from netmon.history.files import files_of_time, read_footer, table_files
from netmon.past import HOUR_NS
from netmon.web.source import JOB, RANK, SERIES, STEP, Lane, RowReader, by_lane, in_bins, numbers, row_columns

WIDTHS_NS = (1_000_000, 10_000_000, 100_000_000, 1_000_000_000, 10_000_000_000)
_MOST_CELLS = 16_000_000  # of 4 bytes
STEP_COLUMNS = (
    "host",
    "job",
    "rank",
    "iteration",
    "start_ns",
    "comm_start_ns",
    "comm_end_ns",
    "end_ns",
    "exposed_ns",
    "node_shared",
)
"""Of the table iterations, that `step_rows` reads."""

_NEVER = -1


class Hour:
    """Of the rows that begin in it. `read` is one thread's; the others see what has been read so far."""

    def __init__(
        self, data: Path, begin_ns: int, hosts: Sequence[str], jobs: Sequence[str], lanes: Sequence[Lane]
    ) -> None:
        """Nothing is read yet. hosts, jobs: in the order of their numbers; lanes: as the catalogue has them."""
        self.begin_ns = begin_ns
        self.rows, self.read_rows, self.done = 0, 0, False
        self._data, self._hosts, self._jobs = data, list(hosts), list(jobs)
        index = {job: number for number, job in enumerate(jobs)}
        self._lanes = [
            (index[lane.job], lane.rank if lane.kind == RANK else -1) if lane.kind in (JOB, RANK) else (_NEVER, 0)
            for lane in lanes
        ]
        self.grid = (begin_ns, self._width_ns())
        self._bytes = np.zeros((len(hosts), SERIES, HOUR_NS // self.grid[1]), np.float32)
        self._paths: dict[str, set[Path]] = {"buckets": set(), "iterations": set()}
        self._pieces: list[npt.NDArray[np.void]] = []
        self.steps = by_lane(np.zeros(0, STEP), self._lanes)
        self._anew = False  # a read has failed in the middle
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """Bytes of memory."""
        return int(self._bytes.nbytes + sum(piece.nbytes for piece in self._pieces) * 2)

    @property
    def wire_bytes(self) -> npt.NDArray[np.float32]:
        """(hosts, SERIES, cells) on `grid`."""
        return self._bytes

    @property
    def first_ns(self) -> int:
        """Start of its first iteration; 0: it has none."""
        return min((int(piece["start_ns"].min()) for piece in self._pieces if len(piece)), default=0)

    def read(self) -> bool:
        """Read the files that are new, or all where others hold the rows of one that has been read; blocks.

        Returns whether there were any. Raises DataError; the hour is read anew then.
        """
        with self._lock:
            files = {table: self._files(table) for table in self._paths}
            if self._anew or any(known - set(files[table]) for table, known in self._paths.items()):
                self._forget()
            new = {table: [path for path in files[table] if path not in known] for table, known in self._paths.items()}
            self._anew = True
            for table, paths in new.items():
                self._paths[table] |= set(paths)
            self.rows += sum(_rows_in(path) for path in new["buckets"])
            if new["iterations"]:
                self._read_steps(new["iterations"])
            if new["buckets"]:
                self._read_rows(new["buckets"])
            self.done, self._anew = True, False
            return any(new.values())

    def _forget(self) -> None:
        self.rows, self.read_rows, self.done = 0, 0, False
        self._bytes = np.zeros_like(self._bytes)
        self._paths = {table: set() for table in self._paths}
        self._pieces = []
        self.steps = by_lane(np.zeros(0, STEP), self._lanes)

    def _files(self, table: str) -> list[Path]:
        return files_of_time(table_files(self._data, table), self.begin_ns, self.begin_ns + HOUR_NS)

    def _width_ns(self) -> int:
        cells = len(self._hosts) * SERIES
        return next((width for width in WIDTHS_NS if cells * HOUR_NS // width <= _MOST_CELLS), WIDTHS_NS[-1])

    def _read_rows(self, paths: Sequence[Path]) -> None:
        reader, (begin, width) = RowReader(self._hosts), self.grid
        count, cells = len(self._hosts) * SERIES, HOUR_NS // self.grid[1]
        table = open_table(self._data, "buckets", paths=paths)
        for batch in stream(table, row_columns(table.schema), None, leave_out):
            series, start, length, wire = reader.read(batch)
            self.read_rows += len(start)
            inside = (start >= begin) & (start < begin + HOUR_NS)
            if not inside.any():
                continue
            # Only the part of the grid that the batch touches: it is short, and the grid is long.
            low = (int(start[inside].min()) - begin) // width
            high = min(cells, (int((start + length)[inside].max()) - begin) // width + 1)
            of = count, begin + low * width, width, high - low
            found = in_bins(series[inside], start[inside], length[inside], wire[inside], of)
            self._bytes[:, :, low:high] += found.reshape(len(self._hosts), SERIES, -1).astype(np.float32)

    def _read_steps(self, paths: Sequence[Path]) -> None:
        table = open_table(self._data, "iterations", paths=paths)
        known = [name for name in STEP_COLUMNS if name in table.schema.names]
        for batch in stream(table, known, None, leave_out):
            steps = step_rows(batch, self._hosts, self._jobs)
            inside = (steps["start_ns"] >= self.begin_ns) & (steps["start_ns"] < self.begin_ns + HOUR_NS)
            self._pieces.append(steps[inside])
        self.steps = by_lane(np.concatenate([np.zeros(0, STEP), *self._pieces]), self._lanes)


def step_rows(batch: pa.RecordBatch, hosts: Sequence[str], jobs: Sequence[str]) -> npt.NDArray[np.void]:
    """Rows of the table iterations as STEP; those of other hosts or jobs are left out."""
    rows = np.zeros(batch.num_rows, STEP)
    rows["host"] = numbers(batch.column("host"), {host: number for number, host in enumerate(hosts)})
    rows["job"] = numbers(batch.column("job"), {job: number for number, job in enumerate(jobs)})
    there = set(batch.schema.names)
    for name, column in {
        "rank": "rank",
        "number": "iteration",
        **{n: n for n in STEP.names or () if n.endswith("_ns")},
    }.items():
        if column in there:
            rows[name] = batch.column(column).fill_null(0).to_numpy(zero_copy_only=False)
    if "node_shared" in there:
        rows["shared"] = batch.column("node_shared").fill_null(True).to_numpy(zero_copy_only=False)
    if "exposed_ns" in there:
        exposed = batch.column("exposed_ns").fill_null(-1).to_numpy(zero_copy_only=False)
        rows["wait_start_ns"] = np.where(exposed >= 0, rows["comm_end_ns"] - exposed, 0)
    return rows[(rows["host"] >= 0) & (rows["job"] >= 0)]


def _rows_in(path: Path) -> int:
    try:
        return int(read_footer(path).num_rows)
    except (OSError, pa.ArrowException):
        return 0


def span(data: Path, table: str, time: str) -> tuple[int, int]:
    """The least and the greatest time in the first and last hours of a table, by their files. Raises DataError."""
    paths = table_files(data, table)
    if not paths:
        raise DataError(f"cannot show {data}: it holds no row of {table} yet")
    ends = {paths[0].parent, paths[-1].parent}
    low, high = 1 << 62, 0
    for path in (path for path in paths if path.parent in ends):
        try:
            footer = read_footer(path)
        except (OSError, pa.ArrowException):
            continue  # it is damaged
        column = footer.schema.names.index(time) if time in footer.schema.names else -1
        for group in range(footer.num_row_groups):
            statistics = footer.row_group(group).column(column).statistics if column >= 0 else None
            if statistics is not None and statistics.has_min_max:
                low, high = min(low, statistics.min), max(high, statistics.max)
    if not high:
        raise DataError(f"cannot show {data}: the files of {table} do not tell which time they are of")
    return low, high
