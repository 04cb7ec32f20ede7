# SPDX-License-Identifier: Apache-2.0
"""Rows of several widths in one session, and full resolution that is asked for: the collector without the network."""

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from collector_stream import CROSS_RX, DL_RX, DL_TX, MS, UTC, Host, S, TrainingAgent, hello, mark
from in_process import take
from test_store import Collector, read

from collector.full_resolution import arrow_stream, with_addresses
from collector.host.rows import ARRIVED, merge
from collector.host.session import Session
from collector.settings import Settings
from netmon.dl.coarse import coarsen
from netmon.errors import DataError, WireError
from netmon.records import BUCKET, Batch, Columns, Hello, Moment, Table, empty
from netmon.wire import netmon_pb2
from netmon.wire.buckets import encode_buckets

FINE = MS // 10
INTRODUCTION = hello(bucket_ns=FINE, stream_ns=MS)
COUNTS = ["packets", "wire_bytes", "payload_bytes"]


def fine(batch: Batch) -> Table:
    """The rows of a batch, each as two buckets of full resolution: one has a third of the bytes, the other the rest."""
    one, other = batch.buckets.copy(), batch.buckets.copy()
    other["bucket_start_ns"] += np.uint64(7 * FINE)
    other["packets"] = 0
    for name in ("wire_bytes", "payload_bytes"):
        one[name] = batch.buckets[name] // 3
        other[name] = batch.buckets[name] - one[name]
    return np.concatenate([one, other])


def streamed(batch: Batch, width: int) -> Batch:
    return replace(batch, buckets=coarsen(fine(batch), FINE, width), bucket_ns=width)


def sent(count: int, widths: tuple[int, ...] = (MS,), **host: int) -> tuple[list[Batch], list[Table]]:
    """Batches, and their full resolution."""
    source = Host(**host)
    made = [source.batch() for _ in range(count)]
    return [streamed(b, widths[n % len(widths)]) for n, b in enumerate(made)], [fine(b) for b in made]


def test_batches_of_several_widths_are_stored_as_they_are(tmp_path: Path) -> None:
    batches, full = sent(30, (MS, 5 * MS, 20 * MS, FINE), cross_from_ms=500)

    async def scenario() -> None:
        collector = Collector(tmp_path)
        await collector.end(await collector.feed(batches, introduction=INTRODUCTION))

    asyncio.run(scenario())
    rows = read(tmp_path, "buckets")
    assert set(rows["bucket_ns"]) == {MS, 5 * MS, 20 * MS, FINE}
    assert not (rows["bucket_start_ns"] % rows["bucket_ns"]).any()
    everything = np.concatenate(full)
    for name in COUNTS:
        assert rows[name].sum() == everything[name].sum(dtype=np.int64)
    assert rows["busy_buckets"].sum() == len(everything)
    of_flow = rows.groupby("flow_id")["peak_bytes"].max()
    for flow in (DL_TX, CROSS_RX):
        assert of_flow[flow] == everything["wire_bytes"][everything["flow_id"] == flow].max()
    own = rows[rows["bucket_ns"] == FINE]
    assert (own["peak_bytes"] == own["wire_bytes"]).all()
    assert (own["busy_buckets"] == 1).all()
    ledger = read(tmp_path, "ledger")
    after = rows["bucket_start_ns"] >= UTC + 500 * MS  # the first sample
    assert ledger["attributed_bytes"].sum() == rows.loc[after, "wire_bytes"].sum()


def test_parts_of_one_row_add_up_and_widths_stay_apart() -> None:
    rows = Columns.zeros(5, ARRIVED)
    rows["bucket_ns"] = [MS, MS, FINE, FINE, 5 * MS]
    rows["wire_bytes"], rows["peak_bytes"] = [10, 20, 30, 40, 50], [10, 20, 30, 40, 50]
    rows["busy_buckets"] = 1
    merged = merge(rows, FINE)
    found = zip(*(merged[n].tolist() for n in ("bucket_ns", "wire_bytes", "peak_bytes", "busy_buckets")), strict=True)
    assert sorted(found) == [(FINE, 70, 70, 1), (MS, 30, 20, 2), (5 * MS, 50, 50, 1)]


