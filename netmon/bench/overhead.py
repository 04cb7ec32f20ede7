# SPDX-License-Identifier: Apache-2.0
"""What being watched costs the traffic: one TCP stream over an unshaped veth pair, watched in turn by each observer.

Every round runs each observer once, in an order that moves on by one per round, and compares with the same round's
run without any: what slows the whole machine for a while then slows both sides of a ratio.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np

from netmon.bench.observers import OBSERVERS, Account, Pair, agent_alone, fresh_folder, pair
from netmon.bench.result import or_dash, table
from netmon.bench.specs import OverheadSpec, Progress, silent
from netmon.errors import LabError, UnsupportedError
from netmon.lab.injections.spec import Injection
from netmon.lab.monitor import Monitor
from netmon.lab.network import network, processes_in
from netmon.lab.process import Process, children, machine_seconds, memory_bytes, process_seconds
from netmon.lab.record import Record, prepare
from netmon.lab.run import train
from netmon.lab.spec import RunSpec
from netmon.lab.traffic.cross import CrossTraffic
from netmon.lab.traffic.profiles import Offer
from netmon.terminal import BREAK, FittingTable, figures, labels
from netmon.units import format_bytes

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
        pids = processes_in(hosts.receiver.namespace)
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


# --- What being watched costs the traffic.

LABELS = {
    "nothing": "nothing",
    "programs": "netmon's programs alone, tc, receiver only",
    "tc": "netmon, tc",
    "tc_receiver": "netmon, tc, receiver only",
    "agent": "netmon, tc, receiver only, no collector",
    "xdp": "netmon, xdp",
    "tcpdump": "tcpdump -s 150, receiver only",
}
"""What watched, by kind of observer."""

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

    ALSO, LEFT_OUT = ("kinds",), ("runs",)
    rounds: int
    seconds: float
    congestion: str
    idle: Idle
    runs: dict[str, tuple[Run, ...]]

    @property
    def kinds(self) -> tuple[KindResult, ...]:
        return tuple(_result(kind, runs, self.runs["nothing"]) for kind, runs in self.runs.items())

    def shown(self) -> Iterator[FittingTable | str]:
        idle = self.idle
        caption = (
            f"Medians of {self.rounds} rounds of {self.seconds:g} s. One TCP stream (iperf3, {self.congestion}) runs "
            "between two namespaces over an unshaped veth pair; each round has a run with every observer. "
            "Ratio: throughput relative to the same round's run with no observer (quartiles over the rounds). "
            "netmon: an agent at each end unless the label says otherwise, buckets of 10 µs, streamed to a collector "
            "outside both namespaces with the lowest priority (nice 19); xdp: the receiver's hook. tcpdump writes to "
            "memory. "
            "Machine CPU: of all processes, iperf3 and the collector included. Observer CPU: of the agents or of "
            "tcpdump alone. No collector: the agent streams to a process that only acknowledges, and `sent` is what it "
            "gets. Records and lost: of all agents. Coverage: share of the receiver's bytes (tcpdump: packets). "
            f"Without traffic an agent took {100 * idle.cpu_fraction:.2f} % of a core, "
            f"{idle.switches_per_s:.0f} context switches/s and {format_bytes(idle.proportional_bytes)} of memory (PSS; "
            f"RSS {format_bytes(idle.resident_bytes)}), and sent {format_bytes(round(idle.sent_bytes_per_s))}/s."
        )
        names = ("Gbit/s", "ratio (quartiles)", "machine CPU s/GB", "observer CPU s/GB", "observer cores")
        watched, breaks = labels("watched by", prose=True), (BREAK.join(name.split(" ", 1)) for name in names)
        costs = map(_cost_row, self.kinds)
        yield table("what being watched costs the traffic", [*watched, *figures(*breaks)], costs)
        yield ""
        columns = [*watched, *figures("sent, B/s", "records", "lost", "coverage")]
        accounts = (_account_row(kind) for kind in self.kinds if kind.records is not None)
        yield table("what was sent, recorded and lost", columns, accounts, caption)


def _cost_row(kind: KindResult) -> tuple[str, ...]:
    low, high = kind.ratio_quartiles
    return (
        LABELS[kind.kind],
        f"{kind.gbit_per_s:.1f}",
        "1" if kind.kind == "nothing" else f"{kind.ratio:.2f} ({low:.2f}–{high:.2f})",
        f"{kind.machine_cpu_s_per_gb:.3f}",
        or_dash(kind.observer_cpu_s_per_gb, "{:.4f}"),
        or_dash(kind.observer_cpu_fraction, "{:.4f}"),
    )


def _account_row(kind: KindResult) -> tuple[str, ...]:
    lost = format_bytes(kind.lost_bytes) if kind.lost_bytes is not None else or_dash(kind.lost_packets, "{:,} packets")
    sent, records = or_dash(kind.sent_bytes_per_s, "{:,.0f}"), or_dash(kind.records, "{:,}")
    return LABELS[kind.kind], sent, records, lost, or_dash(kind.coverage, "{:.3%}")


def measure(spec: OverheadSpec, progress: Progress = silent) -> OverheadResult:
    """Blocks for about (6 · seconds + 25 s) per round, and for 10 · seconds at the end.

    Raises UnsupportedError, LabError. Everything it made is gone afterwards, also on failure.
    """
    for program in ("iperf3", "tcpdump"):
        if not shutil.which(program):
            raise UnsupportedError(f"cannot measure the overhead: {program} is not installed; install {program}")
    kinds = list(OBSERVERS)
    runs: dict[str, list[Run]] = {kind: [] for kind in kinds}
    with pair() as hosts:
        for number in range(spec.rounds):
            for position in range(len(kinds)):
                kind = kinds[(number + position) % len(kinds)]
                with fresh_folder() as folder:
                    runs[kind].append(_run(kind, hosts, folder, spec.seconds))
                progress(number + (position + 1) / len(kinds), spec.rounds)
        with fresh_folder() as folder:
            idle = measure_idle(hosts, folder, _IDLE_RUNS * spec.seconds)
    every = {kind: tuple(of_kind) for kind, of_kind in runs.items()}
    return OverheadResult(spec.rounds, spec.seconds, hosts.congestion, idle, every)


def _run(kind: str, hosts: Pair, folder: Path, seconds: float) -> Run:
    offer = Offer(hosts.receiver.address, _PORT, load_bps=0, rate_bps=0, seed=0)  # 0: as fast as it goes
    with OBSERVERS[kind](hosts, folder) as finish:
        pids = [pid for host in (hosts.sender, hosts.receiver) for pid in processes_in(host.namespace)]
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


def _result(kind: str, runs: tuple[Run, ...], bare: tuple[Run, ...]) -> KindResult:
    accounts = [run.account for run in runs if run.account]
    lost = sum(account.lost for account in accounts)
    total = sum(account.all_traffic for account in accounts)
    units = {account.unit for account in accounts}
    ratios = [run.gbit_per_s / of_round.gbit_per_s for run, of_round in zip(runs, bare, strict=True)]
    low, middle, high = np.percentile(ratios, (25, 50, 75)).tolist()
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


# --- What verdicts cost: agents that report the evidence and a collector that judges, and the same ones without.
#
# A job of the lab trains on three hosts; now and then one rank is stopped, so that iterations stand out. Each round has
# a run of both kinds, in turns, after which CPU time per second of training is compared.


_RANKS = (0, 1, 2)
_COMPUTE_NS = 60_000_000
_PARAMETERS = 600_000
_ITERATION_NS = 100_000_000  # about
_STOP_NS, _STOP_EVERY = 150_000_000, 25  # iterations
_SETTLE_S = 4.0  # for what starting left to do


@dataclass(frozen=True)
class Costs:
    """Of one run, as shares of a core."""

    agent: float  # mean of the hosts with a rank
    collector: float  # with its processes


@dataclass(frozen=True)
class More:
    """By how much one side of the rounds is dearer: the median, and the least and the most of all rounds.

    Of n independent rounds the true median lies between these two with a probability of 1 − 2^(1 − n), whatever the
    noise is like (the sign test's interval): five rounds give 94 %, seven 98 %.
    """

    median: float
    least: float
    most: float


@dataclass(frozen=True)
class EvidenceResult:
    """All rounds, in their order: of each a run with and one without, the one right after the other."""

    ALSO = ("agent_more", "collector_more", "sureness")
    seconds: float
    with_all: tuple[Costs, ...]
    without: tuple[Costs, ...]

    @property
    def agent_more(self) -> More:
        """Of a core, for each agent."""
        return self._more(lambda one, other: one.agent - other.agent)

    @property
    def collector_more(self) -> More:
        """Of the collector's CPU time without."""
        return self._more(lambda one, other: one.collector / other.collector - 1)

    @property
    def sureness(self) -> float:
        """The probability that a true median lies within its rounds."""
        return float(1 - 2.0 ** (1 - len(self.without)))

    def _more(self, of: Callable[[Costs, Costs], float]) -> More:
        found = [of(*pair) for pair in zip(self.with_all, self.without, strict=True)]
        return More(float(np.median(found)), min(found), max(found))

    def shown(self) -> Iterator[FittingTable]:
        yield table(
            "what verdicts and their evidence cost",
            [*labels("of a core"), *figures("with", "without", "more", "least", "most")],
            (
                self._row("agent", self.agent_more, "{:+.2%}"),
                self._row("collector", self.collector_more, "{:+.1%} of it"),
            ),
            f"Medians of {len(self.without)} rounds, each of a run with and one without. With: agents report what TCP "
            "says and what keeps ranks and hosts from running, and the collector judges; without: neither. An agent: "
            "mean of three hosts with a rank each. Least, most: of a single round; the true median lies between them "
            f"with a probability of {self.sureness:.0%}.",
        )

    def _row(self, name: str, more: More, form: str) -> tuple[str, ...]:
        sides = (np.median([getattr(one, name) for one in side]) for side in (self.with_all, self.without))
        return (name, *(f"{side:.2%}" for side in sides), *(form.format(one) for one in astuple(more)))


def measure_evidence(spec: OverheadSpec, progress: Progress = silent) -> EvidenceResult:
    """Blocks for about 2 · (seconds + 12 s) per round. Raises LabError."""
    found: dict[bool, list[Costs]] = {True: [], False: []}
    for number in range(spec.rounds):
        for index, evidence in enumerate((True, False) if number % 2 else (False, True)):
            with tempfile.TemporaryDirectory(prefix="netmon-bench-", dir="/dev/shm") as folder:
                found[evidence].append(_evidence_run(Path(folder) / "data", spec.seconds, evidence))
            progress(number + (index + 1) / 2, spec.rounds)
    return EvidenceResult(spec.seconds, tuple(found[True]), tuple(found[False]))


def _evidence_run(data: Path, seconds: float, evidence: bool) -> Costs:
    spec = _spec(data, seconds, evidence)
    folder = prepare(data, False)
    with (
        Record(folder, spec) as record,
        network(spec.hosts, spec.rate_bps) as testbed,
        Monitor(spec, testbed, folder / "log", spec.parameters) as monitor,
    ):
        time.sleep(_SETTLE_S)
        before, begun = _seconds(monitor), time.monotonic()
        train(spec, testbed, monitor, sys.executable, record)
        took = time.monotonic() - begun
        agents, collector = ((now - then) / took for now, then in zip(_seconds(monitor), before, strict=True))
        monitor.end_in_order()
    return Costs(agents / len(_RANKS), collector)


def _spec(data: Path, seconds: float, evidence: bool) -> RunSpec:
    iterations = max(2 * _STOP_EVERY, round(seconds * 1e9 / _ITERATION_NS))
    stops = tuple(
        Injection("stop", at=at + 0.3, duration_ns=_STOP_NS, rank=at // _STOP_EVERY % len(_RANKS))
        for at in range(_STOP_EVERY, iterations - 1, _STOP_EVERY)
    )
    return RunSpec(
        data,
        hosts=len(_RANKS),
        ring=_RANKS,
        cross=(),
        cross_load=0.0,
        parameters=_PARAMETERS,
        compute_ns=_COMPUTE_NS,
        iterations=iterations,
        injections=stops,
        stream_ns=1_000_000,
        evidence=evidence,
    )


def _seconds(monitor: Monitor) -> tuple[float, float]:
    """CPU time so far of the agents, and of the collector."""
    return _of(monitor.agents), _of(monitor.collectors)


def _of(processes: Sequence[Process]) -> float:
    pids = [process.pid for process in processes]
    return process_seconds([*pids, *(child for pid in pids for child in children(pid))])
