# SPDX-License-Identifier: Apache-2.0
"""Several workers on one bus alongside one alone: the same recorded batches, and the same CPU for each worker.

Everything waits on the bus when the clock begins to run, so that workers are never short of batches, and the machine
runs nothing but them and the NATS server: how long they take until all is stored says what they can carry. Each worker,
with its job process, has a share of the CPU that the kernel enforces. All shares together leave room for the server.
Cores share caches, and often more: a second of one is worth less while the others work. So alongside one worker alone
loops use up what the others have alongside each other.
"""

import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from netmon.bench.cpu import process_seconds
from netmon.bench.pipeline.bus import serving
from netmon.bench.pipeline.load import Load
from netmon.bench.pipeline.recorded import Player, Recorded, playing
from netmon.bench.pipeline.same import TableDifference, compare
from netmon.bench.pipeline.truth import Verdict
from netmon.errors import LabError, UnsupportedError, UsageError
from netmon.lab.process import Process
from netmon.wire.bus import BusSettings

# --- A share of the machine's CPU for a process and all that it starts: CPU bandwidth, in a cgroup of its own.

_MOUNTS = Path("/proc/mounts")
_PERIOD_US = 20_000  # short: what waits for the next one waits in every period
_GONE_S = 5.0


class CpuShare:
    """Between entering and leaving its context. Works with cgroup v2 and v1; needs root."""

    def __init__(self, name: str, cores: float) -> None:
        """name: one of a kind on this machine. cores: that may be used at most."""
        self._name, self._cores = name, cores
        self._folder = Path()

    def __enter__(self) -> "CpuShare":
        """Raises UnsupportedError where the kernel, or whoever runs us, does not allow it."""
        quota = round(self._cores * _PERIOD_US)
        try:
            root, v2 = _controller(_MOUNTS.read_text())
            self._folder = root / f"netmon-bench-{os.getpid()}-{self._name}"
            self._folder.mkdir()
            try:
                if v2:
                    (self._folder / "cpu.max").write_text(f"{quota} {_PERIOD_US}")
                else:
                    (self._folder / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
                    (self._folder / "cpu.cfs_quota_us").write_text(str(quota))
            except OSError:
                self._folder.rmdir()
                raise
        except (OSError, LookupError) as error:
            raise UnsupportedError(
                f"cannot give a worker {self._cores:g} cores: {error}; it takes root and the cgroup controller cpu"
            ) from None
        return self

    def inside(self, command: Sequence[str]) -> list[str]:
        """The command, so that it and what it starts have the share."""
        script = 'echo $$ > "$0" && exec "$@"'
        return ["sh", "-c", script, str(self._folder / "cgroup.procs"), *command]

    def seconds(self) -> float:
        """CPU time of the processes that are in it now."""
        return process_seconds(map(int, (self._folder / "cgroup.procs").read_text().split()))

    def __exit__(self, *_: object) -> None:
        """After the processes have ended."""
        deadline = time.monotonic() + _GONE_S
        while time.monotonic() < deadline:  # the kernel lets go of a process a moment after it is waited for
            with contextlib.suppress(OSError):
                self._folder.rmdir()
                return
            time.sleep(0.02)


def _controller(mounts: str) -> tuple[Path, bool]:
    """Where to make a group with a share, and whether it is cgroup v2's. Raises LookupError, OSError."""
    lines = [line.split() for line in mounts.splitlines()]
    for _, index, kind, options, *_ in lines:
        if kind == "cgroup" and "cpu" in options.split(","):
            return Path(index), False
    for _, index, kind, *_ in lines:
        root = Path(index)
        if kind == "cgroup2" and "cpu" in (root / "cgroup.controllers").read_text().split():
            (root / "cgroup.subtree_control").write_text("+cpu")
            return root, True
    raise LookupError("no cgroup has the controller cpu")


# --- workers

PLAYED = (
    "Simulated agents: recorded batches of made-up hosts, on a real NATS server before the clock runs; workers, bus "
    "and disk are real. Each worker has the same share of the CPU, one alone as one of several; beside one alone, "
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
    """One worker, several, and what their datasets have in common."""

    load: Load
    cores_each: float
    one: Played
    several: Played
    differences: dict[str, TableDifference]

    @property
    def ratio(self) -> float:
        """Rows/s of several : of one."""
        return self.several.rows_per_s / self.one.rows_per_s

    @property
    def ratio_by_cpu(self) -> float:
        """The same, had every worker got the whole of its share: on a machine that does other things, too."""
        return len(self.several.workers) * self.several.rows_per_cpu_s / self.one.rows_per_cpu_s

    @property
    def same(self) -> bool:
        """Whether the rows are the same, table by table."""
        return all(difference.none for difference in self.differences.values())

    @property
    def true(self) -> bool:
        """Whether both datasets are what was sent."""
        return self.one.verdict.true and self.several.verdict.true

    def document(self) -> dict[str, Any]:
        """For --json."""
        return (
            {"simulated": PLAYED}
            | asdict(self)
            | {
                "ratio": self.ratio,
                "ratio_by_cpu": self.ratio_by_cpu,
                "same": self.same,
                "true": self.true,
            }
        )


def fair_share(workers: int) -> float:
    """Cores for each worker, unless it is set otherwise."""
    return min(1.0, _SHARES_OF * (os.cpu_count() or 1) / workers)


def measure(
    load: Load, workers: int, cores_each: float = 0.0, progress: Callable[[float], None] = lambda _: None
) -> WorkersResult:
    """Blocks for minutes. cores_each: CPU of each worker; 0: a fair share.

    Raises LabError, UnsupportedError, UsageError.
    """
    cores_each = cores_each or fair_share(workers)
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

            def tell(done: float, index: int = index) -> None:
                progress((index + done) / 2)

            with _burning(workers - count, cores_each, folder):
                played.append(asyncio.run(_play(recorded, count, cores_each, folder, tell)))
        differences = compare(Path(name) / "1" / "data", Path(name) / str(workers) / "data")
    return WorkersResult(load, cores_each, played[0], played[1], differences)


async def _play(
    recorded: Recorded, workers: int, cores_each: float, folder: Path, progress: Callable[[float], None]
) -> Played:
    with ExitStack() as stack:
        server, settings = stack.enter_context(serving(folder))
        async with playing(settings, recorded) as player:
            first = _FIRST_S * recorded.load.batches
            await player.publish(0, first)
            shares = [stack.enter_context(CpuShare(f"w{number}", cores_each)) for number in range(workers)]
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
            used, of_bus, begin = [share.seconds() for share in shares], process_seconds([server.pid]), time.monotonic()
            await watched.until_stored(progress)
            seconds = time.monotonic() - begin
            spent = [share.seconds() - before for share, before in zip(shares, used, strict=True)]
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
        *(seconds, rows / seconds, rows / max(sum(spent), 1e-9), of_bus / seconds),
        *(each, watched.moved, verdict),
    )


@contextmanager
def _burning(loops: int, cores_each: float, folder: Path) -> Iterator[None]:
    """So many shares of the CPU are used up meanwhile."""
    with ExitStack() as stack:
        for number in range(loops):
            share = stack.enter_context(CpuShare(f"loop{number}", cores_each))
            stack.enter_context(Process(f"loop{number}", share.inside([sys.executable, "-c", _BURNS]), folder))
        yield


def _name(number: int) -> str:
    return f"w{number + 1}"


def _worker(number: int, share: CpuShare, settings: BusSettings, folder: Path) -> Process:
    name = _name(number)
    command = [sys.executable, "-m", "netmon", "collector", "--listen", f"unix:{folder / name}.sock"]
    command += ["--data", str(folder / "data"), "--bus", settings.servers[0], "--worker", name]
    return Process(name, share.inside(command), folder, notify=folder / f"{name}.ready")


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

    async def until_stored(self, progress: Callable[[float], None]) -> None:
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
            progress(1 - sum(rest.values()) / (spans * len(rest)))
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
