# SPDX-License-Identifier: Apache-2.0
"""The collector as its agents and viewers meet it: a real gRPC server on a Unix socket."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from pathlib import Path

import grpc
import pandas as pd
import pytest
from collector_stream import CROSS_RX, DL_TX, MS, Host, flows, hello, rows

from collector.backpressure import TRAINING_NS, WATCHED_NS
from collector.server import serve
from collector.service import Admission, listen_at
from collector.settings import ListenConfig, Settings
from netmon.errors import DataError, UnsupportedError
from netmon.records import Batch, Class, Direction, Hello
from netmon.views import LinkView, Snapshot
from netmon.wire import netmon_pb2
from netmon.wire.batches import encode_batch, encode_hello
from netmon.wire.mapping import decode_snapshot
from netmon.wire.netmon_pb2_grpc import CollectorStub

FAST = Settings(flush_ns=50 * MS)


@contextlib.asynccontextmanager
async def collector(directory: Path, settings: Settings = FAST) -> AsyncIterator[CollectorStub]:
    address, stop = f"unix:{directory}/socket", asyncio.Event()
    task = asyncio.create_task(serve(replace(settings, listen=address, data=directory / "data"), stop))
    async with grpc.aio.insecure_channel(address) as channel:
        await asyncio.wait_for(channel.channel_ready(), 60)
        try:
            yield CollectorStub(channel)
        finally:
            stop.set()
            await task


def message(content: Hello | Batch | netmon_pb2.Batch) -> netmon_pb2.AgentMessage:
    if isinstance(content, Hello):
        return netmon_pb2.AgentMessage(hello=encode_hello(content))
    return netmon_pb2.AgentMessage(batch=encode_batch(content) if isinstance(content, Batch) else content)


async def send(stub: CollectorStub, contents: Iterable[Hello | Batch | netmon_pb2.Batch]) -> list[int]:
    """All acknowledgements of a stream that the agent ends itself."""
    call = stub.Stream(iter([message(content) for content in contents]))
    return [acknowledgement.sequence async for acknowledgement in call]


async def first_stored(call: grpc.aio.StreamStreamCall) -> int:
    """The first acknowledgement of anything: those before it say that the collector is alive."""
    while not (sequence := (await call.read()).sequence):
        pass
    return sequence


def session(batches: int, **host: int) -> list[Hello | Batch]:
    source = Host(**host)
    return [hello(), *(source.batch() for _ in range(batches))]


def test_a_session_becomes_a_dataset(tmp_path: Path) -> None:
    async def scenario() -> list[int]:
        async with collector(tmp_path) as stub:
            return await send(stub, session(30, cross_from_ms=1500))

    assert asyncio.run(scenario())[-1] == 30
    buckets = pd.read_parquet(tmp_path / "data/buckets")
    assert len(buckets) == 2 * 3000 + 1500
    sums = buckets.groupby(["class", "direction"], observed=True)["payload_bytes"].sum().to_dict()
    assert sums == {
        ("DL-only", "tx"): 3_000_000,  # the transmit side has no cross traffic
        ("DL-only", "rx"): 1_500_000,
        ("DL-shared", "rx"): 1_500_000,
        ("cross", "rx"): 150_000_000,
    }
    iterations = pd.read_parquet(tmp_path / "data/iterations").sort_values("iteration")
    assert iterations["iteration"].tolist() == list(range(12))
    assert iterations["node_shared"].tolist() == [False] * 6 + [True] * 6
    assert (iterations["dl_tx_bytes"] == 240_000).all()
    assert (iterations["comm_end_ns"] - iterations["comm_start_ns"] == 130 * MS).all()
    ledger = pd.read_parquet(tmp_path / "data/ledger")
    assert (ledger["coverage"] == 1).all()
    assert (ledger["invisible_bytes"] == 0).all()
    assert len(ledger) == 2 * 5
    assert len(pd.read_parquet(tmp_path / "data/flows")) == 4


def test_a_row_carries_its_iteration(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with collector(tmp_path) as stub:
            await send(stub, session(15))

    asyncio.run(scenario())
    buckets = pd.read_parquet(tmp_path / "data/buckets")
    per_iteration = buckets[buckets["direction"] == "tx"].groupby("iteration")["payload_bytes"].sum()
    assert per_iteration.to_dict() == {-1: 60_000} | dict.fromkeys(range(6), 240_000)


def test_rows_of_one_bucket_become_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        host = Host()
        first, second = host.batch(), host.batch()
        again = rows((DL_TX, 5, 700))
        object.__setattr__(second, "buckets", again)
        async with collector(tmp_path) as stub:
            await send(stub, [hello(), first, second])

    asyncio.run(scenario())
    buckets = pd.read_parquet(tmp_path / "data/buckets")
    row = buckets[(buckets["flow_id"] == DL_TX) & (buckets["bucket_start_ns"] % (1000 * MS) == 5 * MS)]
    assert row["payload_bytes"].tolist() == [1700]
    assert row["packets"].tolist() == [2]


def received(snapshot: Snapshot) -> LinkView:
    return next(link for link in snapshot.links if link.direction == Direction.RX)


def shown_last(snapshot: Snapshot) -> list[float]:
    """Cross and shared traffic in the newest window, bit/s."""
    return received(snapshot).wire_bps[-1, [Class.CROSS, Class.DL_SHARED]].tolist()


OF_TEN_BATCHES = pytest.approx([100_066 * 8 * 1000, 1_066 * 8 * 1000])


def test_the_snapshot_shows_rows_that_have_not_settled(tmp_path: Path) -> None:
    async def scenario() -> netmon_pb2.Snapshot:
        async with collector(tmp_path) as stub:
            done = asyncio.Event()

            async def stream() -> AsyncIterator[netmon_pb2.AgentMessage]:
                for content in session(10, cross_from_ms=500):
                    yield message(content)
                await done.wait()

            call = stub.Stream(stream())
            async for view in stub.Watch(netmon_pb2.WatchRequest(interval_ms=50, flows=2)):
                shown = decode_snapshot(view)
                # The newest window looks the same from the sixth batch on; the last iteration began in the eighth.
                begun = any(job.iteration == 3 for job in shown.jobs)
                if view.links and begun and shown_last(shown) == OF_TEN_BATCHES:
                    break
            done.set()
            assert [a.sequence async for a in call][-1] == 10
            return view

    snapshot = decode_snapshot(asyncio.run(scenario()))
    assert [host.connected for host in snapshot.hosts] == [True]
    rx = received(snapshot)
    assert rx.wire_bps[-7, Class.DL_ONLY] == pytest.approx(1_066 * 8 * 1000)
    assert [view.flow.flow_id for view in snapshot.flows] == [CROSS_RX, 1]
    (job,) = snapshot.jobs
    assert (job.iteration, job.size, job.last_ns) == (3, 2, 240 * MS)
    assert job.theory_bytes == 4_000_000


def test_an_agent_hears_that_its_host_trains_and_while_somebody_looks(tmp_path: Path) -> None:
    async def scenario() -> list[int]:
        async with collector(tmp_path) as stub:
            done, watches = asyncio.Event(), [netmon_pb2.WatchRequest(interval_ms=500, hosts=["another"])]

            async def stream() -> AsyncIterator[netmon_pb2.AgentMessage]:
                for content in session(10):
                    yield message(content)
                await done.wait()

            heard, looking = list[int](), None
            async for news in stub.Stream(stream()):
                if heard[-1:] == [news.within_ns]:
                    continue
                heard.append(news.within_ns)
                if heard[-1] == TRAINING_NS and looking is None:
                    watches += [netmon_pb2.WatchRequest(interval_ms=500), netmon_pb2.WatchRequest(interval_ms=3000)]
                    looking = [stub.Watch(request) for request in watches]
                elif heard[-1] == WATCHED_NS and looking:
                    looking[1].cancel()
                elif looking:
                    break
            done.set()
            return heard

    assert asyncio.run(scenario())[-3:] == [TRAINING_NS, WATCHED_NS, TRAINING_NS]


def _no_hello() -> list[Hello | Batch]:
    return [Host().batch()]


def _backwards() -> list[Hello | Batch]:
    opening, first, second, third = session(3)
    return [opening, first, third, second]


def _unknown_flow() -> list[Hello | Batch]:
    opening, first = session(1)
    object.__setattr__(first, "buckets", rows((99, 1, 1)))
    return [opening, first]


def _other_schema() -> list[Hello | Batch]:
    return [hello(schema_version=99)]


def _bad_session() -> list[Hello | Batch]:
    return [hello(session="../x")]


def _short_column() -> list[Hello | netmon_pb2.Batch]:
    opening, first = session(1)
    batch = encode_batch(first)
    batch.buckets.columns = batch.buckets.columns[:-1]
    return [opening, batch]


def _unknown_interface() -> list[Hello | Batch]:
    opening, first = session(1)
    object.__setattr__(first, "flows", [type(f)(**(vars(f) | {"interface": 8})) for f in flows()])
    return [opening, first]


def _distant_bucket() -> list[Hello | Batch]:
    opening, first = session(1)
    object.__setattr__(first, "buckets", rows((DL_TX, 10**7, 1)))
    return [opening, first]


@pytest.mark.parametrize(
    ("contents", "reason"),
    [
        (_no_hello, "the first message of a stream is not a hello"),
        (_backwards, "batch 2 of h0: batch 3 came before it"),
        (_unknown_flow, "batch 1 of h0: a bucket names flow 99, which no message has described"),
        (_other_schema, "hello of h0: schema version 99"),
        (_bad_session, "session '../x' has other characters"),
        (_short_column, "batch 1 of h0: .*columns"),
        (_unknown_interface, "batch 1 of h0: interface 8 is not in the session's hello"),
        (_distant_bucket, "batch 1 of h0: a bucket begins 10000 s after the batch's horizon"),
    ],
)
def test_what_breaks_the_contract_is_refused(
    tmp_path: Path, contents: Callable[[], list[Hello | Batch]], reason: str
) -> None:
    async def scenario() -> None:
        async with collector(tmp_path) as stub:
            with pytest.raises(grpc.aio.AioRpcError, match=reason) as error:
                await send(stub, contents())
            assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            # The collector goes on.
            assert (await send(stub, [hello(session="next"), *session(2)[1:]]))[-1] == 2

    asyncio.run(scenario())


def test_sent_again_is_stored_once(tmp_path: Path) -> None:
    """The collector stops in the middle of a session; the agent sends again what was not acknowledged."""
    contents = session(40, cross_from_ms=1500)

    async def first() -> int:
        async with collector(tmp_path) as stub:

            async def stream() -> AsyncIterator[netmon_pb2.AgentMessage]:
                for content in contents[:26]:
                    yield message(content)
                await asyncio.sleep(60)

            call = stub.Stream(stream())
            acknowledged = await first_stored(call)
            call.cancel()
            return acknowledged

    async def second(acknowledged: int) -> list[int]:
        async with collector(tmp_path) as stub:
            return await send(stub, [contents[0], *contents[acknowledged + 1 :]])

    acknowledged = asyncio.run(first())
    assert 0 < acknowledged < 25
    assert asyncio.run(second(acknowledged))[-1] == 40
    check_forty_batches(tmp_path / "data")


def test_a_broken_connection_carries_on(tmp_path: Path) -> None:
    contents = session(40, cross_from_ms=1500)

    async def scenario() -> list[int]:
        async with collector(tmp_path) as stub:

            async def stream() -> AsyncIterator[netmon_pb2.AgentMessage]:
                for content in contents[:21]:
                    yield message(content)
                await asyncio.sleep(60)

            call = stub.Stream(stream())
            acknowledged = await first_stored(call)
            call.cancel()
            return await send(stub, [contents[0], *contents[acknowledged + 1 :]])

    assert asyncio.run(scenario())[-1] == 40
    check_forty_batches(tmp_path / "data")


def test_what_comes_on_the_heels_of_a_refused_batch_is_taken_in_when_it_comes_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The agent goes on sending until it hears of the refusal, then begins again behind the batch it is about."""
    opening, *batches = session(300)
    object.__setattr__(batches[1], "buckets", rows((99, 150, 1)))

    async def scenario() -> list[int]:
        async with collector(tmp_path) as stub:

            async def stream() -> AsyncIterator[netmon_pb2.AgentMessage]:
                for content in (opening, *batches):
                    yield message(content)
                    await asyncio.sleep(0.001)

            with pytest.raises(grpc.aio.AioRpcError):  # its reason is lost where the client is just sending
                async for _ in stub.Stream(stream()):
                    pass
            assert "batch 2 of h0" in caplog.text
            return await send(stub, [opening, batches[0], *batches[2:]])

    assert asyncio.run(scenario())[-1] == 300
    starts = pd.read_parquet(tmp_path / "data/buckets")["bucket_start_ns"]
    assert len(starts) == 2 * 29_900
    assert starts.nunique() == 29_900


