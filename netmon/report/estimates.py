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
