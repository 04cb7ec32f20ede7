# SPDX-License-Identifier: Apache-2.0
import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from collector_stream import MS, UTC, Host, S, TrainingAgent, hello
from dataset_rows import stored_rows
from hypothesis import given
from hypothesis import strategies as st
from in_process import JobsHere, take

from collector.dataset.files import FEW_ROWS
from collector.dataset.sink import ROWS_PER_PART, ParquetSink
from collector.dataset.tables import DATASET_VERSION, SCHEMAS
from collector.host.rows import ARRIVED, merge
from collector.registry import Registry
from collector.settings import Settings
from netmon.errors import DataError
from netmon.records import Batch, ClockSample, Columns, Direction, Hello, Moment, Training
from netmon.views import RECENT

DEFAULTS = Settings()
MANY = 5_000  # flows: more than one file of them holds


class Collector:
    """A registry on a directory, without the network."""

    def __init__(self, directory: Path, settings: Settings = DEFAULTS) -> None:
        self.store = ParquetSink(directory)
        self.registry = Registry(self.store, settings, JobsHere())

    async def feed(self, batches: list, flush_every: int = 7, introduction: Hello | None = None):
        entry = await self.registry.open(introduction or hello(), asyncio.Event())
        for number, batch in enumerate(batches, 1):
            take(self.registry, entry, batch)
            if number % flush_every == 0:
                assert await self.registry.flush()
        return entry

    async def end(self, entry) -> None:
        self.registry.settle(entry, leaving=True)
        assert await self.registry.flush()
        self.store.close()


def batches(count: int, **host: int) -> list:
    source = Host(**host)
    return [source.batch() for _ in range(count)]


def store_small(directory: Path) -> None:
    """Three seconds of one host and a job of one rank; cross traffic from the middle on."""

    async def scenario() -> None:
        collector = Collector(directory)
        await collector.end(await collector.feed(batches(30, cross_from_ms=1500)))

    asyncio.run(scenario())


def read(directory: Path, table: str) -> pd.DataFrame:
    return stored_rows(directory, table)


def test_the_files_say_what_they_are(tmp_path):
    async def scenario():
        collector = Collector(tmp_path)
        await collector.end(await collector.feed(batches(15)))

    asyncio.run(scenario())
    for table, schema in SCHEMAS.items():
        if table in (
            "full",
            "verdicts",
            "waits",
            "collectives",
            "hangs",
            "transfers",
            "rdma",
        ):
            continue
        paths = list(tmp_path.glob(f"{table}/date=2025-10-09/hour=08/part-*.parquet"))
        assert paths, table
        for path in paths:
            stored = pq.read_schema(path)
            assert stored.names == schema.names
            assert int(stored.metadata[b"netmon.schema_version"]) == DATASET_VERSION
            group = pq.ParquetFile(path).metadata.row_group(0)
            few = table in ("flows", "sessions") and group.num_rows <= FEW_ROWS  # the others are merged
            assert group.column(0).compression == ("SNAPPY" if few else "ZSTD")
    (session,) = read(tmp_path, "sessions").to_dict("records")
    assert (session["host"], session["session"], session["interface"]) == ("h0", "s1", "eth0")
    assert (session["bucket_ns"], session["full_bucket_ns"], session["share_threshold"]) == (MS, MS, 0.01)
    assert (session["hook_rx"], session["hook_tx"], session["capacity_bps"]) == ("tcx", "tcx", 10**9)
    assert "one header per segment" in session["byte_basis"]


def test_rows_are_on_disk_before_they_are_acknowledged(tmp_path):
    async def scenario():
        collector = Collector(tmp_path)
        entry = await collector.feed(batches(40), flush_every=10)
        rows = read(tmp_path, "buckets")
        assert entry.acknowledge > 0
        assert rows["bucket_start_ns"].max() >= UTC + entry.acknowledge * 100 * MS - MS
        # Nothing within the settle time, nothing of the ledger's open interval.
        assert entry.acknowledge <= 30
        await collector.end(entry)
        assert entry.acknowledge == 40

    asyncio.run(scenario())


