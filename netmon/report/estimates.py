# SPDX-License-Identifier: Apache-2.0
"""Means, regressions and periods, with what is known about their precision."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from netmon.history.dataset import groups, records

Floats = npt.NDArray[np.float64]


def mean_confidence(values: npt.ArrayLike, confidence: float = 0.95, zeros: int = 0) -> tuple[float, float, float]:
    """Mean and the ends of its confidence interval by Student's t; nan, nan for the ends of fewer than two values.

    The values are taken as independent of each other. zeros: how many more there are, all of them 0.
    """
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    known = np.asarray(values, float)
    known = known[np.isfinite(known)]
    count = known.size + zeros
    if count == 0:
        return math.nan, math.nan, math.nan
    mean = float(known.sum() / count)
    if count < 2:
        return mean, math.nan, math.nan
    variance = (((known - mean) ** 2).sum() + zeros * mean**2) / (count - 1)
    half = float(stdtrit(count - 1, (1 + confidence) / 2) * math.sqrt(variance / count))
    return mean, mean - half, mean + half


def linear_regression(
    table: pd.DataFrame, response: str, attributes: Sequence[str], confidence: float = 0.95
) -> pd.DataFrame:
    """Ordinary least squares of `response` on `attributes` and a constant, one row per term.

    Columns term, estimate, low, high (confidence interval by Student's t with n − k degrees of freedom), p_value,
    r_squared, observations. An attribute that does not vary, or that the others determine, is left out, and so has no
    row. Raises ValueError where fewer observations than terms remain.
    """
    from scipy.special import stdtr, stdtrit

    rows = table[[response, *attributes]].apply(pd.to_numeric).dropna()
    terms = _independent(rows, attributes)
    freedom = len(rows) - len(terms) - 1
    if not terms:
        raise ValueError(f"none of {', '.join(attributes)} varies between the {len(rows)} observations")
    if freedom < 1:
        raise ValueError(f"{len(rows)} observations are too few for {len(terms)} attributes and a constant")
    design = np.column_stack([np.ones(len(rows)), rows[terms].to_numpy(float)])
    scale = np.abs(design).max(axis=0)
    y = rows[response].to_numpy(float)
    estimate, *_ = np.linalg.lstsq(design / scale, y, rcond=None)
    residual = y - design / scale @ estimate
    variance = float(residual @ residual) / freedom
    error = np.sqrt(np.diag(np.linalg.pinv((design / scale).T @ (design / scale))) * variance) / scale
    estimate = estimate / scale
    half = stdtrit(freedom, (1 + confidence) / 2) * error
    with np.errstate(divide="ignore", invalid="ignore"):
        p_value = 2 * stdtr(freedom, -np.abs(estimate / error))
    return pd.DataFrame(
        {
            "term": ["constant", *terms],
            "estimate": estimate,
            "low": estimate - half,
            "high": estimate + half,
            "p_value": p_value,
            "r_squared": r_squared(y, y - residual),
            "observations": len(rows),
        }
    )


def _independent(rows: pd.DataFrame, attributes: Sequence[str]) -> list[str]:
    kept: list[str] = []
    for attribute in attributes:
        columns = rows[[*kept, attribute]].to_numpy(float)
        spread = columns - columns.mean(axis=0) if len(rows) else columns
        norm = np.linalg.norm(spread, axis=0)
        if len(rows) and norm[-1] > 0 and np.linalg.matrix_rank(spread / norm, tol=1e-6) == len(kept) + 1:
            kept.append(attribute)
    return kept


def r_squared(measured: npt.ArrayLike, fitted: npt.ArrayLike) -> float:
    """Coefficient of determination, 1 − SS_residual / SS_total; nan where the measured values do not vary."""
    y, f = np.asarray(measured, float), np.asarray(fitted, float)
    total = float(((y - y.mean()) ** 2).sum()) if y.size else 0.0
    return 1 - float(((y - f) ** 2).sum()) / total if total else math.nan


def autocorrelation(series: npt.ArrayLike) -> Floats:
    """Autocorrelation of a series by lag (0 to half its length), by the fast Fourier transform; 1 at lag 0."""
    values = np.asarray(series, float)
    spread = values - values.mean()
    padded = 1 << (2 * len(values) - 1).bit_length()
    spectrum = np.fft.rfft(spread, padded)
    products = np.fft.irfft(spectrum * np.conj(spectrum), padded)[: len(values) // 2]
    products = products / np.arange(len(values), len(values) - len(products), -1)
    result: Floats = products / products[0] if products.size and products[0] > 0 else np.zeros(len(products))
    return result


def period(series: npt.ArrayLike, least: int = 2) -> int:
    """The period of a series in samples: the first lag whose autocorrelation comes within a quarter of the highest one.

    Only maxima at or above lag `least`, beyond the first fall of the autocorrelation to 0, count; 0: no period. Pulses
    that come a little early or late spread a maximum over lags alongside it, so what is compared is the sum over as
    many lags around each as the first fall took: no wider is a pulse that repeats.
    """
    correlation = autocorrelation(series)
    fallen = np.flatnonzero(correlation <= 0)
    begin = max(least, int(fallen[0]) if fallen.size else len(correlation))
    if begin >= len(correlation) - 1:
        return 0
    rest = correlation[begin:]
    peaks = begin + 1 + np.flatnonzero((rest[1:-1] >= rest[:-2]) & (rest[1:-1] > rest[2:]))
    if not peaks.size or correlation[peaks].max() <= 0.1:
        return 0
    width = int(fallen[0])
    sums = np.r_[0, np.cumsum(correlation)]
    around = sums[np.minimum(peaks + width + 1, len(correlation))] - sums[np.maximum(peaks - width, begin)]
    highest = around.max()
    first = peaks[around >= highest - 0.25 * abs(highest)][0]
    same = peaks[(peaks >= first) & (peaks <= first + width)]
    return int(same[np.argmax(correlation[same])])


def cumulative_distribution(values: npt.ArrayLike) -> pd.DataFrame:
    """The empirical distribution function: columns value (sorted) and share (of the values at or below it)."""
    known = np.sort(np.asarray(values, float))
    return pd.DataFrame({"value": known, "share": np.arange(1, known.size + 1) / max(known.size, 1)})


SIZE_CLASSES = ("small", "medium", "large")
SMALL_BYTES, LARGE_BYTES = 100_000, 10_000_000
"""Ours: a small flow carries less than 100 kB of payload in all, a large one at least 10 MB (the web-search
distribution's short and long flows)."""
_TUPLE = ["src", "dst", "src_port", "dst_port", "protocol"]


def size_class(payload_bytes: pd.Series) -> pd.Series:
    """small, medium or large for each flow's payload."""
    bins = [-np.inf, SMALL_BYTES, LARGE_BYTES, np.inf]
    return pd.cut(payload_bytes, bins, labels=list(SIZE_CLASSES), right=False).astype(str)


def once_per_flow(flows: pd.DataFrame) -> pd.DataFrame:
    """The rows of one observer per flow: the sender's own link where it was watched, else the receiver's.

    Takes rows with run, 5-tuple and direction; a flow between two watched hosts has been seen twice.
    """
    sent = flows["direction"] == "tx"
    key = pd.MultiIndex.from_frame(flows[["run", *_TUPLE]])
    return flows[sent | ~key.isin(key[sent])]


def host_names(flows: pd.DataFrame) -> dict[str, str]:
    """Address → name of the watched host that sends from it."""
    sent = flows[flows["direction"] == "tx"].drop_duplicates("src")
    return dict(zip(sent["src"], sent["host"], strict=True))


def who_sends_to_whom(flows: pd.DataFrame) -> pd.DataFrame:
    """Payload by run, job and pair: columns run, job, source, target, packets, wire_bytes, payload_bytes.

    Hosts by name where they are watched, else by address; each flow counts once, at its sender.
    """
    names = host_names(flows)
    once = once_per_flow(flows).assign(
        source=lambda rows: rows["src"].map(names).fillna(rows["src"]),
        target=lambda rows: rows["dst"].map(names).fillna(rows["dst"]),
    )
    sums = ["packets", "wire_bytes", "payload_bytes"]
    return once.groupby(["run", "job", "source", "target"], as_index=False)[sums].sum()


def ring_order(pairs: pd.DataFrame) -> list[str]:
    """Hosts of one job in the order in which the ring passes data on, from rows source, target, payload_bytes.

    Follows each host's largest receiver, from the first name on. Raises ValueError where that does not visit every
    host once and return: the pattern is no ring. Two hosts make a ring.
    """
    pairs = pairs[pairs["payload_bytes"] > 0]
    if pairs.empty:
        raise ValueError("no payload between hosts")
    largest = pairs.sort_values("payload_bytes").groupby("source")["target"].last()
    order = [min(largest.index)]
    while (following := largest.get(order[-1])) is not None and following not in order:
        order.append(following)
    hosts = {*pairs["source"], *pairs["target"]}
    if largest.get(order[-1]) != order[0] or set(order) != hosts:
        raise ValueError("following each host's largest receiver does not visit every host once: no ring")
    return order


# --- How long iterations took, how much cross traffic they met, and from where on that slows them.

TIME_COLUMNS = (
    *("run", "job", "iteration", "start_ns", "end_ns", "time_s", "communication_s", "exposed_s", "dl_tx_bytes"),
    *("cross_bytes", "busiest_bytes", "node_shared", "ranks_seen", "size"),
)
LEVEL_COLUMNS = (
    *("model", "profile", "level", "iterations", "measured", "median_s", "mean_s", "low_s", "high_s", "p01_s", "p99_s"),
    *("dl_tx_bytes", "busiest_share", "rate_bps"),
)
NS_PER_S = 1_000_000_000
_LEVEL_STEP = 0.1  # to which a measured level is rounded, where nobody knows the offered one


def iteration_times(ranks: pd.DataFrame) -> pd.DataFrame:
    """One row per run, job and iteration, from rows per rank (table `iterations` with a column `run`).

    time_s: of the slowest rank, as synchronous training waits for it (the iteration time of the thesis' figures).
    communication_s: first enqueue to last wait of the slowest rank, nan where not known. dl_tx_bytes: mean payload that
    a rank sent. cross_bytes: payload of cross traffic on the busiest link of any rank's host. ranks_seen: of `size`.
    """
    if ranks.empty:
        return pd.DataFrame(columns=list(TIME_COLUMNS), dtype=float)
    exposed_ns = ranks["exposed_ns"].astype(float)
    rows = ranks.assign(
        node_shared=ranks["node_shared"].eq(True),
        time_s=(ranks["end_ns"] - ranks["start_ns"]) / NS_PER_S,
        communication_s=(ranks["comm_end_ns"].astype(float) - ranks["comm_start_ns"].astype(float)) / NS_PER_S,
        exposed_s=exposed_ns.where(exposed_ns >= 0) / NS_PER_S,
        cross_bytes=ranks[["cross_tx_bytes", "cross_rx_bytes"]].max(axis=1),
        busiest_bytes=np.maximum(
            ranks["cross_tx_bytes"] + ranks["dl_tx_bytes"], ranks["cross_rx_bytes"] + ranks["dl_rx_bytes"]
        ),
    )
    return (
        rows.groupby(["run", "job", "iteration"], sort=False)
        .agg(
            start_ns=("start_ns", "min"),
            end_ns=("end_ns", "max"),
            time_s=("time_s", "max"),
            communication_s=("communication_s", "max"),
            exposed_s=("exposed_s", "max"),
            dl_tx_bytes=("dl_tx_bytes", "mean"),
            cross_bytes=("cross_bytes", "max"),
            busiest_bytes=("busiest_bytes", "max"),
            node_shared=("node_shared", "max"),
            ranks_seen=("rank", "nunique"),
            size=("size", "max"),
        )
        .reset_index()
        .sort_values("start_ns", ignore_index=True)
    )


def without_warm_up(times: pd.DataFrame) -> pd.DataFrame:
    """Without each job's first iteration, in which connections open and congestion windows grow."""
    return times[times.groupby(["run", "job"])["iteration"].rank(method="first") > 1].reset_index(drop=True)


def add_levels(times: pd.DataFrame, runs: pd.DataFrame, senders: pd.DataFrame) -> pd.DataFrame:
    """Adds model, profile, rate_bps, measured, offered and level to rows of iteration_times.

    measured: cross_bytes as a rate, as a share of the link's capacity C; nan where C is not known.
    offered: what the lab offered to the most loaded host during the whole iteration, as a share of C; nan where the
    cross traffic began or ended within it, or nobody knows. level: offered where known; measured, rounded to 0.1, in
    runs without a lab.
    """
    levels = runs[["run", "job", "model", "profile", "rate_bps"]].astype({"run": object, "job": object})
    known = times.astype({"run": object, "job": object}).merge(levels, on=["run", "job"], how="left")
    capacity = known["rate_bps"].where(known["rate_bps"] > 0)
    known["measured"] = known["cross_bytes"] * 8 / known["time_s"] / capacity
    known["offered"] = np.nan
    for (run,), rows in groups(known, "run"):
        if runs.loc[runs["run"] == run, "level"].notna().all():
            offered = _offered(rows, senders[senders["run"] == run])
            known.loc[rows.index, "offered"] = offered / rows["rate_bps"]
    in_lab = known["run"].isin(runs.loc[runs["level"].notna(), "run"])
    rounded = (known["measured"] / _LEVEL_STEP).round() * _LEVEL_STEP
    known["level"] = known["offered"].where(in_lab, rounded).round(6)
    return known


def _offered(rows: pd.DataFrame, senders: pd.DataFrame) -> pd.Series:
    """bit/s to the most loaded host while each iteration lasts; nan where a sender began or ended within it."""
    by_target: dict[str, pd.Series] = {}
    partly = pd.Series(False, rows.index)
    for sender in records(senders):
        touches = (rows["start_ns"] < sender.end_ns) & (rows["end_ns"] > sender.begin_ns)
        within = (rows["start_ns"] >= sender.begin_ns) & (rows["end_ns"] <= sender.end_ns)
        partly |= touches & ~within
        target = str(sender.target)
        by_target[target] = by_target.get(target, pd.Series(0.0, rows.index)) + within * float(sender.offered_bps)
    most = pd.concat(by_target.values(), axis=1).max(axis=1) if by_target else pd.Series(0.0, rows.index)
    return most.mask(partly)


def level_statistics(times: pd.DataFrame) -> pd.DataFrame:
    """Iteration time by model, profile and level: the data of the thesis' figures 3-2, 3-3, 3-4 and 3-6.

    Takes rows of add_levels, gives iterations, median_s, mean_s with its 95 % confidence interval (Student's t), p01_s
    and p99_s (99 % tails), measured (mean), dl_tx_bytes (median). The quiet iterations of a model belong to each of
    its profiles.
    """
    rows = [
        {
            **dict(zip(("model", "profile", "level"), key, strict=True)),
            "iterations": len(group),
            "measured": group["measured"].mean(),
            "median_s": group["time_s"].median(),
            **dict(zip(("mean_s", "low_s", "high_s"), mean_confidence(group["time_s"].to_numpy()), strict=True)),
            "p01_s": group["time_s"].quantile(0.01),
            "p99_s": group["time_s"].quantile(0.99),
            "dl_tx_bytes": group["dl_tx_bytes"].median(),
            "busiest_share": (group["busiest_bytes"] * 8 / group["time_s"] / group["rate_bps"]).mean(),
            "rate_bps": group["rate_bps"].median(),
        }
        for key, group in groups(quiet_in_every_profile(times), "model", "profile", "level")
    ]
    return pd.DataFrame(rows, columns=list(LEVEL_COLUMNS))


def quiet_in_every_profile(times: pd.DataFrame) -> pd.DataFrame:
    """The rows with a level, with those of level 0 repeated for each profile of their model."""
    known = times[times["level"].notna()]
    quiet, loaded = known[known["level"] == 0], known[known["level"] > 0]
    if loaded.empty:
        return quiet.assign(profile="none")
    profiles = loaded[["model", "profile"]].drop_duplicates()
    repeated = quiet.drop(columns="profile").merge(profiles, on="model", how="left").fillna({"profile": "none"})
    return pd.concat([repeated, loaded], ignore_index=True)


# --- Where cross traffic begins to slow training: the congestion point, measured and in theory.
#
# The cross traffic BW and the capacity C appear as shares of C: `level` is BW / C, from 0 to below 1.

_GRID = 200  # corners that are tried between two levels' rescaled values


@dataclass(frozen=True)
class CongestionPoint:
    """A flat line and a rising one, meeting at `level`. See congestion_point."""

    level: float  # share of C; nan: no rise, or nothing flat
    flat_s: float  # iteration time below the corner
    slope_s: float  # rise in seconds per unit of 1 / (1 − level)
    error: float  # root mean square distance of the medians from the two lines, as a share of each median
    reason: str = ""  # why there is no point

    def at(self, level: npt.ArrayLike) -> Floats:
        """The two lines' time in seconds at these levels."""
        corner = rescaled(self.level) if math.isfinite(self.level) else math.inf
        rise: Floats = np.maximum(rescaled(level) - corner, 0.0)
        with np.errstate(invalid="ignore"):
            time: Floats = self.flat_s + np.where(rise > 0, self.slope_s * rise, 0.0)
        return time


def rescaled(level: npt.ArrayLike) -> Floats:
    """1 / (1 − level): the hyperbola rescaling of equation 3.2, time against 1 / (C − BW), in units of 1 / C.

    Where the cross traffic takes what it offers, a transfer of D bytes takes 8·D / (C − BW): a straight line here.
    """
    with np.errstate(divide="ignore"):  # a link may carry its stated capacity, and more
        x: Floats = np.asarray(1.0 / (1.0 - np.asarray(level, float)), float)
    return x


def congestion_theory(bytes_per_iteration: float, quiet_s: float, capacity_bps: float) -> float:
    """1 − 8·D / (t₀·C): the level up to which the capacity left over carries the training at its quiet pace.

    D: bytes that a rank sends per iteration (equation 3.1), t₀: iteration time without cross traffic, C: capacity of
    its link. nan where one of them is unknown.
    """
    if not (bytes_per_iteration > 0 and quiet_s > 0 and capacity_bps > 0):
        return math.nan
    return 1 - 8 * bytes_per_iteration / (quiet_s * capacity_bps)


def training_share(level: float, bytes_per_iteration: float, quiet_s: float, capacity_bps: float) -> float:
    """Mean rate of a rank's training traffic under cross traffic, as a share of C: min(8·D / t₀, C − BW) / C.

    What the thesis compares in equations 3.1–3.7, in our form; arguments as those of congestion_theory.
    """
    return min(8 * bytes_per_iteration / (quiet_s * capacity_bps), 1 - level)


def spare_capacity(level: float, bytes_per_iteration: float, quiet_s: float, capacity_bps: float) -> float:
    """What training and cross traffic leave unused, as a share of C: max(0, C − BW − 8·D / t₀) / C.

    Equation 3.8 of the thesis, in our form; arguments as those of congestion_theory.
    """
    return max(0.0, 1 - level - 8 * bytes_per_iteration / (quiet_s * capacity_bps))


def congestion_point(level: npt.ArrayLike, time_s: npt.ArrayLike, tolerance: float = 0.05) -> CongestionPoint:
    """The method of the thesis' appendix A.2 without the eye: two straight lines in the rescaled picture.

    level, time_s: one median iteration time per level. In coordinates 1 / (1 − level) the time is constant up to the
    congestion point (at the median of the levels below it) and rises along a straight line from there. The corner is
    the one, of a fine grid, with the least sum of squared relative distances: long iterations vary more. Our
    automation; the thesis draws the lines by hand. `tolerance`: a rise that stays within this share of the flat time is
    none. A corner at or below the lowest level means that nothing is flat.
    """
    x, y = np.asarray(level, float), np.asarray(time_s, float)
    known = np.isfinite(x) & np.isfinite(y) & (x < 1) & (y > 0)
    order = np.argsort(x[known])
    x, y = x[known][order], y[known][order]
    if len(np.unique(x)) < 4:
        return _no_point(y, f"{len(np.unique(x))} levels of cross traffic; two lines take four")
    flat_all = float(np.median(y))
    if y[-1] <= y[0] * (1 + tolerance):
        return _no_point(y, f"no rise: the highest level takes {y[-1] / y[0]:.2f} × the lowest")
    u = rescaled(x)
    best = min((_two_lines(u, y, *ends) for ends in itertools.pairwise(np.unique(u))), key=lambda point: point.error)
    straight = float(_distance(y, np.polyval(np.polyfit(u, y, 1, w=1 / y), u).astype(float)))
    if best.level <= x[0] or (straight <= best.error * 1.05 and best.level < x[1]):
        return CongestionPoint(math.nan, flat_all, math.nan, straight, "nothing is flat: it rises from the start")
    return best


def _two_lines(u: Floats, y: Floats, since: float, until: float) -> CongestionPoint:
    """The best corner in [since, until), between two neighbours of u."""
    corner = np.linspace(since, until, _GRID, endpoint=False)
    below = u <= since
    flat = float(np.median(y[below]))
    rise, weight = u[~below] - corner[:, None], 1 / y[~below] ** 2
    slope = np.maximum(0.0, (weight * rise) @ (y[~below] - flat) / (weight * rise**2).sum(axis=1))
    error = _distance(y, np.where(below, flat, flat + slope[:, None] * (u - corner[:, None])))
    best = int(error.argmin())
    return CongestionPoint(float(1 - 1 / corner[best]), flat, float(slope[best]), float(error[best]))


def _distance(y: Floats, fitted: Floats) -> Floats:
    """Of each row that is fitted."""
    distance: Floats = np.sqrt(np.mean((fitted / y - 1) ** 2, axis=-1))
    return distance


def _no_point(y: Floats, reason: str) -> CongestionPoint:
    return CongestionPoint(math.nan, float(np.median(y)) if y.size else math.nan, math.nan, math.nan, reason)


# --- The thesis' exponential families for the iteration time under cross traffic.

FAMILIES = (1.0, 0.5, 2.0)
"""Exponents n of the families that the thesis compares (equations 3.3, 3.5–3.7)."""


@dataclass(frozen=True)
class Fit:
    """t = A·exp(B / (C − BW)^n), with C − BW as a share of C."""

    n: float
    a_s: float
    b: float
    r_squared: float
    points: int

    def at(self, level: npt.ArrayLike) -> Floats:
        """Iteration time in seconds at these levels (BW / C)."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # none at the capacity and above
            time: Floats = self.a_s * np.exp(self.b / (1.0 - np.asarray(level, float)) ** self.n)
        return time


def fit_exponential(level: npt.ArrayLike, time_s: npt.ArrayLike, n: float = 1.0) -> Fit:
    """Least squares of t = A·exp(B / (C − BW)^n) on median times by level (equations 3.3, 3.5–3.7).

    Starts from the straight line of log t, then minimises squared distances of t itself; R² is of t. Raises ValueError
    for fewer than three levels, whose R² would say nothing.
    """
    from scipy.optimize import least_squares  # type: ignore[import-untyped]

    x, y = np.asarray(level, float), np.asarray(time_s, float)
    known = np.isfinite(x) & np.isfinite(y) & (x < 1) & (y > 0)
    x, y = x[known], y[known]
    if len(np.unique(x)) < 3:
        raise ValueError(f"{len(np.unique(x))} levels of cross traffic; a fit of two parameters takes three")
    inverse = 1.0 / (1.0 - x) ** n
    b, log_a = np.polyfit(inverse, np.log(y), 1)
    # Centred: A and B would else be so correlated, for n = 2, that the steps lose their direction.
    centre = inverse.mean()
    found = least_squares(
        lambda p: np.exp(np.clip(p[0] + p[1] * (inverse - centre), -50, 50)) - y, [log_a + b * centre, b]
    )
    level_log, slope = float(found.x[0]), float(found.x[1])
    fitted = np.exp(level_log + slope * (inverse - centre))
    return Fit(n, math.exp(level_log - slope * centre), slope, r_squared(y, fitted), len(x))


def fit_families(level: npt.ArrayLike, time_s: npt.ArrayLike, families: Sequence[float] = FAMILIES) -> list[Fit]:
    """One fit per family, the best (by R²) first. Raises ValueError as fit_exponential does."""
    return sorted((fit_exponential(level, time_s, n) for n in families), key=lambda fit: -fit.r_squared)
