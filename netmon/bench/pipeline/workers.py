# SPDX-License-Identifier: Apache-2.0
"""Multiple workers on one bus compared with one alone: the same recorded batches, and the same CPU for each worker.

Everything waits on the bus when the clock begins to run, so that workers are never short of batches, and the machine
runs nothing but them and the NATS server: how long they take until all is stored says what they can carry. Each worker,
with its job process, has a share of the CPU that the kernel enforces. All shares together leave room for the server.
Cores share caches, and often more: a second of one is worth less while the others work. So alongside one worker alone
loops use up what the others have alongside each other.
"""

import asyncio
import contextlib
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from netmon.bench.pipeline.agents import HostReport, Report, host_name, record, serving
from netmon.bench.pipeline.truth import LEFT_OUT, TableDifference, Verdict, compare, judge
from netmon.bench.result import table
from netmon.bench.specs import WIDTH_MS, Load, PipelineSpec, Progress, silent
from netmon.errors import LabError, UnsupportedError, UsageError
from netmon.lab.network import cpu_root, limit
from netmon.lab.process import Process, process_seconds
from netmon.records import Hello
from netmon.terminal import Column, FittingTable, labels
from netmon.wire import netmon_pb2
from netmon.wire.batches import encode_hello
from netmon.wire.bus import (
    BATCHES,
    STREAM,
    Bus,
    BusError,
    BusSettings,
    Label,
    batch_subject,
    hello_subject,
    host_of,
    make_streams,
    name_of,
)

# --- The batches of a load, made once and with fixed clocks, to be played to one worker and to more.

_AT_A_TIME = 128  # messages on their way to the bus
_ANSWER_S = 60.0
_OWNERS = "netmon-owners"  # bucket: host → worker


@dataclass(frozen=True)
class Recorded:
    load: Load
    utc_ns: int  # when the simulation began
    hellos: Sequence[Hello]
    batches: Sequence[Sequence[bytes]]

    @classmethod
    def make(cls, load: Load) -> "Recorded":
        """Its end is about now. Takes some 0.1 ms of CPU per batch, and the memory that they have on the wire."""
        utc_ns = time.time_ns() - load.seconds * 1_000_000_000
        hosts = [record(load, host, utc_ns) for host in range(load.hosts)]
        return cls(load, utc_ns, [hello for hello, _ in hosts], [batches for _, batches in hosts])

    @property
    def spans(self) -> int:
        return self.load.seconds * self.load.batches

    @property
    def jobs(self) -> list[list[str]]:
        return [[host_name(host) for host in self.load.members(job)] for job in range(self.load.jobs)]

    def verdict(self, data: Path) -> Verdict:
        hosts = [HostReport(self.spans, self.spans, self.spans, [(0, WIDTH_MS)]) for _ in self.hellos]
        nothing = float("nan")
        return judge(data, self.load, Report(0, self.utc_ns, hosts, nothing, nothing, nothing, nothing, nothing))