class Agent:
    """Answers from what it has."""

    def __init__(self, entry: Session, collector: Collector, tables: list[Table], gap: str = "") -> None:
        self._entry, self._full, self._gap = entry, collector.registry.live.full, gap
        self._rows = np.concatenate([empty(BUCKET), *tables])

    async def serve(self) -> None:
        while True:
            await self._entry.news.wait()
            self._entry.news.clear()
            while self._entry.requests:
                self._answer(self._entry.requests.popleft())

    def _answer(self, request: netmon_pb2.FullRequest) -> None:
        start = self._rows["bucket_start_ns"].astype(np.int64)
        rows = self._rows[(start >= request.since_ns) & (start < request.until_ns)]
        for part in np.array_split(rows, 3):
            answer = netmon_pb2.FullAnswer(number=request.number)
            encode_buckets(part, FINE, answer.buckets)
            self._full.answer(self._entry, answer)
        self._full.answer(self._entry, netmon_pb2.FullAnswer(number=request.number, last=True, gap=self._gap))


def test_full_resolution_has_the_classes_of_the_live_rows(tmp_path: Path) -> None:
    batches, full = sent(30, cross_from_ms=1_500)

    async def scenario() -> pa.Table:
        collector = Collector(tmp_path)
        entry = await collector.feed(batches, introduction=INTRODUCTION)
        serving = asyncio.ensure_future(Agent(entry, collector, full, "a gap").serve())
        pulled = await collector.registry.live.full.pull(entry, UTC + 1_203 * MS, UTC + 1_807 * MS)
        table = with_addresses(entry, entry.bucket_rows(pulled.rows))
        serving.cancel()
        await collector.end(entry)
        assert pulled.gap == "a gap"
        return pa.ipc.open_stream(arrow_stream(table)).read_all()

    table = asyncio.run(scenario()).to_pandas()
    live = read(tmp_path, "buckets")
    live = live[live["bucket_start_ns"].between(UTC + 1_203 * MS, UTC + 1_807 * MS - 1)]
    by = ["flow_id", "class", "job", "iteration"]
    sums = [frame.astype(dict.fromkeys(by, str)).groupby(by)[COUNTS].sum() for frame in (table, live)]
    pd.testing.assert_frame_equal(*sums)
    assert set(table["class"]) == {"DL-only", "DL-shared", "cross"}
    assert set(table["src"]) == {"198.18.0.1"}
    owners = table.drop_duplicates("process").set_index("process")
    assert set(owners.index) == {"python", "iperf3"}
    assert owners.loc["iperf3", "owner_job"] == ""  # its rows are of the training that it met
    assert owners.loc["python", "owner_job"] == "train"
    assert (owners["pid"] > 0).all()
    assert (owners["owner_source"] != "").all()


def test_an_agent_that_goes_away_ends_the_request(tmp_path: Path) -> None:
    batches, _ = sent(5)

    async def scenario() -> None:
        collector = Collector(tmp_path)
        entry = await collector.feed(batches, introduction=INTRODUCTION)
        asking = asyncio.ensure_future(collector.registry.live.full.pull(entry, UTC, UTC + S))
        while not entry.requests:
            await asyncio.sleep(0)
        collector.registry.disconnected(entry)
        with pytest.raises(DataError, match="cannot get full resolution from h0: it went away before it had answered"):
            await asking
        with pytest.raises(DataError, match="it is not connected"):
            await collector.registry.live.full.pull(entry, UTC, UTC + S)
        collector.store.close()

    asyncio.run(scenario())


def test_answers_that_nobody_asked_for_are_no_harm_and_coarse_ones_are_refused(tmp_path: Path) -> None:
    batches, _ = sent(5)

    async def scenario() -> None:
        collector = Collector(tmp_path)
        entry = await collector.feed(batches, introduction=INTRODUCTION)
        collector.registry.live.full.answer(entry, netmon_pb2.FullAnswer(number=99))
        asking = asyncio.ensure_future(collector.registry.live.full.pull(entry, UTC, UTC + S))
        while not entry.requests:
            await asyncio.sleep(0)
        answer = netmon_pb2.FullAnswer(number=entry.requests[0].number)
        encode_buckets(batches[0].buckets, MS, answer.buckets)
        with pytest.raises(WireError, match="h0 answers with other rows"):
            collector.registry.live.full.answer(entry, answer)
        asking.cancel()
        collector.store.close()

    asyncio.run(scenario())


