# SPDX-License-Identifier: Apache-2.0
"""`netmon export`: part of a table of the dataset, or full resolution from the agents, as one file."""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from netmon.errors import DataError, UnsupportedError, UsageError
from netmon.marks import harmless
from netmon.options import DIR, declare, read_options
from netmon.units import parse_time
from netmon.wire.security import Security

if TYPE_CHECKING:
    import pyarrow as pa

    from netmon.history.dataset import Window

HELP = "write a part of the dataset as one Parquet, CSV or Feather file, or as input of a simulator"
EXAMPLES = """\
  netmon export --data out --out iterations.csv
  netmon export --data out --table buckets --job training --iterations 10:20 --out steps.parquet
  netmon export --data out --table ledger --since 2026-01-31T09:00 --until 2026-01-31T10:00 --out ledger.feather
  netmon export --full --collector collector.example:9400 --tls ~/.netmon --host node17 --since 2026-01-31T09:00:00 \\
      --until 2026-01-31T09:00:02 --out full.parquet
  netmon export --data out --format chakra --job training --iterations 10:20 --out chakra      for ASTRA-sim
  netmon export --data out --format ns3 --since 2026-01-31T09:00 --out flows.txt               or htsim
  netmon export --data out --format pcap --host node17 --iterations 10:12 --out headers.pcap
  netmon export --data out --format generator --job training --out job.json     netmon lab run --replay job.json
"""
_SIMULATION = ("chakra", "ns3", "htsim", "pcap", "generator")
"""Formats that netmon.simulation writes."""

