# SPDX-License-Identifier: Apache-2.0
"""One run: a real collector, simulated agents, a viewer; then the dataset is compared with the truth."""

import json
import math
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import grpc
import numpy as np

from collector.dataset.sink import ParquetSink
from netmon.bench.pipeline.agents import BEGUN, ENDED, FAREWELL_S, Report, host_name
from netmon.bench.pipeline.truth import TABLES, Difference, Stored, Verdict, judge, stored
from netmon.bench.result import figures_table
from netmon.bench.specs import Load, PipelineSpec, Progress, silent
from netmon.errors import LabError
from netmon.lab.process import Process, children, command_line, memory_bytes, process_seconds
from netmon.terminal import FittingTable
from netmon.units import format_bytes
from netmon.views import OVERVIEW
from netmon.wire import netmon_pb2
from netmon.wire.limits import FEW_THREADS
from netmon.wire.mapping import encode_selection
from netmon.wire.netmon_pb2_grpc import CollectorStub

# --- A viewer's stream: how old the snapshot is that it has.

INTERVAL_MS = 500
SELECTION = replace(OVERVIEW, flows=200, steps_ns=5_000_000_000)
"""As `netmon top` asks while somebody looks at its overview."""

_OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1))


@dataclass(frozen=True)
class Seen:
    """Ages in s. age: of the newest snapshot at the moment when the next one comes, that is at its oldest.

    data: of the newest rows in a snapshot when it comes, median of the hosts in it; most: of the host that lags most.
    """

    snapshots: int
    age_median_s: float
    age_most_s: float
    data_median_s: float
    data_most_s: float
    bytes: int  # of the largest


class Viewer:
    """A thread that watches until its context ends."""

    def __init__(self, address: str) -> None:
        """address: the collector's."""
        self._address = address
        self._thread = threading.Thread(target=self._watch, name="viewer", daemon=True)
        self._over = threading.Event()
        self._call: grpc.Call | None = None
        self._came: list[tuple[float, float, float, float, int]] = []  # when, made when, ages, bytes

    def begin(self) -> None:
        """What has been seen until now does not count."""
        self._came = []

    def seen(self) -> Seen:
        """Since `begin`."""
        if not self._came:
            return Seen(0, math.nan, math.nan, math.nan, math.nan, 0)
        when, made, median, most, size = np.array(self._came, np.float64).T
        ages = np.append(when[1:], time.time()) - made
        ages = ages if len(ages) > 1 else ages[:1]
        return Seen(
            len(when),
            float(np.median(ages)),
            float(ages.max()),
            float(np.median(median)),
            float(most.max()),
            int(size.max()),
        )

    def __enter__(self) -> "Viewer":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        if self._call:
            self._call.cancel()
        self._thread.join()

    def _watch(self) -> None:
        request = encode_selection(SELECTION, INTERVAL_MS)
        while not self._over.is_set():
            with grpc.insecure_channel(self._address, options=_OPTIONS) as channel:
                call = self._call = CollectorStub(channel).Watch(request)  # type: ignore[no-untyped-call]
                try:
                    for snapshot in call:
                        self._take(snapshot)
                except grpc.RpcError:
                    self._over.wait(0.2)

    def _take(self, snapshot: netmon_pb2.Snapshot) -> None:
        now = time.time()
        ages = [host.age_ns / 1e9 for host in snapshot.hosts] or [0.0]
        late = now - snapshot.time_ns / 1e9
        figures = float(np.median(ages)) + late, max(*ages, snapshot.totals.oldest_ns / 1e9) + late
        self._came.append((now, snapshot.time_ns / 1e9, *figures, snapshot.ByteSize()))


# --- How long somebody waits for `netmon top --once --json` while agents send.

_EVERY_S = 2.0
_PATIENCE_S = 60.0


class TopOnce:
    """A thread that runs the command every two seconds of its context, from `begin` on."""

    def __init__(self, address: str) -> None:
        """address: the collector's."""
        self._command = [sys.executable, "-m", "netmon", "top", "--once", "--json", "--collector", address]
        self._took: list[float] = []
        self._begun, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="top", daemon=True)

    def begin(self) -> None:
        """From now on; may be called again."""
        self._begun.set()

    def median_s(self) -> float | None:
        """From its start to its end; None: none has answered."""
        return statistics.median(self._took) if self._took else None

    def __enter__(self) -> "TopOnce":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._begun.set()
        self._thread.join()

    def _run(self) -> None:
        self._begun.wait()
        while not self._over.wait(_EVERY_S):
            began = time.monotonic()
            try:
                done = subprocess.run(
                    self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=_PATIENCE_S
                )
            except subprocess.TimeoutExpired:
                continue
            if done.returncode == 0:
                self._took.append(time.monotonic() - began)


