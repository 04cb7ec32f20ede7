# SPDX-License-Identifier: Apache-2.0
"""What was carried in a span of time, by class, by process and by flow, beside the span before; and which processes
there are."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from netmon.errors import DataError
from netmon.history.frames import plain_words
from netmon.past import RowQuery, Rows
from netmon.web.source import SHOWN

MOST_NS = 60_000_000_000
_MOST_ROWS = 12_000_000
_MOST_FLOWS = 500  # that are told one by one
_MOST_PROCESSES = 50
_MOST_LANES = 8  # processes below a host
_FLOW = ["session", "host", "direction", "flow_id", "class"]
_NAMES = ["src", "src_port", "dst", "dst_port", "protocol", "process", "container", "user", "job", "rank"]
_SUMS = ["now", "before"]


def carried(rows: Rows, hosts: Sequence[str], begin_ns: int, end_ns: int) -> dict[str, Any]:
    """Wire bytes; hosts: none for all. Blocks. Raises DataError where too much is asked for."""
    if not 0 < end_ns - begin_ns <= MOST_NS:
        raise DataError(f"what was carried is told of a minute at most: choose {MOST_NS // 1_000_000_000} s or less")
    sums = _sums(rows, hosts, begin_ns, end_ns)
    if not len(sums):
        return {"classes": [], "processes": [], "flows": [], "all": 0}
    flows = sums.merge(_described(rows, sums), on=["session", "flow_id"], how="left")
    flows["name"] = _who(flows)
    flows["user"] = flows["user"].fillna("")
    largest = flows.nlargest(_MOST_FLOWS, "now").drop(columns=["session", "name"])
    return {
        "classes": _both_ways(flows, ["class"]),
        "processes": _both_ways(flows, ["name", "user", "host"])[:_MOST_PROCESSES],
        "flows": _records(largest),
        "all": len(flows),
    }


def by_process(
    rows: Rows, host: str, begin_ns: int, end_ns: int, bins: int
) -> tuple[dict[str, Any], dict[str, npt.NDArray[np.float32]]]:
    """What the processes of a host carried that carried most: their names, and (process, rx and tx, bin) bit/s.

    Blocks. Raises DataError where too much is asked for.
    """
    if not 0 < end_ns - begin_ns <= MOST_NS:
        raise DataError(f"processes are told of a minute at most: zoom in to {MOST_NS // 1_000_000_000} s")
    width = -(-(end_ns - begin_ns) // bins)
    wanted = RowQuery("buckets", [*_FLOW, "bucket_start_ns", "wire_bytes"], begin_ns, end_ns, _among(host=[host]))
    pieces = []
    for batch in rows.batches(wanted):
        start = batch.column("bucket_start_ns").to_numpy(zero_copy_only=False)
        inside = (start >= begin_ns) & (start < end_ns)
        table = pa.Table.from_batches([batch]).select([*_FLOW, "wire_bytes"])
        table = table.append_column("bin", pa.array((start - begin_ns) // width)).filter(pa.array(inside))
        found = table.group_by([*_FLOW, "bin"]).aggregate([("wire_bytes", "sum")])
        pieces.append(plain_words(found.to_pandas()).rename(columns={"wire_bytes_sum": "now"}))
    head: dict[str, Any] = {"names": [], "bins": bins, "width_ns": width}
    if not pieces or not sum(map(len, pieces)):
        return head, {"rate_bps": np.zeros(0, np.float32)}
    sums = pd.concat(pieces)
    flows = sums.merge(_described(rows, sums), on=["session", "flow_id"], how="left")
    flows["name"] = _who(flows)
    names = flows.groupby("name")["now"].sum().nlargest(_MOST_LANES).index.tolist()
    flows = flows[flows["name"].isin(names)]
    values = np.zeros((len(names), 2, bins))
    place = flows["name"].map({name: at for at, name in enumerate(names)}).to_numpy(np.int64)
    np.add.at(
        values, (place, (flows["direction"] == "tx").to_numpy(np.int64), flows["bin"].to_numpy(np.int64)), flows["now"]
    )
    return {**head, "names": names}, {"rate_bps": (values * (8e9 / width)).astype(np.float32).ravel()}


def _sums(rows: Rows, hosts: Sequence[str], begin_ns: int, end_ns: int) -> pd.DataFrame:
    """By flow, in the span and in the one before."""
    first_ns = 2 * begin_ns - end_ns
    wanted = RowQuery("buckets", [*_FLOW, "bucket_start_ns", *SHOWN], first_ns, end_ns, _among(host=hosts))
    pieces, read = [], 0
    names = list(_SUMS)
    for batch in rows.batches(wanted):
        read += batch.num_rows
        if read > _MOST_ROWS:
            raise DataError("too much was carried in this time to add it up: choose a shorter one, or one host")
        start = batch.column("bucket_start_ns").to_numpy(zero_copy_only=False)
        now, before = start >= begin_ns, (start >= first_ns) & (start < begin_ns)
        names = [*_SUMS, *(name for name in SHOWN if name != "wire_bytes" and name in batch.schema.names)]
        table = pa.Table.from_batches([batch]).select(_FLOW)
        for name in names:
            counts = batch.column("wire_bytes" if name in _SUMS else name).to_numpy(zero_copy_only=False)
            inside = before if name == "before" else now
            table = table.append_column(name, pa.array(np.where(inside, counts.astype(np.int64), 0)))
        found = table.group_by(_FLOW).aggregate([(name, "sum") for name in names])
        pieces.append(plain_words(found.to_pandas()).rename(columns={f"{name}_sum": name for name in names}))
    if not pieces:
        return pd.DataFrame()
    found = pd.concat(pieces).groupby(_FLOW, as_index=False)[names].sum()
    return found[found[_SUMS].sum(axis=1) > 0]


def _described(rows: Rows, sums: pd.DataFrame) -> pd.DataFrame:
    among = _among(session=sorted(set(sums["session"])), flow_id=sorted({int(one) for one in sums["flow_id"]}))
    batches = list(rows.batches(RowQuery("flows", ["session", "flow_id", *_NAMES], among=among)))
    found = plain_words(pa.Table.from_batches(batches).to_pandas()) if batches else pd.DataFrame()
    found = found.reindex(columns=["session", "flow_id", *_NAMES])
    return found.drop_duplicates(["session", "flow_id"], keep="last")


def _among(**values: Sequence[str | int]) -> dict[str, Sequence[str | int]]:
    return {name: own for name, own in values.items() if own}


def _who(flows: pd.DataFrame) -> pd.Series:
    """A rank of a job, or a process."""
    process = flows["process"].fillna("").astype(str).where(flows["process"].notna(), "not known")
    rank = flows["job"].fillna("").astype(str) + "/" + flows["rank"].fillna(-1).astype(int).astype(str)
    named: pd.Series = process.where(flows["job"].fillna("") == "", rank)
    return named.where(named != "", "not known")


def _both_ways(flows: pd.DataFrame, by: list[str]) -> list[dict[str, Any]]:
    """The most first."""
    sent = flows["direction"] == "tx"
    split = flows.assign(sent=flows["now"].where(sent, 0), received=flows["now"].where(~sent, 0))
    found = split.groupby(by, as_index=False)[["sent", "received", *_SUMS]].sum()
    return _records(found.sort_values("now", ascending=False))


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return [{str(name): value for name, value in row.items()} for row in rows]


def processes(rows: Rows) -> list[tuple[str, str, str]]:
    """Each process that had a flow, its user and its host. Blocks."""
    found: dict[tuple[str, str, str], None] = {}
    columns = ["process", "user", "host"]
    for batch in rows.batches(RowQuery("flows", columns)):
        known = [name for name in columns if name in batch.schema.names]
        for row in pa.Table.from_batches([batch]).group_by(known).aggregate([]).to_pylist():
            if row.get("process"):
                found[str(row["process"]), str(row.get("user") or ""), str(row.get("host") or "")] = None
    return sorted(found)
