# SPDX-License-Identifier: Apache-2.0
"""Gives a real agent another clock: a relay on its way to a real collector that maps every time it sends."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import grpc
import numpy as np

from netmon.records import Batch, ClockSample, Flow, Hello, LedgerSample, Mark, NicSample
from netmon.service_user import give_socket
from netmon.wire import netmon_pb2, netmon_pb2_grpc
from netmon.wire.batches import decode_batch, decode_hello, encode_batch, encode_hello

_Timed = TypeVar("_Timed", Mark, LedgerSample, NicSample)
Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True)
class Shift:
    """Another clock: it reads offset_ns more at since_ns (mono), and runs faster by skew (ns per ns)."""

    since_ns: int
    offset_ns: int = 0
    skew: float = 0.0

    def ahead(self, mono_ns: int) -> int:
        """How much more it reads at a mono time of this machine."""
        return self.offset_ns + round(self.skew * (mono_ns - self.since_ns))

    def of(self, mono_ns: int) -> int:
        """A mono time as the other clock reads it."""
        return mono_ns + self.ahead(mono_ns)

    def hello(self, hello: Hello) -> Hello:
        """A hello with the other clock's times."""
        flows, marks = tuple(map(self._flow, hello.flows)), tuple(map(self._timed, hello.marks))
        return replace(hello, clock=self._sample(hello.clock), flows=flows, marks=marks)

    def batch(self, batch: Batch, bucket_ns: int) -> Batch:
        """A batch with the other clock's times, its packets in the buckets of that clock which hold most of theirs."""
        middle = batch.buckets["bucket_start_ns"].astype(np.int64) + bucket_ns // 2
        buckets = batch.buckets.copy()
        moved = middle + self.offset_ns + np.round(self.skew * (middle - self.since_ns)).astype(np.int64)
        buckets["bucket_start_ns"] = (moved // bucket_ns * bucket_ns).astype(np.uint64)
        return replace(
            batch,
            clock=self._sample(batch.clock),
            horizon_ns=self.of(batch.horizon_ns),
            buckets=buckets,
            flows=tuple(map(self._flow, batch.flows)),
            marks=tuple(map(self._timed, batch.marks)),
            ledger=tuple(map(self._timed, batch.ledger)),
            nic=tuple(map(self._timed, batch.nic)),
            exchanges=tuple(
                replace(e, agent_sent_ns=self.of(e.agent_sent_ns), agent_received_ns=self.of(e.agent_received_ns))
                for e in batch.exchanges
            ),
        )

    def _sample(self, sample: ClockSample) -> ClockSample:
        # Its UTC is as wrong as its mono: nothing but the exchange or the traffic tells.
        return replace(sample, mono_ns=self.of(sample.mono_ns), utc_ns=sample.utc_ns + self.ahead(sample.mono_ns))

    def _flow(self, flow: Flow) -> Flow:
        return replace(flow, first_ns=self.of(flow.first_ns))

    def _timed(self, record: _Timed) -> _Timed:
        return replace(record, time_ns=self.of(record.time_ns))


class Relay:
    """A relay of one agent, with its own thread, until its context ends."""

    def __init__(self, listen: str, collector: str, shift: Shift, tells_time: bool = True) -> None:
        """listen, collector: addresses; tells_time: False for a collector that does not know the exchange."""
        self.shift = shift
        self.samples: list[tuple[int, int]] = []  # of the ledger: this machine's mono, and the other clock's
        self._listen, self._collector, self._tells_time = listen, collector, tells_time
        self._loop = asyncio.new_event_loop()
        self._ready, self._stop = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)

    def __enter__(self) -> "Relay":
        """Blocks until it listens."""
        self._thread.start()
        self._ready.wait(10)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Ends it and all its connections."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        self._loop.close()

    async def _serve(self) -> None:
        server = grpc.aio.server()
        async with grpc.aio.insecure_channel(self._collector) as channel:
            service = _Service(self, netmon_pb2_grpc.CollectorStub(channel), self._tells_time)  # type: ignore[no-untyped-call]
            netmon_pb2_grpc.add_CollectorServicer_to_server(service, server)  # type: ignore[no-untyped-call]
            server.add_insecure_port(self._listen)
            await server.start()
            give_socket(Path(self._listen.removeprefix("unix:")))
            self._ready.set()
            await self._stop.wait()
            await server.stop(0.5)


class _Service(netmon_pb2_grpc.CollectorServicer):
    def __init__(self, relay: Relay, collector: netmon_pb2_grpc.CollectorStub, tells_time: bool) -> None:
        self._relay, self._collector, self._tells_time = relay, collector, tells_time

    async def Stream(  # noqa: N802 (the contract's name)
        self, request_iterator: AsyncIterator[netmon_pb2.AgentMessage], _: Context
    ) -> AsyncIterator[netmon_pb2.Acknowledgement]:
        async for acknowledgement in self._collector.Stream(self._shifted(request_iterator)):
            yield acknowledgement

    async def _shifted(
        self, messages: AsyncIterator[netmon_pb2.AgentMessage]
    ) -> AsyncIterator[netmon_pb2.AgentMessage]:
        shift, bucket_ns = self._relay.shift, 1
        async for message in messages:
            if message.WhichOneof("message") == "hello":
                hello = decode_hello(message.hello)
                bucket_ns = hello.bucket_ns
                shifted = encode_hello(shift.hello(hello))
                shifted.proof = message.hello.proof
                yield netmon_pb2.AgentMessage(hello=shifted)
            else:
                batch = decode_batch(message.batch)
                self._relay.samples += [(sample.time_ns, shift.of(sample.time_ns)) for sample in batch.ledger]
                yield netmon_pb2.AgentMessage(batch=encode_batch(shift.batch(batch, bucket_ns)))

    async def Clock(  # noqa: N802 (the contract's name)
        self, request_iterator: AsyncIterator[netmon_pb2.ClockProbe], context: Context
    ) -> None:
        """The collector's clock is this machine's: the relay tells the time as the collector does, without a detour."""
        if not self._tells_time:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no exchange")
        async for probe in request_iterator:
            received = time.time_ns()
            echo = netmon_pb2.ClockEcho(number=probe.number, received_ns=received)
            echo.sent_ns = time.time_ns()
            await context.write(echo)
