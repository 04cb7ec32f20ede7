# SPDX-License-Identifier: Apache-2.0
"""What the data say about the papers' effects, in sentences that are computed; also where they do not show."""

import math

import pandas as pd

from netmon.history.dataset import groups
from netmon.report.chapters.accounts import coverage
from netmon.report.chapters.slowdown import fits_by_profile
from netmon.report.study import Study
from netmon.report.summary import SIZE
from netmon.units import format_bytes, format_duration

BURST, CONSISTENT = "burst", "websearch"
_AGREES = 0.15  # of C, between the congestion point and its theory
_GOOD_FIT = 0.95
_TIMES = {"median": "median_s", "99th percentile": "p99_s"}
_SIGNIFICANT = 0.05
_WHY_NOT = (
    " What may hide it: the cross traffic leaves one host, whose own link makes a burst above C a longer one at C; the "
    "switch's port queues what is left of it; and beyond the congestion point the training takes what the mean rate "
    "leaves, and the means are alike."
)
_NO_SLACK = 0.8  # of C
_COMPARED = 0.8  # the level at which the thesis compares the profiles


def findings(study: Study) -> list[str]:
    """One sentence each; never raises for what is not there."""
    if study.times.empty:
        return [
            "There is no iteration after any job's first one, so nothing can be said about iteration times.",
            *_account(study),
        ]
    return [*_slowdown(study), *_congestion(study), *_fits(study), *_burst(study), *_bytes(study), *_account(study)]


def _slowdown(study: Study) -> list[str]:
    sentences = []
    for (model, profile), rows in groups(study.levels, "model", "profile"):
        ordered = rows.sort_values("level")
        first, last = ordered.iloc[0], ordered.iloc[-1]
        if len(ordered) < 2:
            sentences.append(
                f"{model}: only one level of cross traffic ({first['level']:.0%} of C), "
                f"median iteration {_time(first['median_s'])}; its effect is unknown."
            )
            continue
        sentences.append(
            f"{model}, {profile}: the median iteration takes {_time(first['median_s'])} at {first['level']:.0%} cross "
            f"traffic and {_time(last['median_s'])} ({last['median_s'] / first['median_s']:.2f} ×) at "
            f"{last['level']:.0%}; the 99th percentile goes from {_time(first['p99_s'])} to {_time(last['p99_s'])}."
        )
    return sentences


def _congestion(study: Study) -> list[str]:
    sentences = []
    for (model, profile), point in study.congestion.items():
        theory = study.congestion_in_theory(model, profile)
        about = f"{model}, {profile}: "
        if not math.isfinite(point.level):
            why = _no_slack(study, model)
            sentences.append(f"{about}no congestion point ({point.reason}); theory says {_share(theory)}.{why}")
            continue
        sentences.append(
            f"{about}flat at {_time(point.flat_s)} up to {point.level:.2f} C, then rising; theory says {_share(theory)}"
            f"{_agreement(abs(point.level - theory))}."
        )
    return sentences


def _agreement(difference: float) -> str:
    if not math.isfinite(difference):
        return ""
    return f": {difference:.2f} of difference, {'within' if difference <= _AGREES else 'not within'} {_AGREES}"


def _no_slack(study: Study, model: str) -> str:
    """Why there may be nothing flat: the theory takes the average rate over an iteration, the link the one at work."""
    rows = study.times[(study.times["model"] == model) & (study.times["level"] == 0)]
    busy = study.step_bytes(model) * 8 / rows["communication_s"].median() / (study.rate_of(model) or math.nan)
    if not busy > _NO_SLACK:
        return ""
    return f" While it communicates, the quiet training already sends at {busy:.2f} C, so any cross traffic slows it."


def _fits(study: Study) -> list[str]:
    sentences = []
    for (model, profile), fits in fits_by_profile(study).items():
        best = fits[0]
        others = ", ".join(f"{fit.r_squared:.3f} for n = {fit.n:g}" for fit in fits[1:])
        verdict = "" if best.r_squared >= _GOOD_FIT else f"; none reaches {_GOOD_FIT}"
        sentences.append(
            f"{model}, {profile}: t = {best.a_s:.3g} s · exp({best.b:.3g} / (1 − BW/C)^{best.n:g}) fits best, "
            f"R² = {best.r_squared:.3f} ({others}) on {best.points} levels{verdict}."
        )
    return sentences