def check_forty_batches(data: Path) -> None:
    buckets = pd.read_parquet(data / "buckets")
    assert not buckets.duplicated(["flow_id", "bucket_start_ns"]).any()
    assert len(buckets) == 2 * 4000 + 2500
    assert (buckets.loc[buckets["direction"] == "tx", "class"] == "DL-only").all()
    iterations = pd.read_parquet(data / "iterations").sort_values("iteration")
    assert iterations["iteration"].tolist() == list(range(16))
    assert (iterations["dl_tx_bytes"] == 240_000).all()
    assert iterations["cross_rx_bytes"].tolist()[6:] == [24_000_000] * 10
    ledger = pd.read_parquet(data / "ledger")
    assert len(ledger) == 2 * 7
    assert (ledger["coverage"] == 1).all()
    assert len(pd.read_parquet(data / "flows")) == 4


def test_a_second_collector_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with collector(tmp_path):
            with pytest.raises(DataError, match="another collector does"):
                await serve(replace(FAST, listen=f"unix:{tmp_path}/other", data=tmp_path / "data"), asyncio.Event())
            with pytest.raises(UnsupportedError, match="another process does"):
                await serve(
                    replace(FAST, listen=f"unix:{tmp_path}/socket", data=tmp_path / "elsewhere"), asyncio.Event()
                )

    asyncio.run(scenario())


def test_a_directory_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="choose another --data"):
        asyncio.run(
            serve(replace(FAST, listen=f"unix:{tmp_path}/socket", data=tmp_path / "file" / "data"), asyncio.Event())
        )


def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    import socket

    stale = socket.socket(socket.AF_UNIX)
    stale.bind(f"{tmp_path}/socket")
    stale.close()

    async def scenario() -> None:
        async with collector(tmp_path) as stub:
            assert (await send(stub, session(1)))[-1] == 1

    asyncio.run(scenario())


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    import socket

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(UnsupportedError, match="the address is in use"):
            asyncio.run(
                serve(replace(FAST, listen=f"127.0.0.1:{other.getsockname()[1]}", data=tmp_path), asyncio.Event())
            )


def test_a_socket_whose_path_is_too_long_is_refused():
    with pytest.raises(UnsupportedError, match="at most 107 bytes"):
        listen_at(None, f"unix:/tmp/{'x' * 103}", ListenConfig(), Admission())
