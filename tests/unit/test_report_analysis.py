# SPDX-License-Identifier: Apache-2.0
"""The functions that a notebook imports from netmon.report, against cases whose answer is known."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from netmon.report import (
    Fit,
    autocorrelation,
    burst_spans,
    congestion_point,
    congestion_theory,
    cumulative_distribution,
    fit_exponential,
    fit_families,
    iteration_times,
    level_statistics,
    linear_regression,
    mean_confidence,
    once_per_flow,
    peak_bytes,
    peak_to_mean,
    period,
    r_squared,
    rescaled,
    ring_order,
    size_class,
    spare_capacity,
    training_share,
    who_sends_to_whom,
    without_warm_up,
)
from netmon.report.chapters.traffic import _regimes
from netmon.report.report import _as_html

LEVELS = np.array([0, 0.2, 0.4, 0.6, 0.8, 0.9])


def test_the_hyperbola_is_a_straight_line_when_rescaled():
    assert rescaled([0, 0.5, 0.9]) == pytest.approx([1, 2, 10])


def test_a_link_that_carries_more_than_its_stated_capacity_is_no_error():
    assert rescaled([1.0]) == math.inf
    assert np.isfinite(Fit(n=0.5, a_s=0.1, b=1.0, r_squared=1.0, points=5).at([0.5, 1.0, 1.5])).tolist() == [
        True,
        False,
        False,
    ]


def test_congestion_in_theory_is_the_capacity_that_training_leaves():
    assert congestion_theory(21_333_333, 0.298, 1e9) == pytest.approx(1 - 0.5727, abs=1e-4)
    assert math.isnan(congestion_theory(21_333_333, 0.298, 0))
    assert math.isnan(congestion_theory(math.nan, 0.298, 1e9))


def test_beyond_the_congestion_point_nothing_is_spare():
    told = (21_333_333, 0.298, 1e9)
    corner = congestion_theory(*told)
    assert spare_capacity(0, *told) == pytest.approx(corner)
    assert spare_capacity(corner + 0.1, *told) == 0
    assert training_share(0, *told) == training_share(corner - 0.01, *told) == pytest.approx(1 - corner)
    assert training_share(0.9, *told) == pytest.approx(0.1)


@given(st.floats(0, 0.99))
def test_the_two_lines_meet(level):
    point = congestion_point(LEVELS, np.maximum(1, 0.5 / (1 - LEVELS)))
    assert point.at(level) >= point.flat_s


@given(corner=st.floats(0.15, 0.75), quiet=st.floats(0.01, 10), steeper=st.floats(0.5, 3), seed=st.integers(0, 1000))
def test_the_congestion_point_of_noisy_lines_is_found(corner, quiet, steeper, seed):
    ideal = quiet * (1 + steeper * np.maximum(0, (1 - corner) / (1 - LEVELS) - 1))
    noisy = ideal * np.random.default_rng(seed).normal(1, 0.01, len(LEVELS))
    found = congestion_point(LEVELS, noisy)
    assert found.level == pytest.approx(corner, abs=0.15)
    assert found.flat_s == pytest.approx(quiet, rel=0.1)
    assert found.at(LEVELS) == pytest.approx(ideal, rel=0.15)


def test_no_congestion_point_is_invented():
    assert "no rise" in congestion_point(LEVELS, np.full(6, 0.3)).reason
    assert "rises from the start" in congestion_point(LEVELS, 0.1 + 0.2 / (1 - LEVELS)).reason
    assert "two lines take four" in congestion_point([0, 0.8], [0.3, 0.5]).reason
    assert "two lines take four" in congestion_point([], []).reason
    for point in (congestion_point(LEVELS, np.full(6, 0.3)), congestion_point([], [])):
        assert math.isnan(point.level)


@pytest.mark.parametrize("n", [1.0, 0.5, 2.0])
def test_a_fit_recovers_its_own_family(n):
    time = 0.25 * np.exp(0.02 / (1 - LEVELS) ** n)
    fit = fit_exponential(LEVELS, time, n)
    assert (fit.a_s, fit.b) == pytest.approx((0.25, 0.02), rel=1e-3)
    assert fit.r_squared == pytest.approx(1)
    assert fit.at(LEVELS) == pytest.approx(time)
    assert fit_families(LEVELS, time)[0].n == n


def test_a_fit_takes_three_levels():
    with pytest.raises(ValueError, match="takes three"):
        fit_exponential([0, 0.5], [1, 2])


def test_mean_confidence_is_students():
    mean, low, high = mean_confidence([1, 2, 3, 4, math.nan])
    assert mean == 2.5
    assert (low, high) == pytest.approx((0.4457, 4.5543), abs=1e-4)
    assert mean_confidence([1, 2], zeros=2) == pytest.approx(mean_confidence([0, 1, 0, 2]))
    assert mean_confidence([1], zeros=10**12)[0] == 1 / (10**12 + 1), "of a century there need be no array"
    assert mean_confidence([7])[0] == 7
    assert all(math.isnan(value) for value in (*mean_confidence([7])[1:], *mean_confidence([])))


def test_a_regression_finds_what_made_the_data():
    rng = np.random.default_rng(1)
    table = pd.DataFrame({"parameters": rng.uniform(1e6, 1e8, 40), "ranks": rng.integers(2, 9, 40), "same": 3.0})
    table["twice"] = 2 * table["parameters"]
    table["bytes"] = 1e4 + 5.3 * table["parameters"] + 1e6 * table["ranks"] + rng.normal(0, 1e5, 40)
    terms = linear_regression(table, "bytes", ["parameters", "ranks", "same", "twice"]).set_index("term")
    assert list(terms.index) == ["constant", "parameters", "ranks"]
    assert (terms["low"] < [1e4, 5.3, 1e6]).all()
    assert (terms["high"] > [1e4, 5.3, 1e6]).all()
    assert terms["p_value"]["parameters"] < 1e-6
    assert terms["r_squared"].iloc[0] > 0.99


def test_a_regression_says_why_it_cannot_be():
    table = pd.DataFrame({"bytes": [1.0, 2.0], "parameters": [1.0, 2.0], "same": [1.0, 1.0]})
    with pytest.raises(ValueError, match="too few"):
        linear_regression(table, "bytes", ["parameters"])
    with pytest.raises(ValueError, match="none of same varies"):
        linear_regression(table, "bytes", ["same"])


def test_r_squared_of_the_mean_is_nothing():
    assert r_squared([1, 2, 3], [1, 2, 3]) == 1
    assert r_squared([1, 2, 3], [2, 2, 2]) == 0
    assert math.isnan(r_squared([2, 2], [2, 2]))


@example(every=27, on=0.109375, jitter=1)
@given(every=st.integers(20, 300), on=st.floats(0.1, 0.8), jitter=st.integers(0, 2))
def test_the_period_of_a_pulsed_series(every, on, jitter):
    rng = np.random.default_rng(every)
    series = np.zeros(20 * every)
    for start in range(0, len(series), every):
        begin = start + rng.integers(0, jitter + 1)
        series[begin : begin + int(on * every)] = 1
    assert period(series) == pytest.approx(every, abs=2 + jitter)


def test_noise_and_silence_have_no_period():
    assert period(np.zeros(1000)) == 0
    assert period(np.ones(1000)) == 0
    assert period(np.random.default_rng(1).normal(size=5000)) == 0
    assert autocorrelation([1.0, 2.0, 1.0, 2.0])[0] == 1


def test_the_distribution_function():
    steps = cumulative_distribution([3, 1, 2, 2])
    assert list(steps["value"]) == [1, 2, 2, 3]
    assert list(steps["share"]) == [0.25, 0.5, 0.75, 1]


def test_peaks_and_bursts():
    bins, amount = np.array([0, 1, 2, 5, 9, 10]), np.array([10, 20, 30, 5, 40, 1])
    assert [peak_bytes(bins, amount, length) for length in (1, 2, 5, 100)] == [40, 40, 60, 106]
    assert peak_bytes(bins[:0], amount[:0], 1) == 0
    assert peak_to_mean(40, 106, 1, 11) == pytest.approx(40 / (106 / 11))
    assert math.isnan(peak_to_mean(0, 0, 1, 11))
    spans = burst_spans(bins, amount, hot_bytes=15)
    assert list(spans.bursts) == [2, 1]
    assert list(spans.gaps) == [6]
    assert not len(burst_spans(bins, amount, hot_bytes=100).bursts)


def test_size_classes():
    assert list(size_class(pd.Series([0, 99_999, 100_000, 9_999_999, 10_000_000]))) == [
        *("small", "small", "medium", "medium", "large")
    ]


def flow(source, target, payload, direction="tx", host=None):
    tuple5 = {"src": source, "dst": target, "src_port": 1, "dst_port": 2, "protocol": 6}
    sums = {"packets": 1, "wire_bytes": payload + 54, "payload_bytes": payload}
    host = host or (source if direction == "tx" else target)
    return {"run": "a", "job": "j", "host": host, "direction": direction, **tuple5, **sums}


def test_a_flow_between_two_watched_hosts_counts_once():
    flows = pd.DataFrame([flow("h0", "h1", 100), flow("h0", "h1", 100, "rx"), flow("far", "h1", 7, "rx")])
    assert list(once_per_flow(flows)["payload_bytes"]) == [100, 7]
    pairs = who_sends_to_whom(flows)
    assert list(zip(pairs["source"], pairs["target"], pairs["payload_bytes"], strict=True)) == [
        *(("far", "h1", 7), ("h0", "h1", 100))
    ]


def test_the_order_of_a_ring_and_what_is_none():
    def pairs(*edges):
        return pd.DataFrame([{"source": a, "target": b, "payload_bytes": n} for a, b, n in edges])

    assert ring_order(pairs(("c", "b", 9), ("b", "a", 9), ("a", "c", 9), ("a", "b", 1))) == ["a", "c", "b"]
    assert ring_order(pairs(("a", "b", 9), ("b", "a", 9))) == ["a", "b"]
    star = pairs(("a", "hub", 9), ("b", "hub", 9), ("hub", "a", 9), ("hub", "b", 8))
    with pytest.raises(ValueError, match="no ring"):
        ring_order(star)
    with pytest.raises(ValueError, match="no payload"):
        ring_order(pairs(("a", "b", 0)))


def ranks(iterations=5, ranks=3):
    rows = []
    for iteration in range(iterations):
        for rank in range(ranks):
            rows.append(
                {
                    **{"run": "r", "job": "j", "rank": rank, "size": ranks, "iteration": iteration},
                    **{"start_ns": iteration * 10**9 + rank, "end_ns": iteration * 10**9 + (5 + rank) * 10**8},
                    **{"comm_start_ns": iteration * 10**9 + 10**8, "comm_end_ns": math.nan, "exposed_ns": -1},
                    **{"dl_tx_bytes": 100, "dl_rx_bytes": 100, "cross_tx_bytes": 10 * rank, "cross_rx_bytes": 5},
                    "node_shared": rank == 2,
                }
            )
    return pd.DataFrame(rows)


def test_an_iteration_lasts_as_long_as_its_slowest_rank():
    times = iteration_times(ranks())
    assert list(times["time_s"]) == pytest.approx([0.7] * 5, abs=1e-6)
    assert list(times["cross_bytes"]) == [20] * 5
    assert list(times["busiest_bytes"]) == [120] * 5
    assert times["node_shared"].all()
    assert times["communication_s"].isna().all()
    assert times["exposed_s"].isna().all()
    assert list(without_warm_up(times)["iteration"]) == [1, 2, 3, 4]


def test_quiet_iterations_belong_to_every_profile():
    times = pd.DataFrame(
        {
            "model": "m",
            "profile": ["none", "websearch", "burst", "burst"],
            "level": [0, 0.8, 0.8, 0.8],
            "time_s": [1.0, 2, 3, 5],
            **dict.fromkeys(["measured", "dl_tx_bytes", "busiest_bytes", "rate_bps"], 1.0),
        }
    )
    levels = level_statistics(times).set_index(["profile", "level"])
    assert levels["median_s"].to_dict() == {
        **{("burst", 0.0): 1, ("burst", 0.8): 4, ("websearch", 0.0): 1, ("websearch", 0.8): 2}
    }
    assert list(levels["iterations"]) == [1, 2, 1, 1]


def test_a_period_is_that_of_one_level_of_cross_traffic():
    levels = [0.0] * 12 + [0.8] * 20 + [0.0] * 9 + [0.4] * 3
    times = pd.DataFrame({"start_ns": np.arange(len(levels)), "level": levels})
    found = {own["level"].iloc[0]: len(own) for own in _regimes(times)}
    assert found == {0.0: 12, 0.8: 20}  # the longest stretch; three iterations are none
    [whole] = _regimes(times.iloc[::9])
    assert len(whole) == 5


def test_tables_on_the_page_have_units_for_people():
    table = pd.DataFrame(
        {"lost_ns": [1.5e9, np.nan], "wire_bytes": [1000, 2], "mean_bps": [5e8, 0], "since_ns": [10**18, 0]}
        | {"who": ["a <b>", "c"], "time_s": [0.25, 1.0]}
    )
    text = _as_html(table, 1)
    for cell in ("1.50 s", "1 kB", "500 Mbit/s", "2001-09-09 01:46:40 UTC", "a &lt;b&gt;", "250 ms"):
        assert f"<td>{cell}</td>".replace(" ", "\u00a0").replace("<td>a\u00a0", "<td>a\u00a0") in text
    assert all(f"<th>{name}</th>" in text for name in ("lost", "wire", "mean", "since", "who", "time"))
    assert "1 of 2 rows" in text
