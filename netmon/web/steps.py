# SPDX-License-Identifier: Apache-2.0
"""Iterations of many ranks in arrays: where each one's time went, and how much of each bin that is.

What a rank does is distinguished as netmon.dl.verdict.rank_times does: it computes until it waits for gradients; it
only waits while another rank has not handed its own over; then the transfer begins. Of millions of iterations it is not
looked up what each is compared with in its verdict. Those are slow that take NOTABLE × what the quickest quarter of the
rank's iterations take, at most; of their transfers has held them up what is beyond the same quarter's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from netmon.dl.verdict import NOTABLE

PHASES = ("computing", "waiting", "transfer", "held up", "not known")

STEP = np.dtype(
    [
        ("job", "<i4"),
        ("rank", "<i4"),
        ("host", "<i4"),
        ("shared", "?"),  # its host carried foreign traffic, or it is not known yet
        ("number", "<i8"),
        ("start_ns", "<i8"),
        ("comm_start_ns", "<i8"),  # 0: not known, as of the next two
        ("wait_start_ns", "<i8"),
        ("comm_end_ns", "<i8"),
        ("end_ns", "<i8"),
    ]
)
"""One iteration of one rank; job and host are numbers of the reader's; times in ns of the UTC epoch."""

_Steps = npt.NDArray[np.void]
_Times = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Lanes:
    """Iterations by lane and time. bounds[:, p] is where phase p of PHASES begins, bounds[:, p + 1] where it ends.

    The order in time is computing, waiting, transfer, held up, and computing again up to end_ns.
    """

    first: npt.NDArray[np.int64]  # (lanes,): of its rows
    last: npt.NDArray[np.int64]  # the one after them
    number: npt.NDArray[np.int64]
    bounds: _Times  # (rows, 5)
    end_ns: _Times
    known: npt.NDArray[np.bool_]
    whole: npt.NDArray[np.bool_]  # of an iteration's slowest rank: all that the job has have a row
    shared: npt.NDArray[np.bool_]  # the same: some rank's host carried foreign traffic, or it is not known yet

    def of(self, lane: int, begin_ns: int, end_ns: int) -> slice:
        first, last = int(self.first[lane]), int(self.last[lane])
        low = first + int(np.searchsorted(self.end_ns[first:last], begin_ns, "right"))
        high = first + int(np.searchsorted(self.bounds[first:last, 0], end_ns, "left"))
        return slice(low, max(low, high))


def by_lane(steps: _Steps, lanes: Sequence[tuple[int, int]]) -> Lanes:
    """Of lanes (job, rank), as STEP numbers them; rank -1: the slowest rank of each iteration of the job."""
    steps = steps[steps["end_ns"] > steps["start_ns"]]
    bounds, known = _phases(steps)
    slowest = _slowest(steps)
    rows = np.concatenate([np.arange(len(steps)), slowest])
    rank = np.concatenate([steps["rank"], np.full(len(slowest), -1)])
    key = _key(steps["job"][rows], rank)
    order = np.lexsort((steps["start_ns"][rows], key))
    rows, key = rows[order], key[order]
    wanted = np.array(lanes, np.int64).reshape(-1, 2)
    lane = _key(wanted[:, 0], wanted[:, 1])
    indices = np.searchsorted(key, lane, "left"), np.searchsorted(key, lane, "right")
    whole, shared = _of_all_ranks(steps)
    columns = steps["number"], bounds, steps["end_ns"], known, whole, shared
    return Lanes(*indices, *(column[rows] for column in columns))