@pytest.mark.parametrize("crash_after", [5, 13, 14, 21, 29, 33])
def test_a_crash_at_any_moment_stores_everything_once(tmp_path, crash_after):
    """The collector is killed: what is on disk stays, what it knew is gone, the agent sends again."""
    sent = batches(40, cross_from_ms=1500)
    before, after = tmp_path / "before", tmp_path / "after"

    async def first() -> int:
        collector = Collector(before)
        entry = await collector.feed(sent[:crash_after])
        shutil.copytree(before, after)
        collector.store.close()
        return entry.acknowledge

    async def second(acknowledged: int) -> None:
        collector = Collector(after)
        rest = sent[acknowledged:]
        if acknowledged:  # what the agent says again on every connection
            object.__setattr__(rest[0], "flows", sent[0].flows)
        await collector.end(await collector.feed(rest, flush_every=5))

    asyncio.run(second(asyncio.run(first())))
    rows = read(after, "buckets")
    assert not rows.duplicated(["flow_id", "bucket_start_ns"]).any()
    assert len(rows) == 2 * 4000 + 2500
    iterations = read(after, "iterations").sort_values("iteration")
    assert iterations["iteration"].tolist() == list(range(16))
    assert (iterations["dl_tx_bytes"] == 240_000).all()
    assert (iterations["dl_shared_rx_bytes"] == [0] * 6 + [240_000] * 10).all()
    ledger = read(after, "ledger")
    assert len(ledger) == 2 * 7
    assert (ledger["attributed_bytes"] == ledger["nic_bytes"]).all()
    nic = read(after, "nic")
    assert sorted(nic["time_ns"] - UTC) == [number * 500 * MS for number in range(1, 9) for _ in range(2)]
    received = nic[nic["counter"] == "rx_bytes"]["value"]
    assert np.ptp(received) == ledger[ledger["direction"] == "rx"]["nic_bytes"].sum()
    for table, each in (("transport", 1), ("host", 2)):
        told = read(after, table)
        assert sorted(told["end_ns"] - UTC) == [number * 500 * MS for number in range(1, 9) for _ in range(each)]
    assert len(read(after, "flows")) == 4


def test_a_disk_that_refuses_costs_nothing(tmp_path, caplog):
    async def scenario():
        collector = Collector(tmp_path)
        entry = await collector.feed(batches(20))
        acknowledged = entry.acknowledge
        recent = tmp_path / RECENT / "buckets"
        recent.rename(tmp_path / "elsewhere")
        recent.write_text("in the way")
        collector.registry.settle(entry, leaving=False)
        assert not await collector.registry.flush()
        assert not await collector.registry.flush()
        assert entry.acknowledge == acknowledged
        assert collector.registry.snapshot(5).warnings[0].startswith(f"cannot write to {tmp_path}")
        recent.unlink()
        (tmp_path / "elsewhere").rename(recent)
        await collector.end(entry)

    asyncio.run(scenario())
    assert len(read(tmp_path, "buckets")) == 2 * 2000
    assert sorted(read(tmp_path, "iterations")["iteration"]) == list(range(8))
    assert [line.split(":")[0] for line in caplog.messages] == [
        f"cannot write to {tmp_path}",
        f"{tmp_path} takes rows again",
    ]


def test_rows_that_span_midnight_go_to_their_day(tmp_path):
    async def scenario():
        collector = Collector(tmp_path)
        midnight = 1_760_054_400 * S  # 2025-10-10
        host = Host()
        sent = [host.batch() for _ in range(10)]
        for batch in sent:
            clock = type(batch.clock)(batch.clock.mono_ns, midnight - 500 * MS + batch.clock.mono_ns, 1000)
            object.__setattr__(batch, "clock", clock)
        await collector.end(await collector.feed(sent, introduction=hello(clock=sent[0].clock)))

    asyncio.run(scenario())
    assert read(tmp_path, "buckets").groupby("date", observed=True).size().to_dict() == {
        "2025-10-09": 1000,
        "2025-10-10": 1000,
    }


def test_a_directory_that_is_a_file(tmp_path):
    (tmp_path / "data").write_text("")
    with pytest.raises(DataError, match=r"cannot write to .*data: File exists; choose another --data"):
        ParquetSink(tmp_path / "data")


def test_peers_of_a_job_find_each_other(tmp_path):
    async def scenario():
        collector = Collector(tmp_path)
        near, far = batches(2), batches(2)
        mirrored = []
        for flow in far[0].flows:
            owner = type(flow.owner)(**(vars(flow.owner) | {"rank": 1 if flow.owner.job else -1}))
            mirrored.append(type(flow)(**(vars(flow) | {"owner": owner, "direction": Direction(1 - flow.direction)})))
        object.__setattr__(far[0], "flows", mirrored)
        for batch in far:
            ranks = [replace(rank, rank=1) for rank in batch.training.ranks]
            object.__setattr__(batch, "training", replace(batch.training, ranks=ranks))
        first = await collector.feed(near)
        second = await collector.feed(far, introduction=hello(host="h1", session="s2"))
        collector.registry.settle(second, leaving=True)
        await collector.end(first)

    asyncio.run(scenario())
    flows = read(tmp_path, "flows").set_index(["host", "flow_id"])[["rank", "peer_rank"]]
    assert flows.loc[("h0", 1)].tolist() == [0, 1]
    assert flows.loc[("h1", 1)].tolist() == [1, 0]
    assert flows.loc[("h0", 3)].tolist() == [-1, -1]


