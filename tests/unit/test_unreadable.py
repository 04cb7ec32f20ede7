# SPDX-License-Identifier: Apache-2.0
"""Bytes that are no message of ours: a refusal that is counted and said now and then, after who sent them is known."""

import asyncio
import re
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from authorities import security
from test_collector_server import FAST
from test_tls import COLLECTOR, listening

from collector.server import serve
from collector.settings import ListenConfig
from netmon.wire.secure import open_channel
from netmon.wire.security import Role

_GARBAGE = b"\xff" * 64
_METHODS = ["Stream", "Clock", "Watch", "Advise", "Full", "Past"]
_TIMES = 20


async def refused(channel: grpc.aio.Channel, path: str) -> grpc.StatusCode:
    call = channel.stream_stream(path)(iter([_GARBAGE]))
    try:
        await call.read()
    except grpc.aio.AioRpcError as error:
        return error.code()
    return await call.code()


def test_bytes_that_are_no_message_are_refused_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        address, stop = f"unix:{tmp_path}/socket", asyncio.Event()
        task = asyncio.create_task(serve(replace(FAST, listen=address, data=tmp_path / "data"), stop))
        async with grpc.aio.insecure_channel(address) as channel:
            await asyncio.wait_for(channel.channel_ready(), 60)
            for method in _METHODS:
                for _ in range(_TIMES):
                    assert await refused(channel, f"/netmon.Collector/{method}") == grpc.StatusCode.INVALID_ARGUMENT
            for _ in range(_TIMES):
                assert await refused(channel, "/grpc.health.v1.Health/Check") != grpc.StatusCode.OK
        stop.set()
        await task

    asyncio.run(scenario())
    said = caplog.text + "".join(capfd.readouterr())
    assert "Traceback" not in said
    assert len(re.findall("cannot be read", said)) == 1


def test_a_stranger_is_refused_before_anything_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        listening(tmp_path, ListenConfig(COLLECTOR)) as address,
        open_channel(address, security(Role.JOBS, "wall"), (), Role.JOBS) as channel,
    ):
        for method in ("Stream", "Clock", "Full", "Past"):
            with pytest.raises(grpc.RpcError) as error:
                list(channel.stream_stream(f"/netmon.Collector/{method}")(iter([_GARBAGE])))
            assert error.value.code() == grpc.StatusCode.PERMISSION_DENIED
    assert "Traceback" not in caplog.text
