# SPDX-License-Identifier: Apache-2.0
"""The same batches played to one worker and to two: the same dataset, while jobs move, grow together and part."""

import asyncio
import contextlib
import time
from collections.abc import Iterator

import pytest
from bus_cluster import TTL_S, Working, assert_true
from bus_host import wait_until
from collector_stream import MS, rows
from nats_server import running

from collector.bus import membership
from collector.bus.membership import Bucket, HostTies, components
from netmon.bench.pipeline.truth import compare
from netmon.bench.pipeline.workers import Player, Recorded, playing
from netmon.bench.specs import Load
from netmon.records import Batch, ClockSample, Direction, Flow, Hello, Interface, NicSample
from netmon.wire import netmon_pb2
from netmon.wire.batches import encode_batch, encode_hello
from netmon.wire.bus import Label, batch_subject, hello_subject

LOAD = Load(hosts=6, rows=200, flows=8, jobs=3, seconds=8)
PARTS = (0, 10, 20, 30, LOAD.seconds * LOAD.batches)
LONG_MS = 200_000
"""A flow that was last seen so long ago ties nobody."""


class Bridge:
    """A host that sends much to a host of the first job and to one of the second, and later nothing more."""

    def __init__(self, player: Player, utc_ns: int) -> None:
        self._player, self._utc_ns, self._sent = player, utc_ns, 0
        interface = Interface(3, "eth0", 10**10, "tcx", "tcx")
        self.hello = Hello("bridge", "bridge-s", MS, self._clock(0), (interface,), "0.1")
        ends = [("10.1.0.1", f"10.0.0.{host}", 1000 + host, 2000) for host in (0, 2)]
        self._flows = tuple(Flow(1 + n, 3, Direction.TX, *end, 6, 0) for n, end in enumerate(ends))

    def _clock(self, ms: int) -> ClockSample:
        return ClockSample(ms * MS, self._utc_ns + ms * MS, 1_000)

    async def begin(self) -> None:
        data = netmon_pb2.AgentMessage(hello=encode_hello(self.hello)).SerializeToString()
        await self._player.bus.jetstream.publish(hello_subject("bridge", self.hello.session), data)
        table = rows(*((flow, ms, 1 << 20) for ms in range(3) for flow in (1, 2)))
        counters = NicSample("eth0", "sysfs", 100 * MS, ("tx_bytes",), (1,))
        await self._send(Batch(1, self._clock(100), 100 * MS, table, self._flows, nic=[counters]))
        await self._send(Batch(2, self._clock(5_000), 5_000 * MS, rows()))

    async def rest(self) -> None:
        await self._send(Batch(3, self._clock(LONG_MS), LONG_MS * MS, rows()))

    async def end(self) -> None:
        await self._publish(b"", Label(self.hello.session, 0, self._sent, self._sent))

    async def _send(self, batch: Batch) -> None:
        data = netmon_pb2.AgentMessage(batch=encode_batch(batch)).SerializeToString()
        await self._publish(data, Label(self.hello.session, batch.sequence, self._sent, self._sent))
        self._sent = batch.sequence

    async def _publish(self, data: bytes, label: Label) -> None:
        await self._player.bus.jetstream.publish(batch_subject("bridge"), data, headers=label.headers())


class VerdictRow:
    """What the workers say to each other on the bus."""

    def __init__(self, player: Player) -> None:
        self._player, self._ties = player, Bucket(player.bus, "netmon-ties")

    async def components(self) -> set[frozenset[str]]:
        told = (await self._ties.read()).values
        known = {host: HostTies.from_text(value.data) for host, value in told.items()}
        return set(components(known, known))

    def are(self, *wanted: set[str]):
        """→ whether these hosts are the components, and each is with one worker."""

        async def told() -> bool:
            owners = await self._player.owners()
            whole = all(
                len({owners.get(host) for host in one} - {None}) == 1 and one <= owners.keys() for one in wanted
            )
            return whole and await self.components() == set(map(frozenset, wanted))

        return told


