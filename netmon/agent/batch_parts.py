# SPDX-License-Identifier: Apache-2.0
"""Messages no larger than a collector takes: of a batch several, whoever was held up has many rows at once."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from netmon.records import Batch, Training
from netmon.wire.limits import MAX_FLOWS, MAX_MESSAGE_BYTES

MOST_ROWS = 1 << 17
"""Of a batch: at most 6 MB of a message, and half of what a collector takes."""

_NOTHING_ELSE: dict[str, Any] = dict.fromkeys(("flows", "ledger", "exchanges", "nic", "words"), ())
_NOTHING_ELSE |= {"evidence": {}, "training": Training()}
_BEHIND_NS = 5_000_000_000  # what else is in the batch must not lie too long after its horizon


def batch_parts(batch: Batch, most_rows: int = MOST_ROWS) -> Iterator[Batch]:
    """One or more batches with ascending numbers; the first has everything but the rows of the others.

    Rows go by time, so that a part's horizon is where the next one begins. Only when they lie far apart does a part's
    horizon pass rows that come later, as it does with stragglers.
    """
    rows = batch.buckets
    if len(rows) <= most_rows:
        yield batch
        return
    rows = rows[np.argsort(rows["bucket_start_ns"], kind="stable")]
    for number, first in enumerate(range(0, len(rows), most_rows)):
        end = first + most_rows
        next_ns = int(rows["bucket_start_ns"][end]) if end < len(rows) else batch.horizon_ns
        horizon_ns = min(batch.horizon_ns, max(next_ns, batch.horizon_ns - _BEHIND_NS))
        part = replace(batch, sequence=batch.sequence + number, horizon_ns=horizon_ns, buckets=rows[first:end])
        yield replace(part, **_NOTHING_ELSE) if number else part


def within_a_message(flows: Iterable[bytes]) -> Iterator[bytes]:
    """As many as a collector takes in an introduction. Batches whose flows are left out are refused one by one."""
    size = 0
    for flow in itertools.islice(flows, MAX_FLOWS):
        size += len(flow)
        if size > MAX_MESSAGE_BYTES // 2:
            return
        yield flow
