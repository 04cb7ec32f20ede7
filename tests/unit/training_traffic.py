# SPDX-License-Identifier: Apache-2.0
"""Traffic of training jobs and of others, made up: what the inference is tested with where no run was recorded."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from netmon.dl.inference.live import Inference
from netmon.dl.inference.types import TRAFFIC, Findings, InferredIteration, InferredJob, LinkFlow
from netmon.records import Direction, Table

MS = 1_000_000
SECOND = 1000 * MS
START = 1_700_000_000 * SECOND
BYTES_PER_MS = 120_000  # of a link of 1 Gbit/s
TCP = 6

Edge = tuple[str, str]


def ring(*hosts: str) -> list[Edge]:
    return list(zip(hosts, [*hosts[1:], hosts[0]], strict=True))


def both_ways(*pairs: Edge) -> list[Edge]:
    return [edge for a, b in pairs for edge in ((a, b), (b, a))]


@dataclass
class Wire:
    """Rows of all flows, and who they are. Every flow is seen by its sender and by its receiver."""

    seed: int = 1
    flows: list[LinkFlow] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)

    def flow(self, edge: Edge, port: int = 40_000) -> tuple[int, int]:
        """Numbers of a new flow at both of its ends."""
        for host, direction in ((edge[0], Direction.TX), (edge[1], Direction.RX)):
            self.flows.append(
                LinkFlow(f"host-{host}", "eth0", direction, f"10.0.0.{edge[0]}", f"10.0.0.{edge[1]}", port, 9000, TCP)
            )
        return len(self.flows) - 2, len(self.flows) - 1

    def send(self, flow: tuple[int, int], start_ns: float, volume: int, rate: float = BYTES_PER_MS) -> float:
        """A transfer without a pause; returns its end."""
        count = max(1, round(volume / rate))
        times = np.int64(start_ns) + np.arange(count) * MS
        for number in flow:
            table = np.empty(count, TRAFFIC)
            table["time_ns"], table["flow"] = START + times, number
            table["payload_bytes"] = volume // count
            table["payload_bytes"][-1] += volume - volume // count * count
            self.tables.append(table)
        return start_ns + count * MS

    def train(
        self,
        edges: Sequence[Edge],
        compute_ms: Sequence[float],
        volume: int = 4_000_000,
        blocks: int = 4,
        pause_ms: float = 5,
        begin_ms: float = 0,
        jitter_ms: float = 2,
        port: int = 40_000,
    ) -> list[float]:
        """A job, an iteration per compute time; returns when each began to send. Blocks with short pauses between."""
        flows = [self.flow(edge, port) for edge in edges]
        now, begun = begin_ms * MS, []
        for compute in compute_ms:
            start = now + compute * MS
            ends, starts = [], []
            for flow in flows:
                at = start + self.random.uniform(0, jitter_ms) * MS
                starts.append(at)
                for _ in range(blocks):
                    at = self.send(flow, at, volume // blocks) + self.random.uniform(0.2, 1.8) * pause_ms * MS
                ends.append(at)
            begun.append(START + min(starts))
            now = max(ends)
        return begun


@dataclass
class Said:
    """All that was found in a replay, and when (ns from the beginning)."""

    jobs: dict[str, InferredJob] = field(default_factory=dict)
    iterations: list[InferredIteration] = field(default_factory=list)
    told: list[float] = field(default_factory=list)
    verdicts: dict[int, tuple[str, int, str]] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)  # of jobs in the order in which they were found: traffic-1, …

    def take(self, findings: Findings, now_ns: float) -> None:
        self.names += [job.name for job in findings.jobs if job.name not in self.names]
        self.jobs |= {name: replace(job, name=name) for job in findings.jobs for name in [self.number(job.name)]}
        self.iterations += [replace(one, job=self.number(one.job)) for one in findings.iterations]
        self.told += [now_ns] * len(findings.iterations)
        self.verdicts |= {flow: (self.number(v.job), v.member, v.traffic) for flow, v in findings.flows.items()}

    def number(self, name: str) -> str:
        return f"traffic-{1 + self.names.index(name)}"

    def starts(self, job: str = "traffic-1") -> np.ndarray:
        return np.array([i.comm_start_ns for i in self.iterations if i.job == job], np.int64)


def described(wire: Wire, resolution_ns: int = MS) -> Inference:
    """A new inference that has been told of all flows, and of no row."""
    inference = Inference(resolution_ns)
    for number, flow in enumerate(wire.flows):
        inference.describe(number, flow)
    return inference


def by_time(wire: Wire) -> Table:
    """All rows, dtype TRAFFIC."""
    rows = np.concatenate([*wire.tables, np.empty(0, TRAFFIC)])
    return rows[np.argsort(rows["time_ns"], kind="stable")]


def spared(wire: Wire) -> Inference:
    """A new inference that has been given all rows, of flows that are spared."""
    inference = described(wire)
    inference.spare(range(len(wire.flows)))
    inference.add(by_time(wire))
    return inference


def replay(wire: Wire, slice_ms: int = 200, after_s: float = 0, resolution_ns: int = MS, watched: bool = False) -> Said:
    """Give all of it to a new inference in slices, and some silence afterwards; watched: the hosts were, from 0 on."""
    inference, rows, said = described(wire, resolution_ns), by_time(wire), Said()
    if watched:
        inference.watch({flow.host for flow in wire.flows}, START)
    last = int(rows["time_ns"][-1] - START) if len(rows) else 0
    for now in range(0, last + slice_ms * MS + int(after_s * SECOND), slice_ms * MS):
        low, high = np.searchsorted(rows["time_ns"], (START + now, START + now + slice_ms * MS))
        inference.add(rows[low:high])
        said.take(inference.advance(START + now + slice_ms * MS), START + now + slice_ms * MS)
    return said


def assert_same_iterations(said, begun, job="traffic-1", within_ms=1.0):
    starts = said.starts(job)
    assert len(starts) == len(begun)
    assert np.abs(starts - np.array(begun)).max() <= within_ms * MS
