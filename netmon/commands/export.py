# SPDX-License-Identifier: Apache-2.0
"""`netmon export`: part of a table of the dataset, or full resolution from the agents, as one file."""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from netmon.commands.security_options import declare_security, security
from netmon.errors import DataError, UsageError
from netmon.units import parse_time

if TYPE_CHECKING:
    import pyarrow as pa

HELP = "write a part of the dataset as one Parquet, CSV or Feather file"
EXAMPLES = """\
  netmon export --data out --out iterations.csv
  netmon export --data out --table buckets --job training --iterations 10:20 --out steps.parquet
  netmon export --data out --table ledger --since 2026-01-31T09:00 --until 2026-01-31T10:00 --out ledger.feather
  netmon export --full --collector collector.example:9400 --tls ~/.netmon --host node17 --since 2026-01-31T09:00:00 \\
      --until 2026-01-31T09:00:02 --out full.parquet
"""
_TABLES = ("iterations", "buckets", "flows", "ledger", "nic", "transport", "host", "verdicts", "full")
_FOR_EVER = 1 << 62
_AROUND_NS = 60_000_000_000  # clocks are compared again and again: a row is not far from where it was
_ROWS_AT_ONCE = 1 << 19
_SUFFIXES = (".parquet", ".csv", ".feather")
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


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--data", type=Path, metavar="DIR", help="the dataset's directory")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="PATH", help="a file ending in .parquet, .csv or .feather"
    )
    parser.add_argument("--table", choices=_TABLES, default="iterations", help="what to export (%(default)s)")
    parser.add_argument("--job", metavar="J", help="only rows of this job")
    parser.add_argument(
        "--iterations", type=iterations, metavar="A:B", help="only rows of iterations A to B-1; either may be left out"
    )
    parser.add_argument(
        "--since",
        type=parse_time,
        metavar="T",
        help="only rows from this time on: ISO 8601, UTC unless it says otherwise",
    )
    parser.add_argument("--until", type=parse_time, metavar="T", help="only rows before this time")
    full = parser.add_argument_group("full resolution, from the recorders of agents that are connected")
    full.add_argument(
        "--full", action="store_true", help="export full resolution from --since until --until, instead of a table"
    )
    full.add_argument("--collector", default="localhost:9400", metavar="ADDR", help="HOST:PORT or unix:PATH")
    declare_security(full)
    full.add_argument("--host", nargs="+", default=[], metavar="H", help="only these hosts (all)")


def iterations(text: str) -> tuple[int | None, int | None]:
    """`A:B` → the first, and the one after the last; None: open. Raises UsageError."""
    first, colon, last = text.partition(":")
    try:
        if not colon:
            raise ValueError
        return int(first) if first else None, int(last) if last else None
    except ValueError:
        raise UsageError(f"cannot read {text!r} as iterations: write A:B, such as 10:20, 10: or :20") from None


def run(args: argparse.Namespace) -> int:
    """Export; says on standard output how many rows it wrote."""
    from netmon.report.dataset import open_table

    if args.out.suffix not in _SUFFIXES:
        raise UsageError(
            f"cannot tell the format of {args.out}: end it in {', '.join(_SUFFIXES[:-1])} or {_SUFFIXES[-1]}"
        )
    if args.full:
        return _export_full(args)
    if args.data is None:
        raise UsageError("cannot export: give either the dataset's --data, or --full with a --collector")
    dataset = open_table(args.data, args.table, begins(args))
    rows = _write(dataset, row_filter(args, dataset.schema.names), args.out)
    print(f"{rows} rows of {args.table} in {args.out}")
    return 0


def begins(args: argparse.Namespace) -> tuple[int, int] | None:
    """The time in which the rows that are asked for begin, as far as that is known: few files hold them.

    A job's buckets lie within its iterations, whose table is small.
    """
    import pyarrow.compute as pc

    from netmon.report.dataset import open_table

    since = args.since if args.since is not None and args.table != "flows" else 0
    until = args.until if args.until is not None else _FOR_EVER
    if args.table == "buckets" and (args.job is not None or args.iterations):
        try:
            iterations = open_table(args.data, "iterations")
        except DataError:
            return since, until
        own = argparse.Namespace(**(vars(args) | {"table": "iterations"}))
        rows = iterations.to_table(columns=["start_ns", "end_ns"], filter=row_filter(own, iterations.schema.names))
        if rows.num_rows:
            since = max(since, pc.min(rows["start_ns"]).as_py())
            until = min(until, pc.max(rows["end_ns"]).as_py())
    return max(0, since - _AROUND_NS), until + _AROUND_NS


