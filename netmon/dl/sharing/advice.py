# SPDX-License-Identifier: Apache-2.0
"""What there is to advise on jobs and their links, from a window of what passed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from netmon.dl.sharing.compatibility import Drift, Fit, drift, fits, groups, shared_links
from netmon.dl.sharing.culprits import Culprit
from netmon.dl.sharing.demand import FEWEST, Demand, LinkBytes, demand
from netmon.dl.verdict import incidents

# --- Pairs of ranks: how fast each moves its gradients, which one is slow, and what of its bandwidth is not needed.

_Floats = npt.NDArray[np.float64]

_SLOW = 0.8  # of the median pace of the job's pairs
_GRADIENTS = 0.01  # of the bytes of the job's largest pair: a pair with less sends acknowledgements and control
_FEWEST = 3  # pairs, from which on there is a baseline
Ends = tuple[str, str, str]
"""Job, sender and receiver."""

_NEEDED = 0.9  # of the communication: a pair that is busy for so long has nothing to give


@dataclass(frozen=True)
class Pair:
    """One rank that sends to another one, over the job's recent iterations; medians."""

    job: str
    source: str  # "rank 1 (h1)"
    target: str
    bytes: float  # per iteration, wire
    pace_bps: float  # while it sends
    busy: float  # share of the job's communication in which it sends
    share: float  # share of the iteration in which it sends
    slow: bool

    @property
    def to_be_had_bps(self) -> float:
        """By how much it could be slowed without ending later, at most.

        The same bytes, spread over all of the job's communication. It is a bound: a rank that passes on what it gets
        can do so no earlier than it comes. 0 of a pair that is busy all the time: it makes the others wait.
        """
        return self.pace_bps * (1 - self.busy) if self.busy < _NEEDED else 0.0


@dataclass(frozen=True)
class Spare:
    """Of one link: what training sends there while it sends, and what would do for it to end no later."""

    link: int
    capacity_bps: float  # 0: unknown
    pace_bps: float  # of all pairs over it, if they sent at once: no more than the capacity
    to_be_had_bps: float  # of that, at most

    @property
    def enough_bps(self) -> float:
        return self.pace_bps - self.to_be_had_bps


def spares(found: Sequence[Pair], over: Mapping[Ends, Sequence[int]], capacity_bps: Mapping[int, float]) -> list[Spare]:
    """By link, the most to be had first. over: job, sender and receiver → the links that the pair goes over."""
    sums: dict[int, tuple[float, float]] = {}
    for pair in found:
        for link in over.get((pair.job, pair.source, pair.target), ()):
            pace, had = sums.get(link, (0.0, 0.0))
            sums[link] = pace + pair.pace_bps, had + pair.to_be_had_bps
    rows = []
    for link, (pace, had) in sums.items():
        capacity = capacity_bps.get(link, 0.0)
        most = capacity or pace  # several jobs do not always send at once
        rows.append(Spare(link, capacity, min(pace, most), max(0.0, min(pace, most) - min(pace - had, most))))
    return sorted(rows, key=lambda row: (-row.to_be_had_bps, row.link))


def pairs(
    job: str,
    ends: Sequence[tuple[str, str]],
    bytes_: _Floats,
    busy_ns: _Floats,
    communication_ns: _Floats,
    duration_ns: _Floats,
) -> list[Pair]:
    """The pairs of a job, the slowest first.

    ends: sender and receiver of each pair. bytes_, busy_ns: of each pair in each iteration, (pairs, iterations), the
    time in which it sent; communication_ns, duration_ns: of each iteration, (iterations,).
    """
    if not len(ends) or not bytes_.shape[1]:
        return []
    with np.errstate(divide="ignore", invalid="ignore"):
        pace = np.where(busy_ns > 0, bytes_ * 8e9 / busy_ns, np.nan)
        busy = busy_ns / np.maximum(communication_ns, 1)
        share = busy_ns / np.maximum(duration_ns, 1)
    typical_bytes = np.median(bytes_, axis=1)
    sent = (bytes_ > 0).sum(axis=1) * 2 >= bytes_.shape[1]  # of the others there is no usual iteration
    sent &= typical_bytes >= _GRADIENTS * typical_bytes.max()
    paces = np.array([np.nanmedian(row) if used else 0.0 for row, used in zip(pace, sent, strict=True)])
    baseline = float(np.median(paces[sent])) if sent.sum() >= _FEWEST else 0.0
    found = [
        Pair(
            job,
            *ends[index],
            float(typical_bytes[index]),
            float(paces[index]),
            min(1.0, float(np.median(busy[index]))),
            min(1.0, float(np.median(share[index]))),
            bool(paces[index] < _SLOW * baseline),
        )
        for index in np.flatnonzero(sent).tolist()
    ]
    return sorted(found, key=lambda pair: (pair.pace_bps, pair.source, pair.target))


