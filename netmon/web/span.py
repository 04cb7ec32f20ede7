# SPDX-License-Identifier: Apache-2.0
"""What was carried in a span of time, by class, by process and by flow, beside the span before; and which processes
there are.

All rows of a time are added up where they are no more than MOST_ROWS. Of more, a part is read: of SAMPLES pieces of the
time the first rows of each, which stand for the piece. What is found is an estimate then, and says so.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from netmon.history.frames import plain_words
from netmon.past import RowQuery, Rows
from netmon.web.source import SHOWN

MOST_ROWS = 12_000_000
SAMPLES = 60
_FIRST_SAMPLE = 0.01  # of a piece, before it is known how many rows there are
_LEAST_NS = 1_000_000  # of a piece, that is read
_MOST_TOGETHER = 1_000_000  # sums, before those of one flow are added up
_MOST_FLOWS = 500  # that are told one by one
_MOST_PROCESSES = 50
_MOST_LANES = 8  # processes below a host
_FLOW = ["session", "host", "direction", "flow_id", "class"]
_NAMES = ["src", "src_port", "dst", "dst_port", "protocol", "process", "container", "user", "job", "rank"]
_SUMS = ["now", "before"]


def of_span(rows: Rows, hosts: Sequence[str], begin_ns: int, end_ns: int) -> dict[str, Any]:
    """Wire bytes; hosts: none for all. `read_ns`: of how much of the time rows were read. Blocks."""
    found = _by_flow(rows, hosts, 2 * begin_ns - end_ns, end_ns, 2, list(SHOWN))
    flows = _now_and_before(found.sums)
    if not len(flows):
        return {"classes": [], "processes": [], "flows": [], "all": 0, "read_ns": found.read_ns // 2}
    flows = flows.merge(_described(rows, flows), on=["session", "flow_id"], how="left")
    flows["name"] = _who(flows)
    flows["user"] = flows["user"].fillna("")
    largest = flows.nlargest(_MOST_FLOWS, "now").drop(columns=["session", "name"])
    return {
        "classes": _both_ways(flows, ["class"]),
        "processes": _both_ways(flows, ["name", "user", "host"])[:_MOST_PROCESSES],
        "flows": _records(largest),
        "all": len(flows),
        "read_ns": found.read_ns // 2,
    }


def by_process(
    rows: Rows, host: str, begin_ns: int, end_ns: int, bins: int
) -> tuple[dict[str, Any], dict[str, npt.NDArray[np.float32]]]:
    """What the processes of a host carried that carried most: their names, and (process, rx and tx, bin) bit/s.

    At most so many bins. Blocks.
    """
    found = _by_flow(rows, [host], begin_ns, end_ns, bins, ["wire_bytes"])
    head: dict[str, Any] = {"names": [], "bins": found.bins, "width_ns": found.width_ns, "read_ns": found.read_ns}
    if not len(found.sums):
        return head, {"rate_bps": np.zeros(0, np.float32)}
    flows = found.sums.merge(_described(rows, found.sums), on=["session", "flow_id"], how="left")
    flows["name"] = _who(flows)
    names = flows.groupby("name")["wire_bytes"].sum().nlargest(_MOST_LANES).index.tolist()
    flows = flows[flows["name"].isin(names)]
    values = np.zeros((len(names), 2, found.bins))
    place = flows["name"].map({name: at for at, name in enumerate(names)}).to_numpy(np.int64)
    sent = (flows["direction"] == "tx").to_numpy(np.int64)
    np.add.at(values, (place, sent, flows["bin"].to_numpy(np.int64)), flows["wire_bytes"])
    return {**head, "names": names}, {"rate_bps": (values * (8e9 / found.width_ns)).astype(np.float32).ravel()}


class _Found(NamedTuple):
    sums: pd.DataFrame  # by flow and bin
    bins: int
    width_ns: int  # of a bin
    read_ns: int  # how much of the time was read


def _by_flow(rows: Rows, hosts: Sequence[str], begin_ns: int, end_ns: int, bins: int, counts: Sequence[str]) -> _Found:
    """Sums of counts; in fewer bins where there are too many rows."""
    width = -(-(end_ns - begin_ns) // bins)
    sums = _FlowSums(rows, hosts, begin_ns, width, counts)
    if sums.add(begin_ns, end_ns, 1.0, MOST_ROWS):
        return _Found(sums.frame(), bins, width, end_ns - begin_ns)
    bins = min(bins, SAMPLES)
    width = -(-(end_ns - begin_ns) // bins)
    sums = _FlowSums(rows, hosts, begin_ns, width, counts)
    piece = -(-(end_ns - begin_ns) // SAMPLES)
    length, read_ns = max(_LEAST_NS, int(piece * _FIRST_SAMPLE)), 0
    for since in range(begin_ns, end_ns, piece):
        until = min(since + length, end_ns)
        sums.add(since, until, min(piece, end_ns - since) / (until - since))
        read_ns += until - since
        length = max(_LEAST_NS, min(piece, int(MOST_ROWS / SAMPLES * read_ns / max(sums.read, 1))))
    return _Found(sums.frame(), bins, width, read_ns)


class _FlowSums:
    """Sums by flow and bin of rows that are read."""

    def __init__(self, rows: Rows, hosts: Sequence[str], begin_ns: int, width_ns: int, counts: Sequence[str]) -> None:
        self.read = 0  # rows
        self._rows, self._among, self._counts = rows, _among(host=hosts), counts
        self._begin_ns, self._width_ns = begin_ns, width_ns
        self._pieces: list[pd.DataFrame] = []

    def add(self, since_ns: int, until_ns: int, factor: float, most: float = np.inf) -> bool:
        """The rows that begin in a time, times a factor. False: they are more than `most`, and not all are added."""
        wanted = RowQuery("buckets", [*_FLOW, "bucket_start_ns", *self._counts], since_ns, until_ns, self._among)
        begun = self.read
        for batch in self._rows.batches(wanted):
            self.read += batch.num_rows
            if self.read - begun > most:
                return False
            start = batch.column("bucket_start_ns").to_numpy(zero_copy_only=False)
            names = [name for name in self._counts if name in batch.schema.names]
            table = pa.Table.from_batches([batch]).select([*_FLOW, *names])
            table = table.append_column("bin", pa.array((start - self._begin_ns) // self._width_ns))
            table = table.filter(pa.array((start >= since_ns) & (start < until_ns)))
            found = table.group_by([*_FLOW, "bin"]).aggregate([(name, "sum") for name in names])
            piece = plain_words(found.to_pandas()).rename(columns={f"{name}_sum": name for name in names})
            piece[names] = piece[names] * factor
            self._pieces.append(piece)
            if len(self._pieces) > 1 and sum(map(len, self._pieces)) > _MOST_TOGETHER:
                self._pieces = [self.frame()]
        return True

    def frame(self) -> pd.DataFrame:
        if not sum(map(len, self._pieces)):
            return pd.DataFrame()
        known = [name for name in self._counts if any(name in piece for piece in self._pieces)]
        return pd.concat(self._pieces).groupby([*_FLOW, "bin"], as_index=False)[known].sum()


def _now_and_before(sums: pd.DataFrame) -> pd.DataFrame:
    """sums: by flow and bin, of which the second one is now. By flow; counts but bytes are those of now."""
    if not len(sums):
        return sums
    others = [str(name) for name in sums if name not in (*_FLOW, "bin", "wire_bytes")]
    now = sums["bin"] == 1
    parts = {"now": sums["wire_bytes"].where(now, 0), "before": sums["wire_bytes"].where(~now, 0)}
    parts |= {name: sums[name].where(now, 0) for name in others}
    found = sums[_FLOW].assign(**parts).groupby(_FLOW, as_index=False)[list(parts)].sum()
    found = found.astype(dict.fromkeys(parts, np.int64))
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
