# SPDX-License-Identifier: Apache-2.0
"""Many batches of many agents at once: protobuf → tables; nothing per row in Python, little per batch.

`decode_batch` of netmon.wire.batches does the same to one. What is here has been checked completely: ranges, lengths,
counts and names. What only the session can tell (whether a flow or a link is known) is not.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from netmon.columnar import Columns
from netmon.errors import WireError
from netmon.evidence import HOST_PART, TRANSPORT
from netmon.mark_runs import MarkRun, MarkTable, mark_table, whose
from netmon.records import ClockExchange, Flow, Moment, NicSample, Table
from netmon.wire import netmon_pb2
from netmon.wire.buckets import COLUMNS, COLUMNS_COARSE, RUNS, column_widths, plain_columns
from netmon.wire.details import (
    LEDGER_MOST,
    check_counts,
    check_head,
    check_ledger,
    check_times,
    clock_values,
    cost_values,
    read_exchange,
    read_flow,
    read_mark,
    read_mark_runs,
    read_name,
    read_nic,
)
from netmon.wire.evidence_columns import Columns as EvidenceColumns
from netmon.wire.evidence_columns import read_jobs, split_evidence, stack_evidence
from netmon.wire.limits import (
    FURTHEST_NS,
    MAX_BYTES,
    MAX_COUNT,
    MAX_MONO_NS,
    MAX_ROWS,
    MAX_SPAN_NS,
    MAX_UTC_NS,
    MAX_WIDTH_NS,
)

ROWS = np.dtype(
    [("batch", "<i4"), ("flow_id", "<u4"), ("start_ns", "<i8"), ("bucket_ns", "<i8")]
    + [(name, "<u4") for name in ("packets", "wire_bytes", "payload_bytes", "peak_bytes", "busy_buckets")]
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
    return Split(
        *(rows, flows, bucket_ns, message.base_ns, message.unit_ns, message.coarse),
        *(runs, column_widths(runs, RUNS, flows, "runs")),
        *(columns, column_widths(columns, COLUMNS_COARSE if message.coarse else COLUMNS, rows, "columns")),
    )


def stack_buckets(
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
    counts, flows = (np.array([split[position] for split in splits], np.int64) for position in (0, 1))
    flow, run_rows, w, h = _join_columns([(s.runs, s.run_widths, s.flows) for s in splits], RUNS, _RUN_TYPES)
    run_rows = run_rows.astype(np.uint64)
    faults = _mend_runs(run_rows, flows, counts)
    flow, run_of = flow.astype(np.uint32, copy=False), run_rows.astype(np.int64)
    start, packets, short, headers = _join_columns(
        [(s.columns, s.column_widths, s.rows) for s in splits], COLUMNS, _COLUMN_TYPES
    )
    refused = {}
    latest = np.maximum.reduceat(start, np.cumsum(counts) - counts).tolist()
    for position, (split, index, horizon_ns) in enumerate(kept):
        try:
            if position in faults:
                raise WireError(f"Buckets.runs do not have {split.rows} rows")
            check_start(latest[position] * split.unit_ns + split.base_ns, horizon_ns)
        except WireError as error:
            refused[index] = str(error)
    batch = np.array([index for _, index, _ in kept], np.int32)
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
            COLUMNS_COARSE,
            _COLUMN_TYPES,
            first=COLUMNS,
        )
        if coarse.all():
            columns["peak_bytes"], columns["busy_buckets"] = pieces * w - less, busy.astype(np.uint32, copy=False)
        else:
            own, columns["peak_bytes"] = np.repeat(coarse, counts), wire.copy()
            columns["peak_bytes"][own] = pieces * w[own] - less
            columns["busy_buckets"][own] = busy
    return Columns(columns), Runs(np.repeat(batch, flows).astype(np.int64), flow, run_of), refused


def _of_rows(values: _Numbers, counts: _Counts) -> _Numbers:
    """The value of each row, of the message that it is in; (1,) where all have the same."""
    return values[:1] if (values == values[0]).all() else np.repeat(values, counts)


def check_start(latest_ns: int, horizon_ns: int) -> None:
    """Raise WireError where the last bucket of a message begins at no time."""
    if latest_ns > MAX_MONO_NS:
        raise WireError(f"Buckets.start has {latest_ns}, more than {MAX_MONO_NS}")
    check_times(horizon_ns, latest_ns, (), 0)


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


def _mend_runs(run_rows: _Column, flows: _Counts, counts: _Counts) -> set[int]:
    """Messages whose runs do not have its number of rows; they are made to, so that all others fall in place."""
    first = np.cumsum(flows) - flows
    most = np.maximum.reduceat(run_rows, first)
    sums = np.add.reduceat(np.minimum(run_rows, np.uint64(MAX_ROWS + 1)), first)
    wrong = (most > counts.astype(np.uint64)) | (sums != counts.astype(np.uint64))
    for index in np.flatnonzero(wrong).tolist():
        run_rows[first[index] : first[index] + flows[index]] = 0
        run_rows[first[index]] = counts[index]
    return set(np.flatnonzero(wrong).tolist())


# --- What is read message by message of many batches: as little as can be, and all of it checked.

LEDGER_FIELDS = ("interface", "direction", *LEDGER_MOST)

_sample = attrgetter(*LEDGER_FIELDS)
_head = attrgetter("sequence", "horizon_ns", "clock", "cost", "buckets", "marks", "ledger")
_clock = attrgetter("mono_ns", "utc_ns", "error_ns", "utc_error_ns", "discipline")
_cost = attrgetter("cpu_fraction", "rss_bytes", "spool_bytes", "warnings")
_few = attrgetter("flows", "exchanges", "nic")
_mark_fields = attrgetter("moment", "iteration", "time_ns", "error_ns")
_MOMENTS = [int(moment) for moment in Moment]
_LEAST_HEAD = np.array([1, 0, -1, 0, 0, 0, 0, 0, 0, 0])
_MOST_HEAD = np.array(
    [
        *(MAX_COUNT, MAX_MONO_NS, 1 << 62),
        *(MAX_MONO_NS, MAX_UTC_NS, MAX_SPAN_NS, MAX_SPAN_NS),
        *(MAX_BYTES, MAX_BYTES, MAX_BYTES),
    ]
)


class Fields:
    """What is read message by message."""

    def __init__(self) -> None:
        self.indices: list[int] = []  # of the messages that are not refused
        self.heads: list[tuple[int, ...]] = []
        self.loads: list[float] = []
        self.flows: list[tuple[int, Flow]] = []
        self.runs: list[tuple[int, MarkRun]] = []  # of marks, that were read one by one
        self.marks: MarkTable | None = None  # that were read together
        self.exchanges: list[tuple[int, ClockExchange]] = []
        self.nic: list[tuple[int, NicSample]] = []
        self.ledger: list[tuple[int, ...]] = []
        self.ledger_of: list[int] = []
        self.buckets: list[Split] = []
        self.disciplines: dict[int, str] = {}
        self.evidence: tuple[list[EvidenceColumns], list[EvidenceColumns]] = [], []  # of TRANSPORT, of HOST_PART
        self.evidence_of: tuple[list[int], list[int]] = [], []
        self.host_jobs: dict[int, tuple[str, ...]] = {}

    def add(self, index: int, message: netmon_pb2.Batch) -> None:
        """Read one completely, then keep it. Raises WireError."""
        buckets = split_buckets(message.buckets)
        check_counts(message)
        *clock, discipline = clock_values(message.clock)
        load, *cost = cost_values(message.cost)
        sequence, horizon_ns = check_head(message)
        flows = [read_flow(flow) for flow in message.flows]
        marks = read_mark_runs(message.marks)
        exchanges = [read_exchange(exchange) for exchange in message.exchanges]
        nic = read_nic(message.nic)
        ledger = [_sample(sample) for sample in message.ledger]
        for sample in ledger:
            check_ledger("direction", sample[1], 1)
            check_ledger("time_ns", sample[2], LEDGER_MOST["time_ns"])
        check_times(horizon_ns, 0, flows, max((sample[2] for sample in ledger), default=0))
        self._add_evidence(index, message)
        self.indices.append(index)
        self.heads.append((sequence, horizon_ns, buckets.bucket_ns, *clock, *cost))
        self.loads.append(load)
        self.buckets.append(buckets)
        if flows:
            self.flows += [(index, flow) for flow in flows]
        if marks:
            self.runs += [(index, run) for run in marks]
        if exchanges:
            self.exchanges += [(index, exchange) for exchange in exchanges]
        if nic:
            self.nic += [(index, sample) for sample in nic]
        if ledger:
            self.ledger += ledger
            self.ledger_of += [index] * len(ledger)
        if discipline:
            self.disciplines[index] = discipline

    def _add_evidence(self, index: int, message: netmon_pb2.Batch) -> None:
        if message.HasField("transport"):
            self.evidence[0].append(split_evidence(message.transport, TRANSPORT))
            self.evidence_of[0].append(index)
        if message.HasField("host"):
            columns = split_evidence(message.host, HOST_PART)
            self.host_jobs[index] = read_jobs(message.host, columns)
            self.evidence[1].append(columns)
            self.evidence_of[1].append(index)


def gather(messages: Sequence[netmon_pb2.Batch]) -> Fields:
    """As Fields.add of each, in half of the time. Raises WireError, OverflowError where one of them is wrong."""
    found = Fields()
    marks: list[netmon_pb2.Mark] = []
    counts: list[int] = []
    for index, message in enumerate(messages):
        sequence, horizon_ns, clock, cost, own_buckets, own_marks, ledger = _head(message)
        check_counts(message)
        if not message.HasField("clock"):
            raise WireError("Batch.clock is missing")
        buckets = split_buckets(own_buckets)
        *times, discipline = _clock(clock)
        load, *amounts = _cost(cost)
        found.heads.append((sequence, horizon_ns, buckets.bucket_ns, *times, *amounts))
        found.loads.append(load)
        found.buckets.append(buckets)
        marks += own_marks
        counts.append(len(own_marks))
        if ledger:
            found.ledger += map(_sample, ledger)
            found.ledger_of += [index] * len(ledger)
        flows, exchanges, nic = _few(message)
        if flows:
            own = [read_flow(flow) for flow in flows]
            check_times(horizon_ns, 0, own, 0)
            found.flows += [(index, flow) for flow in own]
        if exchanges:
            found.exchanges += [(index, read_exchange(exchange)) for exchange in exchanges]
        if nic:
            found.nic += [(index, sample) for sample in read_nic(nic)]
        if discipline:
            found.disciplines[index] = read_name(discipline, "clock")
        found._add_evidence(index, message)
    found.indices = list(range(len(messages)))
    _check_heads(found)
    found.marks = _mark_table(marks, counts)
    return found


def _check_heads(found: Fields) -> None:
    heads = np.array(found.heads, np.int64).reshape(-1, len(_MOST_HEAD))
    loads = np.array(found.loads, np.float64)
    good = ((heads >= _LEAST_HEAD) & (heads <= _MOST_HEAD)).all() and np.isfinite(loads).all()
    for index, sample in zip(found.ledger_of, found.ledger, strict=True):
        good &= sample[1] <= 1 and sample[2] <= min(LEDGER_MOST["time_ns"], found.heads[index][1] + FURTHEST_NS)
        good &= sample[2] >= 0
    if not good:
        raise WireError("a batch holds impossible values")
    found.loads = np.maximum(loads, 0.0).tolist()


def _mark_table(marks: list[netmon_pb2.Mark], counts: list[int]) -> MarkTable:
    """As mark_table of read_mark_runs of each message's; counts: how many marks each has."""
    if not marks:
        return mark_table(())
    known: dict[tuple[object, ...], int] = {}
    number = np.array([known.setdefault(who, len(known)) for who in map(whose, marks)], np.int64)
    rows = np.array(list(map(_mark_fields, marks)), np.int64)
    most = np.array([max(_MOMENTS), MAX_COUNT, MAX_MONO_NS, MAX_SPAN_NS])
    if (rows < 0).any() or (rows > most).any() or not np.isin(rows[:, 0], _MOMENTS).all():
        raise WireError("a mark holds impossible values")
    leaders = [read_mark(marks[index]) for index in np.unique(number, return_index=True)[1].tolist()]
    columns = (np.repeat(np.arange(len(counts)), counts), number, *(np.ascontiguousarray(one) for one in rows.T))
    return MarkTable([whose(one) for one in leaders], *columns)


