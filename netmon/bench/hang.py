# SPDX-License-Identifier: Apache-2.0
"""`netmon bench hang`: training in the lab that is made to stand still, and what netmon reports of it meanwhile."""

import contextlib
import logging
import os
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from netmon.bench.result import document, or_dash, table
from netmon.bench.specs import HANG_KINDS, HangSpec, Progress, silent
from netmon.bench.verdict.plan import in_turn
from netmon.history.files import first_line
from netmon.lab.monitor import Monitor
from netmon.lab.network import Host, Network, network, run_lines, run_tool
from netmon.lab.process import Process
from netmon.lab.spec import RunSpec
from netmon.lab.training import Training, trainer_python
from netmon.terminal import FittingTable, figures, labels
from netmon.views import Hang, Hung, Selection
from netmon.wire.watch import watch_once

_log = logging.getLogger(__name__)

# --- What is injected, and what should be reported.

_RANKS, _SPLIT = 3, {"tensor": 4}  # layers are split over an even number
_RESUMING = ("stop", "link")
"""Kinds after which the job resumes without having waited for a rank that would come: these are first in a run."""

_RESUMED = 2  # of these, in a run
_EXPECTED = {
    "sleep": (Hung.NOT_ENTERED,),
    "stop": (Hung.NOT_ENTERED, Hung.STOPPED_IN_IT),
    "kill": (Hung.GONE,),
    "call": (Hung.OTHER_CALL,),
    "size": (Hung.OTHER_CALL, Hung.ENDED),  # Gloo ends a job that notices it
    "cross": (Hung.CROSSWISE,),
    "disk": (Hung.NOT_ENTERED,),
    "compute": (Hung.NOT_ENTERED,),
    "link": (Hung.CUT_OFF,),
    "host": (Hung.HOST_SILENT, Hung.CUT_OFF),  # at first
}
_FIRST = {"fsdp": "all-gather", "experts": "all-to-all", "pipeline": "receive"}  # of a step; others: all-reduce
_OTHERS = {"fsdp": ("reduce-scatter", "all-reduce"), "experts": ("all-reduce",), "pipeline": ("send",)}
_UNABLE = {"horovod": ("size", "cross"), "pipeline": ("call", "size")}
"""Horovod puts them in order itself. In a pipeline ranks wait for transfers while one is in a collective."""

_BY_SCRIPT = ("sleep", "compute", "disk", "call", "size", "cross")
_PATIENCE_S = {"compute": 80.0, "disk": 40.0, "link": 40.0}  # until it should have been reported; others: _SOON_S
_SOON_S = 25.0
_ENDED_S = 15.0  # after all ranks have ended, until the reason should have been reported

# --- One injection, and what was reported.


@dataclass(frozen=True)
class Injection:
    run: str
    trainer: str
    kind: str
    rank: int


@dataclass
class Outcome:
    """Times are UTC."""

    injection: Injection
    begun_ns: int
    sequence: int  # of the collective that was called next; −1: not known
    ended_ns: int = 0  # it was undone, and the job resumed
    hang: Hang | None = None
    wait: Hang | None = None  # that was shown first, when it could not be called a hang yet
    shown_ns: int = 0  # when a viewer saw that wait
    ended_itself: bool = False  # the training failed before anything was reported

    @property
    def delay_s(self) -> float | None:
        return (self.hang.reported_ns - self.begun_ns) / 1e9 if self.hang else None

    @property
    def shown_s(self) -> float | None:
        """Until the first wait or hang was shown."""
        first_ns = min((at for at in (self.shown_ns, self.hang.reported_ns if self.hang else 0) if at), default=0)
        return (first_ns - self.begun_ns) / 1e9 if first_ns else None

    @property
    def right_rank(self) -> bool:
        return self._is_right(self.hang)

    @property
    def right_wait(self) -> bool:
        """What was shown first names the right rank."""
        return self._is_right(self.wait or self.hang)

    def _is_right(self, hang: Hang | None) -> bool:
        kind = self.injection.kind
        if hang is None or hang.what not in _EXPECTED[kind]:
            return False
        # Of a single connection on which nothing arrives either end may be cut off.
        return self.injection.rank in (hang.missing if kind == "cross" or hang.what is Hung.CUT_OFF else (hang.rank,))

    @property
    def right_collective(self) -> bool:
        hang, trainer, kind = self.hang, self.injection.trainer, self.injection.kind
        if hang is None:
            return False
        first = _FIRST.get(trainer, "all-reduce")
        if kind in ("size", "cross"):
            return hang.collective == "all-reduce"
        if kind not in _BY_SCRIPT:
            return hang.collective in (first, *_OTHERS.get(trainer, ()))
        return hang.collective == first and self.sequence in (-1, hang.sequence)

    def document(self) -> dict[str, Any]:
        """For JSON."""
        hang = self.hang
        return {
            **document(self.injection),
            "begun_ns": self.begun_ns,
            "delay_s": self.delay_s,
            "shown_s": self.shown_s,
            "right_rank": self.right_rank,
            "right_collective": self.right_collective,
            "right_wait": self.right_wait,
            "ended_itself": self.ended_itself,
            "what": hang.what.name.lower() if hang else None,
            "reported": words(hang) if hang else None,
        }


