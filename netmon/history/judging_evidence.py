# SPDX-License-Identifier: Apache-2.0
"""What a dataset holds alongside the bytes that verdicts rest on: what kept ranks from running, and what TCP said."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds

from netmon.dl.verdict.connections import COLUMNS, SAID, no_tcp_rows
from netmon.dl.verdict.host_part import WAITED
from netmon.errors import NoRowsError
from netmon.history.dataset import open_table, stream

_UNKNOWN = -1


def read_waited(data: Path, job: str, begin_ns: int, end_ns: int) -> npt.NDArray[np.void] | None:
    """What kept a job's ranks from running in a time (UTC), dtype WAITED; None where nobody tells."""
    names = ["rank", "start_ns", "end_ns", "run_delay_ns", "throttled_ns", "stopped_ns", "cpu_ns"]
    table = _read(data, "host", names, (begin_ns, end_ns), (ds.field("job") == job) & (ds.field("rank") >= 0))
    if not len(table):
        return None
    waited = np.empty(len(table), WAITED)
    for name in ("rank", "start_ns", "end_ns"):
        waited[name] = table[name]
    waited["waited_ns"] = table["run_delay_ns"].fillna(0)
    for name in ("throttled_ns", "stopped_ns", "cpu_ns"):
        waited[name] = table[name].fillna(0)
    return waited


def read_tcp_rows(
    data: Path, job: str, begin_ns: int, end_ns: int
) -> tuple[npt.NDArray[np.void], list[tuple[str, int]]]:
    """What TCP said in a time (UTC) of a job's connections, dtype SAID, and the flows (session, number) that its `of`
    counts."""
    flows = _read(data, "flows", ["session", "flow_id"], None, ds.field("job") == job)
    names = ["session", "flow_id", "start_ns", "end_ns", *COLUMNS.values()]
    table = _read(data, "transport", names, (begin_ns, end_ns), ds.field("session").isin(sorted(set(flows["session"]))))
    table = table.merge(flows.drop_duplicates(), on=["session", "flow_id"])
    if not len(table):
        return no_tcp_rows(), []
    said = np.empty(len(table), SAID)
    keys = list(zip(table["session"].astype(str), table["flow_id"].astype(int), strict=True))
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    said["of"] = [numbers[key] for key in keys]
    for name in ("start_ns", "end_ns"):
        said[name] = table[name]
    for name, column in COLUMNS.items():
        said[name] = table[column].fillna(_UNKNOWN)
    return said, list(numbers)


def _read(
    data: Path, table: str, names: list[str], span: tuple[int, int] | None, condition: ds.Expression
) -> pd.DataFrame:
    """Rows that begin in a time (UTC); none where there is no such table. Columns that it does not have are null."""
    try:
        found = open_table(data, table, span)
    except NoRowsError:
        return pd.DataFrame(columns=names)
    if span:
        condition &= (ds.field("start_ns") >= span[0]) & (ds.field("start_ns") < span[1])
    there = [name for name in names if name in found.schema.names]
    batches = list(stream(found, there, condition))
    rows = pa.Table.from_batches(batches).to_pandas() if batches else pd.DataFrame(columns=names)
    for word in {"session"} & set(there):
        rows[word] = rows[word].astype(str)
    return rows.reindex(columns=names)