# --- many


LEDGER = np.dtype([("batch", "<i4"), *((name, "<i8") for name in LEDGER_FIELDS)])
HEADS = np.dtype(
    [(name, "<i8") for name in ("sequence", "horizon_ns", "bucket_ns", "mono_ns", "utc_ns", "error_ns", "utc_error_ns")]
    + [(name, "<i8") for name in ("rss_bytes", "spool_bytes", "warnings")]
    + [("cpu_fraction", "<f8")]
)
"""A batch: its number, clock sample and cost; bucket_ns: width of its rows, 0: the hello's. A refused one is all 0."""

_T = TypeVar("_T")
_Rows = TypeVar("_Rows", Columns, Table)


@dataclass(frozen=True)
class ManyBatches:
    """What n messages hold; `batch` and the first of each pair: which of them, from 0. All in the messages' order."""

    rows: Columns  # of ROWS: all their bucket rows; a batch's in its order
    runs: Runs  # of the rows, in their order
    ledger: Table  # dtype LEDGER
    heads: Table  # (n,), dtype HEADS
    flows: Sequence[tuple[int, Flow]]
    marks: MarkTable
    exchanges: Sequence[tuple[int, ClockExchange]]
    nic: Sequence[tuple[int, NicSample]]
    disciplines: Mapping[int, str]  # who keeps the host's clock, of the batches that say so
    refused: Mapping[int, str]  # why, in one line; nothing of such a batch is in the tables
    transport: Columns  # with `batch`, as the next one
    host: Columns
    host_jobs: Mapping[int, Sequence[str]]  # that `host` names, by batch


