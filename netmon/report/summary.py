# SPDX-License-Identifier: Apache-2.0
"""What a run was like: its jobs and its links, with and without cross traffic on the jobs' hosts."""

import json
import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console, Group, RenderableType
from rich.text import Text

from netmon.dl.classify import ring_bytes
from netmon.dl.verdict.incidents import incidents
from netmon.history.dataset import EXPECTED, groups, names_of, open_table, read_rows, stream
from netmon.history.judging import stored_verdicts, worst_lines
from netmon.records import CLASS_COLOURS, CLASS_NAMES
from netmon.terminal import BREAK, Column, FittingTable, figures, labels
from netmon.units import format_bytes, format_duration

# --- The runs of a dataset: what the lab wrote down about them, or, where no lab was, one run per job.

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


# --- What a run was like: its jobs and its links, with and without cross traffic on the jobs' hosts.

QUIET, SHARED, OUTSIDE = "quiet", "shared", "outside"
PERIODS = (QUIET, SHARED, OUTSIDE)
LINK = ["host", "interface", "direction"]
ACCOUNT_COLUMNS = [
    f"{name}_bytes" for name in ("nic", "attributed", "overflow", "lost_kernel", "lost_agent", "invisible")
]
_COVERED = 0.999  # less is shown in red
_MOST_INCIDENTS = 5


@dataclass(frozen=True)
class Summary:
    """Three data frames: what job_summary, link_volumes and link_accounts give; and a line for each incident."""

    jobs: pd.DataFrame
    volumes: pd.DataFrame
    accounts: pd.DataFrame
    incidents: tuple[str, ...] = ()

    def print(self, console: Console) -> None:
        console.print(render(self))


def summarise(data: Path) -> Summary:
    """Read the dataset in `data`; blocks. Raises DataError where it holds no bucket; other tables may be missing."""
    iterations = read_rows(data, "iterations", EXPECTED["iterations"])
    spans = iteration_spans(iterations)
    columns = [*LINK, "class", "bucket_start_ns", "wire_bytes"]
    batches = stream(open_table(data, "buckets"), columns)
    volumes = pd.concat([link_volumes(batch.to_pandas(), spans) for batch in batches])
    summed = volumes.groupby([*LINK, "period", "class"], as_index=False, observed=True)[["wire_bytes"]].sum()
    found = incidents(stored_verdicts(data))  # none goes on: it is what a run was like
    why = tuple(worst_lines(found, names_of(iterations), _MOST_INCIDENTS))
    return Summary(job_summary(iterations), summed, link_accounts(read_rows(data, "ledger", EXPECTED["ledger"])), why)


def iteration_spans(iterations: pd.DataFrame) -> pd.DataFrame:
    """Columns start_ns, end_ns, shared; one row per job and iteration, from its first rank's start to its last's end.

    An iteration is shared when the node of any of its ranks was.
    """
    if iterations.empty:
        return pd.DataFrame({"start_ns": [], "end_ns": [], "shared": []})
    spans = iterations.groupby(["job", "iteration"], observed=True).agg(
        start_ns=("start_ns", "min"), end_ns=("end_ns", "max"), shared=("node_shared", "any")
    )
    return spans.sort_values("start_ns").reset_index(drop=True)


def link_volumes(rows: pd.DataFrame, spans: pd.DataFrame) -> pd.DataFrame:
    """Wire bytes by link, class and period of bucket rows: during quiet iterations, shared ones, or outside of any.

    The time decides, not the row's own iteration: a host without ranks has traffic during iterations, too.
    """
    period = np.full(len(rows), OUTSIDE, dtype=object)
    if len(spans):
        time = rows["bucket_start_ns"].to_numpy()
        index = np.searchsorted(spans["start_ns"].to_numpy(), time, side="right") - 1
        inside = (index >= 0) & (time < spans["end_ns"].to_numpy()[index])
        shared = spans["shared"].to_numpy(dtype=bool)[index]
        period[inside] = np.where(shared, SHARED, QUIET)[inside]
    by = [*LINK, "period", "class"]
    return rows.assign(period=period).groupby(by, as_index=False, observed=True)[["wire_bytes"]].sum()


def link_accounts(ledger: pd.DataFrame) -> pd.DataFrame:
    """The ledger's rows summed per link, with the coverage of the whole (attributed / NIC)."""
    if ledger.empty:
        return ledger
    accounts = ledger.groupby(LINK, as_index=False, observed=True)[ACCOUNT_COLUMNS].sum()
    accounts["coverage"] = accounts["attributed_bytes"] / accounts["nic_bytes"].where(accounts["nic_bytes"] > 0)
    return accounts


