# SPDX-License-Identifier: Apache-2.0
"""How fast and how regular the traffic is, and what sets its volume: the traffic-characteristics study."""

from typing import Any

import numpy as np
import pandas as pd

from netmon.history.frames import groups
from netmon.report.chapters.volumes import DL, NO_FLOWS, traffic_of
from netmon.report.estimates import linear_regression, mean_confidence, period
from netmon.report.exhibit import Chapter, Exhibit, Frames, GapError, need
from netmon.report.figures import throughput as draw
from netmon.report.flows import host_names, once_per_flow
from netmon.report.scan import MS, SLICE_NS
from netmon.report.study import Study

_PER_ITERATION = 40  # intervals of the series whose period is sought
_MOST_INTERVALS = 1 << 18  # of it: thousands of iterations


def _slices(study: Study) -> pd.DataFrame:
    """Rate of each flow in intervals of 250 ms, once per flow, with its ends by name."""
    flows = once_per_flow(need(study.flows, NO_FLOWS))
    names = host_names(study.flows)
    ends = flows.assign(
        source=flows["src"].map(names).fillna(flows["src"]), target=flows["dst"].map(names).fillna(flows["dst"])
    )
    main = ends.sort_values("payload_bytes").drop_duplicates(["session", "flow_id"], keep="last")
    columns = ["session", "flow_id", "run", "job", "class", "source", "target"]
    slices = traffic_of(study).flow_slices.merge(main[columns], on=["session", "flow_id"])
    return slices.assign(rate_bps=slices["payload_bytes"] * 8e9 / SLICE_NS)


def _flow_frames(study: Study) -> Frames:
    slices = _in_focus(study, _slices(study))
    slices = slices[slices["payload_bytes"] > 0]
    need(slices, "no flow of the run carried payload")
    begin = slices["time_ns"].min()
    label = (
        slices["source"] + " → " + slices["target"] + ", " + slices["class"] + ", flow " + slices["flow_id"].astype(str)
    )
    return {"flows": slices.assign(time_s=(slices["time_ns"] - begin) / 1e9, flow=label)}


def _pair_rates(study: Study) -> pd.DataFrame:
    slices = _slices(study)
    slices = slices[slices["class"].isin(DL)]
    by = ["run", "job", "source", "target", "time_ns"]
    return need(slices.groupby(by, as_index=False)[["rate_bps"]].sum(), "no flow is known to be a training job's")


def _pair_frames(study: Study) -> Frames:
    rates = _in_focus(study, _pair_rates(study))
    large = rates.groupby(["source", "target"])["rate_bps"].transform("sum") > 0
    rates = need(rates[large], "no pair exchanged payload")
    pair = rates["source"] + " → " + rates["target"]
    return {"pairs": rates.assign(pair=pair, time_s=(rates["time_ns"] - rates["time_ns"].min()) / 1e9)}


def _in_focus(study: Study, rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["run"] == study.focus] if study.focus in set(rows["run"]) else rows


