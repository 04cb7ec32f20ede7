# SPDX-License-Identifier: Apache-2.0
"""The runs of a dataset: what the lab wrote down about them, or, where no lab was, one run per job."""

import json
from pathlib import Path
from typing import Any

import pandas as pd

from netmon.history.dataset import groups

RUN_COLUMNS = (
    *("run", "job", "model", "profile", "level", "repetition", "trainer", "pattern", "configuration"),
    *("ranks", "parameters", "parameters_basis", "gradient_bytes", "compute_ns", "batch", "rate_bps"),
    *("begin_ns", "end_ns", "outcome"),
)
SIZE = ("ranks", "parameters", "gradient_bytes")
"""What theory.ring_bytes takes."""
SENDER_COLUMNS = ("run", "profile", "source", "target", "offered_bps", "begin_ns", "end_ns", "bytes_sent")


def read_runs(data: Path, missing: list[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The lab's runs and its senders of cross traffic: RUN_COLUMNS and SENDER_COLUMNS; times in ns of UTC.

    DATA/lab/run.json is one run, DATA/lab/runs/<id>/run.json one of a sweep, whose plan is DATA/lab/sweep.json. Both
    frames are empty where no lab was. What cannot be read is noted in `missing`, and so is a run that did not complete;
    in a sweep, which will do it again, it is left out.
    """
    runs, senders = [], []
    for path in [data / "lab" / "run.json", *sorted((data / "lab" / "runs").glob("*/run.json"))]:
        if not path.exists():
            continue
        name = path.parent.name if _of_sweep(path) else data.resolve().name
        try:
            document = json.loads(path.read_text())
            run = _run(name, document)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            missing.append(f"run {name}: {path.relative_to(data)} cannot be read ({error!r:.120})")
            continue
        if run["outcome"] != "complete":
            used = "left out" if _of_sweep(path) else "what it left is used as far as it goes"
            missing.append(f"run {name}: the lab says it is {run['outcome']}; {used}")
            if _of_sweep(path):
                continue
        runs.append(run)
        senders += _senders(path.parent / "cross.json", run, missing)
    _note_undone(data / "lab", {str(run["run"]) for run in runs}, missing)
    return pd.DataFrame(runs, columns=list(RUN_COLUMNS)), pd.DataFrame(senders, columns=list(SENDER_COLUMNS))


def _of_sweep(path: Path) -> bool:
    return path.parent.parent.name == "runs"


def _note_undone(lab: Path, done: set[str], missing: list[str]) -> None:
    for folder in sorted(path for path in (lab / "runs").glob("*/") if not (path / "run.json").exists()):
        missing.append(f"run {folder.name}: no run.json, so it did not come to its end; left out")
    try:
        plan = json.loads((lab / "sweep.json").read_text())
        planned = plan["runs"] if isinstance(plan, dict) else plan
        undone = [str(run["id"]) for run in planned if str(run["id"]) not in done]
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError) as error:
        missing.append(f"the sweep's plan cannot be read ({error!r:.120})")
        return
    if undone:
        missing.append(f"the sweep is not finished: {len(undone)} of {len(planned)} runs are still to be done")


def _run(name: str, document: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = document["spec"]
    times = [event["utc_ns"] for event in document.get("events", [])]
    level = float(spec.get("cross_load", 0.0))
    return {
        "run": name,
        "job": document.get("job", ""),
        "model": model_name(spec.get("model"), int(spec.get("parameters") or document.get("parameters") or 0)),
        "profile": spec.get("cross_profile", "") if level > 0 else "none",
        "level": level,
        "repetition": int(document.get("repetition", spec.get("repetition", 0)) or 0),
        "trainer": spec.get("trainer", ""),
        "pattern": spec.get("pattern", "ring"),
        "configuration": spec.get("configuration") or "",
        "ranks": len(spec.get("ring", ())),
        "parameters": int(spec.get("parameters") or document.get("parameters") or 0),
        "parameters_basis": "run",
        "gradient_bytes": 0,
        "compute_ns": float(spec.get("compute_ns") or "nan"),
        "batch": float(spec.get("batch_size") or spec.get("batch") or "nan"),
        "rate_bps": float(spec["rate_bps"]),
        "begin_ns": min(times, default=0),
        "end_ns": max(times, default=0),
        "outcome": document.get("outcome", "unknown"),
    }


def model_name(name: object, parameters: int) -> str:
    """The model's name, or what is known of it: the number of its parameters."""
    if name:
        return str(name)
    return f"{parameters / 1e6:.3g} M parameters" if parameters else "model of unknown size"


def _senders(path: Path, run: dict[str, Any], missing: list[str]) -> list[dict[str, Any]]:
    try:
        return [
            {
                "run": run["run"],
                "profile": sender.get("profile", ""),
                "source": sender["from"],
                "target": sender["to"],
                "offered_bps": float(sender["offered_bps"]),
                "begin_ns": sender["started"]["utc_ns"],
                "end_ns": sender["ended"]["utc_ns"] if "ended" in sender else run["end_ns"],
                "bytes_sent": sender.get("bytes_sent"),
            }
            for sender in json.loads(path.read_text())
            if "started" in sender
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        missing.append(f"run {run['run']}: its cross traffic's own account cannot be read ({error!r:.120})")
        return []


def model_size(rows: pd.DataFrame) -> dict[str, Any]:
    """What the rows of a job's iterations say of the model: parameters, their basis, and the bytes of all gradients.

    Zeros and "unknown" where nothing is known.
    """
    rows = rows.reindex(columns=["parameters", "parameters_basis", "gradient_bytes"])
    sizes = rows.astype({"parameters_basis": object}).fillna({"parameters_basis": ""}).fillna(0)
    largest = sizes.sort_values("parameters", kind="stable").tail(1).to_dict("records")
    size = largest[0] if largest and largest[0]["parameters"] > 0 else {"parameters": 0, "gradient_bytes": 0}
    counts = {name: int(size[name]) for name in ("parameters", "gradient_bytes")}
    return {**counts, "parameters_basis": str(size.get("parameters_basis") or "unknown")}


def runs_from_jobs(ranks: pd.DataFrame, rate_bps: float) -> pd.DataFrame:
    """RUN_COLUMNS for a dataset without a lab: a run per job, from rows of `iterations`."""
    runs = [
        {
            "run": str(job),
            "job": str(job),
            "model": model_name(None, model_size(rows)["parameters"]),
            "profile": "measured",
            "level": float("nan"),
            "repetition": 0,
            "ranks": int(max(rows["rank"].nunique(), rows["size"].max())),
            **model_size(rows),
            "rate_bps": rate_bps,
            "begin_ns": int(rows["start_ns"].min()),
            "end_ns": int(rows["end_ns"].max()),
            "outcome": "measured",
        }
        for (job,), rows in groups(ranks, "job")
    ]
    return pd.DataFrame(runs, columns=list(RUN_COLUMNS))
