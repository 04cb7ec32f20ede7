# SPDX-License-Identifier: Apache-2.0
"""What the lab leaves alongside its dataset: everything needed to read the data, and the truth.

One run (`netmon lab run`, `demo`) writes DATA/lab. A sweep writes the same for each of its runs, in
DATA/lab/runs/<run-id>, and all its runs share DATA's tables:
```
run.json      spec (what was requested: ring, pattern, model, size_scale, cross_load, …), layers, hosts with their
ranks,
              job, events with both clocks, outcome: "complete", "failed" or "interrupted". Of a single run also
              scores: each source that did not decide against the one that did (netmon.views.SourceScore)
              In a sweep also id, model, profile, level, repetition
injections.json  where something was injected: a list of what was done when (netmon.lab.injections.injector)
cross.json    a list: each sender's profile, ports, what it sent and when
layers.json   parameters of each tensor, as the trainers read them
rank-R.csv    the moments of every iteration of rank R, in CLOCK_MONOTONIC (trainers/script.py), and how often a timer
              of TCP had run out on its host until then, after a loss
log/          what the processes printed
```
In a sweep every run's job has a name of its own, its run.json says which (`iterations.job` tells the run).
DATA/lab/sweep.json holds the plan: what all runs share, and the list of them in their order, each with id, model,
profile, level, repetition and seed. A run without a run.json, or whose outcome is not "complete", does not count and is
done again under another job; its rows stay in the tables.
"""

import json
import shutil
import socket
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from netmon.errors import DataError
from netmon.lab.network import Network
from netmon.lab.process import Process
from netmon.lab.spec import PARALLEL_TRAINERS, RunSpec
from netmon.records import Table
from netmon.version import __version__
from netmon.views import RECENT, Cause

FOLDER = "lab"
RUNS = "runs"
SWEEP = "sweep.json"
INJECTIONS = "injections.json"
_READINGS = 5


