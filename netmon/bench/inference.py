# SPDX-License-Identifier: Apache-2.0
"""The inference compared with runs of which the truth is known.

Every run is replayed in slices of 200 ms, as a collector gets it, and what the inference says is scored:

- The truth is the trainers' own log: an iteration's communication is over for a rank when its wait for the last
  gradient is, and for the job when the last rank's is. The inference has the end from the traffic, per member.
- A true iteration and a found one match if their ends are each other's nearest and nearer than half a period.
- Each job of a run is a row. A found job is compared with the one with which it shares most members, so
  that an invented job, or one made of two, counts against the one that it is most like.
- The boundary error is every rank's: from when the inference says that its iteration ended to when its own wait did.
  The enqueue at the beginning does not show in the traffic: nothing moves before the last rank has enqueued,
  and all have agreed. How far the beginning of the traffic is from that is given alongside.
"""

import json
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from netmon.bench.result import or_dash, table
from netmon.bench.specs import InferenceSpec, Progress, silent
from netmon.dl.inference.grouping import DATA, PIPELINE, SHARDED_DATA, UNKNOWN
from netmon.dl.inference.live import Inference
from netmon.dl.inference.types import TRAFFIC, FlowVerdict, InferredIteration, InferredJob, LinkFlow
from netmon.dl.step_alignment import matched
from netmon.errors import DataError
from netmon.history.dataset import frame_of, open_table
from netmon.lab.record import FOLDER, Run, sends_upwards
from netmon.lab.spec import PARALLEL_TRAINERS
from netmon.records import Direction, Table
from netmon.terminal import FittingTable, figures, labels

# --- A run's traffic with its truth, in memory or one small file: for inferences to be made and scored by.
#
# The file is Parquet: a row is the payload of one flow in one bucket (`bucket` counts from start_ns on), with where
# the flow was seen, its 5-tuple, its kind and its job's place among the run's jobs; the truth is JSON in the schema's
# metadata under `netmon.labelled`. Version 1 has one job, whose truth lies next to what is said of the run.

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
    """One job of a run, as its trainers report it."""

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
    """Where the truth of a run lies: DATA/lab, or one folder in it for each job where there are more; none if this is
    no run."""
    if (data / FOLDER / "run.json").is_file():
        return [data / FOLDER]
    return sorted(file.parent for file in data.glob(f"{FOLDER}/*/run.json"))


