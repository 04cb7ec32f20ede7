# SPDX-License-Identifier: Apache-2.0
"""How well jobs fit together on the links that they share, and the shift that makes them fit best.

The score is CASSINI's (Rajasekaran et al., NSDI'24, section 3): 1 − excess demand over capacity, averaged over the
time, times capacity. Measured iterations jitter, and the least common multiple of their lengths explodes; so it is
taken over a finite window, in which each iteration lies where it really began. For a shift they lie where they
would begin if nobody delayed them: one after the other from the present phases on, those of jobs that take about as
long every `hold_ns`, which is what CASSINI's agents hold them to. Shifts are consistent by construction: each job has
one, and is placed alongside those that have theirs, along the graph of jobs and shared links.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

_Times = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]

# --- What a job asks of each link over one iteration, as one iteration showed that met nobody else there.

FEWEST = 5
"""Iterations of a job, from which on it is judged."""

_BINS = 256  # of an iteration
_ALONE = 0.02  # of the bytes that pass while the job sends: so many may be others'
_QUIET = 0.05  # of the busiest bin: less than this is no transfer


@dataclass(frozen=True)
class LinkBytes:
    """What passed one link, by bins of one width. Arrays (bins,), wire bytes; the first bin begins at begin_ns."""

    begin_ns: int
    bin_ns: int
    of_job: Mapping[str, _Floats]
    total: _Floats  # everything, jobs included

    def within(self, start_ns: int, end_ns: int) -> slice:
        """The bins of a time; those that it does not cover wholly count by their beginning."""
        first = -(-(start_ns - self.begin_ns) // self.bin_ns)
        return slice(max(0, first), max(0, -(-(end_ns - self.begin_ns) // self.bin_ns)))


@dataclass(frozen=True)
class Demand:
    """One iteration of a job without others, and when its iterations began.

    rates: bit/s per link and bin, (links, bins), the links in the order of `links`. The bins cover period_ns.
    """

    job: str
    links: tuple[int, ...]
    starts_ns: _Times  # of its iterations, (iterations + 1,): the last one is the end
    period_ns: int  # of the iteration that met nobody
    rates: _Floats
    alone: bool  # whether there was one that met nobody; else it is one of the fastest
    weights: _Floats  # (links,): flows that carry its gradients there

    @property
    def measured_ns(self) -> float:
        """Median duration of its iterations as they were."""
        return float(np.median(np.diff(self.starts_ns)))

    @property
    def mean_ns(self) -> float:
        """Mean duration of its iterations, without pauses between them."""
        took = np.diff(self.starts_ns)
        return float(took[took <= 2 * np.median(took)].mean())

    @property
    def busy(self) -> float:
        """Share of the iteration in which it transfers, on the link that it uses longest."""
        loud = self.rates > _QUIET * self.rates.max(axis=1, keepdims=True)
        return float(loud.mean(axis=1).max())

    @property
    def intensity(self) -> float:
        """Computing per transferring: Crux' intensity by proxy, as nobody tells the operations (SIGCOMM'24, 3.1)."""
        return (1 - self.busy) / self.busy if self.busy else float("inf")

    def at(self, link: int) -> _Floats:
        """Its rates on a link, (bins,); zeros where it does not use it."""
        return self.rates[self.links.index(link)] if link in self.links else np.zeros(self.rates.shape[1])

    def over(self, link: int, begin_ns: int, bin_ns: int, bins: int, shift_ns: float = 0.0) -> _Floats:
        """Its demand on a link from begin_ns on if nobody else were there: each iteration where it really began.

        An iteration that lasted longer than one without others asks nothing more in the rest of its time; one that
        was shorter is cut. shift_ns: later than it was.
        """
        times = begin_ns + bin_ns * (np.arange(bins) + 0.5) - shift_ns
        number = np.searchsorted(self.starts_ns, times, "right") - 1
        inside = (number >= 0) & (number < len(self.starts_ns) - 1)
        into = times - self.starts_ns[np.clip(number, 0, len(self.starts_ns) - 1)]
        index = (into * self.rates.shape[1] / self.period_ns).astype(np.int64)
        rates = self.at(link)[np.clip(index, 0, self.rates.shape[1] - 1)]
        return np.where(inside & (index < self.rates.shape[1]), rates, 0.0)


def demand(
    job: str,
    starts_ns: _Times,
    traffic: Mapping[int, LinkBytes],
    flows: Mapping[int, int] | None = None,
    capacity_bps: Mapping[int, float] | None = None,
) -> Demand | None:
    """What a job asks of the links, by the iteration of median length among those that met nobody.

    starts_ns: (iterations + 1,), ascending. traffic: of every link on which the job sends. flows: of its gradients, by
    link. capacity_bps: of links, as far as known. None where it has fewer than FEWEST iterations, or no bytes in them.
    """
    links = tuple(link for link, seen in traffic.items() if job in seen.of_job)
    if len(starts_ns) <= FEWEST or not links:
        return None
    met = np.array(
        [
            max(_of_others(job, traffic[link], start, end) for link in links)
            for start, end in zip(starts_ns[:-1].tolist(), starts_ns[1:].tolist(), strict=True)
        ]
    )
    lengths = np.diff(starts_ns)
    alone = np.flatnonzero(met <= _ALONE)
    middle = np.median(lengths[alone]) if len(alone) else 0.0
    alone = alone[lengths[alone] <= 2 * middle]  # a pause between two steps is no step
    chosen = alone if len(alone) else np.argsort(lengths, kind="stable")[: max(1, len(lengths) // 10)]
    one = int(chosen[np.argsort(lengths[chosen], kind="stable")[len(chosen) // 2]])
    start, period = int(starts_ns[one]), int(lengths[one])
    speeds = capacity_bps or {}
    rates = np.stack([_passed(_rates(traffic[link], job, start, period), speeds.get(link, 0.0)) for link in links])
    if not rates.any():
        return None
    weights = np.array([max(1, (flows or {}).get(link, 1)) for link in links], np.float64)
    return Demand(job, links, starts_ns, period, rates, bool(len(alone)), weights)


def _of_others(job: str, seen: LinkBytes, start_ns: int, end_ns: int) -> float:
    """Share of others in what passes a link while the job sends there."""
    span = seen.within(start_ns, end_ns)
    own, total = seen.of_job[job][span], seen.total[span]
    if not own.any():
        return 1.0  # nothing is known of this one
    busy = own > _QUIET * own.max()
    return float(1 - own[busy].sum() / total[busy].sum())


def _rates(seen: LinkBytes, job: str, start_ns: int, period_ns: int) -> _Floats:
    """Bit/s by _BINS bins of the iteration; the bytes of a bin of the link are spread over the time that it covers."""
    span = seen.within(start_ns, start_ns + period_ns)
    own = seen.of_job[job][span]
    edges = seen.begin_ns + seen.bin_ns * np.arange(span.start, span.start + len(own) + 1)
    grid = start_ns + period_ns * np.arange(_BINS + 1) / _BINS
    sent = np.interp(grid, edges, np.concatenate([[0.0], np.cumsum(own)]))
    rates: _Floats = np.diff(sent) * 8e9 / (period_ns / _BINS)
    return rates


def _passed(rates: _Floats, capacity_bps: float) -> _Floats:
    """What a link lets through, (bins,): bytes are counted as they reach its queue, which takes bursts at any speed.

    What is left at the end of the iteration passes at the beginning of the next one. 0: the capacity is not known.
    """
    if not capacity_bps:
        return rates
    came = np.concatenate([[0.0], np.cumsum(np.tile(rates, 2))])
    room = capacity_bps * np.arange(len(came))
    through: _Floats = np.diff(room + np.minimum.accumulate(came - room))[len(rates) :]
    return through


# --- How long iterations take when jobs share links: a fluid model.
#
# Each job goes through the bins of its iteration, at full speed where the links give what
# it asks for, else at the share that it gets of the tightest one. A link that is requested more than its capacity
# divides it max-min fairly between the jobs, weighed by their flows, as long-lived TCP flows of equal round-trip
# times come to do (Chiu and Jain, 1989). Losses, slow start and round-trip times are not modelled, nor are iterations
# of unequal work.


_STEPS = 128  # of the shortest iteration


def fair_shares(demand: _Floats, weights: _Floats, capacity: float) -> _Floats:
    """Max-min fair shares of a link. demand: bit/s, (cases, jobs); weights: (jobs,). Shares: (cases, jobs)."""
    given = np.where(demand.sum(axis=1, keepdims=True) <= capacity, demand, 0.0)
    crowded = np.flatnonzero(demand.sum(axis=1) > capacity)
    if not len(crowded):
        return given
    wanted = demand[crowded]
    per_weight = wanted / weights
    order = np.argsort(per_weight, axis=1)
    left, weight = np.full(len(crowded), capacity), np.where(wanted > 0, weights, 0.0).sum(axis=1)
    rows = np.arange(len(crowded))
    for index in range(wanted.shape[1]):  # who wants least per flow gets it first, and leaves the rest to the others
        job = order[:, index]
        want = wanted[rows, job]
        own = np.where(want > 0, weights[job], 0.0)
        share = np.minimum(want, left * own / np.maximum(weight, 1e-12))
        given[crowded, job] = share
        left, weight = left - share, weight - own
    return given


def durations(
    jobs: Sequence[Demand], capacity_bps: Mapping[int, float], begins_ns: _Floats, iterations: int
) -> _Floats:
    """Mean duration of each job's iterations, ns, (cases, jobs), if nothing but these jobs were on the links.

    begins_ns: when the first iteration of each job begins, (cases, jobs). iterations: of the slowest job, at least; the
    mean is over those that end in that time.
    """
    cases, count = begins_ns.shape
    periods = np.array([job.period_ns for job in jobs], np.float64)
    step_ns = periods.min() / _STEPS
    bins = [job.rates.shape[1] for job in jobs]
    links = sorted({link for job in jobs for link in job.links})
    rates = [np.stack([job.at(link) for job in jobs]) for link in links]  # (links,) of (jobs, bins)
    weights = [
        np.array([job.weights[job.links.index(link)] if link in job.links else 1.0 for job in jobs]) for link in links
    ]
    done = np.zeros((cases, count))  # iterations, with fractions
    last_end = begins_ns.astype(np.float64).copy()
    ended = np.zeros((cases, count))
    now, end = float(begins_ns.min()), float(begins_ns.max() + 3 * iterations * periods.max())
    whose = np.arange(count)
    while now < end and ended.min() < iterations:
        index = np.minimum((done % 1.0 * bins[0]).astype(np.int64), bins[0] - 1)
        going = now >= begins_ns
        speed = np.ones((cases, count))
        for link, of_link, weight in zip(links, rates, weights, strict=True):
            demand = np.where(going, of_link[whose, index], 0.0)
            if demand.sum(axis=1).max() > capacity_bps[link]:
                given = fair_shares(demand, weight, capacity_bps[link])
                with np.errstate(divide="ignore", invalid="ignore"):
                    speed = np.minimum(speed, np.where(demand > 0, given / demand, 1.0))
        before = np.floor(done)
        done = done + np.where(going, speed * step_ns / periods, 0.0)
        now += step_ns
        over = np.floor(done) > before
        last_end = np.where(over, now - (done % 1.0) * periods, last_end)
        ended = np.where(over, np.floor(done), ended)
    return (last_end - begins_ns) / np.maximum(ended, 1.0)


# --- compatibility


_WINDOW_BINS = 8192
_SHIFTS = 96  # candidates over an iteration of the job that is shifted
_ROUNDS = 3
_ITERATIONS = 20  # that the model is run for
_LATELY = 12  # iterations, of the job whose are longest
_PAUSE = 4  # times the median iteration: others meanwhile did some of theirs alone
_ROUND = 36  # at most, in which they go round each other
_ENOUGH = 1e-3  # scores that differ by less are as good as each other
_CROWDED = 1.5  # times what fair shares cost: as much as a crowded link was seen to
_SLACK = 1.02  # times what iterations take: so often they can begin, as who is late once catches up
_NEAR = 1.005  # as good as that
_ALIKE = 0.8  # of the longest iteration: jobs whose iterations are shorter cannot be bound to it


@dataclass(frozen=True)
class Fit:
    """One job alongside others. Times in ns; the gain is the model's."""

    job: str
    others: tuple[str, ...]
    links: tuple[int, ...]  # that it shares with them
    score: float  # as they are, 1: nothing is requested that a link does not have
    best_score: float
    trend: float  # score in the later half of the iterations they are judged by, less that in the earlier half
    shift_ns: int  # by which to begin later for it
    hold_ns: int  # how often they all would have to begin an iteration for the shift to last; 0: too unlike for that
    offset_ns: int  # how long after the first of the others it begins then, of hold_ns; 0 where that is 0
    shared_ns: float  # what its iterations lately took, as far as sharing explains it
    shifted_ns: float  # with the shift, bound to hold_ns
    others_shared_ns: tuple[float, ...]
    others_shifted_ns: tuple[float, ...]

    @property
    def gain(self) -> float:
        """Share of all jobs' time that the shift saves, mean over the jobs."""
        before, after = (self.shared_ns, *self.others_shared_ns), (self.shifted_ns, *self.others_shifted_ns)
        return float(np.mean([1 - b / a for a, b in zip(before, after, strict=True)]))


