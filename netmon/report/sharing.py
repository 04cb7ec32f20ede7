# SPDX-License-Identifier: Apache-2.0
"""What jobs and links did in a window, as netmon.dl.sharing wants it: from a dataset, or from full resolution."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds

from netmon.dl.sharing.advice import Advice, JobSeen, advise
from netmon.dl.sharing.demand import LinkBytes
from netmon.errors import DataError
from netmon.report.dataset import open_table, stream

_LINK = ["host", "interface", "direction"]
_ROW = [*_LINK, "session", "flow_id", "bucket_start_ns", "bucket_ns", "wire_bytes", "job", "iteration"]
_CELL = ["link", "job", "pair", "iteration", "bin"]
_FLOW = ["link", "job", "session", "flow_id"]
_FINEST_NS = 1_000_000
_AROUND_NS = 1_000_000_000  # a row's bucket is not wider
_CONTROL = 0.01  # of a job's largest flow on the link: who moves less carries no gradients


_Flow = tuple[str, int]  # session and number
_Ends = tuple[str, str]  # who sends to whom, as people read it


@dataclass(frozen=True)
class Iterations:
    """Of a job: their numbers, (iterations,); when each began and the last ended, (iterations + 1,), ascending."""

    numbers: npt.NDArray[np.int64]
    starts_ns: npt.NDArray[np.int64]


def advice(data: Path, seconds: float, until_ns: int | None = None, jobs: Iterable[str] = ()) -> Advice:
    """On the last seconds of a dataset, or those before a time (UTC ns). jobs: only these, and who shares their links.

    Raises DataError where there is nothing in that time.
    """
    end = until_ns if until_ns is not None else _newest(data)
    begin = end - int(seconds * 1e9)
    starts = _starts(data, begin, end)
    if not starts:
        raise DataError(f"cannot advise: {data} holds no iteration in the {seconds:g} s before {pd.Timestamp(end)} UTC")
    table = open_table(data, "buckets", (begin - _AROUND_NS, end))
    when = ds.field("bucket_start_ns")
    batches = stream(table, _ROW, (when >= begin) & (when < end))
    rows = (pa.Table.from_batches([batch]).to_pandas() for batch in batches)
    return _advised(rows, starts, _ends(data), _capacities(data), (begin, end), set(jobs))


def _newest(data: Path) -> int:
    table = open_table(data, "iterations")
    newest = [int(batch.column(0).to_numpy(zero_copy_only=False).max()) for batch in stream(table, ["end_ns"])]
    if not newest:
        raise DataError(f"cannot advise: {data} holds no iteration yet")
    return max(newest)


def _starts(data: Path, begin_ns: int, end_ns: int) -> dict[str, Iterations]:
    """The iterations of each job that lie within."""
    table = open_table(data, "iterations", (begin_ns - 60 * _AROUND_NS, end_ns))
    inside = (ds.field("start_ns") >= begin_ns) & (ds.field("end_ns") <= end_ns)
    batches = list(stream(table, ["job", "iteration", "start_ns", "end_ns"], inside))
    if not batches:
        return {}
    rows = pa.Table.from_batches(batches).to_pandas().astype({"job": str})
    steps = rows.groupby(["job", "iteration"], sort=True).agg(start=("start_ns", "min"), end=("end_ns", "max"))
    found = {}
    for job, own in steps.groupby(level="job"):
        begins, numbers = own["start"].to_numpy(np.int64), own.index.get_level_values("iteration").to_numpy(np.int64)
        rising = np.append(True, begins[1:] > np.maximum.accumulate(begins)[:-1])  # a job that began anew is not
        begins, numbers = begins[rising], numbers[rising]
        found[str(job)] = Iterations(numbers, np.append(begins, max(int(own["end"].max()), int(begins[-1]) + 1)))
    return found


def _capacities(data: Path) -> dict[tuple[str, str], int]:
    known: dict[tuple[str, str], int] = {}
    try:
        table = open_table(data, "sessions")
    except DataError:
        return known
    for batch in stream(table, ["host", "interface", "capacity_bps"]):
        for row in batch.to_pylist():
            known[str(row["host"]), str(row["interface"])] = row["capacity_bps"] or 0
    return known


def _ends(data: Path) -> dict[_Flow, _Ends]:
    """Of flows between ranks."""
    columns = ["session", "flow_id", "host", "direction", "job", "rank", "peer_rank", "dst"]
    of: dict[_Flow, _Ends] = {}
    hosts: dict[tuple[str, int], str] = {}
    rows = []
    for batch in stream(open_table(data, "flows"), columns, (ds.field("job") != "") & (ds.field("direction") == "tx")):
        rows += batch.to_pylist()
    for row in rows:
        if row["rank"] is not None and row["rank"] >= 0:
            hosts[str(row["job"]), row["rank"]] = str(row["host"])
    for row in rows:
        job, rank, peer = str(row["job"]), row["rank"], row["peer_rank"]
        if rank is not None and rank >= 0 and peer is not None and peer >= 0:
            source, target = (f"rank {one} ({hosts.get((job, one), '?')})" for one in (rank, peer))
            of[str(row["session"]), row["flow_id"]] = source, target
    return of


def _advised(
    rows: Iterator[pd.DataFrame],
    starts: Mapping[str, Iterations],
    ends: Mapping[_Flow, _Ends],
    capacity: Mapping[tuple[str, str], int],
    span: tuple[int, int],
    only: set[str],
) -> Advice:
    links: dict[tuple[str, str, str], int] = {}
    pairs: dict[tuple[str, _Ends], int] = {}
    bin_ns, pieces, flows = _FINEST_NS, [], []
    for some in rows:
        some = some.astype(dict.fromkeys((*_LINK, "session", "job"), str))
        bin_ns = max(bin_ns, int(some["bucket_ns"].max()))
        some["link"] = [links.setdefault(key, len(links)) for key in zip(*(some[n] for n in _LINK), strict=True)]
        keys = list(zip(some["session"], some["flow_id"], some["job"], strict=True))
        told = {key: ends.get(key[:2]) for key in set(keys)}
        place = {key: pairs.setdefault((key[2], end), len(pairs)) if end else -1 for key, end in told.items()}
        some["pair"] = [place[key] for key in keys]
        some["bin"] = (some["bucket_start_ns"] - span[0]) // _FINEST_NS
        pieces.append(_summed(some, _CELL))
        own = some[some["job"] != ""]
        flows.append(_summed(own, _FLOW))
    if not pieces:
        raise DataError("cannot advise: there is no row in that time")
    cells = pd.concat(pieces, ignore_index=True)
    if bin_ns > _FINEST_NS:
        cells["bin"] = cells["bin"] * _FINEST_NS // bin_ns
    names = [f"{host} {interface} {direction}" for host, interface, direction in links]
    speeds = {n: capacity.get(key[:2], 0) for key, n in links.items()}
    carriers = _carriers(pd.concat(flows, ignore_index=True))
    seen = [_job(job, begins, cells, pairs, carriers.get(job, {}), bin_ns) for job, begins in starts.items()]
    traffic = _traffic(cells, span, bin_ns)
    if only:
        near = {link for link, one in traffic.items() if only & set(one.of_job)}
        traffic = {link: one for link, one in traffic.items() if link in near}
        seen = [job for job in seen if any(job.job in one.of_job for one in traffic.values())]
    return advise(seen, traffic, names, {link: float(bps) for link, bps in speeds.items() if bps}, span)


def _carriers(flows: pd.DataFrame) -> dict[str, dict[int, int]]:
    """How many flows of each job carry its gradients over each link."""
    flows = _summed(flows, _FLOW)
    most = flows.groupby(["job", "link"])["wire_bytes"].transform("max")
    counted = flows[flows["wire_bytes"] >= _CONTROL * most].groupby(["job", "link"]).size()
    found: dict[str, dict[int, int]] = {}
    for row in counted.reset_index(name="flows").to_dict("records"):
        found.setdefault(str(row["job"]), {})[int(row["link"])] = int(row["flows"])
    return found


def _traffic(cells: pd.DataFrame, span: tuple[int, int], bin_ns: int) -> dict[int, LinkBytes]:
    """Of the links on which jobs send."""
    bins = -(-(span[1] - span[0]) // bin_ns)
    found = {}
    used = cells.loc[cells["job"] != "", "link"].unique()
    for link, own in cells[cells["link"].isin(used)].groupby("link"):
        places, sent = own["bin"].to_numpy(np.int64), own["wire_bytes"].to_numpy(np.float64)
        jobs = own["job"].to_numpy(str)
        of_job = {str(job): _sums(places[jobs == job], sent[jobs == job], bins) for job in np.unique(jobs[jobs != ""])}
        found[int(str(link))] = LinkBytes(span[0], bin_ns, of_job, _sums(places, sent, bins))
    return found


def _sums(places: npt.NDArray[np.int64], values: npt.NDArray[np.float64], bins: int) -> npt.NDArray[np.float64]:
    return np.bincount(places, values, bins)[:bins].astype(np.float64)


def _summed(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Wire bytes by the combinations that occur."""
    found: pd.DataFrame = rows.groupby(by, as_index=False).agg(wire_bytes=("wire_bytes", "sum"))
    return found


