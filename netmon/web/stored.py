# SPDX-License-Identifier: Apache-2.0
"""A page of a dataset, also of one that a collector is writing: hours are read alongside, as somebody looks at them."""

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds

from netmon.dl.classify import ring_bytes
from netmon.dl.sharing.advice_text import called, document
from netmon.dl.verdict.incidents import LATELY_NS
from netmon.dl.verdict.verdict_text import renamed
from netmon.errors import DataError, NetmonError
from netmon.history.advice import advice
from netmon.history.dataset import (
    Window,
    leave_out,
    names_of,
    not_understood,
    open_table,
    read_rows,
    stream,
    with_names,
)
from netmon.history.files import files_of_time, read_footer, table_files
from netmon.history.judging import explained, stored_verdicts
from netmon.history.past import StoredRows
from netmon.history.transfers import pairs_of
from netmon.views import HOUR_NS, RankPair, RankTimes, Rows, Verdict
from netmon.web.source import (
    JOB,
    RANK,
    SERIES,
    STEP,
    Catalogue,
    Floats,
    Lane,
    Lanes,
    Rates,
    RowReader,
    State,
    arranged,
    by_lane,
    in_bins,
    nearest,
    numbers,
    resampled,
    row_columns,
)

# --- One hour of a dataset as a page needs it: bytes by host and class on a grid, and iterations.

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
        raise DataError(f"cannot show {data}: the files of {table} do not show which time they are of")
    return low, high


# --- A page of a dataset, also of one that a collector is writing: hours are read alongside, as somebody looks at
# them.

_log = logging.getLogger(__name__)

# --- Which hosts, jobs and ranks a dataset is of: read from its small tables, of its last day.

_DAY_NS = 86_400_000_000_000
_RANKS = ["job", "rank", "host", "size", "parameters", "gradient_bytes", "job_name"]


def read_catalogue(data: Path, generation: int, known: tuple[int, int] | None = None) -> Catalogue:
    """Blocks. known: begin and end, where they have been read already. Raises DataError where there is nothing."""
    if not data.is_dir():
        raise DataError(f"cannot show {data}: no such directory; give the --data of a collector")
    begin, end = known or span(data, "buckets", "bucket_start_ns")
    ranks = _ranks(data, end - _DAY_NS, end)
    capacity = _capacity(data)
    triples = [
        (str(job), int(rank), str(host)) for job, rank, host in ranks[["job", "rank", "host"]].itertuples(index=False)
    ]
    called = names_of(ranks)
    jobs = sorted({job for job, _, _ in triples})
    return Catalogue(
        lanes=arranged([one for one in triples if one[1] >= 0], set(capacity)),
        begin_ns=begin,
        end_ns=end,
        capacity_bps=capacity,
        job_names={job: called.get(job, job) for job in jobs},
        not_understood=not_understood(data),
        theory={str(job): _theory(own) for job, own in ranks.groupby("job")},
        generation=generation,
    )


def _ranks(data: Path, begin_ns: int, end_ns: int) -> pd.DataFrame:
    """One row of each rank, with the payload that it sent in its iterations (median of the batches' means)."""
    try:
        table = open_table(data, "iterations", (begin_ns, end_ns))
    except DataError:
        return pd.DataFrame(columns=[*_RANKS, "sent"])
    known = [name for name in _RANKS if name in table.schema.names]
    pieces = []
    for batch in stream(table, [*known, "dl_tx_bytes"], None, leave_out):
        found = pa.Table.from_batches([batch]).group_by(known).aggregate([("dl_tx_bytes", "mean")])
        pieces.append(found.to_pandas().rename(columns={"dl_tx_bytes_mean": "sent"}))
    frame = pd.concat(pieces, ignore_index=True) if pieces else pd.DataFrame()
    words = [name for name in ("job", "host", "job_name") if name in frame]
    frame = frame.astype(dict.fromkeys(words, str)).reindex(columns=[*_RANKS, "sent"])
    frame = frame[frame["job"].fillna("") != ""]
    return frame.groupby(["job", "rank", "host"], as_index=False).agg(
        {**dict.fromkeys(["size", "parameters", "gradient_bytes", "job_name"], "last"), "sent": "median"}
    )


