# SPDX-License-Identifier: Apache-2.0
"""How well the collector recovers the clock of a host: two real agents, one of which has another clock injected.

The machine knows the truth: both hosts and the collector read the same clock, and the relay that gives one of them
another notes what it made of every sample of the ledger. What the dataset says those samples' times are is compared.
"""

import asyncio
import contextlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import grpc
import numpy as np
import pandas as pd
import pyarrow.dataset as ds

from netmon.bench import traffic
from netmon.bench.result import or_dash, table
from netmon.bench.specs import ClockSpec, Progress, silent
from netmon.errors import LabError
from netmon.history.dataset import read_rows
from netmon.lab.network import Host, network
from netmon.lab.process import Process, agent_command, collector_command
from netmon.lab.record import utc_minus_mono_ns
from netmon.records import Batch, ClockSample, Flow, Hello, LedgerSample, NicSample, Training
from netmon.service import give_socket
from netmon.terminal import BREAK, FittingTable, figures, labels
from netmon.units import format_duration, format_rate
from netmon.views import HostView, Selection
from netmon.wire import netmon_pb2, netmon_pb2_grpc
from netmon.wire.batches import decode_batch, decode_hello, encode_batch, encode_hello
from netmon.wire.watch import watch_once

# --- Gives a real agent another clock: a relay on its way to a real collector that maps every time it sends.

_Timed = TypeVar("_Timed", LedgerSample, NicSample)
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
        flows = tuple(map(self._flow, hello.flows))
        return replace(hello, clock=self._sample(hello.clock), flows=flows, training=self._training(hello.training))

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
            training=self._training(batch.training),
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

    def _training(self, training: Training) -> Training:
        ranks = tuple(
            replace(rank, joined_ns=self.of(rank.joined_ns), left_ns=self.of(rank.left_ns) if rank.left_ns else 0)
            for rank in training.ranks
        )
        iterations = training.iterations.copy()
        for name in ("start_ns", "end_ns", "comm_start_ns", "wait_start_ns", "comm_end_ns"):
            iterations[name] = [self.of(time_ns) if time_ns else 0 for time_ns in iterations[name].tolist()]
        return replace(training, ranks=ranks, iterations=iterations)

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

    def __exit__(self, *exception: object) -> None:
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


# --- clock


RATE_BPS = 1_000_000_000
BUCKET_NS = 10_000
_READY_S = 60.0
_CONVERGENCE_NS = 6_000_000_000  # of the traffic: some dozen bursts


@dataclass(frozen=True)
class Injection:
    """What is done to the clock of one of two hosts. source: "exchange" (and traffic), "traffic" (no exchange)."""

    source: str
    offset_ns: int
    skew_ppm: float


INJECTIONS = (
    Injection("exchange", 0, 0.0),
    Injection("exchange", 250_000_000, 50.0),
    Injection("exchange", 5_000_000_000, 200.0),
    Injection("exchange", -5_000_000_000, -200.0),
    Injection("traffic", 250_000_000, 50.0),
    Injection("traffic", -5_000_000_000, -200.0),
)


@dataclass(frozen=True)
class Recovery:
    """One run. Errors in ns, after the first seconds: per host against the truth, and of the two hosts' difference.

    Without the exchange only the difference can be known. bound_ns is what the collector itself said at the end.
    """

    injection: Injection
    samples: int
    host_error_ns: float  # median of the shifted host's absolute error; nan without the exchange
    host_error_most_ns: float
    difference_ns: float  # median of the absolute difference of both hosts' errors
    difference_most_ns: float
    bound_ns: int
    source: str
    offset_ns: int  # as shown by the collector: the host's UTC minus its own
    skew_ppm: float


@dataclass(frozen=True)
class ClockResult:
    seconds: float
    bucket_ns: int
    rate_bps: int
    runs: tuple[Recovery, ...]

    def shown(self) -> Iterator[FittingTable]:
        injected = (f"offset{BREAK}s", f"skew{BREAK}ppm")
        errors = (
            *(f"host{BREAK}median", f"host{BREAK}largest", f"hosts{BREAK}median", f"hosts{BREAK}largest"),
            *("bound", f"skew found{BREAK}ppm"),
        )
        yield table(
            "recovered clocks",
            [*labels("known by", prose=True), *figures(*injected, *errors)],
            map(_row, self.runs),
            f"Two hosts of the lab with links of {format_rate(self.rate_bps)} and buckets of "
            f"{format_duration(self.bucket_ns)} send bursts to each other; one host's clock is off by offset and skew. "
            "Errors are those of the times in the dataset, in µs, "
            f"after the first 6 of {self.seconds:g} s. Host: error of that host's times. Hosts: difference between the "
            "errors of both hosts, which is all that traffic alone can show. Bound: the error that the collector "
            "states.",
        )


def _row(run: Recovery) -> Iterator[str]:
    known = run.injection.source == "exchange"
    yield "exchange" if known else "traffic alone"
    yield f"{run.injection.offset_ns / 1e9:+g}"
    yield f"{run.injection.skew_ppm:+g}"
    errors = (run.host_error_ns, run.host_error_most_ns, run.difference_ns, run.difference_most_ns, run.bound_ns)
    for error in errors:
        yield or_dash(error / 1e3, "{:.1f}")
    yield f"{run.skew_ppm:+.1f}" if known else "–"