def _mean_frames(study: Study) -> Frames:
    """Mean with confidence and peak of each pair's rate, over the intervals from its first payload to its last."""
    rows = []
    for (run, job, source, target), group in groups(_pair_rates(study), "run", "job", "source", "target"):
        active = group[group["rate_bps"] > 0]
        if active.empty:
            continue
        first, last = active["time_ns"].min(), active["time_ns"].max()
        rates = np.zeros((last - first) // SLICE_NS + 1)
        rates[((active["time_ns"] - first) // SLICE_NS).to_numpy()] = active["rate_bps"]
        mean, low, high = mean_confidence(rates)
        rows.append(
            {
                **{"run": run, "job": job, "source": source, "target": target, "intervals": len(rates)},
                **{"mean_bps": mean, "low_bps": low, "high_bps": high, "peak_bps": rates.max()},
            }
        )
    return {"throughput": need(pd.DataFrame(rows), "no pair exchanged payload")}


def _period_frames(study: Study) -> Frames:
    """Per run: the period of what its first rank's link sends, by autocorrelation, alongside the iteration time."""
    traffic = traffic_of(study)
    need(study.times, "there is no iteration after the first one")
    runs: Any = study.runs.set_index("run").to_dict("index")
    rows = []
    for (run, job), times in groups(study.times, "run", "job"):
        ranks = study.ranks[(study.ranks["run"] == run) & (study.ranks["job"] == job)]
        host = ranks.sort_values("rank")["host"].iloc[0]
        series = traffic.series
        own = series.index[(series["host"] == host) & (series["direction"] == "tx") & series["class"].isin(DL)]
        begin = max(int(times["start_ns"].min()), traffic.detail_ns[0])
        end = min(int(times["end_ns"].max()), traffic.detail_ns[1])
        grid = max(MS, int(times["time_s"].median() * 1e9) // _PER_ITERATION // MS * MS)
        end = min(end, begin + _MOST_INTERVALS * grid)
        cells = traffic.milliseconds
        cells = cells[cells["series"].isin(own) & (cells["time_ns"] >= begin) & (cells["time_ns"] < end)]
        sums = np.bincount(((cells["time_ns"] - begin) // grid).to_numpy(), weights=cells["wire_bytes"].to_numpy(float))
        found = period(sums, least=2) * grid / 1e9 if len(sums) > 4 else 0.0
        rows.append(
            {
                **{"run": run, "job": job, "model": runs[run]["model"], "iterations": len(times)},
                **{"period_s": found or np.nan, "iteration_s": float(times["time_s"].median())},
                **{
                    "batch": runs[run]["batch"],
                    "compute_s": runs[run]["compute_ns"] / 1e9,
                    "interval_s": grid / 1e9,
                },
            }
        )
    return {"periods": pd.DataFrame(rows)}


def _regression_frames(study: Study) -> Frames:
    """Data per step on the attributes of each run."""
    times = need(study.times, "there is no iteration after the first one")
    steps = times.groupby("run").agg(step_bytes=("dl_tx_bytes", "mean"), level=("measured", "mean"))
    attributes = ["parameters", "ranks", "compute_ns", "batch"]
    runs = study.runs.set_index("run")[["model", *attributes]]
    known = steps.join(runs).reset_index()
    usable = [name for name in attributes if known[name].notna().all()] + ["level"]
    try:
        terms = linear_regression(known, "step_bytes", usable)
    except ValueError as error:
        raise GapError(str(error)) from None
    if terms["r_squared"].isna().any():
        raise GapError("every run sends the same per step, so nothing is to be explained")
    return {"terms": terms, "runs": known}


CHAPTER = Chapter(
    "Traffic characteristics: rates and regularity",
    (
        Exhibit(
            "flow-throughput",
            "Throughput per flow over time",
            "traffic characteristics",
            "Payload rate in intervals of 250 ms of the largest flows of the run in focus.",
            _flow_frames,
            draw.flow_throughput,
        ),
        Exhibit(
            "pair-throughput",
            "Throughput per pair over 250 ms",
            "traffic characteristics",
            "Training payload rate between two hosts in intervals of 250 ms, run in focus.",
            _pair_frames,
            draw.pair_throughput,
        ),
        Exhibit(
            "throughput",
            "Mean and peak throughput per pair",
            "traffic characteristics",
            "Over intervals of 250 ms between a pair's first and last payload; mean with 95 % confidence interval "
            "(Student's t, intervals taken as independent), peak: the largest interval.",
            _mean_frames,
            draw.throughput,
        ),
        Exhibit(
            "periodicity",
            "Periodicity",
            "traffic characteristics",
            "Period of what the first rank's link sends for the job: the first maximum of the autocorrelation that "
            "comes within a quarter of the highest, in intervals of a fortieth of the iteration time and at least "
            "1 ms; against the median iteration time, and against the batch size where the run tells it, else the "
            "compute time per iteration, which the batch size sets.",
            _period_frames,
            draw.periods,
        ),
        Exhibit(
            "regression",
            "Data per step by the run's attributes",
            "traffic characteristics",
            "Ordinary least squares of the mean payload that a rank sends per iteration, one observation per run; "
            "95 % confidence by Student's t. Attributes that do not vary between the runs are left out. level: "
            "measured cross traffic as a share of C.",
            _regression_frames,
            draw.regression,
        ),
    ),
)
