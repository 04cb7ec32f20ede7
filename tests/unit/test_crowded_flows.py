# SPDX-License-Identifier: Apache-2.0
"""Flows of one host that are too many: a real collector keeps some, and every byte; hosts that live long have room."""

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from collector_stream import MS, Host, S, clock, hello
from in_process import JobsHere, take
from test_collector_server import collector, send

from collector.dataset.sink import ParquetSink
from collector.host import flows as flow_table
from collector.registry import Registry
from collector.settings import Settings
from netmon.records import BUCKET, Batch, Direction, Flow, Owner

_MOST = 500


def crowd(batch: Batch, first: int, count: int) -> Batch:
    """With so many flows more, each with an owner, which carry 100 B in one of its buckets."""
    owner = Owner(12, "scan", "", "", -1, "socket")
    until = batch.horizon_ns
    new = [
        Flow(number, 7, Direction.RX, "198.18.0.9", "198.18.0.1", number % 60_000, 80, 6, until - 50 * MS, owner)
        for number in range(first, first + count)
    ]
    rows = np.zeros(count, BUCKET)
    rows["flow_id"], rows["bucket_start_ns"] = np.arange(first, first + count), until - 50 * MS
    rows["packets"], rows["wire_bytes"], rows["payload_bytes"] = 1, 100, 34
    return replace(batch, flows=(*batch.flows, *new), buckets=np.concatenate([batch.buckets, rows]))


def test_flows_beyond_the_bound_lose_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_table, "MOST_FLOWS", _MOST)
    source = Host()
    batches = [crowd(source.batch(), 1_000 * number, 300) for number in range(1, 11)]
    again = replace(source.batch(), flows=())
    rows = batches[9].buckets[200:].copy()  # of flows that are known already
    rows["bucket_start_ns"] += 100 * MS
    batches.append(replace(again, buckets=np.concatenate([again.buckets, rows])))

    async def scenario() -> None:
        async with collector(tmp_path) as stub:
            assert (await send(stub, [hello(), *batches]))[-1] == 11

    asyncio.run(scenario())
    stored = pd.read_parquet(tmp_path / "data" / "buckets")
    assert stored["wire_bytes"].sum() == sum(int(batch.buckets["wire_bytes"].sum()) for batch in batches)
    flows = pd.read_parquet(tmp_path / "data" / "flows").drop_duplicates("flow_id", keep="last")
    assert len(flows) <= _MOST + 2
    (overflow,) = flows[flows["members"] > 0].to_dict("records")
    assert (overflow["class"], overflow["members"]) == ("unclassified", 3_004 - _MOST)
    beyond = stored[stored["flow_id"] == overflow["flow_id"]]
    assert beyond["wire_bytes"].sum() == (3_004 - _MOST + 300) * 100


def test_a_host_with_many_short_flows_over_a_long_time_has_room(tmp_path: Path) -> None:
    """Beside them are flows that last, and would keep those that began with them."""
    step_ns, most = 60 * S, 0

    async def scenario() -> int:
        nonlocal most
        store = ParquetSink(tmp_path)
        registry = Registry(store, Settings(), JobsHere())
        entry = await registry.open(hello(), asyncio.Event())
        lasting = Flow(
            1, 7, Direction.TX, "198.18.0.1", "198.18.0.2", 1, 2, 6, 0, Owner(9, "sshd", "", "", -1, "socket")
        )
        told: list[int] = []
        for number in range(1, 41):
            now_ns = number * step_ns
            empty = Batch(number, clock(now_ns), now_ns, np.zeros(0, BUCKET))
            batch = crowd(empty, 1_000 * number, 600)
            told.append(1_000 * number)
            rows = np.zeros(len(told), BUCKET)  # the first of each batch goes on
            rows["flow_id"], rows["bucket_start_ns"], rows["packets"] = told, now_ns - 40 * MS, 1
            rows["wire_bytes"] = 66
            buckets = np.concatenate([batch.buckets, rows])
            take(registry, entry, replace(batch, buckets=buckets, flows=(lasting, *batch.flows)))
            assert await registry.flush()
            most = max(most, len(entry.window.flows))
        beyond = len(entry.window.flows.beyond)
        store.close()
        return beyond

    assert asyncio.run(scenario()) == 0
    assert most < 600 * 10 + 3_000