@dataclass
class KindResult:
    injected: int  # of which the job hung
    reported: int
    right_rank: int
    right_collective: int
    ended_itself: int
    delay_s_median: float | None
    delay_s_worst: float | None
    right_wait: int
    shown_s_median: float | None
    shown_s_worst: float | None


@dataclass
class HangResult:
    planned: int  # runs
    outcomes: list[Outcome] = field(default_factory=list)
    false: list[str] = field(default_factory=list)  # what was reported while nothing was injected
    undisturbed_s: float = 0.0
    waits: list[str] = field(default_factory=list)  # shown meanwhile
    failed: list[str] = field(default_factory=list)
    interrupted: bool = False

    ALSO = ("kinds",)

    @property
    def kinds(self) -> dict[str, KindResult]:
        """Results by kind, in the order of the option."""
        found = {}
        for kind in HANG_KINDS:
            own = [each for each in self.outcomes if each.injection.kind == kind]
            if own:
                found[kind] = _sum(own)
        return found

    def shown(self) -> Iterator[FittingTable | str]:
        """A row per kind, then the wrong reports."""
        columns = [
            *labels("kind"),
            *figures("injected", "reported", "right rank", "right collective", "median s", "worst s"),
            *figures("shown right", "shown s", "worst shown s"),
        ]
        rows = [
            (
                kind,
                *map(str, (each.injected, each.reported, each.right_rank, each.right_collective)),
                *(or_dash(s, "{:.1f}") for s in (each.delay_s_median, each.delay_s_worst)),
                str(each.right_wait),
                *(or_dash(s, "{:.1f}") for s in (each.shown_s_median, each.shown_s_worst)),
            )
            for kind, each in self.kinds.items()
        ]
        note = "Shown: the first that a viewer saw, a hang or that ranks wait unusually long, and for whom."
        yield table("what was injected, and what was reported", columns, rows, note)
        yield f"reported while nothing was done: {len(self.false)} in {self.undisturbed_s / 60:.1f} min"
        yield from self.false
        yield f"waits shown meanwhile: {len(self.waits)}"
        yield from self.waits
        for each in self.outcomes:
            one = each.injection
            if each.ended_itself and not each.hang:
                yield f"{one.run}, {one.kind} of rank {one.rank}: the training ended by itself"
            elif not (each.right_rank and each.right_collective and each.right_wait):
                said = [f"shown: {words(each.wait)}"] if each.wait else []
                said += [f"reported: {words(each.hang)}" if each.hang else "nothing reported"]
                yield f"{one.run}, {one.kind} of rank {one.rank}, before {each.sequence}: {'; '.join(said)}"
        yield from self.failed
        if self.interrupted:
            yield "interrupted: this is what was there"


def _sum(own: Sequence[Outcome]) -> KindResult:
    times = [each.delay_s for each in own if each.delay_s is not None]
    shown = [each.shown_s for each in own if each.shown_s is not None]
    return KindResult(
        injected=len(own) - sum(each.ended_itself and not each.hang for each in own),
        reported=len(times),
        right_rank=sum(each.right_rank for each in own),
        right_collective=sum(each.right_collective for each in own),
        ended_itself=sum(each.ended_itself for each in own),
        delay_s_median=statistics.median(times) if times else None,
        delay_s_worst=max(times, default=None),
        right_wait=sum(each.right_wait for each in own),
        shown_s_median=statistics.median(shown) if shown else None,
        shown_s_worst=max(shown, default=None),
    )


