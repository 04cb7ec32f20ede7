# SPDX-License-Identifier: Apache-2.0
"""How fast the agent takes records out of the kernel: busy time of the drain alone, and of its sweep.

The records are the meter's own, made by test runs with buckets of a nanosecond, so that every packet closes one.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt

from netmon.bench.kernel import PROGRAMS, LoadedMeter, Yardsticks, frame, ns_per_run
from netmon.bench.result import figures_table
from netmon.bench.specs import DrainSpec, Progress, silent
from netmon.kernel.meter.flow_numbers import EVERY, FlowNumbers
from netmon.kernel.meter.memory import Geometry, blank_memory, choose_geometry
from netmon.kernel.meter.meter import STALE_NS, Meter
from netmon.records import COUNTED, KERNEL_BUCKET
from netmon.terminal import FittingTable

# --- As many CPUs as one likes: writes into the meter's memory what their programs would, without a kernel.


class SimulatedCpus:
    """A meter, and the CPUs that it reads. Every slot keeps the flow that it gets."""

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self.memory = blank_memory(geometry)
        self.meter = Meter(self.memory, geometry, FlowNumbers(EVERY))

    def open_flows(self, slots: npt.NDArray[np.intp], now_ns: int) -> None:
        """A flow takes each of these slots, at most flow_records of a CPU, with one packet of 100 bytes."""
        table, flows = self.memory.slots, self.memory.flows
        table["key"]["src_port"][slots] = slots & 0xFFFF
        table["key"]["link_protocol"][slots] = 1 << 9 | slots >> 16
        self.open_buckets(slots, now_ns)
        cpus, indices = self._positions(slots, "flows", flows.shape[1])
        openings = np.zeros(len(slots), flows.dtype)
        openings["key"], openings["slot"] = table["key"][slots], slots
        flows[cpus, indices] = openings
        self._publish(cpus, "flows")

    def next_buckets(self, slots: npt.NDArray[np.intp], now_ns: int) -> None:
        """Each of these slots closes its bucket, at most ring_records of a CPU, and opens one with one packet."""
        taken = self.memory.slots[slots]
        cpus, indices = self._positions(slots, "buckets", self.geometry.ring_records)
        records = np.zeros(len(slots), KERNEL_BUCKET)
        records["slot"] = slots
        for name in ("bucket_start_ns", *COUNTED):
            records[name] = taken[name]
        self.open_buckets(slots, now_ns)
        self.memory.buckets[cpus, indices] = records.view(np.uint64).reshape(len(slots), -1)
        self._publish(cpus, "buckets")

    def open_buckets(self, slots: npt.NDArray[np.intp], now_ns: int) -> None:
        table = self.memory.slots
        table["bucket_start_ns"][slots] = now_ns - now_ns % self.geometry.bucket_ns
        table["packets"][slots], table["wire_bytes"][slots], table["payload_bytes"][slots] = 1, 100, 46
        cpus, links = slots // self.geometry.slots, table["key"]["link_protocol"][slots] >> 8
        for name, count in (("frames", 1), ("packets", 1), ("frame_bytes", 100), ("wire_bytes", 100)):
            np.add.at(self.memory.ledger[name], (cpus, links), count)

    def _positions(self, slots: npt.NDArray[np.intp], ring: str, size: int) -> tuple[npt.NDArray[np.intp], ...]:
        """The slots' CPUs, and where each one's record goes in its CPU's ring. slots: ascending."""
        cpus = slots // self.geometry.slots
        within = np.arange(len(cpus)) - np.searchsorted(cpus, cpus)
        position = self.memory.producers[ring][cpus].astype(np.intp) + within
        return cpus, position & (size - 1)

    def _publish(self, cpus: npt.NDArray[np.intp], ring: str) -> None:
        np.add.at(self.memory.producers[ring], cpus, np.uint64(1))


# --- What a drain costs on a host of many CPUs all of whose slots have been used: idle, busy, and when a flow is new.
#
# The CPUs are simulated; the reading end and its memory are the agent's own.

_ACTIVE = 16  # flows of a CPU in the busy case
_BUSY_ROUNDS = (1, 8, 64)  # buckets of each flow that a drain finds
_LATER_NS = 2 * STALE_NS


@dataclass(frozen=True)
class BusyDrain:
    """One drain of so many records."""

    records: int
    us: float


@dataclass(frozen=True)
class CpusResult:
    """Medians over the rounds."""

    cpus: int
    slots: int  # of all CPUs, each used before
    idle_us: float
    new_flow_us: float  # one flow takes a slot
    busy: tuple[BusyDrain, ...]  # the same slots, a varying number of records