def decode_many(messages: Sequence[netmon_pb2.Batch]) -> ManyBatches:
    """Messages → tables. A message that breaks the contract is in `refused`, and costs no other one anything."""
    refused = dict[int, str]()
    try:
        fields = gather(messages)
    except (WireError, OverflowError):  # something is wrong with one of them
        fields = Fields()
        for index, message in enumerate(messages):
            try:
                fields.add(index, message)
            except WireError as error:
                refused[index] = str(error)
    ledger = _ledger(fields, refused)
    horizons = [head[1] for head in fields.heads]
    rows, runs, faults = stack_buckets(fields.buckets, fields.indices, horizons)
    for index, reason in faults.items():
        refused.setdefault(index, reason)
    horizon_of = dict(zip(fields.indices, horizons, strict=True))
    evidence = []
    for pieces, of, dtype in zip(fields.evidence, fields.evidence_of, (TRANSPORT, HOST_PART), strict=True):
        table, faults = stack_evidence(pieces, of, [horizon_of.get(index, 0) for index in of], dtype)
        evidence.append(table)
        for index, reason in faults.items():
            refused.setdefault(index, reason)
    heads = np.zeros(len(messages), HEADS)
    if fields.indices:
        columns = np.array(fields.heads, np.int64).T
        for name, column in zip(HEADS.names or (), columns, strict=False):
            heads[name][fields.indices] = column
        heads["cpu_fraction"][fields.indices] = fields.loads
    marks = mark_table(fields.runs) if fields.marks is None else fields.marks
    many = ManyBatches(
        *(rows, runs, ledger, heads, fields.flows, marks, fields.exchanges, fields.nic),
        *(fields.disciplines, refused),
        transport=evidence[0],
        host=evidence[1],
        host_jobs=fields.host_jobs,
    )
    late = refused.keys() & set(fields.indices)
    return _without(many, late) if late else many


