# SPDX-License-Identifier: Apache-2.0
"""Iteration time against cross traffic: congestion point, fits, spare capacity (the thesis' chapter 3)."""

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from netmon.dl.past_frames import step_times
from netmon.dl.verdict.verdict_text import cause_words, renamed, sentence
from netmon.history.dataset import groups, records
from netmon.report.estimates import CongestionPoint, Fit, fit_families, quiet_in_every_profile, rescaled
from netmon.report.study import NO_LEVELS, NO_TIMES, Chapter, Exhibit, Frames, Study, by_profile, need
from netmon.report.style import (
    CROSS_LABEL,
    INK,
    THEORY,
    as_percent,
    by_model,
    cumulative,
    legend_outside,
    level_colours,
    log_if_wide,
    panels,
    profile_style,
)
from netmon.views import Verdict

# --- Figures of the thesis' chapter 3.

_FAMILY_STYLE = {1.0: ("-", "#0072B2"), 0.5: ("--", "#E69F00"), 2.0: (":", "#CC79A7")}
_FAMILY_NAME = {1.0: "n = 1", 0.5: "n = ½", 2.0: "n = 2"}


def _points(congestion: pd.DataFrame, model: str) -> Iterator[tuple[str, CongestionPoint, float]]:
    for row in records(congestion[congestion["model"] == model]):
        point = CongestionPoint(row.found, row.flat_s, row.slope_s, row.error, row.reason)
        yield str(row.profile), point, float(row.theory)


def _theory_line(ax: Axes, at: float, scale: bool = False) -> None:
    if math.isfinite(at) and 0 <= at < 1:
        place = float(rescaled(at)) if scale else at
        ax.axvline(place, color=THEORY, linestyle="--", linewidth=1, label="congestion point in theory")


def _known(level: float) -> str:
    return f"{level:.2f}" if math.isfinite(level) else "not known"


def iteration_time(figure: Figure, levels: pd.DataFrame, congestion: pd.DataFrame) -> None:
    """Medians with 99 % tails by level; one line per profile, a panel per model."""
    for ax, model, rows in by_model(figure, levels):
        profiles = sorted(rows["profile"].unique())
        for place, profile in enumerate(profiles):
            own = rows[rows["profile"] == profile].sort_values("level")
            x = own["level"] + (place - (len(profiles) - 1) / 2) * 0.008  # bars of two profiles stand side by side
            tails = [own["median_s"] - own["p01_s"], own["p99_s"] - own["median_s"]]
            ax.errorbar(
                x, own["median_s"], yerr=tails, capsize=2.5, elinewidth=0.9, label=profile, **profile_style(profile)
            )
        theories = [theory for _, _, theory in _points(congestion, model)]
        _theory_line(ax, theories[0] if theories else math.nan)
        for profile, point, _ in _points(congestion, model):
            if math.isfinite(point.level):
                colour = profile_style(profile)["color"]
                ax.axvline(point.level, color=colour, linestyle=":", label=f"found, {profile}")
        ax.set_ylim(bottom=0)
        ax.set_xlabel(CROSS_LABEL)
        ax.set_ylabel("iteration time (s)")
        as_percent(ax.xaxis)
        ax.legend()


def hyperbola(figure: Figure, levels: pd.DataFrame, congestion: pd.DataFrame) -> None:
    """Medians against 1 / (1 − level), with the two lines where they were found."""
    for ax, model, rows in by_model(figure, levels):
        for (profile,), own in groups(rows, "profile"):
            style = profile_style(str(profile))
            ax.plot(rescaled(own["level"]), own["median_s"], linestyle="", label=str(profile), **style)
        for profile, point, _ in _points(congestion, model):
            if math.isfinite(point.level):
                x = np.linspace(0, rows["level"].max(), 300)
                colour = profile_style(profile)["color"]
                ax.plot(rescaled(x), point.at(x), color=colour, linewidth=1, label=f"two lines, {profile}")
        points = list(_points(congestion, model))
        _theory_line(ax, points[0][2] if points else math.nan, scale=True)
        ax.set_ylim(bottom=0)
        ax.set_xlabel("1 / (C − BW), in units of 1 / C")
        ax.set_ylabel("iteration time (s)")
        ax.legend()


def congestion(figure: Figure, levels: pd.DataFrame, congestion: pd.DataFrame) -> None:
    """The two lines on the medians, corner marked, a panel per model and profile."""
    keys = [(row.model, row.profile) for row in records(congestion)]
    for ax, key in zip(panels(figure, [f"{model}, {profile}" for model, profile in keys]), keys, strict=False):
        rows = levels[(levels["model"] == key[0]) & (levels["profile"] == key[1])]
        ax.plot(rows["level"], rows["median_s"], linestyle="", label="median", **profile_style(key[1]))
        _, point, theory = next(found for found in _points(congestion, key[0]) if found[0] == key[1])
        _theory_line(ax, theory)
        if math.isfinite(point.level):
            x = np.linspace(0, rows["level"].max(), 400)
            ax.plot(x, point.at(x), color=INK, linewidth=1, label="flat, then straight in 1/(C − BW)")
            ax.plot([point.level], [point.flat_s], "o", color=INK, fillstyle="none", markersize=10, label="found")
            text = f"found {point.level:.2f} · theory {_known(theory)}"
        else:
            text = f"{point.reason} · theory {_known(theory)}"
        ax.set_xlabel(f"{CROSS_LABEL}\n{text}")
        ax.set_ylabel("median iteration time (s)")
        ax.set_ylim(0, rows["median_s"].max() * 1.1)
        as_percent(ax.xaxis)
        ax.legend(loc="upper left")


