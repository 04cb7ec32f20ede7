# SPDX-License-Identifier: Apache-2.0
"""Burstiness: peak to mean by interval, and how long bursts and the gaps between them last."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

HOT = 0.5
"""An interval is hot when its bytes are more than this share of what the link carries in it."""


def peak_bytes(bins: Ints, amount: Ints, length: int) -> int:
    """The most that any aligned interval of `length` bins holds. bins: non-empty ones, ascending, unique."""
    if not len(bins):
        return 0
    interval = bins // length
    first = np.flatnonzero(np.r_[True, interval[1:] != interval[:-1]])
    return int(np.add.reduceat(amount, first).max())


def peak_to_mean(peak: int, total: int, length_ns: float, observed_ns: float) -> float:
    """Rate in the busiest interval over the mean rate: (peak / length) / (total / observed).

    The intervals are aligned to multiples of their length, and do not overlap; the mean is over the whole
    observation, silence included.
    """
    return float(peak / length_ns / (total / observed_ns)) if total and observed_ns else float("nan")


@dataclass(frozen=True)
class Spans:
    """Durations in bins: of the bursts, and of the gaps between one burst and the next."""

    bursts: Ints
    gaps: Ints


def burst_spans(bins: Ints, amount: Ints, hot_bytes: float) -> Spans:
    """Runs of adjacent hot bins (more than hot_bytes each), and what lies between them.

    bins: non-empty ones, ascending, unique; those that are absent are empty, so not hot.
    """
    hot = bins[amount > hot_bytes]
    if not len(hot):
        return Spans(np.empty(0, np.int64), np.empty(0, np.int64))
    step = np.diff(hot)
    begins = np.flatnonzero(np.r_[True, step > 1])
    lengths = np.diff(np.r_[begins, len(hot)])
    return Spans(lengths.astype(np.int64), step[step > 1] - 1)
