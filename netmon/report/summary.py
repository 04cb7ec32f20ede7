# SPDX-License-Identifier: Apache-2.0
"""What a run was like: its jobs and its links, with and without cross traffic on the jobs' hosts."""

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
from netmon.report.runs import model_size
from netmon.terminal import BREAK, Column, FittingTable, figures, labels
from netmon.units import format_bytes, format_duration

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