def from_run(data: Path) -> Labelled:
    """What `netmon lab run --data DATA` left, at a coarser resolution. Raises DataError.

    Where multiple jobs trained together, DATA/lab has a folder each, with all that DATA/lab has of one.
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
    """Index of the job between whose ranks a flow is; of more than one, the one whose process owned its socket."""
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


# --- The inference compared with runs of which the truth is known.

SLICE_NS = 200_000_000
_FOLDER = Path(__file__).parents[2] / "tests" / "data" / "inference"
_BEFORE_NS = 2_000_000_000  # for which a run was watched before its first row
_AFTER_SLICE_NS = 1_000_000_000
_AFTER_NS = 60_000_000_000  # for which the replay goes on after the last row: a job's end shows as silence
_KINDS = {"fsdp": SHARDED_DATA, "tensor": "tensor", "pipeline": PIPELINE, "experts": "expert"}
_Times = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RunScore:
    """One job of a run. Errors are medians of absolute differences, as a share of the median true iteration.

    run: with the job's name behind it where there is more than one. jobs: found that are compared with this one;
    `found` has the iterations of all of them. first_found_after: true iterations that were over
    when the first iteration was reported; −1: none was.
    groups: of its ranks that exchange something in each step; groups_exact: found with exactly these members, none too
    many; kinds_wrong: reported as being for something else. Pattern and order are of trainers that only sum gradients.
    duration: from one iteration's end to the next one's, of neighbours that were both found.
    bytes_right: share of payload whose flow has the right verdict (of the job: gradient or control; else none), given
    at any time. cpu_fraction: of one core, of what the inference took, to the time that was replayed.
    """

    run: str
    cross_load: float
    cross_profile: str
    found: int
    true: int
    f1: float
    boundary_error_fraction: float
    duration_error_fraction: float
    members_exact: bool
    ring_exact: bool
    pattern_exact: bool
    jobs: int
    first_found_after: int
    begin_error_fraction: float
    bytes_right: float
    cpu_fraction: float
    trainer: str
    pattern: str
    found_pattern: str
    hosts: int
    groups: int
    groups_exact: int
    kinds_wrong: int


@dataclass(frozen=True)
class Replayed:
    jobs: dict[str, InferredJob]
    iterations: list[InferredIteration]
    reported_ns: list[int]  # of each iteration, until when rows had been given when it was found
    verdicts: dict[int, FlowVerdict]
    seconds: float  # of CPU


@dataclass(frozen=True)
class InferenceResult:
    runs: tuple[RunScore, ...]

    def shown(self) -> Iterator[FittingTable]:
        names = figures("found", "F1", "boundary", "duration", "begin", "after", "groups", "bytes", "CPU")
        yield table(
            "iterations found in the traffic alone",
            [*labels("run", "cross traffic", prose=True), *names, *labels("wrong")],
            map(_row, self.runs),
            "The recorded traffic is replayed in slices of 200 ms. Boundary: median distance between a rank's inferred "
            "end of an iteration and the end of its wait for the last gradient in the trainer's log, relative to the "
            "median iteration. Duration: the same for the time from one iteration's end to the next. Begin: for the "
            "start of its traffic and the last rank's first enqueue. After: number of iterations that had ended when "
            "the first was reported. Groups: of ranks, reported with exactly their members. Bytes: payload whose flow "
            "is rightly assigned to the job or to none. CPU: of one core. Wrong: which of members, ring order, "
            "pattern, groups and their kinds are not exactly right.",
        )


def _row(run: RunScore) -> tuple[str, ...]:
    exact = {"members": run.members_exact, "order": run.ring_exact, "pattern": run.pattern_exact}
    exact |= {"groups": run.groups_exact == run.groups, "kinds": not run.kinds_wrong}
    return (
        run.run,
        f"{run.cross_load:.0%} {run.cross_profile}" if run.cross_profile else "none",
        f"{run.found} of {run.true}",
        f"{run.f1:.3f}",
        or_dash(run.boundary_error_fraction, "{:.2%}"),
        or_dash(run.duration_error_fraction, "{:.2%}"),
        or_dash(run.begin_error_fraction, "{:.2%}"),
        str(run.first_found_after),
        f"{run.groups_exact} of {run.groups}",
        f"{run.bytes_right:.2%}",
        f"{run.cpu_fraction:.1%}",
        ", ".join(name for name, right in exact.items() if not right) or "–",
    )


def recorded_runs() -> Path:
    """The labelled tables that come with a checkout. Raises DataError where netmon was installed without them."""
    if not any(_FOLDER.glob("*.parquet")):
        raise DataError("cannot score the recorded runs: they come with a checkout of netmon only; give PATH")
    return _FOLDER


def measure(spec: InferenceSpec, progress: Progress = silent) -> InferenceResult:
    """Of what netmon.bench.inference.find finds there. Blocks for some seconds per run. Raises DataError."""
    found: list[RunScore] = []
    for number, run in enumerate(find(spec.path or recorded_runs())):
        progress(number, number + 1, run.run)
        found += scores(run, replay(run))
    return InferenceResult(tuple(found))


def replay(run: Labelled) -> Replayed:
    inference = Inference(run.resolution_ns)
    for number, flow in enumerate(run.flows):
        inference.describe(number, flow)
    said = Replayed({}, [], [], {}, 0.0)
    if not len(run.traffic):
        return said
    times = run.traffic["time_ns"]
    first_ns, last_ns = times[0] // SLICE_NS * SLICE_NS, times[-1] // SLICE_NS * SLICE_NS + SLICE_NS
    during, after = np.arange(first_ns, last_ns, SLICE_NS), np.arange(last_ns, last_ns + _AFTER_NS, _AFTER_SLICE_NS)
    ticks = np.concatenate((during, after))
    inference.watch({flow.host for flow in run.flows}, int(first_ns - _BEFORE_NS))
    begun = time.process_time()
    for (start, end), until_ns in zip(pairwise(np.searchsorted(times, ticks)), ticks[1:].tolist(), strict=True):
        inference.add(run.traffic[start:end])
        findings = inference.advance(until_ns)
        said.jobs.update({job.name: job for job in findings.jobs})
        said.iterations.extend(findings.iterations)
        said.reported_ns.extend([until_ns] * len(findings.iterations))
        said.verdicts.update(findings.flows)
    return Replayed(said.jobs, said.iterations, said.reported_ns, said.verdicts, time.process_time() - begun)


def scores(run: Labelled, said: Replayed) -> list[RunScore]:
    """Hold what was said against the truth, job by job."""
    index_of = {name: _likest(job, run.jobs) for name, job in said.jobs.items()}
    return [
        _score(run, index, said, {name for name, at in index_of.items() if at == index})
        for index in range(len(run.jobs))
    ]


def _likest(found: InferredJob, jobs: Sequence[TrueJob]) -> int:
    members = set(found.members)
    shared = [len(members.intersection(job.members)) / len(members.union(job.members)) for job in jobs]
    return shared.index(max(shared))


def _score(run: Labelled, index: int, said: Replayed, named: set[str]) -> RunScore:
    """One job; named: what was found and is compared with it."""
    job = run.jobs[index]
    enqueued, waited = _true_moments(job)
    over = waited.max(axis=1)
    iterations = sorted((i for i in said.iterations if i.job in named), key=lambda iteration: iteration.end_ns)
    ends = np.array([i.end_ns for i in iterations], np.int64)
    period = float(np.median(np.diff(over))) if len(over) > 1 else math.nan
    theirs, ours = matched(over, ends, period / 2)
    pairs = [(iterations[i], t) for t, i in zip(theirs.tolist(), ours.tolist(), strict=True)]
    neighbours = (np.diff(theirs) == 1) & (np.diff(ours) == 1)
    duration_errors = (np.diff(ends[ours]) - np.diff(over[theirs]))[neighbours].tolist()
    begin_errors = [i.comm_start_ns - int(enqueued[t].max()) for i, t in pairs]
    counts = Counter(i.job for i in iterations)
    best = max((said.jobs[name] for name in sorted(named)), key=lambda found: counts[found.name], default=None)
    parallel, groups = job.trainer in PARALLEL_TRAINERS, true_groups(job)
    kinds = {frozenset(group.members): group.kind for group in best.groups} if best else {}
    reported = min((at for at, i in zip(said.reported_ns, said.iterations, strict=True) if i.job in named), default=0)
    span_ns = int(np.ptp(run.traffic["time_ns"])) if len(run.traffic) else 0
    return RunScore(
        run=f"{run.run}:{job.job}" if len(run.jobs) > 1 else run.run,
        cross_load=run.cross_load,
        cross_profile=run.cross_profile,
        found=len(ends),
        true=len(over),
        f1=2 * len(ours) / (len(ends) + len(over)) if len(ends) + len(over) else 1.0,
        boundary_error_fraction=_median(_end_errors(job, said, pairs, waited)) / period,
        duration_error_fraction=_median(duration_errors) / period,
        members_exact=best is not None and set(best.members) == set(job.members),
        ring_exact=best is not None and (parallel or _ring_exact(best, job)),
        pattern_exact=best is not None and (parallel or best.pattern == job.pattern),
        jobs=len(named),
        first_found_after=int((over <= reported).sum()) if reported else -1,
        begin_error_fraction=_median(begin_errors) / period,
        bytes_right=_bytes_right(run, index, said, named),
        cpu_fraction=said.seconds * 1e9 / span_ns if span_ns else 0.0,
        trainer=job.trainer,
        pattern=job.pattern,
        found_pattern=best.pattern if best else "",
        hosts=len({flow.host for flow in run.flows}),
        groups=len(groups),
        groups_exact=len(kinds.keys() & groups.keys()) - len(kinds.keys() - groups.keys()),
        kinds_wrong=sum(kind not in (UNKNOWN, groups.get(members)) for members, kind in kinds.items()),
    )


def true_groups(job: TrueJob) -> dict[frozenset[str], str]:
    """Members of each group of ranks, and what it is for."""
    ranks = job.address_of_rank
    if job.trainer != "hybrid":
        return {frozenset(ranks): _KINDS.get(job.trainer, DATA)}
    mesh = np.array(ranks).reshape(2, len(ranks) // 4, 2)
    return {
        frozenset(members): kind
        for axis, kind in enumerate((PIPELINE, SHARDED_DATA, "tensor"))
        for members in np.moveaxis(mesh, axis, -1).reshape(-1, mesh.shape[axis]).tolist()
        if len(members) > 1
    }


def _median(errors: Sequence[int]) -> float:
    return float(np.median(np.abs(errors))) if len(errors) else math.nan


def _end_errors(
    job: TrueJob, said: Replayed, pairs: Iterable[tuple[InferredIteration, int]], waited: _Times
) -> list[int]:
    """ns from each rank's last wait to the end that was inferred for it; of every pair of iterations."""
    errors = []
    for iteration, true in pairs:
        ended = dict(zip(said.jobs[iteration.job].members, iteration.received_ns, strict=False))
        errors += [
            ended[address] - int(waited[true][rank])
            for rank, address in enumerate(job.address_of_rank)
            if address in ended
        ]
    return errors


