# SPDX-License-Identifier: Apache-2.0
"""A run's traffic with its truth in one small file: what to develop an inference against, and to score it by.

The file is Parquet: a row is the payload of one flow in one bucket (`bucket` counts from start_ns on), with where the
flow was seen, its 5-tuple and its kind; the truth is JSON in the schema's metadata under `netmon.labelled`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from netmon.dl.inference import TRAFFIC, LinkFlow
from netmon.errors import DataError
from netmon.lab.record import FOLDER
from netmon.lab.truth import read_cross, read_rank
from netmon.records import Direction, Table

RESOLUTION_NS = 1_000_000
_KEY = b"netmon.labelled"
_VERSION = 1
_FLOW_KEY = ["host", "session", "interface", "direction", "flow_id"]
_MOMENTS = ("rank", "iteration", "step_start_ns", "first_enqueue_ns", "last_wait_ns", "step_end_ns")
_PLAIN = ("run", "resolution_ns", "cross_load", "cross_profile", "trainer", "pattern", "members")
_FLOW_FIELDS = tuple(field.name for field in fields(LinkFlow))
TRUTH = np.dtype([(name, "<i8") for name in _MOMENTS])
"""One iteration of one rank, UTC ns."""
DL, CROSS, OTHER = "dl", "cross", "other"


@dataclass(frozen=True)
class Labelled:
    """One run with one job. kinds: of each flow, DL (of the job's processes), CROSS or OTHER."""

    run: str
    resolution_ns: int
    cross_load: float
    cross_profile: str  # empty: no cross traffic
    trainer: str
    pattern: str
    members: tuple[str, ...]  # addresses; of a ring, each sends to the next
    flows: tuple[LinkFlow, ...]
    kinds: tuple[str, ...]
    traffic: Table  # dtype TRAFFIC, ordered by time; flow: index into flows
    iterations: Table  # dtype TRUTH

    @property
    def address_of_rank(self) -> tuple[str, ...]:
        """By rank."""
        return self.members if _sends_upwards(self.trainer) else self.members[::-1]


def _sends_upwards(trainer: str) -> bool:
    """Our ring trainer sends to rank+1, gloo's ring (Horovod's and DDP's) to rank−1."""
    return trainer == "ring"


def from_run(data: Path, resolution_ns: int = RESOLUTION_NS) -> Labelled:
    """What `netmon lab run --data DATA` left, at a coarser resolution. Raises DataError."""
    try:
        run = json.loads((data / FOLDER / "run.json").read_text())
        flows = pd.read_parquet(data / "flows")
        buckets = pd.read_parquet(data / "buckets", columns=[*_FLOW_KEY, "bucket_start_ns", "payload_bytes"])
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise DataError(f"cannot label {data}: {error}; it takes the --data of a watched `netmon lab run`") from None
    spec, hosts = run["spec"], run["hosts"]
    cross = read_cross(data)
    described, kinds, number = _flows(flows, hosts, cross)
    ranks = sorted(host["rank"] for host in hosts if host["rank"] is not None)
    to_utc = run["events"][0]["utc_ns"] - run["events"][0]["mono_ns"]
    return Labelled(
        run=data.resolve().name,
        resolution_ns=resolution_ns,
        cross_load=spec["cross_load"] if cross else 0.0,
        cross_profile=spec["cross_profile"] if cross else "",
        trainer=spec["trainer"],
        pattern=spec.get("pattern", "ring"),
        members=_members(spec, {host["rank"]: host["address"] for host in hosts}, len(ranks)),
        flows=described,
        kinds=kinds,
        traffic=_traffic(buckets, number, resolution_ns),
        iterations=np.concatenate([_moments(read_rank(data, rank), to_utc) for rank in ranks]),
    )


def _members(spec: Mapping[str, Any], address_of: Mapping[int, str], size: int) -> tuple[str, ...]:
    """In the order in which a ring of theirs sends."""
    ranks = range(size) if _sends_upwards(spec["trainer"]) else range(size - 1, -1, -1)
    return tuple(address_of[rank] for rank in ranks)


def _flows(
    flows: pd.DataFrame, hosts: Sequence[Mapping[str, Any]], cross: Sequence[Mapping[str, Any]]
) -> tuple[tuple[LinkFlow, ...], tuple[str, ...], pd.Series]:
    """The flows, their kinds, and the number of each by its key in the dataset."""
    address_of = {host["name"]: host["address"] for host in hosts}
    ranks = {host["address"] for host in hosts if host["rank"] is not None}
    disturbing = {(address_of[sender["to"]], sender["to_port"]) for sender in cross}
    described, kinds = [], []
    for row in flows.to_dict("records"):
        direction = Direction[str(row["direction"]).upper()]
        ends = (row["src"], row["dst"], row["src_port"], row["dst_port"], row["protocol"])
        flow = LinkFlow(str(row["host"]), str(row["interface"]), int(direction), *ends)
        of_cross = {(flow.src, flow.src_port), (flow.dst, flow.dst_port)} & disturbing
        described.append(flow)
        kinds.append(CROSS if of_cross else DL if {flow.src, flow.dst} <= ranks else OTHER)
    keys = pd.MultiIndex.from_frame(flows[_FLOW_KEY].astype(dict.fromkeys(_FLOW_KEY[:-1], str)))
    return tuple(described), tuple(kinds), pd.Series(np.arange(len(flows)), index=keys, name="flow")


def _traffic(buckets: pd.DataFrame, number: pd.Series, resolution_ns: int) -> Table:
    buckets = buckets[buckets["payload_bytes"] > 0].astype(dict.fromkeys(_FLOW_KEY[:-1], str))
    buckets["time_ns"] = buckets["bucket_start_ns"] // resolution_ns * resolution_ns
    sums = buckets.groupby([*_FLOW_KEY, "time_ns"], as_index=False, observed=True)["payload_bytes"].sum()
    sums = sums.join(number, on=_FLOW_KEY, how="inner").sort_values(["time_ns", "flow"])
    return _table({name: sums[name].to_numpy() for name in TRAFFIC.names or ()}, TRAFFIC)


def _moments(rank: Table, to_utc: int) -> Table:
    shift = {name: to_utc if name.endswith("_ns") else 0 for name in _MOMENTS}
    return _table({name: rank[name] + shift[name] for name in _MOMENTS}, TRUTH)


def _table(columns: Mapping[str, Any], dtype: np.dtype[Any]) -> Table:
    table: Table = np.empty(len(next(iter(columns.values()))), dtype)
    for name, column in columns.items():
        table[name] = column
    return table


def write(labelled: Labelled, path: Path) -> None:
    """Write one file; times are kept to the resolution. Raises DataError."""
    traffic = labelled.traffic
    order = np.lexsort((traffic["time_ns"], traffic["flow"]))  # by flow: everything that is said of it packs to nothing
    traffic = traffic[order]
    start = int(traffic["time_ns"].min()) if len(traffic) else 0
    columns: dict[str, pa.Array] = {
        "flow": pa.array(traffic["flow"], pa.int32()),
        "bucket": pa.array((traffic["time_ns"] - start) // labelled.resolution_ns, pa.int32()),
        "payload_bytes": pa.array(traffic["payload_bytes"], pa.int32()),
    }
    for name in _FLOW_FIELDS:
        columns[name] = pa.array([getattr(flow, name) for flow in labelled.flows]).take(columns["flow"])
    columns["kind"] = pa.array(labelled.kinds, pa.string()).take(columns["flow"])
    document = {name: getattr(labelled, name) for name in _PLAIN} | {
        "version": _VERSION,
        "start_ns": start,
        "iterations": {name: labelled.iterations[name].tolist() for name in _MOMENTS},
    }
    table = pa.table(columns).replace_schema_metadata({_KEY: json.dumps(document).encode()})
    deltas = {"bucket": "DELTA_BINARY_PACKED"}
    dictionaries = [name for name in columns if name not in deltas]
    try:
        pq.write_table(
            *(table, path),
            compression="zstd",
            compression_level=19,
            use_dictionary=dictionaries,
            column_encoding=deltas,
        )
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}") from None


def read(path: Path) -> Labelled:
    """Read one file. Flows without payload are not in it. Raises DataError."""
    try:
        table = pq.read_table(path)
        document = json.loads((table.schema.metadata or {})[_KEY])
    except (OSError, ValueError, KeyError, pa.ArrowException):
        raise DataError(f"cannot read {path}: not a labelled table (Parquet with the truth in its metadata)") from None
    if document["version"] != _VERSION:
        raise DataError(f"cannot read {path}: version {document['version']}; this netmon reads {_VERSION}")
    _, first, flow = np.unique(table["flow"].to_numpy(), return_index=True, return_inverse=True)
    flows = table.select([*_FLOW_FIELDS, "kind"]).take(pa.array(first)).to_pylist()
    time_ns = table["bucket"].to_numpy().astype(np.int64) * document["resolution_ns"] + document["start_ns"]
    traffic = _table({"time_ns": time_ns, "flow": flow, "payload_bytes": table["payload_bytes"].to_numpy()}, TRAFFIC)
    moments = {name: np.array(column, np.int64) for name, column in document["iterations"].items()}
    return Labelled(
        **{name: document[name] for name in _PLAIN} | {"members": tuple(document["members"])},
        flows=tuple(LinkFlow(**{name: row[name] for name in _FLOW_FIELDS}) for row in flows),
        kinds=tuple(row["kind"] for row in flows),
        traffic=traffic[np.lexsort((traffic["flow"], traffic["time_ns"]))],
        iterations=_table(moments, TRUTH),
    )


def find(path: Path) -> Iterable[Labelled]:
    """All of a labelled file, a directory of such, a run's DATA or a directory of such, one at a time.

    Raises DataError where the path is none of them.
    """
    if path.is_file():
        yield read(path)
        return
    if (path / FOLDER / "run.json").is_file():
        yield from_run(path)
        return
    files = sorted(path.glob("*.parquet"))
    runs = sorted(run.parents[1] for run in path.glob(f"*/{FOLDER}/run.json"))
    if not files and not runs:
        what = "neither a labelled table, nor the --data of a `netmon lab run`, nor a directory of either"
        raise DataError(f"cannot score {path}: {what}")
    for file in files:
        yield read(file)
    for run in runs:
        yield from_run(run)