class Player:
    """Publishes recorded batches, as their agents would have."""

    def __init__(self, bus: Bus, recorded: Recorded) -> None:
        self.bus, self._recorded = bus, recorded
        self._owners: dict[str, str] = {}
        self._owners_at = 0  # the bucket's last change when it was read

    async def introduce(self) -> None:
        for hello in self._recorded.hellos:
            data = netmon_pb2.AgentMessage(hello=encode_hello(hello)).SerializeToString()
            await self.bus.jetstream.publish(hello_subject(hello.host, hello.session), data, timeout=_ANSWER_S)

    async def publish(self, first: int, last: int) -> None:
        """These batches of every host, as fast as the bus takes them."""
        await self._put(
            (hello, batches[number], Label(hello.session, number + 1, number, number))
            for number in range(first, last)
            for hello, batches in zip(self._recorded.hellos, self._recorded.batches, strict=True)
        )

    async def end(self) -> None:
        spans = self._recorded.spans
        await self._put((hello, b"", Label(hello.session, 0, spans, spans)) for hello in self._recorded.hellos)

    async def waiting(self) -> dict[str, int]:
        """Messages by host that nobody has acknowledged."""
        with self.bus.errors("look at"):
            info = await self.bus.jetstream.stream_info(STREAM, subjects_filter=f"{BATCHES}.*")
        return {host_of(subject): count for subject, count in (info.state.subjects or {}).items()}

    async def hold_back(self, seconds: float) -> None:
        """The bus hands nothing out for so long, counted anew. Raises BusError; it takes nats-server 2.11 or later."""
        until = datetime.now(timezone.utc) + timedelta(seconds=seconds)
        request = json.dumps({"pause_until": until.isoformat()}).encode()
        with self.bus.errors("hold back what is handed out by"):
            for name in await self._consumers():
                subject = f"$JS.API.CONSUMER.PAUSE.{STREAM}.{name}"
                answer = json.loads((await self.bus.client.request(subject, request, timeout=_ANSWER_S)).data)
                if answer.get("error"):
                    raise BusError(f"the bus does not hold back what it hands out: {answer['error']}")

    async def owners(self) -> dict[str, str]:
        """The worker that has each host, as the workers say it to each other."""
        prefix, stream = f"$KV.{_OWNERS}.", f"KV_{_OWNERS}"
        with self.bus.errors("look at"):
            jetstream = self.bus.jetstream
            info = await jetstream.stream_info(stream, subjects_filter=f"{prefix}>")
            if info.state.last_seq != self._owners_at:
                subjects = list(info.state.subjects or {})
                found = await asyncio.gather(*(jetstream.get_last_msg(stream, subject) for subject in subjects))
                said = dict(zip((name_of(subject.removeprefix(prefix)) for subject in subjects), found, strict=True))
                self._owners = {host: message.data.decode() for host, message in said.items() if message.data}
                self._owners_at = info.state.last_seq
        return self._owners

    async def _consumers(self) -> list[str]:
        names: list[str] = []
        while some := await self.bus.jetstream.consumers_info(STREAM, len(names)):
            names += [info.name for info in some]
        return names

    async def _put(self, messages: Iterable[tuple[Hello, bytes, Label]]) -> None:
        coming = iter(messages)
        while some := list(itertools.islice(coming, _AT_A_TIME)):
            with self.bus.errors("publish to"):
                await asyncio.gather(
                    *(
                        self.bus.jetstream.publish(
                            batch_subject(hello.host), data, timeout=_ANSWER_S, headers=label.headers()
                        )
                        for hello, data, label in some
                    )
                )


@asynccontextmanager
async def playing(settings: BusSettings, recorded: Recorded) -> AsyncIterator[Player]:
    """All hosts are introduced. Raises BusError."""
    bus = await Bus.connect(settings, "netmon bench", lasting=True)
    try:
        await make_streams(bus)
        player = Player(bus, recorded)
        await player.introduce()
        yield player
    finally:
        await bus.close()


# --- A share of the machine's CPU for a process and all that it starts: CPU bandwidth, in a cgroup of its own.

_GONE_S = 5.0


@contextmanager
def cpu_share(name: str, cores: float) -> Iterator[Path]:
    """A cgroup whose processes may use so many cores; they have to end before the context does. Needs root.

    name: one of a kind on this machine. Raises UnsupportedError where the kernel, or who runs us, does not allow it.
    """
    try:
        group = cpu_root() / f"netmon-bench-{os.getpid()}-{name}"
        group.mkdir()
        try:
            limit(group, cores)
        except OSError:
            group.rmdir()
            raise
    except (OSError, LookupError) as error:
        raise UnsupportedError(
            f"cannot give a worker {cores:g} cores: {error}; it takes root and the cgroup controller cpu"
        ) from None
    try:
        yield group
    finally:
        deadline = time.monotonic() + _GONE_S
        while group.exists() and time.monotonic() < deadline:
            time.sleep(0.02)  # the kernel lets go of a process a moment after it is waited for
            with contextlib.suppress(OSError):
                group.rmdir()


