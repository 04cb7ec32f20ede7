# SPDX-License-Identifier: Apache-2.0
"""Jobs that share links: their circles, scores and shifts, pairs of ranks, and what links spare."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from matplotlib.figure import Figure

from netmon.dl.sharing.advice import Advice, Share
from netmon.dl.sharing.advice_text import of_share
from netmon.dl.sharing.compatibility import phases, relative_phases, scores_by_shift
from netmon.errors import DataError
from netmon.report.study import Chapter, Exhibit, Frames, GapError, Study, need
from netmon.report.style import INK, legend_outside, not_all, panels

# --- Jobs that share links.

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")
_MOST_LINKS = 24
_STEPS = 360  # of a circle, at least: between two of them is a straight line


def circles(figure: Figure, circles: pd.DataFrame) -> None:
    """A row of two circles per share: now, and shifted; an iteration is once round."""
    names = list(dict.fromkeys(circles["share"]))
    titles = [f"{name}: {when}" for name in names for when in ("as they are", "shifted")]
    axes = panels(figure, titles, height=3.6, subplot_kw={"projection": "polar"})
    for place, ax in enumerate(axes):
        rows = circles[circles["share"] == names[place // 2]]
        rows = rows[rows["when"] == ("shifted" if place % 2 else "now")]
        round_ms, capacity = rows["round_ms"].iloc[0], rows["capacity_bps"].iloc[0] / 1e6
        for number, (job, own) in enumerate(rows.groupby("job", sort=True)):
            colour = _COLOURS[number % len(_COLOURS)]
            ax.stairs(*_once_round(own), fill=True, color=colour, alpha=0.55, label=str(job))
        ax.plot(np.linspace(0, 2 * np.pi, 181), np.full(181, capacity), color=INK, linestyle="--", linewidth=0.9)
        theta = np.arange(0, 360, 90)
        ax.set_xticks(np.radians(theta), [f"{round_ms * part / 360:.0f} ms" for part in theta])
        ax.set_yticks([capacity], [f"{capacity:.0f} Mbit/s"])
        ax.set_ylim(0, max(capacity * 1.1, float(rows["rate_bps"].max()) / 1e6))
    legend_outside(figure, axes[0])


def _once_round(rows: pd.DataFrame) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Mbit/s of a job over its iteration, and the angles between which each is drawn."""
    time_ms, round_ms = rows["time_ms"].to_numpy(), rows["round_ms"].iloc[0]
    each_ms = (time_ms[1] - time_ms[0]) % round_ms if len(rows) > 1 else round_ms
    parts = -(-_STEPS // len(rows))
    angle = time_ms[0] + each_ms / parts * np.arange(parts * len(rows) + 1)
    return np.repeat(rows["rate_bps"].to_numpy() / 1e6, parts), angle / round_ms * 2 * np.pi


def drift(figure: Figure, drift: pd.DataFrame) -> None:
    """A panel per share: the phase of each iteration over time."""
    names = list(dict.fromkeys(drift["share"]))
    for ax, name in zip(panels(figure, names, height=2.2), names, strict=False):
        own = drift[drift["share"] == name]
        ax.plot(own["time_s"], own["phase_ms"], ".", color=_COLOURS[0], markersize=4)
        ax.set_xlabel("time (s)")
        ax.set_ylabel("later by (ms)")
        ax.set_ylim(0, float(own["period_ms"].iloc[0]))


def scores(figure: Figure, scores: pd.DataFrame) -> None:
    names = list(dict.fromkeys(scores["share"]))
    for ax, name in zip(panels(figure, names, height=2.6), names, strict=False):
        own = scores[scores["share"] == name]
        ax.plot(own["shift_ms"], own["score"], color=_COLOURS[0])
        ax.axvline(own["chosen_ms"].iloc[0], color=INK, linewidth=0.9, linestyle="--")
        ax.set_xlabel("shift (ms)")
        ax.set_ylabel("compatibility")
        ax.set_ylim(min(0.0, float(own["score"].min())), 1.02)


def links(figure: Figure, links: pd.DataFrame) -> None:
    """A bar per link: what would do, and what could be had."""
    own = links.head(_MOST_LINKS)[::-1]
    figure.set_size_inches(8.6, 1.2 + 0.26 * len(own))
    ax = figure.subplots()
    names = own["link"].astype(str)
    ax.barh(names, own["enough_bps"] / 1e6, color=_COLOURS[0], label="would do")
    ax.barh(names, own["to_be_had_bps"] / 1e6, left=own["enough_bps"] / 1e6, color=_COLOURS[4], label="spare")
    ax.plot(own["capacity_bps"] / 1e6, names, "|", color=INK, markersize=9, label="capacity")
    ax.set_xlabel("training's pace while it sends (Mbit/s)")
    ax.grid(axis="y", visible=False)
    legend_outside(figure, ax)
    not_all(figure, len(own), len(links))


# --- The chapter: its tables, and what they say.

_SECONDS = 60
_CIRCLES = 3  # of which there are figures


def _advice(study: Study) -> Advice:
    try:
        return study.advice
    except DataError as error:
        raise GapError(str(error)) from None
    except (KeyError, OSError, pa.ArrowException) as error:
        raise GapError(f"a table lacks what it takes ({type(error).__name__}: {error})") from None


def _shares(study: Study) -> tuple[Advice, list[Share]]:
    advice = _advice(study)
    if not advice.shares:
        if advice.unknown_links:
            raise GapError("the capacity of the links that jobs share is not known")
        raise GapError(f"no two jobs share a link at the same time in the last {_SECONDS} s of the dataset")
    return advice, sorted(advice.shares, key=lambda share: share.fit.score)


def _name(share: Share, advice: Advice) -> str:
    """For people: a title is one line."""
    others = ", ".join(share.fit.others) if len(share.fit.others) < 3 else f"{len(share.fit.others)} others"
    return f"{share.fit.job} and {others} on {advice.links[share.fit.links[0]]}"


def _share_frames(study: Study) -> Frames:
    advice, shares = _shares(study)
    rows = [
        {
            "job": share.fit.job,
            "others": ", ".join(share.fit.others),
            "links": ", ".join(advice.links[link] for link in share.fit.links),
            "compatibility": share.fit.score,
            "at the best shift": share.fit.best_score,
            "drift_ms": share.drift.per_iteration_ns / 1e6 if share.drift else np.nan,
            "shift_ms": share.fit.shift_ns / 1e6,
            "hold_ms": share.fit.hold_ns / 1e6 or np.nan,
            "takes_ms": share.fit.shared_ns / 1e6,
            "would_take_ms": share.fit.shifted_ns / 1e6,
            "gain": share.fit.gain,
            "advice": of_share(share, advice.links),
        }
        for share in shares
    ]
    return {"shares": pd.DataFrame(rows)}


def _circle_frames(study: Study) -> Frames:
    advice, shares = _shares(study)
    demands = {demand.job: demand for demand in advice.jobs}
    shifts = {share.fit.job: share.fit.shift_ns for share in shares}
    parts = []
    for share in shares[:_CIRCLES]:
        fit, link = share.fit, share.fit.links[0]
        jobs = [demands[name] for name in (*fit.others, fit.job)]
        round_ns = fit.hold_ns or max(job.period_ns for job in jobs)
        begins = phases(jobs)
        for when, moved in (("now", dict.fromkeys(shifts, 0)), ("shifted", shifts)):
            for job in jobs:
                at = np.arange(job.rates.shape[1]) * job.period_ns / job.rates.shape[1]
                begin = begins[job.job] - begins[jobs[0].job] + moved.get(job.job, 0)
                parts.append(
                    pd.DataFrame(
                        {
                            "share": _name(share, advice),
                            "when": when,
                            "job": job.job,
                            "time_ms": ((at + begin) % round_ns) / 1e6,
                            "round_ms": round_ns / 1e6,
                            "rate_bps": job.at(link),
                            "capacity_bps": advice.capacity_bps[link],
                        }
                    )
                )
    return {"circles": pd.concat(parts, ignore_index=True)}


def _drift_frames(study: Study) -> Frames:
    advice, shares = _shares(study)
    starts = {demand.job: demand.starts_ns[:-1] for demand in advice.jobs}
    parts = []
    for share in shares[:_CIRCLES]:
        found = relative_phases(starts[share.fit.job], starts[share.fit.others[0]])
        if found is not None:
            common = {"share": _name(share, advice), "period_ms": found.period_ns / 1e6}
            seconds = (found.time_ns - advice.begin_ns) / 1e9
            parts.append(pd.DataFrame({**common, "time_s": seconds, "phase_ms": found.phase_ns / 1e6}))
    if not parts:
        raise GapError("too few iterations began within the other job's")
    return {"drift": pd.concat(parts, ignore_index=True)}


def _score_frames(study: Study) -> Frames:
    advice, shares = _shares(study)
    parts = []
    for share in shares[:_CIRCLES]:
        shift_ns, scores = scores_by_shift(share.fit, advice.jobs, advice.capacity_bps)
        chosen = share.fit.shift_ns / 1e6
        parts.append(
            pd.DataFrame(
                {"share": _name(share, advice), "shift_ms": shift_ns / 1e6, "score": scores, "chosen_ms": chosen}
            )
        )
    return {"scores": pd.concat(parts, ignore_index=True)}


def _pair_frames(study: Study) -> Frames:
    columns = ("job", "source", "target", "bytes", "pace_bps", "busy", "share", "slow", "to_be_had_bps")
    rows = [{name: getattr(pair, name) for name in columns} for pair in _advice(study).pairs]
    return {"pairs": need(pd.DataFrame(rows), "no flow is known to lead from one rank to another")}


def _link_frames(study: Study) -> Frames:
    advice = _advice(study)
    rows = [
        {
            "link": advice.links[one.link],
            "capacity_bps": one.capacity_bps or np.nan,
            "pace_bps": one.pace_bps,
            "enough_bps": one.enough_bps,
            "to_be_had_bps": one.to_be_had_bps,
        }
        for one in advice.spares
    ]
    return {"links": need(pd.DataFrame(rows), "no flow is known to lead from one rank to another")}


def _exhibit(
    name: str,
    title: str,
    follows: str,
    text: str,
    tables: Callable[[Study], Frames],
    figure: Callable[..., None] | None,
) -> Exhibit:
    return Exhibit(name, title, follows, f"{text} From the last {_SECONDS} s of the dataset.", tables, figure, 20)


CHAPTER = Chapter(
    "Jobs on shared links",
    (
        _exhibit(
            "shared-links",
            "What sharing links costs jobs, and what a shift would save",
            "CASSINI, section 3",
            "Compatibility: 1 minus the demand beyond the link's capacity, as a share of the capacity, averaged over "
            "time. Unshifted iteration times are what the last iterations took, as far as sharing explains it; shifted "
            "ones come from a fluid model in which flows share a link fairly. Drift: how much later the job's "
            "iterations begin within the other one's, from one to the next.",
            _share_frames,
            None,
        ),
        _exhibit(
            "shared-circles",
            "Two jobs' traffic over the iteration, as they are and shifted",
            "CASSINI, figure 4",
            "What each job sends over the shared link in an iteration that met nobody else there, where its iterations "
            "begin now, and after the best shift. Once round is one iteration; dashed: the link's capacity.",
            _circle_frames,
            circles,
        ),
        _exhibit(
            "shared-drift",
            "Whether jobs drift against each other",
            "MLTCP, section 3",
            "When each of the job's iterations began, after the beginning of the other job's iteration. A line that "
            "stays level keeps its phase; one that rises or falls drifts, and goes round.",
            _drift_frames,
            drift,
        ),
        _exhibit(
            "shift-scores",
            "Compatibility by shift",
            "CASSINI, equation 2",
            "How much later the job's iterations would begin. The line is the proposed shift, in the middle of the "
            "best ones.",
            _score_frames,
            scores,
        ),
        _exhibit(
            "rank-pairs",
            "Pairs of ranks",
            "C4, section 3",
            "Bytes per iteration, the pace while they are sent, the share of the communication and of the iteration in "
            "which the pair sends; slow: less than 0.8 of the pace that is normal in the job.",
            _pair_frames,
            None,
        ),
        _exhibit(
            "links-to-be-had",
            "Spare bandwidth",
            "",
            "The rate at which training sends over each link while it sends, and the lower rate at which iterations "
            "would end no later: the same bytes over all of the job's communication. The difference is an upper bound: "
            "a rank that passes on what it receives cannot send it earlier.",
            _link_frames,
            links,
        ),
    ),
)