def _burst(study: Study) -> list[str]:
    sentences = []
    for (model,), rows in groups(study.levels, "model"):
        loaded = rows[rows["level"] > 0]
        by = {str(profile): own.set_index("level") for profile, own in loaded.groupby("profile")}
        if not {BURST, CONSISTENT} <= by.keys():
            continue
        common = by[BURST].index.intersection(by[CONSISTENT].index)
        if common.empty:
            sentences.append(f"{model}: burst and consistent cross traffic have no level in common.")
            continue
        level = _COMPARED if _COMPARED in common else common.max()
        burst, consistent = by[BURST].loc[level], by[CONSISTENT].loc[level]
        ratios = ", ".join(f"{name} {burst[at] / consistent[at]:.2f} ×" for name, at in _TIMES.items())
        chance = _chance(study.times[(study.times["model"] == model) & (study.times["level"] == level)])
        verdict = "worse than" if chance < _SIGNIFICANT else "not shown to be worse than"
        sentences.append(
            f"{model}: at {level:.0%} cross traffic burst is {verdict} consistent ({ratios} the consistent one's; "
            f"rank-sum test p = {chance:.2g}), on "
            f"{burst['iterations']:.0f} and {consistent['iterations']:.0f} iterations, which met "
            f"{burst['measured']:.0%} and {consistent['measured']:.0%} of C.{'' if chance < _SIGNIFICANT else _WHY_NOT}"
        )
    return sentences


def _chance(times: pd.DataFrame) -> float:
    """How likely burst's iterations look so much longer than consistent's by chance: Mann and Whitney's U test."""
    from scipy import stats  # type: ignore[import-untyped]

    samples = [times.loc[times["profile"] == profile, "time_s"] for profile in (BURST, CONSISTENT)]
    return float(stats.mannwhitneyu(*samples, alternative="greater").pvalue)


def _bytes(study: Study) -> list[str]:
    from netmon.dl.classify import ring_bytes

    sentences = []
    for (model,), rows in groups(study.times, "model"):
        run = study.runs[study.runs["model"] == model].iloc[0]
        theory = ring_bytes(*(int(run[name]) for name in SIZE))
        measured = float(rows["dl_tx_bytes"].median())
        if theory > 0:
            sentences.append(
                f"{model}: a rank sends {format_bytes(measured)} of payload per iteration; equation 3.1 says "
                f"{format_bytes(theory)} ({measured / theory:.3f} ×)."
            )
    return sentences


def _account(study: Study) -> list[str]:
    accounts = study.accounts
    if accounts.empty or not accounts["nic_bytes"].sum():
        return ["There is no byte account, so how much the monitor missed is unknown."]
    worst = accounts.sort_values("coverage").iloc[0]
    lost = float(accounts[["lost_kernel_bytes", "lost_agent_bytes", "overflow_bytes"]].sum().sum())
    return [
        f"Conservation: {coverage(accounts):.3%} of {format_bytes(float(accounts['nic_bytes'].sum()))} that the NICs "
        f"counted are attributed to flows; lowest on {worst['host']} {worst['interface']} {worst['direction']} "
        f"({worst['coverage']:.3%}); {format_bytes(lost)} were lost or overflowed.",
        *_unclassified(study),
    ]


def _unclassified(study: Study) -> list[str]:
    if study.traffic is None:
        return []
    sums: pd.Series = study.traffic.flows.groupby("class")["wire_bytes"].sum()
    return [f"{sums.get('unclassified', 0) / max(sums.sum(), 1):.3%} of the attributed bytes are unclassified."]


def _time(seconds: float) -> str:
    return format_duration(seconds * 1e9)


def _share(level: float) -> str:
    return (
        f"{level:.2f} C" if math.isfinite(level) else "nothing (the capacity or the quiet iteration time is not known)"
    )