def _key(job: npt.NDArray[np.integer], rank: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    return (job.astype(np.int64) << 32) + rank.astype(np.int64) + 1


def _slowest(steps: _Steps) -> npt.NDArray[np.int64]:
    """A row of each job and iteration."""
    order = np.lexsort((steps["end_ns"] - steps["start_ns"], steps["number"], steps["job"]))
    own = steps[order]
    last = (np.diff(own["number"], append=-1) != 0) | (np.diff(own["job"], append=-1) != 0)
    found: npt.NDArray[np.int64] = order[last]
    return found


def _of_all_ranks(steps: _Steps) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Of each row's iteration: whether it has as many ranks as the job's others, and whether one is shared."""
    group, count = _groups(steps, "number", "job")
    job, jobs = _groups(steps, "job")
    ranks = np.bincount(group, minlength=count)[group]
    most = np.zeros(jobs, np.int64)
    np.maximum.at(most, job, ranks)
    return ranks == most[job], np.bincount(group, steps["shared"], count)[group] > 0


def _phases(steps: _Steps) -> tuple[_Times, npt.NDArray[np.bool_]]:
    start, end, begun, done = (steps[name] for name in ("start_ns", "end_ns", "comm_start_ns", "comm_end_ns"))
    known = (begun >= start) & (done >= begun) & (done <= end)
    exposed_from = np.where(steps["wait_start_ns"] > 0, steps["wait_start_ns"], begun)
    idle = np.where(known, np.clip(exposed_from, begun, done), end)
    everybody = np.where(known, np.clip(_everybody(steps, known), idle, done), end)
    done = np.where(known, done, end)
    transfer = done - everybody
    stalled = np.where(_slow(steps), np.maximum(0, transfer - _quick_transfer(steps, transfer, known)), 0).astype(
        np.int64
    )
    return np.stack([start, idle, everybody, done - stalled, done], axis=1), known


def _groups(steps: _Steps, *names: str) -> tuple[npt.NDArray[np.int64], int]:
    """The number of each row's combination, and how many there are."""
    if not len(steps):
        return np.empty(0, np.int64), 0
    order = np.lexsort([steps[name] for name in names])
    change = np.zeros(len(steps), np.bool_)
    for name in names:
        change[1:] |= np.diff(steps[name][order]) != 0
    group = np.empty(len(steps), np.int64)
    group[order] = np.cumsum(change)
    return group, int(group.max()) + 1


def _everybody(steps: _Steps, known: npt.NDArray[np.bool_]) -> _Times:
    """When the last rank of the iteration had its first gradient; 0 where that is not known of all."""
    group, count = _groups(steps, "number", "job")
    last = np.zeros(count, np.int64)
    np.maximum.at(last, group, np.where(known, steps["comm_start_ns"], np.iinfo(np.int64).max))
    there = last[group]
    return np.where(there < steps["end_ns"], there, 0)  # else it is of another run, or of a rank that nobody knows


def _quartiles(steps: _Steps, values: npt.NDArray[np.float64], *names: str) -> npt.NDArray[np.float64]:
    """The lower one of each row's group, without nan: half of the time may be disturbed."""
    group, count = _groups(steps, *names)
    order = np.lexsort((values, group))
    known = np.bincount(group, np.isfinite(values), count).astype(np.int64)
    first = np.concatenate([[0], np.cumsum(np.bincount(group, minlength=count))])[:-1]
    index = np.minimum(first + known // 4, max(len(values) - 1, 0)).astype(np.int64)
    found = np.where(known > 0, values[order][index], np.nan) if len(values) else np.empty(0)
    return found[group]


def _quick_transfer(steps: _Steps, transfer: _Times, known: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    return np.nan_to_num(_quartiles(steps, np.where(known, transfer.astype(float), np.nan), "rank", "job"))


def _slow(steps: _Steps) -> npt.NDArray[np.bool_]:
    duration = (steps["end_ns"] - steps["start_ns"]).astype(float)
    slow: npt.NDArray[np.bool_] = duration >= NOTABLE * _quartiles(steps, duration, "rank", "job")
    return slow


def density(lanes: Lanes, lane: int, begin_ns: int, width_ns: int, bins: int) -> npt.NDArray[np.uint8]:
    """(phases, bins): how much of each bin a lane spent in each phase, 255: all of it."""
    rows = lanes.of(lane, begin_ns, begin_ns + width_ns * bins)
    edges = begin_ns + width_ns * np.arange(bins + 1, dtype=np.int64)
    bounds, end, known = lanes.bounds[rows], lanes.end_ns[rows], lanes.known[rows]
    shares = np.zeros((len(PHASES), bins))
    if len(end):
        for phase in range(4):
            ends = bounds[:, phase + 1]
            shares[phase] += _covered(bounds[known, phase], ends[known], edges)
        shares[0] += _covered(bounds[known, 4], end[known], edges)
        shares[4] = _covered(bounds[~known, 0], end[~known], edges)
    scaled: npt.NDArray[np.uint8] = np.clip(np.rint(shares * (255 / width_ns)), 0, 255).astype(np.uint8)
    return scaled


def _covered(begins: _Times, ends: _Times, edges: _Times) -> npt.NDArray[np.float64]:
    """How much of each bin intervals cover that ascend; where they overlap, the later one begins later."""
    if not len(begins):
        return np.zeros(len(edges) - 1)
    begins = np.maximum(begins, np.concatenate([begins[:1], np.maximum.accumulate(ends)[:-1]]))
    ends = np.maximum(begins, ends)
    base = int(edges[0])
    points = np.stack([begins, ends], axis=1).ravel() - base
    until = np.cumsum(ends - begins)
    covered = np.stack([np.concatenate([[0], until[:-1]]), until], axis=1).ravel()
    found: npt.NDArray[np.float64] = np.diff(np.interp(edges - base, points, covered))
    return found