def _job(
    job: str,
    told: Iterations,
    cells: pd.DataFrame,
    pairs: Mapping[tuple[str, _Ends], int],
    flows: Mapping[int, int],
    bin_ns: int,
) -> JobSeen:
    mine = [(place, ends) for (of, ends), place in pairs.items() if of == job]
    numbers = told.numbers
    own = cells[cells["pair"].isin([place for place, _ in mine]) & cells["iteration"].isin(numbers)]
    own = _summed(own, ["pair", "iteration", "bin"])
    row = own["pair"].map({place: at for at, (place, _) in enumerate(mine)}).to_numpy(np.int64)
    column = np.searchsorted(numbers, own["iteration"].to_numpy(np.int64))
    sent, busy = (np.zeros((len(mine), len(numbers))) for _ in range(2))
    np.add.at(sent, (row, column), own["wire_bytes"].to_numpy(np.float64))
    np.add.at(busy, (row, column), float(bin_ns))
    first, last = np.full(len(numbers), 1 << 62), np.full(len(numbers), -1)
    bins = own["bin"].to_numpy(np.int64)
    np.minimum.at(first, column, bins)
    np.maximum.at(last, column, bins)
    communication = np.where(last >= 0, (last - first + 1.0) * bin_ns, 0.0)
    return JobSeen(job, told.starts_ns, [ends for _, ends in mine], sent, busy, communication, flows)
