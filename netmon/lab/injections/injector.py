# SPDX-License-Identifier: Apache-2.0
"""Does to a training what its spec says, at the moments that it says, and writes down what was done when.

DATA/lab/injections.json holds the truth: a list of what was begun, in order, each with
```
kind, cause       as requested; the cause in a verdict's words, "" for nothing
start_ns, end_ns  UTC; end_ns null where the training ended first
host, hosts       names: of the rank or link that was hurt; of all that took part
rank              that was stopped or had no CPU, or that transferred something itself, else null
processes         programs of cross traffic
job               the other job's name, else ""
far               address and port of the file server that a rank transferred to or from; of no other kind
strength, at, duration_ns, direction
```
"""

import contextlib
import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from netmon.errors import LabError
from netmon.lab.injections import programs
from netmon.lab.injections.spec import BY_TRAINER, FILE_PORT, TRANSFERS, Injection
from netmon.lab.network import INTERFACE, Host, Network, Quota, own_group, run_lines, shaping, throttle
from netmon.lab.process import PRIORITY, Process
from netmon.lab.record import INJECTIONS, Record, utc_minus_mono_ns
from netmon.lab.spec import RunSpec
from netmon.lab.traffic.cross import CrossTraffic
from netmon.lab.traffic.profiles import Offer
from netmon.lab.training import Training
from netmon.records import Direction

# --- A link of the testbed made worse: slower, with a shorter queue, or with loss.

_RANDOM = 0xFFFFF038  # SKF_AD_OFF + SKF_AD_RANDOM of linux/filter.h
_PASS, _DROP = 0xFFFFFFFF, 2  # TC_ACT_UNSPEC, TC_ACT_SHOT


def slow(network: Network, host: int, direction: int, share: float) -> None:
    """Leave a link this share of its rate, from now on; 1 undoes it. Raises LabError."""
    if direction == Direction.RX:
        _shape_port(network, host, share)
        return
    shape = shaping(network.rate_bps)
    limits = f"rate {_rate(network, share)} burst {shape.burst_bytes} limit {shape.host_limit}"
    run_lines("tc", network.hosts[host].namespace, [f"qdisc change dev {INTERFACE} root tbf {limits}"])


def _shape_port(network: Network, host: int, share: float = 1.0, queue: float = 1.0) -> None:
    """Leave the switch's port to a host these shares of its rate and of its queue. Raises LabError.

    A queue holds a super-packet at least: then what is more than the rate is dropped, as a policer does.
    """
    shape = shaping(network.rate_bps)
    limit = max(shape.super_packet, round(shape.port_limit * queue))
    limits = f"rate {_rate(network, share)} burst {shape.burst_bytes} limit {limit}"
    _on_switch(network, f"qdisc change dev port{host} root tbf {limits}")


def _rate(network: Network, share: float) -> str:
    return f"{max(8000, round(network.rate_bps * share))}bit"


def lose(network: Network, host: int, direction: int, share: float) -> None:
    """Drop this share of a host's super-packets, on the switch, from now on. Raises LabError."""
    where = "ingress" if direction == Direction.TX else "egress"
    threshold = round(share * (1 << 32))
    program = f"4,32 0 0 {_RANDOM},37 0 1 {threshold},6 0 0 {_PASS},6 0 0 {_DROP}"
    _on_switch(
        network,
        f"qdisc add dev port{host} clsact",
        f'filter add dev port{host} {where} bpf direct-action bytecode "{program}"',
    )


def _on_switch(network: Network, *lines: str) -> None:
    run_lines("tc", network.lease.namespace("switch"), lines)


# --- How each kind is begun and ended. What takes CPU time to start is started before the training.

_CROSS_PORT = 5301
_JOB_PORT = 30_500
_JOB_PORTS = 200  # of one job
_MOST_ITERATIONS = 1_000_000
_READY_SECONDS = 30.0
_GRACE_SECONDS = 0.1
_STANDING_BY = 86_400


