# SPDX-License-Identifier: Apache-2.0
"""Means, regressions and periods, with what is known about their precision."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

Floats = npt.NDArray[np.float64]


def mean_confidence(values: npt.ArrayLike, confidence: float = 0.95) -> tuple[float, float, float]:
    """Mean and the ends of its confidence interval by Student's t; nan, nan for the ends of fewer than two values.

    The values are taken as independent of each other.
    """
    from scipy import stats  # type: ignore[import-untyped]

    known = np.asarray(values, float)
    known = known[np.isfinite(known)]
    if known.size == 0:
        return math.nan, math.nan, math.nan
    mean = float(known.mean())
    if known.size < 2:
        return mean, math.nan, math.nan
    half = float(stats.t.ppf((1 + confidence) / 2, known.size - 1) * known.std(ddof=1) / math.sqrt(known.size))
    return mean, mean - half, mean + half


def linear_regression(
    table: pd.DataFrame, response: str, attributes: Sequence[str], confidence: float = 0.95
) -> pd.DataFrame:
    """Ordinary least squares of `response` on `attributes` and a constant, one row per term.

    Columns term, estimate, low, high (confidence interval by Student's t with n − k degrees of freedom), p_value,
    r_squared, observations. An attribute that does not vary, or that the others determine, is left out, and so has no
    row. Raises ValueError where fewer observations than terms remain.
    """
    from scipy import stats

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
    half = stats.t.ppf((1 + confidence) / 2, freedom) * error
    with np.errstate(divide="ignore", invalid="ignore"):
        p_value = 2 * stats.t.sf(np.abs(estimate / error), freedom)
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