@pytest.fixture
def quick_ties(monkeypatch) -> None:
    """A flow that rests parts two jobs after a second instead of after a minute."""
    monkeypatch.setattr(membership.LastingTies.__init__, "__defaults__", (1.0,))


def names(*hosts: int) -> set[str]:
    return {f"sim{host:04}" for host in hosts}


@contextlib.contextmanager
def served(folder) -> Iterator[object]:
    folder.mkdir()
    with running(folder) as server:
        yield server.settings


async def stored(player: Player) -> bool:
    return not await player.waiting()


async def play_to_one(folder, recorded: Recorded) -> None:
    with served(folder) as settings:
        async with playing(settings, recorded) as player, Working(folder / "data", settings, "w1"):
            bridge = Bridge(player, recorded.utc_ns)
            await player.publish(0, PARTS[-1])
            await bridge.begin()
            await bridge.rest()
            await bridge.end()
            await player.end()
            await wait_until(lambda: stored(player), 120)


async def play_to_two(folder, recorded: Recorded) -> list[dict[str, str]]:
    """Who had which host after each part."""
    owners = []
    with served(folder) as settings:
        async with playing(settings, recorded) as player, Working(folder / "data", settings, "w1") as one:
            bridge, told = Bridge(player, recorded.utc_ns), VerdictRow(player)
            jobs = [names(0, 1), names(2, 3), names(4, 5)]
            await wait_until(lambda: one.held == set().union(*jobs))
            await player.publish(0, PARTS[1])
            await wait_until(told.are(*jobs))
            owners.append(await player.owners())
            async with Working(folder / "data", settings, "w2") as other:  # a job moves, while it trains
                publishing = asyncio.create_task(slowly(player, PARTS[1], PARTS[2]))
                await wait_until(lambda: other.held)
                await publishing
                await wait_until(told.are(*jobs))
                owners.append(await player.owners())
                publishing = asyncio.create_task(slowly(player, PARTS[2], PARTS[3]))
                await bridge.begin()  # two jobs are one component
                await wait_until(told.are(jobs[0] | jobs[1] | {"bridge"}, jobs[2]))
                await publishing
                await wait_until(told.are(jobs[0] | jobs[1] | {"bridge"}, jobs[2]))
                owners.append(await player.owners())
                publishing = asyncio.create_task(slowly(player, PARTS[3], PARTS[4]))
                await bridge.rest()  # and two again
                await wait_until(told.are(*jobs, {"bridge"}))
                await publishing
                await asyncio.sleep(TTL_S)
                await wait_until(told.are(*jobs, {"bridge"}))
                owners.append(await player.owners())
                await bridge.end()
                await player.end()
                await wait_until(lambda: stored(player), 120)
    return owners


async def slowly(player: Player, first: int, last: int) -> None:
    for batch in range(first, last):
        await player.publish(batch, batch + 1)
        await asyncio.sleep(0.15)


def test_two_workers_store_what_one_stores(tmp_path, quick_ties):
    recorded = Recorded.make(LOAD)

    async def test() -> list[dict[str, str]]:
        await play_to_one(tmp_path / "one", recorded)
        return await play_to_two(tmp_path / "two", recorded)

    begun = time.monotonic()
    alone, moved, grown, parted = asyncio.run(asyncio.wait_for(test(), 400))
    assert time.monotonic() > begun
    assert set(alone.values()) == {"w1"}
    assert set(moved.values()) == {"w1", "w2"}
    assert len({grown[host] for host in (*names(0, 1, 2, 3), "bridge")}) == 1
    assert set(parted.values()) == {"w1", "w2"}
    one, two = (tmp_path / name / "data" for name in ("one", "two"))
    for data in (one, two):
        assert_true(recorded.verdict(data))
    for table, difference in compare(one, two).items():
        assert difference.none, f"{table}: {difference}"
        assert difference.rows > 0, table
