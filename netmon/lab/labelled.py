# SPDX-License-Identifier: Apache-2.0
"""A run's traffic with its truth in one small file: what to develop an inference against, and to score it by.

The file is Parquet: a row is the payload of one flow in one bucket (`bucket` counts from start_ns on), with where the
flow was seen, its 5-tuple, its kind and its job's place among the run's jobs; the truth is JSON in the schema's
metadata under `netmon.labelled`. Version 1 has one job, whose truth lies beside what is said of the run.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from netmon.dl.inference import TRAFFIC, LinkFlow
from netmon.errors import DataError
from netmon.records import Table

_KEY = b"netmon.labelled"
_VERSIONS = 1, 2
MOMENTS = ("rank", "iteration", "step_start_ns", "first_enqueue_ns", "last_wait_ns", "step_end_ns")
_OF_RUN = ("run", "resolution_ns", "cross_load", "cross_profile")
_OF_JOB = ("trainer", "pattern", "members")
_FLOW_FIELDS = tuple(field.name for field in fields(LinkFlow))
TRUTH = np.dtype([(name, "<i8") for name in MOMENTS])
"""One iteration of one rank, UTC ns."""
DL, CROSS, OTHER = "dl", "cross", "other"


@dataclass(frozen=True)
class TrueJob:
    """One job of a run, as its trainers tell."""

    job: str  # what the lab called it; empty in files of version 1
    trainer: str
    pattern: str
    members: tuple[str, ...]  # addresses; of a ring, each sends to the next
    iterations: Table  # dtype TRUTH

    @property
    def address_of_rank(self) -> tuple[str, ...]:
        """By rank."""
        return self.members if sends_upwards(self.trainer) else self.members[::-1]


@dataclass(frozen=True)
class Labelled:
    """One run. kinds: of each flow, DL (of a job's processes), CROSS or OTHER; whose: of which job, −1 of none."""

    run: str
    resolution_ns: int
    cross_load: float
    cross_profile: str  # empty: no cross traffic
    jobs: tuple[TrueJob, ...]
    flows: tuple[LinkFlow, ...]
    kinds: tuple[str, ...]
    whose: tuple[int, ...]
    traffic: Table  # dtype TRAFFIC, ordered by time; flow: index into flows


def sends_upwards(trainer: str) -> bool:
    """Our ring trainer sends to rank+1, gloo's ring (Horovod's and DDP's) to rank−1."""
    return trainer == "ring"


def structured(columns: Mapping[str, Any], dtype: np.dtype[Any]) -> Table:
    """Columns of one length as a table."""
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
    columns["job"] = pa.array(labelled.whose, pa.int8()).take(columns["flow"])
    document = {name: getattr(labelled, name) for name in _OF_RUN} | {
        "version": _VERSIONS[-1],
        "start_ns": start,
        "jobs": [_document(job) for job in labelled.jobs],
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


def _document(job: TrueJob) -> dict[str, Any]:
    moments = {name: job.iterations[name].tolist() for name in MOMENTS}
    return {"job": job.job, **{name: getattr(job, name) for name in _OF_JOB}, "iterations": moments}


def read(path: Path) -> Labelled:
    """Read one file. Flows without payload are not in it. Raises DataError."""
    try:
        table = pq.read_table(path)
        document = json.loads((table.schema.metadata or {})[_KEY])
    except (OSError, ValueError, KeyError, pa.ArrowException):
        raise DataError(f"cannot read {path}: not a labelled table (Parquet with the truth in its metadata)") from None
    if document["version"] not in _VERSIONS:
        raise DataError(f"cannot read {path}: version {document['version']}; this netmon reads 1 and 2")
    if "job" not in table.column_names:
        table = table.append_column("job", pc.subtract(pc.equal(table["kind"], DL).cast(pa.int8()), 1))
    _, first, flow = np.unique(table["flow"].to_numpy(), return_index=True, return_inverse=True)
    flows = table.select([*_FLOW_FIELDS, "kind", "job"]).take(pa.array(first)).to_pylist()
    time_ns = table["bucket"].to_numpy().astype(np.int64) * document["resolution_ns"] + document["start_ns"]
    traffic = structured(
        {"time_ns": time_ns, "flow": flow, "payload_bytes": table["payload_bytes"].to_numpy()}, TRAFFIC
    )
    return Labelled(
        **{name: document[name] for name in _OF_RUN},
        jobs=tuple(_read_job(job) for job in document.get("jobs", [document])),
        flows=tuple(LinkFlow(**{name: row[name] for name in _FLOW_FIELDS}) for row in flows),
        kinds=tuple(row["kind"] for row in flows),
        whose=tuple(row["job"] for row in flows),
        traffic=traffic[np.lexsort((traffic["flow"], traffic["time_ns"]))],
    )


def _read_job(document: Mapping[str, Any]) -> TrueJob:
    moments = {name: np.array(column, np.int64) for name, column in document["iterations"].items()}
    what = {name: document[name] for name in _OF_JOB} | {"members": tuple(document["members"])}
    return TrueJob(document.get("job", ""), **what, iterations=structured(moments, TRUTH))
