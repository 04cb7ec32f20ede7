# SPDX-License-Identifier: Apache-2.0
"""What people call the jobs of a dataset."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds

from netmon.dl.traffic import TRAFFIC_NAMES, Traffic
from netmon.dl.verdict.verdict_text import renamed
from netmon.errors import NoRowsError
from netmon.history.dataset import known_columns, open_table, stream
from netmon.views import Verdict, distinct_names

_COLUMNS = ["job", "rank", "job_name"]


def jobs_of(data: Path) -> tuple[list[str], dict[str, str]]:
    """The jobs that have iterations, and what people call them: by job, no two alike, of those of which somebody says.

    Blocks: it reads three columns. Raises NoRowsError: none has; DataError: no dataset.
    """
    table = open_table(data, "iterations")
    columns = known_columns(table, _COLUMNS)
    pieces = [pa.Table.from_batches([batch]).group_by(columns).aggregate([]) for batch in stream(table, columns)]
    frames = [piece.to_pandas() for piece in pieces]
    rows = pd.concat(frames) if frames else pd.DataFrame(columns=_COLUMNS)
    return sorted(rows["job"].dropna().astype(str).unique()), names_of(rows)


def job_names(data: Path) -> dict[str, str]:
    """What people call the jobs, as jobs_of has it; empty where there is none."""
    try:
        return jobs_of(data)[1]
    except NoRowsError:
        return {}


def not_understood(data: Path) -> list[str]:
    """The jobs whose steps are not understood, as their flows say. Raises DataError: no dataset."""
    try:
        flows = stream(open_table(data, "flows"), ["job"], ds.field("traffic") == TRAFFIC_NAMES[Traffic.UNEXPLAINED])
        return sorted({str(job) for batch in flows for job in batch.column(0).unique().drop_null().to_pylist()})
    except (NoRowsError, pa.ArrowInvalid):  # no flows, or nobody says
        return []


def names_of(rows: pd.DataFrame) -> dict[str, str]:
    """The same of rows of the table `iterations`: the lowest rank's word counts."""
    if rows.empty or "job_name" not in rows or "rank" not in rows:
        return {}
    named = rows[rows["job_name"].notna()].sort_values("rank", kind="stable").drop_duplicates("job")
    pairs = zip(named["job"].astype(str), named["job_name"].astype(str), strict=True)
    return distinct_names({job: "" if name == job else name for job, name in pairs})


def requested_job(requested: str | None, names: Mapping[str, str]) -> str | None:
    """The job that somebody names: by what its ranks have in common, or as people call it."""
    by_name = {name: job for job, name in names.items()}
    return requested if requested is None or requested in names else by_name.get(requested, requested)


def with_names(verdicts: Iterable[Verdict], names: Mapping[str, str]) -> Iterator[Verdict]:
    return (renamed(verdict, names) for verdict in verdicts)
