# SPDX-License-Identifier: Apache-2.0
"""What an agent costs a host on which nothing happens."""

import time
from dataclasses import dataclass
from pathlib import Path

from netmon.bench.cpu import process_seconds
from netmon.bench.memory import memory_bytes
from netmon.bench.observers import agent_alone
from netmon.bench.pair import Pair
from netmon.lab import iproute

_SETTLE_SECONDS = 8  # for what starting left to do, and until the agent takes its time


@dataclass(frozen=True)
class Idle:
    """An agent and a sink, all processes of the agent together.

    resident_bytes counts pages that processes share, and the kernel's rings, once for each mapping; proportional_bytes
    (PSS) once. switches_per_s: context switches, voluntary and not.
    """

    seconds: float
    cpu_fraction: float  # of one core
    switches_per_s: float
    resident_bytes: int
    proportional_bytes: int
    sent_bytes_per_s: float


def measure_idle(hosts: Pair, folder: Path, seconds: float) -> Idle:
    """Blocks for a while longer than `seconds`. Raises LabError."""
    with agent_alone(hosts, folder) as finish:
        time.sleep(min(_SETTLE_SECONDS, seconds))
        pids = iproute.processes(hosts.receiver.namespace)
        cpu, switches, begin = process_seconds(pids), _switches(pids), time.monotonic()
        time.sleep(seconds)
        elapsed = time.monotonic() - begin
        cpu, switches = process_seconds(pids) - cpu, _switches(pids) - switches
        resident, proportional = (memory_bytes(pids, name) for name in ("Rss", "Pss"))
        account = finish()
    return Idle(
        seconds=elapsed,
        cpu_fraction=cpu / elapsed,
        switches_per_s=switches / elapsed,
        resident_bytes=resident,
        proportional_bytes=proportional,
        sent_bytes_per_s=(account.sent or 0) / (elapsed + min(_SETTLE_SECONDS, seconds)),
    )


def _switches(pids: list[int]) -> int:
    files = [path for pid in pids for path in Path(f"/proc/{pid}/task").glob("*/status")]
    lines = [line for path in files for line in path.read_text().splitlines() if "ctxt_switches" in line]
    return sum(int(line.split()[1]) for line in lines)
