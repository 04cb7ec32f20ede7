# SPDX-License-Identifier: Apache-2.0
"""The simulated agents: one process, a channel and a stream for each, as cheap as can be.

As a program: LOAD ADDRESS REPORT, the load as JSON. It says BEGUN when all are connected and the first batches are
made, ENDED when the last ones are, and writes the file REPORT when everything is acknowledged or time is up.

A batch's rows are encoded once for all batches of its sort, and its time is patched in; nothing waits in a spool: a
batch is made when gRPC takes it, but as wide as it had to be when it was due.
"""

import asyncio
import gc
import json
import sys
import time
from bisect import bisect_right
from collections.abc import Hashable, Iterable
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
import numpy as np

from netmon.bench.pipeline.host import MS, Account, SimulatedHost, boot_ns, coarser
from netmon.bench.specs import WIDTH_MS, WIDTHS_MS, Load
from netmon.own_module import allow_descriptors
from netmon.records import ClockExchange, ClockSample, Hello
from netmon.wire import netmon_pb2
from netmon.wire.batches import encode_hello, serialise_buckets
from netmon.wire.limits import CONNECT_S, KEEPALIVE_S, KEEPALIVE_TIMEOUT_S, MAX_ROWS
from netmon.wire.tables import Words, encode_tables, rows_of

if TYPE_CHECKING:
    from netmon.wire.bus import Bus

BEGUN, ENDED = "begun", "ended"

METHOD = "/netmon.Collector/Stream"
AGENT_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # a connection of its own
    ("grpc.enable_retries", 0),
    ("grpc.http2.bdp_probe", 0),  # a few bytes come down: how fast more could come needs no pings
    # With these gRPC also sets TCP_USER_TIMEOUT, so that the kernel does not wait longer for what it has sent.
    ("grpc.keepalive_time_ms", int(KEEPALIVE_S * 1000)),
    ("grpc.keepalive_timeout_ms", int(KEEPALIVE_TIMEOUT_S * 1000)),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.min_reconnect_backoff_ms", int(CONNECT_S * 1000)),
    ("grpc.initial_reconnect_backoff_ms", int(CONNECT_S * 1000)),
    ("grpc.max_reconnect_backoff_ms", int(CONNECT_S * 1000)),
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
)
"""For a channel of gRPC that behaves as an agent's, which has its own (`netmon.wire.grpc_client`)."""

FAREWELL_S = 60.0
"""For the last acknowledgements after the last batch."""

_CONNECT_S = 120.0
_LEAD_S = 0.5
_EXCHANGES = 4  # in a burst
_EXCHANGES_EVERY_S = 2
_ON_THE_WAY_NS = 60_000
_PREPARED_S = 40  # of batches; later ones are alike
_ENCODED: dict[tuple[Hashable, int], tuple[bytes, int]] = {}  # by sort of batch and width
_T = TypeVar("_T")
_COST = netmon_pb2.AgentCost(cpu_fraction=0.02, rss_bytes=160_000_000)


@dataclass
class HostReport:
    """What became of one host's batches, in those that it sends unless it is requested fewer: spans of the load.

    widths: (first span, width in ms) from which they were so wide. messages: batches as they were sent.
    """

    sent: int = 0
    acknowledged: int = 0
    messages: int = 0
    widths: list[tuple[int, int]] = field(default_factory=list)
    failed: str = ""  # how its stream ended, if not in order

    def coarse_spans(self) -> int:
        """Of those that were sent."""
        ends = [*(first for first, _ in self.widths[1:]), self.sent]
        spans = zip(self.widths, ends, strict=True)
        return sum(end - first for (first, width), end in spans if width > WIDTH_MS)


@dataclass
class Report:
    """Of all hosts. Delays in s: from when a batch was due to its acknowledgement, and to when gRPC took it."""

    since_s: int
    utc_ns: int  # when the simulation began
    hosts: list[HostReport]
    delay_median_s: float
    delay_p99_s: float
    delay_most_s: float
    late_p99_s: float
    silent_most_s: float  # the longest time that a host heard nothing

    @classmethod
    def read(cls, path: Path) -> "Report":
        document: dict[str, Any] = json.loads(path.read_text())
        hosts = [HostReport(**host) for host in document.pop("hosts")]
        return cls(hosts=hosts, **document)


