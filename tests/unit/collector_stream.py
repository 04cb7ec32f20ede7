# SPDX-License-Identifier: Apache-2.0
"""A synthetic host for the collector's tests: one interface, one DL flow each way, one cross flow, one rank."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from netmon.dl.iterations import HostIterations
from netmon.evidence import HOST_PART, TRANSPORT, UNKNOWN
from netmon.records import (
    BUCKET,
    AgentCost,
    Batch,
    ClockSample,
    Direction,
    Flow,
    Hello,
    Interface,
    LedgerSample,
    Mark,
    Moment,
    NicSample,
    Owner,
    Source,
    Training,
)

MS = 1_000_000
S = 1_000 * MS
UTC = 1_760_000_000 * S  # 2025-10-09
DL_TX, DL_RX, CROSS_RX, UNKNOWN_TX = 1, 2, 3, 4


def clock(mono_ns: int = 0) -> ClockSample:
    return ClockSample(mono_ns, UTC + mono_ns, 1_000)


def hello(**changes: object) -> Hello:
    interface = Interface(7, "eth0", 10**9, "tcx", "tcx")
    return replace(Hello("h0", "s1", 1 * MS, clock(), (interface,), "0.1"), **changes)


def flows() -> tuple[Flow, ...]:
    rank = Owner(10, "python", "", "train", 0, "socket")
    iperf = Owner(11, "iperf3", "", "", -1, "socket")

    def flow(number: int, direction: Direction, owner: Owner) -> Flow:
        return Flow(number, 7, direction, "198.18.0.1", "198.18.0.2", 1000 + number, 2000, 6, 0, owner)

    return (
        flow(DL_TX, Direction.TX, rank),
        flow(DL_RX, Direction.RX, rank),
        flow(CROSS_RX, Direction.RX, iperf),
        flow(UNKNOWN_TX, Direction.TX, Owner()),
    )


def rows(*entries: tuple[int, int, int]) -> np.ndarray:
    """(flow, time in ms, payload bytes) each, one packet with 66 bytes of headers."""
    table = np.zeros(len(entries), BUCKET)
    for row, (flow, time_ms, payload) in zip(table, entries, strict=True):
        row["flow_id"], row["bucket_start_ns"], row["packets"] = flow, time_ms * MS, 1
        row["payload_bytes"], row["wire_bytes"] = payload, payload + 66
    return table


def evidence(dtype: np.dtype, *known: dict[str, int]) -> np.ndarray:
    """Rows of TRANSPORT or HOST_PART; what is not given is unknown."""
    table = np.full(len(known), UNKNOWN, dtype)
    for place, values in enumerate(known):
        for name, value in values.items():
            table[name][place] = value
    return table


def mark(moment: Moment, iteration: int, time_ms: float, **changes: object) -> Mark:
    return replace(
        Mark("train", 0, 2, 10, iteration, moment, int(time_ms * MS), Source.HOOK, 1_000, 1_000_000), **changes
    )


class TrainingAgent:
    """Turns marks into what its batches tell of ranks."""

    def __init__(self) -> None:
        self.iterations = HostIterations()

    def training(self, marks: Iterable[Mark]) -> Training:
        """What the next batch tells."""
        self.iterations.add(marks)
        return self.iterations.take()


@dataclass(frozen=True)
class MarkedBatch(Batch):
    """A batch, and the marks that its agent had."""

    marks: Sequence[Mark] = ()


def as_told(batches: Iterable[Batch], marks: Iterable[Iterable[Mark]] | None = None) -> list[Batch]:
    """One host's batches in their order, with what their marks, or these, make of its ranks."""
    batches, agent = list(batches), TrainingAgent()
    each = [getattr(batch, "marks", ()) for batch in batches] if marks is None else marks
    return [replace(batch, training=agent.training(own)) for batch, own in zip(batches, each, strict=True)]


