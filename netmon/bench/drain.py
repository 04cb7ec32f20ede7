# SPDX-License-Identifier: Apache-2.0
"""How fast the agent takes records out of the kernel: busy time of the drain alone, and of its sweep.

The records are the meter's own, made by test runs with buckets of a nanosecond, so that every packet closes one.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from netmon.bench.cpus import CpusResult, measure_cpus
from netmon.bench.rig import PROGRAMS, LoadedMeter, Yardsticks, frame, ns_per_run

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

    def document(self) -> dict[str, Any]:
        """For --json."""
        return asdict(self)


def measure(rounds: int, cpus: int, progress: Callable[[int], None] = lambda _: None) -> DrainResult:
    """cpus: of the simulated host. Blocks for some 50 ms per round; progress is called with the rounds done.

    Raises KernelError.
    """
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
        progress(min(done, rounds))
    speeds = sorted(speeds[4:])  # the first rounds touch the ring's pages for the first time
    spread = speeds[3 * rounds // 4] - speeds[rounds // 4]
    return DrainResult(median(speeds), spread, records, _sweep(), _SWEEP_FLOWS, rounds, measure_cpus(cpus, rounds))


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