def measure(spec: ClockSpec, progress: Progress = silent) -> ClockResult:
    """Blocks for about (seconds + 8 s) per injection.

    Raises UnsupportedError, LabError. Everything it made is gone afterwards, also on failure.
    """
    runs = []
    for number, injection in enumerate(INJECTIONS):
        with tempfile.TemporaryDirectory(prefix="netmon-bench-") as folder:
            os.chmod(folder, 0o711)  # for the agent, which is not root
            runs.append(recover(injection, spec.seconds, Path(folder)))
        progress(number + 1, len(INJECTIONS))
    return ClockResult(spec.seconds, BUCKET_NS, RATE_BPS, tuple(runs))


def recover(injection: Injection, seconds: float, folder: Path) -> Recovery:
    shifts = (Shift(time.monotonic_ns(), injection.offset_ns, injection.skew_ppm / 1e6), Shift(0))
    collector, tells_time = f"unix:{folder}/collector.sock", injection.source == "exchange"
    with network(2, RATE_BPS) as testbed, contextlib.ExitStack() as processes:
        last = processes.enter_context(_collector(collector, folder))
        last.wait_ready(_READY_S)
        relays, agents = [], []
        for host, shift in zip(testbed.hosts, shifts, strict=True):
            address = f"unix:{folder}/{host.name}-relay.sock"
            relays.append(processes.enter_context(Relay(address, collector, shift, tells_time)))
            agents.append(processes.enter_context(_agent(host, address, folder)))
        for agent in agents:
            agent.wait_ready(_READY_S)
        with _traffic(testbed.hosts, folder) as senders:
            time.sleep(seconds)
            for process in (last, *agents, *senders):
                process.check_running()
            view = next(view for view in watch_once(collector, Selection()).hosts if view.host == testbed.hosts[0].name)
        for agent in agents:
            agent.end_in_order(seconds=30)
        last.end_in_order(seconds=60)
    pairs = zip(testbed.hosts, relays, strict=True)
    return _recovery(injection, [_errors(folder / "data", host.name, relay.samples) for host, relay in pairs], view)


def _collector(address: str, folder: Path) -> Process:
    command = collector_command(address, folder / "data")
    return Process("collector", command, folder, notify=folder / "notify-collector")


def _agent(host: Host, collector: str, folder: Path) -> Process:
    what = ("--capacity", f"{RATE_BPS}bit", "--bucket", f"{BUCKET_NS}ns", "--stream-bucket", f"{BUCKET_NS}ns")
    command = agent_command(host, folder, "--collector", collector, *what)
    return Process(f"agent-{host.name}", command, folder, host=host, notify=folder / f"notify-{host.name}")


@contextlib.contextmanager
def _traffic(hosts: Sequence[Host], folder: Path) -> Iterator[list[Process]]:
    """Bursts that each host begins and the other answers, for as long as the context is open."""
    program = [sys.executable, "-m", traffic.__name__]
    with contextlib.ExitStack() as stack:
        processes = []
        for here, there in (hosts, hosts[::-1]):
            listen, connect = [*program, "listen", there.address], [*program, "connect", there.address]
            listener = stack.enter_context(Process(f"listen-{there.name}", listen, folder, host=there))
            listener.wait_output(traffic.LISTENING, 10)
            connector = stack.enter_context(Process(f"connect-{here.name}", connect, folder, host=here))
            processes += [listener, connector]
        yield processes


def _errors(data: Path, host: str, samples: Sequence[tuple[int, int]]) -> pd.Series:
    """How far the dataset's times of the ledger's samples are from the truth, in ns, by the true UTC."""
    utc = utc_minus_mono_ns()
    true = np.unique([mono for mono, _ in samples])[1:] + utc  # the first is not the end of an interval
    ends = np.unique(read_rows(data, "ledger", ["end_ns"], ds.field("host") == host)["end_ns"])
    if len(true) != len(ends):
        raise LabError(f"cannot compare {host}'s clock: {len(ends)} intervals in the ledger of {len(true)} sent")
    return pd.Series(ends - true, index=true)


def _recovery(injection: Injection, errors: Sequence[pd.Series], view: HostView) -> Recovery:
    shifted, other = (error[error.index >= error.index[0] + _CONVERGENCE_NS] for error in errors)
    if not (len(shifted) and len(other)):
        raise LabError("cannot measure how well a clock was recovered: the run was too short; give more --seconds")
    own = np.abs(shifted.to_numpy()) if injection.source == "exchange" else np.array([np.nan])
    between = np.abs(shifted.to_numpy() - np.interp(shifted.index, other.index, other.to_numpy()))
    return Recovery(
        injection=injection,
        samples=len(shifted),
        host_error_ns=float(np.median(own)),
        host_error_most_ns=float(own.max()),
        difference_ns=float(np.median(between)),
        difference_most_ns=float(between.max()),
        bound_ns=view.clock_error_ns,
        source=view.clock_source,
        offset_ns=view.clock_offset_ns,
        skew_ppm=view.clock_skew_ppm,
    )