def score(demand_bps: _Floats, capacity_bps: float) -> float:
    """CASSINI's score of a link. demand_bps: all jobs' demand by equal spans of time, (spans,)."""
    return float(1 - np.maximum(demand_bps - capacity_bps, 0).mean() / capacity_bps)


def shared_links(jobs: Sequence[Demand]) -> dict[int, list[int]]:
    """Indices of the jobs that use a link, of each link that more than one uses at the same time."""
    using: dict[int, list[int]] = {}
    for index, job in enumerate(jobs):
        for link in job.links:
            using.setdefault(link, []).append(index)
    met = {
        link: [one for one in indices if any(_at_once(jobs[one], jobs[other]) for other in indices if other != one)]
        for link, indices in using.items()
        if len(indices) > 1
    }
    return {link: indices for link, indices in met.items() if indices}


def _at_once(one: Demand, other: Demand) -> bool:
    """Whether they trained at the same time for some iterations."""
    begin, end = max(one.starts_ns[0], other.starts_ns[0]), min(one.starts_ns[-1], other.starts_ns[-1])
    return bool(end - begin >= FEWEST * max(one.measured_ns, other.measured_ns))


def groups(jobs: Sequence[Demand]) -> list[list[int]]:
    """Indices of jobs that are tied by shared links, each group in the order of a walk from its first one."""
    ties: dict[int, set[int]] = {}
    for indices in shared_links(jobs).values():
        for index in indices:
            ties.setdefault(index, set()).update(indices)
    found: list[list[int]] = []
    seen: set[int] = set()
    for first in sorted(ties):
        if first in seen:
            continue
        walk = [first]
        seen.add(first)
        for index in walk:  # breadth first: it grows while it is walked
            nearer = sorted(ties[index] - seen)
            walk += nearer
            seen.update(nearer)
        found.append(walk)
    return found


