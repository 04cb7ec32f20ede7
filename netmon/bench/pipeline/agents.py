# SPDX-License-Identifier: Apache-2.0
"""The simulated agents: one process, a channel and a stream for each, as cheap as can be.

As a program: LOAD ADDRESS REPORT, the load as JSON. It says BEGUN when all are connected and the first batches are
made, ENDED when the last ones are, and writes the file REPORT when everything is acknowledged or time is up.

A batch's rows are encoded once for all batches of its sort, and its time is patched in; nothing waits in a spool: a
batch is made when gRPC takes it, but as wide as it had to be when it was due.
"""

import asyncio
import contextlib
import gc
import json
import socket
import sys
import time
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
import numpy as np
import numpy.typing as npt
from nats.aio.msg import Msg

from netmon.bench.specs import WIDTH_MS, WIDTHS_MS, Load
from netmon.lab.monitor import nats_server
from netmon.lab.process import Process
from netmon.own_module import allow_descriptors
from netmon.records import (
    COARSE,
    COUNTS,
    ITERATION,
    ClockExchange,
    ClockSample,
    Direction,
    Flow,
    Hello,
    Interface,
    LedgerSample,
    Moment,
    Owner,
    RankState,
    Source,
    Table,
    Training,
    empty,
)
from netmon.wire import netmon_pb2
from netmon.wire.batches import encode_hello, serialise_buckets
from netmon.wire.bus import Bus, BusSettings, Label, batch_subject, down_subject, hello_subject
from netmon.wire.limits import CONNECT_S, KEEPALIVE_S, KEEPALIVE_TIMEOUT_S, MAX_ROWS
from netmon.wire.tables import Words, encode_tables, rows_of

if TYPE_CHECKING:
    from netmon.wire.bus import Bus


# --- The simulated agents' way over a bus: the same batches, published to JetStream; and the server between them.

_ANSWER_S = 60.0
_LOOK_S = 0.25


class BusCall:
    """What gRPC's call is to an agent: it writes messages, and reads what its worker has stored.

    All agents share one connection. A batch counts as stored when its worker says so, which it does every two seconds.
    """

    def __init__(self, bus: Bus, host: str, session: str) -> None:
        self._bus, self._host, self._session = bus, host, session
        self._said: asyncio.Queue[Any] = asyncio.Queue()
        self._on_the_way: set[asyncio.Task[Any]] = set()
        self._sequence = 0
        self._failed: BaseException | None = None
        self._waiting: asyncio.Task[None] | None = None

    async def begin(self, hello: bytes) -> None:
        await self._bus.client.subscribe(down_subject(self._host, self._session), cb=self._receive)
        await self._bus.jetstream.publish(hello_subject(self._host, self._session), hello, timeout=_ANSWER_S)

    async def write(self, message: bytes) -> None:
        """The next batch; does not wait for the bus."""
        if self._failed:
            raise asyncio.InvalidStateError(f"the bus refuses: {self._failed}")
        self._sequence += 1
        label = Label(self._session, self._sequence, self._sequence - 1)
        publishing = self._bus.jetstream.publish(
            batch_subject(self._host), message, timeout=_ANSWER_S, headers=label.headers()
        )
        task = asyncio.create_task(publishing)
        self._on_the_way.add(task)
        task.add_done_callback(self._answered)

    async def read(self) -> Any:
        return await self._said.get()

    async def done_writing(self) -> None:
        """Say that it is all; `read` comes to its end when everything is stored."""
        await asyncio.gather(*self._on_the_way, return_exceptions=True)
        label = Label(self._session, 0, self._sequence, self._sequence)
        subject = batch_subject(self._host)
        await self._bus.jetstream.publish(subject, b"", timeout=_ANSWER_S, headers=label.headers())
        self._waiting = asyncio.create_task(self._wait())

    async def code(self) -> grpc.StatusCode:
        """As gRPC's: it has ended in order."""
        return grpc.StatusCode.OK

    def cancel(self) -> None:
        for task in (*self._on_the_way, *([self._waiting] if self._waiting else [])):
            task.cancel()

    async def _wait(self) -> None:
        """Who is over and stored is forgotten."""
        while await self._bus.hello(self._host, self._session) is not None:
            await asyncio.sleep(_LOOK_S)
        self._said.put_nowait(netmon_pb2.Acknowledgement(sequence=self._sequence))
        self._said.put_nowait(grpc.aio.EOF)

    def _answered(self, task: "asyncio.Task[Any]") -> None:
        self._on_the_way.discard(task)
        if not task.cancelled() and task.exception():
            self._failed = self._failed or task.exception()

    async def _receive(self, message: Msg) -> None:
        self._said.put_nowait(netmon_pb2.Acknowledgement.FromString(message.data))


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[tuple[Process, BusSettings]]:
    """A NATS server of its own, which syncs every write. Raises UnsupportedError where there is none."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = folder / "nats.conf"
    storage = json.dumps(str(folder / "nats"))
    config.write_text(
        f"listen: 127.0.0.1:{port}\nmax_payload: 20MB\njetstream {{ store_dir: {storage}, sync_interval: always }}\n"
    )
    with Process("nats", [nats_server(), "-c", str(config)], folder) as process:
        process.wait_output("Server is ready", _ANSWER_S)
        yield process, BusSettings((f"nats://127.0.0.1:{port}",))


# --- The simulated agents: one process, a channel and a stream for each, as cheap as can be.

# --- What one simulated host sends. It follows from the load and the host's number alone: sender and judge share it.
#
# Host i's clock shows (1000 + i) s when the simulation begins. A rank steps every 250 ms and sends to the next rank
# between its first enqueue and its last wait. The rest of the traffic is cross, of a known process, but for one flow in
# eight that nobody owns.

# --- The rows of a second, in a few variants that hosts go through at different times.
#
# What a host sends to the next rank in a variant, that one receives at the same time.

MS = 1_000_000
SECOND_MS = 1000
STEP_MS = 250
SENDING_MS = (100, 220)
"""Of each step."""

TX, RX = 0, 1
"""Indices of a job's flows; the others follow."""