def now() -> dict[str, int]:
    """This moment in both clocks, ns: the closest of a few readings, for a busy machine comes between the two."""
    readings = ((time.monotonic_ns(), time.time_ns(), time.monotonic_ns()) for _ in range(_READINGS))
    before, utc, after = min(readings, key=lambda reading: reading[2] - reading[0])
    return {"mono_ns": (before + after) // 2, "utc_ns": utc}


def utc_minus_mono_ns() -> int:
    """What to add to a time of CLOCK_MONOTONIC."""
    moment = now()
    return moment["utc_ns"] - moment["mono_ns"]


def prepare(data: Path, overwrite: bool) -> Path:
    """Make DATA/lab/log and return DATA/lab. Raises DataError where a dataset is and `overwrite` is not set.

    Overwriting removes netmon's own folders, nothing else.
    """
    own = (data / FOLDER, (data / RECENT).parent, *{day.parent for day in data.glob("*/date=*")})
    there = [folder for folder in own if folder.exists()]
    if there and not overwrite:
        raise DataError(f"cannot write a run to {data}: it holds one; choose another --data or give --overwrite")
    try:
        for folder in there:
            shutil.rmtree(folder)
        (data / FOLDER / "log").mkdir(parents=True)
    except OSError as error:
        raise DataError(f"cannot write a run to {data}: {error.strerror}: {error.filename}") from None
    return data / FOLDER


class Record:
    """run.json and cross.json of a run, written when the context is left, with how the run ended."""

    def __init__(self, folder: Path, spec: RunSpec, **labels: Any) -> None:
        """folder: with a folder log in it. labels: what else run.json is to say."""
        self.folder = folder
        self._events: list[dict[str, Any]] = []
        self._cross: list[dict[str, Any]] = []
        paths = {"data": str(spec.data)}
        paths |= {name: str(path) for name in ("cross_file", "generator") if (path := getattr(spec, name))}
        self._run: dict[str, Any] = {
            "netmon": __version__,
            "machine": socket.gethostname(),
            **labels,
            "spec": {**asdict(spec), **paths},
            "layers": spec.layer_sizes,
            "events": self._events,
        }

    def network(self, network: Network, ring: tuple[int, ...]) -> None:
        rank_of = {network.hosts[host].name: rank for rank, host in enumerate(ring)}
        self._run["hosts"] = [{**asdict(host), "rank": rank_of.get(host.name)} for host in network.hosts]
        self._run["congestion_control"] = network.congestion_control

    def job(self, job: str) -> None:
        """The name under which the training job appears in the dataset."""
        self._run["job"] = job

    def other_job(self, job: str, hosts: Sequence[str]) -> None:
        self._run.setdefault("other_jobs", []).append({"job": job, "hosts": list(hosts)})

    def scores(self, scores: list[dict[str, Any]]) -> None:
        """How the sources of iterations did against each other, as the collector had it last."""
        self._run["scores"] = scores

    def event(self, what: str, processes: Iterable[Process] = ()) -> None:
        """Something happened now; the processes are those it brought."""
        started = [
            {"name": p.name, "host": p.host.name if p.host else None, "pid": p.pid, "command": p.command}
            for p in processes
        ]
        self._events.append({"event": what, **now(), **({"processes": started} if started else {})})

    def cross(self, truth: dict[str, Any]) -> None:
        """One sender's truth; it may still be completed until the record is written."""
        self._cross.append(truth)

    def __enter__(self) -> "Record":
        self.event("start")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.event("end")
        outcome = "complete" if error is None else "interrupted" if kind is KeyboardInterrupt else "failed"
        self._run |= {"outcome": outcome, "error": str(error) if outcome == "failed" else None}
        for name, content in (("run.json", self._run), ("cross.json", self._cross)):
            (self.folder / name).write_text(json.dumps(content, indent=2) + "\n")


# --- What a run of the lab wrote down itself, read back.

_Numbers = npt.NDArray[np.int64]
_MOMENTS = (
    *("rank", "iteration", "step_start_ns", "first_enqueue_ns", "last_wait_ns", "step_end_ns", "interrupted"),
    *("timeouts", "busiest_bytes"),
)
MOMENTS = np.dtype([(name, "<i8") for name in _MOMENTS])
"""One iteration of one rank, in the machine's CLOCK_MONOTONIC. interrupted: the note may be later than the moment;
timeouts: how often a timer of TCP had run out on its host until then, after a loss; busiest_bytes: what the ranks that
exchanged most had to send or receive; 0: as much in each iteration."""

_MOST_OF = 0.9  # of undisturbed iterations: others may have been disturbed by something


class Run:
    """One run, or one job of a run. Whatever is not there or cannot be read raises DataError when it is read."""

    def __init__(self, folder: Path) -> None:
        """folder: DATA/lab, a run's of a sweep, or a job's."""
        self.folder = folder

    @cached_property
    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = self._json("run.json")
        return document

    @property
    def complete(self) -> bool:
        try:
            return bool(self.document["outcome"] == "complete")
        except (DataError, KeyError):
            return False

    @property
    def job(self) -> str:
        return str(self.document["job"])

    @property
    def spec(self) -> dict[str, Any]:
        spec: dict[str, Any] = self.document["spec"]
        return spec

    @property
    def to_utc_ns(self) -> int:
        """What to add to a time of CLOCK_MONOTONIC."""
        first = self.document["events"][0]
        return int(first["utc_ns"] - first["mono_ns"])

    @property
    def span_ns(self) -> tuple[int, int]:
        """When it began and ended, UTC; one that is not over ends never."""
        events = self.document["events"]
        ended = events[-1]["utc_ns"] if events[-1]["event"] == "end" else np.iinfo(np.int64).max
        return events[0]["utc_ns"], ended

    @property
    def address_of(self) -> dict[str, str]:
        return {host["name"]: host["address"] for host in self.document["hosts"]}

    @property
    def host_of(self) -> dict[int, str]:
        """Name of the host of each rank, by rank."""
        ranks = {host["rank"]: host["name"] for host in self.document["hosts"] if host["rank"] is not None}
        return dict(sorted(ranks.items()))

    def rank(self, rank: int) -> Table:
        """Iterations of one rank, dtype MOMENTS, shape (iterations,)."""
        try:
            path = self.folder / f"rank-{rank}.csv"
            found = np.loadtxt(path, dtype=np.int64, delimiter=",", skiprows=1, ndmin=2)
            table: Table = np.zeros(len(found), MOMENTS)
            for name, values in zip(_MOMENTS, found.T, strict=False):  # older runs have fewer
                table[name] = values
        except (OSError, ValueError) as error:
            raise DataError(f"cannot read the truth of rank {rank}: {error}") from None
        return table

    def cross(self) -> list[dict[str, Any]]:
        senders: list[dict[str, Any]] = self._json("cross.json")
        return senders

    def injections(self) -> list[dict[str, Any]]:
        injections: list[dict[str, Any]] = self._json(INJECTIONS)
        return injections

    def quiet_and_disturbed(self) -> tuple[_Numbers, _Numbers]:
        """Durations in ns of rank 0's steps that ended before any cross traffic, and of those wholly within it."""
        steps = self.rank(0)
        durations = steps["step_end_ns"] - steps["step_start_ns"]
        senders = [sender for sender in self.cross() if "ended" in sender]
        if not senders:
            return durations, durations[:0]
        begin = min(sender["started"]["mono_ns"] for sender in senders)
        end = max(sender["ended"]["mono_ns"] for sender in senders)
        within = (steps["step_start_ns"] >= begin) & (steps["step_end_ns"] <= end)
        return durations[steps["step_end_ns"] <= begin], durations[within]

    def _json(self, name: str) -> Any:
        try:
            return json.loads((self.folder / name).read_text())
        except (OSError, ValueError) as error:
            raise DataError(f"cannot read what the lab wrote down: {error}") from None


def sends_upwards(trainer: str) -> bool:
    """Our ring trainer sends to rank+1, gloo's ring (Horovod's and DDP's) to rank−1."""
    return trainer in ("ring", "nccl")


# --- Which iterations an injection hit, and by how much they took longer.


@dataclass(frozen=True)
class Truth:
    """One run. Arrays (iterations,): of the whole job, ns of UTC.

    An iteration begins with its first rank and ends with its last, and lasts as long as the slowest rank's. Of trainers
    that do not report their steps, it is from when the last gradient has come to the same of the next step, or of NCCL
    from when the first is handed over: that is what can be seen of them.
    """

    job: str
    trainer: str
    start_ns: _Numbers
    end_ns: _Numbers
    lasted_ns: _Numbers
    injections: tuple[dict[str, Any], ...]
    timeouts: _Numbers | None = None  # (iterations,): how often TCP's timers ran out on the ranks' hosts in each
    busiest_bytes: _Numbers | None = None  # (iterations,): of the ranks that exchanged most; None: as much in each
    computed_ns: _Numbers | None = None  # (ranks, iterations): from the beginning to the first gradient handed over

    @property
    def median_ns(self) -> float:
        """Median of the iterations that nothing was done to."""
        return float(np.median(self.undisturbed))

    @cached_property
    def undisturbed(self) -> _Numbers:
        """How long the iterations took that nothing was done to, after the first; all where there is none."""
        found: _Numbers = self.lasted_ns[self.quiet]
        return found

    @property
    def quiet(self) -> npt.NDArray[np.bool_]:
        """Which these are."""
        quiet = np.ones(len(self.start_ns), np.bool_)
        for each in self.injections:
            quiet[self.hit(each)] = False
        quiet[0] = False
        return quiet if quiet.any() else ~quiet

    @cached_property
    def as_much_ns(self) -> npt.NDArray[np.float64]:
        """(iterations,): how long each would have lasted with the bytes of a typical one. By a straight line through
        the iterations that nothing was done to, but for the longest."""
        if self.busiest_bytes is None:
            return self.lasted_ns.astype(np.float64)
        fit = self.quiet & (self.lasted_ns <= np.quantile(self.undisturbed, _MOST_OF))
        beyond = self.busiest_bytes - np.median(self.busiest_bytes[fit])
        slope = max(0.0, float(np.polyfit(beyond[fit], self.lasted_ns[fit], 1)[0]))
        return np.asarray(self.lasted_ns - slope * beyond)

    @cached_property
    def computed_more_ns(self) -> npt.NDArray[np.float64]:
        """(iterations,): how much longer than in a typical iteration some rank computed before its first gradient."""
        if self.computed_ns is None:
            return np.zeros(len(self.lasted_ns))
        more = self.computed_ns - np.median(self.computed_ns[:, self.quiet], axis=1)[:, None]
        return np.asarray(more.max(axis=0))

    def hit(self, injection: dict[str, Any]) -> npt.NDArray[np.intp]:
        """Iterations that were under way while it lasted."""
        until = injection["end_ns"] or np.iinfo(np.int64).max
        return np.flatnonzero((self.end_ns > injection["start_ns"]) & (self.start_ns < until))


def read_truth(data: Path) -> Truth:
    """Of a run's --data. Raises DataError where it is none, or nothing was injected."""
    run = Run(data / FOLDER)
    try:
        spec, injections = run.spec, run.injections()
    except DataError as error:
        raise DataError(f"cannot judge {data}: {error}; it takes the --data of `netmon lab run --inject …`") from None
    ranks = [run.rank(rank) for rank in range(len(spec["ring"]))]
    whole = min(len(rank) for rank in ranks)
    numbered = spec["trainer"] == "ring" or spec["marks"]
    begin, until = ("step_start_ns", "step_end_ns") if numbered else ("last_wait_ns", "last_wait_ns")
    begins, ends = ([rank[name][:whole] for rank in ranks] for name in (begin, until))
    total = np.sum([rank["timeouts"][:whole] for rank in ranks], axis=0)
    timeouts = np.diff(total, prepend=total[:1])
    busiest = ranks[0]["busiest_bytes"][:whole]
    first = [rank["first_enqueue_ns"][:whole] for rank in ranks]
    if not numbered:
        begins, ends = [each[:-1] for each in begins], [each[1:] for each in ends]
        timeouts, busiest, first = timeouts[1:], busiest[1:], [each[1:] for each in first]
    start, end = np.min(begins, axis=0), np.max(ends, axis=0)
    lasted = np.max(np.subtract(ends, begins), axis=0)
    described = tuple({**each, "other_ends": _other_ends(each, run)} for each in injections)
    for each in described:
        if each["cause"] == Cause.CHANGE.name.lower():  # it is not undone: its iterations are those from there on
            each["end_ns"] = None
    start, end = start + run.to_utc_ns, end + run.to_utc_ns
    varies = busiest if busiest.any() else None
    computed = np.subtract(first, begins)
    return Truth(run.job, spec["trainer"], start, end, lasted, described, timeouts, varies, computed)


def _other_ends(injection: dict[str, Any], run: Run) -> list[str]:
    """Whom the link of an injection connects to whom, besides its own host: of a ring, one neighbour."""
    spec, host_of = run.spec, run.host_of
    own = next((rank for rank, name in host_of.items() if name == injection["host"]), None)
    if own is None or not injection["direction"]:
        return []
    if spec["pattern"] != "ring" or spec["trainer"] in PARALLEL_TRAINERS:
        return [name for rank, name in host_of.items() if rank != own]
    forwards = sends_upwards(spec["trainer"]) == (injection["direction"] == "tx")
    return [host_of[(own + (1 if forwards else -1)) % len(host_of)]]
