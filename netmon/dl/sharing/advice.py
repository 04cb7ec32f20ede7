# SPDX-License-Identifier: Apache-2.0
"""What there is to advise on jobs and their links, from a window of what passed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from netmon.dl.sharing.compatibility import Fit, fits
from netmon.dl.sharing.demand import FEWEST, Demand, LinkBytes, demand
from netmon.dl.sharing.drift import Drift, drift
from netmon.dl.sharing.pairs import Pair, pairs
from netmon.units import format_bytes, format_duration, format_rate

_Times = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]

WORTH = 0.02
"""Share of the jobs' time that a shift has to save to be advised."""

_LASTS = 50  # iterations for which a shift has to hold to be worth it
_WITHIN = 0.1  # of an iteration: so far off a shift may get


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


@dataclass(frozen=True)
class Share:
    """A fit, and whether it stays."""

    fit: Fit
    drift: Drift | None  # of the job beside the first of the others

    @property
    def lasts(self) -> float:
        """Iterations for which a shift holds by itself; 0: that is not known."""
        return self.drift.lasts(_WITHIN * self.fit.shared_ns) if self.drift else 0.0

    @property
    def advised(self) -> bool:
        """Whether the shift is worth it."""
        return self.fit.shift_ns > 0 and self.fit.gain >= WORTH and self.lasts >= _LASTS


@dataclass(frozen=True)
class Advice:
    """Of one window: what each job asks for, who shares links and how well, and the pairs of ranks."""

    begin_ns: int
    end_ns: int
    links: tuple[str, ...]  # their names, by the numbers that demands and fits use
    jobs: tuple[Demand, ...]
    unjudged: tuple[str, ...]  # jobs with too few iterations in the window
    shares: tuple[Share, ...]
    pairs: tuple[Pair, ...]


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
        shares=tuple(replace(share, fit=fitted(share.fit)) for share in advice.shares),
        pairs=tuple(replace(pair, job=called(pair.job)) for pair in advice.pairs),
    )


def advise(
    seen: Sequence[JobSeen],
    traffic: Mapping[int, LinkBytes],
    names: Sequence[str],
    capacity_bps: Mapping[int, float],
    span_ns: tuple[int, int],
) -> Advice:
    """Everything there is to say. traffic: of the links on which training sends; names: of links, by number."""
    asked = {job.job: demand(job.job, job.starts_ns, traffic, job.flows) for job in seen}
    demands = [one for one in asked.values() if one]
    starts = {one.job: one.starts_ns for one in demands}
    found = fits(demands, capacity_bps)
    shares = [Share(fit, drift(starts[fit.job][:-1], starts[fit.others[0]][:-1])) for fit in found]
    of_ranks = [
        pair
        for job in seen
        if len(job.starts_ns) > FEWEST
        for pair in pairs(
            job.job, job.ends, job.bytes_, job.busy_ns, job.communication_ns, np.diff(job.starts_ns).astype(np.float64)
        )
    ]
    return Advice(
        *span_ns,
        tuple(names),
        tuple(demands),
        tuple(job for job, one in asked.items() if one is None),
        tuple(shares),
        tuple(of_ranks),
    )


def sentences(advice: Advice) -> list[str]:
    """What to do, most worth first; says so where there is nothing."""
    shares = sorted((s for s in advice.shares if s.advised), key=lambda s: -s.fit.gain)
    said = [_shift(share, advice.links) for share in shares]
    said += [_apart(share, advice.links) for share in advice.shares if not share.advised]
    said += [
        f"job {p.job}: {p.source} → {p.target} is slow: {format_rate(p.pace_bps)} while it sends"
        for p in advice.pairs
        if p.slow
    ]
    had = [pair for pair in advice.pairs if pair.to_be_had_bps]
    said += [
        f"job {p.job}: {p.source} → {p.target} could do with {format_rate(p.pace_bps - p.to_be_had_bps)} instead of "
        f"{format_rate(p.pace_bps)} and end no later (at most: it sends for {p.busy:.0%} of the communication)"
        for p in sorted(had, key=lambda p: -p.to_be_had_bps)[:5]
    ]
    said += [
        f"job {job}: fewer than {FEWEST} iterations in this time: nothing is said of it" for job in advice.unjudged
    ]
    return said or ["nothing to advise: no two jobs share a link, and no pair of ranks is slower than the others"]