def _ledger(fields: Fields, refused: dict[int, str]) -> Table:
    table = np.zeros(len(fields.ledger), LEDGER)
    if not len(table):
        return table
    flat = np.fromiter(chain.from_iterable(fields.ledger), np.uint64, len(table) * len(LEDGER_FIELDS))
    columns = flat.reshape(len(table), -1)
    most = np.array([2**32, 1, *LEDGER_MOST.values()], np.uint64)
    for row in np.flatnonzero((columns > most).any(axis=1)).tolist():
        field = int(np.flatnonzero(columns[row] > most)[0])
        try:
            check_ledger(LEDGER_FIELDS[field], int(columns[row, field]), int(most[field]))
        except WireError as error:
            refused.setdefault(fields.ledger_of[row], str(error))
    table["batch"] = fields.ledger_of
    for field, name in enumerate(LEDGER_FIELDS):
        table[name] = columns[:, field]
    return table


def _without(many: ManyBatches, late: set[int]) -> ManyBatches:
    """All but the batches that turned out to be refused."""
    gone = np.array(sorted(late))
    heads = many.heads.copy()
    heads[gone] = np.zeros(1, HEADS)
    good = np.ones(len(heads), np.bool_)
    good[gone] = False
    rows = many.rows[good[many.rows["batch"]]]
    ledger = many.ledger[good[many.ledger["batch"]]]
    transport, host = (table[good[table["batch"]]] for table in (many.transport, many.host))
    disciplines = {index: discipline for index, discipline in many.disciplines.items() if index not in late}
    return ManyBatches(
        *(rows, many.runs.of(good), ledger, heads, _others(many.flows, late), many.marks.take(good[many.marks.batch])),
        *(_others(many.exchanges, late), _others(many.nic, late), disciplines, many.refused),
        transport=transport,
        host=host,
        host_jobs=many.host_jobs,
    )