def fits(jobs: Sequence[Demand], capacity_bps: Mapping[int, float]) -> list[Fit]:
    """A fit for each job that shares links, but for the first of each group, which stays where it is.

    Each next one gets the shift at which the links that it shares with those before it score best, summed; where there
    are more than two, each is then placed anew alongside all others a few times, as a place that is good for two may
    leave no room for the third. capacity_bps: of every shared link; a link without one is left out.
    """
    found = []
    shared = {link: using for link, using in shared_links(jobs).items() if capacity_bps.get(link)}
    for group in groups(jobs):
        hold_ns = _hold_ns([jobs[index] for index in group])
        slowed = _with_holds(jobs, group, hold_ns)
        shifts = dict.fromkeys(group, 0.0)
        for number, index in enumerate(group[1:], 1):
            shifts[index] = _best_shift(_Contention(slowed, index, group[:number], shared, capacity_bps), shifts)
        for index in group[1:] * (_ROUNDS if len(group) > 2 else 0):
            shifts[index] = _best_shift(_Contention(slowed, index, _others(group, index), shared, capacity_bps), shifts)
        after = _model([slowed[index] for index in group], [*shifts.values()], capacity_bps)
        if hold_ns and after.max() > _NEAR * hold_ns:  # the best shift leaves some of the conflict: less often, then
            hold_ns = round(_SLACK * float(after.max()))
            after = np.maximum(after, hold_ns)
        lately = _lately(jobs, group)
        contention = {index: _Contention(lately, index, _others(group, index), shared, capacity_bps) for index in group}
        before = {index: _shared_ns(now, dict.fromkeys(group, 0.0)) for index, now in contention.items()}
        took = {index: (before[index], float(after[at])) for at, index in enumerate(group)}
        for index in group[1:]:
            now = contention[index]
            if not now.links:
                continue
            near = [other for other in now.others if any(other in shared[link] for link in now.links)]
            then = _Contention(slowed, index, _others(group, index), shared, capacity_bps)
            begins = [slowed[one].starts_ns[0] + shifts[one] for one in (index, near[0])]
            found.append(
                Fit(
                    jobs[index].job,
                    tuple(jobs[other].job for other in near),
                    now.links,
                    now.score(0.0, dict.fromkeys(group, 0.0)),
                    then.score(shifts[index], shifts),
                    now.trend(),
                    round(shifts[index]),
                    hold_ns,
                    round((begins[0] - begins[1]) % slowed[index].period_ns) if hold_ns else 0,
                    *took[index],
                    tuple(took[other][0] for other in near),
                    tuple(took[other][1] for other in near),
                )
            )
    return found