class Action:
    """One injection's doing. Moments are CLOCK_MONOTONIC in ns. hosts: names of all that take part."""

    hosts: Sequence[str] = ()

    def begin(self, training: Training) -> int:
        """Begin; returns when it began. Raises LabError."""
        raise NotImplementedError

    def end(self) -> int:
        """Undo it; returns when it ended. Raises LabError."""
        self.close()
        return time.monotonic_ns()

    def close(self) -> None:
        """Undo what is left, after the training or instead of end()."""

    def truth(self) -> dict[str, Any]:
        return {"hosts": list(self.hosts)}


@dataclass(frozen=True)
class RunContext:
    spec: RunSpec
    network: Network
    record: Record

    @property
    def logs(self) -> Path:
        return self.record.folder / "log"

    def host_of(self, rank: int) -> Host:
        return self.network.hosts[self.spec.ring[rank]]


def action(number: int, injection: Injection, where: RunContext) -> Action:
    """What does an injection. number: its place among the run's. Blocks while what it needs gets ready."""
    kind = injection.kind
    if kind == "cross":
        return _Cross(number, injection, where)
    if kind == "job":
        return _Job(number, injection, where)
    if kind in ("stop", "stop-all", "hog"):
        return _Script(number, injection, where)
    if kind == "quota":
        return _Throttled(injection, where)
    if kind in TRANSFERS:
        return _Transferred(number, injection, where)
    if kind in BY_TRAINER:
        return _Request(injection, where)
    return _Changed(injection, where.network)


class _Cross(Action):
    def __init__(self, number: int, injection: Injection, where: RunContext) -> None:
        source, target = (where.network.hosts[end] for end in (injection.source, injection.target))
        rate, seed = where.network.rate_bps, where.spec.seed + number
        offer = Offer(target.address, _CROSS_PORT + number, injection.effective_strength * rate, rate, seed)
        name = f"injected-{number}"
        self._cross = CrossTraffic(name, injection.profile, source, target, offer, where.logs, PRIORITY, waiting=True)
        self._record = where.record
        self.hosts = (source.name, target.name)
        self._programs: list[str] = []

    def begin(self, training: Training) -> int:
        self._record.cross(self._cross.truth)
        self._cross.begin()
        began: int = self._cross.truth["started"]["mono_ns"]
        return began

    def end(self) -> int:
        self._programs = sorted({_name_of(process.pid) for process in self._cross.processes})
        self._cross.stop()
        ended: int = self._cross.truth["ended"]["mono_ns"]
        return ended

    def close(self) -> None:
        with contextlib.suppress(Exception):  # what the sender sent is recorded if it can be
            self._cross.stop()
        self._cross.__exit__(None, None, None)

    def truth(self) -> dict[str, Any]:
        return super().truth() | {"processes": self._programs, "bytes_sent": self._cross.truth.get("bytes_sent")}


