# SPDX-License-Identifier: Apache-2.0
"""What jobs and links did in a window of a dataset, as netmon.dl.sharing wants it."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds

from netmon.columnar import Columns
from netmon.dl.sharing.advice import Advice
from netmon.dl.sharing.passed import Iterations, Names, Passed, iterations
from netmon.errors import DataError, NoRowsError
from netmon.history.dataset import open_table, stream

_LINK = ["host", "interface", "direction"]
_ROW = [*_LINK, "session", "flow_id", "bucket_start_ns", "bucket_ns", "wire_bytes", "job", "iteration"]
_AROUND_NS = 1_000_000_000  # a row's bucket is not wider

_Flow = tuple[str, int]  # session and number
_Pair = tuple[str, str, str]  # job, and who sends to whom, as people read it


def advice(
    data: Path, seconds: float, until_ns: int | None = None, jobs: Iterable[str] = (), most: int | None = None
) -> Advice:
    """On the last seconds of a dataset, or those before a time (UTC ns). jobs: only these, and who shares their links.

    most: jobs that are compared with each other, as netmon.dl.sharing.advice.advise has it.

    Raises DataError where there is nothing in that time.
    """
    end = until_ns if until_ns is not None else _newest(data)
    begin = end - int(seconds * 1e9)
    iterations = _iterations(data, begin, end)
    if not iterations:
        raise DataError(f"cannot advise: {data} holds no iteration in the {seconds:g} s before {pd.Timestamp(end)} UTC")
    table = open_table(data, "buckets", (begin - _AROUND_NS, end))
    when = ds.field("bucket_start_ns")
    passed, numbered = Passed(begin, end), _Numbered(_ends(data))
    for batch in stream(table, _ROW, (when >= begin) & (when < end)):
        passed.add(numbered.rows(pa.Table.from_batches([batch]).to_pandas()))
    if passed.empty:
        raise DataError("cannot advise: there is no row in that time")
    return passed.advice(iterations, numbered.names(_capacities(data)), frozenset(jobs), most)


def _newest(data: Path) -> int:
    table = open_table(data, "iterations")
    newest = [int(batch.column(0).to_numpy(zero_copy_only=False).max()) for batch in stream(table, ["end_ns"])]
    if not newest:
        raise DataError(f"cannot advise: {data} holds no iteration yet")
    return max(newest)


def _iterations(data: Path, begin_ns: int, end_ns: int) -> dict[str, Iterations]:
    """The iterations of each job that lie within."""
    table = open_table(data, "iterations", (begin_ns - 60 * _AROUND_NS, end_ns))
    inside = (ds.field("start_ns") >= begin_ns) & (ds.field("end_ns") <= end_ns)
    columns = ["job", "iteration", "start_ns", "end_ns"]
    columns += [name for name in ("error_ns",) if name in table.schema.names]
    batches = list(stream(table, columns, inside))
    if not batches:
        return {}
    rows = pa.Table.from_batches(batches).to_pandas().astype({"job": str})
    error = rows["error_ns"].fillna(0) if "error_ns" in rows else pd.Series(0, rows.index)
    numbers = rows[["iteration", "start_ns", "end_ns"]].astype(np.int64)
    return {
        str(job): iterations(
            own["iteration"].to_numpy(),
            own["start_ns"].to_numpy(),
            own["end_ns"].to_numpy(),
            int(error[own.index].median()),
        )
        for job, own in numbers.groupby(rows["job"])
    }


def _capacities(data: Path) -> dict[tuple[str, str], int]:
    known: dict[tuple[str, str], int] = {}
    try:
        table = open_table(data, "sessions")
    except NoRowsError:
        return known
    for batch in stream(table, ["host", "interface", "capacity_bps"]):
        for row in batch.to_pylist():
            known[str(row["host"]), str(row["interface"])] = row["capacity_bps"] or 0
    return known


def _ends(data: Path) -> dict[_Flow, tuple[_Pair, bool]]:
    """Of flows between ranks, and whether they are the sender's."""
    columns = ["session", "flow_id", "host", "direction", "job", "rank", "peer_rank"]
    of: dict[_Flow, tuple[_Pair, bool]] = {}
    hosts: dict[tuple[str, int], str] = {}
    rows = []
    for batch in stream(open_table(data, "flows"), columns, ds.field("job") != ""):
        rows += batch.to_pylist()
    for row in rows:
        if row["rank"] is not None and row["rank"] >= 0:
            hosts[str(row["job"]), row["rank"]] = str(row["host"])
    for row in rows:
        job, rank, peer = str(row["job"]), row["rank"], row["peer_rank"]
        if rank is not None and rank >= 0 and peer is not None and peer >= 0:
            sends = row["direction"] == "tx"
            ranks = (rank, peer) if sends else (peer, rank)
            source, target = (f"rank {one} ({hosts.get((job, one), '?')})" for one in ranks)
            of[str(row["session"]), row["flow_id"]] = (job, source, target), sends
    return of


class _Numbered:
    """Rows of the table `buckets` with numbers for names."""

    def __init__(self, ends: dict[_Flow, tuple[_Pair, bool]]) -> None:
        self._ends = ends
        self._links: dict[tuple[str, str, str], int] = {}
        self._jobs: dict[str, int] = {}
        self._pairs: dict[_Pair, int] = {}
        self._flows: dict[_Flow, int] = {}

    def rows(self, some: pd.DataFrame) -> Columns:
        """With the columns of netmon.dl.sharing.passed.ROW."""
        names = some.astype(dict.fromkeys((*_LINK, "session", "job"), str))
        links = zip(*(names[name] for name in _LINK), strict=True)
        flows = list(zip(names["session"], names["flow_id"].tolist(), strict=True))
        numbers = {job: self._jobs.setdefault(job, len(self._jobs)) if job else -1 for job in names["job"].unique()}
        indices = {key: (self._flows.setdefault(key, len(self._flows)), self._pair(key)) for key in set(flows)}
        return Columns(
            {
                "link": np.array([self._links.setdefault(link, len(self._links)) for link in links], np.int64),
                "job": names["job"].map(numbers).to_numpy(np.int64),
                "flow": np.array([indices[key][0] for key in flows], np.int64),
                "pair": np.array([indices[key][1] for key in flows], np.int64),
                "iteration": names["iteration"].fillna(-1).to_numpy(np.int64),
                "start_ns": names["bucket_start_ns"].to_numpy(np.int64),
                "width_ns": names["bucket_ns"].to_numpy(np.int64),
                "wire_bytes": names["wire_bytes"].to_numpy(np.int64),
            }
        )

    def _pair(self, flow: _Flow) -> int:
        if flow not in self._ends:
            return -1
        ends, sends = self._ends[flow]
        number = self._pairs.setdefault(ends, len(self._pairs))
        return number if sends else -2 - number

    def names(self, capacity: dict[tuple[str, str], int]) -> Names:
        """What the numbers mean."""
        speeds = {number: float(capacity.get(key[:2], 0)) for key, number in self._links.items()}
        pairs = [(self._jobs.get(job, -2), source, target) for job, source, target in self._pairs]
        known = {number: bps for number, bps in speeds.items() if bps}
        return Names([" ".join(key) for key in self._links], list(self._jobs), pairs, known)
