# SPDX-License-Identifier: Apache-2.0
"""How much, from whom to whom, how fast and how regular: the traffic-characteristics study."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from netmon.history.dataset import groups
from netmon.records import CLASS_NAMES, Class
from netmon.report.estimates import (
    SIZE_CLASSES,
    host_names,
    linear_regression,
    mean_confidence,
    once_per_flow,
    period,
    size_class,
    who_sends_to_whom,
)
from netmon.report.scan import MS, SLICE_NS, Traffic
from netmon.report.study import NO_FLOWS, NO_TIMES, Chapter, Exhibit, Frames, GapError, Study, need, traffic_of
from netmon.report.style import COLOUR_OF_CLASS, INK, legend_outside, not_all, panels, stack

# --- Figures of volumes, pairs and sizes.

_MOST_JOBS = 16


def volume(figure: Figure, volume: pd.DataFrame) -> None:
    """Bars by class on top of each other: sent and received, a row per job."""
    jobs = sorted(volume["job"].unique())[:_MOST_JOBS]
    axes = panels(figure, ["sent", "received"], height=1.4 + 0.26 * len(jobs), sharey=True)
    for ax, direction in zip(axes, ("tx", "rx"), strict=True):
        own = volume[volume["direction"] == direction]
        sums = own.pivot_table(index="job", columns="class", values="wire_bytes", aggfunc="sum").reindex(jobs).fillna(0)
        left = np.zeros(len(jobs))
        for name in [name for name in CLASS_NAMES if name in sums]:
            ax.barh(jobs, sums[name] / 1e9, left=left, color=COLOUR_OF_CLASS[name], label=name, height=0.65)
            left += sums[name].to_numpy() / 1e9
        ax.set_xlabel("volume (GB)")
        ax.grid(axis="y", visible=False)
        ax.margins(x=0.05)
    axes[0].set_ylim(max(len(jobs), 3) - 0.5, -0.5)
    legend_outside(figure, max(axes, key=lambda ax: len(ax.get_legend_handles_labels()[1])))


def heat_map(figure: Figure, pairs: pd.DataFrame) -> None:
    """Sender by receiver, a panel per job; the jobs with the most bytes."""
    sums = pairs.groupby(["run", "job"])["payload_bytes"].sum().sort_values(ascending=False)
    keys = list(sums.index)
    names = [job if run in (job, "") else f"{run}" for run, job in keys]
    for ax, (run, job) in zip(panels(figure, names, columns=3), keys, strict=False):
        own = pairs[(pairs["run"] == run) & (pairs["job"] == job)]
        hosts = sorted({*own["source"], *own["target"]})
        matrix = own.pivot_table(index="source", columns="target", values="payload_bytes", aggfunc="sum")
        matrix = matrix.reindex(index=hosts, columns=hosts) / 1e6
        shown = matrix.where(matrix > 0)
        image = ax.imshow(shown, cmap="cividis", vmin=0)
        ax.set_xticks(range(len(hosts)), hosts, rotation=0 if len(hosts) < 7 else 90)
        ax.set_yticks(range(len(hosts)), hosts)
        ax.set_xlabel("receiver")
        ax.set_ylabel("sender")
        ax.title.set_fontsize("small")  # a run's name is long alongside a colour bar
        ax.grid(visible=False)
        figure.colorbar(image, ax=ax, shrink=0.8, label="payload (MB)")


def sizes(figure: Figure, sizes: pd.DataFrame) -> None:
    """Number of flows, and their payload, by size class and class."""
    classes = [name for name in CLASS_NAMES if name in set(sizes["class"])]
    axes = panels(figure, ["number of flows", "payload"], height=2.6)
    width = 0.8 / max(len(classes), 1)
    for ax, column, scale in zip(axes, ("flows", "payload_bytes"), (1, 1e6), strict=True):
        for place, name in enumerate(classes):
            own = sizes[sizes["class"] == name].set_index("size")[column].reindex(list(SIZE_CLASSES)).fillna(0) / scale
            x = np.arange(len(SIZE_CLASSES)) + (place - (len(classes) - 1) / 2) * width
            ax.bar(x, own, width=width * 0.92, color=COLOUR_OF_CLASS[name], label=name)
        ax.set_yscale("symlog", linthresh=1)
        ax.set_ylim(bottom=0)
        ax.set_xticks(range(len(SIZE_CLASSES)), ["small\n< 100 kB", "medium", "large\n≥ 10 MB"])
        ax.grid(axis="x", visible=False)
    axes[0].set_ylabel("flows")
    axes[1].set_ylabel("payload (MB)")
    legend_outside(figure, axes[0])


# --- The chapter: its tables, and what they say.

DL = (CLASS_NAMES[Class.DL_ONLY], CLASS_NAMES[Class.DL_SHARED])
_AMOUNTS = ["packets", "wire_bytes", "payload_bytes"]


def _volume_frames(study: Study) -> Frames:
    rows = traffic_of(study).phases
    rows = rows[rows["job"] != ""]
    need(rows, "no row of buckets belongs to a job")
    sums = rows.groupby(["job", "direction", "class"], as_index=False)[_AMOUNTS].sum()
    iterations = study.all_times.groupby("job").size() if len(study.ranks) else pd.Series(dtype=int)
    return {"volume": sums.assign(iterations=sums["job"].map(iterations).fillna(0).astype(int))}


def training_pairs(study: Study) -> pd.DataFrame:
    """who_sends_to_whom of the training flows with payload. Raises GapError where there are none."""
    flows = need(study.flows, NO_FLOWS)
    dl = flows[flows["class"].isin(DL)]
    pairs = who_sends_to_whom(need(dl, "no flow is known to be a training job's"))
    return need(pairs[pairs["payload_bytes"] > 0], "no training flow has payload")


def _size_frames(study: Study) -> Frames:
    """Flows and payload by class and size class; a flow with two classes counts with that of most of its bytes."""
    flows = once_per_flow(need(study.flows, NO_FLOWS))
    keys = ["session", "flow_id"]
    payload = flows.groupby(keys)["payload_bytes"].transform("sum")
    main = flows.assign(payload=payload).sort_values("payload_bytes").drop_duplicates(keys, keep="last")
    sizes = main.assign(size=size_class(main["payload"]))
    counted = sizes.groupby(["class", "size"], as_index=False).agg(
        flows=("flow_id", "size"), payload_bytes=("payload", "sum")
    )
    return {"sizes": counted}


VOLUMES = Chapter(
    "Traffic characteristics: volumes",
    (
        Exhibit(
            "volume",
            "Volume per job",
            "traffic characteristics",
            "Wire bytes on the links of the job's hosts, by direction and class: what they sent and received.",
            _volume_frames,
            volume,
        ),
        Exhibit(
            "who-to-whom",
            "Who sends to whom",
            "traffic characteristics, heat map",
            "Training payload by sender and receiver, counted at the sender.",
            lambda study: {"pairs": training_pairs(study)},
            heat_map,
        ),
        Exhibit(
            "flow-sizes",
            "Flows by size",
            "traffic characteristics and communication patterns",
            "Small: less than 100 kB of payload in all; large: at least 10 MB (limits are ours). A flow between "
            "two watched hosts counts once.",
            _size_frames,
            sizes,
        ),
    ),
)


# --- Figures of rates and regularity.

_MOST_FLOWS, _MOST_PAIRS = 6, 20
_WORTH_A_STRIP = 0.01  # of the largest flow's payload


def flow_throughput(figure: Figure, flows: pd.DataFrame) -> None:
    """A strip per flow, the largest ones."""
    largest = flows.groupby("flow")["payload_bytes"].sum().sort_values(ascending=False)
    names = list(largest.index[:_MOST_FLOWS])
    axes = stack(figure, names, height=0.95)
    for ax, name in zip(axes, names, strict=True):
        own = flows[flows["flow"] == name].sort_values("time_s")
        times = np.arange(own["time_s"].min(), own["time_s"].max() + 0.26, 0.25)
        rates = np.zeros(len(times))
        rates[np.rint((own["time_s"] - times[0]) / 0.25).astype(int)] = own["rate_bps"] / 1e6
        colour = COLOUR_OF_CLASS[own["class"].iloc[0]]
        ax.fill_between(np.r_[times, times[-1] + 0.25], np.r_[rates, 0], step="post", color=colour, linewidth=0)
        ax.set_ylabel("Mbit/s")
    axes[0].set_ylim(bottom=0)
    axes[-1].set_xlabel("time (s)")
    not_all(figure, len(names), len(largest))


def pair_throughput(figure: Figure, pairs: pd.DataFrame) -> None:
    """Pairs by time, the rate as colour."""
    largest = pairs.groupby("pair")["rate_bps"].sum().sort_values(ascending=False).index[:_MOST_PAIRS]
    place = np.rint(pairs["time_s"] / 0.25).astype(int)
    grid = pairs.assign(place=place).pivot_table(index="pair", columns="place", values="rate_bps", aggfunc="sum")
    grid = grid.reindex(index=sorted(largest), columns=range(int(place.max()) + 1)).fillna(0) / 1e6
    figure.set_size_inches(8.6, 1.3 + 0.32 * len(grid))
    ax = figure.subplots()
    extent = (0, len(grid.columns) * 0.25, len(grid) - 0.5, -0.5)
    image = ax.imshow(grid, aspect="auto", cmap="cividis", vmin=0, extent=extent, interpolation="nearest")
    ax.set_yticks(range(len(grid)), list(grid.index))
    ax.set_xlabel("time (s)")
    ax.grid(visible=False)
    figure.colorbar(image, ax=ax, label="payload (Mbit/s)")


def throughput(figure: Figure, throughput: pd.DataFrame) -> None:
    """Mean with its interval and the peak, a row per run and pair; the fastest pairs."""
    fastest = throughput.sort_values("mean_bps", ascending=False).iloc[:_MOST_PAIRS]
    rows = fastest.sort_values(["run", "source"]).reset_index(drop=True)
    many_runs = rows["run"].nunique() > 1
    names = rows["source"] + " → " + rows["target"]
    if many_runs:
        names = rows["run"] + ": " + names
    figure.set_size_inches(8.6, 1.2 + 0.24 * len(rows))
    ax = figure.subplots()
    half = [(rows["mean_bps"] - rows["low_bps"]) / 1e6, (rows["high_bps"] - rows["mean_bps"]) / 1e6]
    ax.errorbar(
        rows["mean_bps"] / 1e6, rows.index, xerr=half, fmt="o", color=INK, capsize=3, label="mean, 95 % confidence"
    )
    ax.plot(rows["peak_bps"] / 1e6, rows.index, "D", color="#D55E00", fillstyle="none", label="peak over 250 ms")
    ax.set_yticks(range(len(rows)), names)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_xlim(left=0)
    ax.set_xlabel("training payload (Mbit/s)")
    legend_outside(figure, ax)
    not_all(figure, len(rows), len(throughput))


def periods(figure: Figure, periods: pd.DataFrame) -> None:
    """Period against the iteration time, and against the batch size or what stands for it."""
    found = periods[periods["period_s"].notna()]
    if found.empty:
        raise GapError("the autocorrelation shows no period in any run")
    by_batch = periods["batch"].notna().any()
    axes = panels(
        figure, ["against the iteration time", "against the batch size" if by_batch else "against compute time"]
    )
    other = "batch" if by_batch else "compute_s"
    for place, ((model,), rows) in enumerate(groups(found, "model")):
        style: dict[str, Any] = {"linestyle": "", "marker": "os^DvPX*"[place % 8], "label": str(model), "alpha": 0.8}
        axes[0].plot(rows["iteration_s"], rows["period_s"], **style)
        axes[1].plot(rows[other], rows["period_s"], **style)
    most = float(max(found["iteration_s"].max(), found["period_s"].max())) * 1.2
    axes[0].plot([0, most], [0, most], color=INK, linewidth=0.8, linestyle="--", label="equal")
    axes[0].set_xlim(0, most)
    axes[0].set_ylim(0, most)
    axes[0].set_xlabel("median iteration time (s)")
    axes[1].set_xlabel("batch size" if by_batch else "compute per iteration (s)")
    axes[1].set_ylim(0, most)
    for ax in axes:
        ax.set_ylabel("period of the traffic (s)")
    legend_outside(figure, axes[0])


def regression(figure: Figure, terms: pd.DataFrame, runs: pd.DataFrame) -> None:
    """Measured data per step against the regression's, and the model's size."""
    axes = panels(figure, ["data per step by model size", "measured against the regression"])
    estimate = terms.set_index("term")["estimate"]
    fitted = estimate["constant"] + sum(estimate[term] * runs[term].astype(float) for term in estimate.index[1:])
    axes[0].plot(runs["parameters"].astype(float) / 1e6, runs["step_bytes"] / 1e6, "o", color="#0072B2", alpha=0.7)
    axes[0].set_xlabel("model size (millions of parameters)")
    axes[0].set_ylabel("payload per rank and step (MB)")
    axes[1].plot(fitted / 1e6, runs["step_bytes"] / 1e6, "o", color="#0072B2", alpha=0.7)
    most = float(max(runs["step_bytes"].max(), fitted.max())) / 1e6 * 1.08
    axes[1].plot([0, most], [0, most], color=INK, linewidth=0.8, linestyle="--")
    axes[1].set_xlabel(f"regression (MB), R² = {terms['r_squared'].iloc[0]:.4f}")
    axes[1].set_ylabel("measured (MB)")
    for ax in axes:
        ax.margins(0.1)
        ax.set_xlim(left=0)
        ax.set_ylim(bottom=0)


# --- The chapter: its tables, and what they say.

_LEAST_OF_LEVEL = 8  # iterations, from which on a level of cross traffic has a period of its own
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


def _flow_rate_frames(study: Study) -> Frames:
    slices = _in_focus(study, _slices(study))
    slices = slices[slices["payload_bytes"] > 0]
    need(slices, "no flow of the run has payload")
    of_flow = slices.groupby(["session", "flow_id"])["payload_bytes"].transform("sum")
    slices = slices[of_flow >= _WORTH_A_STRIP * of_flow.max()]
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
        intervals, rates = int(last - first) // SLICE_NS + 1, active["rate_bps"].to_numpy()
        mean, low, high = mean_confidence(rates, zeros=intervals - len(rates))
        rows.append(
            {
                **{"run": run, "job": job, "source": source, "target": target, "intervals": intervals},
                **{"mean_bps": mean, "low_bps": low, "high_bps": high, "peak_bps": rates.max()},
            }
        )
    return {"throughput": need(pd.DataFrame(rows), "no pair exchanged payload")}


def _period_frames(study: Study) -> Frames:
    """Per run and level of cross traffic: the period of what its first rank's link sends, by autocorrelation, alongside
    the iteration time."""
    traffic = traffic_of(study)
    need(study.times, NO_TIMES)
    begin_ns, end_ns = traffic.detail_ns
    runs: Any = study.runs.set_index("run").to_dict("index")
    rows = []
    for (run, job), times in groups(study.times, "run", "job"):
        seen = times[(times["start_ns"] >= begin_ns) & (times["end_ns"] <= end_ns)]
        rows += [_period(study, traffic, runs[run], run, job, own) for own in _regimes(seen if len(seen) else times)]
    return {"periods": pd.DataFrame(rows)}


def _regimes(times: pd.DataFrame) -> list[pd.DataFrame]:
    """Of each level of cross traffic the longest stretch of iterations; all where none lasts."""
    ordered = times.sort_values("start_ns")
    level = ordered["level"].fillna(-1)
    stretches = [own for _, own in ordered.groupby((level != level.shift()).cumsum())]
    longest: dict[float, pd.DataFrame] = {}
    for own in stretches:
        key = float(own["level"].fillna(-1).iloc[0])
        if len(own) >= _LEAST_OF_LEVEL and len(own) > len(longest.get(key, ())):
            longest[key] = own
    return [*longest.values()] or [ordered]


def _period(
    study: Study, traffic: Traffic, about: Mapping[str, Any], run: str, job: str, times: pd.DataFrame
) -> dict[str, Any]:
    ranks = study.ranks[(study.ranks["run"] == run) & (study.ranks["job"] == job)]
    host = ranks.sort_values("rank")["host"].iloc[0]
    series = traffic.series
    own = series.index[(series["host"] == host) & (series["direction"] == "tx") & series["class"].isin(DL)]
    begin = max(int(times["start_ns"].min()), traffic.detail_ns[0])
    end = min(int(times["end_ns"].max()), traffic.detail_ns[1])
    grid = max(MS, int(times["time_s"].median() * 1e9) // _PER_ITERATION // MS * MS)
    end = min(end, begin + _MOST_INTERVALS * grid)
    cells = traffic.cells(own.tolist(), begin, end)
    sums = np.bincount(((cells["time_ns"] - begin) // grid).to_numpy(), weights=cells["wire_bytes"].to_numpy(float))
    found = period(sums, least=2) * grid / 1e9 if len(sums) > 4 else 0.0
    return {
        **{"run": run, "job": job, "model": about["model"], "level": times["level"].iloc[0], "iterations": len(times)},
        **{"period_s": found or np.nan, "iteration_s": float(times["time_s"].median()), "batch": about["batch"]},
        **{"compute_s": about["compute_ns"] / 1e9, "interval_s": grid / 1e9},
    }


def _regression_frames(study: Study) -> Frames:
    """Data per step on the attributes of each run."""
    times = need(study.times, NO_TIMES)
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


RATES = Chapter(
    "Traffic characteristics: rates and regularity",
    (
        Exhibit(
            "flow-throughput",
            "Throughput per flow over time",
            "traffic characteristics",
            "Payload rate in intervals of 250 ms of the largest flows of the run in focus.",
            _flow_rate_frames,
            flow_throughput,
        ),
        Exhibit(
            "pair-throughput",
            "Throughput per pair over 250 ms",
            "traffic characteristics",
            "Training payload rate between two hosts in intervals of 250 ms, run in focus.",
            _pair_frames,
            pair_throughput,
        ),
        Exhibit(
            "throughput",
            "Mean and peak throughput per pair",
            "traffic characteristics",
            "Over intervals of 250 ms between a pair's first and last payload; mean with 95 % confidence interval "
            "(Student's t, intervals taken as independent), peak: the largest interval.",
            _mean_frames,
            throughput,
        ),
        Exhibit(
            "periodicity",
            "Periodicity",
            "traffic characteristics",
            "Period of what the first rank's link sends for the job: the first maximum of the autocorrelation that "
            "comes within a quarter of the highest, in intervals of a fortieth of the iteration time and at least "
            "1 ms; each level of cross traffic by itself; against the median iteration time, and against the batch "
            "size where the run tells it, else the compute time per iteration, which the batch size sets.",
            _period_frames,
            periods,
        ),
        Exhibit(
            "regression",
            "Data per step by the run's attributes",
            "traffic characteristics",
            "Ordinary least squares of the mean payload that a rank sends per iteration, one observation per run; "
            "95 % confidence by Student's t. Attributes that do not vary between the runs are left out. level: "
            "measured cross traffic as a share of C.",
            _regression_frames,
            regression,
        ),
    ),
)
