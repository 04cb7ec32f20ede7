# SPDX-License-Identifier: Apache-2.0
"""The inference compared with runs of which the truth is known.

Every run is replayed in slices of 200 ms, as a collector gets it, and what the inference says is scored:

- The truth is the trainers' own log: an iteration's communication is over for a rank when its wait for the last
  gradient is, and for the job when the last rank's is. The inference has the end from the traffic, per member.
- A true iteration and a found one match if their ends are each other's nearest and nearer than half a period.
- Of several jobs in one run, each is a row. A found job is compared with the one with which it shares most members, so
  that an invented job, or one made of two, counts against the one that it is most like.
- The boundary error is every rank's: from when the inference says that its iteration ended to when its own wait did.
  The enqueue at the beginning does not show in the traffic: nothing moves before the last rank has enqueued,
  and all have agreed. How far the beginning of the traffic is from that is given alongside.
"""

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from netmon.bench.result import or_dash, table
from netmon.bench.specs import InferenceSpec, Progress, silent
from netmon.dl.inference.grouping import DATA, PIPELINE, SHARDED_DATA, UNKNOWN
from netmon.dl.inference.live import Inference
from netmon.dl.inference.types import FlowVerdict, InferredIteration, InferredJob
from netmon.dl.step_alignment import matched
from netmon.errors import DataError
from netmon.lab.labelled import Labelled, TrueJob, find
from netmon.lab.spec import PARALLEL_TRAINERS
from netmon.terminal import FittingTable, figures, labels

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

    run: with the job's name behind it where there are several. jobs: found that are compared with this one; `found` has
    the iterations of all of them. first_found_after: true iterations that were over
    when the first iteration was reported; −1: none was.
    groups: of its ranks that exchange something in each step; groups_exact: found with exactly these members, none too
    many; kinds_wrong: told to be for something else. Pattern and order are of trainers that only sum gradients.
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
        names = figures("found", "F1", "boundary", "begin", "after", "groups", "bytes", "CPU")
        yield table(
            "iterations found in the traffic alone",
            [*labels("run", "cross traffic", prose=True), *names, *labels("wrong")],
            map(_row, self.runs),
            "The recorded traffic is replayed in slices of 200 ms. Boundary: median distance between a rank's inferred "
            "end of an iteration and the end of its wait for the last gradient in the trainer's log, relative to the "
            "median iteration. Begin: the same for the start of its traffic and the last rank's first enqueue. After: "
            "number of iterations that had ended when the first was reported. Groups: of ranks, told with exactly "
            "their members. Bytes: payload whose flow is rightly assigned to the job or to none. CPU: of one core. "
            "Wrong: which of members, ring order, pattern, groups and their kinds are not exactly right.",
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
    """Of what netmon.lab.labelled.find finds there. Blocks for some seconds per run. Raises DataError."""
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
