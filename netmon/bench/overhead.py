# SPDX-License-Identifier: Apache-2.0
"""What being watched costs the traffic: one TCP stream over an unshaped veth pair, watched in turn by each observer.

Every round runs each observer once, in an order that moves on by one per round, and compares with the same round's
run without any: what slows the whole machine for a while then slows both sides of a ratio.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from netmon.bench.cpu import machine_seconds, process_seconds
from netmon.bench.memory import memory_bytes
from netmon.bench.observers import OBSERVERS, Account, agent_alone
from netmon.bench.pair import Pair, pair
from netmon.errors import LabError, UnsupportedError
from netmon.lab import iproute
from netmon.lab.traffic.cross import CrossTraffic
from netmon.lab.traffic.profiles import Offer

# --- What an agent costs a host on which nothing happens.

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


# --- overhead


_MEMORY = Path("/dev/shm")  # no observer is to wait for a disk
_PORT = 5201
_IDLE_RUNS = 10  # so long is measured what an idle agent costs: /proc counts in steps of 10 ms
_REST_SECONDS = 0.3  # before a run for what starting left to do, after it for observers to catch up


@dataclass(frozen=True)
class Run:
    """One transfer. CPU times in seconds; the observer's: of its processes, the collector not among them."""

    bytes_sent: int
    seconds: float
    machine_cpu_s: float
    observer_cpu_s: float
    account: Account | None

    @property
    def gbit_per_s(self) -> float:
        """TCP payload."""
        return self.bytes_sent * 8 / self.seconds / 1e9


@dataclass(frozen=True)
class KindResult:
    """One observer: medians over the rounds; losses and coverage over all of them. None: it has no such figure.

    ratio: to the throughput of the same round's run with nothing. observer_cpu_fraction: of one core. netmon tells
    lost_bytes (wire bytes, all agents) and coverage by its ledger, an agent alone what it sent upstream; tcpdump tells
    lost_packets, its coverage is of packets; both coverages are of the receiver's interface.
    """

    kind: str
    gbit_per_s: float
    ratio: float
    ratio_quartiles: tuple[float, float]
    machine_cpu_s_per_gb: float
    observer_cpu_s_per_gb: float | None
    observer_cpu_fraction: float | None
    sent_bytes_per_s: float | None
    records: int | None
    lost_bytes: int | None
    lost_packets: int | None
    coverage: float | None


@dataclass(frozen=True)
class OverheadResult:
    """All rounds. runs: by kind, in the order of the rounds."""

    rounds: int
    seconds: float
    congestion: str
    idle: Idle
    runs: dict[str, tuple[Run, ...]]

    @property
    def kinds(self) -> tuple[KindResult, ...]:
        """A result per observer."""
        return tuple(_result(kind, runs, self.runs["nothing"]) for kind, runs in self.runs.items())

    def ratios(self, kind: str) -> list[float]:
        """Throughput per round, as a share of the same round's with nothing."""
        return _ratios(self.runs[kind], self.runs["nothing"])

    def document(self) -> dict[str, Any]:
        """For --json."""
        kinds = [asdict(kind) for kind in self.kinds]
        document = {"rounds": self.rounds, "seconds": self.seconds, "congestion": self.congestion}
        return {**document, "idle": asdict(self.idle), "kinds": kinds}


def measure(
    rounds: int, seconds: float, congestion: str = "", progress: Callable[[float], None] = lambda _: None
) -> OverheadResult:
    """Blocks for about (6 · seconds + 25 s) per round, and for 10 · seconds at the end.

    progress is called with the rounds done.

    congestion: TCP's congestion control, empty for what this machine uses.

    Raises UnsupportedError, LabError. Everything it made is gone afterwards, also on failure.
    """
    for program in ("iperf3", "tcpdump"):
        if not shutil.which(program):
            raise UnsupportedError(f"cannot measure the overhead: {program} is not installed; install {program}")
    kinds = list(OBSERVERS)
    runs: dict[str, list[Run]] = {kind: [] for kind in kinds}
    with pair(congestion) as hosts:
        for number in range(rounds):
            for position in range(len(kinds)):
                kind = kinds[(number + position) % len(kinds)]
                with tempfile.TemporaryDirectory(prefix="netmon-bench-", dir=_MEMORY) as folder:
                    os.chmod(folder, 0o711)  # for the agent, which is not root
                    runs[kind].append(_run(kind, hosts, Path(folder), seconds))
                progress(number + (position + 1) / len(kinds))
        with tempfile.TemporaryDirectory(prefix="netmon-bench-", dir=_MEMORY) as folder:
            os.chmod(folder, 0o711)  # for the agent, which is not root
            idle = measure_idle(hosts, Path(folder), _IDLE_RUNS * seconds)
    return OverheadResult(
        rounds, seconds, hosts.congestion, idle, {kind: tuple(of_kind) for kind, of_kind in runs.items()}
    )


def _run(kind: str, hosts: Pair, folder: Path, seconds: float) -> Run:
    offer = Offer(hosts.receiver.address, _PORT, load_bps=0, rate_bps=0, seed=0)  # 0: as fast as it goes
    with OBSERVERS[kind](hosts, folder) as finish:
        pids = [pid for host in (hosts.sender, hosts.receiver) for pid in iproute.processes(host.namespace)]
        with CrossTraffic("stream", "iperf", hosts.sender, hosts.receiver, offer, folder) as stream:
            time.sleep(_REST_SECONDS)
            machine, observer = machine_seconds(), process_seconds(pids)
            stream.begin()
            time.sleep(seconds)
            stream.stop()
            time.sleep(_REST_SECONDS)
            machine, observer = machine_seconds() - machine, process_seconds(pids) - observer
        truth = stream.truth
        if not truth["bytes_sent"]:
            raise LabError(f"cannot measure the overhead: with {kind} watching nothing was sent; give more --seconds")
        return Run(truth["bytes_sent"], truth["seconds"], machine, observer, finish())


def _ratios(runs: tuple[Run, ...], bare: tuple[Run, ...]) -> list[float]:
    return [run.gbit_per_s / of_round.gbit_per_s for run, of_round in zip(runs, bare, strict=True)]


def _result(kind: str, runs: tuple[Run, ...], bare: tuple[Run, ...]) -> KindResult:
    accounts = [run.account for run in runs if run.account]
    lost = sum(account.lost for account in accounts)
    total = sum(account.carried for account in accounts)
    units = {account.unit for account in accounts}
    low, middle, high = np.percentile(_ratios(runs, bare), (25, 50, 75)).tolist()
    return KindResult(
        kind=kind,
        gbit_per_s=_median([run.gbit_per_s for run in runs]),
        ratio=middle,
        ratio_quartiles=(low, high),
        machine_cpu_s_per_gb=_median([run.machine_cpu_s / run.bytes_sent * 1e9 for run in runs]),
        observer_cpu_s_per_gb=_median([r.observer_cpu_s / r.bytes_sent * 1e9 for r in runs]) if accounts else None,
        observer_cpu_fraction=_median([run.observer_cpu_s / run.seconds for run in runs]) if accounts else None,
        sent_bytes_per_s=_median([run.account.sent / run.seconds for run in runs if run.account and run.account.sent])
        if accounts and accounts[0].sent is not None
        else None,
        records=round(_median([account.records for account in accounts])) if accounts else None,
        lost_bytes=lost if units == {"bytes"} else None,
        lost_packets=lost if units == {"packets"} else None,
        coverage=sum(account.seen for account in accounts) / total if total else None,
    )


def _median(values: list[float]) -> float:
    return float(np.median(values))
