# SPDX-License-Identifier: Apache-2.0
"""The dataset as tables, figures and a page: pure functions for notebooks, and the report that is made with them."""

from netmon.history.dataset import Tables, open_table
from netmon.report.estimates import (
    autocorrelation,
    cumulative_distribution,
    linear_regression,
    mean_confidence,
    once_per_flow,
    period,
    r_squared,
    ring_order,
    size_class,
    who_sends_to_whom,
)
from netmon.report.iteration_times import (
    CongestionPoint,
    Fit,
    add_levels,
    congestion_point,
    congestion_theory,
    fit_exponential,
    fit_families,
    iteration_times,
    level_statistics,
    rescaled,
    spare_capacity,
    training_share,
    without_warm_up,
)
from netmon.report.scan import burst_spans, peak_bytes, peak_to_mean
from netmon.report.study import Study, read_study
from netmon.report.summary import read_runs

__all__ = [
    "CongestionPoint",
    "Fit",
    "Study",
    "Tables",
    "add_levels",
    "autocorrelation",
    "burst_spans",
    "congestion_point",
    "congestion_theory",
    "cumulative_distribution",
    "fit_exponential",
    "fit_families",
    "iteration_times",
    "level_statistics",
    "linear_regression",
    "mean_confidence",
    "once_per_flow",
    "open_table",
    "peak_bytes",
    "peak_to_mean",
    "period",
    "r_squared",
    "read_runs",
    "read_study",
    "rescaled",
    "ring_order",
    "size_class",
    "spare_capacity",
    "training_share",
    "who_sends_to_whom",
    "without_warm_up",
]
