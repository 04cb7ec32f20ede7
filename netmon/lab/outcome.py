# SPDX-License-Identifier: Apache-2.0
"""What a run or a sweep came to, by the trainers' and senders' own words, as one JSON document."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from netmon.dl.theory import ring_bytes
from netmon.lab.accuracy import Accuracy, accuracy
from netmon.lab.classification import classification
from netmon.lab.record import FOLDER, RUNS
from netmon.lab.sweep import read_sweep
from netmon.lab.truth import quiet_and_disturbed, read_cross

_PERCENTILES = {"median": 50, "p99": 99, "largest": 100}


def run_document(data: Path) -> dict[str, Any]:
    """Of a single run; blocks while it reads the dataset, where there is one. Raises DataError."""
    run = json.loads((data / FOLDER / "run.json").read_text())
    quiet, disturbed = quiet_and_disturbed(data)
    document = {
        "data": str(data),
        "job": run["job"],
        "spec": run["spec"],
        "log": {"quiet": _durations(quiet), "disturbed": _durations(disturbed)},
        "cross": read_cross(data),
    }
    return document | (_told(data, run) if run["spec"]["monitor"] else {})


def sweep_document(data: Path) -> dict[str, Any]:
    """Of a sweep: its runs, and per model what theory says of the congestion point. Raises DataError."""
    planned = read_sweep(data)
    runs = [_run(data, each) for each in planned["runs"] if (data / FOLDER / RUNS / each["id"] / "run.json").exists()]
    models = [_model(name, runs) for name in dict.fromkeys(run["model"] for run in runs)]
    return {"data": str(data), "models": [model for model in models if model], "runs": runs}


def _run(data: Path, planned: dict[str, Any]) -> dict[str, Any]:
    folder = data / FOLDER / RUNS / planned["id"]
    run = json.loads((folder / "run.json").read_text())
    spec = run["spec"]
    document = {**planned, "job": run.get("job"), "outcome": run["outcome"]}
    if run["outcome"] != "complete":
        return document
    quiet, disturbed = quiet_and_disturbed(data, folder=folder)
    sent = [sender["bytes_sent"] * 8 / sender["seconds"] for sender in read_cross(data, folder) if "seconds" in sender]
    theory = ring_bytes(len(spec["ring"]), sum(run["layers"]))
    measured = {"cross_bps": sum(sent), **_durations(disturbed if planned["level"] else quiet)}
    told = _told(data, run, folder) if spec["monitor"] else {}
    return document | measured | {"theory_bytes": theory, "rate_bps": spec["rate_bps"]} | told


def _told(data: Path, run: dict[str, Any], folder: Path | None = None) -> dict[str, Any]:
    """What netmon told of a run, held against the truth. folder: a sweep's run's."""
    classes = classification(data, folder)
    return {
        "sources": [_accuracy(each) for each in accuracy(data, folder)],
        "scores": run.get("scores", []),
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
    known = (
        {f"{name}_ns": float(np.percentile(durations, share)) for name, share in _PERCENTILES.items()}
        if len(durations)
        else {}
    )
    return {"iterations": len(durations), **known}


def _accuracy(known: Accuracy) -> dict[str, Any]:
    moments = {
        each.moment: {
            **{f"{name}_ns": each.percentile(share) for name, share in _PERCENTILES.items()},
            "left_out": each.left_out,
        }
        for each in known.moments
    }
    return {
        "source": known.source,
        "logged": known.logged,
        "found": known.found,
        "invented": known.invented,
        "errors": moments,
    }