class _Job(Action):
    """Another training job. After its first iteration its ranks are stopped until it is due; they train, then end.

    They are not stopped again: to a stopped process the kernel goes on to deliver, for a second or more.
    """

    def __init__(self, number: int, injection: Injection, where: RunContext) -> None:
        self.job = f"injected-{number}"
        folder = where.record.folder / self.job
        (folder / "log").mkdir(parents=True)
        self._logs = where.logs
        self.hosts = [where.network.hosts[host].name for host in injection.hosts]
        spec = replace(
            where.spec,
            trainer="ring",
            job=self.job,
            ring=injection.hosts,
            parameters=injection.parameters,
            layers=(),
            compute_ns=20_000_000,
            backward_share=0.0,
            iterations=_MOST_ITERATIONS,
            injections=(),
        )
        self._training = Training(spec, where.network, folder, port=_JOB_PORT + number * _JOB_PORTS)
        self._guard: Process | None = None
        try:
            deadline = time.monotonic() + _READY_SECONDS
            while not self._training.iterations_done() and time.monotonic() < deadline:
                self._training.finished()
                time.sleep(0.02)
            self._hold()
        except BaseException:
            self.close()
            raise
        where.record.other_job(self.job, self.hosts)

    def begin(self, training: Training) -> int:
        return self._let_go()

    def close(self) -> None:
        self._let_go()
        for rank in self._training.ranks:
            rank.request_stop()
        self._training.__exit__(None, None, None)

    def truth(self) -> dict[str, Any]:
        return super().truth() | {"job": self.job}

    def _hold(self) -> None:
        ranks = [str(rank.pid) for rank in self._training.ranks]
        command = [*PRIORITY, *_program("stop"), str(_STANDING_BY), *ranks]
        self._guard = Process(f"{self.job}-stopped", command, self._logs)
        self._guard.wait_output(r"begun (\d+)", _READY_SECONDS)

    def _let_go(self) -> int:
        began_ns = time.monotonic_ns()  # they go on while their guard ends
        if self._guard:
            self._guard.end()
            self._guard = None
        return began_ns


class _Script(Action):
    """A process that stops ranks or keeps a CPU busy, for as long as it was set to, or until SIGTERM."""

    def __init__(self, number: int, injection: Injection, where: RunContext) -> None:
        self._number, self._injection, self._where = number, injection, where
        self._process: Process | None = None
        self.hosts = [where.host_of(injection.rank).name] if injection.rank >= 0 else []

    def begin(self, training: Training) -> int:
        injection = self._injection
        seconds, loops = str(injection.duration_ns / 1e9), str(round(injection.effective_strength))
        ranks = range(len(training.ranks)) if injection.kind == "stop-all" else [injection.rank]
        if injection.kind == "hog":  # who is hurt, then who is on other hosts
            ranks = sorted(range(len(training.ranks)), key=lambda rank: rank != injection.rank)
        pids = [str(training.ranks[rank].pid) for rank in ranks]
        what = ["stop", seconds] if injection.kind != "hog" else ["busy", loops, seconds]
        # Hogs are of the rank's host, as other services there are; who stops ranks is nobody's.
        host = self._where.host_of(injection.rank) if injection.kind == "hog" else None
        command = [*PRIORITY, *_program(*what), *pids]
        self._process = Process(f"injected-{self._number}", command, self._where.logs, host=host)
        return int(self._process.wait_output(r"begun (\d+)", _READY_SECONDS)[1])

    def end(self) -> int:
        assert self._process, "ended before it was begun"
        deadline = time.monotonic() + _GRACE_SECONDS  # it knows best when its time is over
        while self._process.status() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        self._process.end()
        ended = re.search(r"ended (\d+)", self._process.output())
        return int(ended[1]) if ended else time.monotonic_ns()

    def close(self) -> None:
        if self._process:
            self._process.end()


class _Throttled(Action):
    def __init__(self, injection: Injection, where: RunContext) -> None:
        self._injection, self._where = injection, where
        self._quota: Quota | None = None
        self.hosts = [where.host_of(injection.rank).name]

    def begin(self, training: Training) -> int:
        process = training.ranks[self._injection.rank].pid
        self._quota = throttle(self._where.network.lease.run, process, self._injection.effective_strength)
        return time.monotonic_ns()

    def close(self) -> None:
        if self._quota:
            self._quota.end()
            self._quota = None


_Change = Callable[[Network, Injection], None]
_CHANGES: dict[str, tuple[_Change, _Change]] = {
    "slow-link": (
        lambda network, its: slow(network, its.host, its.direction, its.effective_strength),
        lambda network, its: slow(network, its.host, its.direction, 1.0),
    ),
    "small-queue": (
        lambda network, its: _shape_port(network, its.host, queue=its.effective_strength),
        lambda network, its: _shape_port(network, its.host),
    ),
    "policer": (
        lambda network, its: _shape_port(network, its.host, its.effective_strength, queue=0.0),
        lambda network, its: _shape_port(network, its.host),
    ),
    "loss": (
        lambda network, its: lose(network, its.host, its.direction, its.effective_strength),
        lambda network, its: _on_switch(network, f"qdisc del dev port{its.host} clsact"),
    ),
    "nothing": (lambda network, its: None, lambda network, its: None),
}


