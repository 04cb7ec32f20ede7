# SPDX-License-Identifier: Apache-2.0
"""Ports that peers leave in the middle of what they are told."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest

from collector.service import Admission, listen_at
from collector.settings import ListenConfig

LEAVES = """
import random, sys, time
import grpc
for _ in range(20):
    with grpc.insecure_channel(sys.argv[1], [("grpc.use_local_subchannel_pool", 1)]) as channel:
        told = channel.unary_stream("/test/Tell")(b"")
        next(told)
        time.sleep(random.random() / 20)
"""


async def tell(_: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    """More than fits into the connection: there is always a part that waits to be read."""
    while True:
        await context.write(bytes(200_000))


def test_a_peer_that_leaves_is_no_error_of_ours(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    address = f"unix:{tmp_path}/socket"

    async def scenario() -> list[int]:
        server = grpc.aio.server()
        method: Any = grpc.unary_stream_rpc_method_handler(tell)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", {"Tell": method}),))
        listen_at(server, address, ListenConfig(), Admission())
        await server.start()
        peers = [await asyncio.create_subprocess_exec(sys.executable, "-c", LEAVES, address) for _ in range(2)]
        ended = [await peer.wait() for peer in peers]
        await server.stop(0)
        return ended

    assert asyncio.run(scenario()) == [0, 0]
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