# --- run


SIMULATED = (
    "Simulated agents: made-up hosts, flows, marks and exchanges over real gRPC streams, as many as are said, from one "
    "process on this machine; the collector, its disk and the viewer are real."
)

_READY_S = 60
_BEGIN_S = 300
_END_S = 300  # a collector that does not end is killed, which is a result
_LOOK_S = 0.25
_MEMORY_EVERY_S = 1.0
_MOST_NAMED = 5  # streams that failed
_CHILDREN = {"collector.jobs.worker": "job process", "collector.receiving.receiver": "receiver"}  # of the collector
_TAKE_IN = ("collector", "receiver")


@dataclass(frozen=True)
class Cost:
    """Of one process while the agents sent. Memory: the most seen."""

    cores: float
    resident_bytes: int
    proportional_bytes: int


@dataclass(frozen=True)
class PipelineResult:
    """A run. stored_rows_per_s: of what was acknowledged, in rows as the agents would have sent them unasked.

    widths: hosts by the coarsest rows that they were requested, in ms. stop_s: from SIGTERM to the collector's end.
    """

    ALSO = ("simulated", "true")
    simulated = SIMULATED
    load: Load
    seconds: float
    sent_rows_per_s: float
    stored_rows_per_s: float
    batches_per_s: float
    costs: Mapping[str, Cost]
    batch_cpu_ms: float  # of the collector and its receiver, for each batch that was sent
    delay_median_s: float
    delay_p99_s: float
    delay_most_s: float
    late_p99_s: float  # from when a batch was due until gRPC took it
    silent_most_s: float
    seen: Seen
    top_median_s: float | None  # that `netmon top --once --json` takes; None: the run was too short
    tables: Mapping[str, Stored]
    bytes_per_row: float  # of the table buckets, over all tables, as it was written
    files_per_hour: float
    widths: Mapping[int, int]
    coarse_batches: int
    open_batches: int  # sent, and never acknowledged
    failed: list[str]
    stop_s: float
    stop_status: int
    verdict: Verdict
    reported: Report  # by the agents

    @property
    def true(self) -> bool:
        """Whether the dataset is what was sent; of a collector that was ended meanwhile, what it has acknowledged."""
        return self.verdict.true and (self.load.cut or not self.open_batches)

    def shown(self) -> Iterator[FittingTable]:
        """A row per figure; the caption says what was simulated."""
        load = self.load
        what = f"{load.hosts} hosts × {load.rows:,} rows/s in {load.batches} batches/s"
        what += f", {load.jobs} jobs, {load.flows:,} flows, {load.seconds} s"
        yield figures_table(f"the collector under {what}", _figures(self), SIMULATED)


