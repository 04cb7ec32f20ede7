# SPDX-License-Identifier: Apache-2.0
"""Verdicts on simulated tables: the judge is asked as the collector asks it."""

from collections.abc import Callable

import numpy as np

from netmon.bench.verdict.campaign import VerdictResult
from netmon.bench.verdict.scoring import NOTHING, OFTEN, SCORED_FROM, Accusation, Outcome, judged, share_of
from netmon.bench.verdict.simulated import JOB, Scenario, scenario, simulate
from netmon.dl.verdict import judge
from netmon.dl.verdict.verdict_text import columns
from netmon.lab.injections.spec import NETWORK

SIMULATED = "simulated"


def judge_simulated(
    count: int, seed: int, result: VerdictResult, progress: Callable[[int], None] = lambda _: None
) -> None:
    """Add so many to a result; blocks. Ctrl-C ends it with what is there. progress: called with how many are done."""
    try:
        for number in range(count):
            progress(number)
            outcome = judge_one(scenario(seed * 1_000_000 + number))
            accused = outcome.told in NETWORK and outcome.cause not in NETWORK
            verdicts = [outcome.verdict] if outcome.verdict else []
            accusations = [Accusation(outcome.run, SIMULATED, (outcome.kind,), each) for each in verdicts if accused]
            result.add(outcome.run, [outcome], accusations, len(verdicts))
    except KeyboardInterrupt:
        result.interrupted = True


def judge_one(its: Scenario) -> Outcome:
    """One scenario's. A verdict is requested whether the iteration stands out or not, but counts only if it does."""
    made = simulate(its)
    lasted, undisturbed = made.usual_ns + made.excess_ns, float(np.quantile(made.undisturbed_ns, OFTEN))
    notable = lasted >= SCORED_FROM * made.usual_ns
    stands_out = notable and lasted > undisturbed
    verdict = columns(judge(JOB, made.steps, made.link_totals, made.number)) if notable else None
    cause = made.injection["cause"] or NOTHING
    judged_cause = str(verdict["cause"]) if verdict else NOTHING
    share = float(str(verdict.get(share_of(cause), 0) or 0)) if verdict and cause != NOTHING else None
    return Outcome(
        *(f"{SIMULATED}-{its.seed}", SIMULATED, its.cause, cause, judged_cause),
        judged(cause, judged_cause, stands_out, made.injection, verdict),
        *(0, made.usual_ns, made.excess_ns, share, None),
        {**made.injection, "scenario": vars(its)},
        verdict,
        undisturbed,
    )
