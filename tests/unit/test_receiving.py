# SPDX-License-Identifier: Apache-2.0
"""A collector whose gRPC is served by a process of its own: agents and viewers find it as they find any other."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import pandas as pd
import pytest
from collector_stream import MS, Host, hello
from test_collector_server import FAST, first_stored, message, send, session
from waiting import DIES_WITH_US, wait_for

from collector.receiving.client import RemoteStream
from collector.server import serve
from netmon.errors import UnsupportedError
from netmon.evidence import EVIDENCE
from netmon.lab.process import children, command_line
from netmon.records import Columns, Hello
from netmon.wire import netmon_pb2
from netmon.wire.batch_fields import decode_many, filter_batches
from netmon.wire.batches import encode_batch
from netmon.wire.mapping import decode_snapshot
from netmon.wire.netmon_pb2_grpc import CollectorStub
from netmon.wire.tables import read_ranks

_MODULE = "collector.receiving.receiver"


@contextlib.asynccontextmanager
async def collector(directory: Path) -> AsyncIterator[CollectorStub]:
    address, stop = f"unix:{directory}/socket", asyncio.Event()
    task = asyncio.create_task(serve(replace(FAST, listen=address, data=directory / "data"), stop))
    async with grpc.aio.insecure_channel(address, options=[("grpc.max_reconnect_backoff_ms", 200)]) as channel:
        await asyncio.wait_for(channel.channel_ready(), 60)
        try:
            yield CollectorStub(channel)
        finally:
            stop.set()
            await task


def receiver_of(pid: int) -> list[int]:
    return [child for child in children(pid) if _MODULE in command_line(child)]


async def told(messages: "list[netmon_pb2.AgentMessage]", stub: CollectorStub) -> tuple[grpc.StatusCode, str, str]:
    """How a stream ends: code, text, the batch that is to blame."""
    call = stub.Stream(iter(messages))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in call:
            pass
    metadata = dict(caught.value.trailing_metadata())
    return caught.value.code(), caught.value.details() or "", str(metadata.get("netmon-sequence", ""))


def test_agents_and_viewers(tmp_path: Path) -> None:
    bad = encode_batch(Host().batch())
    bad.clock.mono_ns = -5

    async def scenario() -> None:
        async with collector(tmp_path) as stub:
            assert (await send(stub, session(30, cross_from_ms=1500)))[-1] == 30
            snapshot = await anext(aiter(stub.Watch(netmon_pb2.WatchRequest(flows=2))))
            assert [host.host for host in decode_snapshot(snapshot).hosts] == ["h0"]
            probe = netmon_pb2.ClockProbe(number=3)
            async for echo in stub.Clock(iter([probe])):
                assert (echo.number, echo.sent_ns >= echo.received_ns > 0) == (3, True)
            with pytest.raises(grpc.aio.AioRpcError) as nobody:
                await stub.Advise(netmon_pb2.AdviceQuery(job="nobody's"))
            assert nobody.value.code() == grpc.StatusCode.NOT_FOUND
            with pytest.raises(grpc.aio.AioRpcError) as missing:
                async for _ in stub.Full(netmon_pb2.FullQuery(hosts=["h9"], since_ns=1, until_ns=2)):
                    pass
            assert "h9" in (missing.value.details() or "")
            other = message(hello(host="h1", session="s2"))
            refused = await told([other, netmon_pb2.AgentMessage(batch=bad)], stub)
            assert refused[0] == grpc.StatusCode.INVALID_ARGUMENT
            assert refused[2] == "1"
            assert (await told([netmon_pb2.AgentMessage(batch=bad)], stub))[0] == grpc.StatusCode.INVALID_ARGUMENT
            with pytest.raises(UnsupportedError, match="another process does"):
                await serve(replace(FAST, listen=f"unix:{tmp_path}/socket", data=tmp_path / "other"))
            assert len(receiver_of(os.getpid())) == 1

    asyncio.run(scenario())
    buckets = pd.read_parquet(tmp_path / "data/buckets")
    assert len(buckets) == 2 * 3000 + 1500
    assert not receiver_of(os.getpid())


def test_its_death_loses_nothing(tmp_path: Path) -> None:
    """Agents connect again to its successor, and send what is not stored; what was is known."""
    contents = session(40)

    async def scenario() -> int:
        async with collector(tmp_path) as stub:

            async def some() -> AsyncIterator[netmon_pb2.AgentMessage]:
                for content in contents[:25]:
                    yield message(content)
                await asyncio.sleep(600)

            call = stub.Stream(some())
            stored = await first_stored(call)
            (first,) = receiver_of(os.getpid())
            os.kill(first, signal.SIGKILL)
            assert await call.code() == grpc.StatusCode.UNAVAILABLE
            again = [replace(contents[0], acknowledged=stored), *contents[1 + stored :]]
            call = stub.Stream(iter([message(content) for content in again]), wait_for_ready=True)
            return [acknowledgement.sequence async for acknowledgement in call][-1]

    assert asyncio.run(scenario()) == 40
    buckets = pd.read_parquet(tmp_path / "data/buckets")
    assert len(buckets) == 2 * 4000
    assert not buckets.duplicated(["flow_id", "bucket_start_ns"]).any()


def test_it_ends_with_the_collector(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/socket"
    command = [sys.executable, "-m", "netmon", "collector", "--listen", address, "--data", str(tmp_path / "data")]
    process = subprocess.Popen([*DIES_WITH_US, *command], stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: bool(receiver_of(process.pid)))
        (receiver,) = receiver_of(process.pid)
        os.kill(receiver, signal.SIGTERM)  # as a service's processes all get it
        process.kill()
        process.wait()
        wait_for(lambda: not command_line(receiver))
    finally:
        process.kill()
        process.wait()


def test_some_of_many_batches() -> None:
    hosts = [Host(), Host(cross_from_ms=50), Host()]
    messages = [encode_batch(host.batch()) for _ in range(5) for host in hosts]
    messages[4].clock.mono_ns = -5  # refused
    good = np.arange(len(messages)) % 4 != 1
    kept = filter_batches(decode_many(messages), good)
    alone = decode_many([one for one, is_good in zip(messages, good.tolist(), strict=True) if is_good])
    assert kept.refused == alone.refused
    pairs = [(getattr(kept, name), getattr(alone, name)) for name in ("rows", "ledger", "heads")]
    for ours, theirs in [*pairs, *((kept.evidence[name], alone.evidence[name]) for name in EVIDENCE)]:
        columns = theirs.names if isinstance(theirs, Columns) else theirs.dtype.names
        assert all((ours[column] == theirs[column]).all() for column in columns)
    assert all((ours == theirs).all() for ours, theirs in zip(kept.runs, alone.runs, strict=True))
    for name in ("flows", "exchanges", "nic", "disciplines"):
        assert getattr(kept, name) == getattr(alone, name)
    assert read_ranks(kept.ranks, kept.words) == read_ranks(alone.ranks, alone.words)
    assert kept.iterations["start_ns"].tolist() == alone.iterations["start_ns"].tolist()
    assert MS * 100 in kept.heads["horizon_ns"]


def test_what_fails_for_one_stream_is_said_and_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = RemoteStream.open

    async def failing(self: RemoteStream, introduced: Hello) -> None:
        if introduced.host == "odd":
            raise ZeroDivisionError("of a mistake of ours")
        await opened(self, introduced)

    monkeypatch.setattr(RemoteStream, "open", failing)

    async def scenario() -> list[str]:
        async with collector(tmp_path) as stub:
            odd = stub.Stream()
            await odd.write(message(hello(host="odd", session="odd")))
            with pytest.raises(grpc.aio.AioRpcError, match="failed at the hello"):
                [_ async for _ in odd]
            assert (await send(stub, session(10)))[-1] == 10
            call = stub.Watch(netmon_pb2.WatchRequest(interval_ms=100))
            async for snapshot in call:
                if lines := decode_snapshot(snapshot).warnings:
                    return list(lines)
            return []

    assert any("ZeroDivisionError: of a mistake of ours" in line for line in asyncio.run(scenario()))


def test_calls_that_the_end_finds_leave_no_traceback(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/socket"
    command = [sys.executable, "-m", "netmon", "collector", "--listen", address, "--data", str(tmp_path / "data")]
    process = subprocess.Popen([*DIES_WITH_US, *command], stderr=subprocess.PIPE, text=True)

    async def scenario() -> str:
        async with grpc.aio.insecure_channel(address, options=[("grpc.max_reconnect_backoff_ms", 200)]) as channel:
            await asyncio.wait_for(channel.channel_ready(), 60)
            stub, calls = CollectorStub(channel), []
            for number in range(5):
                calls += [stub.Stream(), stub.Clock()]
                await calls[-2].write(message(hello(host=f"h{number}", session=f"t{number}")))
                await calls[-1].write(netmon_pb2.ClockProbe(number=1))
                await calls[-1].read()
            process.terminate()
            return (await asyncio.to_thread(process.communicate))[1]

    try:
        said = asyncio.run(scenario())
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert "Traceback" not in said