def _where(fit: Fit, links: Sequence[str]) -> str:
    first = ", ".join(links[link] for link in fit.links[:3])
    return first + (f" and {len(fit.links) - 3} more" if len(fit.links) > 3 else "")


def _shift(share: Share, links: Sequence[str]) -> str:
    fit, lasts = share.fit, share.lasts
    holds = "for good" if lasts == float("inf") else f"for about {lasts:.0f} iterations"
    saved = f"{fit.gain:.0%} of all jobs' time saved, {holds}; compatibility {fit.score:.2f} → {fit.best_score:.2f}"
    return (
        f"start job {fit.job} {format_duration(fit.shift_ns)} later beside {', '.join(fit.others)} "
        f"({_where(fit, links)}): its iterations would take {format_duration(fit.shifted_ns)} instead of "
        f"{format_duration(fit.shared_ns)}, {saved}"
    )


def _apart(share: Share, links: Sequence[str]) -> str:
    fit = share.fit
    both = (
        f"jobs {fit.job} and {', '.join(fit.others)} share {_where(fit, links)} with a compatibility of {fit.score:.2f}"
    )
    if share.drift and share.lasts < _LASTS:
        moves = format_duration(abs(share.drift.per_iteration_ns))
        return f"{both}: they drift by {moves} an iteration, so that no shift would last"
    if fit.shift_ns == 0 or fit.gain < WORTH:
        return f"{both}: no shift would save more than {WORTH:.0%} of their time"
    return f"{both}: how they move beside each other is not known"


def document(advice: Advice) -> dict[str, object]:
    """The advice as one JSON document; times in ns, rates in bit/s."""
    return {
        "begin_ns": advice.begin_ns,
        "end_ns": advice.end_ns,
        "advice": sentences(advice),
        "jobs": [
            {
                "job": one.job,
                "iterations": len(one.starts_ns) - 1,
                "duration_ns": one.measured_ns,
                "alone_ns": one.period_ns,
                "alone": one.alone,
                "busy": one.busy,
                "intensity": one.intensity if one.busy else None,
                "links": [advice.links[link] for link in one.links],
            }
            for one in advice.jobs
        ],
        "shares": [_share(share, advice.links) for share in advice.shares],
        "pairs": [
            {
                "job": p.job,
                "source": p.source,
                "target": p.target,
                "bytes": p.bytes,
                "pace_bps": p.pace_bps,
                "busy": p.busy,
                "share": p.share,
                "slow": p.slow,
                "to_be_had_bps": p.to_be_had_bps,
            }
            for p in advice.pairs
        ],
    }


def _share(share: Share, links: Sequence[str]) -> dict[str, object]:
    fit, moves = share.fit, share.drift
    return {
        "job": fit.job,
        "others": list(fit.others),
        "links": [links[link] for link in fit.links],
        "compatibility": fit.score,
        "best_compatibility": fit.best_score,
        "shift_ns": fit.shift_ns,
        "shared_ns": fit.shared_ns,
        "shifted_ns": fit.shifted_ns,
        "others_shared_ns": list(fit.others_shared_ns),
        "others_shifted_ns": list(fit.others_shifted_ns),
        "gain": fit.gain,
        "advised": share.advised,
        "phase_ns": moves and moves.phase_ns,
        "drift_ns": moves and moves.per_iteration_ns,
        "drift_spread_ns": moves and moves.spread_ns,
    }


def pair_row(pair: Pair) -> tuple[str, ...]:
    """A line of the pair matrix for people."""
    mark = "slow" if pair.slow else ""
    return (
        pair.job,
        f"{pair.source} → {pair.target}",
        format_bytes(pair.bytes),
        format_rate(pair.pace_bps),
        f"{pair.share:.0%}",
        format_rate(pair.to_be_had_bps),
        mark,
    )