def job_summary(iterations: pd.DataFrame) -> pd.DataFrame:
    """One row per job: ranks, iterations, median duration (ns) of quiet and shared iterations, payload and theory.

    An iteration lasts as long as its slowest rank. measured_bytes: median payload that a rank sent in an iteration;
    theory_bytes: equation 3.1 of the thesis, nan where the model's size is unknown; parameters_basis: its source.
    name: what people call the job.
    """
    names = names_of(iterations)
    return pd.DataFrame(
        [_job(str(job), rows) | {"name": names.get(str(job), str(job))} for (job,), rows in groups(iterations, "job")]
    )


def _job(job: str, rows: pd.DataFrame) -> dict[str, object]:
    durations = (rows["end_ns"] - rows["start_ns"]).groupby(rows["iteration"]).max()
    shared = rows.groupby("iteration")["node_shared"].any()
    ranks = max(rows["rank"].nunique(), rows["size"].max())
    size = model_size(rows)
    return {
        "job": job,
        "ranks": int(ranks),
        "iterations": len(durations),
        "source": "/".join(sorted(rows["source"].astype(str).unique())),
        "quiet_iterations": int((~shared).sum()),
        "shared_iterations": int(shared.sum()),
        "quiet_ns": durations[~shared].median(),
        "shared_ns": durations[shared].median(),
        "measured_bytes": rows["dl_tx_bytes"].median(),
        "theory_bytes": ring_bytes(int(ranks), size["parameters"], size["gradient_bytes"]),
        **size,
    }


def render(summary: Summary) -> RenderableType:
    """Two tables; a job's and a link's."""
    parts: list[RenderableType] = []
    if summary.jobs.empty:
        parts.append(Text("no iteration was seen: did the training make itself known to its agents?"))
    else:
        parts += [Text(line) for line in summary.incidents or ("no step was slower than usual",)]
        parts += ["", _job_table(summary.jobs)]
    parts += ["", _link_table(summary)]
    return Group(*parts)


def _job_table(jobs: pd.DataFrame) -> FittingTable:
    counts, times = ("ranks", "iterations"), ("quiet", "shared", "slower")
    sent = ("measured", "theory (3.1)", "ratio")
    columns = [*labels("job"), *figures(*counts, *times, *sent), *labels("basis", prose=True)]
    table = FittingTable(columns, "Training: iteration time (median) and payload sent per rank and iteration")
    for job in jobs.to_dict("records"):
        measured, theory = job["measured_bytes"], job["theory_bytes"]
        table.add_row(
            f"{job['name']}{BREAK}({job['source']})",
            str(job["ranks"]),
            f"{job['quiet_iterations']} + {job['shared_iterations']}",
            _known(job["quiet_ns"], format_duration),
            _known(job["shared_ns"], format_duration),
            _known(job["shared_ns"] / job["quiet_ns"], "×{:.2f}".format),
            _known(measured, format_bytes),
            _known(theory, format_bytes),
            _known(measured / theory if theory else math.nan, "{:.3f}".format),
            job["parameters_basis"],
        )
    return table


def _link_table(summary: Summary) -> FittingTable:
    classes = [Column(name, True, style=colour) for name, colour in zip(CLASS_NAMES, CLASS_COLOURS, strict=True)]
    columns = [*labels("link", "during"), *classes, *figures("coverage")]
    table = FittingTable(columns, "Links: wire bytes by class, during quiet and shared iterations and outside of any")
    accounts = {_link_name(account): account for account in summary.accounts.to_dict("records")}
    volumes: dict[str, dict[tuple[str, str], int]] = {}
    for row in summary.volumes.to_dict("records"):
        volumes.setdefault(_link_name(row), {})[row["period"], row["class"]] = row["wire_bytes"]
    for link, sums in sorted(volumes.items()):
        cells = [link, _coverage(accounts.get(link))]
        for period in [period for period in PERIODS if any(key[0] == period for key in sums)]:
            counts = [sums.get((period, name), 0) for name in CLASS_NAMES]
            table.add_row(cells[0], period, *(format_bytes(count) if count else "" for count in counts), cells[1])
            cells = ["", ""]
        table.add_section()
    return table


def _link_name(row: Mapping[Hashable, Any]) -> str:
    return f"{row['host']}{BREAK}{row['interface']} {row['direction']}"


def _coverage(account: Mapping[Hashable, Any] | None) -> str | Text:
    """Coverage; where bytes are missing in red, with what became of them."""
    if account is None or math.isnan(account["coverage"]):
        return "unknown"
    text = f"{account['coverage']:.3%}"
    if account["coverage"] >= _COVERED:
        return text
    missing = {cause: account[f"{cause}_bytes"] for cause in ("overflow", "lost_kernel", "lost_agent", "invisible")}
    causes = "".join(f"\n{format_bytes(count)} {name.replace('_', ' in ')}" for name, count in missing.items() if count)
    return Text(text + causes, style="red")


def _known(value: float, form: Callable[[float], str]) -> str:
    return "unknown" if math.isnan(value) else form(value)