class _Changed(Action):
    """A link that is made worse, and better again; or nothing at all."""

    def __init__(self, injection: Injection, network: Network) -> None:
        host = injection.host
        self._do, self._undo = _CHANGES[injection.kind]
        self._injection, self._network = injection, network
        self.hosts = [network.hosts[host].name] if host >= 0 else []
        self._begun = False

    def begin(self, training: Training) -> int:
        began = time.monotonic_ns()
        self._begun = True
        self._do(self._network, self._injection)
        return began

    def close(self) -> None:
        if self._begun:
            self._begun = False
            self._undo(self._network, self._injection)


class _Request(Action):
    """A pause that the script itself makes; its moments are in the script's output. A changed batch is not undone."""

    def __init__(self, injection: Injection, where: RunContext) -> None:
        self._after, self._kind = int(injection.at), injection.kind
        self._duration, self._rank = injection.duration_ns, injection.rank
        self.hosts = [where.host_of(injection.rank).name] if injection.cause == "straggler" else []
        self._begun = 0

    def begin(self, training: Training) -> int:
        line = training.ranks[self._rank if self.hosts else 0].wait_output(
            rf"paused {self._kind} {self._after} (\d+) (\d+)", self._duration / 1e9 + _READY_SECONDS
        )
        self._begun, self._ended = int(line[1]), int(line[2])
        if self._kind == "batch":
            self._ended = self._begun + self._duration
        return self._begun

    def end(self) -> int:
        return self._ended


class _Transferred(Action):
    """What a rank transfers itself; its moments are in the rank's output, and a file server stands by."""

    def __init__(self, number: int, injection: Injection, where: RunContext) -> None:
        self._injection = injection
        rank, server = where.host_of(injection.rank), where.network.hosts[injection.target]
        self.hosts, self._far = [rank.name, server.name], f"{server.address}:{FILE_PORT + number}"
        command = [*PRIORITY, *_program("serve", *self._far.split(":"))]
        self._server = Process(f"injected-{number}", command, where.logs, host=server)
        self._server.wait_output("ready", _READY_SECONDS)
        self._rank: Process | None = None
        self._programs: list[str] = []

    def begin(self, training: Training) -> int:
        self._rank = training.ranks[self._injection.rank]
        self._programs = [_name_of(self._rank.pid)]
        return self._moment("begun")

    def end(self) -> int:
        return self._moment("ended")

    def close(self) -> None:
        self._server.end()

    def truth(self) -> dict[str, Any]:
        return super().truth() | {"host": self.hosts[0], "processes": self._programs, "far": self._far}

    def _moment(self, what: str) -> int:
        assert self._rank, "ended before it was begun"
        pattern = rf"transfer {re.escape(str(self._injection.at))} {what} (\d+)"
        return int(self._rank.wait_output(pattern, _READY_SECONDS)[1])


def _program(*words: str) -> list[str]:
    return [sys.executable, "-I", "-S", programs.__file__, *words]