def _inside(group: Path, command: Sequence[str]) -> list[str]:
    """The command, so that it and what it starts are in the group."""
    return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs"), *command]


def _seconds_of(group: Path) -> float:
    """CPU time of the processes that are in it now."""
    return process_seconds(map(int, (group / "cgroup.procs").read_text().split()))


# --- workers

PLAYED = (
    "Simulated agents: recorded batches of made-up hosts, on a real NATS server before the clock runs; workers, bus "
    "and disk are real. Each worker has the same share of the CPU, one alone as one of many; next to one alone, "
    "loops burn the shares of the others: a core's second is worth less while its neighbours work."
)

_FIRST_S = 3  # of the load, by which workers learn which hosts train together
_STABLE_S = 6.0  # nothing has moved for so long
_READY_S, _LEARN_S, _STORED_S, _END_S = 120.0, 240.0, 3600.0, 120.0
_LOOK_S, _BEGIN_S = 0.25, 2.0
_BURNS = "import numpy as np\na = np.arange(1 << 15)[::-1]\nwhile True:\n    np.sort(a), {k: k for k in range(10_000)}"
_SHARES_OF = 0.4  # of the machine, for all workers together: the server and its disk need the rest


@dataclass(frozen=True)
class Worker:
    """One worker, while the clock ran. rows_per_s: of hosts that it had when they were stored."""

    rows_per_s: float
    cores: float
    rows_per_cpu_s: float


@dataclass(frozen=True)
class Played:
    """What became of the batches with so many workers. seconds: until all of them were stored."""

    seconds: float
    rows_per_s: float
    rows_per_cpu_s: float  # of all workers together
    bus_cores: float
    workers: Sequence[Worker]
    moved: int  # hosts that changed their worker while the clock ran
    verdict: Verdict


@dataclass(frozen=True)
class WorkersResult:
    ALSO = ("simulated", "ratio", "ratio_by_cpu", "same", "true")
    simulated = PLAYED
    load: Load
    cores_each: float
    one: Played
    several: Played
    differences: dict[str, TableDifference]

    @property
    def ratio(self) -> float:
        """Rows/s of many : of one."""
        return self.several.rows_per_s / self.one.rows_per_s

    @property
    def ratio_by_cpu(self) -> float:
        """The same, had every worker got the whole of its share: on a machine that does other things, too."""
        return len(self.several.workers) * self.several.rows_per_cpu_s / self.one.rows_per_cpu_s

    @property
    def same(self) -> bool:
        return all(difference.none for difference in self.differences.values())

    @property
    def true(self) -> bool:
        return self.one.verdict.true and self.several.verdict.true

    def shown(self) -> Iterator[FittingTable]:
        load, count = self.load, len(self.several.workers)
        what = f"{load.hosts} hosts × {load.rows:,} rows/s in {load.batches} batches/s, {load.jobs} jobs"
        title = f"workers on {self.cores_each:g} cores each, {what}, {load.seconds} s"
        left_out = ", ".join(f"{name}.{column}" for name, columns in LEFT_OUT.items() for column in columns)
        columns = (Column(name, right=True, prose=True) for name in ("1 worker", f"{count} workers"))
        caption = f"{PLAYED} The datasets are compared in all columns except {left_out}."
        yield table(title, [*labels("", prose=True), *columns], _figures(self), caption)