# --- advice

_Times = npt.NDArray[np.int64]

WORTH = 0.02
"""Share of the jobs' time that a shift has to save to be advised."""

LASTS = 50
"""Iterations for which a shift has to hold by itself to be worth it."""

_WITHIN = 0.1  # of an iteration: so far off a shift may get, and so well its beginning has to be known


@dataclass(frozen=True)
class JobSeen:
    """One job in the window. starts_ns: of its iterations, and the end of the last, (iterations + 1,), UTC."""

    job: str
    starts_ns: _Times
    ends: Sequence[tuple[str, str]]  # of its pairs: sender and receiver, as people read them
    bytes_: _Floats  # that each pair moved in each iteration, (pairs, iterations)
    busy_ns: _Floats  # for how long it sent
    communication_ns: _Floats  # first to last byte of all pairs, (iterations,)
    flows: Mapping[int, int]  # of its gradients, by link
    over: Sequence[Sequence[int]] = ()  # links of each pair
    error_ns: int = 0  # of the starts, with the hosts' clocks


@dataclass(frozen=True)
class Share:
    """A fit, and whether it stays. Times in ns."""

    fit: Fit
    drift: Drift | None  # of the job alongside the first of the others, as they are
    difference_ns: float  # by which their iterations differ in length where nobody holds them up
    error_ns: int  # of where they stand
    never_alone: tuple[str, ...] = ()  # those of the jobs of which no iteration met nobody

    @property
    def drift_ns(self) -> float | None:
        """By how much they move alongside each other in an iteration, as they are or apart, whichever is more."""
        return max(abs(self.drift.per_iteration_ns), self.difference_ns) if self.drift else None

    @property
    def lasts(self) -> float:
        """Iterations for which a shift holds by itself; 0: that is not known."""
        if self.drift_ns is None:
            return 0.0
        return _WITHIN * self.fit.shared_ns / self.drift_ns if self.drift_ns else float("inf")

    @property
    def sure(self) -> bool:
        """Whether it is known well enough where they stand."""
        return self.error_ns <= _WITHIN * self.fit.shared_ns

    @property
    def saves(self) -> bool:
        """Whether a shift would save enough while it holds, or that they stay as they are now."""
        return self.fit.gain >= WORTH and self.sure

    @property
    def advised(self) -> bool:
        return self.saves and self.fit.shift_ns > 0 and self.lasts >= LASTS

    @property
    def needs_hold(self) -> bool:
        """Whether the shift is worth it only where both begin their iterations every fit.hold_ns."""
        return self.saves and not self.advised and self.fit.hold_ns > 0

    @property
    def offset_ns(self) -> int | None:
        """How long after the first of the others the shifted job is to begin; None: not known."""
        return self.fit.offset_ns if self.drift and self.fit.hold_ns else None


@dataclass(frozen=True)
class Advice:
    """Of one window: what jobs ask for, who shares links and how well, the pairs of ranks, and what links spare."""

    begin_ns: int
    end_ns: int
    links: tuple[str, ...]  # their names, by the numbers that demands, fits and spares use
    capacity_bps: Mapping[int, float]  # by the same, where it is known
    jobs: tuple[Demand, ...]
    unjudged: tuple[str, ...]  # jobs with too few iterations in the window
    shares: tuple[Share, ...]
    uncompared: tuple[str, ...]  # jobs that share links, but were too many
    pairs: tuple[Pair, ...]
    spares: tuple[Spare, ...]
    culprits: tuple[Culprit, ...] = ()  # the worst first

    @property
    def unknown_links(self) -> dict[int, tuple[str, ...]]:
        """The jobs on each link that several share and whose capacity nobody knows."""
        shared = shared_links(self.jobs)
        return {n: tuple(self.jobs[p].job for p in of) for n, of in shared.items() if not self.capacity_bps.get(n)}


