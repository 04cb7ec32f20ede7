# SPDX-License-Identifier: Apache-2.0
"""Many batches decoded at once are what each is by itself, and one that is refused costs no other one anything."""

from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_wire_batches import BATCH, BROKEN_BATCHES, COARSE_ROWS, HORIZON, MAX_COUNT, U32, a_batch

from netmon.errors import WireError
from netmon.records import COARSE, Batch, ClockSample, Columns
from netmon.wire import netmon_pb2
from netmon.wire.batch_fields import HEADS, ROWS, ManyBatches, decode_many
from netmon.wire.batches import decode_batch, encode_batch
from netmon.wire.tables import read_ranks


def coarse_batch(rows: list[tuple[int, ...]], sequence: int, width: int, horizon_ns: int) -> Batch:
    table = np.zeros(len(rows), COARSE)
    names = ("flow_id", "packets", "wire_bytes", "payload_bytes", "peak_bytes", "busy_buckets", "bucket_start_ns")
    for name, column in zip(names, zip(*rows, strict=True), strict=False):
        table[name] = column
    return Batch(sequence, ClockSample(1, 2, 3), horizon_ns, table, bucket_ns=width)


COARSE_BATCH = st.builds(coarse_batch, COARSE_ROWS, st.integers(1, MAX_COUNT), st.integers(0, 10**9), HORIZON)
MESSAGES = st.lists(st.one_of(BATCH, COARSE_BATCH).map(encode_batch), max_size=6)


def one_by_one(messages: list[netmon_pb2.Batch]) -> dict[int, Batch]:
    batches = {}
    for index, message in enumerate(messages):
        try:
            batches[index] = decode_batch(message)
        except WireError:
            continue
    return batches


def assert_same(many: ManyBatches, messages: list[netmon_pb2.Batch]) -> None:
    batches = one_by_one(messages)
    assert set(many.refused) == set(range(len(messages))) - set(batches)
    assert len(many.heads) == len(messages)
    assert all(many.heads[index] == np.zeros(1, HEADS)[0] for index in many.refused)
    assert set(many.rows["batch"].tolist()) == {index for index, batch in batches.items() if len(batch.buckets)}
    assert many.runs.rows.sum() == len(many.rows)
    assert np.repeat(many.runs.batch, many.runs.rows).tolist() == many.rows["batch"].tolist()
    for index, batch in batches.items():
        rows, buckets = many.rows[many.rows["batch"] == index], batch.buckets
        assert len(rows) == len(buckets)
        coarse = buckets.dtype == COARSE
        wanted = Columns.zeros(len(buckets), ROWS)
        wanted["batch"], wanted["bucket_ns"] = index, batch.bucket_ns
        wanted["start_ns"] = buckets["bucket_start_ns"]
        for name in ("flow_id", "packets", "wire_bytes", "payload_bytes"):
            wanted[name] = buckets[name]
        wanted["peak_bytes"] = buckets["peak_bytes"] if coarse else buckets["wire_bytes"]
        wanted["busy_buckets"] = buckets["busy_buckets"] if coarse else 1
        for name in wanted.names:
            assert rows[name].dtype == wanted[name].dtype
            assert rows[name].tolist() == wanted[name].tolist()
        of_runs = np.repeat(many.runs.flow_id, many.runs.rows)[many.rows["batch"] == index]
        assert of_runs.tolist() == buckets["flow_id"].tolist()
        clock, cost = batch.clock, batch.cost
        head = (batch.sequence, batch.horizon_ns, batch.bucket_ns, *astuple(clock)[:4])
        assert many.heads[index].tolist() == (
            *head,
            *(cost.rss_bytes, cost.spool_bytes, cost.warnings, cost.cpu_fraction),
        )
        assert many.disciplines.get(index, "") == clock.discipline
    assert list(zip(many.ranks["batch"].tolist(), read_ranks(many.ranks, many.words), strict=True)) == [
        (index, rank) for index, batch in batches.items() for rank in batch.training.ranks
    ]
    for name in ("flows", "exchanges", "nic"):
        wanted_pairs = [(index, item) for index, batch in batches.items() for item in getattr(batch, name)]
        assert list(getattr(many, name)) == wanted_pairs
    ledger = [(index, *astuple(sample)) for index, batch in batches.items() for sample in batch.ledger]
    names = ["batch", *(field for field in type(a_batch().ledger[0]).__dataclass_fields__)]
    assert list(zip(*(many.ledger[name].tolist() for name in names), strict=True)) == ledger


@given(MESSAGES)
@settings(max_examples=100, deadline=None)
def test_many_batches_are_what_each_is_by_itself(messages: list[netmon_pb2.Batch]) -> None:
    assert_same(decode_many(messages), messages)


@pytest.mark.parametrize("reason", BROKEN_BATCHES)
def test_one_that_is_refused_costs_no_other_anything(reason: str) -> None:
    messages = [encode_batch(a_batch()) for _ in range(3)]
    BROKEN_BATCHES[reason](messages[1])
    many = decode_many(messages)
    assert reason in many.refused[1]
    assert_same(many, messages)


@given(MESSAGES, st.lists(st.tuples(U32, U32, st.integers(0, 255)), min_size=1, max_size=6))
@settings(max_examples=200, deadline=None)
def test_mutated_batches_are_refused_or_read_alike(
    messages: list[netmon_pb2.Batch], changes: list[tuple[int, int, int]]
) -> None:
    for which, place, value in changes:
        if not messages:
            return
        data = bytearray(messages[which % len(messages)].SerializeToString())
        data[place % len(data)] = value
        try:
            messages[which % len(messages)] = netmon_pb2.Batch.FromString(bytes(data))
        except Exception:  # protobuf refuses it: it never gets here
            continue
    assert_same(decode_many(messages), messages)


@given(BATCH, st.integers(0, 3), st.binary(max_size=60), st.binary(max_size=30), st.integers(0, 40), st.integers(0, 5))
@settings(max_examples=200, deadline=None)
def test_any_columns_are_refused_or_read_alike(
    batch: Batch, place: int, columns: bytes, runs: bytes, rows: int, flows: int
) -> None:
    messages = [encode_batch(a_batch()) for _ in range(3)]
    messages.insert(place, encode_batch(batch))
    buckets = messages[place].buckets
    buckets.columns, buckets.runs, buckets.deflated = columns, runs, False
    buckets.rows, buckets.flows = rows, flows
    assert_same(decode_many(messages), messages)