def words(hang: Hang) -> str:
    from netmon.dl.hangs import line
    from netmon.units import format_moment

    return line(hang, format_moment)


# --- A run.

_LOOK_S = 0.25
_WARM, _AHEAD = 20, 8  # iterations: before the first injection; from a script's command to its execution
_CALM_S = 4.0  # between injections
_WAIT_S = 120.0
_DISK_MB = 8


class _Run:
    """One training, and its injections."""

    def __init__(self, testbed: Network, monitor: Monitor, spec: RunSpec, folder: Path, result: HangResult) -> None:
        self._testbed, self._monitor, self._spec, self._folder = testbed, monitor, spec, folder
        self._result = result
        self._order = folder / "order"
        self._reported: dict[int, Hang] = {}  # by the time of the report; as it was then
        self._waits: dict[int, tuple[int, Hang]] = {}  # by their beginnings: when one was seen first, as it was then
        self._begun_ns = 0  # of an injection that is not over

    def do(self, plan: Sequence[Injection]) -> None:
        """Blocks. Raises LabError."""
        with contextlib.ExitStack() as stack:
            disk = stack.enter_context(_disk(self._folder)) if any(one.kind == "disk" for one in plan) else None
            training = Training(self._spec, self._testbed, self._folder, trainer_python(self._spec), hangs=self._order)
            self._training = stack.enter_context(training)
            stack.callback(kill, training.ranks)
            self._await(lambda: training.iterations_done() >= _WARM)
            own: list[Outcome] = []
            try:
                for injection in plan:
                    self._calm()
                    if training.ranks[0].status() is None:
                        own.append(self._inject(injection, disk))
            finally:
                self._score(own)

    def _calm(self) -> None:
        end = time.monotonic() + _CALM_S
        while time.monotonic() < end:
            self._look()
            time.sleep(_LOOK_S)
        self._result.undisturbed_s += _CALM_S

    def _inject(self, injection: Injection, disk: Path | None) -> Outcome:
        rank = self._training.ranks[injection.rank]
        done = _Done(self, injection, disk)
        sequence = -1
        with done:
            if injection.kind in _BY_SCRIPT:
                self._write_command(injection, disk)
                line = rank.wait_output(rf"hang {injection.kind} (\d+) (-?\d+)", _WAIT_S)
                begun_ns, sequence = int(line[1]), int(line[2]) + 1
            else:
                begun_ns = time.time_ns()
            if injection.trainer in ("pipeline", "horovod") or injection.kind == "cross":
                sequence = -1  # transfers count on two ranks only
            outcome, self._begun_ns = Outcome(injection, begun_ns, sequence), begun_ns
            end = time.monotonic() + _PATIENCE_S.get(injection.kind, _SOON_S)
            while time.monotonic() < end and not any(reported_ns >= begun_ns for reported_ns in self._reported):
                if all(one.status() is not None for one in self._training.ranks if one is not rank):
                    outcome.ended_itself = True
                    end = min(end, time.monotonic() + _ENDED_S)
                self._look()
                time.sleep(_LOOK_S)
        if injection.kind in _RESUMING:
            before = self._training.iterations_done()
            self._await(lambda: self._training.iterations_done() > before + 3 and not self._is_hung())
        outcome.ended_ns, self._begun_ns = time.time_ns(), 0
        return outcome

    def _write_command(self, injection: Injection, disk: Path | None) -> None:
        after = self._training.iterations_done() + _AHEAD
        words = [injection.kind, str(injection.rank), str(after), *([str(disk / "file")] if disk else [])]
        following = self._order.with_suffix(".new")
        following.write_text(" ".join(words))
        following.rename(self._order)

    def _score(self, outcomes: Sequence[Outcome]) -> None:
        self._result.outcomes += outcomes
        for reported_ns, hang in sorted(self._reported.items()):
            if self._begun_ns and reported_ns >= self._begun_ns:
                break
            own = [each for each in outcomes if each.begun_ns <= reported_ns <= each.ended_ns]
            if not own:
                self._result.false.append(words(hang))
            elif own[0].hang is None:
                own[0].hang = hang
        for shown_ns, wait in sorted(self._waits.values(), key=lambda each: each[0]):
            own = [each for each in outcomes if each.begun_ns <= shown_ns <= each.ended_ns]
            if own and own[0].wait is None and (own[0].hang is None or shown_ns < own[0].hang.reported_ns):
                own[0].wait, own[0].shown_ns = wait, shown_ns
            elif not own and not 0 < self._begun_ns <= shown_ns:
                self._result.waits.append(words(wait))

    def _hangs(self) -> list[Hang]:
        jobs = watch_once(self._monitor.address, Selection()).jobs
        return [hang for job in jobs if job.job == self._training.job for hang in job.hangs]

    def _is_hung(self) -> bool:
        return any(not hang.until_ns for hang in self._look())

    def _look(self) -> list[Hang]:
        found = self._hangs()
        for hang in found:
            if hang.reported_ns:
                self._reported.setdefault(hang.reported_ns, hang)
            else:
                self._waits.setdefault(hang.since_ns, (time.time_ns(), hang))
        return found

    def _await(self, there: Callable[[], bool]) -> None:
        end = time.monotonic() + _WAIT_S
        while not there() and time.monotonic() < end:
            for rank in self._training.ranks:
                rank.check_running()
            time.sleep(_LOOK_S)

    # --- By kind.

    def host(self, rank: int) -> Host:
        return self._testbed.hosts[self._spec.ring[rank]]

    def signal(self, rank: int, number: int) -> None:
        if self._training.ranks[rank].status() is None:
            os.kill(self._training.ranks[rank].pid, number)

    def link(self, rank: int, up: bool) -> None:
        """Set the switch's port up or down. While it is down nothing passes, and no end is notified."""
        switch = self._testbed.lease.namespace("switch")
        run_lines("ip", switch, [f"link set port{self._spec.ring[rank]} {'up' if up else 'down'}"])

    def end_agent(self, rank: int) -> None:
        host = self.host(rank)
        for agent in [agent for agent in self._monitor.agents if agent.host == host]:
            os.kill(agent.pid, signal.SIGKILL)
            self._monitor.agents.remove(agent)

    def start_agent(self, rank: int) -> None:
        self._monitor.watch([self.host(rank)])

    def end_order(self) -> None:
        self._order.unlink(missing_ok=True)