def _theory(ranks: pd.DataFrame) -> tuple[float, float]:
    """Payload bytes that a rank sends in an iteration: measured, and by equation 3.1; nan: not known."""
    size = int(max(ranks["rank"].nunique(), ranks["size"].fillna(0).max()))
    parameters, gradients = (int(ranks[name].fillna(0).max()) for name in ("parameters", "gradient_bytes"))
    return float(ranks["sent"].median()), ring_bytes(size, parameters, gradients)


def _capacity(data: Path) -> dict[str, float]:
    """Of each host that has had a session, one direction of all its interfaces; 0: not known."""
    rows = read_rows(data, "sessions", ["host", "interface", "capacity_bps"])
    last = rows.drop_duplicates(["host", "interface"], keep="last")
    return {str(host): float(value) for host, value in last.groupby("host")["capacity_bps"].sum().items()}


# --- Details that are read from a dataset on demand: of an iteration, of what could be done.

_SECONDS = 30
_MOST_JOBS = 16  # that are compared with each other
_AROUND_NS = 1_000_000_000


def explain(data: Path, job: str, iteration: int, end_ns: int) -> tuple[Verdict, Sequence[RankTimes]]:
    """Judged now, whether it was slow or not. Raises DataError."""
    return min(explained(data, job, iteration), key=lambda one: abs(one[0].end_ns - end_ns))


def advise(data: Path, names: Mapping[str, str]) -> dict[str, Any]:
    """On the last half minute, jobs called what people call them. Raises DataError."""
    return called(document(advice(data, _SECONDS, most=_MOST_JOBS), names))


# --- stored


_LONGEST_NS = 300_000_000_000  # an iteration, that may have begun in the hour before
_MOST_ROWS = 6_000_000  # that are read for one answer
_MOST_BYTES = 1 << 29  # of hours that are in memory
_POLL_S = 1.0
_JUDGE_EVERY_S = 10.0
_PAIRS_NS = 10_000_000_000  # before the end: what ranks send each other


