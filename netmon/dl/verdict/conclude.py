# SPDX-License-Identifier: Apache-2.0
"""The shares of an excess become a verdict: the cause, who and where, and what would have been without."""

from dataclasses import replace
from typing import Any

import numpy as np

from netmon.dl.verdict.baseline import Matrix, spread
from netmon.dl.verdict.evidence import Link, Steps
from netmon.dl.verdict.judged import Blamed, Judged
from netmon.views import NETWORK, SHARES, Cause, Verdict

_LEAST_SHARE = 0.3  # of the excess: what makes a cause the cause
_SECOND_SHARE = 0.2
_MEANT = 0.5  # of what is not known: what has to be reported who accuses nobody's traffic
_MAY_BE_HIS = ("unknown", "loss", "slow_link")
_INTERVAL = 1.645  # standard deviations: 90 %

_CAUSES = {
    "compute": Cause.COMPUTE,
    "late": Cause.STRAGGLER,
    "cross": Cause.CROSS,
    "other_job": Cause.OTHER_JOB,
    "own_transfer": Cause.OWN_TRANSFER,
    "loss": Cause.LOSS,
    "slow_link": Cause.SLOW_LINK,
    "host": Cause.HOST,
    "pause": Cause.PAUSE,
}


def conclude(
    verdict: Verdict,
    shares: dict[str, float],
    of_ranks: tuple[dict[int, float], dict[int, float]],
    blamed: Blamed | None,
    noise_ns: float,
    one: Judged,
    steps: Steps,
) -> Verdict:
    """shares: ns, by SHARES; of_ranks: of those that were late, and whose hosts were slow, ns by rank."""
    excess = float(verdict.excess_ns)
    ranks = dict(zip(("late", "host"), of_ranks, strict=True))
    names = sorted(_CAUSES, key=lambda name: -shares[name])
    first, second = names[0], names[1]
    whole: dict[str, Any] = {f"{name}_ns": round(shares[name]) for name in SHARES}
    whole["unknown_ns"] += verdict.excess_ns - sum(whole.values())
    verdict = replace(verdict, **whole, error_ns=round(noise_ns))
    doubt = shares["unknown"] * (1.0 if _CAUSES[first] in NETWORK else _MEANT)
    if shares[first] < max(_LEAST_SHARE * excess, noise_ns, doubt):
        return replace(verdict, confidence=round(max(0.0, shares[first] / excess) / 2, 3))
    verdict = replace(verdict, cause=_CAUSES[first])
    if shares[second] >= max(_SECOND_SHARE * excess, noise_ns):
        verdict = replace(
            verdict,
            second_cause=_CAUSES[second],
            second_culprit=_who(second, ranks.get(second, {}), blamed),
        )
    sure = float(np.clip(shares[first] / max(excess - shares[second], 1.0), 0.0, 1.0))
    sure *= float(np.clip(1.0 - noise_ns / excess, 0.0, 1.0))
    return replace(_placed(verdict, first, ranks.get(first, {}), blamed, one, steps), confidence=round(sure, 3))


def _who(name: str, late_of: dict[int, float], blamed: Blamed | None) -> str:
    if name in ("late", "host") and late_of:
        return f"rank {max(late_of, key=lambda rank: late_of[rank])}"
    return next((each.name for each in blamed.culprits if each.cause == name), "") if blamed else ""


def _placed(
    verdict: Verdict, first: str, late_of: dict[int, float], blamed: Blamed | None, one: Judged, steps: Steps
) -> Verdict:
    """With who and where, and what would have been without his bytes."""
    table, row = one.table, one.row
    if first in ("late", "host") and late_of:
        rank = max(late_of, key=lambda rank: late_of[rank])
        column = int(np.searchsorted(table.rank, rank))
        index = int(table.host[row, column]) if column < len(table.rank) else -1
        host = steps.hosts[index] if index >= 0 else ""
        return replace(verdict, rank=rank, host=host, culprit=f"rank {rank}")
    if first in ("cross", "other_job", "own_transfer") and blamed and one.seen:
        culprit = next(each for each in blamed.culprits if each.cause == first)
        blamed_ns = min(culprit.ns, getattr(verdict, f"{first}_ns"))
        without = max(float(verdict.duration_ns - blamed_ns), 0.0)
        half = _INTERVAL * float(np.hypot(spread(table.slowest[one.baseline]), verdict.error_ns / 2))
        if without - verdict.usual_ns <= half:  # the baseline iterations have as much of that: it is none of this one's
            without = float(verdict.usual_ns)
        # On a link that is full with his bytes, what is not known, lost, or more than they take may be his doing, too.
        maybe = culprit.most_ns - blamed_ns + sum(max(0, getattr(verdict, f"{name}_ns")) for name in _MAY_BE_HIS)
        low = without - half - min(maybe, max(0.0, without - verdict.usual_ns))
        return replace(
            _at(verdict, one.seen.links[culprit.link], one, steps),
            culprit=culprit.name,
            bytes=round(culprit.payload),
            counterfactual_ns=round(without),
            counterfactual_low_ns=round(max(0.0, low)),
            counterfactual_high_ns=round(min(float(verdict.duration_ns), without + half)),
        )
    if first in ("slow_link", "loss") and blamed and blamed.links and one.seen:
        return _at(verdict, one.seen.links[blamed.links[0]], one, steps)
    return verdict


def _at(verdict: Verdict, link: Link, one: Judged, steps: Steps) -> Verdict:
    rank = _rank_at(one.table, one.row, steps, link.host)
    return replace(verdict, host=link.host, interface=link.interface, direction=link.direction, rank=rank)


def _rank_at(table: Matrix, row: int, steps: Steps, host: str) -> int:
    there = [int(table.rank[c]) for c, h in enumerate(table.host[row].tolist()) if h >= 0 and steps.hosts[h] == host]
    return there[0] if len(there) == 1 else -1