def _name_of(process: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/comm").read_text().strip()
    return ""


# --- injector

_LOOK_SECONDS = 0.01
_UNDONE_SECONDS = 5.0
_TOOK = re.compile(r"^iteration \d+ took ([\d.]+) s$", re.MULTILINE)


@dataclass
class _Injected:
    number: int
    injection: Injection
    action: Action
    began_ns: int = 0
    ended_ns: int = 0


class Injector(AbstractContextManager["Injector"]):
    """The injections of one run; leaving the context undoes what is not undone, and writes the truth."""

    def __init__(self, spec: RunSpec, network: Network, record: Record) -> None:
        """Get ready what takes CPU time to start; blocks. Raises LabError."""
        self._where = RunContext(spec, network, record)
        self._all: list[_Injected] = []
        self._moved = threading.Condition()
        self._done, self._baseline_s = 0, 0.0
        self._over = False
        self._failure: Exception | None = None
        try:
            for number, each in enumerate(spec.injections):
                self._all.append(_Injected(number, each, action(number, each, self._where)))
        except BaseException:
            self._close()
            raise

    @contextlib.contextmanager
    def during(self, training: Training) -> Iterator[None]:
        """Inject while the context is open. Raises LabError where a rank cannot be given a control group."""
        for rank in {each.injection.rank for each in self._all if each.injection.kind == "quota"}:
            own_group(self._where.network.lease.run, training.ranks[rank].pid)
        threads = [threading.Thread(target=self._inject, args=(each, training), daemon=True) for each in self._all]
        if threads:
            threads.append(threading.Thread(target=self._follow, args=(training,), daemon=True))
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            with self._moved:
                self._over = True
                self._moved.notify_all()
            for thread in threads:  # they undo what they did: a stopped rank could not end
                thread.join(_UNDONE_SECONDS)

    def check(self) -> None:
        """Raise what an injection failed with."""
        if self._failure:
            raise self._failure

    def __exit__(self, *exception: object) -> None:
        self._close()
        if self._all:
            (self._where.record.folder / INJECTIONS).write_text(json.dumps(self._truth(), indent=2) + "\n")

    def _follow(self, training: Training) -> None:
        """Notify the threads how far rank 0 is."""
        took: list[float] = []
        with training.ranks[0].log.open(errors="replace") as log:
            rest = ""
            while not self._over:
                rest += log.read()
                lines, _, rest = rest.rpartition("\n")
                took += [float(seconds) for seconds in _TOOK.findall(lines)]
                if len(took) > self._done:
                    with self._moved:
                        self._done, self._baseline_s = len(took), sorted(took)[len(took) // 2]
                        self._moved.notify_all()
                time.sleep(_LOOK_SECONDS)

    def _inject(self, each: _Injected, training: Training) -> None:
        try:
            if not self._wait(each.injection.at):
                return
            each.began_ns = each.action.begin(training)
            self._rest(each.injection.duration_ns / 1e9)
            each.ended_ns = each.action.end()
        except LabError as error:
            if not self._over:
                self._failure = error

    def _wait(self, at: float) -> bool:
        """Whether the moment has come; False: the training has ended before."""
        with self._moved:
            self._moved.wait_for(lambda: self._over or self._done >= int(at))
        return not self._over and not self._rest((at - int(at)) * self._baseline_s)

    def _rest(self, seconds: float) -> bool:
        """Whether the training has ended meanwhile."""
        with self._moved:
            return self._moved.wait_for(lambda: self._over, seconds)

    def _close(self) -> None:
        for each in self._all:
            each.action.close()

    def _truth(self) -> list[dict[str, Any]]:
        to_utc = utc_minus_mono_ns()
        begun = sorted((each for each in self._all if each.began_ns), key=lambda each: each.began_ns)
        return [self._described(each, to_utc) for each in begun]

    def _described(self, each: _Injected, to_utc: int) -> dict[str, Any]:
        injection, truth = each.injection, each.action.truth()
        known = {"processes": [], "job": "", **truth}
        return {
            "number": each.number,
            "kind": injection.kind,
            "cause": injection.cause,
            "start_ns": each.began_ns + to_utc,
            "end_ns": each.ended_ns + to_utc if each.ended_ns else None,
            "host": known["hosts"][0] if len(known["hosts"]) == 1 else "",
            "rank": injection.rank if injection.rank >= 0 else None,
            "strength": injection.effective_strength,
            "at": injection.at,
            "duration_ns": injection.duration_ns,
            "direction": injection.way if injection.host >= 0 else "",
            **known,
        }
