# SPDX-License-Identifier: Apache-2.0
"""Batches of many agents as tables, of batches that are decoded one by one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from netmon.errors import WireError
from netmon.records import COARSE, Batch, ClockExchange, Flow, LedgerSample, Mark, NicSample, Table, empty
from netmon.wire import netmon_pb2
from netmon.wire.batches import decode_batch

ROWS = np.dtype(
    [("batch", "<i4"), ("flow_id", "<u4"), ("start_ns", "<i8")]
    + [(n, "<i8") for n in ("bucket_ns", "packets", "wire_bytes", "payload_bytes", "peak_bytes", "busy_buckets")]
)
"""A bucket row: which batch, mono time, width (0: the hello's bucket_ns), counts."""

LEDGER = np.dtype([("batch", "<i4"), *((name, "<i8") for name in LedgerSample.__dataclass_fields__)])

HEADS = np.dtype(
    [(name, "<i8") for name in ("sequence", "horizon_ns", "bucket_ns", "mono_ns", "utc_ns", "error_ns", "utc_error_ns")]
    + [(name, "<i8") for name in ("rss_bytes", "spool_bytes", "warnings")]
    + [("cpu_fraction", "<f8")]
)
"""A batch: its number, clock sample and cost; bucket_ns: width of its rows, 0: the hello's."""


@dataclass(frozen=True)
class ManyBatches:
    """What n batches hold; `batch` and the first of each pair: which of them, from 0. All in the batches' order."""

    rows: Table  # dtype ROWS
    ledger: Table  # dtype LEDGER
    heads: Table  # (n,), dtype HEADS
    flows: Sequence[tuple[int, Flow]]
    marks: Sequence[tuple[int, Mark]]
    exchanges: Sequence[tuple[int, ClockExchange]]
    nic: Sequence[tuple[int, NicSample]]
    disciplines: Mapping[int, str]  # who keeps the host's clock, of the batches that say so
    refused: Mapping[int, str]  # why, in one line; nothing of such a batch is in the tables


def decode_many(messages: Sequence[netmon_pb2.Batch]) -> ManyBatches:
    """Messages → tables. A message that breaks the contract is in `refused`, and costs no other one anything."""
    batches: list[Batch | None] = []
    refused = {}
    for index, message in enumerate(messages):
        try:
            batches.append(decode_batch(message))
        except WireError as error:
            batches.append(None)
            refused[index] = str(error)
    return gather(batches, refused)


def gather(batches: Sequence[Batch | None], refused: Mapping[int, str]) -> ManyBatches:
    """Batches as tables; None: one that is refused."""
    there = [(index, batch) for index, batch in enumerate(batches) if batch]
    heads = np.zeros(len(batches), HEADS)
    for index, batch in there:
        clock, cost = batch.clock, batch.cost
        heads[index] = (
            *(batch.sequence, batch.horizon_ns, batch.bucket_ns, clock.mono_ns, clock.utc_ns, clock.error_ns),
            *(clock.utc_error_ns, cost.rss_bytes, cost.spool_bytes, cost.warnings, cost.cpu_fraction),
        )
    samples = [(index, *vars(sample).values()) for index, batch in there for sample in batch.ledger]
    return ManyBatches(
        rows=np.concatenate([empty(ROWS), *(_rows(index, batch) for index, batch in there)]),
        ledger=np.array(samples, LEDGER),
        heads=heads,
        flows=[(index, flow) for index, batch in there for flow in batch.flows],
        marks=[(index, mark) for index, batch in there for mark in batch.marks],
        exchanges=[(index, exchange) for index, batch in there for exchange in batch.exchanges],
        nic=[(index, sample) for index, batch in there for sample in batch.nic],
        disciplines={index: batch.clock.discipline for index, batch in there if batch.clock.discipline},
        refused=refused,
    )


def _rows(index: int, batch: Batch) -> Table:
    buckets = batch.buckets
    rows = np.empty(len(buckets), ROWS)
    rows["batch"], rows["bucket_ns"] = index, batch.bucket_ns
    rows["flow_id"], rows["start_ns"] = buckets["flow_id"], buckets["bucket_start_ns"]
    for name in ("packets", "wire_bytes", "payload_bytes"):
        rows[name] = buckets[name]
    coarse = buckets.dtype == COARSE
    rows["peak_bytes"] = buckets["peak_bytes"] if coarse else rows["wire_bytes"]
    rows["busy_buckets"] = buckets["busy_buckets"] if coarse else 1
    return rows
