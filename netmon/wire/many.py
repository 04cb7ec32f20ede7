# SPDX-License-Identifier: Apache-2.0
"""Many batches of many agents at once: protobuf → tables; nothing per row in Python, little per batch.

`decode_batch` of netmon.wire.batches does the same to one. What is here has been checked completely: ranges, lengths,
counts and names. What only the session can tell (whether a flow or a link is known) is not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from netmon.columnar import Columns
from netmon.errors import WireError
from netmon.evidence import HOST_PART, TRANSPORT
from netmon.mark_runs import MarkTable, mark_table
from netmon.records import ClockExchange, Flow, NicSample, Table
from netmon.wire import netmon_pb2
from netmon.wire.details import LEDGER_MOST, check_ledger
from netmon.wire.evidence_columns import no_evidence, stack_evidence
from netmon.wire.gathered import LEDGER_FIELDS, Gathered, gather
from netmon.wire.stacked import Runs, stack_buckets

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
    transport: Columns = field(default_factory=lambda: no_evidence(TRANSPORT))  # with `batch`, as the next one
    host: Columns = field(default_factory=lambda: no_evidence(HOST_PART))
    host_jobs: Mapping[int, Sequence[str]] = field(default_factory=dict)  # that `host` names, by batch


def decode_many(messages: Sequence[netmon_pb2.Batch]) -> ManyBatches:
    """Messages → tables. A message that breaks the contract is in `refused`, and costs no other one anything."""
    refused = dict[int, str]()
    try:
        gathered = gather(messages)
    except (WireError, OverflowError):  # something is wrong with one of them
        gathered = Gathered()
        for index, message in enumerate(messages):
            try:
                gathered.add(index, message)
            except WireError as error:
                refused[index] = str(error)
    ledger = _ledger(gathered, refused)
    horizons = [head[1] for head in gathered.heads]
    rows, runs, faults = stack_buckets(gathered.buckets, gathered.indices, horizons)
    for index, reason in faults.items():
        refused.setdefault(index, reason)
    horizon_of = dict(zip(gathered.indices, horizons, strict=True))
    evidence = []
    for pieces, of, dtype in zip(gathered.evidence, gathered.evidence_of, (TRANSPORT, HOST_PART), strict=True):
        table, faults = stack_evidence(pieces, of, [horizon_of.get(index, 0) for index in of], dtype)
        evidence.append(table)
        for index, reason in faults.items():
            refused.setdefault(index, reason)
    heads = np.zeros(len(messages), HEADS)
    if gathered.indices:
        columns = np.array(gathered.heads, np.int64).T
        for name, column in zip(HEADS.names or (), columns, strict=False):
            heads[name][gathered.indices] = column
        heads["cpu_fraction"][gathered.indices] = gathered.loads
    marks = mark_table(gathered.runs) if gathered.marks is None else gathered.marks
    many = ManyBatches(
        *(rows, runs, ledger, heads, gathered.flows, marks, gathered.exchanges, gathered.nic),
        *(gathered.disciplines, refused),
        transport=evidence[0],
        host=evidence[1],
        host_jobs=gathered.host_jobs,
    )
    late = refused.keys() & set(gathered.indices)
    return _without(many, late) if late else many


def _ledger(gathered: Gathered, refused: dict[int, str]) -> Table:
    table = np.zeros(len(gathered.ledger), LEDGER)
    if not len(table):
        return table
    flat = np.fromiter(chain.from_iterable(gathered.ledger), np.uint64, len(table) * len(LEDGER_FIELDS))
    columns = flat.reshape(len(table), -1)
    most = np.array([2**32, 1, *LEDGER_MOST.values()], np.uint64)
    for row in np.flatnonzero((columns > most).any(axis=1)).tolist():
        field = int(np.flatnonzero(columns[row] > most)[0])
        try:
            check_ledger(LEDGER_FIELDS[field], int(columns[row, field]), int(most[field]))
        except WireError as error:
            refused.setdefault(gathered.ledger_of[row], str(error))
    table["batch"] = gathered.ledger_of
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


def keep(many: ManyBatches, good: npt.NDArray[np.bool_]) -> ManyBatches:
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
