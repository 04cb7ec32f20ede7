# SPDX-License-Identifier: Apache-2.0
"""A run's traffic with its truth, in memory or one small file: for inferences to be made and scored by.

The file is Parquet: a row is the payload of one flow in one bucket (`bucket` counts from start_ns on), with where the
flow was seen, its 5-tuple, its kind and its job's place among the run's jobs; the truth is JSON in the schema's
metadata under `netmon.labelled`. Version 1 has one job, whose truth lies beside what is said of the run.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from netmon.dl.inference.types import TRAFFIC, LinkFlow
from netmon.errors import DataError
from netmon.history.dataset import frame_of, open_table
from netmon.lab.record import FOLDER, Run, sends_upwards
from netmon.records import Direction, Table

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
        "jobs": [
            {name: getattr(job, name) for name in ("job", *_OF_JOB)}
            | {"iterations": {name: job.iterations[name].tolist() for name in MOMENTS}}
            for job in labelled.jobs
        ],
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


# --- made of what runs of the lab left behind

RESOLUTION_NS = 1_000_000
_FLOW_KEY = ["host", "session", "interface", "direction", "flow_id"]
_ENDS = ("src", "dst", "src_port", "dst_port", "protocol")


def job_folders(data: Path) -> list[Path]:
    """Where the truth of a run lies: DATA/lab, or one folder in it for each of several jobs; none if this is no run."""
    if (data / FOLDER / "run.json").is_file():
        return [data / FOLDER]
    return sorted(file.parent for file in data.glob(f"{FOLDER}/*/run.json"))


def from_run(data: Path) -> Labelled:
    """What `netmon lab run --data DATA` left, at a coarser resolution. Raises DataError.

    Of several jobs that trained together, DATA/lab has a folder each, with all that DATA/lab has of one.
    """
    runs = [Run(folder) for folder in job_folders(data) or [data / FOLDER]]
    try:
        first = runs[0].spec
        flows = frame_of(open_table(data, "flows"), [*_FLOW_KEY, *_ENDS, "job"])
        amounts = [*_FLOW_KEY, "bucket_start_ns", "payload_bytes"]
        buckets = frame_of(open_table(data, "buckets"), amounts, ds.field("payload_bytes") > 0)
    except (OSError, ValueError, KeyError, pa.ArrowException, DataError) as error:
        raise DataError(f"cannot label {data}: {error}; it takes the --data of a watched `netmon lab run`") from None
    jobs = tuple(map(_job, runs))
    cross = [sender for run in runs for sender in run.cross()]
    described, kinds, whose, number = _flows(flows, runs[0].address_of, jobs, cross)
    return Labelled(
        run=data.resolve().name,
        resolution_ns=RESOLUTION_NS,
        cross_load=first["cross_load"] if cross else 0.0,
        cross_profile=first["cross_profile"] if cross else "",
        jobs=jobs,
        flows=described,
        kinds=kinds,
        whose=whose,
        traffic=_traffic(buckets, number),
    )


def _job(run: Run) -> TrueJob:
    trainer, members = run.spec["trainer"], [run.address_of[host] for host in run.host_of.values()]
    rows = np.concatenate([run.rank(rank) for rank in run.host_of])
    shift = {name: run.to_utc_ns if name.endswith("_ns") else 0 for name in MOMENTS}
    moments = structured({name: rows[name] + shift[name] for name in MOMENTS}, TRUTH)
    pattern = run.spec.get("pattern", "ring")
    return TrueJob(run.job, trainer, pattern, tuple(members if sends_upwards(trainer) else members[::-1]), moments)


def _flows(
    flows: pd.DataFrame, address_of: Mapping[str, str], jobs: Sequence[TrueJob], cross: Sequence[Mapping[str, Any]]
) -> tuple[tuple[LinkFlow, ...], tuple[str, ...], tuple[int, ...], pd.Series]:
    """The flows, their kinds, whose they are, and the number of each by its key in the dataset."""
    disturbing = {(address_of[sender["to"]], sender["to_port"]) for sender in cross}
    described, kinds, whose = [], [], []
    for row in flows.to_dict("records"):
        direction = Direction[str(row["direction"]).upper()]
        ends = (row[name] for name in _ENDS)
        flow = LinkFlow(str(row["host"]), str(row["interface"]), int(direction), *ends)
        of_cross = {(flow.src, flow.src_port), (flow.dst, flow.dst_port)} & disturbing
        job = -1 if of_cross else _whose(flow, str(row["job"]), jobs)
        described.append(flow)
        whose.append(job)
        kinds.append(CROSS if of_cross else DL if job >= 0 else OTHER)
    number = pd.Series(np.arange(len(flows)), index=pd.MultiIndex.from_frame(flows[_FLOW_KEY]), name="flow")
    return tuple(described), tuple(kinds), tuple(whose), number


def _whose(flow: LinkFlow, named: str, jobs: Sequence[TrueJob]) -> int:
    """Place of the job between whose ranks a flow is; of several, the one whose process held its socket."""
    between = [index for index, job in enumerate(jobs) if {flow.src, flow.dst} <= set(job.members)]
    return next((index for index in between if jobs[index].job == named), between[0]) if between else -1


def _traffic(buckets: pd.DataFrame, number: pd.Series) -> Table:
    buckets = buckets.assign(time_ns=buckets["bucket_start_ns"] // RESOLUTION_NS * RESOLUTION_NS)
    sums = buckets.groupby([*_FLOW_KEY, "time_ns"], as_index=False)["payload_bytes"].sum()
    sums = sums.join(number, on=_FLOW_KEY, how="inner").sort_values(["time_ns", "flow"])
    return structured({name: sums[name].to_numpy() for name in TRAFFIC.names or ()}, TRAFFIC)


def find(path: Path) -> Iterable[Labelled]:
    """All of a labelled file, a directory of such, a run's DATA or a directory of such, one at a time.

    Raises DataError where the path is none of them.
    """
    if path.is_file():
        yield read(path)
        return
    if job_folders(path):
        yield from_run(path)
        return
    files = sorted(path.glob("*.parquet"))
    runs = sorted(run for run in path.glob("*") if job_folders(run))
    if not files and not runs:
        what = "neither a labelled table, nor the --data of a `netmon lab run`, nor a directory of either"
        raise DataError(f"cannot score {path}: {what}")
    for file in files:
        yield read(file)
    for run in runs:
        yield from_run(run)
