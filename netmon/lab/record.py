# SPDX-License-Identifier: Apache-2.0
"""What the lab leaves alongside its dataset: everything needed to read the data, and the truth.

One run (`netmon lab run`, `demo`) writes DATA/lab. A sweep writes the same for each of its runs, in
DATA/lab/runs/<run-id>, and all its runs share DATA's tables:
```
run.json      spec (what was asked: ring, pattern, model, size_scale, cross_load, …), layers, hosts with their ranks,
              job, events with both clocks, outcome: "complete", "failed" or "interrupted". Of a single run also
              scores: each source that did not decide against the one that did (netmon.views.SourceScore)
              In a sweep also id, model, profile, level, repetition
injections.json  where something was injected: a list of what was done when (netmon.lab.injections.injector)
cross.json    a list: each sender's profile, ports, what it sent and when
layers.json   parameters of each tensor, as the trainers read them
rank-R.csv    the moments of every iteration of rank R, in CLOCK_MONOTONIC (trainers/script.py)
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
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from netmon.errors import DataError
from netmon.lab.network import Network
from netmon.lab.process import Process
from netmon.lab.spec import RunSpec
from netmon.version import __version__

FOLDER = "lab"
RUNS = "runs"
SWEEP = "sweep.json"
INJECTIONS = "injections.json"
_READINGS = 5
_TABLES = ("buckets", "flows", "iterations", "ledger", "nic")


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
    there = [data / name for name in (*_TABLES, FOLDER) if (data / name).exists()]
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
        """Which host has which address and rank."""
        rank_of = {network.hosts[host].name: rank for rank, host in enumerate(ring)}
        self._run["hosts"] = [{**asdict(host), "rank": rank_of.get(host.name)} for host in network.hosts]
        self._run["congestion_control"] = network.congestion_control

    def job(self, job: str) -> None:
        """The name under which the training job appears in the dataset."""
        self._run["job"] = job

    def other_job(self, job: str, hosts: Sequence[str]) -> None:
        """Another job that trains meanwhile, and where."""
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
        """The run starts."""
        self.event("start")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Write both files."""
        self.event("end")
        outcome = "complete" if error is None else "interrupted" if kind is KeyboardInterrupt else "failed"
        self._run |= {"outcome": outcome, "error": str(error) if outcome == "failed" else None}
        for name, content in (("run.json", self._run), ("cross.json", self._cross)):
            (self.folder / name).write_text(json.dumps(content, indent=2) + "\n")
