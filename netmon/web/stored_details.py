# SPDX-License-Identifier: Apache-2.0
"""What is asked of a dataset when somebody wants to know more: of an iteration, of a moment, of what could be done."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds

from netmon.dl.sharing.words import called, document
from netmon.dl.verdict import path_of
from netmon.dl.verdict.words import arithmetic, renamed, sentence
from netmon.errors import DataError
from netmon.report.dataset import leave_out, open_table, stream
from netmon.report.frames import plain_words
from netmon.report.judging import explained
from netmon.report.sharing import advice

_SECONDS = 30
_MOST_JOBS = 16  # that are compared with each other
_MOST_FLOWS = 12
_MOST_NS = 60_000_000_000
_AROUND_NS = 1_000_000_000
_FLOW = ["session", "direction", "flow_id", "class"]
_NAMES = ["src", "src_port", "dst", "dst_port", "protocol", "process", "container", "user", "job", "rank"]


def explain(data: Path, job: str, iteration: int, names: Mapping[str, str]) -> dict[str, Any]:
    """The verdict in words, and a row of each rank. Raises DataError."""
    for verdict, times in explained(data, job, iteration):
        called = renamed(verdict, names)
        return {
            "sentence": sentence(called),
            "arithmetic": list(arithmetic(called)),
            "path": path_of(times, called),
            "ranks": [asdict(one) for one in times],
        }
    raise DataError(
        f"cannot explain iteration {iteration} of {names.get(job, job)}: the dataset holds no such iteration"
    )


def advise(data: Path, names: Mapping[str, str]) -> dict[str, Any]:
    """On the last half minute, jobs called what people call them. Raises DataError."""
    return called(document(advice(data, _SECONDS, most=_MOST_JOBS), names))


def largest_flows(data: Path, host: str, begin_ns: int, end_ns: int) -> list[dict[str, Any]]:
    """The flows that carried most, with their ends and processes. Raises DataError where it is asked for too much."""
    if end_ns - begin_ns > _MOST_NS:
        raise DataError(f"flows are told of a minute at most: zoom in to {_MOST_NS // 1_000_000_000} s")
    table = open_table(data, "buckets", (begin_ns - _AROUND_NS, end_ns))
    start = ds.field("bucket_start_ns")
    condition = (start >= begin_ns) & (start < end_ns) & (ds.field("host") == host)
    pieces = []
    for batch in stream(table, [*_FLOW, "wire_bytes"], condition, leave_out):
        found = pa.Table.from_batches([batch]).group_by(_FLOW).aggregate([("wire_bytes", "sum")])
        pieces.append(plain_words(found.to_pandas()))
    if not pieces:
        return []
    sums = pd.concat(pieces).groupby(_FLOW)[["wire_bytes_sum"]].sum().reset_index()
    largest = sums.nlargest(_MOST_FLOWS, "wire_bytes_sum").rename(columns={"wire_bytes_sum": "wire_bytes"})
    flows = _described(data, sorted({str(name) for name in largest["session"]}), largest["flow_id"].tolist())
    told = largest.merge(flows, on=["session", "flow_id"], how="left").drop(columns="session")
    rows = told.astype(object).where(told.notna(), None).to_dict("records")
    return [{str(name): value for name, value in row.items()} for row in rows]


def _described(data: Path, sessions: list[str], numbers: list[int]) -> pd.DataFrame:
    columns = ["session", "flow_id", *_NAMES]
    try:
        table = open_table(data, "flows")
    except DataError:
        return pd.DataFrame(columns=columns)
    condition = ds.field("session").isin(sessions) & ds.field("flow_id").isin(numbers)
    batches = list(stream(table, columns, condition, leave_out))
    rows = plain_words(pa.Table.from_batches(batches).to_pandas()) if batches else pd.DataFrame(columns=columns)
    return rows.drop_duplicates(["session", "flow_id"], keep="last")
