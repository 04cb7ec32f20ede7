# SPDX-License-Identifier: Apache-2.0
"""Estimating another clock from delayed messages: bounds that hold, and estimates that are near."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.host.align import ClockQuery, Exchanges, fit_exchanges
from netmon.dl.clocks import Comparison, Correction, OffsetFit, Points, Present, combine, fit_offsets
from netmon.records import ClockExchange

UTC = 1_760_000_000_000_000_000
S = 1_000_000_000


class Bounds(NamedTuple):
    """Of one clock's offset: times in the own clock, and values."""

    upper_at: np.ndarray
    upper: np.ndarray
    lower_at: np.ndarray
    lower: np.ndarray


def exchange_bounds(exchanges: Sequence[ClockExchange]) -> Bounds:
    sent, received, answered, arrived = np.array([list(vars(one).values()) for one in exchanges], np.int64).T
    return Bounds(sent, received - sent, arrived, answered - arrived)


def padded(columns: list[tuple[np.ndarray, np.ndarray]], none: float) -> Points:
    shape = len(columns), max(len(at) for at, _ in columns)
    points = Points(np.zeros(shape), np.full(shape, none))
    for row, (at, value) in enumerate(columns):
        points.time[row, : len(at)], points.value[row, : len(at)] = at, value
    return points


def fit_all(
    bounds: Sequence[Bounds], now: int, known: Sequence[OffsetFit | None], share: Sequence[float]
) -> list[OffsetFit | None]:
    base = np.array([one.upper[0] if len(one.upper) else 0 for one in bounds], np.int64)
    fits = fit_offsets(
        padded([(one.upper_at - now, one.upper - zero) for one, zero in zip(bounds, base, strict=True)], np.inf),
        padded([(one.lower_at - now, one.lower - zero) for one, zero in zip(bounds, base, strict=True)], -np.inf),
        base,
        now,
        Present(
            np.array([fit is not None for fit in known]),
            np.array([fit.offset_at(now) if fit else 0 for fit in known]),
            np.array([fit.skew if fit else 0.0 for fit in known]),
        ),
        np.array(share, np.float64),
    )
    columns = fits.there, fits.offset_ns, fits.skew, fits.error_ns, fits.since_ns
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [OffsetFit(now, *row) if there else None for there, *row in rows]


def fit_offset(bounds: Bounds, now: int, present: OffsetFit | None = None, share: float = 1.0) -> OffsetFit | None:
    return fit_all([bounds], now, [present], [share])[0]


class Clock:
    """A host's clock: the collector's UTC is mono + offset + skew·mono."""

    def __init__(self, offset_ns: int, skew: float, begin_ns: int) -> None:
        self.offset_ns, self.skew, self.begin_ns = offset_ns, skew, begin_ns

    def theta(self, mono_ns: np.ndarray | int) -> np.ndarray:
        return self.offset_ns + np.round(self.skew * (np.asarray(mono_ns) - self.begin_ns)).astype(np.int64)

    def exchanges(
        self, rng: np.random.Generator, seconds: float, there_ns: float, back_ns: float, jitter_ns: float
    ) -> list[ClockExchange]:
        """Eight a second; a tenth of them meet a delay of many times the jitter, one way only."""
        count = max(2, round(8 * seconds))
        sent = self.begin_ns + np.sort(rng.integers(0, round(seconds * S), count))
        delays = [
            least
            + rng.exponential(jitter_ns, count)
            + (rng.random(count) < 0.1) * rng.exponential(50 * jitter_ns, count)
            for least in (there_ns, back_ns)
        ]
        there, back = (delay.astype(np.int64) for delay in delays)
        arrived = sent + there + 5_000 + back
        received = sent + there + self.theta(sent + there)
        answered = arrived - back + self.theta(arrived - back)
        return [ClockExchange(*row) for row in np.column_stack([sent, received, answered, arrived]).tolist()]


