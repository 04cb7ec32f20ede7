# SPDX-License-Identifier: Apache-2.0
"""What a capture's replay has at hand, in the tables that the stage takes: rows, flows and the ledger."""

from dataclasses import replace

import numpy as np

from collector.host.rows import fill_counts
from netmon.columnar import Columns
from netmon.dl.grouped import starts
from netmon.records import Batch
from netmon.wire.batch_fields import HEADS, ROWS, ManyBatches, Runs, decode_many
from netmon.wire.tables import LEDGER


def gather(batch: Batch) -> ManyBatches:
    """As decoding one message gives them. Nothing but these is looked at; times need not fit a message."""
    head, clock = np.zeros(1, HEADS), batch.clock
    for name in ("sequence", "horizon_ns", "bucket_ns"):
        head[name] = getattr(batch, name)
    for name in ("mono_ns", "utc_ns", "error_ns", "utc_error_ns"):
        head[name] = getattr(clock, name)
    samples = [(0, *vars(sample).values()) for sample in batch.ledger]
    ledger = np.array(samples, np.int64).reshape(-1, 1 + len(LEDGER.columns)).T
    rows, buckets = Columns.zeros(len(batch.buckets), ROWS), batch.buckets
    rows["bucket_ns"] = batch.bucket_ns
    rows["flow_id"], rows["start_ns"] = buckets["flow_id"], buckets["bucket_start_ns"]
    fill_counts(rows, buckets)
    first = starts(rows["batch"], rows["flow_id"])
    of_runs = rows["batch"][first].astype(np.int64), rows["flow_id"][first], np.diff(np.append(first, len(rows)))
    return replace(
        decode_many([]),
        rows=rows,
        runs=Runs(*of_runs),
        ledger=Columns(dict(zip(("batch", *LEDGER.columns), ledger.copy(), strict=True))),
        heads=head,
        flows=[(0, flow) for flow in batch.flows],
    )
