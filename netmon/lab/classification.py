# SPDX-License-Identifier: Apache-2.0
"""The classes that netmon gave to the bytes of a run, held against the lab's own knowledge of who sent them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds

from netmon.lab.record import FOLDER
from netmon.lab.truth import lasted, read_cross
from netmon.records import CLASS_NAMES, Class

_FLOW = ["host", "session", "flow_id"]
_DL = (CLASS_NAMES[Class.DL_ONLY], CLASS_NAMES[Class.DL_SHARED])
_UNCLASSIFIED = CLASS_NAMES[Class.UNCLASSIFIED]


@dataclass(frozen=True)
class Classification:
    """Wire bytes over all links of a run: training or not, as the lab knows it, against the dataset's class."""

    right_bytes: int
    wrong_bytes: int
    unclassified_bytes: int

    @property
    def right_share(self) -> float:
        """Of all bytes; nan where there are none."""
        total = self.right_bytes + self.wrong_bytes + self.unclassified_bytes
        return self.right_bytes / total if total else float("nan")


def classification(data: Path, folder: Path | None = None) -> Classification:
    """Of a watched run. data: its dataset. folder: a sweep's run's.

    Raises DataError where the truth is missing, OSError where the dataset is.
    Between two hosts of the job all that is not on a port of the cross traffic is the job's; the rest is not. That
    holds for the shortest connection: the truth needs no record of it.
    """
    run = json.loads(((folder or data / FOLDER) / "run.json").read_text())
    volumes = _volumes(data, *lasted(run)).merge(_flows(data), on=_FLOW, how="left")
    is_cross = _is_cross(run, read_cross(data, folder), volumes)
    training = pd.Series(False, index=volumes.index)
    for ranks in _addresses_of_jobs(run):
        training |= volumes["src"].isin(ranks) & volumes["dst"].isin(ranks) & ~is_cross
    told_training = volumes["class"].isin(_DL)
    unclassified = volumes["class"] == _UNCLASSIFIED
    right = (training == told_training) & ~unclassified
    count = volumes["wire_bytes_sum"]
    return Classification(
        int(count[right].sum()), int(count[~right & ~unclassified].sum()), int(count[unclassified].sum())
    )


def _addresses_of_jobs(run: dict[str, Any]) -> list[list[str]]:
    """Of the job that was run, and of those that were injected."""
    address = {host["name"]: host["address"] for host in run["hosts"]}
    own = [host["address"] for host in run["hosts"] if host["rank"] is not None]
    return [own, *([address[host] for host in other["hosts"]] for other in run.get("other_jobs", []))]


def _volumes(data: Path, since_ns: int, until_ns: int) -> pd.DataFrame:
    """Wire bytes by flow and class, of a span of UTC."""
    columns = [*_FLOW, "class", "wire_bytes"]
    buckets = ds.dataset(data / "buckets", format="parquet", partitioning="hive")
    begin = ds.field("bucket_start_ns")
    table = buckets.to_table(columns=columns, filter=(begin >= since_ns) & (begin < until_ns))
    sums: pd.DataFrame = _plain(table).group_by([*_FLOW, "class"]).aggregate([("wire_bytes", "sum")]).to_pandas()
    return sums


def _flows(data: Path) -> pd.DataFrame:
    """The addresses and ports of every flow; a flow may have several rows, one for each owner it was found to have."""
    columns = [*_FLOW, "src", "dst", "src_port", "dst_port", "protocol"]
    table = ds.dataset(data / "flows", format="parquet", partitioning="hive").to_table(columns=columns)
    flows: pd.DataFrame = _plain(table).to_pandas()
    return flows.drop_duplicates(_FLOW)


def _plain(table: pa.Table) -> pa.Table:
    """Dictionaries as plain strings: those of different files differ."""
    types = [pa.string() if pa.types.is_dictionary(field.type) else field.type for field in table.schema]
    return table.cast(pa.schema(list(zip(table.column_names, types, strict=True))))


def _is_cross(run: dict[str, Any], senders: list[dict[str, Any]], flows: pd.DataFrame) -> "pd.Series[bool]":
    """To or from the port of a receiver of cross traffic, at its address."""
    address = {host["name"]: host["address"] for host in run["hosts"]}
    found = pd.Series(False, index=flows.index)
    for sender in senders:
        receiver, port = address[sender["to"]], sender["to_port"]
        there = (flows["dst"] == receiver) & (flows["dst_port"] == port)
        back = (flows["src"] == receiver) & (flows["src_port"] == port)
        found |= there | back
    return found