def _figures(result: WorkersResult) -> list[tuple[str, str, str]]:
    one, many = result.one, result.several

    def both(name: str, figure: str) -> tuple[str, str, str]:
        return name, figure.format(one), figure.format(many)

    rows = [
        both("rows/s stored, in all", "{0.rows_per_s:,.0f}"),
        *(_of_worker(result, number) for number in range(len(many.workers))),
        ("rows/s : rows/s of one", "1", f"{result.ratio:.2f}"),
        ("  had each got its whole share of the CPU", "1", f"{result.ratio_by_cpu:.2f}"),
        both("until all was stored, s", "{0.seconds:.1f}"),
        both("rows per second of the workers' CPU", "{0.rows_per_cpu_s:,.0f}"),
        both("bus: CPU, cores", "{0.bus_cores:.2f}"),
        both("hosts that changed their worker meanwhile", "{0.moved}"),
        ("dataset = truth", _yes(one.verdict.true), _yes(many.verdict.true)),
        ("dataset of many = dataset of one", "", _yes(result.same)),
    ]
    for name, found in result.differences.items():
        shown = "".join(f"\n{line}" for line in found.shown)
        rows.append((f"  {name}: rows; missing, extra", f"{found.rows:,}", f"{found.missing}, {found.extra}{shown}"))
    return rows


def _yes(holds: bool) -> str:
    return "yes" if holds else "NO"


def _of_worker(result: WorkersResult, number: int) -> tuple[str, str, str]:
    texts = []
    for played in (result.one, result.several):
        worker = played.workers[number] if number < len(played.workers) else None
        texts.append(f"{worker.rows_per_s:,.0f}, {worker.cores:.2f}" if worker else "")
    return f"  worker {number + 1}: rows/s, cores used", texts[0], texts[1]


def measure(spec: PipelineSpec, progress: Progress = silent) -> WorkersResult:
    """Blocks for minutes. Raises LabError, UnsupportedError, UsageError."""
    load, workers = spec.load, spec.collectors
    cores_each = spec.cpu or min(1.0, _SHARES_OF * (os.cpu_count() or 1) / workers)
    if load.jobs < workers:
        raise UsageError(f"cannot share {load.jobs} jobs out to {workers} workers: give --jobs {workers} or more")
    if load.seconds <= _FIRST_S:
        raise UsageError(f"cannot measure {load.seconds} s of batches: give --seconds {_FIRST_S + 1} or more")
    recorded = Recorded.make(load)
    with tempfile.TemporaryDirectory(prefix="netmon-bench-") as name:
        played = []
        for index, count in enumerate((1, workers)):
            folder = Path(name) / str(count)
            folder.mkdir()

            def report(done: float, of: float, text: str = "", index: int = index) -> None:
                progress((index + done) / 2, 1)

            with _burning(workers - count, cores_each, folder):
                played.append(asyncio.run(_play(recorded, count, cores_each, folder, report)))
        differences = compare(Path(name) / "1" / "data", Path(name) / str(workers) / "data")
    return WorkersResult(load, cores_each, played[0], played[1], differences)


async def _play(recorded: Recorded, workers: int, cores_each: float, folder: Path, progress: Progress) -> Played:
    with ExitStack() as stack:
        server, settings = stack.enter_context(serving(folder))
        async with playing(settings, recorded) as player:
            first = _FIRST_S * recorded.load.batches
            await player.publish(0, first)
            shares = [stack.enter_context(cpu_share(f"w{number}", cores_each)) for number in range(workers)]
            processes = [
                stack.enter_context(_worker(number, share, settings, folder)) for number, share in enumerate(shares)
            ]
            for process in processes:
                await asyncio.to_thread(process.wait_ready, _READY_S)
            watched = _Watched(player, recorded, processes)
            await watched.wait_until_stable()
            await player.hold_back(_STORED_S)
            await player.publish(first, recorded.spans)
            await player.end()
            await player.hold_back(_BEGIN_S)
            await asyncio.sleep(_BEGIN_S)
            used, of_bus, begin = (
                [_seconds_of(share) for share in shares],
                process_seconds([server.pid]),
                time.monotonic(),
            )
            await watched.until_stored(progress)
            seconds = time.monotonic() - begin
            spent = [_seconds_of(share) - before for share, before in zip(shares, used, strict=True)]
            of_bus = process_seconds([server.pid]) - of_bus
        for process in processes:
            process.end_in_order(seconds=_END_S)
    rows = recorded.load.hosts * recorded.load.rows * (recorded.load.seconds - _FIRST_S)
    each = [
        Worker(watched.stored[_name(number)] / seconds, cpu / seconds, watched.stored[_name(number)] / max(cpu, 1e-9))
        for number, cpu in enumerate(spent)
    ]
    verdict = await asyncio.to_thread(recorded.verdict, folder / "data")
    return Played(
        *(seconds, rows / seconds, rows / max(sum(spent), 1e-9), of_bus / seconds), *(each, watched.moved, verdict)
    )