def scores_by_shift(fit: Fit, jobs: Sequence[Demand], capacity_bps: Mapping[int, float]) -> tuple[_Floats, _Floats]:
    """The shifts (ns) that are tried for a fit's job alongside its others alone, and the score at each."""
    own = [next(job for job in jobs if job.job == name) for name in (fit.job, *fit.others)]
    group = list(range(len(own)))
    slowed = _with_holds(own, group, _hold_ns(own))
    contention = _Contention(slowed, 0, group[1:], dict.fromkeys(fit.links, group), capacity_bps)
    candidates = _candidates(contention)
    return candidates, contention.scores(candidates.tolist(), dict.fromkeys(group, 0.0))


def phases(jobs: Sequence[Demand]) -> dict[str, int]:
    """When each job's iteration begins, in ns after (below 0: before) a moment at which all of them were known."""
    latest = min(int(job.starts_ns[-1]) for job in jobs)
    return {job.job: -_since(job, latest) for job in jobs}


def _hold_ns(jobs: Sequence[Demand]) -> int:
    periods = [job.period_ns for job in jobs]
    return round(_SLACK * max(periods)) if min(periods) >= _ALIKE * max(periods) else 0


def _lately(jobs: Sequence[Demand], group: Sequence[int]) -> list[Demand]:
    """The jobs, those of the group with the last of the iterations only that they did alongside each other: as they
    are.

    Where they go round each other within a few iterations, a whole round is how they are.
    """
    latest = min(int(jobs[index].starts_ns[-1]) for index in group)
    until = {index: _until(jobs[index].starts_ns, latest) for index in group}
    together_ns = max(_went_on(until[index]) for index in group)
    longest = max(group, key=lambda index: float(np.median(np.diff(until[index][-_LATELY - 1 :]))))
    contention = until[longest][-_ROUND - 1 :]
    own_ns, count = float(np.median(np.diff(contention[-_LATELY - 1 :]))), float(_LATELY)
    for other in _others(group, longest):
        moves = drift(until[other][until[other] >= contention[0]], contention)
        round_ = own_ns / abs(moves.per_iteration_ns) if moves and moves.per_iteration_ns else 0.0
        count = max(count, round_ if round_ <= _ROUND else 0.0)
    found = list(jobs)
    for index in group:
        since = max(latest - count * own_ns, together_ns)
        first = min(int(np.searchsorted(until[index], since)), len(until[index]) - FEWEST - 1)
        found[index] = replace(jobs[index], starts_ns=until[index][max(0, first) :])
    return found


