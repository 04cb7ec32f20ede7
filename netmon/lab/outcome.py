# SPDX-License-Identifier: Apache-2.0
"""What a run or a sweep came to, by the trainers' and senders' own words, as one JSON document."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow.dataset as ds

from netmon.dl.classify import ring_bytes
from netmon.history.dataset import Tables, all_of
from netmon.lab.record import FOLDER, RUNS, Run
from netmon.lab.sweep import read_sweep
from netmon.records import CLASS_NAMES, Class

# --- The iterations that netmon found, compared with the trainers' own log of the same run, source by source.

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
    source: str
    logged: int  # iterations, over all ranks
    found: int  # of them, in the dataset
    invented: int  # in the dataset, and in no log
    moments: tuple[MomentErrors, ...]


def accuracy(tables: Tables, run: Run) -> tuple[Accuracy, ...]:
    """One for each source in the dataset. tables: what a watched run left.

    Iterations are the same if rank and number are; where only the traffic showed, and with relative numbers, if the
    logged communication began nearest to theirs. Empty where no source reported any iteration. Raises DataError where
    there is no log.
    """
    iterations = tables.read("iterations")
    begun, ended = run.span_ns
    inferred = (iterations["source"] == _INFERRED) & iterations["start_ns"].between(begun, ended)
    ours = iterations[(iterations["job"] == run.job) | inferred]  # or what only the traffic showed while it ran
    if ours.empty:
        return ()
    log = pd.concat([pd.DataFrame(run.rank(rank)) for rank in run.host_of])
    by_source = ours.groupby("source")
    return tuple(_of_source(str(source), log, found, run.to_utc_ns) for source, found in by_source)


def _of_source(source: str, log: pd.DataFrame, iterations: pd.DataFrame, to_utc: int) -> Accuracy:
    numbered = source != _INFERRED and not iterations["relative"].astype(bool).any()
    both = log.merge(iterations, on=["rank", "iteration"]) if numbered else _nearest(log, iterations, to_utc)
    errors = (_errors(both, moment, *columns, to_utc) for moment, columns in _MOMENTS.items())
    moments = tuple(each for each in errors if len(each.errors_ns))
    return Accuracy(source, len(log), len(both), len(iterations) - len(both), moments)


def _nearest(log: pd.DataFrame, iterations: pd.DataFrame, to_utc: int) -> pd.DataFrame:
    """Pairs whose communication began within half an iteration of each other, each iteration in at most one of them."""
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
    if column in ("start_ns", "end_ns"):  # whose moment depends on the source
        known = known[known[column.replace("_ns", "_moment")] == moment]
    at_once = known[known["interrupted"] == 0]
    errors = np.abs(at_once[column].to_numpy(np.int64) - to_utc - at_once[noted].to_numpy(np.int64))
    return MomentErrors(moment, errors, len(known) - len(at_once))


# --- The classes that netmon gave to the bytes of a run, compared with the lab's own knowledge of who sent them.

_FLOW = ["host", "session", "flow_id"]
_DL = (CLASS_NAMES[Class.DL_ONLY], CLASS_NAMES[Class.DL_SHARED])
_UNCLASSIFIED = CLASS_NAMES[Class.UNCLASSIFIED]


@dataclass(frozen=True)
class Classification:
    """Wire bytes over all links of a run: training or not, as the lab knows it, against the dataset's class."""

    right_bytes: int
    wrong_bytes: int
    unclassified_bytes: int

    @property
    def right_share(self) -> float:
        """Of all bytes; nan where there are none."""
        total = self.right_bytes + self.wrong_bytes + self.unclassified_bytes
        return self.right_bytes / total if total else float("nan")


def classification(tables: Tables, run: Run) -> Classification:
    """Of a watched run. tables: its dataset. Raises DataError where the truth is missing.

    Between two hosts of the job all that is not on a port of the cross traffic is the job's; the rest is not. That
    holds for the shortest connection: the truth needs no record of it.
    """
    (begun, ended), begin = run.span_ns, ds.field("bucket_start_ns")
    during = all_of([begin >= begun, begin < ended])
    volumes = tables.sums("buckets", [*_FLOW, "class"], ["wire_bytes"], during)
    flows = tables.read("flows")[[*_FLOW, "src", "dst", "src_port", "dst_port"]]
    flows = flows.astype(str).drop_duplicates(_FLOW)  # a row for each owner that it was found to have
    volumes = volumes.merge(flows.astype({"src_port": int, "dst_port": int}), on=_FLOW, how="left")
    is_cross = _is_cross(run, volumes)
    training = pd.Series(False, index=volumes.index)
    injected = (other["hosts"] for other in run.document.get("other_jobs", []))
    for hosts in (list(run.host_of.values()), *injected):
        ranks = [run.address_of[host] for host in hosts]
        training |= volumes["src"].isin(ranks) & volumes["dst"].isin(ranks) & ~is_cross
    trained = volumes["class"].isin(_DL)
    unclassified = volumes["class"] == _UNCLASSIFIED
    right = (training == trained) & ~unclassified
    count = volumes["wire_bytes"]
    return Classification(
        int(count[right].sum()), int(count[~right & ~unclassified].sum()), int(count[unclassified].sum())
    )


