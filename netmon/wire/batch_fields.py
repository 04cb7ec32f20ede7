# SPDX-License-Identifier: Apache-2.0
"""Many batches of many agents at once: protobuf → tables; nothing per row in Python, little per batch.

What is here has been checked completely: ranges, lengths, counts and names. What only the session can check (whether
a flow or a link is known) is not.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from netmon.errors import WireError
from netmon.evidence import EVIDENCE
from netmon.native import compiled
from netmon.records import COUNTS, ClockExchange, Columns, Flow, NicSample, Table
from netmon.wire import netmon_pb2
from netmon.wire.buckets import COLUMNS, COLUMNS_COARSE, PLAIN, RUNS, column_widths, plain_columns
from netmon.wire.limits import FURTHEST_NS, MAX_MONO_NS, MAX_ROWS, MAX_WIDTH_NS
from netmon.wire.tables import (
    HEAD,
    Pieces,
    check_limits,
    join_tables,
    read_exchanges,
    read_flows,
    read_name,
    read_nic,
    split_tables,
)

ROWS = np.dtype(
    [("batch", "<i4"), ("flow_id", "<u4"), ("start_ns", "<i8"), ("bucket_ns", "<i8")]
    + [(name, "<u4") for name in COUNTS]
)
"""A bucket row: which batch, mono time, width (0: the hello's bucket_ns), counts. Full resolution: the peak is all."""


class Runs(NamedTuple):
    """Rows that follow each other and are of one flow and batch, known once for all of them; arrays (runs,)."""

    batch: npt.NDArray[np.int64]
    flow_id: npt.NDArray[np.uint32]
    rows: npt.NDArray[np.int64]

    def of(self, good: npt.NDArray[np.bool_]) -> "Runs":
        """Those of batches that are good, by their numbers."""
        kept = good[self.batch]
        return Runs(self.batch[kept], self.flow_id[kept], self.rows[kept])


_Column = npt.NDArray[np.unsignedinteger]
_Numbers = npt.NDArray[np.uint64]
_Counts = npt.NDArray[np.int64]


class Split(NamedTuple):
    """One message's columns, where they lie in its bytes. A message without rows has none."""

    rows: int
    flows: int
    bucket_ns: int
    base_ns: int
    unit_ns: int
    coarse: bool
    runs: bytes
    run_widths: Sequence[int]
    columns: bytes
    column_widths: Sequence[int]


def split_buckets(message: netmon_pb2.Buckets) -> Split:
    """Inflate the columns of a message and find them. Raises WireError with a one-line reason."""
    rows, flows, bucket_ns = message.rows, message.flows, message.bucket_ns
    if rows > MAX_ROWS:
        raise WireError(f"Buckets.rows is {rows}, more than {MAX_ROWS}")
    if bucket_ns > MAX_WIDTH_NS:
        raise WireError(f"Buckets.bucket_ns is {bucket_ns}, more than {MAX_WIDTH_NS}")
    if not rows:
        return Split(0, 0, bucket_ns, 0, 0, False, b"", (), b"", ())
    if not 0 < flows <= rows:
        raise WireError(f"Buckets.flows is {flows} of {rows} rows")
    runs, columns = plain_columns(message)
    coarse = message.coarse
    return Split(
        *(rows, flows, bucket_ns, message.base_ns, message.unit_ns, coarse),
        *(runs, column_widths(runs, RUNS, flows, "runs")),
        *(columns, column_widths(columns, COLUMNS_COARSE if coarse else COLUMNS, rows, "columns")),
    )


def join_buckets(
    splits: Sequence[Split], indices: Sequence[int], horizons_ns: Sequence[int]
) -> tuple[Columns, Runs, dict[int, str]]:
    """The rows of all messages (columns of ROWS), their runs, and why some are refused; of those, rows mean nothing.

    indices: what `batch` says of each; horizons_ns: of each.
    """
    kept = [
        (split, index, horizon)
        for split, index, horizon in zip(splits, indices, horizons_ns, strict=True)
        if split.rows
    ]
    if not kept:
        return Columns.zeros(0, ROWS), Runs(np.zeros(0, np.int64), np.zeros(0, np.uint32), np.zeros(0, np.int64)), {}
    splits = [split for split, _, _ in kept]
    batch = np.array([index for _, index, _ in kept], np.int32)
    columns, runs, latest, good = _join_compiled(splits, batch) if compiled else _join(splits, batch)
    refused = {}
    for (split, index, horizon_ns), last, whole in zip(kept, latest.tolist(), good.tolist(), strict=True):
        try:
            if not whole:
                raise WireError(f"Buckets.runs do not have {split.rows} rows")
            check_start(last * split.unit_ns + split.base_ns, horizon_ns)
        except WireError as error:
            refused[index] = str(error)
    return columns, runs, refused


_Joined = tuple[Columns, Runs, _Column, npt.NDArray[np.bool_]]
"""Rows and runs; of each message the latest start in its units, and whether its runs have all its rows."""


def _join_compiled(splits: Sequence[Split], batch: npt.NDArray[np.int32]) -> _Joined:
    assert compiled
    rows, flows = sum(split.rows for split in splits), sum(split.flows for split in splits)
    columns = {name: np.empty(rows, ROWS[name]) for name in ROWS.names or ()}
    runs = Runs(np.empty(flows, np.int64), np.empty(flows, np.uint32), np.empty(flows, np.int64))
    latest, good = np.empty(len(splits), np.uint64), np.empty(len(splits), np.bool_)
    compiled.join_buckets(splits, batch, tuple(columns.values()), tuple(runs), latest, good)
    return Columns(columns), runs, latest, good


def _join(splits: Sequence[Split], batch: npt.NDArray[np.int32]) -> _Joined:
    """The same without what is compiled."""
    counts, flows = (np.array([split[position] for split in splits], np.int64) for position in (0, 1))
    flow, run_rows, w, h = _join_columns([(s.runs, s.run_widths, s.flows) for s in splits], RUNS, _RUN_TYPES)
    run_rows = run_rows.astype(np.uint64)
    good = _mend_runs(run_rows, flows, counts)
    flow, run_of = flow.astype(np.uint32, copy=False), run_rows.astype(np.int64)
    start, packets, short, headers = _join_columns(
        [(s.columns, s.column_widths, s.rows) for s in splits], COLUMNS - len(PLAIN), _COLUMN_TYPES
    )
    latest = np.maximum.reduceat(start, np.cumsum(counts) - counts)
    base, unit = (_of_rows(np.array([split[position] for split in splits], np.uint64), counts) for position in (3, 4))
    w, h = (np.repeat(column.astype(np.uint32, copy=False), run_of) for column in (w, h))
    packets = packets.astype(np.uint32, copy=False)
    wire = packets * w - short
    columns: dict[str, npt.NDArray[Any]] = {
        "batch": np.repeat(batch, counts),
        "flow_id": np.repeat(flow, run_of),
        "start_ns": (start * unit + base).view(np.int64),
        "bucket_ns": np.repeat(np.array([split.bucket_ns for split in splits], np.int64), counts),
        "packets": packets,
        "wire_bytes": wire,
        "payload_bytes": wire - (packets * h - headers),
    }
    columns["peak_bytes"], columns["busy_buckets"] = wire, np.ones(len(wire), np.uint32)
    coarse = np.array([split.coarse for split in splits])
    if coarse.any():
        pieces, less, busy = _join_columns(
            [(s.columns, s.column_widths, s.rows) for s in splits if s.coarse],
            COLUMNS_COARSE - len(PLAIN),
            _COLUMN_TYPES,
            first=COLUMNS - len(PLAIN),
        )
        if coarse.all():
            columns["peak_bytes"], columns["busy_buckets"] = pieces * w - less, busy.astype(np.uint32, copy=False)
        else:
            own, columns["peak_bytes"] = np.repeat(coarse, counts), wire.copy()
            columns["peak_bytes"][own] = pieces * w[own] - less
            columns["busy_buckets"][own] = busy
    columns |= {name: np.zeros(len(wire), np.uint32) for name in PLAIN}
    for kind, end in ((False, COLUMNS), (True, COLUMNS_COARSE)) if PLAIN else ():
        some = [(s.columns, s.column_widths, s.rows) for s in splits if s.coarse == kind]
        found = _join_columns(some, end, [_U4] * end, first=end - len(PLAIN)) if some else ()
        for name, column in zip(PLAIN, found, strict=False):
            columns[name][np.repeat(coarse == kind, counts)] = column
    return Columns(columns), Runs(np.repeat(batch, flows).astype(np.int64), flow, run_of), latest, good


def _of_rows(values: _Numbers, counts: _Counts) -> _Numbers:
    """The value of each row, of the message that it is in; (1,) where all have the same."""
    return values[:1] if (values == values[0]).all() else np.repeat(values, counts)


def check_start(latest_ns: int, horizon_ns: int) -> None:
    """Raise WireError where the last bucket of a message begins at no time."""
    if latest_ns > MAX_MONO_NS:
        raise WireError(f"Buckets.start has {latest_ns}, more than {MAX_MONO_NS}")
    if latest_ns > horizon_ns + FURTHEST_NS:
        raise WireError(f"a bucket begins {(latest_ns - horizon_ns) / 1e9:.0f} s after the batch's horizon")


_U4, _U8 = np.dtype("<u4"), np.dtype("<u8")
_SMALL: dict[int, np.dtype[Any]] = {0: np.dtype("u1"), 1: np.dtype("u1"), 2: np.dtype("<u2"), 4: _U4, 8: _U8}
"""By the bytes of a number."""
_RUN_TYPES = (_U4, _U8, _U4, _U4)
_COLUMN_TYPES = (_U8, _U4, _U4, _U4, _U4, _U4, _U4)  # all but the first are modulo 2^32


def _join_columns(
    parts: Sequence[tuple[bytes, Sequence[int], int]],
    until: int,
    dtypes: Sequence[np.dtype[np.unsignedinteger]],
    first: int = 0,
) -> Iterator[_Column]:
    """Columns first to until of all parts (bytes, widths of its columns, numbers in each), part after part.

    In the dtype that is said, or a narrower one that holds them all.
    """
    counts = np.array([count for _, _, count in parts], np.int64)
    total = int(counts.sum())
    offsets = [sum(1 + width * count for width in widths[:first]) for _, widths, count in parts]
    for index in range(first, until):
        widths = [widths[index] for _, widths, _ in parts]
        dtype = _SMALL[min(max(widths), dtypes[index].itemsize)]
        each = np.array(widths)
        planes: list[npt.NDArray[np.uint8]] = []
        for plane in range(min(max(widths), dtype.itemsize)):
            pieces = [
                data[offset + 1 + plane * count : offset + 1 + (plane + 1) * count]
                for (data, _, count), offset, width in zip(parts, offsets, widths, strict=True)
                if width > plane
            ]
            numbers = np.frombuffer(pieces[0] if len(pieces) == 1 else b"".join(pieces), np.uint8)
            if len(pieces) < len(parts):
                own, numbers_here = np.repeat(each > plane, counts), numbers
                numbers = np.zeros(total, np.uint8)
                numbers[own] = numbers_here
            planes.append(numbers)
        offsets = [
            offset + 1 + width * count for (_, _, count), offset, width in zip(parts, offsets, widths, strict=True)
        ]
        yield _together(planes, dtype, total)


def _together(planes: Sequence[npt.NDArray[np.uint8]], dtype: np.dtype[np.unsignedinteger], total: int) -> _Column:
    """Numbers of planes of their bytes, the lowest first."""
    if not planes:
        return np.zeros(total, dtype)
    if len(planes) == 1:
        return planes[0].astype(dtype, copy=False)
    column: _Column = np.zeros(total, dtype)
    cells = column.view(np.uint8).reshape(total, dtype.itemsize)
    for index, numbers in enumerate(planes):
        cells[:, index] = numbers
    return column


def _mend_runs(run_rows: _Column, flows: _Counts, counts: _Counts) -> npt.NDArray[np.bool_]:
    """Whether each message's runs have its number of rows; others are made to, so that what follows falls in place."""
    first = np.cumsum(flows) - flows
    most = np.maximum.reduceat(run_rows, first)
    sums = np.add.reduceat(np.minimum(run_rows, np.uint64(MAX_ROWS + 1)), first)
    wrong: npt.NDArray[np.bool_] = (most > counts.astype(np.uint64)) | (sums != counts.astype(np.uint64))
    for index in np.flatnonzero(wrong).tolist():
        run_rows[first[index] : first[index] + flows[index]] = 0
        run_rows[first[index]] = counts[index]
    return ~wrong


# --- batches

HEADS = np.dtype([*((name, "<i8") for name in HEAD.columns), ("cpu_fraction", "<f8")])
"""A batch: its number, clock sample and cost; bucket_ns: width of its rows, 0: the hello's. A refused one is all 0."""

_T = TypeVar("_T")
_head = attrgetter("sequence", "horizon_ns", "clock", "cost", "buckets")
_clock = attrgetter("mono_ns", "utc_ns", "error_ns", "utc_error_ns", "discipline")
_cost = attrgetter("rss_bytes", "spool_bytes", "warnings", "cpu_fraction")


@dataclass(frozen=True)
class ManyBatches:
    """What n messages hold; `batch` and the first of each pair: which of them, from 0. All in the messages' order."""

    rows: Columns  # of ROWS: all their bucket rows; a batch's in its order
    runs: Runs  # of the rows, in their order
    ledger: Columns  # of tables.LEDGER
    heads: Table  # (n,), dtype HEADS
    flows: Sequence[tuple[int, Flow]]
    ranks: Columns  # of tables.RANKS
    iterations: Columns  # of tables.ITERATIONS
    scores: Columns  # of tables.SCORES
    exchanges: Sequence[tuple[int, ClockExchange]]
    nic: Sequence[tuple[int, NicSample]]
    disciplines: Mapping[int, str]  # who keeps the host's clock, of the batches that say so
    refused: Mapping[int, str]  # why, in one line; nothing of such a batch is in the tables
    evidence: Mapping[str, Columns]  # the tables of netmon.evidence, with `batch`
    words: Sequence[str]  # that columns of these refer to by index

    def select(self, good: npt.NDArray[np.bool_], number: npt.NDArray[np.int64]) -> "ManyBatches":
        """What is not of a table of heads, of good batches only. number: what each batch is called from here on."""
        of = dict(zip(np.flatnonzero(good).tolist(), number[good].tolist(), strict=True))

        def rows(table: Columns) -> Columns:
            kept = table[good[table["batch"]]]
            return kept.replaced(batch=number[kept["batch"]].astype(np.int32))

        def pairs(some: Sequence[tuple[int, _T]]) -> list[tuple[int, _T]]:
            return [(of[batch], one) for batch, one in some if batch in of]

        runs = self.runs.of(good)
        return replace(
            self,
            rows=rows(self.rows),
            runs=runs._replace(batch=number[runs.batch]),
            ledger=rows(self.ledger),
            flows=pairs(self.flows),
            ranks=rows(self.ranks),
            iterations=rows(self.iterations),
            scores=rows(self.scores),
            exchanges=pairs(self.exchanges),
            nic=pairs(self.nic),
            disciplines={of[batch]: one for batch, one in self.disciplines.items() if batch in of},
            evidence={name: rows(table) for name, table in self.evidence.items()},
        )


def decode_many(messages: Sequence[netmon_pb2.Batch]) -> ManyBatches:
    """Messages → tables. A message that breaks the contract is in `refused`, and costs no other one anything."""
    refused, disciplines = dict[int, str](), dict[int, str]()
    heads = np.zeros(len(messages), HEADS)
    there, values, splits, pieces = list[int](), list[tuple[int, ...]](), list[Split](), list[Pieces]()
    for index, message in enumerate(messages):
        sequence, horizon_ns, clock, cost, own_buckets = _head(message)
        *times, discipline = _clock(clock)
        *amounts, heads["cpu_fraction"][index] = _cost(cost)
        try:
            if not message.HasField("clock"):
                raise WireError("Batch.clock is missing")
            split, piece = split_buckets(own_buckets), split_tables(message.tables)
            if discipline:
                disciplines[index] = read_name(discipline, "clock")
        except WireError as error:
            refused[index] = str(error)
            continue
        there.append(index)
        values.append((sequence, horizon_ns, split.bucket_ns, *times, *amounts))
        splits.append(split)
        pieces.append(piece)
    columns = np.array(values, np.int64).reshape(-1, len(HEAD.columns))
    check_limits(HEAD, columns, there, refused)
    for index in np.flatnonzero(~np.isfinite(heads["cpu_fraction"])).tolist():
        refused.setdefault(index, f"AgentCost.cpu_fraction is {heads['cpu_fraction'][index]}")
    # A difference of what is not read together may be a little below 0.
    heads["cpu_fraction"] = np.maximum(heads["cpu_fraction"], 0.0)
    for name, column in zip(HEAD.columns, columns.T, strict=True):
        heads[name][there] = column
    horizons = columns[:, 1].tolist()
    rows, runs, faults = join_buckets(splits, there, horizons)
    joined = join_tables(pieces, there, horizons)
    flows, wrong = read_flows(joined)
    for of in (faults, joined.faults, wrong):
        for index, reason in of.items():
            refused.setdefault(index, reason)
    tables = joined.tables
    many = ManyBatches(
        *(rows, runs, tables["ledger"], heads, flows, tables["ranks"], tables["iterations"], tables["scores"]),
        *(read_exchanges(joined), read_nic(joined), disciplines, refused),
        evidence={name: tables[name] for name in EVIDENCE},
        words=joined.words,
    )
    if not refused:
        return many
    good = np.ones(len(messages), np.bool_)
    good[list(refused)] = False
    heads[~good] = np.zeros(1, HEADS)
    return many.select(good, np.arange(len(messages)))


def filter_batches(many: ManyBatches, good: npt.NDArray[np.bool_]) -> ManyBatches:
    """Some of the batches, as if the others had not come; good: of each."""
    number = np.cumsum(good) - 1
    refused = {int(number[batch]): reason for batch, reason in many.refused.items() if good[batch]}
    return replace(many.select(good, number), heads=many.heads[good], refused=refused)
