# SPDX-License-Identifier: Apache-2.0
"""A batch with more rows than a message may have becomes several, and together they are what it was."""

import itertools

import numpy as np
import pytest
from test_wire_batches import A_FLOW, A_TRAINING, a_batch, in_order

from netmon.records import BUCKET, COARSE, Batch, ClockSample, Table
from netmon.wire.batches import MOST_ROWS, batch_parts, decode_batch, encode_batch
from netmon.wire.limits import MAX_MESSAGE_BYTES, MAX_ROWS

SECOND = 1_000_000_000


def a_large_batch(rows: int, span_ns: int) -> Batch:
    rng = np.random.default_rng(1)
    table = np.zeros(rows, BUCKET)
    table["bucket_start_ns"] = 100 * SECOND + rng.integers(0, span_ns, rows)
    table["flow_id"], table["packets"] = rng.integers(0, 9, rows), 1
    ledger = a_batch().ledger
    return Batch(7, ClockSample(1, 2, 3), 100 * SECOND + span_ns, table, (A_FLOW,), A_TRAINING, ledger)


@pytest.mark.parametrize("rows", [0, 10, 11, 35])
def test_parts_are_the_batch(rows: int) -> None:
    batch = a_large_batch(rows, SECOND)
    parts = list(batch_parts(batch, 10))
    assert [part.sequence for part in parts] == list(range(7, 7 + len(parts)))
    assert in_order(np.concatenate([part.buckets for part in parts])) == in_order(batch.buckets)
    assert (parts[0].flows, parts[0].training, parts[0].ledger) == (batch.flows, batch.training, batch.ledger)
    assert not any(part.flows or part.training or part.ledger for part in parts[1:])
    assert parts[-1].horizon_ns == batch.horizon_ns
    for part, after in itertools.pairwise(parts):
        assert part.horizon_ns <= after.buckets["bucket_start_ns"].min()
        assert len(part.buckets) == 10


def test_a_part_has_no_horizon_long_before_its_other_contents() -> None:
    batch = a_large_batch(30, 60 * SECOND)
    assert all(part.horizon_ns >= batch.horizon_ns - 5 * SECOND for part in batch_parts(batch, 10))


def test_the_largest_part_fits_into_a_message() -> None:
    assert MOST_ROWS < MAX_ROWS
    table: Table = np.zeros(MOST_ROWS, COARSE)
    rng = np.random.default_rng(1)
    for name in COARSE.names or ():
        table[name] = rng.integers(0, 2**59 if name == "bucket_start_ns" else 2**32, MOST_ROWS)
    message = encode_batch(Batch(1, ClockSample(1, 2, 3), 2**59, table))
    assert message.ByteSize() < MAX_MESSAGE_BYTES / 2
    assert len(decode_batch(message).buckets) == MOST_ROWS