class _Done(contextlib.AbstractContextManager["_Done"]):
    """An injection from outside, undone at the end. What is killed sends nothing any more, so the others wait."""

    def __init__(self, run: _Run, injection: Injection, disk: Path | None) -> None:
        self._run, self._kind, self._rank, self._disk = run, injection.kind, injection.rank, disk

    def __enter__(self) -> "_Done":
        run, kind, rank = self._run, self._kind, self._rank
        if kind in ("link", "kill", "host"):
            run.link(rank, up=False)
        if kind == "host":
            run.end_agent(rank)
        if kind in ("kill", "host"):
            run.signal(rank, signal.SIGKILL)
        if kind == "stop":
            run.signal(rank, signal.SIGSTOP)
        if kind == "disk":
            run_tool(["fsfreeze", "-f", str(self._disk)])
        return self

    def __exit__(self, *exception: object) -> None:
        run, kind, rank = self._run, self._kind, self._rank
        if kind == "disk":
            run_tool(["fsfreeze", "-u", str(self._disk)])
        if kind == "stop":
            run.signal(rank, signal.SIGCONT)
        if kind in ("link", "kill", "host"):
            run.link(rank, up=True)
        if kind == "host":
            run.start_agent(rank)
        run.end_order()


@contextlib.contextmanager
def _disk(folder: Path) -> Iterator[Path]:
    """A small file system that can be frozen."""
    image, mount = folder / "disk.img", folder / "disk"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(_DISK_MB << 20)
    run_tool(["mkfs.ext4", "-q", str(image)])
    run_tool(["mount", "-o", "loop", str(image), str(mount)])
    try:
        yield mount
    finally:
        run_tool(["umount", "-l", str(mount)])


