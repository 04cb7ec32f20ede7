# SPDX-License-Identifier: Apache-2.0
"""How long iterations take when jobs share links: a fluid model.

Each job goes through the bins of its iteration (netmon.dl.sharing.demand), at full speed where the links give what it
asks for, else at the share that it gets of the tightest one. A link that is asked for more than its capacity divides
it max-min fairly between the jobs, weighed by their flows, as long-lived TCP flows of equal round-trip times come to
do (Chiu and Jain, 1989). Losses, slow start and round-trip times are not modelled, nor are iterations of unequal work.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from netmon.dl.sharing.demand import Demand

_Floats = npt.NDArray[np.float64]

_STEPS = 128  # of the shortest iteration


def fair_shares(asked: _Floats, weights: _Floats, capacity: float) -> _Floats:
    """Max-min fair shares of a link. asked: bit/s, (cases, jobs); weights: (jobs,). Shares: (cases, jobs)."""
    given = np.where(asked.sum(axis=1, keepdims=True) <= capacity, asked, 0.0)
    crowded = np.flatnonzero(asked.sum(axis=1) > capacity)
    if not len(crowded):
        return given
    wanted = asked[crowded]
    per_weight = wanted / weights
    order = np.argsort(per_weight, axis=1)
    left, weight = np.full(len(crowded), capacity), np.where(wanted > 0, weights, 0.0).sum(axis=1)
    rows = np.arange(len(crowded))
    for place in range(wanted.shape[1]):  # who wants least per flow is served first, and leaves the rest to the others
        job = order[:, place]
        want = wanted[rows, job]
        own = np.where(want > 0, weights[job], 0.0)
        share = np.minimum(want, left * own / np.maximum(weight, 1e-12))
        given[crowded, job] = share
        left, weight = left - share, weight - own
    return given


def durations(
    jobs: Sequence[Demand],
    capacity_bps: Mapping[int, float],
    begins_ns: _Floats,
    iterations: int,
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
        place = np.minimum((done % 1.0 * bins[0]).astype(np.int64), bins[0] - 1)
        going = now >= begins_ns
        speed = np.ones((cases, count))
        for link, of_link, weight in zip(links, rates, weights, strict=True):
            asked = np.where(going, of_link[whose, place], 0.0)
            if asked.sum(axis=1).max() > capacity_bps[link]:
                given = fair_shares(asked, weight, capacity_bps[link])
                with np.errstate(divide="ignore", invalid="ignore"):
                    speed = np.minimum(speed, np.where(asked > 0, given / asked, 1.0))
        before = np.floor(done)
        done = done + np.where(going, speed * step_ns / periods, 0.0)
        now += step_ns
        over = np.floor(done) > before
        last_end = np.where(over, now - (done % 1.0) * periods, last_end)
        ended = np.where(over, np.floor(done), ended)
    return (last_end - begins_ns) / np.maximum(ended, 1.0)