HEADERS = 66
"""Bytes of a packet that are no payload."""

_FRAME = 1514
_MOST_OWN = 400  # rows a second of a job's flow
_MOST_ROWS, _MOST_VARIANTS, _LEAST_VARIANTS = 1 << 16, 32, 2  # to be kept of a pattern
_SEED, _MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Kind:
    """What the rows of a host depend on. own: flows of the job; behind: how far the previous rank is."""

    rows: int
    own: int
    behind: int
    phase_ms: int  # of the steps


@cache
def pattern(load: Load, kind: Kind) -> "Pattern":
    """Shared by all hosts of the kind."""
    return Pattern(load, kind)


class Pattern:
    """Rows of COARSE whose flow_id is a place: of the job's flows, or behind them a slot that flows take in turn."""

    def __init__(self, load: Load, kind: Kind) -> None:
        self.own, self.others = kind.own, load.flows - kind.own
        self._kind, self._batches, self._span_ns = kind, load.batches, load.span_ms * MS
        self._own_rows = min(load.rows // 4, _MOST_OWN) if kind.own else 0
        self.rest = kind.rows - 2 * self._own_rows
        """Rows a second of the others."""
        self.variants = max(_LEAST_VARIANTS, min(_MOST_VARIANTS, _MOST_ROWS // kind.rows))
        self._parts = [self._cut(self._second(variant)) for variant in range(self.variants)]

    def variant(self, host: int, second: int) -> int:
        """Which one a host sends in a second."""
        return (host + 3 * second) % self.variants

    def part(self, variant: int, part: int) -> Table:
        """A batch's rows by time; times since the batch began."""
        return self._parts[variant][part]

    def _second(self, variant: int) -> Table:
        parts = []
        if self._own_rows:
            sending = (np.arange(SECOND_MS) - self._kind.phase_ms) % STEP_MS
            when = np.flatnonzero((sending >= SENDING_MS[0]) & (sending < SENDING_MS[1]))
            when = when[np.linspace(0, len(when) - 1, self._own_rows).astype(np.int64)]
            received = (variant - self._kind.behind) % self.variants
            parts = [_table(index, when, np.full(len(when), seed)) for index, seed in ((TX, variant), (RX, received))]
        number = np.arange(self.rest)
        each = -(-len(number) // self.others)
        slot = number % self.others
        spacing = max(7, SECOND_MS // max(1, min(len(number), self.others)))
        when = (number // self.others * (SECOND_MS // each) + slot * spacing) % SECOND_MS
        parts.append(_table(self.own + slot, when, self.variants + number * self.variants + variant))
        table = np.concatenate(parts)
        return table[np.argsort(table["bucket_start_ns"], kind="stable")]

    def _cut(self, second: Table) -> list[Table]:
        begins = np.arange(self._batches + 1) * self._span_ns
        edges = np.searchsorted(second["bucket_start_ns"].astype(np.int64), begins)
        parts = [second[a:b].copy() for a, b in pairwise(edges)]
        for begin, part in zip(begins.tolist(), parts, strict=False):
            part["bucket_start_ns"] -= np.uint64(begin)
        return parts


def _table(index: _Ints | int, when_ms: _Ints, seed: _Ints) -> Table:
    """Rows at these times of a second; what they carry looks random, and follows from time and seed."""
    table = np.zeros(len(when_ms), COARSE)
    table["flow_id"], table["bucket_start_ns"] = index, when_ms * MS
    bits = (when_ms.astype(np.uint64) + seed.astype(np.uint64) * np.uint64(SECOND_MS) + np.uint64(1)) * _SEED
    bits = (bits ^ bits >> np.uint64(27)) * _MIX
    few, more = (bits >> np.uint64(40)).astype(np.int64), (bits >> np.uint64(20) & np.uint64(0xFFFFF)).astype(np.int64)
    packets = 1 + few % 200
    wire = packets * _FRAME - more % 1400
    table["packets"], table["wire_bytes"], table["payload_bytes"] = packets, wire, wire - packets * HEADERS
    table["busy_buckets"] = np.minimum(packets, 1 + few // 200 % 8)
    table["peak_bytes"] = -(-wire // table["busy_buckets"])
    return table


def coarser(rows: Table, width_ms: int) -> Table:
    """Rows of COARSE → rows of the width, one per flow and bucket, by flow and time."""
    if not len(rows):
        return rows
    width = np.uint64(width_ms * MS)
    bucket = rows["bucket_start_ns"] // width
    key = rows["flow_id"].astype(np.uint64) << np.uint64(20) | bucket
    order = np.argsort(key, kind="stable")
    key = key[order]
    first = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]]))
    merged = rows[order[first]]
    merged["bucket_start_ns"] = bucket[order[first]] * width
    for name in COUNTS:
        merged[name] = np.add.reduceat(rows[name][order], first)
    merged["peak_bytes"] = np.maximum.reduceat(rows["peak_bytes"][order], first)
    return merged


# --- host

STEP_END_MS = 240
"""Of each step."""

CAPACITY_BPS = 10_000_000_000
LOST_BYTES = 3028  # of each second and link: overflow of what is sent, lost in the kernel of what is received
INTERFACE = "eth0"

_INDEX = 2
_BUCKET_NS = 10_000
_ENQUEUE_MS, _FIRST_WAIT_MS, _LAST_WAIT_MS = 100, 160, 230
_NOT_COUNTED = 14  # of a frame by the NIC
_UNOWNED = 8
_MOMENTS_MS = 0, _ENQUEUE_MS, _FIRST_WAIT_MS, _LAST_WAIT_MS, STEP_END_MS
_TOTALS: dict[Hashable, list[tuple[int, int]]] = {}  # by sort of batch


def boot_ns(host: int) -> int:
    """What the host's clock shows when the simulation begins."""
    return (1000 + host) * SECOND_MS * MS


def host_name(host: int) -> str:
    return f"sim{host:04}"


class SimulatedHost:
    """Times are in ns since the simulation began unless they are said to be the host's."""

    def __init__(self, load: Load, host: int, since_s: int = 0) -> None:
        """since_s: when the first batch begins; may be set later."""
        self.load, self.host, self.since_s = load, host, since_s
        self.job = load.job_of(host)
        members = load.members(self.job) if self.job >= 0 else range(host, host + 1)
        self.rank, self.size = host - members.start, len(members)
        self._next = members[(self.rank + 1) % self.size]
        self._previous = members[self.rank - 1]
        self._own = 2 if self.size > 1 else 0  # flows of the job
        self._others = load.flows - self._own
        self._phase_ms = max(self.job, 0) * 30 % STEP_MS
        self._new = load.new_flows // load.batches
        kind = Kind(load.rows, self._own, host - self._previous, self._phase_ms)
        self._pattern = pattern(load, kind)
        self._slots_stay = self._pattern.rest >= self._others  # every second has rows of the same flows

    # --- rows

    def rows(self, batch: int) -> Table:
        """Rows of COARSE, one per flow and bucket of WIDTH_MS; times since the batch began."""
        second, part = divmod(batch, self.load.batches)
        rows = self._pattern.part(self._pattern.variant(self.host, second), part).copy()
        other = rows["flow_id"] >= self._own
        slot = rows["flow_id"][other].astype(np.int64) - self._own
        if not self._slots_stay:
            slot = (slot + second * self._pattern.rest) % self._others
        newest = min(self._new, len(slot))
        slot[:newest] = (self._new * batch + np.arange(newest)) % self._others
        rows["flow_id"][other] = self._ids(slot, batch)
        rows["flow_id"][~other] += np.uint32(1)
        return coarser(rows, WIDTH_MS)

    def sort_of(self, batch: int) -> Hashable:
        """Batches of one sort have the same rows, also of different hosts; None: there is no other like it."""
        second, part = divmod(batch, self.load.batches)
        repeats = self._slots_stay and not self._new
        return (self._pattern, self._pattern.variant(self.host, second), part) if repeats else None

    def _ids(self, slot: _Ints, batch: int) -> _Ints:
        """The flow that lives in each slot: the n-th new one takes slot n modulo the slots."""
        born = self._new * (batch + 1)
        turns = (born - 1 - slot) // self._others
        later = self.load.flows + 1 + slot + self._others * turns
        return np.where(turns >= 0, later, 1 + self._own + slot) if self._new else 1 + self._own + slot

    def batch_totals(self, batch: int) -> list[tuple[int, int]]:
        """Wire bytes and packets of a batch's rows, by Direction."""
        rows = self.rows(batch)
        sent = self.sent(rows["flow_id"])
        return [
            (int(rows["wire_bytes"][of].sum(dtype=np.int64)), int(rows["packets"][of].sum(dtype=np.int64)))
            for of in (~sent, sent)
        ]

    # --- flows

    def sent(self, flow_id: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
        """Which flows the host sends."""
        index = flow_id.astype(np.int64) - 1
        sent: npt.NDArray[np.bool_] = np.where(index < self._own, index == TX, index % 2 == 0)
        return sent

    def flow_classes(self, flow_id: npt.NDArray[np.uint32]) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Which flows are the job's, and which are cross."""
        index = flow_id.astype(np.int64) - 1
        return index < self._own, (index >= self._own) & (index % _UNOWNED != _UNOWNED - 1)

    def first_flows(self) -> list[Flow]:
        """Those that live when the session begins."""
        return [self._flow(index, self.since_s * SECOND_MS * MS) for index in range(self.load.flows)]

    def new_flows(self, batch: int) -> list[Flow]:
        first = self.load.flows + self._new * batch
        return [self._flow(index, self.begin_ns(batch)) for index in range(first, first + self._new)]

    def _flow(self, index: int, first_ns: int) -> Flow:
        mine = _address(self.host)
        if index < self._own:
            sender, receiver = (self.host, self._next) if index == TX else (self._previous, self.host)
            ends = (_address(sender), _address(receiver), 40_000 + self.job, 5_000)
            direction = Direction.TX if index == TX else Direction.RX
            owner = Owner(4_000, "python3", "", self.job_name, self.rank, "socket")
        else:
            direction = Direction.TX if index % 2 == 0 else Direction.RX
            theirs = f"198.{18 + (index >> 16 & 1)}.{index >> 8 & 255}.{index & 255}"
            ends = (mine, theirs, 20_000 + index % 40_000, 9_000)
            ends = ends if direction == Direction.TX else (theirs, mine, 9_000, ends[2])
            owner = Owner() if index % _UNOWNED == _UNOWNED - 1 else Owner(5_000, "iperf3", "", "", -1, "socket")
        return Flow(index + 1, _INDEX, direction, *ends, 6, boot_ns(self.host) + first_ns, owner)

    @property
    def job_name(self) -> str:
        """Empty: none. A host alone trains without traffic of its own."""
        return f"train{self.job}" if self.job >= 0 else ""

    # --- everything else

    def begin_ns(self, batch: int) -> int:
        return (self.since_s * SECOND_MS + batch * self.load.span_ms) * MS

    def hello(self, clock: ClockSample) -> Hello:
        """clock: of the host now."""
        hooks = ("tcx", "tcx")
        interface = Interface(_INDEX, INTERFACE, CAPACITY_BPS, *hooks, "simulated", 1500, 65_536)
        name = host_name(self.host)
        return Hello(name, f"{name}s", _BUCKET_NS, clock, (interface,), "bench", stream_ns=WIDTH_MS * MS)

    def training(self, spans: range) -> Training:
        """What a batch of these spans tells of its rank. A step that could not end before the run does is not begun."""
        if self.job < 0:
            return Training()
        begin, end = spans.start * self.load.span_ms, spans.stop * self.load.span_ms
        most = self.load.seconds * SECOND_MS - STEP_END_MS - self._phase_ms
        steps = range(max(0, (begin - self._phase_ms - STEP_END_MS) // STEP_MS), (end - self._phase_ms) // STEP_MS + 1)
        rows = [self._iteration(step, begin, end) for step in steps if step * STEP_MS < most]
        rows = [row for row in rows if row]
        table = (
            np.array(rows, np.int64).reshape(len(rows), -1).view(ITERATION).reshape(-1) if rows else empty(ITERATION)
        )
        whose = 1, self.job_name, self.rank, self.size, 4_000, self._ns(0)
        state = RankState(*whose, trust=0, hooked=True, parameters=1_000_000, parameters_source=Source.HOOK)
        return Training((state,) if rows or not spans.start else (), table)

    def _iteration(self, step: int, begin_ms: int, end_ms: int) -> tuple[int, ...]:
        """Of ITERATION; empty where nothing of it is in a batch of this time."""
        times = [self._phase_ms + step * STEP_MS + at for at in _MOMENTS_MS]
        if not any(begin_ms <= time < end_ms for time in times):
            return ()
        start, first, wait, last, over = (self._ns(time) if time < end_ms else 0 for time in times)
        moments = int(Moment.STEP_START), int(Moment.STEP_END) if over else 0
        return 1, step, int(Source.HOOK), *moments, start, over, 1_000, first, wait, last

    def _ns(self, at_ms: int) -> int:
        return boot_ns(self.host) + (self.since_s * SECOND_MS + at_ms) * MS

    def steps(self, batches: int) -> _Ints:
        """Begin of each step whose end is in the first batches, since the session began."""
        if self.job < 0:
            return np.empty(0, np.int64)
        length = min(batches * self.load.span_ms, self.load.seconds * SECOND_MS)
        starts = self._phase_ms + np.arange(length // STEP_MS + 1, dtype=np.int64) * STEP_MS
        return starts[starts + STEP_END_MS < length] * MS


class Account:
    def __init__(self, host: SimulatedHost) -> None:
        self._host = host
        self._wire, self._packets = [0, 0], [0, 0]
        self._lost = 0

    def samples(self, batch: int) -> list[LedgerSample]:
        """Those of a batch: at the beginning, and when a second is over. To be called for every batch, in order."""
        host, sort = self._host, self._host.sort_of(batch)
        first = [self._sample(direction, host.begin_ns(0)) for direction in Direction] if batch == 0 else []
        totals = _TOTALS.get(sort) or host.batch_totals(batch)
        if sort:
            _TOTALS[sort] = totals
        for direction, (wire, packets) in enumerate(totals):
            self._wire[direction] += wire
            self._packets[direction] += packets
        if (batch + 1) % host.load.batches:
            return first
        self._lost += 1
        return first + [self._sample(direction, host.begin_ns(batch + 1)) for direction in Direction]

    def _sample(self, direction: Direction, at_ns: int) -> LedgerSample:
        lost_bytes, lost_packets = self._lost * LOST_BYTES, self._lost * 2
        lost_payload = lost_bytes - HEADERS * lost_packets
        wire, packets = self._wire[direction] + lost_bytes, self._packets[direction] + lost_packets
        overflow = (lost_packets, lost_bytes, lost_payload) if direction == Direction.TX else (0, 0, 0)
        lost = (lost_packets, lost_bytes, lost_payload) if direction == Direction.RX else (0, 0, 0)
        nic = wire - _NOT_COUNTED * packets
        when = boot_ns(self._host.host) + at_ns
        seen = (packets, packets, wire, wire)
        return LedgerSample(_INDEX, direction, when, nic, packets, _NOT_COUNTED, *seen, *overflow, *lost, 0, 0, 0)


def _address(host: int) -> str:
    return f"10.{host >> 16 & 255}.{host >> 8 & 255}.{host & 255}"


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
_LEAD_S = 1.5
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
    silent_most_s: float  # the longest time that a host received nothing

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
        # Since when, how wide, so many spans together: as an agent does that is requested nothing.
        self._requests: list[tuple[float, int, int]] = [(0.0, WIDTH_MS, self._together(0, 0))]
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
            hello = self._hello()
            self._call = BusCall(bus, hello.hello.host, hello.hello.session)
            await self._call.begin(hello.SerializeToString())
            self._begin_reading()
            return
        self._channel = grpc.aio.insecure_channel(address, options=AGENT_OPTIONS)
        self._call = self._channel.stream_stream(
            METHOD, request_serializer=None, response_deserializer=netmon_pb2.Acknowledgement.FromString
        )(wait_for_ready=True)
        await self._call.write(self._hello().SerializeToString())
        self._take(await asyncio.wait_for(self._call.read(), _CONNECT_S))
        self._begin_reading()

    def _begin_reading(self) -> None:
        """What the collector requests of it is known before its first batch."""
        self._answered_s, self._reading = time.monotonic(), asyncio.create_task(self._read())

    def _hello(self) -> netmon_pb2.AgentMessage:
        now_ns = round((time.monotonic() - self._epoch.mono_s) * 1e9)
        return netmon_pb2.AgentMessage(hello=encode_hello(self._simulated.hello(self._clock(now_ns))))

    def begin_at(self, since_s: int) -> None:
        """The first batch begins then, since the simulation began."""
        self._simulated.since_s = since_s

    async def send(self) -> None:
        """All batches, each when it is due."""
        spans = self._load.seconds * self._load.batches * (100 if self._load.cut else 1)
        assert self._reading
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
        together = self._together(message.batch_ns, message.within_ns)
        if (width, together) != self._requests[-1][1:]:
            self._requests.append((now, width, together))

    def _together(self, batch_ns: int, within_ns: int) -> int:
        """Spans of a batch: those of a second, fewer where somebody waits, more where there is too much."""
        second_ns = SECOND_MS * MS
        spans = -(-max(min(second_ns, within_ns or second_ns), batch_ns) // (self._load.span_ms * MS))
        most = MAX_ROWS * 1_000 // max(1, self._load.rows * self._load.span_ms)  # an agent makes two batches of more
        return max(1, min(spans, most))

    def _due(self, span: int) -> float:
        """When a span has ended, by this process' monotonic clock."""
        return self._epoch.mono_s + self._simulated.begin_ns(span + 1) / 1e9 + self._phase_s

    def _wanted(self, due: float) -> tuple[int, int]:
        """What the collector had requested by then: width in ms, spans together."""
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
        """As if it had exchanged times with the collector, a few times every other second."""
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
