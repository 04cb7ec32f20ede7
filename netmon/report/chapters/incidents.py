# SPDX-License-Identifier: Apache-2.0
"""What a reader asks first: who slowed whom, how the jobs did, what was on the links."""

from collections import Counter
from dataclasses import asdict

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from netmon.dl.verdict.incidents import described
from netmon.history.dataset import groups
from netmon.history.groups import group_lines, groups_of
from netmon.records import CLASS_NAMES
from netmon.report.chapters.slowdown import SLOWEST
from netmon.report.study import NO_TIMES, Chapter, Exhibit, Frames, Study, need, traffic_of
from netmon.report.style import COLOUR_OF_CLASS, INK, MOST_PANELS, legend_outside, not_all, stack
from netmon.report.summary import job_summary
from netmon.units import format_utc
from netmon.views import CAUSES

_COLOURS = {cause.name.lower(): about.colour for cause, about in CAUSES.items()}
_MOST_LINKS = 16
_MOST_SPANS = 200  # that are drawn, of a job
_NO_CALLS = "nobody reports what ranks call: it takes PyTorch 2.7 or later on Gloo"
_NOBODY = "no step was slower than usual"


def _incident_frames(study: Study) -> Frames:
    """The incidents, those that lost most first, and the steps of the jobs that they hit."""
    found = sorted(study.incidents, key=lambda one: -one.lost_ns)
    rows = [described(one, study.job_names, format_utc) for one in found]
    times = need(study.all_times, NO_TIMES)
    hit = [*dict.fromkeys(one.job for one in found)][:MOST_PANELS]
    steps = times[times["job"].isin(hit)][["job", "iteration", "start_ns", "time_s"]]
    return {"incidents": need(pd.DataFrame(rows), _NOBODY), "steps": steps}


def draw_incidents(figure: Figure, incidents: pd.DataFrame, steps: pd.DataFrame) -> None:
    """How long steps took, over time; behind them when somebody slowed them, by cause."""
    jobs = [*dict.fromkeys(incidents["job"])]
    shown = [job for job in jobs if job in set(steps["job"])][:MOST_PANELS]
    begin = steps["start_ns"].min()
    for ax, job in zip(stack(figure, shown, height=1.9), shown, strict=True):
        own = steps[steps["job"] == job]
        ax.plot((own["start_ns"] - begin) / 1e9, own["time_s"] * 1e3, ".", color=INK, markersize=3)
        for row in incidents[incidents["job"] == job].head(_MOST_SPANS).itertuples():
            colour = _COLOURS[str(row.cause)]
            label = str(row.cause).replace("_", " ") + (f" ({row.culprit})" if row.culprit else "")
            ax.axvspan(
                (row.since_ns - begin) / 1e9, (row.until_ns - begin) / 1e9, color=colour, alpha=0.35, label=label
            )
        ax.set_ylabel("step (ms)")
        ax.set_ylim(bottom=0)
        handles, labels = ax.get_legend_handles_labels()
        once = dict(zip(labels, handles, strict=True))
        ax.legend([*once.values()][:6], [*once][:6], loc="upper left")
    figure.axes[-1].set_xlabel("time (s)")
    not_all(figure, len(shown), len(jobs))


def _job_frames(study: Study) -> Frames:
    rows = job_summary(need(study.ranks, "there is no iteration"))
    lost = Counter[str]()
    for one in study.incidents:
        lost[one.job] += one.lost_ns
    slower = rows["shared_ns"] / rows["quiet_ns"]
    rows = rows.assign(slower=slower, lost_ns=[lost[job] for job in rows["job"]])
    names = ["job", "ranks", "source", "iterations", "quiet_ns", "shared_ns", "slower", "lost_ns", "measured_bytes"]
    return {"jobs": rows[[*names, "theory_bytes"]]}


def _group_frames(study: Study) -> Frames:
    lines = [
        {"job": study.job_names.get(job, job), **asdict(one)}
        for job, (uses, _) in groups_of(study.tables.data).items()
        for one in group_lines(uses)
    ]
    return {"groups": need(pd.DataFrame(lines), _NO_CALLS)}


def _rate_frames(study: Study) -> Frames:
    traffic = traffic_of(study)
    by = ["host", "interface", "direction", "class"]
    sums = traffic.flows.groupby(by, as_index=False, observed=True)[["wire_bytes"]].sum()
    seconds = max(traffic.end_ns - traffic.begin_ns, 1) / 1e9
    return {"rates": sums.assign(mean_bps=sums["wire_bytes"] * 8 / seconds)}


def draw_rates(figure: Figure, rates: pd.DataFrame) -> None:
    """Mean rate by class of the links with the most traffic."""
    rates = rates.assign(link=rates["host"] + " " + rates["interface"] + " " + rates["direction"])
    largest = rates.groupby("link")["mean_bps"].sum().sort_values(ascending=False)
    links = sorted(largest.index[:_MOST_LINKS])
    figure.set_size_inches(8.6, 1.2 + 0.26 * len(links))
    ax = figure.subplots()
    left = np.zeros(len(links))
    of_class = {name: own.set_index("link")["mean_bps"] for (name,), own in groups(rates, "class")}
    for name in (name for name in CLASS_NAMES if name in of_class):
        width = of_class[name].reindex(links).fillna(0).to_numpy() / 1e6
        ax.barh(links, width, left=left, color=COLOUR_OF_CLASS[name], label=name)
        left += width
    ax.invert_yaxis()
    ax.set_xlabel("mean rate (Mbit/s)")
    legend_outside(figure, ax)
    not_all(figure, len(links), len(largest))


INCIDENTS = Chapter(
    "Who slowed whom",
    (
        Exhibit(
            "incidents",
            "Incidents",
            "",
            "Slow steps of one job with one cause and culprit, one after the other; those that lost most first. "
            "Lost: what the steps took beyond their baseline. Without: what one of them would have taken.",
            _incident_frames,
            draw_incidents,
            rows=20,
            shown=(
                *("job", "since_ns", "until_ns", "cause", "culprit", "culprit_user", "sender", "receiver", "steps"),
                *("ratio", "lost_ns", "baseline_ns", "without_ns"),
            ),
        ),
    ),
)
JOBS = Chapter(
    "The jobs",
    (
        Exhibit(
            "jobs",
            "Jobs",
            "",
            "Median time of a step without and with foreign traffic on the hosts of the job, what incidents cost it, "
            "and payload that a rank sends in a step.",
            _job_frames,
            rows=60,
        ),
        SLOWEST,
        Exhibit(
            "groups",
            "Groups of ranks",
            "",
            "What each group of ranks is for, what a rank exchanges in it in a typical step, with the bytes, in which "
            "pass, and how long a rank waits there: the mean, and who waits longest where that is much more.",
            _group_frames,
            rows=60,
            shown=("job", "group", "kind", "ranks", "calls", "when", "waits"),
        ),
    ),
)
LINKS = Chapter(
    "The links",
    (
        Exhibit("link-rates", "Traffic of links", "", "By class, mean over the dataset.", _rate_frames, draw_rates),
        Exhibit(
            "links",
            "Byte account of each link",
            "",
            "NIC counter = attributed + overflow + lost in the kernel + lost in the agent + not visible; "
            "coverage: attributed over the NIC's counter.",
            lambda study: {"accounts": need(study.accounts, "the table ledger is missing")},
            rows=60,
        ),
    ),
)
