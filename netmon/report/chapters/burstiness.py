# SPDX-License-Identifier: Apache-2.0
"""How bursty each class is, from the finest bucket to a second."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from netmon.history.dataset import groups, records
from netmon.report.scan import ALL, HOT, MS, Ints, Traffic, peak_bytes, peak_to_mean, sum_by
from netmon.report.study import Chapter, Exhibit, Frames, GapError, Study, need, traffic_of
from netmon.report.style import COLOUR_OF_CLASS, INK, legend_outside, panels
from netmon.units import format_duration

# --- Figures about bursts.

_LINES = {"all": "--"}


def peaks(figure: Figure, peaks: pd.DataFrame) -> None:
    """Median over links, and their range, by interval and class; sent and received."""
    axes = panels(figure, ["sent", "received"], sharey=True)
    for ax, direction in zip(axes, ("tx", "rx"), strict=True):
        own = peaks[peaks["direction"] == direction]
        for (name,), rows in groups(own, "class"):
            ratios = rows.groupby("interval_ns")["peak_to_mean"].agg(["median", "min", "max"])
            x, colour = ratios.index / 1e6, COLOUR_OF_CLASS[str(name)]
            ax.plot(x, ratios["median"], color=colour, linestyle=_LINES.get(str(name), "-"), label=str(name))
            ax.fill_between(x, ratios["min"], ratios["max"], color=colour, alpha=0.15, linewidth=0)
        ax.axvline(peaks["true_from_ns"].iloc[0] / 1e6, color=INK, linestyle="--", linewidth=0.8)
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xlabel("interval (ms)")
    axes[0].set_ylabel("peak-to-mean ratio")
    legend_outside(figure, max(axes, key=lambda ax: len(ax.get_legend_handles_labels()[1])))


def spans(figure: Figure, spans: pd.DataFrame) -> None:
    """Distribution of durations by class: bursts and gaps, a row per interval."""
    grains = sorted(spans["interval_ns"].unique())
    keys = [(grain, kind) for grain in grains for kind in ("burst", "gap")]
    if not keys:
        raise GapError("no interval was hot")
    titles = [
        f"{'bursts' if kind == 'burst' else 'gaps'}, intervals of {format_duration(grain)}" for grain, kind in keys
    ]
    axes = panels(figure, titles, height=2.7)
    for ax, (grain, kind) in zip(axes, keys, strict=True):
        own = spans[(spans["interval_ns"] == grain) & (spans["kind"] == kind)]
        for (name,), rows in groups(own, "class"):
            _distribution(ax, rows, str(name))
        ax.set_xscale("log")
        ax.set_ylim(0, 1.02)
        ax.set_xlabel("duration (ms)")
        ax.set_ylabel("share of bursts" if kind == "burst" else "share of gaps")
    legend_outside(figure, max(axes, key=lambda ax: len(ax.get_legend_handles_labels()[1])))


def _distribution(ax: Axes, rows: pd.DataFrame, name: str) -> None:
    counts = rows.sort_values("longest_ns")
    share = np.cumsum(counts["count"]) / counts["count"].sum()
    x = np.r_[counts["longest_ns"].iloc[0], counts["longest_ns"]] / 1e6
    style: dict[str, Any] = {"color": COLOUR_OF_CLASS[name], "linestyle": _LINES.get(name, "-")}
    ax.plot(x, np.r_[0, share], drawstyle="steps-post", label=name, **style)


# --- The chapter: its tables, and what they say.

_LINK = ["host", "interface", "direction"]
_LENGTHS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
_LEAST_BYTES = 1_000_000  # of a link's class: a handful of packets is no rate
_PER_DECADE = 10


def _peak_frames(study: Study) -> Frames:
    """peak_to_mean and peak_bps by link, class and interval."""
    traffic = traffic_of(study)
    coarse = [row for group in _milliseconds(traffic) for row in _coarse_peaks(*group, traffic)]
    rows = pd.concat([traffic.peaks, pd.DataFrame(coarse)], ignore_index=True)
    rows = need(rows[rows["total_bytes"] >= _LEAST_BYTES], "no class sent a megabyte on any link")
    ratios = [peak_to_mean(row.peak_bytes, row.total_bytes, row.interval_ns, row.observed_ns) for row in records(rows)]
    rates = rows["peak_bytes"] * 8e9 / rows["interval_ns"]
    peaks = rows.assign(peak_to_mean=ratios, peak_bps=rates, true_from_ns=study.interval_ns)
    return {"peaks": peaks.sort_values([*_LINK, "class", "interval_ns"], ignore_index=True)}


def _milliseconds(traffic: Traffic) -> Iterator[tuple[dict[str, str], Ints, Ints]]:
    """Of each link and class, and of each link: whose they are, times in ms, ascending, and bytes."""
    cells = traffic.milliseconds
    edges = np.searchsorted(cells["series"].to_numpy(), np.arange(len(traffic.series) + 1))
    time, amount = (cells[name].to_numpy(np.int64) for name in ("time_ns", "wire_bytes"))
    for by, also in (([*_LINK, "class"], {}), (_LINK, {"class": ALL})):
        for key, own in groups(traffic.series, *by):
            indices = np.concatenate([np.arange(edges[number], edges[number + 1]) for number in own.index])
            if len(indices):
                times, (sums,) = sum_by(time[indices] // MS, amount[indices])
                yield {**dict(zip(by, key, strict=True)), **also}, times, sums


def _coarse_peaks(named: dict[str, str], bins: Ints, amount: Ints, traffic: Traffic) -> list[dict[str, object]]:
    return [
        {
            **named,
            "interval_ns": length * MS,
            "peak_bytes": peak_bytes(bins, amount, length),
            "total_bytes": int(amount.sum()),
            "observed_ns": traffic.detail_ns[1] - traffic.detail_ns[0],
        }
        for length in _LENGTHS_MS
    ]


def _span_frames(study: Study) -> Frames:
    """How many bursts and gaps lasted how long, by class, kind and interval; durations in tenths of a decade."""
    spans = traffic_of(study).spans
    reason = "no interval of any link was hot" if study.rate_bps else "the links' capacity is not known: give --rate"
    need(spans, reason)
    decade = np.floor(np.log10(spans["duration_ns"]) * _PER_DECADE) / _PER_DECADE
    by = ["class", "kind", "interval_ns", "at_least_ns"]
    grouped = spans.assign(at_least_ns=10**decade).groupby(by, as_index=False)
    return {"spans": grouped.agg(count=("count", "sum"), longest_ns=("duration_ns", "max"))}


CHAPTER = Chapter(
    "Burstiness",
    (
        Exhibit(
            "peak-to-mean",
            "Peak-to-mean ratio by interval",
            "burstiness",
            "Rate in the busiest interval over the mean rate of the whole observation, silence included. "
            "Intervals are aligned to multiples of their length and do not overlap. Lines: median over links that "
            "transferred at least 1 MB of the class; bands: lowest to highest link. Left of the dashed line intervals "
            "are shorter than the largest packet that a hook sees as one, and peaks may exceed what the link "
            "carries.",
            _peak_frames,
            peaks,
        ),
        Exhibit(
            "bursts",
            "Bursts and the gaps between them",
            "burstiness",
            f"An interval is hot when a link's class has more than {HOT:.0%} of the link rate in it; a burst is a "
            "run of hot intervals, a gap what lies between two. At the finest bucket, and in intervals that hold "
            "the largest packet that a hook sees as one, below which a burst may be a single such packet.",
            _span_frames,
            spans,
        ),
    ),
)