# --- All runs.


def ranks_of(trainer: str) -> int:
    return _SPLIT.get(trainer, _RANKS)


def kill(ranks: Sequence[Process]) -> None:
    """All of them, also those that are stopped, or in a collective and heed nothing else."""
    for rank in ranks:
        if rank.status() is None:
            os.kill(rank.pid, signal.SIGKILL)


class Place(NamedTuple):
    """Where trainings of the lab run, and are watched."""

    folder: Path
    hosts: int
    testbed: Network
    monitor: Monitor

    def spec(self, trainer: str, **about: Any) -> RunSpec:
        """Of a training with as many ranks as it takes, and no other traffic. about: fields of it."""
        return RunSpec(
            *(self.folder / "data", trainer, self.hosts, tuple(range(ranks_of(trainer))), ()), cross_load=0.0, **about
        )


@contextlib.contextmanager
def place(trainers: Sequence[str], kept: Path | None = None) -> Iterator[Place]:
    """For these trainers. kept: where the dataset and the logs are in the end, `data` and `log`. Raises LabError."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="netmon-hang-")))
        folder.chmod(0o755)
        (folder / "log").mkdir()
        if kept:
            stack.callback(_keep, folder, kept)
        hosts = max(map(ranks_of, trainers))
        own = RunSpec(
            folder / "data", hosts=hosts, ring=tuple(range(hosts)), cross=(), cross_load=0.0, stream_ns=1_000_000
        )
        testbed = stack.enter_context(network(hosts, own.rate_bps))
        yield Place(folder, hosts, testbed, stack.enter_context(Monitor(own, testbed, folder / "log")))


def _keep(folder: Path, kept: Path) -> None:
    """What cannot be kept, as on a full disk, takes no result of hours along."""
    try:
        for own in (folder / name for name in ("data", "log")):
            if own.exists():
                shutil.copytree(own, kept / own.name)
    except OSError as error:
        _log.warning("cannot keep all of the dataset and the logs in %s: %s", kept, first_line(error))


def plan(spec: HangSpec) -> list[list[Injection]]:
    """The injections of each run. Every kind, rank and trainer is about as frequent; after the last one of a run the
    job does not resume."""
    random = np.random.default_rng(spec.seed)
    resuming = [kind for kind in spec.wanted if kind in _RESUMING]
    counts = dict.fromkeys(spec.wanted, 0)
    runs = []
    for number in range(spec.runs):
        trainer = spec.trainers[number % len(spec.trainers)]
        able = [kind for kind in spec.wanted if kind not in (*_RESUMING, *_UNABLE.get(trainer, ()))]
        kinds = [resuming[int(random.integers(len(resuming)))] for _ in range(_RESUMED if resuming else 0)]
        if able:
            kinds.append(min(able, key=lambda kind: counts[kind]))
            counts[kinds[-1]] += 1
        name = f"hang-{number}-{trainer}"
        runs.append([Injection(name, trainer, kind, int(random.integers(ranks_of(trainer)))) for kind in kinds])
    return [each for each in runs if each]


def measure(spec: HangSpec, progress: Progress = silent) -> HangResult:
    """Blocks, for about a minute per run. Ctrl-C ends it with what is there."""
    runs = plan(spec)
    result = HangResult(len(runs))
    with place(spec.trainers, spec.data) as lab:

        def do(some: list[Injection]) -> None:
            first = some[0]
            about = {"job": first.run, "parameters": 200_000, "compute_ns": 60_000_000, "iterations": 1_000_000}
            training = lab.spec(first.trainer, **about)
            own_folder = lab.folder / first.run
            (own_folder / "log").mkdir(parents=True)
            try:
                _Run(lab.testbed, lab.monitor, training, own_folder, result).do(some)
            finally:
                shutil.rmtree(own_folder, ignore_errors=True)

        def show(done: int) -> None:
            progress(done, len(runs), f"run {done + 1} of {len(runs)}, {len(result.outcomes)} injections")

        result.interrupted = in_turn({some[0].run: some for some in runs}, do, result.failed, show)
    return result
