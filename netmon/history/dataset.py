# SPDX-License-Identifier: Apache-2.0
"""Opening the dataset that a collector has written."""

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from netmon.dl.classify import TRAFFIC_NAMES, Traffic
from netmon.dl.verdict.verdict_text import renamed
from netmon.errors import DataError, NoRowsError, UsageError
from netmon.evidence import EVIDENCE
from netmon.history.files import (
    check_rows,
    check_schema,
    files_of_time,
    first_line,
    open_file,
    read_footer,
    table_files,
    unreadable,
)
from netmon.views import Verdict, distinct_names

FORMULA = r"[=+\-@\t\r]."
"""What a text begins with that a spreadsheet would run; an apostrophe before it makes it a text (OWASP)."""


def plain_words(table: pd.DataFrame) -> pd.DataFrame:
    """Words of dictionaries as they are: each file numbers them in its own way."""
    return table.astype({name: object for name in table if isinstance(table[name].dtype, pd.CategoricalDtype)})


def without_formulas(table: pd.DataFrame) -> pd.DataFrame:
    """For a CSV: no text of it is a formula; numbers stay as they are."""

    def harmless(cell: Any) -> Any:
        return f"'{cell}" if isinstance(cell, str) and re.match(FORMULA, cell, re.DOTALL) else cell

    words = [name for name in table if not pd.api.types.is_numeric_dtype(table[name])]
    return plain_words(table).assign(**{str(name): table[name].astype(object).map(harmless) for name in words})


def records(table: pd.DataFrame) -> list[Any]:
    return list(table.itertuples(index=False))


def groups(table: pd.DataFrame, *by: str) -> Iterator[tuple[tuple[Any, ...], pd.DataFrame]]:
    """The rows of each combination of values, in order; none of an empty table."""
    if not table.empty:
        yield from table.groupby(list(by), observed=True)


TABLES = ("buckets", "flows", "iterations", "ledger")
_OPTIONAL = ("nic", *EVIDENCE, "sessions")  # not a gap where it is missing
_PARTITIONS = ds.partitioning(pa.schema([("date", pa.string())]), flavor="hive")
_LINK = ("session", "host", "interface", "direction")
EXPECTED = {
    "flows": (
        *_LINK,
        *("flow_id", "src", "dst", "src_port", "dst_port", "protocol", "process", "container", "job", "rank", "class"),
        *("class_source", "first_ns", "last_ns"),
    ),
    "iterations": (
        *("session", "host", "job", "rank", "size", "iteration", "start_ns", "end_ns", "comm_start_ns", "comm_end_ns"),
        *("exposed_ns", "source", "relative", "parameters", "gradient_bytes", "parameters_basis", "job_name"),
        *("node_shared", "dl_tx_bytes", "dl_rx_bytes"),
        *("cross_tx_bytes", "cross_rx_bytes", "cross_top", "cross_top_tx_bytes", "cross_top_rx_bytes"),
    ),
    "ledger": (
        *_LINK,
        *("nic_bytes", "attributed_bytes", "overflow_bytes", "lost_kernel_bytes", "lost_agent_bytes"),
        "invisible_bytes",
    ),
    "sessions": ("bucket_ns", "capacity_bps", "byte_basis", "super_packet_ns"),
}
"""Columns that the report reads; where their values were unknown they may be missing."""
_WORD = pa.dictionary(pa.int32(), pa.string())
_ONE_BY_ONE: dict[str, Any] = {
    "batch_size": 1 << 19,
    "use_threads": False,
    "batch_readahead": 0,
    "fragment_readahead": 0,
    "fragment_scan_options": ds.ParquetFragmentScanOptions(pre_buffer=False),  # else a whole file is in memory
}


_TOGETHER = 1 << 18  # rows


def all_of(conditions: Iterable[ds.Expression]) -> ds.Expression | None:
    """All of them together; None where there is none: every row."""
    found = list(conditions)
    return reduce(and_, found) if found else None


def open_table(
    data: Path, table: str, begins_ns: tuple[int, int] | None = None, paths: Sequence[Path] = ()
) -> ds.Dataset:
    """The table as a lazy pyarrow dataset, `date` from the path; `stream` reads it while files are merged.

    begins_ns: only files that may hold rows which begin in this time (UTC). paths: only these of its files.

    Raises NoRowsError where it has no row yet, DataError where there is no dataset.
    """
    if not data.is_dir():
        raise DataError(f"cannot read {data}: no such directory; give the --data of a collector")
    paths = paths or table_files(data, table)
    if not paths:
        raise NoRowsError(f"cannot read {table} in {data}: the dataset holds no row of it yet")
    if begins_ns:
        paths = files_of_time(paths, *begins_ns) or paths[-1:]
    schemas = {path: _read_schema(path) for path in (paths[0], paths[-1])}
    return _dataset(paths, _common(schemas).with_metadata(schemas[paths[-1]].metadata))


