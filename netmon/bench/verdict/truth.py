# SPDX-License-Identifier: Apache-2.0
"""What a run's trainers and its injector wrote down: which iterations were hit, and by how much they took longer."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from netmon.errors import DataError
from netmon.lab.injections.injector import FILE
from netmon.lab.labelled import sends_upwards
from netmon.lab.record import FOLDER
from netmon.lab.truth import read_rank
from netmon.views import Cause

_Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Truth:
    """One run. Arrays (iterations,): of the whole job, ns of UTC.

    An iteration begins with its first rank and ends with its last, and lasts as long as the slowest rank's. Of trainers
    that do not report their steps, it is from when the last gradient has come to the same of the next step: that is
    what can be seen of them.
    """

    job: str
    trainer: str
    start_ns: _Numbers
    end_ns: _Numbers
    lasted_ns: _Numbers
    injections: tuple[dict[str, Any], ...]

    @property
    def median_ns(self) -> float:
        """Median of the iterations that nothing was done to."""
        return float(np.median(self.undisturbed))

    @cached_property
    def undisturbed(self) -> _Numbers:
        """How long the iterations took that nothing was done to, after the first; all where there is none."""
        quiet = np.ones(len(self.start_ns), np.bool_)
        for each in self.injections:
            quiet[self.hit(each)] = False
        quiet[0] = False
        found: _Numbers = self.lasted_ns[quiet if quiet.any() else slice(None)]
        return found

    def hit(self, injection: dict[str, Any]) -> npt.NDArray[np.intp]:
        """Iterations that were under way while it lasted."""
        until = injection["end_ns"] or np.iinfo(np.int64).max
        return np.flatnonzero((self.end_ns > injection["start_ns"]) & (self.start_ns < until))


def complete(data: Path) -> bool:
    """Whether a run lies there that came to its end."""
    try:
        outcome: str = json.loads((data / FOLDER / "run.json").read_text())["outcome"]
    except (OSError, ValueError, KeyError):
        return False
    return outcome == "complete"


def read_truth(data: Path) -> Truth:
    """Of a run's --data. Raises DataError where it is none, or nothing was injected."""
    try:
        run = json.loads((data / FOLDER / "run.json").read_text())
        injections = json.loads((data / FOLDER / FILE).read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"cannot judge {data}: {error}; it takes the --data of `netmon lab run --inject …`") from None
    to_utc = run["events"][0]["utc_ns"] - run["events"][0]["mono_ns"]
    ranks = [read_rank(data, rank) for rank in range(len(run["spec"]["ring"]))]
    whole = min(len(rank) for rank in ranks)
    spec = run["spec"]
    numbered = spec["trainer"] == "ring" or spec["marks"]
    begin, until = ("step_start_ns", "step_end_ns") if numbered else ("last_wait_ns", "last_wait_ns")
    begins, ends = ([rank[name][:whole] for rank in ranks] for name in (begin, until))
    if not numbered:
        begins, ends = [each[:-1] for each in begins], [each[1:] for each in ends]
    start, end = np.min(begins, axis=0), np.max(ends, axis=0)
    lasted = np.max(np.subtract(ends, begins), axis=0)
    described = tuple({**each, **_lasting(each), "other_ends": _other_ends(each, run)} for each in injections)
    return Truth(run["job"], spec["trainer"], start + to_utc, end + to_utc, lasted, described)


def _lasting(injection: dict[str, Any]) -> dict[str, Any]:
    """A change of the job is not undone: its iterations are those from there on."""
    return {"end_ns": None} if injection["cause"] == Cause.CHANGE.name.lower() else {}


def _other_ends(injection: dict[str, Any], run: dict[str, Any]) -> list[str]:
    """Whom the link of an injection connects to whom, besides its own host: of a ring, one neighbour."""
    spec = run["spec"]
    host_of = {host["rank"]: host["name"] for host in run["hosts"] if host["rank"] is not None}
    own = next((rank for rank, name in host_of.items() if name == injection["host"]), None)
    if own is None or not injection["direction"]:
        return []
    if spec["pattern"] != "ring":
        return [name for rank, name in host_of.items() if rank != own]
    forwards = sends_upwards(spec["trainer"]) == (injection["direction"] == "tx")
    return [host_of[(own + (1 if forwards else -1)) % len(host_of)]]
