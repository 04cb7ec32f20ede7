# SPDX-License-Identifier: Apache-2.0
"""What a run leaves beside its dataset: DIR/lab, with everything needed to read the data, and the truth."""

import json
import shutil
import socket
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

import netmon
from netmon.errors import DataError
from netmon.lab.network import Network
from netmon.lab.process import Process
from netmon.lab.spec import RunSpec

FOLDER = "lab"
_TABLES = ("buckets", "flows", "iterations", "ledger")


def now() -> dict[str, int]:
    """This moment in both clocks, ns."""
    return {"mono_ns": time.monotonic_ns(), "utc_ns": time.time_ns()}


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

    def __init__(self, folder: Path, spec: RunSpec) -> None:
        """folder: as prepare() made it."""
        self._folder = folder
        self._events: list[dict[str, Any]] = []
        self._cross: list[dict[str, Any]] = []
        self._run: dict[str, Any] = {
            "netmon": netmon.__version__,
            "machine": socket.gethostname(),
            "spec": {**asdict(spec), "data": str(spec.data)},
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
            (self._folder / name).write_text(json.dumps(content, indent=2) + "\n")