def _export_full(args: argparse.Namespace) -> int:
    from netmon.wire.full import get_full

    if args.since is None or args.until is None or args.until <= args.since:
        raise UsageError("cannot get full resolution without a window: give --since and a later --until")
    rows, writer, temporary = 0, None, args.out.with_name(f".{args.out.name}.unfinished")
    try:
        with ExitStack() as open_file:
            for part in get_full(args.collector, args.host, args.since, args.until, security(args)):
                if part.gap:
                    print(f"{part.host}: {part.gap}", file=sys.stderr)
                schema = _plain(part.rows.schema)
                writer = writer or open_file.enter_context(_writer(args.out.suffix)(str(temporary), schema))
                writer.write_table(part.rows.cast(schema))
                rows += len(part.rows)
        if not rows:
            raise DataError(f"cannot export to {args.out}: no agent has a row of that window")
        temporary.replace(args.out)
    except OSError as error:
        raise DataError(f"cannot export to {args.out}: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)
    print(f"{rows} rows of full resolution in {args.out}")
    return 0


def row_filter(args: argparse.Namespace, columns: list[str]) -> Any:
    """The options as one pyarrow expression; None: every row. Raises UsageError where the table lacks the column."""
    import pyarrow.dataset as ds

    for option, column in (("job", "job"), ("iterations", "iteration")):
        if getattr(args, option) is not None and column not in columns:
            raise UsageError(f"cannot filter {args.table} by --{option}: the table has no column {column}")
    begins, ends = (ds.field(column) for column in _SPANS[args.table])
    conditions = []
    if args.job is not None:
        conditions.append(ds.field("job") == args.job)
    first, last = args.iterations or (None, None)
    if args.iterations:
        conditions.append(ds.field("iteration") >= (first or 0))
    if last is not None:
        conditions.append(ds.field("iteration") < last)
    if args.since is not None:
        conditions.append(ends >= args.since)
    if args.until is not None:
        conditions.append(begins < args.until)
    combined = None
    for condition in conditions:
        combined = condition if combined is None else combined & condition
    return combined


def _write(dataset: Any, condition: Any, out: Path) -> int:
    """Stream the rows into a file that appears when it is complete; returns their number."""
    import pyarrow as pa

    from netmon.report.dataset import stream

    temporary = out.with_name(f".{out.name}.unfinished")
    schema = _plain(dataset.schema)
    rows = 0
    try:
        with _writer(out.suffix)(str(temporary), schema) as writer:
            for table in _pieces(stream(dataset, condition=condition)):
                writer.write_table(table.cast(schema))
                rows += len(table)
        if not rows:
            raise DataError(f"cannot export to {out}: no row of the dataset matches")
        temporary.replace(out)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"cannot export to {out}: {getattr(error, 'strerror', None) or error}") from None
    finally:
        temporary.unlink(missing_ok=True)
    return rows


def _pieces(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.Table]":
    """Few and large row groups: the footer, which tells of each, is held until the end."""
    import pyarrow as pa

    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        if sum(map(len, waiting)) + len(batch) > _ROWS_AT_ONCE:
            yield pa.Table.from_batches(waiting)
            waiting = []
        waiting.append(batch)
    if waiting:
        yield pa.Table.from_batches(waiting)


def _plain(schema: "pa.Schema") -> "pa.Schema":
    """Without dictionaries, which differ between files and which CSV does not know."""
    import pyarrow as pa

    fields = [f.with_type(f.type.value_type) if pa.types.is_dictionary(f.type) else f for f in schema]
    return pa.schema(fields, {key: value for key, value in (schema.metadata or {}).items() if key != b"netmon.state"})


def _writer(suffix: str) -> Callable[[str, "pa.Schema"], AbstractContextManager[Any]]:
    import pyarrow.csv
    import pyarrow.ipc
    import pyarrow.parquet

    def parquet(path: str, schema: "pa.Schema") -> AbstractContextManager[Any]:
        writer: AbstractContextManager[Any] = pyarrow.parquet.ParquetWriter(path, schema, compression="zstd")
        return writer

    writers: dict[str, Callable[[str, pa.Schema], AbstractContextManager[Any]]] = {
        ".parquet": parquet,
        ".csv": pyarrow.csv.CSVWriter,
        ".feather": pyarrow.ipc.new_file,
    }
    return writers[suffix]