def _until(starts_ns: npt.NDArray[np.int64], latest_ns: int) -> npt.NDArray[np.int64]:
    """Without what came later, if enough is left."""
    before = starts_ns[starts_ns <= latest_ns]
    return before if len(before) > FEWEST else starts_ns


def _went_on(starts_ns: npt.NDArray[np.int64]) -> int:
    """When the job went on after its last long pause, in which the others had the links for themselves."""
    lasted = np.diff(starts_ns)
    pauses = np.flatnonzero(lasted > _PAUSE * np.median(lasted))
    return int(starts_ns[pauses[-1] + 1] if len(pauses) else starts_ns[0])


def _shared_ns(now: "_Contention", shifts: Mapping[int, float]) -> float:
    """What the own job's iterations took, as far as sharing explains it.

    Where links are shared fairly, each job is delayed for as long as it takes to transfer what all of them demand
    beyond the capacity; TCP, which loses packets there, makes up to half as much again of it. What it took beyond that
    is due to something else, and no shift saves it.
    """
    took, alone = now.own.mean_ns, float(now.own.period_ns)
    return float(np.clip(took, alone, alone + _CROWDED * now.excess(shifts) * took))


def _with_holds(jobs: Sequence[Demand], group: Sequence[int], hold_ns: int) -> list[Demand]:
    """The jobs of the group as they would go on from now if nobody delayed them, and each other job as it was."""
    found = list(jobs)
    latest = min(int(jobs[index].starts_ns[-1]) for index in group)  # until when it is known of all where they are
    longest = max(jobs[index].period_ns for index in group)
    for index in group:
        job = jobs[index]
        job = _with_hold(job, hold_ns) if hold_ns else job
        count = -(-_ITERATIONS * longest // job.period_ns) + 1
        starts = latest - _since(jobs[index], latest) + job.period_ns * np.arange(-1, count + 1)
        found[index] = replace(job, starts_ns=starts)
    return found


def _with_hold(job: Demand, period_ns: int) -> Demand:
    """The job with a wait at the end of its iteration, so that one takes period_ns."""
    bins = job.rates.shape[1]
    edges = np.minimum(np.arange(bins + 1) * period_ns / job.period_ns, bins)
    sums = np.concatenate([np.zeros((len(job.links), 1)), np.cumsum(job.rates, axis=1)], axis=1)
    sent = np.stack([np.interp(edges, np.arange(bins + 1), row) for row in sums])
    return replace(job, period_ns=period_ns, rates=np.diff(sent, axis=1) * job.period_ns / period_ns)


def _others(group: Sequence[int], index: int) -> list[int]:
    return [other for other in group if other != index]


class _Contention:
    """One job alongside some others, on the links that it shares with them, over the time in which all of them
    trained."""

    def __init__(
        self,
        jobs: Sequence[Demand],
        index: int,
        others: Sequence[int],
        shared: Mapping[int, Sequence[int]],
        capacity_bps: Mapping[int, float],
    ) -> None:
        self.jobs, self.own, self.others, self.capacity_bps = jobs, jobs[index], others, capacity_bps
        self.links = tuple(link for link, using in shared.items() if index in using and set(using) & set(others))
        trained = [self.own, *(jobs[other] for other in others)]
        self.begin_ns = max(int(job.starts_ns[0]) for job in trained)
        self.bin_ns = max(1, (min(int(job.starts_ns[-1]) for job in trained) - self.begin_ns) // _WINDOW_BINS)

    def scores(self, candidates: Sequence[float], shifts: Mapping[int, float]) -> _Floats:
        """Mean score of the links at each shift of the own job."""
        total = np.zeros(len(candidates))
        for link in self.links:
            there = sum((self._over(self.jobs[p], link, shifts[p]) for p in self.others), np.zeros(_WINDOW_BINS))
            total += [score(there + self._over(self.own, link, s), self.capacity_bps[link]) for s in candidates]
        return total / max(1, len(self.links))

    def score(self, shift: float, shifts: Mapping[int, float]) -> float:
        return float(self.scores([shift], shifts)[0])

    def trend(self) -> float:
        """Mean score of the links in the later half of the time less that in the earlier half, as they are."""
        half = _WINDOW_BINS // 2
        of_links = []
        for link in self.links:
            demand = sum((self._over(self.jobs[p], link, 0.0) for p in self.others), self._over(self.own, link, 0.0))
            of_links.append(
                score(demand[half:], self.capacity_bps[link]) - score(demand[:half], self.capacity_bps[link])
            )
        return float(np.mean(of_links)) if of_links else 0.0

    def excess(self, shifts: Mapping[int, float]) -> float:
        """1 − score of the link on which the jobs are most in each other's way; shifts: of all."""
        there = {link: sum(self._over(self.jobs[p], link, shifts[p]) for p in shifts) for link in self.links}
        return max(
            (1 - score(np.asarray(demand), self.capacity_bps[link]) for link, demand in there.items()), default=0.0
        )

    def _over(self, job: Demand, link: int, shift_ns: float) -> _Floats:
        return job.over(link, self.begin_ns, self.bin_ns, _WINDOW_BINS, shift_ns)


def _candidates(contention: _Contention) -> _Floats:
    return np.arange(_SHIFTS) * contention.own.period_ns / _SHIFTS


def _best_shift(contention: _Contention, shifts: Mapping[int, float]) -> float:
    """0 where no shift is better than that."""
    candidates = _candidates(contention).tolist()
    scores = contention.scores(candidates, shifts)
    best = _middle_of_best(scores)
    return float(candidates[best]) if scores[best] - scores[0] > _ENOUGH else 0.0


def _middle_of_best(scores: _Floats) -> int:
    """The place in the middle of the longest run of best scores: what jitters stays within. It goes round."""
    good = scores >= scores.max() - _ENOUGH
    if good.all():
        return 0
    turn = int(np.flatnonzero(~good)[0])
    edges = np.diff(np.concatenate([[0], np.roll(good, -turn).astype(np.int8), [0]]))
    begins, ends = np.flatnonzero(edges > 0), np.flatnonzero(edges < 0)
    longest = int((ends - begins).argmax())
    return int((begins[longest] + ends[longest] - 1) // 2 + turn) % len(scores)


def _model(jobs: Sequence[Demand], shifts: Sequence[float], capacity_bps: Mapping[int, float]) -> _Floats:
    """Durations of the group's jobs by the fluid model, from the present phases on and so much later."""
    known = {link: capacity_bps.get(link) or float("inf") for job in jobs for link in job.links}
    begins = np.array([job.starts_ns[1] for job in jobs], np.float64) + np.array(shifts)
    took: _Floats = durations(jobs, known, (begins - begins.min())[None, :], _ITERATIONS)[0]
    return took


def _since(job: Demand, time_ns: int) -> int:
    """How long ago the iteration began that began nearest to a time; a job that is over goes on as before."""
    nearest = int(job.starts_ns[np.abs(job.starts_ns - time_ns).argmin()])
    since, measured_ns = time_ns - nearest, int(job.measured_ns)
    return since if abs(since) < measured_ns else since % measured_ns


# --- Whether the phases of two jobs drift closer or further by themselves.


@dataclass(frozen=True)
class Drift:
    """How the beginnings of one job move within another one's iterations.

    phase_ns: of the last, after the beginning of the other's iteration. per_iteration_ns: how much later each begins
    than the one before, median; what sharing the link does to it is in it (MLTCP, HotNets'24, has it as the shift per
    iteration). spread_ns: median distance from that.
    """

    phase_ns: float
    per_iteration_ns: float
    spread_ns: float


@dataclass(frozen=True)
class Phases:
    """Of each beginning (UTC) that lies within another job's iteration: how long after that one's beginning it is."""

    time_ns: _Times
    phase_ns: npt.NDArray[np.float64]
    period_ns: float  # median duration of the other job's iterations

    @property
    def moves_ns(self) -> npt.NDArray[np.float64]:
        """From each to the next, (beginnings − 1,), the way round that is shorter."""
        half = self.period_ns / 2
        return np.asarray((np.diff(self.phase_ns) + half) % self.period_ns - half)


def relative_phases(of_ns: _Times, contended_ns: _Times) -> Phases | None:
    """Of the beginnings of one job's iterations alongside another's, both ascending. None where there are too few."""
    if len(of_ns) < 3 or len(contended_ns) < 3:
        return None
    number = np.searchsorted(contended_ns, of_ns, "right") - 1
    inside = (number >= 0) & (number < len(contended_ns) - 1)
    if inside.sum() < 3:
        return None
    phase = (of_ns[inside] - contended_ns[number[inside]]).astype(np.float64)
    return Phases(of_ns[inside], phase, float(np.median(np.diff(contended_ns))))


def drift(of_ns: _Times, contended_ns: _Times) -> Drift | None:
    found = relative_phases(of_ns, contended_ns)
    if found is None:
        return None
    middle = float(np.median(found.moves_ns))
    return Drift(float(found.phase_ns[-1]), middle, float(np.median(np.abs(found.moves_ns - middle))))