def _true_moments(job: TrueJob) -> tuple[_Times, _Times]:
    """First enqueues and last waits, each (iterations, ranks), of the iterations that all ranks have noted."""
    size = len(job.members)
    numbers, counts = np.unique(job.iterations["iteration"], return_counts=True)
    rows = job.iterations[np.isin(job.iterations["iteration"], numbers[counts == size])]
    rows = rows[np.argsort(rows, order=("iteration", "rank"))]
    first, last = (rows[name].reshape(-1, size) for name in ("first_enqueue_ns", "last_wait_ns"))
    return first, last


def _ring_exact(found: InferredJob, job: TrueJob) -> bool:
    """The same order, wherever it begins; of another pattern: that no ring was found."""
    if "ring" not in (found.pattern, job.pattern):
        return True
    turned = (job.members[k:] + job.members[:k] for k in range(len(job.members)))
    return found.pattern == job.pattern and found.members in turned


def _bytes_right(run: Labelled, index: int, said: Replayed, named: set[str]) -> float:
    is_dl = np.array([whose == index for whose in run.whose], bool)
    verdicts = (said.verdicts.get(number) for number in range(len(run.flows)))
    claimed = np.array([verdict is not None and verdict.job in named for verdict in verdicts], bool)
    volume = np.bincount(run.traffic["flow"], weights=run.traffic["payload_bytes"], minlength=len(run.flows))
    total = volume.sum()
    return float(volume[is_dl == claimed].sum() / total) if total else 1.0
