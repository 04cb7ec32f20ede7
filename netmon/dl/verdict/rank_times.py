# SPDX-License-Identifier: Apache-2.0
"""Where each rank's iteration went, and along which ranks the critical path ran.

In any collective (ring, tree, star, clique, hierarchical) no rank has the sum before the last rank has handed over
its gradients. Earlier ranks wait for it; from then on all wait for the transfer. The verdict names what the transfer
takes beyond its baseline.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from netmon.dl.verdict.baseline import matrix, middle
from netmon.dl.verdict.evidence import CELL_NS, LinkTotals, Steps
from netmon.dl.verdict.judge import judge_input
from netmon.dl.verdict.phases import Judged, StepTimes
from netmon.dl.verdict.verdict_text import place
from netmon.views import CAUSES, RankTimes, Verdict

_MOST_NAMED = 8
_NOTABLE = 0.1  # of the baseline iteration: a wait that is worth a word

_Floats = npt.NDArray[np.float64]


def rank_times(job: str, steps: Steps, link_totals: LinkTotals, verdict: Verdict) -> tuple[RankTimes, ...]:
    """Of every rank that has the verdict's iteration, by rank. Raises KeyError where there is no such iteration."""
    return times_of(judge_input(job, matrix(steps), link_totals, verdict.iteration), steps, verdict)


def times_of(one: Judged, steps: Steps, verdict: Verdict) -> tuple[RankTimes, ...]:
    """The same of one that has been looked at. steps: of its job."""
    table, row = one.table, one.row
    moments, known = one.moments, np.isfinite(table.waited)
    exposed = np.where(known, table.waited, moments.exposed)
    waits, lasts = _waits_anywhere(exposed, one) if known[row].any() else _waits(moments)
    baseline = middle((exposed - waits)[one.baseline]) if len(one.baseline) else np.full(len(table.rank), np.nan)
    rows = []
    for column in np.flatnonzero(table.host[row] >= 0).tolist():
        rank, host = int(table.rank[column]), steps.hosts[int(table.host[row, column])]
        start, end, done = (float(each[row, column]) for each in (table.start, table.end, moments.done))
        waited, exposed_ns = float(waits[row, column]), float(exposed[row, column])
        if not np.isfinite(done + waited + exposed_ns):
            rows.append(RankTimes(rank, host, round(end - start)))
            continue
        rest = exposed_ns - waited
        transfer = min(rest, float(baseline[column])) if np.isfinite(baseline[column]) else rest
        parts = [round(each) for each in (done - start - exposed_ns, waited, transfer, rest - transfer)]
        error = float(np.nan_to_num(table.error[row, column])) + (CELL_NS * one.seen.clock_cells if one.seen else 0)
        last = int(lasts[row])
        rows.append(
            RankTimes(
                rank,
                host,
                round(end - start),
                known=True,
                computed_ns=parts[0],
                waited_ns=parts[1],
                waited_for=int(table.rank[last]) if parts[1] > 0 and last >= 0 else -1,
                transfer_ns=parts[2],
                stalled_ns=parts[3],
                stalled_by=_by(verdict) if parts[3] > 0 else "",
                after_ns=round(end - start) - sum(parts),
                error_ns=round(error),
            )
        )
    return tuple(rows)


def most_relevant(times: Sequence[RankTimes], count: int) -> tuple[RankTimes, ...]:
    """As many of them, by rank: those that others waited for, then those that took longest."""
    lasts = {each.waited_for for each in times}
    chosen = sorted(times, key=lambda each: (each.rank not in lasts, -each.duration_ns))[:count]
    return tuple(sorted(chosen, key=lambda each: each.rank))


def _waits(moments: StepTimes) -> tuple[_Floats, npt.NDArray[np.int64]]:
    """(iterations, ranks): how long each only waited for the last one's first gradient; (iterations,): who that was."""
    known = np.isfinite(moments.arrive).all(axis=1)
    last = np.where(known, np.argmax(np.where(np.isfinite(moments.arrive), moments.arrive, -np.inf), axis=1), -1)
    everybody = np.where(known, moments.arrive.max(axis=1), np.nan)[:, None]
    idle_from = np.fmax(moments.arrive, moments.done - moments.exposed)
    return np.clip(everybody - idle_from, 0.0, np.maximum(moments.exposed, 0.0)), last


def _waits_anywhere(exposed: _Floats, one: Judged) -> tuple[_Floats, npt.NDArray[np.int64]]:
    """The same of the judged iteration, where ranks wait at any time of it: for the one that computed longer than it
    usually does by most."""
    longer, more = (each[one.row] - middle(each[one.baseline]) for each in (one.table.duration - exposed, exposed))
    waits, last = np.zeros_like(exposed), np.full(len(exposed), -1)
    if np.isfinite(longer).any():
        last[one.row] = np.nanargmax(longer)
        waits[one.row] = np.clip(np.minimum(more, longer[last[one.row]] - longer), 0.0, exposed[one.row])
    return waits, last


def _by(verdict: Verdict) -> str:
    """Whose doing it is that a transfer took longer."""
    return CAUSES[verdict.cause].stalled_by.format(**place(verdict))


def path_of(times: Sequence[RankTimes], verdict: Verdict) -> str:
    """Who delayed the others, and who only waited, in words; empty: nobody did, or it is not known."""
    known = [each for each in times if each.known]
    notable = _NOTABLE * (verdict.baseline_ns or max((each.duration_ns for each in known), default=0))
    waiting = [each for each in known if each.waited_ns >= max(notable, 2 * each.error_ns)]
    lasts = {each.waited_for for each in waiting}
    stalled = [each for each in known if each.stalled_ns >= notable]
    most_stalled = max((each.stalled_ns for each in stalled), default=0)
    if waiting and max(each.waited_ns for each in waiting) >= most_stalled:
        names = _ranks([each.rank for each in waiting])
        who = next((each for each in known if each.rank in lasts), None)
        return f"rank {min(lasts)}{f' ({who.host})' if who else ''} held the others up: {names} only waited for it"
    if stalled and verdict.host:
        link = (
            f"{verdict.host} {verdict.interface} {verdict.direction.name.lower()}"
            if verdict.interface
            else verdict.host
        )
        first = f"rank {verdict.rank}, " if verdict.rank >= 0 else ""
        others = [each.rank for each in known if each.rank != verdict.rank]
        waited = f": {_ranks(others)} only waited for its part" if others else ""
        return f"{first}{link} held the transfer up{waited}"
    return ""


def _ranks(numbers: Sequence[int]) -> str:
    names = [str(number) for number in sorted(numbers)]
    if len(names) == 1:
        return f"rank {names[0]}"
    if len(names) > _MOST_NAMED:
        names[_MOST_NAMED - 1 :] = [f"{len(names) - _MOST_NAMED + 1} others"]
    return f"ranks {', '.join(names[:-1])} and {names[-1]}"