def fits(figure: Figure, fits: pd.DataFrame, levels: pd.DataFrame) -> None:
    """Three curves through each model's and profile's medians."""
    keys = list(fits[["model", "profile"]].drop_duplicates().itertuples(index=False, name=None))
    for ax, key in zip(panels(figure, [f"{model}, {profile}" for model, profile in keys]), keys, strict=False):
        rows = levels[(levels["model"] == key[0]) & (levels["profile"] == key[1])]
        x = np.linspace(0, rows["level"].max(), 300)
        for row in records(fits[(fits["model"] == key[0]) & (fits["profile"] == key[1])].sort_values("n")):
            line, colour = _FAMILY_STYLE.get(row.n, ("-.", INK))
            curve = Fit(row.n, row.A_s, row.B, row.r_squared, row.points).at(x)
            label = f"{_FAMILY_NAME.get(row.n, row.n)}, R² = {row.r_squared:.3f}"
            ax.plot(x, curve, linestyle=line, color=colour, label=label)
        ax.plot(rows["level"], rows["median_s"], "o", color=INK, markersize=4, label="median")
        ax.set_ylim(0, rows["median_s"].max() * 1.15)
        ax.set_xlabel(CROSS_LABEL)
        ax.set_ylabel("iteration time (s)")
        as_percent(ax.xaxis)
        ax.legend(loc="upper left")


def time_cdf(figure: Figure, times: pd.DataFrame) -> None:
    """Distribution functions, a panel per model and profile, a line per level."""
    keys = records(times[["model", "profile"]].drop_duplicates().sort_values(["model", "profile"]))
    colours = level_colours(sorted(times["level"].unique()))
    axes = panels(figure, [f"{key.model}, {key.profile}" for key in keys], sharex=True)
    for ax, key in zip(axes, keys, strict=False):
        own = times[(times["model"] == key.model) & (times["profile"] == key.profile)]
        for (level,), rows in groups(own, "level"):
            cumulative(
                ax,
                rows["time_s"],
                color=colours[level],
                label=f"{level:.0%} cross traffic" if level == 0 else f"{level:.0%}",
            )
        log_if_wide(ax, times["time_s"])
        ax.set_xlabel("iteration time (s)")
        ax.set_ylabel("share of iterations")
    legend_outside(figure, max(axes, key=lambda ax: len(ax.get_legend_handles_labels()[1])), columns=10)


# --- The chapter: its tables, and what they say.

_MOST_SLOW = 20


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
    """The slowest iterations, and the verdict on each that was notably slow."""
    by = ["run", "job", "iteration"]
    times = need(study.times, NO_TIMES).merge(_baselines(study.ranks), on=by, how="left")
    times = times.assign(times_baseline=times["time_s"] / times["baseline_s"].where(times["baseline_s"] > 0))
    slowest = times.sort_values(["times_baseline", "time_s"], ascending=False, kind="stable").head(_MOST_SLOW)
    ends = study.ranks.groupby(by)["end_ns"].max()
    # A job that began anew has a number again: it is the verdict on the one that ended next to it.
    said: dict[tuple[str, int], list[Verdict]] = {}
    for one in study.verdicts:
        said.setdefault((one.job, one.iteration), []).append(renamed(one, study.job_names))
    verdicts = []
    for key in slowest[by].itertuples(index=False, name=None):
        same = [one for one in said.get(key[1:], ()) if abs(one.end_ns - ends[key]) <= one.duration_ns]
        verdicts.append(min(same, key=lambda one: abs(one.end_ns - ends[key]), default=None))
    why = [sentence(one).partition(" because ")[2] or "not known" if one else "" for one in verdicts]
    reported = [one.duration_ns / one.baseline_ns if one and one.baseline_ns else np.nan for one in verdicts]
    slowest = slowest.assign(times_baseline=pd.Series(reported, slowest.index).fillna(slowest["times_baseline"]))
    columns = [*by, "time_s", "times_baseline", "cross_bytes", "level"]
    return {"slowest": slowest[columns].assign(cause=[cause_words(one) if one else "" for one in verdicts], why=why)}


def _baselines(ranks: pd.DataFrame) -> pd.DataFrame:
    """The baseline of each iteration, as its verdict has it: baseline_s by run, job and iteration; 0: not known."""
    found = [
        pd.DataFrame({"run": run, "job": job, "iteration": table["number"], "baseline_s": table["baseline_ns"] / 1e9})
        for (run,), rows in groups(ranks, "run")
        for job, table in step_times(rows).items()
    ]
    return pd.concat(found).drop_duplicates(["run", "job", "iteration"], keep="last")


SLOWEST = Exhibit(
    "slowest-iterations",
    "Slowest iterations",
    "",
    "How long they took, as a multiple of the baseline, and why, as `netmon why` says: nothing where an iteration took "
    "less than 1.2 × its baseline.",
    _slowest_frames,
)
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
            iteration_time,
        ),
        Exhibit(
            "hyperbola",
            "The same, rescaled: time against 1 / (C − BW)",
            "thesis, equation 3.2",
            "In this scale a transfer that gets what the cross traffic leaves takes a time on a straight line.",
            _level_frames,
            hyperbola,
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
            congestion,
        ),
        Exhibit(
            "fits",
            "Fits of t = A·exp(B / (C − BW)ⁿ)",
            "thesis, equations 3.3, 3.5–3.7",
            "n = 1, ½, 2, with C − BW as a share of C; least squares on the median iteration time of each level, "
            "R² of the time itself.",
            _fit_frames,
            fits,
        ),
        Exhibit(
            "iteration-time-cdf",
            "Distribution of iteration times by profile and load",
            "thesis, figure 3-5",
            "Empirical distribution functions; one line per level of cross traffic.",
            _cdf_frames,
            time_cdf,
        ),
    ),
)
