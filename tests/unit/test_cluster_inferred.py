# SPDX-License-Identifier: Apache-2.0
"""A job of which nobody tells but its traffic moves from one worker to another while it trains."""

import asyncio

import numpy as np
import pandas as pd
import pytest
from bus_cluster import Working
from bus_host import wait_until
from collector_stream import MS, hello
from dataset_rows import stored_rows
from nats_server import running
from test_inferring import HOSTS, PERIOD_MS, batches

from netmon.wire import netmon_pb2
from netmon.wire.batches import encode_batch, encode_hello
from netmon.wire.bus import Bus, Label, batch_subject, hello_subject, make_streams

SECONDS = 24
COUNT = 10 * SECONDS
NAMES = {f"h{host}" for host in range(HOSTS)}


class Agents:
    """The hosts of test_inferring, on the bus."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._batches = [list(batches(host, SECONDS)) for host in range(HOSTS)]

    async def introduce(self) -> None:
        for host in range(HOSTS):
            opening = netmon_pb2.AgentMessage(hello=encode_hello(hello(host=f"h{host}", session=f"s{host}")))
            subject = hello_subject(f"h{host}", f"s{host}")
            await self._bus.jetstream.publish(subject, opening.SerializeToString())

    async def publish(self, first: int, last: int) -> None:
        for number in range(first, last):
            for host in range(HOSTS):
                data = netmon_pb2.AgentMessage(batch=encode_batch(self._batches[host][number])).SerializeToString()
                await self._put(host, data, Label(f"s{host}", number + 1, number, number))
            await asyncio.sleep(0.05)

    async def end(self) -> None:
        for host in range(HOSTS):
            await self._put(host, b"", Label(f"s{host}", 0, COUNT, COUNT))

    async def _put(self, host: int, data: bytes, label: Label) -> None:
        await self._bus.jetstream.publish(batch_subject(f"h{host}"), data, headers=label.headers())

    async def none_waits(self) -> bool:
        return (await self._bus.jetstream.stream_info("NETMON")).state.messages == 0


def iterations(data) -> pd.DataFrame:
    rows = stored_rows(data, "iterations")
    return rows.sort_values(["job", "rank", "iteration"])


@pytest.mark.long
def test_it_keeps_its_name_and_its_numbers(tmp_path):
    data = tmp_path / "data"

    async def test() -> None:
        with running(tmp_path) as server:
            bus = await Bus.connect(server.settings, "agents")
            await make_streams(bus)
            agents = Agents(bus)
            await agents.introduce()
            async with Working(data, server.settings, "w1") as one:
                await agents.publish(0, COUNT // 2)
                await wait_until(lambda: len(iterations(data)) > 3 * HOSTS)
                await one.leave()
            await agents.publish(COUNT // 2, COUNT - 40)
            async with Working(data, server.settings, "w2") as other:
                await wait_until(lambda: other.held == NAMES, 120)
                await agents.publish(COUNT - 40, COUNT)
                await agents.end()
                await wait_until(agents.none_waits, 120)
            await bus.close()

    asyncio.run(asyncio.wait_for(test(), 400))
    rows = iterations(data)
    assert set(rows["source"].astype(str)) == {"inferred"}
    assert rows["job"].nunique() == 1
    for _, own in rows.groupby("rank"):
        assert own["iteration"].tolist() == list(range(len(own)))
        starts, ends = (own[name].to_numpy() / (PERIOD_MS * MS) for name in ("start_ns", "end_ns"))
        late = np.flatnonzero(np.diff(starts).round(1) != 1)
        assert len(late) <= 3, "those that began where their traffic does: the first one, and where the worker changed"
        assert (starts[1:] >= ends[:-1] - 0.01).all()
        assert round(ends[-1] - starts[0]) in (len(own) - 1, len(own)), "none is missing"
        assert len(own) >= 0.9 * SECONDS * 1000 / PERIOD_MS