class _Agent:
    def __init__(self, load: Load, host: int, epoch: "_Epoch") -> None:
        self.report = HostReport(widths=[(0, WIDTH_MS)])
        self.delays: list[float] = []
        self.late: list[float] = []
        self.silent_s = 0.0
        self._load, self._host, self._epoch = load, host, epoch
        self._phase_s = host / load.hosts / load.batches
        self._requests: list[tuple[float, int, int]] = [
            (0.0, WIDTH_MS, 1)
        ]  # since when, how wide, so many spans together
        self._ends: list[int] = []  # of each batch that was sent: the span after it
        self._acknowledged = 0
        self._answered_s = time.monotonic()
        self._simulated = SimulatedHost(load, host)
        self._account = Account(self._simulated)
        repeats = self._simulated.sort_of(0) is not None
        for batch in range(min(_PREPARED_S, load.seconds) * load.batches if repeats else 0):
            self._rows(range(batch, batch + 1), WIDTH_MS)
        self._call: Any = None
        self._channel: grpc.aio.Channel | None = None
        self._reading: asyncio.Task[None] | None = None

    async def connect(self, address: str, bus: "Bus | None") -> None:
        """Until the collector has answered, or the bus."""
        if bus:
            from netmon.bench.pipeline.bus import BusCall

            hello = self._hello()
            self._call = BusCall(bus, hello.hello.host, hello.hello.session)
            await self._call.begin(hello.SerializeToString())
            return
        self._channel = grpc.aio.insecure_channel(address, options=AGENT_OPTIONS)
        self._call = self._channel.stream_stream(
            METHOD, request_serializer=None, response_deserializer=netmon_pb2.Acknowledgement.FromString
        )(wait_for_ready=True)
        await self._call.write(self._hello().SerializeToString())
        await asyncio.wait_for(self._call.read(), _CONNECT_S)

    def _hello(self) -> netmon_pb2.AgentMessage:
        now_ns = round((time.monotonic() - self._epoch.mono_s) * 1e9)
        return netmon_pb2.AgentMessage(hello=encode_hello(self._simulated.hello(self._clock(now_ns))))

    def begin_at(self, since_s: int) -> None:
        """The first batch begins then, since the simulation began."""
        self._simulated.since_s = since_s

    async def send(self) -> None:
        """All batches, each when it is due."""
        spans = self._load.seconds * self._load.batches * (100 if self._load.cut else 1)
        self._answered_s = time.monotonic()
        self._reading = asyncio.create_task(self._read())
        try:
            while self.report.sent < spans and not self._reading.done():
                first, (width, together) = self.report.sent, self._wanted(self._due(self.report.sent))
                # A batch lies within one second, so that all hosts' are cut alike.
                end = min(first + together, (first // self._load.batches + 1) * self._load.batches)
                due = self._due(end - 1)
                rest = due - time.monotonic()
                if rest > 0:
                    await asyncio.sleep(rest)
                await self._call.write(self._message(range(first, end), width))
                self.report.sent, self.report.messages = end, self.report.messages + 1
                self._ends.append(end)
                self.late.append(time.monotonic() - due)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            self._failed(error)

    async def finish(self, until: float) -> None:
        """Say that it is all, and wait for what is not acknowledged yet."""
        assert self._reading
        try:
            if not self._reading.done():
                await asyncio.wait_for(self._call.done_writing(), max(0.1, until - time.monotonic()))
            await asyncio.wait_for(self._reading, max(0.1, until - time.monotonic()))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            self._failed(error)
        except asyncio.TimeoutError:
            self._failed(f"not acknowledged within {FAREWELL_S:g} s")
        self._call.cancel()
        if self._channel:
            await self._channel.close()

    def _failed(self, why: BaseException | str) -> None:
        if isinstance(why, grpc.aio.AioRpcError):
            why = f"{why.code().name.lower()}: {why.details()}"
        self.report.failed = self.report.failed or str(why)

    async def _read(self) -> None:
        try:
            while (message := await self._call.read()) is not grpc.aio.EOF:
                self._take(message)
            # A stream that has ended in order reads alike.
            if await self._call.code() is not grpc.StatusCode.OK:
                self._failed(f"{(await self._call.code()).name.lower()}: {await self._call.details()}")
        except grpc.aio.AioRpcError as error:
            self._failed(error)

    def _take(self, message: netmon_pb2.Acknowledgement) -> None:
        now = time.monotonic()
        self.silent_s = max(self.silent_s, now - self._answered_s)
        self._answered_s = now
        for end in self._ends[self._acknowledged : message.sequence]:
            self.delays.append(now - self._due(end - 1))
            self.report.acknowledged = end
        self._acknowledged = max(self._acknowledged, message.sequence)
        width = next((width for width in WIDTHS_MS if width * MS >= message.bucket_ns), WIDTHS_MS[-1])
        together = max(1, -(-message.batch_ns // (self._load.span_ms * MS)))
        most = MAX_ROWS * 1_000 // max(1, self._load.rows * self._load.span_ms)
        together = max(1, min(together, most))  # of what would be more an agent makes two batches
        if (width, together) != self._requests[-1][1:]:
            self._requests.append((now, width, together))

    def _due(self, span: int) -> float:
        """When a span has ended, by this process' monotonic clock."""
        return self._epoch.mono_s + self._simulated.begin_ns(span + 1) / 1e9 + self._phase_s

    def _wanted(self, due: float) -> tuple[int, int]:
        """What the collector had asked for by then: width in ms, spans together."""
        return self._requests[bisect_right(self._requests, due, key=lambda request: request[0]) - 1][1:]

    # --- messages

    def _message(self, spans: range, width_ms: int) -> bytes:
        simulated = self._simulated
        if width_ms != self.report.widths[-1][1]:
            self.report.widths.append((spans.start, width_ms))
        rows, base_ns = self._rows(spans, width_ms)
        begin, end = (boot_ns(self._host) + simulated.begin_ns(span) for span in (spans.start, spans.stop))
        clock = netmon_pb2.ClockSample(**vars(self._clock(end - boot_ns(self._host))))
        head = netmon_pb2.Batch(sequence=self.report.messages + 1, horizon_ns=end, cost=_COST, clock=clock)
        head.buckets.bucket_ns = width_ms * MS
        if rows:
            head.buckets.base_ns = begin + base_ns
        words, first = Words(), simulated.first_flows() if spans.start == 0 else []
        tables = rows_of(
            words,
            flows=[*first, *_all(simulated.new_flows(span) for span in spans)],
            training=simulated.training(spans),
            ledger=_all(self._account.samples(span) for span in spans),
            exchanges=_all(self._exchanges(span) for span in spans),
        )
        if tables:
            encode_tables(tables, words, head.tables)
        return rows + netmon_pb2.AgentMessage(batch=head).SerializeToString()

    def _rows(self, spans: range, width_ms: int) -> tuple[bytes, int]:
        """A message of nothing but the rows, and when the first one begins within the batch."""
        sort = tuple(self._simulated.sort_of(span) for span in spans)
        if None in sort:
            return _encode(self._simulated, spans, width_ms)
        if (sort, width_ms) not in _ENCODED:
            _ENCODED[sort, width_ms] = _encode(self._simulated, spans, width_ms)
        return _ENCODED[sort, width_ms]

    def _clock(self, at_ns: int) -> ClockSample:
        """at_ns: since the simulation began."""
        return ClockSample(boot_ns(self._host) + at_ns, self._epoch.utc_ns + at_ns, 1_000)

    def _exchanges(self, batch: int) -> list[ClockExchange]:
        """As if it had asked the collector, a few times every other second."""
        if batch % (_EXCHANGES_EVERY_S * self._load.batches):
            return []
        sent_ns = [self._simulated.begin_ns(batch) + number * _ON_THE_WAY_NS * 3 for number in range(_EXCHANGES)]
        boot, utc, way = boot_ns(self._host), self._epoch.utc_ns, _ON_THE_WAY_NS
        return [ClockExchange(boot + at, utc + at + way, utc + at + way, boot + at + 2 * way) for at in sent_ns]


@dataclass(frozen=True)
class _Epoch:
    """When the simulation began: everything that a host's clock shows counts from there."""

    mono_s: float
    utc_ns: int


def _encode(host: SimulatedHost, spans: range, width_ms: int) -> tuple[bytes, int]:
    parts = [coarser(host.rows(span), width_ms) for span in spans]
    for part, span in zip(parts, spans, strict=True):
        part["bucket_start_ns"] += np.uint64(host.begin_ns(span) - host.begin_ns(spans.start))
    rows = np.concatenate(parts)
    return serialise_buckets(rows, width_ms * MS), int(rows["bucket_start_ns"].min(initial=1 << 62))


def _all(some: Iterable[Iterable[_T]]) -> list[_T]:
    return list(chain.from_iterable(some))


def record(load: Load, host: int, utc_ns: int) -> tuple[Hello, list[bytes]]:
    """One host's introduction and all its batches, as messages, as if it had begun at utc_ns."""
    agent = _Agent(load, host, _Epoch(0.0, utc_ns))
    batches = []
    for span in range(load.seconds * load.batches):
        batches.append(agent._message(range(span, span + 1), WIDTH_MS))
        agent.report.messages += 1
    return agent._simulated.hello(agent._clock(0)), batches


async def simulate(load: Load, address: str) -> Report:
    """Until everything is acknowledged, or time is up. address: of a collector, or nats://… of a bus."""
    bus = await _bus(address) if address.startswith("nats:") else None
    epoch = _Epoch(time.monotonic(), time.time_ns())
    agents = [_Agent(load, host, epoch) for host in range(load.hosts)]
    await asyncio.gather(*(agent.connect(address, bus) for agent in agents))
    since_s = 1 + int(time.monotonic() - epoch.mono_s + _LEAD_S)
    for agent in agents:
        agent.begin_at(since_s)
    gc.collect()
    gc.freeze()
    await asyncio.sleep(max(0.0, epoch.mono_s + since_s - time.monotonic()))
    print(BEGUN, flush=True)
    await asyncio.gather(*(agent.send() for agent in agents))
    print(ENDED, flush=True)
    until = time.monotonic() + FAREWELL_S
    await asyncio.gather(*(agent.finish(until) for agent in agents))
    if bus:
        await bus.close()
    return _report(agents, since_s, epoch)


async def _bus(address: str) -> "Bus":
    from netmon.wire.bus import Bus, BusSettings  # who measures without one needs no nats-py

    return await Bus.connect(BusSettings((address,)), "netmon bench", lasting=True)


def _report(agents: list[_Agent], since_s: int, epoch: _Epoch) -> Report:
    delays = np.array([delay for agent in agents for delay in agent.delays] or [np.nan])
    late = np.array([late for agent in agents for late in agent.late] or [np.nan])
    median, p99, most = (float(np.quantile(delays, share)) for share in (0.5, 0.99, 1))
    return Report(
        since_s,
        epoch.utc_ns,
        [agent.report for agent in agents],
        median,
        p99,
        most,
        late_p99_s=float(np.quantile(late, 0.99)),
        silent_most_s=max(agent.silent_s for agent in agents),
    )


def main(load: str, address: str, report: str) -> None:
    """Blocks until it is over."""
    allow_descriptors()
    found = asyncio.run(simulate(Load(**json.loads(load)), address))
    Path(report).write_text(json.dumps(asdict(found)))


if __name__ == "__main__":
    main(*sys.argv[1:])
