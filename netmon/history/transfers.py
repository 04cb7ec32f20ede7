# SPDX-License-Identifier: Apache-2.0
"""What ranks have sent each other by NCCL, out of a dataset: with the rank at the other end, the iteration and the way.

The table has what one host knows. All else is found when it is read: iterations are known later than transfers.
"""

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.dataset as ds

from netmon.dl.transfers import COLUMNS, NOTHING, Numbers, ProcessBytes, Way, pair_views, partners, rank_pairs, ways
from netmon.dl.verdict.by_transfers import SENT, PostedRow, Transfers, with_posted
from netmon.errors import NoRowsError
from netmon.evidence import UNKNOWN
from netmon.history.dataset import Window, all_of, open_rows, read_rows, stream
from netmon.views import RankPair

_AROUND_NS = 1_500_000_000  # rows of other tables cover a second
_POSTED = ["host", "pid", "rdma_device", "verb", "bytes", "start_ns", "end_ns"]
_SENT = ["host", "session", "flow_id", "sent_bytes", "retransmitted_bytes", "start_ns", "end_ns"]
_OTHERS = ["host", "session", "job", "pid", "algorithm", "protocol", "device", "queued_ns", "transfers"]


def read_transfers(data: Path, window: Window) -> pd.DataFrame:
    """Rows of `transfers` by start, with `iteration` and `peer_rank` (−1: not known), `transport`, `interface`, and
    `other_end`: the index of the row that tells of the same from the other side; −1: none does.

    Raises DataError.
    """
    rows = _read(data, window)
    if rows.empty:
        return rows.assign(**{name: [] for name in ("iteration", "peer_rank", "transport", "interface", "other_end")})
    iterations = read_rows(
        data,
        "iterations",
        ["job", "rank", "size", "iteration", "start_ns", "end_ns"],
        ds.field("job").isin(sorted(set(rows["job"]))),
        (int(rows["start_ns"].min()) - _AROUND_NS, int(rows["end_ns"].max())),
    )
    rows["iteration"] = _iterations(rows, iterations)
    first, last = window.iterations
    if first is not None or last is not None:
        wanted = (rows["iteration"] >= (first or 0)) & (rows["iteration"] < (last if last is not None else 1 << 62))
        rows = rows[wanted].reset_index(drop=True)
    numbers, process = _numbers(rows)
    sizes = iterations.groupby("job", observed=True)["size"].max().fillna(0).astype(int)
    jobs = dict(zip(rows["job"], numbers["job"], strict=True))
    found = partners(numbers, {int(jobs[job]): size for job, size in sizes.items() if job in jobs})
    rows["peer_rank"], rows["other_end"] = found.rank, found.row
    ways = _ways(data, rows, process)
    rows["transport"] = [ways[one].transport for one in process.tolist()]
    rows["interface"] = [ways[one].device for one in process.tolist()]
    return rows


def pairs_of(data: Path, window: Window) -> dict[str, tuple[RankPair, ...]]:
    """By job, what its pairs of ranks have transferred. Raises DataError."""
    rows = read_transfers(data, window)
    if rows.empty:
        return {}
    numbers, process = _numbers(rows)
    names = dict(zip(numbers["job"].tolist(), rows["job"], strict=True))
    views = pair_views(rank_pairs(numbers, rows["peer_rank"].to_numpy()), _ways(data, rows, process))
    return {str(names[job]): pairs for job, pairs in views.items()}


def read_steps(data: Path, window: Window) -> pd.DataFrame:
    """A row per job, rank and iteration in which NCCL has sent something: when the first gradient was handed over
    (`comm_start_ns`; null: not known), the first transfer began and the last ended, when the iteration was over, all
    UTC; `error_ns`, by which its ends may be off; `exposed_ns`, for how long the rank waited; null: not known, as where
    no thread waits for what a GPU does.

    Raises DataError.
    """
    rows = read_transfers(data, window)
    inside = rows[rows["iteration"] >= 0]
    by = inside.groupby(["job", "rank", "iteration"], as_index=False)
    spans = by.agg(first_transfer_ns=("start_ns", "min"), last_transfer_ns=("end_ns", "max"))
    names = ["job", "rank", "iteration", "start_ns", "end_ns", "comm_start_ns", "exposed_ns", "error_ns"]
    steps = read_rows(data, "iterations", names, ds.field("job").isin(sorted(set(inside["job"]))))
    return steps.astype({"job": object}).merge(spans, on=["job", "rank", "iteration"])


def _read(data: Path, window: Window) -> pd.DataFrame:
    names = list(dict.fromkeys([*_OTHERS, *COLUMNS]))
    span = Window(window.since_ns, window.until_ns, window.job, window.hosts)
    try:
        files, condition = open_rows(data, "transfers", span)
    except NoRowsError:
        return pd.DataFrame(columns=names)
    ranks = all_of([ds.field("rank") >= 0, *([condition] if condition is not None else [])])
    pieces = [batch.to_pandas() for batch in stream(files, names, ranks)]
    if not pieces:
        return pd.DataFrame(columns=names)
    rows = pd.concat([piece.astype({"host": str, "session": str, "job": str}) for piece in pieces])
    whole = [name for name in names if name not in ("host", "session", "job")]
    rows = rows.astype(dict.fromkeys(whole, "Int64")).fillna(dict.fromkeys(whole, UNKNOWN))
    rows = rows.astype(dict.fromkeys(whole, "int64"))
    return pd.DataFrame(rows.sort_values(["start_ns", "rank"], kind="stable", ignore_index=True))


