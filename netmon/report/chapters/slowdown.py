# SPDX-License-Identifier: Apache-2.0
"""Iteration time against cross traffic: congestion point, fits, spare capacity (the thesis' chapter 3)."""

import pandas as pd

from netmon.dl.verdict.verdict_text import cause_words, renamed, sentence
from netmon.report.congestion import CongestionPoint
from netmon.report.exhibit import Chapter, Exhibit, Frames, need
from netmon.report.figures import slowdown as draw
from netmon.report.fits import Fit, fit_families
from netmon.report.iteration_times import quiet_in_every_profile
from netmon.report.study import Study, by_profile
from netmon.views import Verdict

_SLOWEST = 20
NO_LEVELS = "there is no iteration whose cross traffic is known"


def congestion_table(study: Study) -> pd.DataFrame:
    """model, profile, found, theory (shares of C), difference, quiet_s, slope_s, error (relative), reason."""
    return pd.DataFrame([_congestion_row(study, key, point) for key, point in study.congestion.items()])


def _congestion_row(study: Study, key: tuple[str, str], point: CongestionPoint) -> dict[str, object]:
    theory = study.congestion_in_theory(*key)
    return {
        **dict(zip(("model", "profile"), key, strict=True)),
        "found": point.level,
        "theory": theory,
        "difference": point.level - theory,
        "flat_s": point.flat_s,
        "slope_s": point.slope_s,
        "error": point.error,
        "reason": point.reason,
    }


def _level_frames(study: Study) -> Frames:
    return {"levels": need(study.levels, NO_LEVELS), "congestion": congestion_table(study)}


def fits_by_profile(study: Study) -> dict[tuple[str, str], list[Fit]]:
    """The three families' fits of each model and profile that has enough levels, the best first."""
    fits = {}
    for key, rows in by_profile(study.levels):
        try:
            fits[key] = fit_families(rows["level"].to_numpy(), rows["median_s"].to_numpy())
        except ValueError:
            continue
    return fits


def _fit_frames(study: Study) -> Frames:
    need(study.levels, NO_LEVELS)
    rows = [
        {
            "model": model,
            "profile": profile,
            "n": f.n,
            "A_s": f.a_s,
            "B": f.b,
            "r_squared": f.r_squared,
            "points": f.points,
        }
        for (model, profile), fits in fits_by_profile(study).items()
        for f in fits
    ]
    most = int(study.levels.groupby(["model", "profile"])["level"].nunique().max())
    fits = need(pd.DataFrame(rows), f"a fit takes three levels of cross traffic, and there are {most}")
    return {"fits": fits, "levels": study.levels}


def _cdf_frames(study: Study) -> Frames:
    known = quiet_in_every_profile(need(study.times, NO_LEVELS))
    columns = ["model", "profile", "level", "run", "iteration", "time_s"]
    return {"times": need(known[columns], NO_LEVELS)}


def _slowest_frames(study: Study) -> Frames:
    """The slowest iterations, and the verdict on each that stood out."""
    times = need(study.times, "there is no iteration after the first one")
    baseline = times.groupby(["run", "job"])["time_s"].transform("median")
    slowest = times.assign(times_median=times["time_s"] / baseline).nlargest(_SLOWEST, "times_median")
    by = ["run", "job", "iteration"]
    ranks = slowest[by].merge(study.ranks[[*by, "start_ns", "end_ns"]], on=by)
    # An iteration ends with its slowest rank, by which its verdict is found.
    said = {(one.job, one.iteration, one.end_ns): renamed(one, study.job_names) for one in study.verdicts}
    of = dict[tuple[str, str, int], Verdict]()
    for run, job, iteration, end_ns in ranks[[*by, "end_ns"]].itertuples(index=False):
        if verdict := said.get((job, iteration, end_ns)):
            of[run, job, iteration] = verdict
    verdicts = [of.get(key) for key in slowest[by].itertuples(index=False, name=None)]
    why = [sentence(one).partition(" because ")[2] or "not known" if one else "" for one in verdicts]
    columns = [*by, "time_s", "times_median", "cross_bytes", "level"]
    return {"slowest": slowest[columns].assign(cause=[cause_words(one) if one else "" for one in verdicts], why=why)}


CHAPTER = Chapter(
    "Iteration time against cross traffic",
    (
        Exhibit(
            "iteration-time",
            "Iteration time against cross traffic",
            "thesis, figures 3-2, 3-3, 3-4, 3-6",
            "Median over iterations (an iteration lasts as long as its slowest rank; each job's first is left "
            "out), with 99 % tails: the bars reach from the 1st to the 99th percentile. Cross traffic as offered "
            "to the most loaded host where the lab tells it, else as measured; in shares of the link's capacity "
            "C. Dashed: congestion point in theory, 1 − 8·D/(t₀·C). Dotted: as found.",
            _level_frames,
            draw.iteration_time,
        ),
        Exhibit(
            "hyperbola",
            "The same, rescaled: time against 1 / (C − BW)",
            "thesis, equation 3.2",
            "In this scale a transfer that gets what the cross traffic leaves takes a time on a straight line.",
            _level_frames,
            draw.hyperbola,
        ),
        Exhibit(
            "congestion-point",
            "Congestion point",
            "thesis, appendix A.2, automated, and equation 3.1",
            "Two lines by least squares (relative distances) on the medians: constant (median of the levels below "
            "the corner), then straight in 1 / (C − BW). The corner is the congestion point. The automation is "
            "ours; the thesis draws the lines by hand. Theory: 1 − 8·D/(t₀·C) with D = 2·(N−1)/N·P·4 B, t₀ the "
            "quiet iteration time.",
            _level_frames,
            draw.congestion,
        ),
        Exhibit(
            "fits",
            "Fits of t = A·exp(B / (C − BW)ⁿ)",
            "thesis, equations 3.3, 3.5–3.7",
            "n = 1, ½, 2, with C − BW as a share of C; least squares on the median iteration time of each level, "
            "R² of the time itself.",
            _fit_frames,
            draw.fits,
        ),
        Exhibit(
            "iteration-time-cdf",
            "Distribution of iteration times by profile and load",
            "thesis, figure 3-5",
            "Empirical distribution functions; one line per level of cross traffic.",
            _cdf_frames,
            draw.time_cdf,
        ),
        Exhibit(
            "slowest-iterations",
            "Slowest iterations",
            "",
            "By their time in medians of their job, and why, as `netmon why` says: nothing where an iteration took less"
            " than 1.2 × its usual time.",
            _slowest_frames,
        ),
    ),
)
