# SPDX-License-Identifier: Apache-2.0
"""Labelled tables made of what runs of the lab left behind."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from netmon.dl.inference import TRAFFIC, LinkFlow
from netmon.errors import DataError
from netmon.lab.labelled import CROSS, DL, MOMENTS, OTHER, TRUTH, Labelled, TrueJob, read, sends_upwards, structured
from netmon.lab.record import FOLDER
from netmon.lab.truth import read_cross, read_rank
from netmon.records import Direction, Table

RESOLUTION_NS = 1_000_000
_FLOW_KEY = ["host", "session", "interface", "direction", "flow_id"]


def job_folders(data: Path) -> list[Path]:
    """Where the truth of a run lies: DATA/lab, or one folder in it for each of several jobs; none if this is no run."""
    if (data / FOLDER / "run.json").is_file():
        return [data / FOLDER]
    return sorted(file.parent for file in data.glob(f"{FOLDER}/*/run.json"))


def from_run(data: Path, resolution_ns: int = RESOLUTION_NS) -> Labelled:
    """What `netmon lab run --data DATA` left, at a coarser resolution. Raises DataError.

    Of several jobs that trained together, DATA/lab has a folder each, with all that DATA/lab has of one.
    """
    folders = job_folders(data)
    try:
        runs = [json.loads((folder / "run.json").read_text()) for folder in folders or [data / FOLDER]]
        flows = pd.read_parquet(data / "flows")
        buckets = pd.read_parquet(data / "buckets", columns=[*_FLOW_KEY, "bucket_start_ns", "payload_bytes"])
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise DataError(f"cannot label {data}: {error}; it takes the --data of a watched `netmon lab run`") from None
    jobs = tuple(_job(data, folder, run) for folder, run in zip(folders, runs, strict=True))
    cross = [sender for folder in folders for sender in read_cross(data, folder)]
    described, kinds, whose, number = _flows(flows, runs[0]["hosts"], jobs, cross)
    return Labelled(
        run=data.resolve().name,
        resolution_ns=resolution_ns,
        cross_load=runs[0]["spec"]["cross_load"] if cross else 0.0,
        cross_profile=runs[0]["spec"]["cross_profile"] if cross else "",
        jobs=jobs,
        flows=described,
        kinds=kinds,
        whose=whose,
        traffic=_traffic(buckets, number, resolution_ns),
    )


def _job(data: Path, folder: Path, run: Mapping[str, Any]) -> TrueJob:
    spec = run["spec"]
    address_of = {host["rank"]: host["address"] for host in run["hosts"] if host["rank"] is not None}
    to_utc = run["events"][0]["utc_ns"] - run["events"][0]["mono_ns"]
    return TrueJob(
        job=run["job"],
        trainer=spec["trainer"],
        pattern=spec.get("pattern", "ring"),
        members=tuple(address_of[rank] for rank in sorted(address_of, reverse=not sends_upwards(spec["trainer"]))),
        iterations=np.concatenate([_moments(read_rank(data, rank, folder), to_utc) for rank in sorted(address_of)]),
    )


def _flows(
    flows: pd.DataFrame, hosts: Sequence[Mapping[str, Any]], jobs: Sequence[TrueJob], cross: Sequence[Mapping[str, Any]]
) -> tuple[tuple[LinkFlow, ...], tuple[str, ...], tuple[int, ...], pd.Series]:
    """The flows, their kinds, whose they are, and the number of each by its key in the dataset."""
    address_of = {host["name"]: host["address"] for host in hosts}
    disturbing = {(address_of[sender["to"]], sender["to_port"]) for sender in cross}
    described, kinds, whose = [], [], []
    for row in flows.to_dict("records"):
        direction = Direction[str(row["direction"]).upper()]
        ends = (row["src"], row["dst"], row["src_port"], row["dst_port"], row["protocol"])
        flow = LinkFlow(str(row["host"]), str(row["interface"]), int(direction), *ends)
        of_cross = {(flow.src, flow.src_port), (flow.dst, flow.dst_port)} & disturbing
        job = -1 if of_cross else _whose(flow, str(row["job"]), jobs)
        described.append(flow)
        whose.append(job)
        kinds.append(CROSS if of_cross else DL if job >= 0 else OTHER)
    keys = pd.MultiIndex.from_frame(flows[_FLOW_KEY].astype(dict.fromkeys(_FLOW_KEY[:-1], str)))
    number = pd.Series(np.arange(len(flows)), index=keys, name="flow")
    return tuple(described), tuple(kinds), tuple(whose), number


def _whose(flow: LinkFlow, named: str, jobs: Sequence[TrueJob]) -> int:
    """Place of the job between whose ranks a flow is; of several, the one whose process held its socket."""
    between = [index for index, job in enumerate(jobs) if {flow.src, flow.dst} <= set(job.members)]
    return next((index for index in between if jobs[index].job == named), between[0]) if between else -1


def _traffic(buckets: pd.DataFrame, number: pd.Series, resolution_ns: int) -> Table:
    buckets = buckets[buckets["payload_bytes"] > 0].astype(dict.fromkeys(_FLOW_KEY[:-1], str))
    buckets["time_ns"] = buckets["bucket_start_ns"] // resolution_ns * resolution_ns
    sums = buckets.groupby([*_FLOW_KEY, "time_ns"], as_index=False, observed=True)["payload_bytes"].sum()
    sums = sums.join(number, on=_FLOW_KEY, how="inner").sort_values(["time_ns", "flow"])
    return structured({name: sums[name].to_numpy() for name in TRAFFIC.names or ()}, TRAFFIC)


def _moments(rank: Table, to_utc: int) -> Table:
    shift = {name: to_utc if name.endswith("_ns") else 0 for name in MOMENTS}
    return structured({name: rank[name] + shift[name] for name in MOMENTS}, TRUTH)


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
