# SPDX-License-Identifier: Apache-2.0
"""The iterations that netmon found, held against the trainers' own log of the same run, source by source."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from netmon.lab.record import FOLDER
from netmon.lab.truth import lasted, read_rank

_MOMENTS = {
    "step_start": ("start_ns", "step_start_ns"),
    "first_enqueue": ("comm_start_ns", "first_enqueue_ns"),
    "last_wait": ("comm_end_ns", "last_wait_ns"),
    "step_end": ("end_ns", "step_end_ns"),
}
"""moment → column of the dataset, column of the log"""
_INFERRED = "inferred"


@dataclass(frozen=True)
class MomentErrors:
    """How far the dataset's times of one moment are from the log's, over all ranks and iterations.

    Where the scheduler came between the moment and its note, the log itself is late, by as much as the machine was
    busy: those are left out and counted.
    """

    moment: str
    errors_ns: npt.NDArray[np.int64]  # absolute
    left_out: int

    def percentile(self, share: float) -> float:
        """ns; share: 0 to 100."""
        return float(np.percentile(self.errors_ns, share))


@dataclass(frozen=True)
class Accuracy:
    """What one source told about one run."""

    source: str
    logged: int  # iterations, over all ranks
    found: int  # of them, in the dataset
    invented: int  # in the dataset, and in no log
    moments: tuple[MomentErrors, ...]


def accuracy(data: Path, folder: Path | None = None) -> tuple[Accuracy, ...]:
    """One for each source in the dataset. data: what a watched run left. folder: a sweep's run's.

    Iterations are the same if rank and number are; where only the traffic told, and with relative numbers, if the
    logged communication began nearest to theirs. Empty where no source told of any iteration. Raises DataError where
    there is no log.
    """
    if not (data / "iterations").exists():
        return ()
    run = json.loads(((folder or data / FOLDER) / "run.json").read_text())
    iterations = _of_run(pd.read_parquet(data / "iterations"), run)
    to_utc = run["events"][0]["utc_ns"] - run["events"][0]["mono_ns"]
    ranks = [host["rank"] for host in run["hosts"] if host["rank"] is not None]
    log = pd.concat([pd.DataFrame(read_rank(data, rank, folder)) for rank in ranks])
    by_source = iterations.groupby("source", observed=True)
    return tuple(_accuracy(str(source), log, found, to_utc) for source, found in by_source)


def _of_run(iterations: pd.DataFrame, run: dict[str, Any]) -> pd.DataFrame:
    """The iterations of the run's job, and those that only the traffic told of while it ran."""
    begun, ended = lasted(run)
    inferred = (iterations["source"] == _INFERRED) & iterations["start_ns"].between(begun, ended)
    ours: pd.DataFrame = iterations[(iterations["job"] == run["job"]) | inferred]
    return ours


def _accuracy(source: str, log: pd.DataFrame, iterations: pd.DataFrame, to_utc: int) -> Accuracy:
    numbered = source != _INFERRED and not iterations["relative"].any()
    both = log.merge(iterations, on=["rank", "iteration"]) if numbered else _nearest(log, iterations, to_utc)
    errors = (_errors(both, moment, *columns, to_utc) for moment, columns in _MOMENTS.items())
    moments = tuple(each for each in errors if len(each.errors_ns))
    return Accuracy(source, len(log), len(both), len(iterations) - len(both), moments)


def _nearest(log: pd.DataFrame, iterations: pd.DataFrame, to_utc: int) -> pd.DataFrame:
    """Pairs whose communication began at most half an iteration apart, each iteration in one of them at most."""
    begun = iterations["comm_start_ns"].fillna(iterations["start_ns"]).astype("int64") - to_utc
    ours = (
        log.drop(columns="iteration").assign(begun_ns=log["first_enqueue_ns"].astype("int64")).sort_values("begun_ns")
    )
    theirs = iterations.assign(begun_ns=begun, rank=iterations["rank"].astype("int64")).sort_values("begun_ns")
    reach = int((log["step_end_ns"] - log["step_start_ns"]).median() / 2)
    pairs = pd.merge_asof(ours, theirs, on="begun_ns", by="rank", direction="nearest", tolerance=reach)
    return pairs[pairs["start_ns"].notna()].drop_duplicates(["rank", "start_ns"])


def _errors(both: pd.DataFrame, moment: str, column: str, noted: str, to_utc: int) -> MomentErrors:
    known = both[both[column].notna()]
    if column in ("start_ns", "end_ns"):  # whose moment depends on who told
        known = known[known[column.replace("_ns", "_moment")] == moment]
    at_once = known[known["interrupted"] == 0]
    errors = np.abs(at_once[column].to_numpy(np.int64) - to_utc - at_once[noted].to_numpy(np.int64))
    return MomentErrors(moment, errors, len(known) - len(at_once))