@contextmanager
def _burning(loops: int, cores_each: float, folder: Path) -> Iterator[None]:
    """So many shares of the CPU are used up meanwhile."""
    with ExitStack() as stack:
        for number in range(loops):
            share = stack.enter_context(cpu_share(f"loop{number}", cores_each))
            stack.enter_context(Process(f"loop{number}", _inside(share, [sys.executable, "-c", _BURNS]), folder))
        yield


def _name(number: int) -> str:
    return f"w{number + 1}"


def _worker(number: int, share: Path, settings: BusSettings, folder: Path) -> Process:
    name = _name(number)
    command = [sys.executable, "-m", "netmon", "collector", "--listen", f"unix:{folder / name}.sock"]
    command += ["--data", str(folder / "data"), "--bus", settings.servers[0], "--worker", name]
    return Process(name, _inside(share, command), folder, notify=folder / f"{name}.ready")


class _Watched:
    """Which worker has which host, and what is still on the bus."""

    def __init__(self, player: Player, recorded: Recorded, processes: Sequence[Process]) -> None:
        self._player, self._recorded, self._processes = player, recorded, processes
        self.stored = {_name(number): 0.0 for number in range(len(processes))}  # rows, by worker
        self.moved = 0

    async def wait_until_stable(self) -> None:
        """Every job is with one worker, every worker has one, and what could be stored of the first batches is."""
        deadline, since, before = time.monotonic() + _LEARN_S, time.monotonic(), None
        while time.monotonic() - since < _STABLE_S:
            await asyncio.sleep(_LOOK_S)
            self._check()
            owners = await self._player.owners()
            now = owners, await self._player.waiting()
            if now != before or not self._together(owners):
                before, since = now, time.monotonic()
            if time.monotonic() > deadline:
                raise LabError(f"the workers did not share the hosts out within {_LEARN_S:g} s: {owners}")

    async def until_stored(self, progress: Progress) -> None:
        """Nothing waits on the bus."""
        deadline = time.monotonic() + _STORED_S
        rows = self._recorded.load.rows / self._recorded.load.batches
        spans = self._recorded.spans - _FIRST_S * self._recorded.load.batches
        rest = {hello.host: spans for hello in self._recorded.hellos}  # of each host, that nobody has stored
        owners = await self._player.owners()
        while True:
            waiting, owned = await self._player.waiting(), await self._player.owners()
            for host, before in rest.items():
                rest[host] = min(before, waiting.get(host, 0))
                if owners[host] in self.stored:
                    self.stored[owners[host]] += (before - rest[host]) * rows
            self.moved += sum(owned.get(host, worker) != worker for host, worker in owners.items())
            owners |= owned
            progress(1 - sum(rest.values()) / (spans * len(rest)), 1)
            if not waiting:
                return
            if time.monotonic() > deadline:
                raise LabError(f"not stored within {_STORED_S:g} s: {sum(waiting.values())} messages")
            await asyncio.sleep(_LOOK_S)
            self._check()

    def _together(self, owners: dict[str, str]) -> bool:
        jobs = [{owners.get(host, "") for host in job} for job in self._recorded.jobs]
        return all(len(of) == 1 for of in jobs) and set().union(*jobs) == self.stored.keys()

    def _check(self) -> None:
        for process in self._processes:
            process.check_running()