_TABLES = (
    *("iterations", "buckets", "flows", "ledger", "nic", "transport", "host", "waits", "collectives"),
    *("transfers", "rdma"),
    *("verdicts", "incidents", "hangs", "full"),
)
_ROWS_AT_ONCE = 1 << 19
_SUFFIXES = (".parquet", ".csv", ".feather")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", **DIR, help="the dataset's directory")
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="PATH",
        help="a file ending in .parquet, .csv or .feather; with --format chakra a folder, else any file",
    )
    parser.add_argument(
        "--format", choices=("table", *_SIMULATION), default="table", help="what it is for (%(default)s); see below"
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
    parser.add_argument("--host", nargs="+", default=[], metavar="H", help="only rows of these hosts (all)")
    full = parser.add_argument_group("full resolution, from the recorders of agents that are connected")
    full.add_argument(
        "--full", action="store_true", help="export full resolution from --since until --until, instead of a table"
    )
    full.add_argument("--collector", default="localhost:9400", metavar="ADDR", help="HOST:PORT or unix:PATH")
    declare(full, Security)


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
    from netmon.history.dataset import open_rows, stream

    if args.format != "table":
        return _export_for_simulation(args)
    if args.out.suffix not in _SUFFIXES:
        raise UsageError(
            f"the format of {args.out} is unknown: end it in {', '.join(_SUFFIXES[:-1])} or {_SUFFIXES[-1]}"
        )
    if args.full:
        return _export_full(args)
    if args.data is None:
        raise UsageError("cannot export: give either the dataset's --data, or --full with a --collector")
    if args.table == "incidents":
        table = _incidents(args)
        rows = _write(table.schema, table.to_batches(), args.out)
    else:
        files, condition = open_rows(args.data, args.table, _window(args))
        rows = _write(files.schema, stream(files, condition=condition), args.out)
    print(f"{rows} rows of {args.table} in {args.out}")
    return 0


def _incidents(args: argparse.Namespace) -> "pa.Table":
    """What the verdicts have in common: it is in no file."""
    import pyarrow as pa

    from netmon.dl.verdict.incidents import described
    from netmon.history.dataset import job_names, requested_job
    from netmon.history.judging import ALWAYS, stored_incidents
    from netmon.units import format_utc

    if args.host or args.iterations:
        raise UsageError("cannot select incidents by host or iteration: give --job, --since or --until")
    names = job_names(args.data)
    within = args.since or ALWAYS[0], args.until or ALWAYS[1]
    found = stored_incidents(args.data, requested_job(args.job, names), within)
    if not found:
        raise DataError(f"cannot export to {args.out}: no step of the dataset was slower than usual")
    return pa.Table.from_pylist([described(one, names, format_utc) for one in found])


def _window(args: argparse.Namespace) -> "Window":
    from netmon.history.dataset import Window

    return Window(args.since, args.until, args.job, tuple(args.host), args.iterations or (None, None))


def _export_for_simulation(args: argparse.Namespace) -> int:
    """What a simulator or the lab can play again; says on standard output what it wrote."""
    from netmon.history.dataset import job_names, requested_job

    if args.full or args.data is None:
        raise UsageError(f"cannot export as {args.format}: give the dataset's --data")
    if args.format == "chakra" and find_spec("chakra") is None:
        raise UnsupportedError(
            "cannot write execution traces: mlc-chakra is not installed; pip install --no-deps mlc-chakra"
        )
    names = job_names(args.data)
    window = replace(_window(args), job=requested_job(args.job, names))
    write = getattr(import_module("netmon.simulation"), f"write_{args.format}")
    try:
        print(write(args.data, window, args.out))
    except OSError as error:
        raise DataError(f"cannot write {args.out}: {error.strerror or error}") from None
    return 0


def _export_full(args: argparse.Namespace) -> int:
    from netmon.wire.questions import get_full

    if args.since is None or args.until is None or args.until <= args.since:
        raise UsageError("cannot get full resolution without a window: give --since and a later --until")
    rows, writer, temporary = 0, None, args.out.with_name(f".{args.out.name}.unfinished")
    try:
        with ExitStack() as open_file:
            for part in get_full(args.collector, args.host, args.since, args.until, read_options(Security, args)):
                if part.gap:
                    print(harmless(f"{part.host}: {part.gap}"), file=sys.stderr)
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


def _write(given: "pa.Schema", batches: "Iterable[pa.RecordBatch]", out: Path) -> int:
    """Stream the rows into a file that appears when it is complete; returns their number."""
    import pyarrow as pa

    temporary = out.with_name(f".{out.name}.unfinished")
    lists = [f.name for f in given if pa.types.is_list(f.type)] if out.suffix == ".csv" else []
    fields = [f.with_type(pa.string()) if f.name in lists else f for f in given]
    schema = _plain(pa.schema(fields, given.metadata))
    rows = 0
    try:
        with _writer(out.suffix)(str(temporary), schema) as writer:
            for table in _pieces(batches):
                for name in lists:  # CSV knows none: JSON
                    texts = pa.array([json.dumps(each) for each in table[name].to_pylist()], pa.string())
                    table = table.set_column(table.column_names.index(name), name, texts)
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
    """Few and large row groups: the footer, which reports each, stays in memory until the end."""
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
    return pa.schema(fields, schema.metadata)


def _writer(suffix: str) -> Callable[[str, "pa.Schema"], AbstractContextManager[Any]]:
    import pyarrow.csv
    import pyarrow.ipc
    import pyarrow.parquet

    def parquet(path: str, schema: "pa.Schema") -> AbstractContextManager[Any]:
        writer: AbstractContextManager[Any] = pyarrow.parquet.ParquetWriter(path, schema, compression="zstd")
        return writer

    @contextmanager
    def spreadsheet(path: str, schema: "pa.Schema") -> Iterator[Any]:
        with pyarrow.csv.CSVWriter(path, schema) as writer:
            yield _Cells(writer)

    writers: dict[str, Callable[[str, pa.Schema], AbstractContextManager[Any]]] = {
        ".parquet": parquet,
        ".csv": spreadsheet,
        ".feather": pyarrow.ipc.new_file,
    }
    return writers[suffix]


class _Cells:
    """Writes tables as CSV in which no text is a formula: a spreadsheet would run it."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def write_table(self, table: "pa.Table") -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        from netmon.history.dataset import FORMULA

        for index, field in enumerate(table.schema):
            if pa.types.is_string(field.type):
                quoted = pc.replace_substring_regex(table.column(index), f"^((?s:{FORMULA}))", r"'\1")
                table = table.set_column(index, field, quoted)
        self._writer.write_table(table)