def test_a_change_of_class_is_stored_in_full_from_both_sides(tmp_path: Path) -> None:
    """Cross traffic begins at 3 s; then the gradients that come share their link."""
    batches, full = sent(60, cross_from_ms=3_000)

    async def scenario() -> None:
        collector = Collector(tmp_path, Settings(full_on=("class",)))
        entry = await collector.registry.open(INTRODUCTION, asyncio.Event())
        serving = asyncio.ensure_future(Agent(entry, collector, full).serve())
        for batch in batches:
            take(collector.registry, entry, batch)
            collector.registry.tick()
            for _ in range(20):
                await asyncio.sleep(0)
        serving.cancel()
        await collector.end(entry)

    asyncio.run(scenario())
    rows, live = read(tmp_path, "full"), read(tmp_path, "buckets")
    assert set(rows["reason"]) == {"h0 eth0 is DL-shared from here on"}
    first = live[live["class"] == "DL-shared"]["bucket_start_ns"].min()
    assert first == UTC + 3_000 * MS
    begin, end = first - 50 * MS, first + 50 * MS
    assert rows["bucket_start_ns"].between(begin, end - 1).all()
    assert set(rows["bucket_ns"]) == {FINE}
    live = live[live["bucket_start_ns"].between(begin, end - 1)]
    by = ["flow_id", "class"]
    sums = [frame.astype(dict.fromkeys(by, str)).groupby(by)[COUNTS].sum() for frame in (rows, live)]
    pd.testing.assert_frame_equal(*sums)
    received = rows[rows["flow_id"] == DL_RX]
    assert set(received.loc[received["bucket_start_ns"] < first, "class"]) == {"DL-only"}
    assert set(received.loc[received["bucket_start_ns"] >= first, "class"]) == {"DL-shared"}


def with_a_slow_step(count: int, slow: int, iteration_ms: int = 250) -> tuple[list[Batch], list[Table]]:
    """Steps of 250 ms, one of which takes three times as long."""
    batches, full = sent(count)
    made, agent = [], TrainingAgent()
    for batch in batches:
        first, last = (batch.sequence - 1) * 100, batch.sequence * 100
        marks = [mark(Moment.JOIN, 0, 0)] if first == 0 else []
        for time_ms in range(first, last):
            number, phase = divmod(time_ms, iteration_ms)
            number = number if number < slow else max(slow, number - 2)
            begins = phase == 0 and not slow < time_ms // iteration_ms <= slow + 2
            ends = phase == iteration_ms - 10 and not slow <= time_ms // iteration_ms < slow + 2
            marks += [mark(Moment.STEP_START, number, time_ms)] if begins else []
            marks += [mark(Moment.STEP_END, number, time_ms)] if ends else []
        made.append(replace(batch, training=agent.training(marks)))
    return made, full


@pytest.mark.parametrize("introduction", [INTRODUCTION, hello(bucket_ns=FINE)])
def test_a_slow_iteration_is_stored_in_full_once(tmp_path: Path, introduction: Hello) -> None:
    batches, full = with_a_slow_step(80, slow=20)
    if not introduction.stream_ns:
        batches = [replace(b, buckets=t, bucket_ns=FINE) for b, t in zip(batches, full, strict=True)]

    async def scenario() -> None:
        collector = Collector(tmp_path)
        entry = await collector.registry.open(introduction, asyncio.Event())
        serving = asyncio.ensure_future(Agent(entry, collector, full).serve())
        for batch in batches:
            take(collector.registry, entry, batch)
            for _ in range(20):
                await asyncio.sleep(0)
        serving.cancel()
        await collector.end(entry)

    asyncio.run(scenario())
    if not introduction.stream_ns:  # it has full resolution already
        assert not (tmp_path / "full").exists()
        return
    rows, iterations = read(tmp_path, "full"), read(tmp_path, "iterations")
    durations = iterations.set_index("iteration")
    slow = durations.loc[20]
    assert slow["end_ns"] - slow["start_ns"] > 2 * (durations["end_ns"] - durations["start_ns"]).median()
    assert rows["bucket_start_ns"].min() >= slow["start_ns"]
    assert rows["bucket_start_ns"].max() < slow["end_ns"]
    assert set(rows["bucket_ns"]) == {FINE}
    live = read(tmp_path, "buckets")
    live = live[live["bucket_start_ns"].between(slow["start_ns"], slow["end_ns"] - 1)]
    assert rows["wire_bytes"].sum() == live["wire_bytes"].sum()
    assert set(rows.loc[rows["job"] == "train", "iteration"]) == {20}