def _iterations(rows: pd.DataFrame, iterations: pd.DataFrame) -> Numbers:
    """In which a transfer, or an operation, began; −1: in none."""
    found = np.full(len(rows), UNKNOWN, np.int64)
    known = iterations.sort_values("start_ns")
    for (job, rank), own in rows.groupby(["job", "rank"], sort=False):
        steps = known[(known["job"] == job) & (known["rank"] == rank)]
        if steps.empty:
            continue
        starts, ends, numbers = (steps[name].to_numpy(np.int64) for name in ("start_ns", "end_ns", "iteration"))
        at = np.searchsorted(starts, own["start_ns"].to_numpy(), "right") - 1
        inside = (at >= 0) & (own["start_ns"].to_numpy() < ends[np.maximum(at, 0)])
        found[own.index] = np.where(inside, numbers[np.maximum(at, 0)], UNKNOWN)
    return found


def _numbers(rows: pd.DataFrame) -> tuple[dict[str, Numbers], Numbers]:
    """As netmon.dl.transfers.Rows, and the process of each row."""
    process: Numbers = rows.groupby(["host", "pid"], sort=False).ngroup().to_numpy().astype(np.int64)
    job: Numbers = rows.groupby("job", sort=False).ngroup().to_numpy().astype(np.int64)
    return {"job": job, "process": process, **{name: rows[name].to_numpy(np.int64) for name in COLUMNS}}, process


def _ways(data: Path, rows: pd.DataFrame, process: Numbers) -> Mapping[int, Way]:
    """Of each process, in the time of these rows."""
    span = int(rows["start_ns"].min()) - _AROUND_NS, int(rows["end_ns"].max()) + _AROUND_NS
    inside = (ds.field("end_ns") >= span[0]) & (ds.field("start_ns") <= span[1])
    posted = read_rows(data, "rdma", _POSTED, inside & ds.field("verb").isin(["write", "send"]), span, whole=True)
    sent = read_rows(data, "transport", _SENT, inside & (ds.field("sent_bytes") > 0), span, whole=True)
    flows = read_rows(
        data, "flows", ["session", "flow_id", "job", "rank", "interface", "direction"], ds.field("direction") == "tx"
    ).drop_duplicates(["session", "flow_id"], keep="last")
    if not (sent.empty or flows.empty):  # else all send by RDMA
        sent = sent.merge(flows, on=["session", "flow_id"])
    sent["bytes"] = sent["sent_bytes"] - sent["retransmitted_bytes"].fillna(0).clip(lower=0)
    whose = rows.assign(process=process)
    totals = []
    for one, keys, name in ((posted, ["host", "pid"], "rdma_device"), (sent, ["host", "job", "rank"], "interface")):
        if name in one and not one.empty:
            one = one.merge(whose[[*keys, "process"]].drop_duplicates(keys, keep="last"))
            totals.append(ProcessBytes(*(one[column].to_numpy() for column in ("process", name, "bytes"))))
        else:
            totals.append(NOTHING)
    sends = rows["sends"].to_numpy() == 1
    return ways(process, np.where(sends, rows["bytes"].to_numpy(), 0), *totals)


_BY_OTHERS = ["host", "job", "rank", "process", "container", "rdma_device", "verb", "bytes", "start_ns", "end_ns"]


def transfers_of(data: Path, job: str, rows: pd.DataFrame, clock_error_ns: int) -> Transfers | None:
    """What verdicts on these iterations (rows of the table of one job) take of NCCL; None: nothing is known."""
    begin, end = int(rows["start_ns"].min()), int(rows["end_ns"].max())
    found = read_transfers(data, Window(begin, end + _AROUND_NS, job))
    if found.empty:
        return None
    sent = np.empty(len(found), SENT)
    for name in SENT.names or ():
        sent[name] = found["peer_rank" if name == "peer" else name]
    span = begin - _AROUND_NS, end + _AROUND_NS
    there = ds.field("host").isin(sorted(set(rows["host"].astype(str))))
    inside = there & (ds.field("end_ns") >= span[0]) & (ds.field("start_ns") <= span[1])
    posted = read_rows(data, "rdma", _BY_OTHERS, inside, span, whole=True)
    return with_posted(Transfers(sent, clock_error_ns=clock_error_ns), map(_posted, posted.to_dict("records")), job)


def _posted(row: Mapping[Hashable, Any]) -> PostedRow:
    process = f"{row['process']} ({row['container']})" if row["container"] else str(row["process"] or "")
    host, device, verb, job = (str(row[name] or "") for name in ("host", "rdma_device", "verb", "job"))
    start_ns, end_ns, bytes_ = (
        int(row[name]) if row[name] == row[name] else 0 for name in ("start_ns", "end_ns", "bytes")
    )
    return PostedRow(host, device, verb, job, int(row["rank"]), process, start_ns, end_ns, bytes_)