def filter_batches(many: ManyBatches, good: npt.NDArray[np.bool_]) -> ManyBatches:
    """Some of the batches, as if the others had not come; good: of each."""
    number = np.cumsum(good) - 1
    of = dict(zip(np.flatnonzero(good).tolist(), range(int(good.sum())), strict=True))

    def own(table: _Rows) -> _Rows:
        kept: _Rows = table[good[table["batch"]]]
        kept["batch"] = number[kept["batch"]]
        return kept

    runs = many.runs.of(good)
    flows, exchanges, nic = many.flows, many.exchanges, many.nic
    kept = many.marks.take(good[many.marks.batch])
    return ManyBatches(
        rows=own(many.rows),
        runs=runs._replace(batch=number[runs.batch]),
        ledger=own(many.ledger),
        heads=many.heads[good],
        flows=[(of[batch], flow) for batch, flow in flows if batch in of],
        marks=replace(kept, batch=number[kept.batch]),
        exchanges=[(of[batch], exchange) for batch, exchange in exchanges if batch in of],
        nic=[(of[batch], sample) for batch, sample in nic if batch in of],
        disciplines={of[batch]: one for batch, one in many.disciplines.items() if batch in of},
        refused={of[batch]: one for batch, one in many.refused.items() if batch in of},
        transport=own(many.transport),
        host=own(many.host),
        host_jobs={of[batch]: jobs for batch, jobs in many.host_jobs.items() if batch in of},
    )


def _others(items: Sequence[tuple[int, _T]], late: set[int]) -> list[tuple[int, _T]]:
    return [item for item in items if item[0] not in late]
