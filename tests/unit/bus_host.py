# SPDX-License-Identifier: Apache-2.0
"""A simulated agent on the bus, and a worker, for tests of the intake."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from collector_stream import Host, hello
from in_process import JobsHere

from collector.bus.intake import BusIntake
from collector.dataset.sink import ParquetSink
from collector.registry import Registry
from collector.settings import Settings
from netmon.records import Direction, Flow, Hello
from netmon.wire import netmon_pb2
from netmon.wire.batches import decode_batch, encode_batch, encode_hello
from netmon.wire.bus import Bus, BusSettings, Label, batch_subject, hello_subject

TICK_S, FLUSH_S = 0.02, 0.05


class Publisher:
    """Batches of one session, published as a test wants it."""

    def __init__(self, bus: Bus, **changes: object) -> None:
        self.bus, self.hello, self.host = bus, hello(**changes), Host()
        self.batches: list[bytes] = []

    def make(self, count: int) -> None:
        for _ in range(count):
            batch = netmon_pb2.AgentMessage(batch=encode_batch(self.host.batch()))
            self.batches.append(batch.SerializeToString())

    async def introduce(self, introduction: Hello | None = None) -> None:
        message = netmon_pb2.AgentMessage(hello=encode_hello(introduction or self.hello))
        subject = hello_subject(self.hello.host, self.hello.session)
        await self.bus.jetstream.publish(subject, message.SerializeToString())

    async def introduce_as_schema(self, version: int) -> None:
        message = netmon_pb2.AgentMessage(hello=encode_hello(self.hello))
        message.hello.schema_version = version
        subject = hello_subject(self.hello.host, self.hello.session)
        await self.bus.jetstream.publish(subject, message.SerializeToString())

    def spoil(self, sequence: int) -> None:
        """The batch names an interface that its host does not have."""
        message = netmon_pb2.AgentMessage.FromString(self.batches[sequence - 1])
        batch = decode_batch(message.batch)
        stranger = Flow(99, 77, Direction.RX, "198.18.0.1", "198.18.0.2", 0, 0, 6, 0)
        message.batch.CopyFrom(encode_batch(replace(batch, flows=[*batch.flows, stranger])))
        self.batches[sequence - 1] = message.SerializeToString()

    async def send(self, sequence: int, previous: int | None = None, known: int = 0) -> None:
        label = Label(self.hello.session, sequence, sequence - 1 if previous is None else previous, known)
        await self.publish(self.batches[sequence - 1], label)

    async def end(self) -> None:
        await self.publish(b"", Label(self.hello.session, 0, len(self.batches), len(self.batches)))

    async def publish(self, data: bytes, label: Label) -> None:
        await self.bus.jetstream.publish(batch_subject(self.hello.host), data, headers=label.headers())


class Worker:
    """A registry that ticks and flushes, and its intake."""

    def __init__(self, sink: ParquetSink, bus: Bus, name: str = "w1") -> None:
        self.registry = Registry(sink, Settings(settle_ns=1), JobsHere())
        self.intake = BusIntake(bus, self.registry, name, self.owns)
        self.has_lost: set[str] = set()

    async def owns(self, host: str) -> bool:
        return host not in self.has_lost

    async def tick_for_ever(self) -> None:
        while True:
            self.registry.tick()
            await asyncio.sleep(TICK_S)

    async def flush_for_ever(self) -> None:
        while True:
            self.registry.tidy()
            await self.registry.flush()
            await asyncio.sleep(FLUSH_S)


@contextlib.asynccontextmanager
async def working(data: Path, settings: BusSettings, name: str = "w1", release: bool = True) -> AsyncIterator[Worker]:
    """release: as a worker that ends in order; else as one that is killed."""
    sink = ParquetSink(data)
    bus = await Bus.connect(settings, name, lasting=True)
    worker = Worker(sink, bus, name)
    tasks = [asyncio.create_task(worker.tick_for_ever()), asyncio.create_task(worker.flush_for_ever())]
    try:
        await worker.intake.start()
        yield worker
        if not release:
            worker.intake.abandon()
    finally:
        await worker.intake.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await bus.close()
        sink.close()


async def wait_until(condition, seconds: float = 60) -> None:
    """condition: awaitable or not."""
    for _ in range(int(seconds / 0.02)):
        holds = condition()
        if await holds if asyncio.iscoroutine(holds) else holds:
            return
        await asyncio.sleep(0.02)
    raise AssertionError


def waiting(bus: Bus):
    """→ whether nothing waits on the bus."""

    async def empty() -> bool:
        return (await bus.jetstream.stream_info("NETMON")).state.messages == 0

    return empty


def changed(introduction: Hello, **changes: object) -> Hello:
    return replace(introduction, **changes)