def measure_cpus(cpus: int, rounds: int) -> CpusResult:
    """Blocks for a second or so, most of it for using every slot once."""
    bench = _Cpus(cpus)
    idle = [bench.drain() for _ in range(rounds)]
    new = []
    for slot in bench.unused[:rounds]:
        bench.simulated.open_flows(np.array([slot]), bench.now_ns)
        new.append(bench.drain())
    busy = tuple(bench.busy(count, rounds) for count in _BUSY_ROUNDS)
    return CpusResult(cpus, len(bench.used), median(idle), median(new), busy)


class _Cpus:
    def __init__(self, cpus: int) -> None:
        geometry = choose_geometry(10_000, cpus=cpus)
        self.simulated, self.now_ns = SimulatedCpus(geometry), _LATER_NS
        slots = np.arange(cpus * geometry.slots)
        last = slots % geometry.slots == geometry.slots - 1
        self.used, self.unused = slots[~last], slots[last].tolist()
        for begin in range(0, geometry.slots, geometry.flow_records):
            within = self.used % geometry.slots
            self._open(self.used[(within >= begin) & (within < begin + geometry.flow_records)])
        self.now_ns += _LATER_NS
        self.drain()

    def _open(self, slots: npt.NDArray[np.intp]) -> None:
        self.simulated.open_flows(slots, self.now_ns)
        self.drain()

    def drain(self) -> float:
        """Its time in µs."""
        begin = time.perf_counter()
        self.simulated.meter.drain(self.now_ns)
        took = time.perf_counter() - begin
        self.simulated.meter.rows.shrink(0)
        return took * 1e6

    def busy(self, buckets: int, rounds: int) -> BusyDrain:
        """Drains of so many buckets of each active flow."""
        geometry = self.simulated.geometry
        active = self.used[self.used % geometry.slots < _ACTIVE]
        times = []
        for _ in range(rounds):
            for _ in range(buckets):
                self.now_ns += geometry.bucket_ns
                self.simulated.next_buckets(active, self.now_ns)
            times.append(self.drain())
        return BusyDrain(buckets * len(active), median(times))


# --- drain


_FLOWS = 64
_PACKETS = 250_000  # of one round: what the ring holds
_SWEEP_FLOWS = 4_096


@dataclass(frozen=True)
class DrainResult:
    """Medians over the rounds."""

    records_per_second: float
    spread: float  # between the quartiles, records/s
    records_per_round: int
    sweep_us: float  # one look at the open buckets of so many flows
    sweep_flows: int
    rounds: int
    many_cpus: CpusResult

    def shown(self) -> Iterator[FittingTable]:
        many = self.many_cpus
        yield figures_table(
            "the agent's drain, medians",
            [
                ("records/s, busy", f"{self.records_per_second / 1e6:.1f} M"),
                ("spread between quartiles", f"{self.spread / 1e6:.1f} M"),
                (f"sweep of {self.sweep_flows} flows", f"{self.sweep_us:.0f} µs"),
                (),
                (f"{many.cpus} CPUs, {many.slots} used slots: idle", f"{many.idle_us:.0f} µs"),
                ("one new flow", f"{many.new_flow_us:.0f} µs"),
                *((f"{busy.records} records", f"{busy.us:.0f} µs") for busy in many.busy),
            ],
        )


def measure(spec: DrainSpec, progress: Progress = silent) -> DrainResult:
    """Blocks for some 50 ms per round. Raises KernelError."""
    rounds = spec.rounds
    loaded, yardsticks = LoadedMeter(bucket_ns=1), Yardsticks()
    front = yardsticks.program("turn", "xdp")
    yardsticks.aim("xdp", loaded.descriptors[PROGRAMS["xdp"]], _FLOWS)
    bytes_ = frame()
    speeds, records = [], 0
    for done in range(rounds + 4):
        ns_per_run(front, bytes_, _PACKETS)
        begin = time.perf_counter()
        records = loaded.drain()
        speeds.append(records / (time.perf_counter() - begin))
        progress(min(done, rounds), rounds)
    speeds = sorted(speeds[4:])  # the first rounds touch the ring's pages for the first time
    spread = speeds[3 * rounds // 4] - speeds[rounds // 4]
    return DrainResult(median(speeds), spread, records, _sweep(), _SWEEP_FLOWS, rounds, measure_cpus(spec.cpus, rounds))


def _sweep() -> float:
    """Time of a drain with nothing to drain, when so many flows have slots."""
    loaded, yardsticks = LoadedMeter(), Yardsticks()
    yardsticks.aim("xdp", loaded.descriptors[PROGRAMS["xdp"]], _SWEEP_FLOWS)
    front = yardsticks.program("turn", "xdp")
    times = []
    for _ in range(40):
        ns_per_run(front, frame(), _SWEEP_FLOWS // 8)
        loaded.drain()
        begin = time.perf_counter()
        loaded.drain()
        times.append(time.perf_counter() - begin)
    return median(times) * 1e6