def _is_cross(run: Run, flows: pd.DataFrame) -> "pd.Series[bool]":
    """To or from the port of a receiver of cross traffic, at its address."""
    found = pd.Series(False, index=flows.index)
    for sender in run.cross():
        receiver, port = run.address_of[sender["to"]], sender["to_port"]
        there = (flows["dst"] == receiver) & (flows["dst_port"] == port)
        back = (flows["src"] == receiver) & (flows["src_port"] == port)
        found |= there | back
    return found


# --- outcome


_PERCENTILES = {"median": 50, "p99": 99, "largest": 100}


def run_document(data: Path) -> dict[str, Any]:
    """Of a single run; blocks while it reads the dataset, where there is one. Raises DataError."""
    run = Run(data / FOLDER)
    quiet, disturbed = run.quiet_and_disturbed()
    document = {
        "data": str(data),
        "job": run.job,
        "spec": run.spec,
        "log": {"quiet": _durations(quiet), "disturbed": _durations(disturbed)},
        "cross": run.cross(),
    }
    return document | (_observed(Tables(data), run) if run.spec["monitor"] else {})


def sweep_document(data: Path) -> dict[str, Any]:
    """Of a sweep: its runs, and per model what theory says of the congestion point. Raises DataError."""
    planned, tables = read_sweep(data), Tables(data)
    runs = [_run(tables, each) for each in planned["runs"] if (data / FOLDER / RUNS / each["id"] / "run.json").exists()]
    models = [_model(name, runs) for name in dict.fromkeys(run["model"] for run in runs)]
    return {"data": str(data), "models": [model for model in models if model], "runs": runs}


def _run(tables: Tables, planned: dict[str, Any]) -> dict[str, Any]:
    run = Run(tables.data / FOLDER / RUNS / planned["id"])
    document = {**planned, "job": run.document.get("job"), "outcome": run.document["outcome"]}
    if not run.complete:
        return document
    spec = run.spec
    quiet, disturbed = run.quiet_and_disturbed()
    sent = [sender["bytes_sent"] * 8 / sender["seconds"] for sender in run.cross() if "seconds" in sender]
    theory = ring_bytes(len(spec["ring"]), sum(run.document["layers"]))
    measured = {"cross_bps": sum(sent), **_durations(disturbed if planned["level"] else quiet)}
    results = _observed(tables, run) if spec["monitor"] else {}
    return document | measured | {"theory_bytes": theory, "rate_bps": spec["rate_bps"]} | results


def _observed(tables: Tables, run: Run) -> dict[str, Any]:
    """What netmon reported of a run, compared with the truth."""
    classes = classification(tables, run)
    return {
        "sources": [_accuracy(each) for each in accuracy(tables, run)],
        "scores": run.document.get("scores", []),
        "classification": {**asdict(classes), "right_share": classes.right_share},
    }


def _model(name: str, runs: list[dict[str, Any]]) -> dict[str, Any] | None:
    """t₀, D and 1 − 8·D/(t₀·C): from where on cross traffic takes what the training needs (thesis, 3.2)."""
    quiet = [run for run in runs if run["model"] == name and run["level"] == 0 and run.get("median_ns")]
    if not quiet:
        return None
    t0 = float(np.median([run["median_ns"] for run in quiet]))
    theory, rate = quiet[0]["theory_bytes"], quiet[0]["rate_bps"]
    point = 1 - 8 * theory / (t0 / 1e9 * rate)
    return {"model": name, "quiet_ns": t0, "theory_bytes": theory, "congestion_point": point}


def _durations(durations: npt.NDArray[np.int64]) -> dict[str, Any]:
    percentiles = _PERCENTILES if len(durations) else {}
    known = {f"{name}_ns": float(np.percentile(durations, share)) for name, share in percentiles.items()}
    return {"iterations": len(durations), **known}


def _accuracy(known: Accuracy) -> dict[str, Any]:
    errors = {
        each.moment: {
            **{f"{name}_ns": each.percentile(share) for name, share in _PERCENTILES.items()},
            "left_out": each.left_out,
        }
        for each in known.moments
    }
    counts = {name: getattr(known, name) for name in ("source", "logged", "found", "invented")}
    return {**counts, "errors": errors}