def stream(
    dataset: ds.Dataset,
    columns: Sequence[str] | None = None,
    condition: ds.Expression | None = None,
    damaged: Callable[[Path, Exception], None] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows, file by file, in batches of at most half a million: memory does not grow with the files.

    Every row of the files that the dataset lists is read once, also where they are merged meanwhile. damaged: called
    with a file that cannot be read (on), and the next one is taken; without it DataError is raised, also where a column
    is missing.
    """
    for known in dataset.get_fragments(condition):
        path = Path(known.path)
        try:
            with open_file(path) as file:
                # A fragment keeps the footer that it has read: of a month of large files that is more than their rows.
                fragment = known.format.make_fragment(file, partition_expression=known.partition_expression)
                check_schema(path, fragment.physical_schema)
                scan = {"schema": dataset.schema, "columns": columns, "filter": condition}
                for batch in fragment.to_batches(**scan, **_ONE_BY_ONE):
                    if batch.num_rows:
                        check_rows(path, batch)
                        yield batch
        except (OSError, pa.ArrowException) as error:
            if damaged is None:
                raise unreadable(path, error) from None
            damaged(path, error)


def known_columns(dataset: ds.Dataset, columns: Iterable[str]) -> list[str]:
    """Those that the dataset has."""
    return [name for name in columns if name in dataset.schema.names]


def frame_of(
    dataset: ds.Dataset, columns: Sequence[str], condition: ds.Expression | None = None, whole: bool = False
) -> pd.DataFrame:
    """Rows with these columns, null where the dataset lacks them. whole: numbers stay whole where some are null."""
    found = list(stream(dataset, known_columns(dataset, columns), condition))
    rows = pa.Table.from_batches(found).to_pandas(integer_object_nulls=whole) if found else pd.DataFrame()
    return plain_words(rows).reindex(columns=list(columns))


def read_rows(
    data: Path,
    table: str,
    columns: Sequence[str],
    condition: ds.Expression | None = None,
    begins_ns: tuple[int, int] | None = None,
    whole: bool = False,
) -> pd.DataFrame:
    """As frame_of, of a table; none where the dataset has no row of it. begins_ns: as open_table has it.

    Raises DataError where there is no dataset, or a file is damaged.
    """
    try:
        return frame_of(open_table(data, table, begins_ns), columns, condition, whole)
    except NoRowsError:
        return pd.DataFrame(columns=list(columns))


_Value = TypeVar("_Value", bound=Hashable)


class Numbered(Generic[_Value]):
    """Numbers for values, in the order in which they are met."""

    def __init__(self) -> None:
        self.values: list[_Value] = []
        self._numbers: dict[_Value, int] = {}

    def number(self, value: _Value) -> int:
        """Its number, a new one for a new value."""
        number = self._numbers.setdefault(value, len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number


class Words(Numbered[str]):
    """Of the words of columns, the same in all files."""

    def encode(self, column: pa.Array) -> npt.NDArray[np.int64]:
        """The number of each row's word; a null is the empty word."""
        coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        own = np.array([self.number(word or "") for word in coded.dictionary.to_pylist()] + [-1], np.int64)
        if coded.null_count:
            own[-1] = self.number("")
        numbers: npt.NDArray[np.int64] = np.take(own, coded.indices.fill_null(-1).to_numpy(zero_copy_only=False))
        return numbers


def leave_out(path: Path, error: Exception) -> None:
    """As `damaged`: rows of a damaged file are left out; what is missing without damage is an error (DataError)."""
    if isinstance(error, FileNotFoundError):
        raise unreadable(path, error)


class Tables:
    """A dataset of which parts may be missing: reads what is there, and notes what is not.

    missing: sentences, each saying what could not be read and why.
    sessions: the table, a row per interface of each session.
    """

    def __init__(self, data: Path) -> None:
        """Look at every file's footer; blocks. Raises DataError where `data` is no directory."""
        if not data.is_dir():
            raise DataError(f"cannot read {data}: no such directory; give the --data of a collector")
        self.data = data
        self.missing: list[str] = []
        self._rows: dict[str, int] = {}
        self._datasets = {table: self._open(data, table) for table in dict.fromkeys((*TABLES, *_OPTIONAL))}
        self.sessions = self.read("sessions")

    def read(self, table: str) -> pd.DataFrame:
        """The whole table; the columns of EXPECTED that it lacks are empty. No row where it is missing."""
        batches = list(self.batches(table, self.columns(table)))
        rows: pd.DataFrame = pa.Table.from_batches(batches).to_pandas() if batches else pd.DataFrame()
        return plain_words(rows).reindex(columns=[*dict.fromkeys([*rows, *EXPECTED.get(table, ())])])

    def sums(
        self, table: str, by: Sequence[str], columns: Sequence[str], condition: ds.Expression | None = None
    ) -> pd.DataFrame:
        """Columns summed over the rows of each combination of `by`, in memory that grows with those only."""
        known = [name for name in columns if name in self.columns(table)]
        pieces = [
            pa.Table.from_batches([batch]).group_by([*by]).aggregate([(name, "sum") for name in known])
            for batch in self.batches(table, [*by, *known], condition)
        ]
        names = {f"{name}_sum": name for name in known}
        frames = [piece.to_pandas().rename(columns=names).astype(dict.fromkeys(by, str)) for piece in pieces]
        if not frames:
            return pd.DataFrame(columns=[*by, *columns])
        summed: pd.DataFrame = pd.concat(frames).groupby([*by], as_index=False)[known].sum()
        return summed.reindex(columns=[*by, *columns])

    def growth(self, table: str, by: Sequence[str], time: str, value: str) -> pd.DataFrame:
        """The first and the last value by time of each combination of `by`, and how many there are."""
        found = pd.DataFrame(columns=[*by, "begin", "first", "end", "last", "samples"])
        for batch in self.batches(table, [*by, time, value]):
            rows = pa.Table.from_batches([batch]).to_pandas().astype(dict.fromkeys(by, str)).sort_values(time)
            own = rows.groupby([*by], as_index=False).agg(
                begin=(time, "first"), first=(value, "first"), end=(time, "last"), last=(value, "last"),
                samples=(value, "size"),
            )  # fmt: skip
            both = pd.concat([found, own]) if len(found) else own
            firsts = both.sort_values("begin").groupby([*by])[["begin", "first"]].first()
            lasts = both.sort_values("end").groupby([*by])[["end", "last"]].last()
            found = firsts.join(lasts).join(both.groupby([*by])["samples"].sum()).reset_index()
        return found.drop(columns=["begin", "end"])

    def span(self, table: str, time: str) -> tuple[int, int] | None:
        """The least and the greatest time, by the files' statistics; None where they do not report."""
        dataset = self._datasets[table]
        found: list[tuple[int, int]] = []
        for path in dataset.files if dataset else ():
            footer = read_footer(Path(path))
            index = footer.schema.names.index(time) if time in footer.schema.names else -1
            for group in range(footer.num_row_groups):
                statistics = footer.row_group(group).column(index).statistics if index >= 0 else None
                if statistics is None or not statistics.has_min_max:
                    return None
                found.append((statistics.min, statistics.max))
        return (min(low for low, _ in found), max(high for _, high in found)) if found else None

    def columns(self, table: str) -> list[str]:
        """Names of the table's columns; none where it is missing."""
        dataset = self._datasets[table]
        return list(dataset.schema.names) if dataset else []

    def rows(self, table: str) -> int:
        """How many rows the readable files hold, by their footers."""
        return self._rows.get(table, 0)

    def batches(
        self, table: str, columns: Sequence[str], condition: ds.Expression | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Rows in batches (see `stream`); columns that no file has are left out.

        A file that turns out to be damaged is noted in `missing`, and the next one is read.
        """
        dataset = self._datasets[table]
        if dataset is not None:
            known = known_columns(dataset, columns)
            rows = stream(dataset, known, condition, lambda path, error: self._miss(table, path, error))
            yield from _gathered(rows)

    def _open(self, data: Path, table: str) -> ds.Dataset | None:
        schemas: dict[Path, pa.Schema] = {}
        for path in table_files(data, table):
            try:
                footer = read_footer(path)
                schemas[path] = footer.schema.to_arrow_schema()
                self._rows[table] = self._rows.get(table, 0) + footer.num_rows
            except (OSError, pa.ArrowException) as error:
                self._miss(table, path, error)
        if not schemas:
            if table not in _OPTIONAL:
                self.missing.append(f"table {table}: no readable file under {table}/date=…/hour=…")
            return None
        return _dataset(list(schemas), _common(schemas))

    def _miss(self, table: str, path: Path, error: Exception) -> None:
        index = "/".join(path.parts[-3:])
        sentence = f"table {table}: {index} cannot be read, its rows are left out ({first_line(error)})"
        if sentence not in self.missing:  # a table may be read more than once
            self.missing.append(sentence)


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows, so many together: the last minutes of a table are in hundreds of small files."""
    waiting, rows = list[pa.RecordBatch](), 0
    for batch in batches:
        waiting.append(batch)
        rows += len(batch)
        if rows >= _TOGETHER:
            yield _one(waiting)
            waiting, rows = [], 0
    if waiting:
        yield _one(waiting)


def _one(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.Table.from_batches(batches).unify_dictionaries().combine_chunks().to_batches()[0]


def _dataset(paths: Sequence[Path], schema: pa.Schema) -> ds.Dataset:
    """Unlike ds.dataset it does not look for the files: one may have left its place since it was listed."""
    names = [str(path) for path in paths]
    return ds.FileSystemDataset.from_paths(
        names,
        schema=schema,
        format=ds.ParquetFileFormat(),
        filesystem=LocalFileSystem(),
        partitions=[_PARTITIONS.parse(name) for name in names],
    )


def _read_schema(path: Path) -> pa.Schema:
    try:
        return read_footer(path).schema.to_arrow_schema()
    except (OSError, pa.ArrowException) as error:
        raise unreadable(path, error) from None


def _common(schemas: dict[Path, pa.Schema]) -> pa.Schema:
    """Every column that any file has. A text is a word of a dictionary, whichever way the file holds it."""
    plain = [
        pa.schema([field.with_type(_plain(field.type)) for field in schema]).remove_metadata()
        for schema in {str(schema): schema for schema in schemas.values()}.values()
    ]
    unified = pa.unify_schemas(plain, promote_options="permissive")
    words = [field.with_type(_WORD) if pa.types.is_string(field.type) else field for field in unified]
    return pa.schema([*words, ("date", pa.string())])


def _plain(kind: pa.DataType) -> pa.DataType:
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.string() if pa.types.is_large_string(plain) else plain


# --- Which rows of a table are wanted: by time, job, hosts and iterations, so that few files are read.

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
    **dict.fromkeys(EVIDENCE, ("start_ns", "end_ns")),
    "verdicts": ("start_ns", "end_ns"),
    "hangs": ("since_ns", "reported_ns"),
}
TIMED_TABLES = tuple(_SPANS)


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

    columns: that the table has. Raises UsageError where it has none.
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


# --- Names of jobs


_COLUMNS = ["job", "rank", "job_name"]


def jobs_of(data: Path) -> tuple[list[str], dict[str, str]]:
    """The jobs that have iterations, and what people call them: by job, no two alike, of those of which somebody says.

    Blocks: it reads three columns. Raises NoRowsError: none has; DataError: no dataset.
    """
    table = open_table(data, "iterations")
    columns = known_columns(table, _COLUMNS)
    pieces = [pa.Table.from_batches([batch]).group_by(columns).aggregate([]) for batch in stream(table, columns)]
    frames = [piece.to_pandas() for piece in pieces]
    rows = pd.concat(frames) if frames else pd.DataFrame(columns=_COLUMNS)
    return sorted(rows["job"].dropna().astype(str).unique()), names_of(rows)


def job_names(data: Path) -> dict[str, str]:
    """What people call the jobs, as jobs_of has it; empty where there is none."""
    try:
        return jobs_of(data)[1]
    except NoRowsError:
        return {}


def not_understood(data: Path) -> list[str]:
    """The jobs whose steps are not understood, as their flows say. Raises DataError: no dataset."""
    try:
        flows = stream(open_table(data, "flows"), ["job"], ds.field("traffic") == TRAFFIC_NAMES[Traffic.UNEXPLAINED])
        return sorted({str(job) for batch in flows for job in batch.column(0).unique().drop_null().to_pylist()})
    except (NoRowsError, pa.ArrowInvalid):  # no flows, or nobody says
        return []


def names_of(rows: pd.DataFrame) -> dict[str, str]:
    """The same of rows of the table `iterations`: the lowest rank's word counts."""
    if rows.empty or "job_name" not in rows or "rank" not in rows:
        return {}
    named = rows[rows["job_name"].notna()].sort_values("rank", kind="stable").drop_duplicates("job")
    pairs = zip(named["job"].astype(str), named["job_name"].astype(str), strict=True)
    return distinct_names({job: "" if name == job else name for job, name in pairs})


def requested_job(requested: str | None, names: Mapping[str, str]) -> str | None:
    """The job that somebody names: by what its ranks have in common, or as people call it."""
    by_name = {name: job for job, name in names.items()}
    return requested if requested is None or requested in names else by_name.get(requested, requested)


def with_names(verdicts: Iterable[Verdict], names: Mapping[str, str]) -> Iterator[Verdict]:
    return (renamed(verdict, names) for verdict in verdicts)