def _figures(result: "PipelineResult") -> list[tuple[str, str]]:
    seen, verdict = result.seen, result.verdict
    rows = [
        ("rows/s sent, acknowledged", f"{result.sent_rows_per_s:,.0f}, {result.stored_rows_per_s:,.0f}"),
        ("batches/s sent", f"{result.batches_per_s:,.0f}"),
    ]
    for name, cost in result.costs.items():
        memory = f"{format_bytes(cost.resident_bytes)}, {format_bytes(cost.proportional_bytes)}"
        rows += [(f"{name}: CPU, cores", f"{cost.cores:.2f}"), (f"{name}: memory, RSS, PSS", memory)]
    delays = f"{result.delay_median_s:.2f}, {result.delay_p99_s:.2f}, {result.delay_most_s:.2f}"
    ages = f"{seen.age_median_s:.2f}, {seen.age_most_s:.2f} ({seen.snapshots} of {format_bytes(seen.bytes)} at most)"
    rows += [
        ("collector: CPU per batch, ms", f"{result.batch_cpu_ms:.2f}"),
        ("acknowledgement after, s: median, p99, most", delays),
        ("longest time without a word for an agent, s", f"{result.silent_most_s:.2f}"),
        ("late to send (backpressure), s: p99", f"{result.late_p99_s:.2f}"),
        ("age of the viewer's snapshot, s: median, most", ages),
        (
            "`netmon top --once --json` takes, s: median",
            "–" if result.top_median_s is None else f"{result.top_median_s:.2f}",
        ),
        ("age of the rows in it, s: hosts' median, most", f"{seen.data_median_s:.2f}, {seen.data_most_s:.2f}"),
    ]
    rows += [
        (f"{name}: rows, B/row, files", f"{table.rows:,}, {table.bytes / max(1, table.rows):.1f}, {table.files:,}")
        for name, table in result.tables.items()
    ]
    widths = ", ".join(f"{hosts} to {width} ms" for width, hosts in result.widths.items() if width > 1) or "nothing"
    rows += [
        ("B per bucket row, over all tables", f"{result.bytes_per_row:.2f}"),
        ("files an hour", f"{result.files_per_hour:,.0f}"),
        ("shed: hosts made coarser", widths),
        ("shed: batches, rows that are coarser", f"{result.coarse_batches:,}, {verdict.coarse_rows:,}"),
        ("collector ends after SIGTERM, s (status)", f"{result.stop_s:.1f} ({result.stop_status})"),
        ("streams that failed", f"{len(result.failed)}" + "".join(f"\n{line}" for line in result.failed[:_MOST_NAMED])),
        ("batches that were never acknowledged", f"{result.open_batches:,}"),
        ("dataset = truth", "yes" if result.true else "NO"),
        ("  bucket rows: true, missing, wrong", _difference(verdict.rows)),
        ("  iterations: true, missing, wrong", _difference(verdict.iterations)),
        ("  ledger: true, missing, wrong", _difference(verdict.ledger)),
        ("  rows of another class, iteration", f"{verdict.classes:,}, {verdict.numbers:,}"),
        ("  furthest from the true time, µs", f"{verdict.clock_error_ns / 1e3:.1f}"),
    ]
    return rows


def _difference(difference: Difference) -> str:
    return f"{difference.true:,}, {difference.missing:,}, {difference.wrong:,}"