class Stored:
    """One dataset. A thread of its own reads hours, and looks for new files."""

    synthetic = False

    def __init__(self, data: Path) -> None:
        """Read what there is, but no rows; blocks. Raises DataError where there is nothing."""
        self.title = data.resolve().name
        self._data, self._rows = data, StoredRows(data)
        self._catalogue, self._generation = read_catalogue(data, 0), 0
        self._hours: dict[int, Hour] = {}
        self._wanted: list[int] = []
        self._verdicts: list[Verdict] = []
        self._judged_s, self._judged_of = 0.0, -1
        self._pairs: dict[str, tuple[RankPair, ...]] = {}
        self._trouble, self._written = "", self._rows.written()
        self._changed, self._over = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self.hour(self._catalogue.end_ns)
        self._thread = threading.Thread(target=self._read_on, name=f"reading {data}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; blocks until it has read what it is reading."""
        self._over.set()
        self._changed.set()
        self._thread.join()

    def state(self) -> State:
        hours = list(self._hours.values())
        rows, read = sum(hour.rows for hour in hours), sum(hour.read_rows for hour in hours)
        waiting = any(not hour.done for hour in hours)
        return State(
            generation=self._catalogue.generation,
            end_ns=self._catalogue.end_ns,
            live=self._written and time.time_ns() - self._catalogue.end_ns < LATELY_NS,
            verdicts=len(self._verdicts),
            trouble=self._trouble,
            reading=min(0.99, read / rows if rows else 0.0) if waiting else 1.0,
            pairs=self._pairs,
        )

    def catalogue(self) -> Catalogue:
        return self._catalogue

    def rates(self, hosts: Sequence[str], begin_ns: int, width_ns: int, bins: int, full: bool) -> Rates:
        """From the hours' grids; where bins are finer and the rows are few enough, from the rows."""
        end_ns = begin_ns + width_ns * bins
        hours = [self.hour(at) for at in range(begin_ns // HOUR_NS * HOUR_NS, end_ns, HOUR_NS) if self._holds(at)]
        pending = any(not hour.done for hour in hours)
        coarsest = max((hour.grid[1] for hour in hours), default=width_ns)
        rows = sum(hour.rows * (end_ns - begin_ns + _AROUND_NS) / HOUR_NS for hour in hours)
        if width_ns < coarsest and (not rows or rows < _MOST_ROWS):
            found = self._from_rows(hosts, begin_ns, width_ns, bins)
            if found is not None:
                return found
        total = Rates.nothing(len(hosts), bins).wire_bytes
        index = {host: number for number, host in enumerate(hour_hosts(self._catalogue))}
        numbers = [index[host] for host in hosts]
        for hour in hours:
            total += resampled(hour.wire_bytes[numbers], hour.grid, begin_ns, width_ns, bins)
        return Rates(total, coarsest, pending)

    def totals(self, hosts: Sequence[str], begin_ns: int, width_ns: int, bins: int) -> Floats:
        """Of the hours' grids; of all hosts, whichever are named."""
        end_ns = begin_ns + width_ns * bins
        total = np.zeros((SERIES, bins))
        for at in range(begin_ns // HOUR_NS * HOUR_NS, end_ns, HOUR_NS):
            if self._holds(at):
                hour = self.hour(at)
                total += resampled(hour.wire_bytes.sum(axis=0), hour.grid, begin_ns, width_ns, bins)
        return total

    def steps(self, begin_ns: int, end_ns: int) -> tuple[list[Lanes], bool]:
        first = (begin_ns - _LONGEST_NS) // HOUR_NS * HOUR_NS
        hours = [self.hour(at) for at in range(first, end_ns, HOUR_NS) if self._holds(at)]
        return [hour.steps for hour in hours if len(hour.steps.number)], any(not hour.done for hour in hours)

    def verdicts(self) -> list[Verdict]:
        """As the collector stored them, or as they are judged now."""
        return self._verdicts

    def explain(self, job: str, iteration: int, end_ns: int) -> tuple[Verdict, Sequence[RankTimes]]:
        """As the collector stored it, else judged now. Raises DataError."""
        names = self._catalogue.job_names
        known = nearest(self._verdicts, names.get(job, job), iteration, end_ns)
        if known is not None and known.ranks and abs(known.end_ns - end_ns) < known.duration_ns:
            return known, known.ranks
        verdict, ranks = explain(self._data, job, iteration, end_ns)
        answer = renamed(replace(verdict, ranks=tuple(ranks)), names)
        return answer, answer.ranks

    def advice(self) -> dict[str, Any]:
        """On the last half minute. Raises DataError where there is nothing to go by."""
        return advise(self._data, self._catalogue.job_names)

    def rows(self) -> Rows:
        return self._rows

    def hour(self, at_ns: int) -> Hour:
        """The hour of a time, which is read as soon as there is time for it."""
        begin = at_ns // HOUR_NS * HOUR_NS
        with self._lock:
            hour = self._hours.pop(begin, None)
            if hour is None:
                known = self._catalogue
                hour = Hour(self._data, begin, hour_hosts(known), list(known.job_names), known.lanes)
                self._changed.set()
            self._hours[begin] = hour  # the one that was requested last is last
            while len(self._hours) > 1 and sum(one.size for one in self._hours.values()) > _MOST_BYTES:
                del self._hours[next(iter(self._hours))]
        return hour

    def _holds(self, at_ns: int) -> bool:
        known = self._catalogue
        return known.begin_ns // HOUR_NS * HOUR_NS <= at_ns <= known.end_ns

    def _from_rows(self, hosts: Sequence[str], begin_ns: int, width_ns: int, bins: int) -> Rates | None:
        end_ns = begin_ns + width_ns * bins
        total, widest = self._binned("buckets", hosts, begin_ns, width_ns, bins)
        if table_files(self._data, "full"):
            fine, finest = self._binned("full", hosts, begin_ns, width_ns, bins)
            if 0 < finest < widest and end_ns - begin_ns < HOUR_NS:
                # Where there is full resolution it says the same bytes once more, and better.
                there = fine.sum(axis=1) > 0
                for number in there.any(axis=1).nonzero()[0].tolist():
                    at = there[number].nonzero()[0]
                    total[number, :, at[0] : at[-1] + 1] = fine[number, :, at[0] : at[-1] + 1]
                widest = finest
        return Rates(total, max(widest, width_ns))

    def _binned(self, table: str, hosts: Sequence[str], begin_ns: int, width_ns: int, bins: int) -> tuple[Any, int]:
        end_ns, widest, reader = begin_ns + width_ns * bins, 0, RowReader(hosts)
        total = Rates.nothing(len(hosts), bins).wire_bytes
        start = ds.field("bucket_start_ns")
        condition = (start >= begin_ns - _AROUND_NS) & (start < end_ns) & ds.field("host").isin(list(hosts))
        rows = open_table(self._data, table, (begin_ns - _AROUND_NS, end_ns))
        for batch in stream(rows, row_columns(rows.schema), condition, leave_out):
            series, begins, length, wire = reader.read(batch)
            found = in_bins(series, begins, length, wire, (len(hosts) * SERIES, begin_ns, width_ns, bins))
            total += found.reshape(len(hosts), SERIES, bins)
            widest = max(widest, int(length.max(initial=0)))
        return total, widest

    def _read_on(self) -> None:
        while not self._over.is_set():
            try:
                self._read_once()
                self._trouble = ""
            except (NetmonError, OSError) as error:  # a disk that is gone
                self._trouble = str(error)
            except Exception as error:  # what is shown is not worth the server
                _log.exception("reading %s", self._data)
                self._trouble = f"{type(error).__name__}: {error}"
            self._changed.wait(_POLL_S)
            self._changed.clear()

    def _read_once(self) -> None:
        with self._lock:
            waiting = [hour for hour in reversed(self._hours.values()) if not hour.done]
        for hour in waiting:
            hour.read()
        self._written = self._rows.written()
        low, high = span(self._data, "buckets", "bucket_start_ns")
        if high > self._catalogue.end_ns or not self._judged_s:
            self._follow(low, high)
        self._judge()

    def _follow(self, low: int, high: int) -> None:
        """The dataset has grown: its last hours have new files, and maybe there are new hosts or jobs."""
        known = self._catalogue
        found = read_catalogue(self._data, known.generation, (low, high))
        with self._lock:
            if found.lanes != known.lanes:
                self._catalogue = Catalogue(**{**vars(found), "generation": known.generation + 1})
                self._hours.clear()
            else:
                self._catalogue = found
            hours = list(self._hours.values())
        for hour in hours:
            hour.read()

    def _judge(self) -> None:
        end = self._catalogue.end_ns
        if end == self._judged_of or time.monotonic() - self._judged_s < (_JUDGE_EVERY_S if self._judged_s else 0):
            return
        if not table_files(self._data, "verdicts") and self._judged_s and self.state().live:
            return  # they would all be judged anew
        self._judged_of = end
        found = list(with_names(stored_verdicts(self._data), self._catalogue.job_names))
        self._verdicts = sorted(found, key=lambda verdict: verdict.end_ns)
        found_pairs = pairs_of(self._data, Window(end - _PAIRS_NS, end + 1))
        self._pairs = {self._catalogue.job_names.get(job, job): pairs for job, pairs in found_pairs.items()}
        self._judged_s = time.monotonic()


def hour_hosts(catalogue: Catalogue) -> list[str]:
    """The hosts in the order of an hour's numbers."""
    return sorted({lane.host for lane in catalogue.lanes} - {""})
