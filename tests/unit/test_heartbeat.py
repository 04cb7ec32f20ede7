# SPDX-License-Identifier: Apache-2.0
"""A worker that is busy is not gone, one that does nothing any more is: with a real server."""

import asyncio
import time

import pytest
from bus_host import wait_until
from nats_server import running

from collector.bus.membership import Membership
from collector.bus.worker import Heartbeat
from netmon.wire.bus import Bus

TTL_S = 1.0


@pytest.fixture
def server(tmp_path):
    with running(tmp_path) as server:
        yield server


def test_who_is_busy_lives_and_who_is_stuck_does_not(server):
    async def test() -> None:
        bus = await Bus.connect(server.settings, "test")
        others = Membership(bus, "w2", TTL_S)
        heart = Heartbeat(server.settings, "w1", 2.0, TTL_S, stuck_s=4 * TTL_S)

        async def lives() -> bool:
            return (await others.poll()).workers == {"w1": 2.0}

        async def gone() -> bool:
            return not (await others.poll()).workers

        heart.begin()
        await wait_until(lives)
        for _ in range(2):
            heart.here()
            time.sleep(2 * TTL_S)  # it is this loop that is busy
            assert await lives()
        await wait_until(gone)  # nothing has turned since
        heart.here()
        await wait_until(lives)
        await heart.end()
        heart.here()
        await wait_until(gone)
        await bus.close()

    asyncio.run(asyncio.wait_for(test(), 120))


def test_it_goes_on_when_the_server_is_back_and_ends_without_it(server):
    async def test() -> None:
        heart = Heartbeat(server.settings, "w1", 1.0, TTL_S)
        heart.begin()
        await asyncio.sleep(TTL_S)
        server.kill()
        await asyncio.sleep(2 * TTL_S)
        server.start()
        bus = await Bus.connect(server.settings, "test")
        others = Membership(bus, "w2", TTL_S)

        async def lives() -> bool:
            heart.here()
            return "w1" in (await others.poll()).workers

        await wait_until(lives)
        await bus.close()
        server.kill()
        await heart.end()

    asyncio.run(asyncio.wait_for(test(), 120))
