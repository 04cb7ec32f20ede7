# SPDX-License-Identifier: Apache-2.0
"""The inference held against runs of which the truth is known.

Every run is replayed in slices of 200 ms, as a collector gets it, and what the inference says is scored:

- The truth is the trainers' own log: an iteration's communication is over for a rank when its wait for the last
  gradient is, and for the job when the last rank's is. The inference has the end from the traffic, per member.
- A true iteration and a found one match if their ends are each other's nearest and nearer than half a period.
- The boundary error is every rank's: from when the inference says that its iteration ended to when its own wait did.
  The enqueue at the beginning does not show in the traffic: nothing moves before the last rank has enqueued,
  and all have agreed. How far the beginning of the traffic is from that is given beside.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from netmon.dl.inference import Inference, InferredIteration, InferredJob
from netmon.dl.scoring import matched
from netmon.lab.labelled import DL, Labelled, find

SLICE_NS = 200_000_000
_AFTER_NS = 15_000_000_000  # for which the replay goes on after the last row: a job's end shows as silence
_Times = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RunScore:
    """One run. Errors are medians of absolute differences, as a share of the median true iteration.

    jobs: found in all; `found` has the iterations of all of them. first_found_after: true iterations that were over
    when the first iteration was told; −1: none was.
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


@dataclass(frozen=True)
class Replayed:
    """What the inference said of a run."""

    jobs: dict[str, InferredJob]
    iterations: list[InferredIteration]
    told_ns: list[int]  # of each iteration, until when rows had been given when it was told
    verdicts: dict[int, str]
    seconds: float  # of CPU


@dataclass(frozen=True)
class InferenceResult:
    """All runs."""

    runs: tuple[RunScore, ...]

    def document(self) -> dict[str, Any]:
        """For --json."""
        return {"runs": [{name: _plain(value) for name, value in asdict(run).items()} for run in self.runs]}


def _plain(value: object) -> object:
    """JSON has no NaN."""
    return None if isinstance(value, float) and math.isnan(value) else value


def measure(path: Path, progress: Callable[[str], None] = lambda _: None) -> InferenceResult:
    """path: see netmon.lab.labelled.find. Blocks for some seconds per run. Raises DataError."""
    return InferenceResult(tuple(_scores(find(path), progress)))


def _scores(runs: Iterable[Labelled], progress: Callable[[str], None]) -> Iterable[RunScore]:
    for run in runs:
        progress(run.run)
        yield score(run, replay(run))


def replay(run: Labelled) -> Replayed:
    """Give the run to the inference as a collector would."""
    inference = Inference(run.resolution_ns)
    for number, flow in enumerate(run.flows):
        inference.describe(number, flow)
    said = Replayed({}, [], [], {}, 0.0)
    if not len(run.traffic):
        return said
    times = run.traffic["time_ns"]
    ticks = np.arange(times[0] // SLICE_NS * SLICE_NS, times[-1] + _AFTER_NS, SLICE_NS)
    begun = time.process_time()
    for start, tick in zip(np.searchsorted(times, ticks), ticks.tolist(), strict=True):
        end = np.searchsorted(times, tick + SLICE_NS)
        inference.add(run.traffic[start:end])
        findings = inference.advance(tick + SLICE_NS)
        said.jobs.update({job.name: job for job in findings.jobs})
        said.iterations.extend(findings.iterations)
        said.told_ns.extend([tick + SLICE_NS] * len(findings.iterations))
        said.verdicts.update({flow: verdict.traffic for flow, verdict in findings.flows.items()})
    return Replayed(said.jobs, said.iterations, said.told_ns, said.verdicts, time.process_time() - begun)


def score(run: Labelled, said: Replayed) -> RunScore:
    """Hold what was said against the truth."""
    enqueued, waited = _true_moments(run)
    over = waited.max(axis=1)
    iterations = sorted(said.iterations, key=lambda iteration: iteration.end_ns)
    ends = np.array([i.end_ns for i in iterations], np.int64)
    period = float(np.median(np.diff(over))) if len(over) > 1 else math.nan
    theirs, ours = matched(over, ends, period / 2)
    pairs = [(iterations[i], t) for t, i in zip(theirs.tolist(), ours.tolist(), strict=True)]
    begin_errors = [i.comm_start_ns - int(enqueued[t].max()) for i, t in pairs]
    best = max(said.jobs.values(), key=lambda job: sum(i.job == job.name for i in said.iterations), default=None)
    told = min(said.told_ns, default=0)
    span_ns = int(np.ptp(run.traffic["time_ns"])) if len(run.traffic) else 0
    return RunScore(
        run=run.run,
        cross_load=run.cross_load,
        cross_profile=run.cross_profile,
        found=len(ends),
        true=len(over),
        f1=2 * len(ours) / (len(ends) + len(over)) if len(ends) + len(over) else 1.0,
        boundary_error_fraction=_median(_end_errors(run, said, pairs, waited)) / period,
        members_exact=best is not None and set(best.members) == set(run.members),
        ring_exact=best is not None and _ring_exact(best, run),
        pattern_exact=best is not None and best.pattern == run.pattern,
        jobs=len(said.jobs),
        first_found_after=int((over <= told).sum()) if told else -1,
        begin_error_fraction=_median(begin_errors) / period,
        bytes_right=_bytes_right(run, said),
        cpu_fraction=said.seconds * 1e9 / span_ns if span_ns else 0.0,
        trainer=run.trainer,
        pattern=run.pattern,
        found_pattern=best.pattern if best else "",
        hosts=len({flow.host for flow in run.flows}),
    )


def _median(errors: Sequence[int]) -> float:
    return float(np.median(np.abs(errors))) if len(errors) else math.nan


def _end_errors(
    run: Labelled, said: Replayed, pairs: Iterable[tuple[InferredIteration, int]], waited: _Times
) -> list[int]:
    """ns from each rank's last wait to the end that was inferred for it; of every pair of iterations."""
    errors = []
    for iteration, true in pairs:
        ended = dict(zip(said.jobs[iteration.job].members, iteration.received_ns, strict=False))
        errors += [
            ended[address] - int(waited[true][rank])
            for rank, address in enumerate(run.address_of_rank)
            if address in ended
        ]
    return errors


def _true_moments(run: Labelled) -> tuple[_Times, _Times]:
    """First enqueues and last waits, each (iterations, ranks), of the iterations that all ranks have noted."""
    ranks = np.unique(run.iterations["rank"])
    numbers, counts = np.unique(run.iterations["iteration"], return_counts=True)
    rows = run.iterations[np.isin(run.iterations["iteration"], numbers[counts == len(ranks)])]
    rows = rows[np.argsort(rows, order=("iteration", "rank"))]
    first, last = (rows[name].reshape(-1, len(ranks)) for name in ("first_enqueue_ns", "last_wait_ns"))
    return first, last


def _ring_exact(found: InferredJob, run: Labelled) -> bool:
    """The same order, wherever it begins; of another pattern: that no ring was found."""
    if "ring" not in (found.pattern, run.pattern):
        return True
    turned = (run.members[k:] + run.members[:k] for k in range(len(run.members)))
    return found.pattern == run.pattern and found.members in turned


def _bytes_right(run: Labelled, said: Replayed) -> float:
    is_dl = np.array([kind == DL for kind in run.kinds])
    claimed = np.array([number in said.verdicts for number in range(len(run.flows))])
    volume = np.bincount(run.traffic["flow"], weights=run.traffic["payload_bytes"], minlength=len(run.flows))
    total = volume.sum()
    return float(volume[is_dl == claimed].sum() / total) if total else 1.0
