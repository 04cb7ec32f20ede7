# SPDX-License-Identifier: Apache-2.0
"""Simulated hosts on the bus whose truth is known, and workers: in this process, or as processes of their own."""

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from bus_host import FLUSH_S, TICK_S
from in_process import JobsHere
from waiting import DIES_WITH_US

from collector.bus.worker import ClusterWorker, WorkerSettings
from collector.dataset.sink import ParquetSink
from collector.registry import Registry
from collector.settings import Settings
from netmon.bench.pipeline.agents import HostReport, Report, _Agent, _Epoch, host_name
from netmon.bench.pipeline.truth import Verdict, judge
from netmon.bench.specs import WIDTH_MS, Load
from netmon.wire import netmon_pb2
from netmon.wire.batches import encode_hello
from netmon.wire.bus import Bus, BusSettings, Label, batch_subject, hello_subject, make_streams

TTL_S = 2.0


class Hosts:
    """All hosts of a load: their batches are made, and published as a test wants it."""

    def __init__(self, bus: Bus, load: Load) -> None:
        self.bus, self.load = bus, load
        self.spans = load.seconds * load.batches
        self._epoch = _Epoch(time.monotonic(), time.time_ns())
        self._hellos, self._batches = [], []
        for number in range(load.hosts):
            agent = _Agent(load, number, self._epoch)
            self._hellos.append(agent._simulated.hello(agent._clock(0)))
            self._batches.append([])
            for span in range(self.spans):
                self._batches[-1].append(agent._message(range(span, span + 1), WIDTH_MS))
                agent.report.messages += 1

    async def introduce(self) -> None:
        for hello in self._hellos:
            data = netmon_pb2.AgentMessage(hello=encode_hello(hello)).SerializeToString()
            await self.bus.jetstream.publish(hello_subject(hello.host, hello.session), data)

    async def publish(self, first: int, last: int, every_s: float = 0.05) -> None:
        """These batches of every host."""
        for batch in range(first, last):
            for hello, batches in zip(self._hellos, self._batches, strict=True):
                label = Label(hello.session, batch + 1, batch, batch)
                await self.bus.jetstream.publish(batch_subject(hello.host), batches[batch], headers=label.headers())
            await asyncio.sleep(every_s)

    async def end(self) -> None:
        for hello in self._hellos:
            label = Label(hello.session, 0, self.spans, self.spans)
            await self.bus.jetstream.publish(batch_subject(hello.host), b"", headers=label.headers())

    async def waiting(self) -> int:
        """Messages that nobody has acknowledged."""
        return (await self.bus.jetstream.stream_info("NETMON")).state.messages

    def verdict(self, data: Path) -> Verdict:
        """What is stored, held against what was sent: all of it."""
        hosts = [HostReport(self.spans, self.spans, self.spans, [(0, WIDTH_MS)]) for _ in range(self.load.hosts)]
        nothing = float("nan")
        report = Report(0, self._epoch.utc_ns, hosts, nothing, nothing, nothing, nothing, nothing)
        return judge(data, self.load, report)

    def names(self, job: int) -> list[str]:
        return [host_name(number) for number in self.load.members(job)]


def assert_true(verdict: Verdict) -> None:
    """Every row, iteration and interval once, of the right class and with the right number."""
    assert verdict.true, verdict
    assert (verdict.classes, verdict.numbers) == (0, 0), verdict
    assert min(verdict.rows.true, verdict.iterations.true, verdict.ledger.true) > 0


@contextlib.asynccontextmanager
async def simulated(settings: BusSettings, load: Load) -> AsyncIterator[Hosts]:
    bus = await Bus.connect(settings, "agents")
    await make_streams(bus)
    hosts = Hosts(bus, load)
    await hosts.introduce()
    try:
        yield hosts
    finally:
        await bus.close()


class Working:
    """A worker in this process."""

    def __init__(self, data: Path, settings: BusSettings, name: str) -> None:
        self.name = name
        self._settings = WorkerSettings(settings, name, ttl_s=TTL_S)
        self._sink = ParquetSink(data, name)
        self.registry = Registry(self._sink, Settings(), JobsHere())

    async def __aenter__(self) -> "Working":
        self.worker = await ClusterWorker.begin(self._settings, self.registry, self._sink)
        work = (self._tick(), self._flush(), self._infer(), self.worker.run())
        self._tasks = [asyncio.create_task(one) for one in work]
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._tasks:
            await self.leave()

    async def leave(self) -> None:
        """As on SIGTERM."""
        await self.worker.leave()
        await self._tasks.pop()
        for task in self._tasks:
            await self._cancel(task)
        self._tasks = []
        await self.worker.close()
        self._sink.close()

    @property
    def held(self) -> frozenset[str]:
        return self.worker.intake.taken_hosts()

    @staticmethod
    async def _cancel(task: "asyncio.Task[None]") -> None:
        task.cancel()
        for outcome in await asyncio.gather(task, return_exceptions=True):
            assert isinstance(outcome, asyncio.CancelledError), outcome

    async def _tick(self) -> None:
        while True:
            self.registry.tick()
            await asyncio.sleep(TICK_S)

    async def _flush(self) -> None:
        while True:
            self.registry.tidy()
            await self.registry.flush()
            await asyncio.sleep(4 * FLUSH_S)

    async def _infer(self) -> None:
        while True:
            await asyncio.sleep(0.3)
            await self.registry.infer()


PROGRAM = """
import asyncio, json, logging, sys
from pathlib import Path
from collector.bus.worker import WorkerSettings
from collector.server import serve
from collector.settings import Settings
from netmon.wire.bus import BusSettings
data, listen, name, ttl_s, servers = json.loads(sys.argv[1])
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
worker = WorkerSettings(BusSettings(tuple(servers)), name, ttl_s=ttl_s)
asyncio.run(serve(Settings(listen=listen, data=Path(data), flush_ns=500_000_000), worker=worker))
"""


class Process:
    """A worker as a process of its own."""

    def __init__(self, folder: Path, settings: BusSettings, name: str) -> None:
        self.name, self._log = name, folder / f"{name}-{time.monotonic_ns()}.log"
        self.address = f"unix:{folder / name}.sock"
        given = json.dumps([str(folder / "data"), self.address, name, 2 * TTL_S, list(settings.servers)])
        with self._log.open("wb") as log:
            command = [*DIES_WITH_US, sys.executable, "-c", PROGRAM, given]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=Path(__file__).parents[2])

    def said(self) -> str:
        return self._log.read_text()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            assert self.process.wait(60) == 0, self.said()


@contextlib.contextmanager
def processes(folder: Path, settings: BusSettings, *names: str) -> Iterator[list[Process]]:
    started = [Process(folder, settings, name) for name in names]
    try:
        yield started
        for one in started:
            if one.process.poll() is None:
                one.end()
    finally:
        for one in started:
            one.process.kill()
            one.process.wait()
