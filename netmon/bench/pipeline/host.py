# SPDX-License-Identifier: Apache-2.0
"""What one simulated host sends. It follows from the load and the host's number alone: sender and judge share it.

Host i's clock shows (1000 + i) s when the simulation begins.
A rank steps every 250 ms and sends to the next rank between its first enqueue and its last wait. The rest of the
traffic is cross, of a known process, but for one flow in eight that nobody owns.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from netmon.bench.specs import WIDTH_MS, Load
from netmon.records import (
    COARSE,
    COUNTS,
    ITERATION,
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
        kind = Kind(load.rows_of(host), self._own, host - self._previous, self._phase_ms)
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
