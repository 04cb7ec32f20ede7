# SPDX-License-Identifier: Apache-2.0
"""What a drain costs on a host of many CPUs all of whose slots have been used: idle, busy, and when a flow is new.

The CPUs are simulated; the reading end and its memory are the agent's own.
"""

import time
from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt

from netmon.bench.simulated import SimulatedCpus
from netmon.kernel.meter.geometry import choose_geometry
from netmon.kernel.meter.meter import STALE_NS

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