@settings(max_examples=60, deadline=None)
@given(
    offset=st.integers(-5 * S, 5 * S),
    skew_ppm=st.floats(-200, 200),
    seconds=st.floats(0.5, 16),
    there_us=st.floats(20, 300),
    back_us=st.floats(20, 300),
    jitter_us=st.floats(1, 100),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_bound_holds_whatever_the_delays_are(offset, skew_ppm, seconds, there_us, back_us, jitter_us, seed):
    clock = Clock(UTC + offset, skew_ppm / 1e6, 10**13)
    exchanges = clock.exchanges(np.random.default_rng(seed), seconds, there_us * 1e3, back_us * 1e3, jitter_us * 1e3)
    now = exchanges[-1].agent_received_ns + 200_000_000
    fit = fit_offset(exchange_bounds(exchanges), now)
    assert abs(fit.offset_ns - int(clock.theta(now))) <= fit.error_ns + 2  # nothing was left out, and nothing is far
    assert fit.since_ns == min(exchange.agent_sent_ns for exchange in exchanges)


def _excess(fit: OffsetFit, bounds: Bounds) -> float:
    """By how much a line breaks the bound that it breaks most, in ns; relative to UTC, which no float holds."""
    upper, lower = (fit.offset_ns - UTC + fit.skew * (at - fit.at_ns) for at in (bounds.upper_at, bounds.lower_at))
    return float(max((upper - (bounds.upper - UTC)).max(), (bounds.lower - UTC - lower).max()))


@settings(max_examples=60, deadline=None)
@given(
    off=st.integers(-50_000_000, 50_000_000),
    lean_ppm=st.floats(-500, 500),
    delay_us=st.floats(20, 20_000),
    seed=st.integers(0, 2**32 - 1),
)
def test_an_estimate_moves_only_where_it_is_refuted(off, lean_ppm, delay_us, seed):
    clock = Clock(UTC, 0, 10**13)
    exchanges = clock.exchanges(np.random.default_rng(seed), 8, delay_us * 1e3, delay_us * 1e3, delay_us * 500)
    bounds, now = exchange_bounds(exchanges), exchanges[-1].agent_received_ns
    present = OffsetFit(now, UTC + off, lean_ppm / 1e6, 0, 0)
    fit = fit_offset(bounds, now, present, share=0)
    assert abs(fit.offset_ns - UTC) <= fit.error_ns + 2
    assert _excess(fit, bounds) < 2
    again = fit_offset(bounds, now, fit, share=0)
    assert abs(again.offset_ns - fit.offset_ns) <= 2
    if _excess(present, bounds) <= 0:
        assert (fit.offset_ns, fit.skew) == (present.offset_ns, present.skew)


def test_with_equal_least_delays_the_estimate_is_much_better_than_its_bound():
    rng = np.random.default_rng(1)
    errors, skews = [], []
    for _ in range(40):
        clock = Clock(UTC + 3 * S, 200e-6, 10**13)
        exchanges = clock.exchanges(rng, 16, 50e3, 50e3, 80e3)
        fit = fit_offset(exchange_bounds(exchanges), exchanges[-1].agent_received_ns)
        errors.append(abs(fit.offset_ns - int(clock.theta(fit.at_ns))))
        skews.append(abs(fit.skew - 200e-6))
    assert np.median(errors) < 20_000
    assert np.median(skews) < 2e-6


@pytest.mark.parametrize("jump_ns", [-3 * S, 500_000, 60 * S])
def test_a_clock_that_jumps_is_followed(jump_ns):
    rng = np.random.default_rng(2)
    before = Clock(UTC, 0, 10**13).exchanges(rng, 8, 50e3, 50e3, 20e3)
    after = Clock(UTC + jump_ns, 0, 10**13 + 8 * S).exchanges(rng, 2, 50e3, 50e3, 20e3)
    fit = fit_offset(exchange_bounds(before + after), after[-1].agent_received_ns)
    assert abs(fit.offset_ns - UTC - jump_ns) <= fit.error_ns < 200_000
    assert fit.since_ns >= 10**13 + 8 * S


def test_what_cannot_be_told_is_not():
    nothing = np.empty(0, np.int64)
    one = np.array([5], np.int64)
    assert fit_offset(Bounds(nothing, nothing, nothing, nothing), 0) is None
    assert fit_offset(Bounds(one, one, nothing, nothing), 0) is None
    contradictory = Bounds(one, np.array([-100]), one, np.array([100]))
    assert fit_offset(contradictory, 10) is None


@pytest.mark.parametrize("exchange", [ClockExchange(10, 5, 6, 9), ClockExchange(10, 5, 4, 12)])
def test_an_exchange_in_an_impossible_order_tells_nothing(exchange):
    exchanges = Exchanges()
    if exchanges.add_exchanges([exchange], 12):
        assert fit_exchanges([ClockQuery(exchanges, 12, None, 1.0)]) == [None]


def test_a_single_exchange_tells_the_offset_to_half_of_its_delay():
    fit = fit_offset(exchange_bounds([ClockExchange(1000, UTC + 1400, UTC + 1500, 2000)]), 2000)
    assert fit.offset_ns == pytest.approx(UTC - 50, abs=2)
    assert fit.error_ns == pytest.approx(450, abs=5)


def random_bounds(rng: np.random.Generator) -> Bounds:
    """Of a clock that may jump, with and without load; a few or many."""
    skew, span, jitter = rng.uniform(-2e-4, 2e-4), rng.uniform(0.1, 60) * S, rng.uniform(1e4, 1e6)
    columns = []
    for sign in (1, -1):
        at = 10**13 + rng.integers(0, int(span), int(rng.integers(1, 60)))
        delay = rng.exponential(jitter, len(at)) + rng.uniform(0, 1e5) - (rng.random(len(at)) < 0.1) * 1e5
        columns += [at, UTC + np.round(skew * (at - 10**13) + sign * delay).astype(np.int64)]
    return Bounds(*columns)


def test_many_clocks_at_once_are_estimated_as_one_by_one():
    rng = np.random.default_rng(4)
    bounds = [random_bounds(rng) for _ in range(300)]
    now = 10**13 + 30 * S  # within the bounds of some, after those of others
    known = [
        OffsetFit(now, UTC + int(rng.normal(0, 1e6)), rng.normal(0, 2e-4), 0, 0) if rng.random() < 0.7 else None
        for _ in bounds
    ]
    share = rng.choice([0.0, 0.3, 1.0], len(bounds)).tolist()
    fits = fit_all(bounds, now, known, share)
    assert 0 < sum(fit is None for fit in fits) < len(bounds)
    assert fits == [fit_offset(*one) for one in zip(bounds, [now] * len(bounds), known, share, strict=True)]


def test_a_thousand_clocks_are_combined_along_the_pairs_that_there_are():
    """Rings of eight, and one pair of hosts whose comparisons contradict each other: it costs only its own ring."""
    rng, count = np.random.default_rng(1), 1024
    truth = rng.integers(-90_000, 90_000, count).tolist()
    ring = [(k, k // 8 * 8 + (k + 1) % 8) for k in range(count)]
    pairs = [Comparison(a, b, truth[a] - truth[b] + int(rng.integers(-900, 900)), 0.0, 1_000) for a, b in ring]
    wrong = Comparison(0, 1, truth[0] - truth[1] + 50_000, 0.0, 1_000)
    corrections = combine([100_000] * count, [*pairs, wrong], 0)
    assert [(c.ns, c.error_ns) for c in corrections[:8]] == [(0, 100_000)] * 8
    for correction, true in zip(corrections[8:], truth[8:], strict=True):
        assert abs(correction.ns - true) <= correction.error_ns + 1 < 100_000
    for a, b in ring[8:]:
        assert corrections[a].ns - corrections[b].ns == pytest.approx(truth[a] - truth[b], abs=2_000)


def test_comparisons_of_pairs_improve_on_the_exchange():
    truth = [40_000, -30_000, 10_000]
    pairs = [Comparison(a, b, truth[a] - truth[b], 0.0, 5_000) for a, b in ((0, 1), (1, 2))]
    corrections = combine([100_000, 100_000, 20_000], pairs, 7)
    for correction, true in zip(corrections, truth, strict=True):
        assert abs(correction.ns - true) <= correction.error_ns
    assert [correction.error_ns <= 35_000 for correction in corrections] == [True] * 3
    assert corrections[0].ns - corrections[1].ns == pytest.approx(truth[0] - truth[1], abs=2_000)


def test_a_comparison_that_contradicts_the_exchange_changes_nothing():
    corrections = combine([50_000, 50_000], [Comparison(0, 1, 10 * S, 0.0, 5_000)], 0)
    assert [(correction.ns, correction.error_ns) for correction in corrections] == [(0, 50_000)] * 2
    assert combine([], [], 0) == []


@settings(max_examples=100, deadline=None)
@given(
    st.integers(2, 6).flatmap(
        lambda n: st.tuples(
            st.lists(st.integers(-90_000, 90_000), min_size=n, max_size=n),
            st.lists(
                st.tuples(st.integers(0, n - 1), st.integers(0, n - 1), st.floats(-1, 1), st.integers(1_000, 80_000)),
                max_size=12,
            ),
        )
    )
)
def test_combined_bounds_hold_and_are_no_worse(case):
    truth, measured = case
    pairs = [
        Comparison(a, b, truth[a] - truth[b] + round(off * error), 0.0, error)
        for a, b, off, error in measured
        if a != b
    ]
    for correction, true in zip(combine([100_000] * len(truth), pairs, 0), truth, strict=True):
        assert abs(correction.ns - true) <= correction.error_ns + 1


def test_a_correction_grows_with_its_skew():
    fit = OffsetFit(at_ns=2 * S, offset_ns=UTC, skew=1e-4, error_ns=50_000, since_ns=0)
    corrected = Correction(UTC + S, 10_000, 2e-6, 8_000).of(fit)
    assert corrected == OffsetFit(2 * S, UTC + 12_000, 1.02e-4, 8_000, 0)