def renamed(advice: Advice, names: Mapping[str, str]) -> Advice:
    """The same, with jobs called what people call them."""

    def called(job: str) -> str:
        return names.get(job, job)

    def fitted(fit: Fit) -> Fit:
        return replace(fit, job=called(fit.job), others=tuple(map(called, fit.others)))

    return replace(
        advice,
        jobs=tuple(replace(one, job=called(one.job)) for one in advice.jobs),
        unjudged=tuple(map(called, advice.unjudged)),
        uncompared=tuple(map(called, advice.uncompared)),
        shares=tuple(
            replace(share, fit=fitted(share.fit), never_alone=tuple(map(called, share.never_alone)))
            for share in advice.shares
        ),
        pairs=tuple(replace(pair, job=called(pair.job)) for pair in advice.pairs),
        culprits=tuple(replace(one, incident=incidents.renamed(one.incident, names)) for one in advice.culprits),
    )


def advise(
    seen: Sequence[JobSeen],
    traffic: Mapping[int, LinkBytes],
    names: Sequence[str],
    capacity_bps: Mapping[int, float],
    span_ns: tuple[int, int],
    most: int | None = None,
) -> Advice:
    """Everything there is to say. traffic: of the links on which training sends; names: of links, by number.

    most: jobs that are compared with each other, at most; as many groups that share links as fit into that, the
    smallest first. None: all.
    """
    demand_of = {job.job: demand(job.job, job.starts_ns, traffic, job.flows, capacity_bps) for job in seen}
    demands = [one for one in demand_of.values() if one]
    compared, left_out = _bounded(demands, most)
    of = {one.job: one for one in demands}
    errors = {job.job: job.error_ns for job in seen}
    shares = []
    for fit in fits(compared, capacity_bps):
        own, other = of[fit.job], of[fit.others[0]]
        moves = drift(own.starts_ns[:-1], other.starts_ns[:-1])
        differ_ns = abs(own.period_ns - other.period_ns) if own.alone and other.alone else 0.0
        tied = fit.job, *fit.others
        never = tuple(name for name in tied if not of[name].alone)
        shares.append(Share(fit, moves, differ_ns, max(errors[name] for name in tied), never))
    of_ranks = [pair for job in seen for pair in _pairs(job)]
    over = {(job.job, *ends): links for job in seen for ends, links in zip(job.ends, job.over, strict=False)}
    return Advice(
        *span_ns,
        links=tuple(names),
        capacity_bps=capacity_bps,
        jobs=tuple(demands),
        unjudged=tuple(job for job, one in demand_of.items() if one is None),
        shares=tuple(shares),
        uncompared=left_out,
        pairs=tuple(of_ranks),
        spares=tuple(spares(of_ranks, over, capacity_bps)),
    )


def _pairs(job: JobSeen) -> list[Pair]:
    if len(job.starts_ns) <= FEWEST:
        return []
    lasted = np.diff(job.starts_ns).astype(np.float64)
    return pairs(job.job, job.ends, job.bytes_, job.busy_ns, job.communication_ns, lasted)


def _bounded(demands: Sequence[Demand], most: int | None) -> tuple[list[Demand], tuple[str, ...]]:
    """Those that are compared, and the names of those that are too many."""
    kept: set[int] = set()
    gone: list[str] = []
    for group in sorted(groups(demands), key=len):
        if len(group) > 1 and most is not None and len(kept) + len(group) > most:
            gone += [demands[index].job for index in group]
        elif len(group) > 1:
            kept.update(group)
    return [demands[index] for index in sorted(kept)], tuple(sorted(gone))