@dataclass
class Host:
    """Batches of 100 ms; each ms the DL flows carry 1000 payload bytes, from cross_from_ms the cross flow 100000."""

    cross_from_ms: int = 10**9
    iteration_ms: int = 250
    now_ms: int = 0
    sequence: int = 0
    nic: dict[Direction, list[int]] = field(default_factory=lambda: {d: [0, 0] for d in Direction})
    agent: TrainingAgent = field(default_factory=TrainingAgent)

    def batch(self) -> MarkedBatch:
        """The next one."""
        first, self.now_ms = self.now_ms, self.now_ms + 100
        self.sequence += 1
        entries = []
        for time_ms in range(first, self.now_ms):
            entries += [(DL_TX, time_ms, 1000), (DL_RX, time_ms, 1000)]
            if time_ms >= self.cross_from_ms:
                entries.append((CROSS_RX, time_ms, 100_000))
        table = rows(*entries)
        for direction, numbers in ((Direction.TX, (DL_TX,)), (Direction.RX, (DL_RX, CROSS_RX))):
            own = table["wire_bytes"][np.isin(table["flow_id"], numbers)]
            self.nic[direction][0] += int(own.sum())
            self.nic[direction][1] += len(own)
        samples = [self._sample(direction) for direction in Direction] if self.now_ms % 500 == 0 else []
        marks = self.marks(first)
        return MarkedBatch(
            self.sequence,
            clock(self.now_ms * MS),
            self.now_ms * MS,
            table,
            flows() if self.sequence == 1 else (),
            self.agent.training(marks),
            samples,
            AgentCost(0.01, 50_000_000),
            nic=[self._counters()] if samples else [],
            evidence={
                "transport": evidence(TRANSPORT, self._connection()),
                "host": evidence(HOST_PART, *self._host_part()),
            }
            if samples
            else {},
            words=("train",) if samples else (),
            marks=marks,
        )

    def _connection(self) -> dict[str, int]:
        """The DL flow between two looks; the third segment of each hundred was sent again."""
        seen = {"sent_bytes": 500_000, "retransmitted_bytes": 5_000, "rtt_ns": 90_000, "rtt_min_ns": 40_000}
        return self._half_second() | {"flow_id": DL_TX, "reverse_flow_id": DL_RX, "application_limited": 1} | seen

    def _host_part(self) -> tuple[dict[str, int], dict[str, int]]:
        rank = {"job": 0, "rank": 0, "pid": 10, "run_delay_ns": 7 * MS, "cpu_ns": 400 * MS, "throttled_ns": 0}
        return self._half_second() | {"softnet_dropped": 3, "cpu_pressure_ns": 2 * MS}, self._half_second() | rank

    def _half_second(self) -> dict[str, int]:
        return {"start_ns": (self.now_ms - 500) * MS, "end_ns": self.now_ms * MS}

    def _counters(self) -> NicSample:
        values = tuple(self.nic[direction][0] for direction in Direction)
        return NicSample("eth0", "sysfs", self.now_ms * MS, ("rx_bytes", "tx_bytes"), values)

    def _sample(self, direction: Direction) -> LedgerSample:
        wire, packets = self.nic[direction]
        seen = {"frames": packets, "packets": packets, "frame_bytes": wire, "wire_bytes": wire}
        rest = [name for name in LedgerSample.__dataclass_fields__ if name.startswith(("overflow", "lost"))]
        nic = wire - 14 * packets
        return LedgerSample(7, direction, self.now_ms * MS, nic, packets, 14, **seen, **dict.fromkeys(rest, 0))

    def marks(self, first_ms: int) -> list[Mark]:
        marks = [mark(Moment.JOIN, 0, 0)] if first_ms == 0 else []
        for time_ms in range(first_ms, self.now_ms):
            number, phase = divmod(time_ms, self.iteration_ms)
            moments = {
                0: Moment.STEP_START,
                100: Moment.FIRST_ENQUEUE,
                self.iteration_ms - 20: Moment.LAST_WAIT,
                self.iteration_ms - 10: Moment.STEP_END,
            }
            if phase in moments:
                marks.append(mark(moments[phase], number, time_ms))
        return marks