@dataclass
class _Account:
    """CPU and memory of processes between two moments."""

    pids: dict[str, int]
    most: dict[str, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._known = len(self.pids) + len(_CHILDREN)
        self._find_children()
        self._cpu, self._begin, self._due = self._used(), time.monotonic(), 0.0

    def _used(self) -> dict[str, float]:
        return {name: process_seconds([pid]) for name, pid in self.pids.items()}

    def _find_children(self) -> None:
        """The collector's own, which are started with the first agents; they may not be there yet."""
        if len(self.pids) >= self._known:
            return
        for pid in children(self.pids["collector"]):
            for module, name in _CHILDREN.items():
                if module in command_line(pid):
                    self.pids[name] = pid

    def sample_memory(self) -> None:
        """Reading the memory of a large process takes milliseconds of its own time: not too often."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + _MEMORY_EVERY_S
        self._find_children()
        for name, pid in self.pids.items():
            now = [memory_bytes([pid], kind) for kind in ("Rss", "Pss")]
            self.most[name] = [max(pair) for pair in zip(now, self.most.get(name, now), strict=True)]

    def costs(self) -> dict[str, Cost]:
        elapsed, used = time.monotonic() - self._begin, self._used()
        return {name: Cost((used[name] - self._cpu.get(name, 0.0)) / elapsed, *self.most[name]) for name in self.pids}


def measure(spec: PipelineSpec, progress: Progress = silent) -> PipelineResult:
    """Blocks for some seconds longer than the load. Raises LabError, UnsupportedError."""
    with tempfile.TemporaryDirectory(prefix="netmon-bench-") as name:
        folder = Path(name)
        data = spec.data or folder / "data"
        if spec.bus == "grpc":
            return _measure(spec, folder, data, progress)
        from netmon.bench.pipeline.agents import serving  # who measures without one needs no nats-py

        with serving(folder) as (server, settings):
            return _measure(spec, folder, data, progress, settings.servers[0], {"bus": server.pid})


def _measure(
    spec: PipelineSpec,
    folder: Path,
    data: Path,
    progress: Progress,
    bus: str = "",
    other_pids: Mapping[str, int] | None = None,
) -> PipelineResult:
    """bus: its address, where there is one; other_pids: more processes to account for."""
    load = spec.load
    address, report = f"unix:{folder / 'collector.sock'}", folder / "report.json"
    collect = [sys.executable, "-m", "netmon", "collector", "--listen", address, "--data", str(data)]
    collect += ["--bus", bus, "--worker", "w1"] if bus else []
    to = bus or address
    threads = f"GRPC_EXPERIMENTS=-event_engine_client,{FEW_THREADS}"
    agent = ["env", threads, sys.executable, "-m", "netmon.bench.pipeline.agents"]
    simulate = [*agent, json.dumps(asdict(load)), to, str(report)]
    with Process("collector", collect, folder, notify=folder / "notify") as collector:
        collector.wait_ready(_READY_S)
        with (
            Process("agents", simulate, folder) as agents,
            Viewer(address) as viewer,
            TopOnce(address) as top,
        ):
            agents.wait_output(BEGUN, _BEGIN_S)
            pids = {"collector": collector.pid, "agents": agents.pid, **(other_pids or {})}
            account, begin = _Account(pids), time.monotonic()
            viewer.begin()
            while not (ENDED in agents.output() or (load.cut and time.monotonic() > begin + load.seconds)):
                agents.check_running()
                collector.check_running()
                account.sample_memory()
                progress(min(1, (time.monotonic() - begin) / load.seconds), 1)
                if time.monotonic() > begin + load.seconds / 2:
                    top.begin()
                time.sleep(_LOOK_S)
            seconds, costs, seen = time.monotonic() - begin, account.costs(), viewer.seen()
            reported_in_s = top.median_s()
            stopped = _end(collector) if load.cut else None
            _wait(agents)
        stop = stopped or _end(collector)
    reported = Report.read(report)
    with closing(ParquetSink(data)) as sink:  # what a collector that has little time leaves to the next
        while sink.merge_some(lambda: True, at_once=True):
            pass
    tables = {table: stored(data, table) for table in TABLES}
    return _result(load, reported, seconds, costs, seen, reported_in_s, tables, stop, judge(data, load, reported))


def _end(process: Process) -> tuple[float, int]:
    """How long it takes after SIGTERM, and its status."""
    begin = time.monotonic()
    status = process.end(seconds=_END_S)
    return time.monotonic() - begin, status


def _wait(agents: Process) -> None:
    deadline = time.monotonic() + FAREWELL_S + _END_S
    while agents.status() is None:
        if time.monotonic() > deadline:
            raise LabError(f"the simulated agents did not end: {agents.output()[-200:]}")
        time.sleep(_LOOK_S)
    agents.check()


def _result(
    load: Load,
    reported: Report,
    seconds: float,
    costs: Mapping[str, Cost],
    seen: Seen,
    top_median_s: float | None,
    tables: Mapping[str, Stored],
    stop: tuple[float, int],
    verdict: Verdict,
) -> PipelineResult:
    sent = sum(host.sent for host in reported.hosts) * load.rows / load.batches
    stored_rows = sum(host.acknowledged for host in reported.hosts) * load.rows / load.batches
    batches = sum(host.messages for host in reported.hosts)
    coarsest = Counter(max(width for _, width in host.widths) for host in reported.hosts)
    return PipelineResult(
        load=load,
        seconds=seconds,
        sent_rows_per_s=sent / seconds,
        stored_rows_per_s=stored_rows / seconds,
        batches_per_s=batches / seconds,
        costs=costs,
        batch_cpu_ms=1e3
        * sum(cost.cores for name, cost in costs.items() if name in _TAKE_IN)
        * seconds
        / max(1, batches),
        delay_median_s=reported.delay_median_s,
        delay_p99_s=reported.delay_p99_s,
        delay_most_s=reported.delay_most_s,
        late_p99_s=reported.late_p99_s,
        silent_most_s=reported.silent_most_s,
        seen=seen,
        top_median_s=top_median_s,
        tables=tables,
        bytes_per_row=sum(table.bytes for table in tables.values()) / max(1, tables["buckets"].rows),
        files_per_hour=sum(table.files for table in tables.values()) * 3600 / seconds,
        widths=dict(sorted(coarsest.items())),
        coarse_batches=sum(host.coarse_spans() for host in reported.hosts),
        open_batches=sum(host.sent - host.acknowledged for host in reported.hosts),
        failed=[f"{host_name(number)}: {host.failed}" for number, host in enumerate(reported.hosts) if host.failed],
        stop_s=stop[0],
        stop_status=stop[1],
        verdict=verdict,
        reported=reported,
    )