def test_a_flow_whose_rows_have_waited_for_long_keeps_its_row(tmp_path):
    """The agent's end of the cut is an hour after the collector's."""
    first, second = batches(2)
    described = [replace(first.flows[0], flow_id=number, src_port=number) for number in range(10, 10 + MANY)]
    first = replace(first, flows=[*first.flows, *described])
    last = second.clock.mono_ns + 3600 * S

    async def scenario():
        collector = Collector(tmp_path)
        await collector.feed([first], flush_every=1)
        assert await collector.registry.flush()
        collector.store.close()
        again = Collector(tmp_path)
        clock = ClockSample(last, second.clock.utc_ns + 3600 * S, 1000)
        entry = await again.feed([second], introduction=hello(clock=clock, flows=first.flows))
        await again.end(entry)

    asyncio.run(scenario())
    flows = read(tmp_path, "flows")
    assert len(flows) == len(set(flows["flow_id"])) == 4 + MANY


counts = st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(1, 2**32 - 1), st.booleans())


@given(st.lists(counts, max_size=100))
def test_merging_keeps_every_byte(entries):
    rows = Columns.zeros(len(entries), ARRIVED)
    if entries:
        rows["flow"], rows["start_ns"], rows["wire_bytes"], rows["stored"] = zip(*entries, strict=True)
    merged = merge(rows, 1)
    assert merged["wire_bytes"].sum() == rows["wire_bytes"].sum()
    keys = list(zip(*(merged[name].tolist() for name in ("flow", "start_ns", "stored")), strict=True))
    assert len(keys) == len(set(keys)) == len({(f, t, s) for f, t, _, s in entries})
    assert (np.diff(merged["start_ns"]) >= 0).all()


def test_flows_that_are_long_over_are_forgotten_and_stay_stored(tmp_path):
    def later(batch: Batch, seconds: int) -> Batch:
        rows = batch.buckets.copy()
        rows["bucket_start_ns"] += np.uint64(seconds * S)
        clock = ClockSample(batch.clock.mono_ns + seconds * S, batch.clock.utc_ns + seconds * S, 1000)
        horizon_ns = batch.horizon_ns + seconds * S
        return replace(batch, buckets=rows, clock=clock, horizon_ns=horizon_ns, ledger=(), training=Training())

    first, second, third = batches(3)
    described = [replace(first.flows[0], flow_id=number, src_port=number % 60_000) for number in range(10, 10 + MANY)]
    first = replace(first, flows=[*first.flows, *described])
    second = later(replace(second, flows=first.flows[:4]), 700)
    renewed = [replace(flow, flow_id=flow.flow_id + 10_000) for flow in [*first.flows[:4], *described]]
    third = replace(later(third, 1500), flows=renewed)
    third.buckets["flow_id"] += np.uint32(10_000)

    async def scenario():
        collector = Collector(tmp_path)
        entry = await collector.feed([first, second], flush_every=1)
        table = entry.window.flows
        assert len(table) == 2  # those with rows of batch 2
        take(collector.registry, entry, third)
        assert await collector.registry.flush()
        assert len(table) == 2 + 4 + MANY  # few are not worth the work
        collector.store.close()
        again = Collector(tmp_path)
        entry = await again.registry.open(hello(clock=third.clock), asyncio.Event())
        assert len(entry.window.flows) == 2 * (MANY + 4 - ROWS_PER_PART)  # the file of those that go on
        again.store.close()

    asyncio.run(scenario())
    flows = read(tmp_path, "flows")
    assert len(flows) == len(set(flows["flow_id"])) == 2 * (MANY + 4)


def test_what_is_under_way_is_known_from_the_introduction(tmp_path):
    """A collector that has just started, with an empty directory: its agents say flows and ranks once more."""
    sent = batches(40)
    begun = [mark for mark in sent[35].marks if mark.moment is Moment.STEP_START]
    training = TrainingAgent().training([sent[0].marks[0], *begun])
    under_way = hello(clock=sent[20].clock, flows=sent[0].flows, training=training)

    async def scenario():
        collector = Collector(tmp_path)
        await collector.end(await collector.feed(sent[20:], introduction=under_way))

    asyncio.run(scenario())
    iterations = read(tmp_path, "iterations").sort_values("iteration")
    assert iterations["iteration"].tolist() == list(range(8, 16))
    assert (iterations["dl_tx_bytes"] == 240_000).all()
    assert len(read(tmp_path, "flows")) == 4
