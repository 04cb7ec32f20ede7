# SPDX-License-Identifier: Apache-2.0
"""How bursty each class is, from the finest bucket to a second."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from netmon.history.frames import groups, records
from netmon.report.burst_scan import ALL
from netmon.report.bursts import HOT, Ints, peak_bytes, peak_to_mean
from netmon.report.cells import sum_by
from netmon.report.chapters.volumes import traffic_of
from netmon.report.exhibit import Chapter, Exhibit, Frames, need
from netmon.report.figures import burstiness as draw
from netmon.report.scan import MS, Traffic
from netmon.report.study import Study

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
    of_series = cells["series"].to_numpy()
    order = np.argsort(of_series, kind="stable")
    edges = np.searchsorted(of_series[order], np.arange(len(traffic.series) + 1))
    time, amount = (cells[name].to_numpy(np.int64) for name in ("time_ns", "wire_bytes"))
    for by, also in (([*_LINK, "class"], {}), (_LINK, {"class": ALL})):
        for key, own in groups(traffic.series, *by):
            indices = np.concatenate([order[edges[number] : edges[number + 1]] for number in own.index])
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
            "carried at least 1 MB of the class; bands: lowest to highest link. Left of the dashed line intervals "
            "are shorter than the largest packet that a hook sees as one, and peaks may exceed what the link "
            "carries.",
            _peak_frames,
            draw.peaks,
        ),
        Exhibit(
            "bursts",
            "Bursts and the gaps between them",
            "burstiness",
            f"An interval is hot when a link's class has more than {HOT:.0%} of the link rate in it; a burst is a "
            "run of hot intervals, a gap what lies between two. At the finest bucket, and in intervals that hold "
            "the largest packet that a hook sees as one, below which a burst may be a single such packet.",
            _span_frames,
            draw.spans,
        ),
    ),
)
