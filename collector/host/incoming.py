# SPDX-License-Identifier: Apache-2.0
"""Batches that are at hand as records, in the tables that the stage takes."""

from collections.abc import Sequence

import numpy as np

from collector.host.rows import fill_counts
from netmon.columnar import Columns, joined
from netmon.dl.grouped import starts
from netmon.evidence import EVIDENCE
from netmon.records import Batch, empty
from netmon.wire.batch_fields import HEADS, ROWS, ManyBatches, Runs
from netmon.wire.tables import ITERATIONS, LEDGER, RANKS, SCORES, Format, Words, rows_of


def gather(batches: Sequence[Batch]) -> ManyBatches:
    """Batches as the tables that decoding many messages gives."""
    there = list(enumerate(batches))
    heads = np.zeros(len(batches), HEADS)
    for index, batch in there:
        clock, cost = batch.clock, batch.cost
        heads[index] = (
            *(batch.sequence, batch.horizon_ns, batch.bucket_ns, clock.mono_ns, clock.utc_ns, clock.error_ns),
            *(clock.utc_error_ns, cost.rss_bytes, cost.spool_bytes, cost.warnings, cost.cpu_fraction),
        )
    words = dict[str, int]()
    samples = [(index, *vars(sample).values()) for index, batch in there for sample in batch.ledger]
    ledger = np.array(samples, np.int64).reshape(-1, 1 + len(LEDGER.columns)).T
    rows = joined([Columns.zeros(0, ROWS), *(_rows(index, batch) for index, batch in there)])
    return ManyBatches(
        rows=rows,
        runs=_runs(rows),
        ledger=Columns(dict(zip(("batch", *LEDGER.columns), ledger.copy(), strict=True))),
        heads=heads,
        flows=[(index, flow) for index, batch in there for flow in batch.flows],
        ranks=_of_training(batches, RANKS, words),
        iterations=_of_training(batches, ITERATIONS, words),
        scores=_of_training(batches, SCORES, words),
        exchanges=[(index, exchange) for index, batch in there for exchange in batch.exchanges],
        nic=[(index, sample) for index, batch in there for sample in batch.nic],
        disciplines={index: batch.clock.discipline for index, batch in there if batch.clock.discipline},
        refused={},
        evidence={name: _evidence(name, batches, words) for name in EVIDENCE},
        words=list(words),
    )


def _of_training(batches: Sequence[Batch], format_: Format, words: dict[str, int]) -> Columns:
    """words: as `_evidence` takes them."""
    own = [Words(list(words)) for _ in batches]
    tables = [rows_of(one, training=batch.training).get(format_.name) for one, batch in zip(own, batches, strict=True)]
    found = [Columns.zeros(0, np.dtype([("batch", "<i4"), *((name, "<i8") for name in format_.columns)]))]
    for index, (table, one) in enumerate(zip(tables, own, strict=True)):
        if table is None:
            continue
        columns = dict(zip(format_.columns, table.T.copy(), strict=True))
        places = np.array([*(words.setdefault(word, len(words)) for word in one.all), -1])
        for name, limits in format_.columns.items():
            if limits.is_word:
                columns[name] = places[columns[name]]
        found.append(Columns({"batch": np.full(len(table), index, np.int32), **columns}))
    return joined(found)


def _evidence(name: str, batches: Sequence[Batch], words: dict[str, int]) -> Columns:
    """words: places of those that all batches' tables name."""
    tables = [batch.evidence.get(name, empty(EVIDENCE[name])) for batch in batches]
    found = Columns(
        {"batch": np.repeat(np.arange(len(tables)), [len(table) for table in tables])}
        | {column: np.concatenate([table[column] for table in tables]) for column in EVIDENCE[name].names or ()}
    )
    if "job" in found.names:
        places = [[words.setdefault(word, len(words)) for word in batch.words] for batch in batches]
        pairs = zip(found["batch"].tolist(), found["job"].tolist(), strict=True)
        found["job"] = [places[batch][job] if job >= 0 else job for batch, job in pairs]
    return found


def _rows(index: int, batch: Batch) -> Columns:
    buckets = batch.buckets
    rows = Columns.zeros(len(buckets), ROWS)
    rows["batch"], rows["bucket_ns"] = index, batch.bucket_ns
    rows["flow_id"], rows["start_ns"] = buckets["flow_id"], buckets["bucket_start_ns"]
    fill_counts(rows, buckets)
    return rows


def _runs(rows: Columns) -> Runs:
    first = starts(rows["batch"], rows["flow_id"])
    batch, flow_id = (rows[name][first] for name in ("batch", "flow_id"))
    return Runs(batch.astype(np.int64), flow_id, np.diff(np.append(first, len(rows))))
